"""The turns of one life of a run: who may run, what has arrived, and what is still to be replayed.

A run is a sequence of turns. In each, one thing from outside arrives (an event), and the fibers run,
one at a time, until all of them wait again. Only the fiber that holds the *baton* runs; the others get
it in the order in which they became able to. A resume takes the recorded entries in their order, and
lets nothing new begin before the last of them: until then, new operations wait at the *frontier*. So
races, timeouts and cancellations go as they went, and none of them needs a record.

The idea: deterministic replay of one history of events (Temporal), and the logged order of completion
(Restate).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar, Never, Protocol, TypeAlias

import anyio

from effectflow.checkpoint.entries import (
    BeforeStep,
    CancelRequested,
    Completed,
    Interrupted,
    Local,
    Resumed,
)
from effectflow.checkpoint.errors import CorruptCheckpoint, DefinitionChanged
from effectflow.checkpoint.group_commit import GroupCommit
from effectflow.checkpoint.order import E, Kind, Order, Ordered, in_ranges, path_of
from effectflow.checkpoint.ordered_fiber import Intent, OrderedFiber
from effectflow.checkpoint.stopping import CutShort
from effectflow.effects.event_loop import is_cancellation, new_waiter, wake
from effectflow.effects.scope import Operator, Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

Arrival: TypeAlias = "OrderedFiber | Callable[[], object]"
"""What may have a turn: a fiber whose operation has ended, or something to call."""

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


class PendingDeadline(Protocol):
    """A deadline that may still fire, at a time in seconds since the epoch."""

    @property
    def until(self) -> float: ...

    def begin_live(self) -> None:
        """Begin to wait, once the replay is over."""
        ...


class Turns:
    """The baton, the order, and the replay of one life.

    Attributes:
        order: what is to be replayed.
        position: how many entries of it were taken.
        number_taken: the number of the entry that was taken last.
        turn: the number of the turn.
        is_live: whether the replay is over.
        is_over: whether the life is being ended, so that fibers run in no order and begin nothing.
        holder: the fiber that holds the baton.
        ready: the fibers that may run in this turn.
        arrived: what has arrived, first come first.
        overdue: what has happened before this life, with the time of each.
        frontier: the fibers that wait for the end of the replay.
        fibers: all fibers.
        deadlines: the deadlines that may still fire.
        grants: how often a fiber has got the baton.
        working: the fibers that await something other than a time, a message or another run.
        on_idle: called when nothing can run.
        commits: saves for several fibers at once.
        explore: called in place of taking what has arrived first. It calls `take_arrival` later. It is
            the same for all runs, and None outside of explorations.
    """

    explore: ClassVar[Callable[[Turns], object] | None] = None

    def __init__(self, run: Run, order: Order) -> None:
        self.run = run
        self.order = order
        self.position = 0
        self.number_taken = 0
        self.turn = 0
        self.is_live = not order.entries and not order.values and run.planning is None
        self.is_over = False
        self.holder: OrderedFiber | None = None
        self.ready: deque[OrderedFiber] = deque()
        self.arrived: deque[Arrival] = deque()
        self.overdue: list[tuple[float, Arrival]] = []
        self.frontier: list[OrderedFiber] = []
        self.fibers: dict[OrderedFiber, None] = {}
        self.deadlines: dict[PendingDeadline, None] = {}
        self.working: dict[OrderedFiber, None] = {}
        self.grants = 0
        self.on_idle: Callable[[], object] | None = None
        self.commits = GroupCommit(self)
        self._last_turn = order.last_turn
        self._takers: dict[int, Arrival] = {}
        self._forks: dict[str, Operator] = {}
        self._branches: set[str] = set()

    @property
    def is_alone(self) -> bool:
        """Whether there is one fiber, and nothing that may cancel it, so that nothing needs an order."""
        is_single = len(self.fibers) == 1 and self.run.planning is None
        return is_single and not (self.deadlines or self.arrived or self.overdue)

    @property
    def is_unordered(self) -> bool:
        """Whether a fiber need not wait for turns: it is alone, or the life is being ended."""
        if self.is_over:
            return True
        # As `is_alone`, whose call each step would pay for.
        is_single = self.is_live and len(self.fibers) == 1 and self.run.planning is None
        return is_single and not (self.deadlines or self.arrived or self.overdue)

    @property
    def is_replaying(self) -> bool:
        """Whether the fibers repeat what an earlier life has done."""
        return self.next_entry is not None or self.run.planning is not None

    @property
    def next_entry(self) -> Ordered | None:
        """The recorded entry that is taken next; None after the last one."""
        entries = self.order.entries
        return entries[self.position] if self.position < len(entries) else None

    @property
    def is_idle(self) -> bool:
        """Whether all fibers wait for times, messages or other runs, and nothing has arrived."""
        has_work = self.holder or self.ready or self.arrived or self.overdue or self.working
        return self.is_live and not has_work and not self.frontier

    # The baton.

    def release(self, fiber: OrderedFiber) -> None:
        """Give up the baton, if the fiber holds it."""
        if self.holder is fiber:
            self.holder = None
        self.pass_on()

    def pass_on(self) -> None:
        """Give the baton to the next fiber: one that may run; otherwise that of the next event."""
        while self.holder is None and not self.is_over:
            if self.ready:
                self._grant(self.ready.popleft())
                continue
            self.commits.begin()
            entry = self.next_entry
            if entry is not None:
                if not self._take_recorded(entry):
                    return
            elif not self.is_live:
                self._end_replay()
            elif self.overdue:
                # What happened while no process had the run is taken in the order of its times.
                self.overdue.sort(key=lambda one: one[0])
                self.arrived.appendleft(self.overdue.pop(0)[1])
                self._admit()
            elif self.run.planning is not None:
                if not self.arrived and not self._end_cut_off():
                    if not self.working:
                        self.run.end_plan()
                    return
                self._admit()
            elif self.frontier:
                self._begin_frontier()
            elif self.arrived:
                if Turns.explore is not None:
                    Turns.explore(self)
                    return
                self._admit()
            else:
                if self.on_idle is not None:
                    self.on_idle()
                return

    def take_arrival(self, index: int) -> None:
        """Take one of the arrivals now, instead of the first one. Call it when no fiber can run."""
        arrival = self.arrived[index]
        del self.arrived[index]
        self.arrived.appendleft(arrival)
        self._admit()
        self.pass_on()

    def _admit(self) -> None:
        arrival = self.arrived.popleft()
        self.commits.note_turn()
        self.next_turn()
        if callable(arrival):
            arrival()
        else:
            self._grant(arrival)

    def _grant(self, fiber: OrderedFiber) -> None:
        self.grants += 1
        self.holder = fiber
        if fiber.waiter is not None:
            wake(fiber.waiter)

    def next_turn(self) -> None:
        """Begin a turn that no earlier life has had."""
        self.turn = self._last_turn = max(self._last_turn, self.turn) + 1

    async def regain(self, fiber: OrderedFiber, scope: Scope, *, may_end: bool = False) -> None:
        """Wait for the baton. A cancellation by an operator does not end this wait, a stop does.

        With `may_end`, return if the life is being ended, instead of raising that.
        """
        is_shielded = False
        while self.holder is not fiber:
            if self.is_over:
                if not may_end:
                    await self.run.leave(scope)
                return
            fiber.waiter = new_waiter()
            try:
                with anyio.CancelScope(shield=True) if is_shielded else nullcontext():
                    await fiber.waiter
            except BaseException as raised:
                if not is_cancellation(raised):
                    raise
                if self.is_over or scope.cause() is None:
                    raise
                # It takes effect in the turn of this fiber.
                is_shielded = True
            finally:
                fiber.waiter = None

    async def arrive(
        self,
        fiber: OrderedFiber,
        scope: Scope,
        *,
        since: float | None = None,
        may_end: bool = False,
    ) -> None:
        """Wait for a turn in which the end of an operation of this fiber is taken.

        Parameters:
            since: when it ended, if that was before this life, in seconds since the epoch.
            may_end: return if the life is being ended, instead of raising that.
        """
        if self.is_over:
            self.next_turn()
            return
        if since is not None and self.is_alone:
            return
        if since is None and self.is_live and self.holder is fiber:
            # It did not have to wait, so it goes on in the same turn.
            return
        if self.holder is fiber:
            self.holder = None
        if since is not None:
            self.overdue.append((since, fiber))
        elif self.takes_first and not (self.holder or self.ready or self.arrived or self.overdue):
            self.next_turn()
            self.grants += 1
            self.holder = fiber
            return
        else:
            self.arrived.append(fiber)
        self.pass_on()
        await self.regain(fiber, scope, may_end=may_end)

    @property
    def takes_first(self) -> bool:
        """Whether what has arrived first is taken first. In a replay and an exploration it is not."""
        return self.is_live and Turns.explore is None

    def announce(self, arrival: Callable[[], object], *, since: float | None = None) -> None:
        """Let something be called in a turn of its own."""
        if self.is_over:
            return
        if self.is_live and self.is_alone and self.holder is not None:
            # The only fiber awaits something without giving up the baton.
            self.next_turn()
            arrival()
            return
        if since is None:
            self.arrived.append(arrival)
        else:
            self.overdue.append((since, arrival))
        self.pass_on()

    def stop(self) -> None:
        """End the order: all fibers that wait for the baton end."""
        self.is_over = True
        self.commits.begin(is_over=True)
        for fiber in self.fibers:
            if fiber.waiter is not None:
                wake(fiber.waiter)

    # The replay.

    def take_cancellation(self) -> None:
        """Take the cancellation of the run, if it is next, and came where the body is now."""
        entry = self.next_entry
        if isinstance(entry, CancelRequested) and entry.place == self.run.root.place:
            self._take_cancellation(entry)

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
        """Wait until a recorded entry is the next one, and return it. Call `take_next` first.

        Parameters:
            kind: the classes that make sense for the operation.
            may_end: return if the life is being ended, instead of raising that.
        """
        entry = self.expect(at, kind, fiber)
        fiber.scope = scope
        self.release(fiber)
        await self.regain(fiber, scope, may_end=may_end)
        return entry

    def take_next(self, fiber: OrderedFiber, at: int, kind: Kind[E]) -> E | None:
        """Return a recorded entry if the fiber need not wait for it; otherwise None."""
        if at != self.position or self.holder is not fiber:
            return None
        # In the same turn it did not wait for the other fibers that could run.
        if self.ready and self.order.entries[at].turn != self.turn:
            return None
        entry = self._entry_at(at, kind)
        self._advance(entry)
        return entry

    def take_completed(self, fiber: OrderedFiber, path: str) -> tuple[BeforeStep, Completed] | None:
        """Return the recorded beginning and end of a step, if both are next and it has completed.

        That is so for nearly all steps, and takes a quarter of the time of two calls of `take`.
        """
        entries, position = self.order.entries, self.position
        if self.ready or self.holder is not fiber or len(entries) < position + 2:
            return None
        begun, ended = entries[position], entries[position + 1]
        if type(ended) is not Completed or ended.step != path or ended.stands:
            return None
        if type(begun) is not BeforeStep or begun.step != path:
            return None
        del self.order.places[path][-2:]
        self.position = position + 2
        self.number_taken = self.order.numbers[position + 1]
        self.turn = ended.turn
        return begun, ended

    def expect(self, at: int, kind: Kind[E], taker: Arrival) -> E:
        """Let something take a recorded entry once it is the next one. Return the entry."""
        entry = self._entry_at(at, kind)
        self._takers[at] = taker
        return entry

    def _entry_at(self, at: int, kind: Kind[E]) -> E:
        """Return the entry that an operation takes. Halt the run if its class makes no sense there."""
        entry = self.order.entries[at]
        if not isinstance(entry, kind):
            run, number = self.run, self.order.numbers[at]
            reason = f"{type(entry).__name__} makes no sense for {path_of(entry)!r}"
            raise run.halt(CorruptCheckpoint(run.run_id, reason, sequence=number))
        self.order.places[path_of(entry)].pop()
        return entry

    def forget(self, arrival: Arrival) -> None:
        """Let something that has arrived have no turn."""
        if arrival in self.arrived:
            self.arrived.remove(arrival)

    def expect_no_more(self, at: int) -> None:
        """Call nothing for this recorded entry any more."""
        self._takers.pop(at, None)

    def _take_recorded(self, entry: Ordered) -> bool:
        """Take the next recorded entry. Return False if something else must come first."""
        if isinstance(entry, CancelRequested):
            return self._take_cancellation(entry)
        taker = self._takers.get(self.position)
        if taker is None:
            return self._help(entry)
        if entry.__class__ is Interrupted and not callable(taker):
            # Code that is not recorded may have cut it off, and gets further first.
            is_cut = taker.scope.cancelling_operator() is not None
            if not is_cut and (self._let_one_go_on() or self.working):
                return bool(self.holder)
        del self._takers[self.position]
        self._advance(entry)
        if callable(taker):
            taker()
        else:
            self._grant(taker)
        return True

    def _take_cancellation(self, entry: CancelRequested) -> bool:
        if not self.run.has_reached(entry.place):
            if self._may_plan_without(entry):
                self._skip(entry)
                return True
            return not self.working and self._diverge(entry)
        self._advance(entry)
        self.run.cancel_body()
        return True

    def _advance(self, entry: Ordered) -> None:
        self.number_taken = self.order.numbers[self.position]
        self.position += 1
        self.turn = entry.turn

    def _help(self, entry: Ordered) -> bool:
        """Help a recorded entry to be reached. Return whether that has changed anything."""
        path = path_of(entry)
        if self._begin_branch(path):
            return True
        owner = self._owner_of(path)
        is_cut = isinstance(entry, Local) and entry.end == "cut"
        if owner in self.working and not is_cut:
            # It will come to it by itself.
            return False
        if self._let_one_go_on(owner.line):
            return True
        if self._may_plan_without(entry):
            self._skip(entry)
            return True
        if self._let_one_go_on():
            return True
        if self.working and not self._is_blamed(owner):
            return False
        return self._diverge(entry)

    def _let_one_go_on(self, line: str = "") -> bool:
        """Let a fiber within a line go on that has awaited what is not recorded. Return whether one does.

        It got further when it ran before.
        """
        for fiber in self.fibers:
            if fiber in self.arrived and (fiber.line == line or _is_in(fiber.line, line)):
                self.arrived.remove(fiber)
                self._grant(fiber)
                return True
        return False

    def _may_plan_without(self, entry: Ordered) -> bool:
        planning = self.run.planning
        return planning is not None and planning.may_skip(entry, [it.place for it in self.frontier])

    def _begin_branch(self, path: str) -> bool:
        """Begin a recorded branch, even if others fill the limit. Return whether that is possible."""
        at = path.find("[")
        while at >= 0:
            fork = self._forks.get(path[:at])
            branch = path[: path.find("]", at) + 1]
            if fork is not None and branch not in self._branches:
                return fork.begin_more()
            at = path.find("[", at + 1)
        owner = self._owner_of(path)
        waiting = (fork for fork in self._forks.values() if fork.outer.fiber is owner)
        return any(fork.begin_more() for fork in waiting if fork.awaits_place)

    def _owner_of(self, path: str) -> OrderedFiber:
        """Return the fiber that should reach a path."""
        around = (fiber for fiber in self.fibers if _is_in(path, fiber.line))
        return max(around, key=lambda fiber: len(fiber.line))

    def _is_blamed(self, owner: OrderedFiber) -> bool:
        """Return whether the fiber that should reach the next entry waits for something else."""
        return owner in self.frontier or owner in self._takers.values()

    def _diverge(self, entry: Ordered) -> bool:
        """Leave an entry out that the code does not reach, if the resume is forced. Else end the life."""
        if self.run.force:
            self.order.abandon(self.order.numbers[self.position], entry)
            self._skip(entry)
            return True
        self.run.halt(self._divergence(entry))
        return False

    def finish(self, raised: BaseException | None) -> None:
        """End the replay, as the body has ended. Halt the run if recorded entries were not reached.

        If the body raised a defect before that, this life ends with it, and the journal stays as it is.
        """
        run = self.run
        run.root.place = ""
        while (entry := self.next_entry) is not None:
            if self._may_plan_without(entry):
                self._skip(entry)
            elif isinstance(raised, Exception) and not run.force:
                run.ending = CutShort(raised)
                return
            elif not self._diverge(entry):
                return
        if not self.is_live:
            self._begin_live()

    def _divergence(self, entry: Ordered) -> DefinitionChanged:
        """Return the error that names a recorded entry, and what the fibers wait for instead."""
        joining = [fork.outer.fiber for fork in self._forks.values()]
        found = sorted({one.place for one in self.fibers if one.place and one not in joining})
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
        return DefinitionChanged(self.run.run_id, self.run.workflow, detail=detail)

    def _skip(self, entry: Ordered) -> None:
        if entry.__class__ is not CancelRequested:
            places = self.order.places[path_of(entry)]
            if self.position in places:
                places.remove(self.position)
        self.position += 1

    # The frontier.

    async def to_frontier(self, fiber: OrderedFiber, scope: Scope, intent: Intent) -> None:
        """Wait until the replay is over, so that the fiber may do what it intends."""
        may_go_on = self.is_live and (intent is Intent.WAIT or self.run.planning is None)
        if not may_go_on or self._without_place(fiber) is not None:
            if not intent.ends_later:
                await fiber.check(scope)
            await self._wait_at_frontier(fiber, scope, intent)

    async def rest_in_plan(self, fiber: OrderedFiber, scope: Scope) -> Never:
        """Wait at the frontier of a plan, because what the fiber waits for has not come."""
        await self._wait_at_frontier(fiber, scope, Intent.WAIT)
        raise AssertionError("a plan does not go on from here")

    async def _wait_at_frontier(self, fiber: OrderedFiber, scope: Scope, intent: Intent) -> None:
        fiber.scope, fiber.intent = scope, intent
        if self.is_live and self.run.planning is None:
            # It waits for a place within a limit.
            self._begin_within_limits(fiber)
        else:
            self.frontier.append(fiber)
        self.release(fiber)
        await self.regain(fiber, scope)
        if not intent.ends_later:
            await fiber.check(scope)

    def _end_replay(self) -> None:
        """Take what has happened meanwhile, and then let what waits at the frontier begin."""
        self._begin_live()
        if self.frontier or self.overdue:
            self.next_turn()
        self._give_places()
        for deadline in list(self.deadlines):
            deadline.begin_live()
        # What has happened meanwhile comes before anything new begins.
        waiting = [fiber for fiber in self.frontier if fiber.intent is Intent.WAIT]
        self.frontier = [fiber for fiber in self.frontier if fiber.intent is not Intent.WAIT]
        for fiber in waiting:
            self._begin_within_limits(fiber)

    def _begin_live(self) -> None:
        run, abandoned = self.run, self.order.abandoned
        self.is_live = True
        if abandoned:
            ranges = in_ranges(abandoned)
            run.writer.add(Resumed(run.writer.lease.owner, run.now(), abandoned=ranges))

    def _end_cut_off(self) -> bool:
        """Let the steps end in a plan that a resume does not enter again, as they were cut off."""
        for fiber in self.frontier[:]:
            is_cancelled = fiber.scope.cancelling_operator() is not None
            if is_cancelled and fiber.intent.ends_later and not self.order.had_within(fiber.place):
                self.frontier.remove(fiber)
                self.arrived.append(fiber)
        return bool(self.arrived)

    def _begin_frontier(self) -> None:
        frontier, self.frontier = self.frontier, []
        self.next_turn()
        for fiber in frontier:
            is_cancelled = fiber.scope.cancelling_operator() is not None
            if fiber.intent is Intent.END or (is_cancelled and fiber.intent.ends_later):
                self.arrived.append(fiber)
            else:
                self._begin_within_limits(fiber)

    def wake_cancelled(self) -> None:
        """Let the fibers run that an operator has cancelled at the frontier or in a wait."""
        for fiber in self.frontier[:]:
            if not fiber.intent.ends_later and fiber.scope.cancelling_operator() is not None:
                self.frontier.remove(fiber)
                self.ready.append(fiber)
        for fiber in self.fibers:
            if fiber.resting is not None and fiber.resting.scope.cancelling_operator() is not None:
                fiber.resting = None
                self.ready.append(fiber)
        for fork in self._forks.values():
            for fiber in fork.pending[:]:
                if fiber.scope.cancelling_operator() is not None:
                    fork.pending.remove(fiber)
                    (self.arrived if fiber.intent.ends_later else self.ready).append(fiber)

    # Limits.

    def begin_branch(self, fork: Operator, branch: str) -> None:
        """Note that a branch of an operator begins."""
        self._forks[fork.path] = fork
        self._branches.add(branch)

    def end_fork(self, path: str) -> None:
        """Forget an operator whose branches have all ended."""
        self._forks.pop(path, None)

    def _give_places(self) -> None:
        """Give the places within each limit, first to the branches that earlier lives have begun."""
        for fork in self._forks.values():
            if fork.limit is not None:
                inside = [fiber for fiber in self.fibers if fiber.fork is fork]
                if len(inside) > fork.limit:
                    inside.sort(key=lambda fiber: not self._has_entries(fiber.line))
                    for fiber in inside[fork.limit :]:
                        fiber.has_place = False

    def _has_entries(self, line: str) -> bool:
        """Return whether an earlier life has recorded anything in a branch."""
        return any(_is_in(path, line) for path in self.order.places)

    def _begin_within_limits(self, fiber: OrderedFiber) -> None:
        around = self._without_place(fiber)
        if around is None:
            self.ready.append(fiber)
        else:
            assert around.fork is not None
            around.fork.pending.append(fiber)

    def _without_place(self, fiber: OrderedFiber) -> OrderedFiber | None:
        """Return the fiber, or one around it, that must wait for a place within a limit; or None."""
        around: OrderedFiber | None = fiber
        while around is not None:
            if not around.has_place:
                return around
            around = around.parent
        return None

    def give_place(self, fork: Operator) -> None:
        """Let a branch go on that waited for its place within the limit, as another one has ended."""
        waiting = [fiber for fiber in self.fibers if fiber.fork is fork and not fiber.has_place]
        if waiting:
            waiting[0].has_place = True
            pending, fork.pending = fork.pending, []
            for fiber in pending:
                self._begin_within_limits(fiber)


def _is_in(path: str, line: str) -> bool:
    """Return whether a path belongs to the fiber with this path."""
    return not line or path.startswith(f"{line}/")
