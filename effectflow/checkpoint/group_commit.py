"""One append to the store for all fibers of a run that ask for a save at about the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.ordered_fiber import OrderedFiber
from effectflow.effects.event_loop import Waiter, new_waiter, wake
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.turns import Turns


class GroupCommit:
    """Saves what a run has recorded, once no fiber of it can run.

    The fibers go on in the order in which they asked.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._fibers: list[OrderedFiber] = []
        self._is_required = False
        self._failed: dict[OrderedFiber, BaseException] = {}
        self._waiter: Waiter | None = None
        self._turns_left = 0

    async def save(self, fiber: OrderedFiber, scope: Scope, *, required: bool) -> None:
        """Save everything that was recorded. Raise what the save raises.

        `required` says whether the run must not continue without it, even with `on_save_error="warn"`.
        """
        turns = self._turns
        self._fibers.append(fiber)
        self._is_required = self._is_required or required
        turns.working[fiber] = None
        if len(self._fibers) == 1:
            turns.run.stopping.start(self._commit)
        turns.release(fiber)
        await turns.regain(fiber, scope)
        failed = self._failed.pop(fiber, None)
        if failed is not None:
            raise failed

    async def _commit(self) -> None:
        turns = self._turns
        # The fibers must not go on without it.
        with anyio.CancelScope(shield=True):
            # Those that have arrived before have their turns first, and may ask for the same append.
            self._turns_left = len(turns.arrived) if turns.takes_first else 0
            if not turns.is_over and (turns.holder or turns.ready or self._turns_left):
                self._waiter = new_waiter()
                await self._waiter
            fibers, self._fibers = self._fibers, []
            required, self._is_required = self._is_required, False
            try:
                await turns.run.writer.save(required=required)
            except BaseException as raised:
                self._failed.update(dict.fromkeys(fibers, raised))
            finally:
                for fiber in fibers:
                    del turns.working[fiber]
                turns.arrived.extend(fibers)
                turns.pass_on()

    def note_turn(self) -> None:
        """Note that something that had arrived gets its turn."""
        self._turns_left -= 1

    def begin(self, *, is_over: bool = False) -> None:
        """Begin the append, if one waits for that: no fiber can run, or the life is over."""
        if self._waiter is None:
            return
        if is_over or self._turns_left <= 0 or not self._turns.arrived:
            wake(self._waiter)
            self._waiter = None
