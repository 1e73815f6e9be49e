"""The replay of one life: it takes the recorded entries in their order, one after another.

Operations that earlier lives have recorded wait until their entry is the next one. If nobody waits for
the next entry and nothing can bring a fiber to it, the code has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from effectflow.checkpoint.baton import Arrival
from effectflow.checkpoint.branches import is_in
from effectflow.checkpoint.endings import CutShort
from effectflow.checkpoint.entries import (
    BeforeStep,
    CancelRequested,
    Completed,
    Interrupted,
    Local,
    Ordered,
)
from effectflow.checkpoint.errors import DefinitionChanged
from effectflow.checkpoint.order import E, Kind, Order, path_of
from effectflow.checkpoint.ordered_fiber import OrderedFiber
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.turns import Turns

_BEGUN = {
    "BeforeStep": "begun",
    "Completed": "completed",
    "Failed": "failed",
    "Interrupted": "been interrupted",
    "Waiting": "begun to wait",
    "TimerFired": "seen the end of the time",
    "Signalled": "received its message",
    "ChildStarted": "started the run",
    "ChildEnded": "seen the end of the run",
    "Published": "published a value",
    "SetAside": "set aside the item",
    "Local": "ended",
}


class Replay:
    """What a life takes from the journal.

    Attributes:
        order: what is to be taken.
        position: how many entries of it were taken.
        number_taken: the number of the entry that was taken last.
        undeclared: a step whose recorded exception could not be rebuilt; None without one.
    """

    __slots__ = (
        "_takers",
        "_turns",
        "number_taken",
        "order",
        "position",
        "undeclared",
    )

    def __init__(self, turns: Turns, order: Order) -> None:
        self._turns = turns
        self.order = order
        self.position = 0
        self.number_taken = 0
        self.undeclared: str | None = None
        self._takers: dict[int, Arrival] = {}

    @property
    def next_entry(self) -> Ordered | None:
        """The recorded entry that is taken next; None after the last one."""
        entries = self.order.entries
        return entries[self.position] if self.position < len(entries) else None

    def next_at(self, path: str) -> int | None:
        """Return the position of the next recorded entry of an operation; None without one."""
        places = self.order.places.get(path)
        return places[-1] if places else None

    async def take(
        self,
        fiber: OrderedFiber,
        at: int,
        scope: Scope,
        kind: Kind[E],
        *,
        may_end: bool = False,
    ) -> E:
        """Wait until a recorded entry is the next one, and return it.

        Parameters:
            kind: the classes that make sense for the operation.
            may_end: return if the life is being ended, instead of raising that.
        """
        turns = self._turns
        taken = self._take_now(fiber, at, kind)
        if taken is not None:
            return taken
        entry = self.expect(at, kind, fiber)
        fiber.scope = scope
        turns.release(fiber)
        await turns.regain(fiber, scope, may_end=may_end)
        return entry

    def _take_now(self, fiber: OrderedFiber, at: int, kind: Kind[E]) -> E | None:
        """Return a recorded entry if the fiber need not wait for it; otherwise None."""
        turns = self._turns
        if at != self.position or turns.holder is not fiber:
            return None
        # In the same turn it did not wait for the other fibers that could run.
        if turns.ready and self.order.entries[at].turn != turns.turn:
            return None
        entry = self._entry_at(at, kind)
        self._advance(entry)
        return entry

    def take_completed(self, fiber: OrderedFiber, path: str) -> tuple[BeforeStep, Completed] | None:
        """Return the recorded beginning and end of a step, if both are next and it has completed.

        That is so for nearly all steps, and takes a quarter of the time of two calls of `take`.
        """
        turns = self._turns
        entries, position = self.order.entries, self.position
        if turns.ready or turns.holder is not fiber or len(entries) < position + 2:
            return None
        begun, ended = entries[position], entries[position + 1]
        if type(ended) is not Completed or ended.step != path or ended.stands:
            return None
        if type(begun) is not BeforeStep or begun.step != path:
            return None
        del self.order.places[path][-2:]
        self.position = position + 2
        self.number_taken = self.order.numbers[position + 1]
        turns.turn = ended.turn
        return begun, ended

    def expect(self, at: int, kind: Kind[E], taker: Arrival) -> E:
        """Let something take a recorded entry once it is the next one. Return the entry."""
        entry = self._entry_at(at, kind)
        self._takers[at] = taker
        return entry

    def expect_no_more(self, at: int) -> None:
        """Call nothing for this recorded entry any more."""
        self._takers.pop(at, None)

    def _entry_at(self, at: int, kind: Kind[E]) -> E:
        """Return the entry that an operation takes. Halt the run if its class makes no sense there."""
        entry = self.order.entries[at]
        if not isinstance(entry, kind):
            run, number = self._turns.run, self.order.numbers[at]
            raise run.halt_at(number, type(entry).__name__, path_of(entry))
        self.order.places[path_of(entry)].pop()
        return entry

    def take_cancellation(self) -> None:
        """Take the cancellation of the run, if it is next, and came where the body is now."""
        entry = self.next_entry
        if isinstance(entry, CancelRequested) and entry.place == self._turns.run.root.place:
            self._take_cancellation(entry)

    def take_recorded(self, entry: Ordered) -> bool:
        """Take the next recorded entry. Return False if something else must come first."""
        turns = self._turns
        if isinstance(entry, CancelRequested):
            return self._take_cancellation(entry)
        taker = self._takers.get(self.position)
        if taker is None:
            return self._help(entry)
        if entry.__class__ is Interrupted and not callable(taker):
            # Code that is not recorded may have cut it off, and gets further first.
            is_cut = taker.scope.cancelling_operator() is not None
            if not is_cut and (self._let_one_go_on() or turns.working):
                return bool(turns.holder)
        del self._takers[self.position]
        self._advance(entry)
        if callable(taker):
            taker()
        else:
            turns.grant(taker)
        return True

    def _take_cancellation(self, entry: CancelRequested) -> bool:
        turns = self._turns
        if not turns.run.requests.has_reached(entry.place):
            if self._may_plan_without(entry):
                self._skip(entry)
                return True
            return not turns.working and self._diverge(entry)
        self._advance(entry)
        turns.run.requests.cancel_body()
        return True

    def _advance(self, entry: Ordered) -> None:
        self.number_taken = self.order.numbers[self.position]
        self.position += 1
        self._turns.turn = entry.turn

    def _help(self, entry: Ordered) -> bool:
        """Help a recorded entry to be reached. Return whether that has changed anything."""
        turns = self._turns
        path = path_of(entry)
        owner = self._owner_of(path)
        if turns.branches.begin_recorded(path, owner):
            return True
        is_cut = isinstance(entry, Local) and entry.end == "cut"
        if owner in turns.working and not is_cut:
            # It will come to it by itself.
            return False
        if self._let_one_go_on(owner.line):
            return True
        if self._may_plan_without(entry):
            self._skip(entry)
            return True
        if self._let_one_go_on():
            return True
        if turns.working and not self._is_blamed(owner):
            return False
        return self._diverge(entry)

    def _let_one_go_on(self, line: str = "") -> bool:
        """Let a fiber within a line go on that has awaited what is not recorded. Return whether one does.

        It got further when it ran before.
        """
        turns = self._turns
        arrived = set(turns.arrived)
        for fiber in turns.fibers if arrived else ():
            if fiber in arrived and (fiber.line == line or is_in(fiber.line, line)):
                turns.arrived.remove(fiber)
                turns.grant(fiber)
                return True
        return False

    def _may_plan_without(self, entry: Ordered) -> bool:
        turns = self._turns
        planning = turns.run.planning
        return planning is not None and planning.may_skip(
            entry, [it.place for it in turns.frontier]
        )

    def _owner_of(self, path: str) -> OrderedFiber:
        """Return the fiber that should reach a path."""
        around = (fiber for fiber in self._turns.fibers if is_in(path, fiber.line))
        return max(around, key=lambda fiber: len(fiber.line), default=self._turns.run.root)

    def _is_blamed(self, owner: OrderedFiber) -> bool:
        """Return whether the fiber that should reach the next entry waits for something else."""
        return owner in self._turns.frontier or owner in self._takers.values()

    def _diverge(self, entry: Ordered) -> bool:
        """Leave an entry out that the code does not reach, if the resume is forced. Else end the life."""
        turns = self._turns
        if turns.run.force:
            self.order.abandon(self.order.numbers[self.position], entry)
            self._skip(entry)
            return True
        turns.run.halt(self._divergence(entry))
        return False

    def finish(self, raised: BaseException | None) -> None:
        """End the replay, as the body has ended. Halt the run if recorded entries were not reached.

        If the body raised a defect before that, this life ends with it, and the journal stays as it is.
        """
        turns = self._turns
        run = turns.run
        run.root.place = ""
        while (entry := self.next_entry) is not None:
            if self._may_plan_without(entry):
                self._skip(entry)
            elif isinstance(raised, Exception) and not run.force:
                run.ending = CutShort(raised)
                return
            elif not self._diverge(entry):
                return
        if not turns.is_live:
            turns.begin_live()

    def _divergence(self, entry: Ordered) -> DefinitionChanged:
        """Return the error that names a recorded entry, and what the fibers wait for instead."""
        turns = self._turns
        joining = [fork.outer.fiber for fork in turns.branches.forks]
        found = sorted({one.place for one in turns.fibers if one.place and one not in joining})
        shown = ", ".join(f"{place!r:.200}" for place in found[:5]) + (
            " and more" if len(found) > 5 else ""
        )
        if isinstance(entry, CancelRequested):
            recorded = f"it was cancelled at {entry.place!r:.200}"
        else:
            recorded = f"{path_of(entry)!r:.200} has {_BEGUN[type(entry).__name__]}"
        number = self.order.numbers[self.position]
        detail = f"by entry {number}, {recorded}, and now the run "
        detail += f"reaches {shown} instead" if found else "ends before that"
        if self.undeclared:
            detail += (
                f". Step {self.undeclared!r} raised an exception that it does not declare, and the "
                "replay raises a RecordedDefect in its place: declare it, if the code handles it"
            )
        return DefinitionChanged(
            *(turns.run.run_id, turns.run.workflow),
            detail=detail,
            recorded=path_of(entry) or "its cancellation",
            reached=found,
        )

    def _skip(self, entry: Ordered) -> None:
        if entry.__class__ is not CancelRequested:
            places = self.order.places[path_of(entry)]
            if self.position in places:
                places.remove(self.position)
        self.position += 1
