"""Virtual time: an hour of back-off in milliseconds, and the same each time."""

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

from effectflow.effects import Effect

__all__ = ["TestClock"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")

_ROUNDS = 50
"""Turns of the event loop that a task may take to come to rest after it was woken."""

_FEW = 64
"""Timers that are over and may stay until their time comes, besides as many as there are others."""


class TestClock:
    """A clock that stands still until it is told to go on. For asyncio and trio alike.

    Either `run` an effect on it, which jumps to the next moment that anybody waits for whenever
    nothing else is to be done, or hand it to `effect.run(env, clock=...)` and `advance` it. What does
    not ask the clock (threads, sockets) does not hold it up.

    Parameters:
        start: what `now` gives at first; aware.

    Example:
        >>> import anyio
        >>> from effectflow import sleep
        >>> clock = TestClock()
        >>> anyio.run(clock.run, sleep(3600), None)
        <Success: None>
        >>> clock.monotonic()
        3600.0
    """

    # Not a test, whatever its name says to pytest.
    __test__ = False

    def __init__(self, start: datetime = datetime(2000, 1, 1, tzinfo=UTC)) -> None:
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
            yield scope

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass: wake whom they wake, one after another, and let each come to rest."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        target = self._elapsed + seconds
        await _come_to_rest()
        while (due := self._next_due()) is not None and due <= target:
            await self._jump()
        self._elapsed = target

    async def run(self, effect: Effect[Env, E, A], env: Env) -> Result[A, E]:
        """Run an effect to its end, jumping ahead whenever all that is left to do is to wait."""
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
            await _come_to_rest()
            if self._next_due() is None:
                # Whatever it waits for is none of ours, and takes real time.
                await anyio.sleep(0.001)
            else:
                await self._jump()

    async def _jump(self) -> None:
        due, number = heappop(self._dues)
        self._elapsed = max(self._elapsed, due)
        self._wakes.pop(number)()
        await _come_to_rest()

    def _next_due(self) -> float | None:
        while self._dues and self._dues[0][1] not in self._wakes:
            heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    @contextmanager
    def _timer(self, seconds: float, wake: Callable[[], object]) -> Generator[None]:
        number = next(self._numbers)
        if seconds < math.inf:
            self._wakes[number] = wake
            heappush(self._dues, (self._elapsed + seconds, number))
        try:
            yield
        finally:
            self._wakes.pop(number, None)
            # Most timers are of timeouts that are not needed.
            if len(self._dues) > 2 * len(self._wakes) + _FEW:
                self._dues = [due for due in self._dues if due[1] in self._wakes]
                heapify(self._dues)


async def _come_to_rest() -> None:
    for _ in range(_ROUNDS):
        await anyio.lowlevel.checkpoint()
