"""One append to the store for all fibers of a run that ask for a save at about the same time."""

from __future__ import annotations

import anyio

from effectflow.checkpoint.baton import Baton
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.ordered_fiber import OrderedFiber
from effectflow.checkpoint.stopping import Stopping
from effectflow.effects.event_loop import Waiter, new_waiter, wake
from effectflow.effects.scope import Scope


class GroupCommit:
    """Saves what a run has recorded, once no fiber of it can run.

    The fibers go on in the order in which they asked.
    """

    __slots__ = (
        "_after",
        "_baton",
        "_failed",
        "_fibers",
        "_is_required",
        "_stopping",
        "_waiter",
        "_writer",
    )

    def __init__(self, baton: Baton, stopping: Stopping, writer: JournalWriter) -> None:
        self._baton = baton
        self._stopping = stopping
        self._writer = writer
        self._fibers: list[OrderedFiber] = []
        self._is_required = False
        self._failed: dict[OrderedFiber, BaseException] = {}
        self._waiter: Waiter | None = None
        self._after = 0

    async def save(self, fiber: OrderedFiber, scope: Scope, *, required: bool) -> None:
        """Save everything that was recorded. Raise what the save raises.

        `required` says whether the run must not continue without it, even with `on_save_error="warn"`.
        """
        baton = self._baton
        self._fibers.append(fiber)
        self._is_required = self._is_required or required
        baton.working[fiber] = None
        if len(self._fibers) == 1:
            self._stopping.start(self._commit)
        baton.release(fiber)
        await baton.regain(fiber, scope)
        failed = self._failed.pop(fiber, None)
        if failed is not None:
            raise failed

    async def _commit(self) -> None:
        baton = self._baton
        # The fibers must not go on without it.
        with anyio.CancelScope(shield=True):
            # Those that have arrived before have their turns first, and may ask for the same append.
            first = len(baton.arrived) if baton.takes_first else 0
            self._after = baton.admitted + first
            if not baton.is_over and (baton.holder or baton.ready or first):
                self._waiter = new_waiter()
                await self._waiter
            fibers, self._fibers = self._fibers, []
            required, self._is_required = self._is_required, False
            try:
                await self._writer.save(required=required)
            except BaseException as raised:
                self._failed.update(dict.fromkeys(fibers, raised))
            finally:
                for fiber in fibers:
                    del baton.working[fiber]
                    baton.note_arrival(fiber)
                baton.pass_on()

    def begin(self) -> None:
        """Begin the append, if one waits for that: no fiber can run, or the life is over."""
        baton = self._baton
        if self._waiter is None:
            return
        if baton.is_over or baton.admitted >= self._after or not baton.arrived:
            wake(self._waiter)
            self._waiter = None
