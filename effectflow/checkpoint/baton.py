"""The baton of one life of a run: who may run, and what has arrived and waits for its turn.

Only the fiber that holds the baton runs. It gives it up when it waits; then the next fiber gets it that
may run. Once none can, the next event is taken, which begins a turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Never, Protocol, TypeAlias

import anyio

from effectflow.checkpoint.ordered_fiber import OrderedFiber
from effectflow.effects.event_loop import is_cancellation, new_waiter, wake
from effectflow.effects.scope import Scope

Arrival: TypeAlias = OrderedFiber | Callable[[], object]
"""What may have a turn: a fiber whose operation has ended, or something to call."""


_NOTHING: deque[Any] = deque()
"""In place of an empty queue, which takes 760 bytes. Most runs that wait never need one."""


class PendingDeadline(Protocol):
    """A deadline that may still fire, at a time in seconds since the epoch."""

    @property
    def until(self) -> float: ...

    def begin_live(self) -> None:
        """Begin to wait, once the replay is over."""
        ...


class Baton(ABC):
    """Who may run in one life, and what has arrived. `Turns` says which event is next.

    Attributes:
        turn: the number of the turn.
        is_planned: whether a plan is made, so that nothing new begins.
        is_live: whether the replay is over.
        is_over: whether the life is being ended, so that fibers run in no order and begin nothing.
        holder: the fiber that holds the baton.
        ready: the fibers that may run in this turn.
        arrived: what has arrived, first come first.
        overdue: what has happened before this life, with the time of each.
        fibers: all fibers.
        deadlines: the deadlines that may still fire.
        working: the fibers that await something other than a time, a message or another run.
        grants: how often a fiber has got the baton.
        admitted: how often something that had arrived has got its turn.
        explore: called in place of taking what has arrived first. It calls `take_arrival` later. It is
            the same for all runs, and None outside of explorations.
    """

    __slots__ = (
        "_last_turn",
        "_leave",
        "admitted",
        "arrived",
        "deadlines",
        "fibers",
        "grants",
        "holder",
        "is_live",
        "is_over",
        "is_planned",
        "overdue",
        "ready",
        "turn",
        "working",
    )

    explore: ClassVar[Callable[[Any], object] | None] = None

    def __init__(
        self, leave: Callable[[Scope], Awaitable[Never]], *, last_turn: int, is_planned: bool
    ) -> None:
        """Create the baton of a life. `leave` raises what ends a fiber once the life is over."""
        self.turn = 0
        self.is_planned = is_planned
        self.is_live = False
        self.is_over = False
        self.holder: OrderedFiber | None = None
        self.ready: deque[OrderedFiber] = _NOTHING
        self.arrived: deque[Arrival] = _NOTHING
        self.overdue: list[tuple[float, Arrival]] = []
        self.fibers: dict[OrderedFiber, None] = {}
        self.deadlines: dict[PendingDeadline, None] = {}
        self.working: dict[OrderedFiber, None] = {}
        self.grants = 0
        self.admitted = 0
        self._leave = leave
        self._last_turn = last_turn

    @property
    def is_alone(self) -> bool:
        """Whether there is one fiber, and nothing that may cancel it, so that nothing needs an order."""
        is_single = len(self.fibers) == 1 and not self.is_planned
        return is_single and not (self.deadlines or self.arrived or self.overdue)

    @property
    def is_unordered(self) -> bool:
        """Whether a fiber need not wait for turns: it is alone, or the life is being ended."""
        if self.is_over:
            return True
        # As `is_alone`, whose call each step would pay for.
        is_single = self.is_live and len(self.fibers) == 1 and not self.is_planned
        return is_single and not (self.deadlines or self.arrived or self.overdue)

    def make_ready(self, fiber: OrderedFiber) -> None:
        """Let a fiber run in this turn, after those that are ready."""
        if self.ready is _NOTHING:
            self.ready = deque()
        self.ready.append(fiber)

    def note_arrival(self, arrival: Arrival, *, is_first: bool = False) -> None:
        """Let something have a turn, after or before what has arrived."""
        if self.arrived is _NOTHING:
            self.arrived = deque()
        if is_first:
            self.arrived.appendleft(arrival)
        else:
            self.arrived.append(arrival)

    def release(self, fiber: OrderedFiber) -> None:
        """Give up the baton, if the fiber holds it."""
        if self.holder is fiber:
            self.holder = None
        self.pass_on()

    def pass_on(self) -> None:
        """Give the baton to the next fiber: one that may run; otherwise that of the next event."""
        while self.holder is None and not self.is_over:
            if self.ready:
                self.grant(self.ready.popleft())
            elif not self.take_event():
                return

    @abstractmethod
    def take_event(self) -> bool:
        """Take the next event, if there is one. Return False if nothing can run before another one."""

    def take_arrival(self, index: int) -> None:
        """Take one of the arrivals now, instead of the first one. Call it when no fiber can run."""
        arrival = self.arrived[index]
        del self.arrived[index]
        self.arrived.appendleft(arrival)
        self.admit()
        self.pass_on()

    def admit(self) -> None:
        """Begin a turn with what has arrived first."""
        arrival = self.arrived.popleft()
        self.admitted += 1
        self.next_turn()
        if callable(arrival):
            arrival()
        else:
            self.grant(arrival)

    def grant(self, fiber: OrderedFiber) -> None:
        self.grants += 1
        self.holder = fiber
        if fiber.waiter is not None:
            wake(fiber.waiter)

    def next_turn(self) -> None:
        """Begin a turn that no earlier life has had."""
        self.turn = self._last_turn = max(self._last_turn, self.turn) + 1

    async def regain(
        self, fiber: OrderedFiber, scope: Scope, *, may_end: bool = False, is_ended: bool = False
    ) -> None:
        """Wait for the baton. A cancellation by an operator does not end this wait, a stop does.

        Parameters:
            may_end: return if the life is being ended, instead of raising that.
            is_ended: whether the code of a step has ended, which a stop must not lose: it comes later.
        """
        is_shielded = False
        while self.holder is not fiber:
            if self.is_over:
                if not may_end:
                    await self._leave(scope)
                return
            fiber.waiter = new_waiter()
            try:
                with anyio.CancelScope(shield=True) if is_shielded else nullcontext():
                    await fiber.waiter
            except BaseException as raised:
                if not is_cancellation(raised):
                    raise
                if self.is_over or scope.cause() is None:
                    if is_ended:
                        scope.postpone(raised)
                        return
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
        is_ended: bool = False,
    ) -> None:
        """Wait for a turn in which the end of an operation of this fiber is taken.

        Parameters:
            since: when it ended, if that was before this life, in seconds since the epoch.
            may_end, is_ended: as in `regain`.
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
            self.note_arrival(fiber)
        self.pass_on()
        await self.regain(fiber, scope, may_end=may_end, is_ended=is_ended)

    @property
    def takes_first(self) -> bool:
        """Whether what has arrived first is taken first. In a replay and an exploration it is not."""
        return self.is_live and type(self).explore is None

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
            self.note_arrival(arrival)
        else:
            self.overdue.append((since, arrival))
        self.pass_on()

    def stop(self) -> None:
        """End the order: all fibers that wait for the baton end."""
        self.is_over = True
        for fiber in self.fibers:
            if fiber.waiter is not None:
                wake(fiber.waiter)

    def forget(self, arrival: Arrival) -> None:
        """Let something that has arrived have no turn."""
        if arrival in self.arrived:
            self.arrived.remove(arrival)
