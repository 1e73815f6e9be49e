"""The tasks of a parallel operator, with a record of how each one ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio

from effectflow.effects.errors import Parked
from effectflow.effects.event_loop import (
    cancel_natively,
    has_been_cancelled_natively,
    is_cancellation,
    mark_as_cancelled,
)

__all__ = ["Children"]


class Children:
    """A task group that never loses the end of a child.

    An anyio task group ends silently when asyncio itself cancels one of its tasks, and wraps exceptions
    of tasks in a group. This class keeps the end of each child.

    Attributes:
        defects: what children raised, in order of time. Code that adds one cancels the others.
        parked: what ended the children of a plan.
    """

    def __init__(self) -> None:
        self.defects: list[BaseException] = []
        self.parked: list[Parked] = []
        self._was_cancelled_natively = False
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._tasks.__aexit__(exc_type, exc, traceback)
        except BaseException as raised:
            if is_cancellation(raised):
                # Nested task groups of anyio 4.16 take back a native cancellation of the host too often.
                # It then looks as if nothing had cancelled the task.
                mark_as_cancelled(raised)
            raise

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a child. `run` handles defects itself."""
        self._tasks.start_soon(self._watched, run, arguments)

    def cancel(self) -> None:
        """Cancel all children. A child that has not begun must check whether it still has work to do."""
        self._tasks.cancel_scope.cancel()

    async def raise_bad_end(self) -> None:
        """Raise the first defect with the others as notes, or what ended the children. Call it last."""
        if self.defects:
            first, *others = self.defects
            for other in others:
                first.add_note(f"and at the same time another child raised {other!r}")
            raise first
        if self._was_cancelled_natively:
            await cancel_natively()
        if self.parked:
            raise self.parked[0]

    def raise_shielded_end(self) -> None:
        """Raise what ended a shielded part of a child in a plan: a decided operator waits for that."""
        for parked in self.parked:
            if parked.is_shielded:
                raise parked

    async def _watched(
        self, run: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]
    ) -> None:
        try:
            await run(*arguments)
        except Parked as parked:
            self.parked.append(parked)
        except BaseException as ended:
            if not is_cancellation(ended):
                # SystemExit or KeyboardInterrupt: raised as itself, not in a group.
                self.defects.append(ended)
                self.cancel()
                return
            if has_been_cancelled_natively(ended):
                self._was_cancelled_natively = True
            raise
