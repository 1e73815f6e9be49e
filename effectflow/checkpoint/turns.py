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

from collections.abc import Callable
from typing import TYPE_CHECKING, Never

from effectflow.checkpoint.baton import Baton
from effectflow.checkpoint.branches import Branches
from effectflow.checkpoint.entries import Resumed
from effectflow.checkpoint.group_commit import GroupCommit
from effectflow.checkpoint.order import Order, in_ranges
from effectflow.checkpoint.ordered_fiber import Intent, OrderedFiber
from effectflow.checkpoint.replay import Replay
from effectflow.effects.scope import Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run


class Turns(Baton):
    """The turns of one life: first what is recorded, then what waits at the frontier, then what arrives.

    Attributes:
        order, replay: what earlier lives have recorded, and how this one takes it.
        branches: the branches of parallel operators.
        frontier: the fibers that wait for the end of the replay.
        commits: saves for several fibers at once; None before the first one.
        on_idle: called when nothing can run.
    """

    __slots__ = (
        "branches",
        "commits",
        "frontier",
        "is_live",
        "on_idle",
        "order",
        "replay",
        "run",
    )

    def __init__(self, run: Run, order: Order) -> None:
        is_planned = run.planning is not None
        super().__init__(run.leave, last_turn=order.last_turn, is_planned=is_planned)
        self.run = run
        self.order = order
        self.is_live = not order.entries and not order.values and not is_planned
        self.commits: GroupCommit | None = None
        self.frontier: dict[OrderedFiber, None] = {}
        self.on_idle: Callable[[], object] | None = None
        self.replay = Replay(self, order)
        self.branches = Branches(self, order)

    @property
    def is_replaying(self) -> bool:
        """Whether the fibers repeat what an earlier life has done."""
        return self.replay.next_entry is not None or self.is_planned

    @property
    def is_idle(self) -> bool:
        """Whether all fibers wait for times, messages or other runs, and nothing has arrived."""
        has_work = self.holder or self.ready or self.arrived or self.overdue or self.working
        return self.is_live and not has_work and not self.frontier

    def stop(self) -> None:
        super().stop()
        if self.commits is not None:
            self.commits.begin()

    async def save(self, fiber: OrderedFiber, scope: Scope, *, required: bool) -> None:
        """Save what the run has recorded, for all fibers that ask at about the same time."""
        if self.commits is None:
            self.commits = GroupCommit(self, self.run.stopping, self.run.writer)
        await self.commits.save(fiber, scope, required=required)

    def take_event(self) -> bool:
        if self.commits is not None:
            self.commits.begin()
        entry = self.replay.next_entry
        if entry is not None:
            return self.replay.take_recorded(entry)
        if not self.is_live:
            self._end_replay()
        elif self.overdue:
            # What happened while no process had the run is taken in the order of its times.
            self.overdue.sort(key=lambda one: one[0])
            self.note_arrival(self.overdue.pop(0)[1], is_first=True)
            self.admit()
        elif self.is_planned:
            if not self.arrived and not self._end_cut_off():
                if not self.working:
                    self.run.end_plan()
                return False
            self.admit()
        elif self.frontier:
            self._begin_frontier()
        elif self.arrived:
            if Turns.explore is not None:
                Turns.explore(self)
                return False
            self.admit()
        else:
            if self.on_idle is not None:
                self.on_idle()
            return False
        return True

    # The frontier.

    async def to_frontier(self, fiber: OrderedFiber, scope: Scope, intent: Intent) -> None:
        """Wait until the replay is over, so that the fiber may do what it intends."""
        may_go_on = self.is_live and (intent is Intent.WAIT or not self.is_planned)
        if not may_go_on or self.branches.without_place(fiber) is not None:
            if not intent.ends_later:
                await fiber.check(scope)
            await self._wait_at_frontier(fiber, scope, intent)

    async def rest_in_plan(self, fiber: OrderedFiber, scope: Scope) -> Never:
        """Wait at the frontier of a plan, because what the fiber waits for has not come."""
        await self._wait_at_frontier(fiber, scope, Intent.WAIT)
        raise AssertionError("a plan does not go on from here")

    async def _wait_at_frontier(self, fiber: OrderedFiber, scope: Scope, intent: Intent) -> None:
        fiber.scope, fiber.intent = scope, intent
        if self.is_live and not self.is_planned:
            # It waits for a place within a limit.
            self.branches.let_go_on(fiber)
        else:
            self.frontier[fiber] = None
        self.release(fiber)
        await self.regain(fiber, scope)
        if not intent.ends_later:
            await fiber.check(scope)

    def _end_replay(self) -> None:
        """Take what has happened meanwhile, and then let what waits at the frontier begin."""
        self.begin_live()
        if self.frontier or self.overdue:
            self.next_turn()
        self.branches.give_places()
        for deadline in list(self.deadlines):
            deadline.begin_live()
        # What has happened meanwhile comes before anything new begins.
        waiting = [fiber for fiber in self.frontier if fiber.intent is Intent.WAIT]
        for fiber in waiting:
            del self.frontier[fiber]
            self.branches.let_go_on(fiber)

    def begin_live(self) -> None:
        """Note that everything recorded was taken."""
        run, abandoned = self.run, self.order.abandoned
        self.is_live = True
        if abandoned:
            ranges = in_ranges(abandoned)
            run.writer.add(Resumed(run.writer.lease.owner, run.now(), abandoned=ranges))

    def _end_cut_off(self) -> bool:
        """Let the steps end in a plan that a resume does not enter again, as they were cut off."""
        for fiber in list(self.frontier):
            is_cancelled = fiber.scope.cancelling_operator() is not None
            if is_cancelled and fiber.intent.ends_later and not self.order.had_within(fiber.place):
                del self.frontier[fiber]
                self.note_arrival(fiber)
        return bool(self.arrived)

    def _begin_frontier(self) -> None:
        frontier, self.frontier = self.frontier, {}
        self.next_turn()
        for fiber in frontier:
            is_cancelled = fiber.scope.cancelling_operator() is not None
            if fiber.intent is Intent.END or (is_cancelled and fiber.intent.ends_later):
                self.note_arrival(fiber)
            else:
                self.branches.let_go_on(fiber)

    def wake_cancelled(self, outer: OrderedFiber) -> None:
        """Let the fibers run that an operator of `outer` has cancelled at the frontier or in a wait.

        Only these: there may be thousands of others.
        """
        for fiber in outer.with_branches():
            rest = fiber.resting
            is_in_place = rest is None and fiber not in self.frontier
            if is_in_place and not self.branches.awaits_place(fiber):
                continue
            scope = fiber.scope if rest is None else rest.scope
            if scope.cancelling_operator() is None:
                continue
            if rest is not None:
                fiber.resting = None
                self.make_ready(fiber)
            elif is_in_place:
                self.branches.withdraw(fiber)
                (self.note_arrival if fiber.intent.ends_later else self.make_ready)(fiber)
            elif not fiber.intent.ends_later:
                del self.frontier[fiber]
                self.make_ready(fiber)
