"""How a life of a run is stopped from outside: by its caller, a signal, or its worker.

A stop cancels all work, but no acquisition and no finalizer. Meanwhile, a task watches for the
cancellation, so that these begin no further step. A task group costs as much as a step, so a run has
one only around what may need it: see `Stopping.supervised`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from effectflow.checkpoint.notifications import Wakeup
from effectflow.effects.errors import LeftToResume
from effectflow.effects.event_loop import (
    is_cancellation,
    mark_as_cancelled,
    raise_again_later,
    run_to_the_end,
    stray_cancellation,
)

A = TypeVar("A")


@dataclass(slots=True)
class StopRequest:
    """A possible request to stop runs in progress. Its sender sets `reason`."""

    reason: str = "cancelled"


stop_request: ContextVar[StopRequest | None] = ContextVar("stop_request", default=None)
"""The request that covers the runs of this context, or None."""


def interruption_reason() -> str:
    """Return the reason for the `Interrupted` entries of this context: a signal, or "cancelled"."""
    request = stop_request.get()
    return "cancelled" if request is None else request.reason


class Attendant(Protocol):
    """Attends to one run of a worker.

    Attributes:
        woken: set whenever it may have something to do.
    """

    woken: Wakeup

    @property
    def is_resting(self) -> bool:
        """Whether all fibers of the run wait, and it has nothing to do before time passes."""
        ...

    @property
    def turns(self) -> int:
        """The number of turns that the run has taken."""
        ...

    def note_change(self) -> None:
        """Note that the run may have changed in the store."""
        ...


class Drain:
    """Asks the runs of a worker to begin nothing more. Each ends after its steps in progress.

    Attributes:
        attendants: those of the runs.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.reason = ""
        self.attendants: set[Attendant] = set()

    def begin(self, reason: str = "") -> None:
        """Ask all runs to stop. By default, the reason is that of their `StopRequest`."""
        self.has_begun, self.reason = True, reason
        for attendant in self.attendants:
            attendant.woken.set()


class Stopping:
    """Whether a run is being stopped from outside, and shields for the work that must end first.

    Attributes:
        flows: the cancel scope around the body of the run.
        has_begun: whether the run is being stopped, so that nothing more begins.
    """

    __slots__ = (
        "_is_watching",
        "_on_begin",
        "_protections",
        "_shields",
        "_tasks",
        "_waits",
        "_watch_scope",
        "flows",
        "has_begun",
    )

    def __init__(self, on_begin: Callable[[], object]) -> None:
        """Create the state of a run that is not being stopped. `on_begin` is called when that changes."""
        self._on_begin = on_begin
        self.flows = anyio.CancelScope()
        self.has_begun = False
        self._tasks: TaskGroup | None = None
        self._waits: dict[anyio.CancelScope, None] = {}
        self._protections: dict[anyio.CancelScope, None] = {}
        self._shields = 0
        self._is_watching = False
        self._watch_scope: anyio.CancelScope | None = None

    @property
    def has_shields(self) -> bool:
        """Whether an acquisition or a finalizer is in progress."""
        return bool(self._shields or self._protections)

    def begin(self) -> None:
        """Note that the run is being stopped."""
        if not self.has_begun:
            self.has_begun = True
            self._on_begin()
            for wait in list(self._waits):
                wait.cancel()
            for protection in self._protections:
                protection.shield = False

    async def supervised(self, work: Callable[[], Awaitable[A]]) -> A:
        """Run work that may shield a part of itself, so that a stop of the run is noticed meanwhile.

        This must be around the outermost operator or finalizer: a task that an operator has cancelled
        would notice nothing else.
        """
        if self._tasks is not None or self.has_begun:
            return await work()
        result, raised = await self._end_of(work)
        if raised is None:
            return result
        try:
            raise raised
        finally:
            # Its traceback keeps this frame.
            del raised

    async def _end_of(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
        """Run work in a task group. Return its result and what it raised, which the group would wrap."""
        result: Any = None
        raised: BaseException | None = None
        try:
            async with anyio.create_task_group() as self._tasks:
                try:
                    result = await work()
                except BaseException as error:
                    raised = error
                    if is_cancellation(error) and stray_cancellation(error) is None:
                        # The task group may uncancel the task, and then it would look stray.
                        mark_as_cancelled(error)
                        raise
        except BaseException as late:
            if not is_cancellation(late) or (raised is not None and is_cancellation(raised)):
                raise
            # It arrived after the end of the work, which stands: it may have acquired a resource.
            raise_again_later(late)
        finally:
            self._tasks = None
        try:
            return result, raised
        finally:
            # Its traceback keeps this frame.
            del raised

    def start(self, work: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
        """Start a task of supervised work."""
        assert self._tasks is not None
        self._tasks.start_soon(work, *arguments)

    @contextmanager
    def ends_wait(self, what: str) -> Generator[None]:
        """End the wait in this shielded block in LeftToResume once the run is being stopped.

        `what` is what it waits for, in words.
        """
        with self._watched(), anyio.CancelScope() as wait:
            self._waits[wait] = None
            if self.has_begun:
                wait.cancel()
            try:
                yield
            finally:
                del self._waits[wait]
        if wait.cancelled_caught:
            raise LeftToResume(what)

    async def protected(self, work: Coroutine[Any, Any, A]) -> tuple[A, BaseException | None]:
        """Run work that no operator may interrupt. A stop of the run may."""
        with self._watched(), anyio.CancelScope(shield=not self.has_begun) as protection:
            self._protections[protection] = None
            try:
                return await work, None
            finally:
                del self._protections[protection]
        raise AssertionError("a scope that is not cancelled continues")

    async def shielded(self, work: Coroutine[Any, Any, A]) -> tuple[A, BaseException | None]:
        """Run an acquisition or a finalizer, shielded from cancellation; see `run_to_the_end`."""
        with self._watched():
            return await run_to_the_end(work, on_cancellation=self.begin)

    @contextmanager
    def _watched(self) -> Generator[None]:
        """Watch for a cancellation of the run while the block is shielded."""
        self._shields += 1
        if self._tasks is not None and not self._is_watching:
            self._is_watching = True
            self._tasks.start_soon(self._watch)
        try:
            yield
        finally:
            self._end_watch()

    def _end_watch(self) -> None:
        self._shields -= 1
        if self._shields == 0 and self._watch_scope is not None:
            self._watch_scope.cancel()

    async def _watch(self) -> None:
        try:
            while self._shields:
                with anyio.CancelScope() as self._watch_scope:
                    await anyio.sleep_forever()
        except BaseException:
            self.begin()
            raise
        finally:
            self._watch_scope = None
            self._is_watching = False
