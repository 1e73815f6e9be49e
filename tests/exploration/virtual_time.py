"""Event loops whose time passes at once: whenever all tasks wait, it jumps to the next deadline.

Code that never heard of a clock (`anyio.sleep` in a step, a delayed save, a worker that polls) follows
this time, too, so a life of a process is exact and takes milliseconds.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal, TypeVar

import anyio
import trio
import trio.abc
from anyio._backends import _asyncio as anyio_of_asyncio

A = TypeVar("A")
Backend = Literal["asyncio", "trio"]

EPOCH = datetime(2100, 1, 1, tzinfo=UTC)
"""The date of virtual time 0: ahead of real time, by which a store says that a run is due at once."""

_LOOKS_AT_ONE_TIME = 200_000
"""How often a loop may look for something to do without time passing."""

_REAL_SECONDS = 0.005
"""How long a loop waits for a thread before it looks again."""

_LOOKS_FOR_THREADS = 400
"""How often a loop looks for a thread when nothing else is left to wait for."""


class Hangs(Exception):
    """The program waits for something that never happens, or runs without end."""


class VirtualTime:
    """The time of an event loop.

    Attributes:
        now: seconds since `EPOCH`.
        limit: the time at which the program counts as one that hangs.
    """

    def __init__(self, now: float, limit: float) -> None:
        self.now, self.limit = now, limit
        self._held = self._looks = self._idle = 0

    @contextmanager
    def held(self) -> Generator[None]:
        """Let no time pass within the block, which waits for a thread."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def pass_until(self, deadline: float) -> float:
        """Jump to a deadline. Return for how many real seconds to wait instead."""
        if self._held:
            return _REAL_SECONDS
        if deadline == math.inf:
            self._idle += 1
            if self._idle > _LOOKS_FOR_THREADS:
                raise Hangs("every task waits, and nothing can wake one")
            return _REAL_SECONDS
        self._idle = 0
        if deadline > self.now:
            self.now, self._looks = deadline, 0
        if self.now > self.limit:
            raise Hangs(f"it has not ended after {self.limit:.0f} s")
        return 0

    def look(self) -> float:
        """Return the time. The loop calls this in each of its rounds."""
        self._looks += 1
        if self._looks > _LOOKS_AT_ONE_TIME:
            raise Hangs("it runs without end, and without a wait")
        return self.now


class _Selector(selectors.SelectSelector):
    """Passes virtual time instead of waiting."""

    def __init__(self, virtual: VirtualTime) -> None:
        super().__init__()
        self._time = virtual

    def select(self, timeout: float | None = None) -> list[Any]:
        self._time.look()
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        deadline = math.inf if timeout is None else self._time.now + timeout
        seconds = self._time.pass_until(deadline)
        return super().select(seconds) if seconds else []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        super().__init__(_Selector(virtual))
        numbers = count()

        def task(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
            return _Task(work, loop=loop, number=next(numbers), **options)

        self.set_task_factory(task)

    def time(self) -> float:
        return self._virtual.now


class _Task(asyncio.Task[Any]):
    """A task with a hash that is the same in each process, because sets of tasks have its order."""

    def __init__(self, work: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Scope(anyio_of_asyncio.CancelScope):
    """A cancel scope with such a hash, for sets of scopes."""

    __slots__ = ("_number",)
    numbers = count()

    def __init__(self, deadline: float = math.inf, shield: bool = False) -> None:
        self._number = next(self.numbers)
        super().__init__(deadline, shield)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _TrioClock(trio.abc.Clock, trio.abc.Instrument):
    """What `trio.testing.MockClock` does, and waits for threads, and notices a program that hangs."""

    def __init__(self, virtual: VirtualTime) -> None:
        self._time = virtual
        self._has_stepped = False

    def before_task_step(self, task: object) -> None:
        self._has_stepped = True

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._time.look()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if self._has_stepped:
            # Tasks have run. First look whether they have asked the loop to call something soon.
            self._has_stepped = False
            return 0
        return self._time.pass_until(deadline)


def run_virtually(
    backend: Backend, main: Callable[[VirtualTime], Awaitable[A]], *, now: float, seconds: float
) -> tuple[A, float]:
    """Run an async function in an event loop of its own. Return its result, and the time at its end.

    Parameters:
        now: the time at which it begins, in seconds since `EPOCH`.
        seconds: how long it may take.

    Raises Hangs if it takes longer, or if nothing can happen any more.
    """
    virtual = VirtualTime(now, now + seconds)
    with _monotonic(virtual), _in_order():
        try:
            options = _options(backend, virtual)
            result = anyio.run(main, virtual, backend=backend, backend_options=options)
        except trio.TrioInternalError as error:
            raise (error.__cause__ if isinstance(error.__cause__, Hangs) else error) from None
    return result, virtual.now


def _options(backend: Backend, virtual: VirtualTime) -> dict[str, Any]:
    if backend == "asyncio":
        return {"loop_factory": lambda: _Loop(virtual)}
    clock = _TrioClock(virtual)
    return {"clock": clock, "instruments": [clock]}


@contextmanager
def _monotonic(virtual: VirtualTime) -> Generator[None]:
    """Let `time.monotonic` follow the virtual time in this thread, also for code that waits by it."""
    real, thread = time.monotonic, threading.get_ident()
    offset = real() - virtual.now

    def monotonic() -> float:
        return offset + virtual.now if threading.get_ident() == thread else real()

    time.monotonic = monotonic
    try:
        yield
    finally:
        time.monotonic = real


@contextmanager
def _in_order() -> Generator[None]:
    """Let a program do the same each time: no order depends on where an object is in memory.

    Trio has a switch for that, for its own plugins. Of anyio, it is the hash of its scopes.
    """
    core: Any = trio._core._run
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(0)
    original = anyio_of_asyncio.CancelScope
    _Scope.numbers = count()
    anyio_of_asyncio.CancelScope = _Scope
    try:
        yield
    finally:
        anyio_of_asyncio.CancelScope = original
        core._ALLOW_DETERMINISTIC_SCHEDULING = False


class LoopClock:
    """The `Clock` of effectflow over the time of the event loop around."""

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=anyio.current_time())

    def monotonic(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(seconds, 0))

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        scope = anyio.move_on_after(seconds)
        if seconds <= 0:
            # Trio would let the block run until it waits.
            scope.cancel()
        return scope
