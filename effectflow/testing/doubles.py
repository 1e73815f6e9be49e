"""Test doubles: a clock with virtual time, and an observer that records events."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar

import anyio
import anyio.lowlevel
from returns.result import Result

from effectflow.checkpoint import CheckpointEvent, Entry, EntryAppended, StepSkipped
from effectflow.effects import Effect
from effectflow.effects.clock import Duration, in_seconds
from effectflow.testing.orders import Explorer, come_to_rest

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")

_FEW = 64
"""The cancelled timers that may stay in the queue, in addition to as many as there are live ones."""

_DIGITS = 6
"""Times are whole microseconds, as those of `datetime`. A difference of two times is less exact."""


class TestClock:
    """A clock that stands still until it is advanced, for asyncio and trio.

    An hour of back-off takes milliseconds, and is the same each time.

    Either `run` an effect on it: whenever all tasks wait, it jumps to the next time that one waits for.
    Or pass it to `effect.run(env, clock=...)` and `advance` it. It does not wait for work that does not
    use the clock, such as threads and sockets.

    Parameters:
        start: the time at which it starts, with a time zone. A store has its own clock, by which
            messages arrive. By default this clock is ahead of it, so that for a worker on this clock
            messages have always arrived.

    Example:
        >>> import anyio
        >>> from effectflow import sleep
        >>> clock = TestClock()
        >>> anyio.run(clock.run, sleep(3600), None)
        <Success: None>
        >>> clock.monotonic()
        3600.0
    """

    # Not a test, although its name begins with Test.
    __test__ = False

    def __init__(self, start: datetime = datetime(2100, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._dues: list[tuple[float, int]] = []
        self._wakes: dict[int, Callable[[], object]] = {}
        self._numbers = count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        over = anyio.Event()
        with self._timer(seconds, over.set):
            await over.wait()

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[anyio.CancelScope]:
        with anyio.CancelScope() as scope, self._timer(seconds, scope.cancel):
            if seconds <= 0:
                # The clock may never be advanced again.
                scope.cancel()
            yield scope

    async def advance(self, seconds: Duration) -> None:
        """Advance by this many seconds, or this `timedelta`.

        Wake tasks in order of time; each one runs until it waits.
        """
        ahead = in_seconds(seconds)
        if ahead < 0:
            raise ValueError(f"time cannot go back: {seconds}")
        target = self._ahead(ahead)
        await come_to_rest()
        while (due := self._next_due()) is not None and due <= target:
            self._jump()
            await come_to_rest()
        self._elapsed = target

    async def run(self, effect: Effect[Env, E, A], env: Env) -> Result[A, E]:
        """Run an effect to its end, jumping ahead whenever all tasks wait."""
        result: Result[A, E] | None = None
        raised: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._jump_ahead)
            try:
                result = await effect.run(env, clock=self)
            except Exception as defect:
                raised = defect
            tasks.cancel_scope.cancel()
        if raised is not None:
            raise raised
        assert result is not None
        return result

    async def _jump_ahead(self) -> None:
        while True:
            await come_to_rest()
            if self._next_due() is None:
                # A task waits for something other than this clock, which takes real time.
                await anyio.sleep(0.001)
            else:
                self._jump()

    def _jump(self) -> None:
        due, number = heappop(self._dues)
        self._elapsed = max(self._elapsed, due)
        self._wakes.pop(number)()
        following = self._next_due()
        if Explorer.active is not None and following == due:
            # An exploration chooses among all that is due at the same time.
            self._jump()

    def _ahead(self, seconds: float) -> float:
        return round(self._elapsed + seconds, _DIGITS)

    def _next_due(self) -> float | None:
        while self._dues and self._dues[0][1] not in self._wakes:
            heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    @contextmanager
    def _timer(self, seconds: float, wake: Callable[[], object]) -> Generator[None]:
        number = next(self._numbers)
        if seconds < math.inf:
            self._wakes[number] = wake
            # At least a microsecond ahead: who waits until a time must not wake before it.
            heappush(self._dues, (self._ahead(max(seconds, 1e-6)), number))
        try:
            yield
        finally:
            self._wakes.pop(number, None)
            # Most timers belong to timeouts that do not expire.
            if len(self._dues) > 2 * len(self._wakes) + _FEW:
                self._dues = [due for due in self._dues if due[1] in self._wakes]
                heapify(self._dues)


class RecordingObserver:
    """Records every event, in order. Pass it to `Checkpoints(observers=...)`."""

    def __init__(self) -> None:
        self.events: list[CheckpointEvent] = []

    def notify(self, event: CheckpointEvent) -> None:
        """Remember the event."""
        self.events.append(event)

    @property
    def entries(self) -> list[Entry]:
        """The entries that were appended."""
        return [event.entry for event in self.events if isinstance(event, EntryAppended)]

    @property
    def skipped(self) -> list[str]:
        """The steps that were reached and not run, because their outcome was recorded."""
        return [event.step for event in self.events if isinstance(event, StepSkipped)]
