"""Tasks of a parallel operator, and every way in which one of them can end badly."""

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

    A task group of anyio ends in silence when asyncio itself cancels one of its tasks, and wraps what
    tasks raise in a group. Here the end of each child is kept.

    Attributes:
        defects: what children raised, in the order of time. Whoever adds one cancels the others.
        parked: what has ended the children of a plan.
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
                # Nested task groups of anyio 4.16 take back a native cancellation of the host too often,
                # which then looks as if nothing had cancelled it.
                mark_as_cancelled(raised)
            raise

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a child. `run` deals with defects itself."""
        self._tasks.start_soon(self._watched, run, arguments)

    def cancel(self) -> None:
        """Cancel all children. Those that have not begun must look whether they still have to."""
        self._tasks.cancel_scope.cancel()

    async def raise_bad_end(self) -> None:
        """Once all have ended: raise the first defect with the others as notes, or what ended them."""
        if self.defects:
            first, *others = self.defects
            for other in others:
                first.add_note(f"and at the same time another child raised {other!r}")
            raise first
        if self._was_cancelled_natively:
            await cancel_natively()
        if self.parked:
            raise self.parked[0]

    async def _watched(
        self, run: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]
    ) -> None:
        try:
            await run(*arguments)
        except Parked as parked:
            self.parked.append(parked)
        except BaseException as ended:
            if not is_cancellation(ended):
                # SystemExit or KeyboardInterrupt: it leaves as itself, and not in a group.
                self.defects.append(ended)
                self.cancel()
                return
            if has_been_cancelled_natively(ended):
                self._was_cancelled_natively = True
            raise
