"""The children of a parallel operator: tasks, or effects that are known not to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self

import anyio

from effectflow.effects.event_loop import (
    Waiter,
    cancel_natively,
    has_been_cancelled_natively,
    in_context,
    is_cancellation,
    mark_as_cancelled,
    new_waiter,
    raise_pending_cancellation,
    stray_cancellation,
)
from effectflow.effects.fiber import Fiber
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import add_note


class Children:
    """A task group that never loses the end of a child. Each child is a fiber.

    An anyio task group ends silently when asyncio itself cancels one of its tasks, and wraps exceptions
    of tasks in a group. This class keeps the end of each child.

    Attributes:
        defects: the exceptions of children, in order of time. Code that adds one cancels the others.
    """

    def __init__(self, scope: Scope) -> None:
        """Create a group without children. `scope` is that of the operator's inside."""
        self._scope = scope
        self._fiber = scope.fiber
        self._running = 0
        self._has_ended: Waiter | None = None
        self.defects: list[BaseException] = []
        self._was_cancelled_natively = False
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised_inside: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if self._running and kind is not GeneratorExit:
            self._has_ended = new_waiter()
            try:
                await self._fiber.rest(self._scope, self._has_ended, has_raised=kind is not None)
            except GeneratorExit as closed:
                # Something closes the coroutine, so nothing may wait. The group leaves its scope.
                leaving = self._tasks.__aexit__(None, None, None)
                leaving.send(None)
                leaving.throw(closed)
                raise
            except BaseException as raised:
                if is_cancellation(raised) and has_been_cancelled_natively():
                    # The task group cancels the children, and does not say why.
                    self._fiber.stop()
                if raised_inside is None:
                    kind, raised_inside, traceback = type(raised), raised, raised.__traceback__
        try:
            is_suppressed = await self._tasks.__aexit__(kind, raised_inside, traceback)
            if self._running:
                # asyncio cancelled these children before they began. anyio's scopes and trio let a
                # task begin, and cancel it afterwards.
                self._was_cancelled_natively = True
            return is_suppressed
        except BaseException as raised:
            if is_cancellation(raised):
                # Nested task groups of anyio 4.16 uncancel the host too often after a native
                # cancellation. It then looks as if nothing had cancelled the task.
                mark_as_cancelled(raised)
            raise
        finally:
            # Its traceback keeps this frame.
            del raised_inside, traceback

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a child: `run(fiber, *arguments)`, which handles defects itself."""
        self._running += 1
        self._tasks.start_soon(self._watched, self._fiber.branch(), run, *arguments)

    def cancel(self) -> None:
        """Cancel all children. A child that has not begun must check whether it still has work to do."""
        self._tasks.cancel_scope.cancel()

    async def raise_bad_end(self, operator: Operator) -> None:
        """Raise the first defect, with the others as notes, or a cancellation of the task."""
        if self.defects:
            first, *others = self.defects
            for line in operator.suppressed:
                add_note(first, str(line))
            for other in others:
                first.add_note(f"and at the same time another child raised {other!r}")
            raise first
        if self._was_cancelled_natively:
            await cancel_natively()
        # A scope around this may have cancelled the children.
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def _watched(
        self, fiber: Fiber, run: Callable[..., Awaitable[object]], *arguments: Any
    ) -> None:
        try:
            await fiber.begin(self._scope)
            await run(fiber, *arguments)
            await raise_pending_cancellation()
        except BaseException as ended:
            defect = stray_cancellation(ended) or ended
            if not is_cancellation(defect):
                # SystemExit or KeyboardInterrupt: raised as itself, not in a group.
                self.defects.append(defect)
                self.cancel()
                return
            if has_been_cancelled_natively():
                self._was_cancelled_natively = True
            raise
        finally:
            self._running -= 1
            if self._has_ended is not None and not self._running:
                self._fiber.wake(self._has_ended)
            fiber.end()


class ImmediateChildren(Children):
    """Runs children that never wait one after another, in the task of their operator.

    So a parallel operator of immediate effects is immediate itself.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._fiber = scope.fiber
        self._running = 0
        self._has_ended = None
        self.defects = []
        self._was_cancelled_natively = False
        self._started: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...]]] = []
        self._is_cancelled = False

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised_inside: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        for run, arguments in self._started:
            if self._is_cancelled:
                return
            # With its own context variables, like a task.
            await in_context(copy_context(), self._run(run, *arguments))

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        self._running += 1
        self._started.append((run, arguments))

    def cancel(self) -> None:
        self._is_cancelled = True

    async def _run(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        try:
            await run(self._fiber, *arguments)
        except BaseException as ended:
            defect = stray_cancellation(ended) or ended
            if is_cancellation(defect):
                raise
            self.defects.append(defect)
            self.cancel()
        finally:
            self._running -= 1
