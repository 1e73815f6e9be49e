"""The position of an effect in a program, and the operators that may cancel it.

A `Scope` is the position of one effect: its fiber, the operators around it, the clock, and the listeners.
An `Operator` decides about the branches within it, and cancels them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio

from effectflow.effects.clock import Clock, Duration, SystemClock, in_seconds
from effectflow.effects.errors import Exit, TimedOut
from effectflow.effects.event_loop import (
    is_being_cancelled,
    is_cancellation,
    is_cancelled_by_scope,
    raise_again_later,
)
from effectflow.effects.fiber import PLAIN, Fiber
from effectflow.effects.trails import Suppressed, TypedFailure

A = TypeVar("A")


class RunningStep(Protocol):
    """The step whose body is being run.

    Attributes:
        at_most_once: whether it must not be begun twice while the outcome of the first time is unknown.
            True for steps inside such a step, too.
        is_cancelled: whether it ended although it was cancelled. The cancellation is raised after its
            end is recorded.
    """

    is_cancelled: bool

    @property
    def at_most_once(self) -> bool: ...


running_step: ContextVar[RunningStep | None] = ContextVar("running_step", default=None)
"""The step whose code runs in this context."""

Surrounding: TypeAlias = "Callable[[], AbstractContextManager[object]]"

around_calls: ContextVar[tuple[Surrounding, ...]] = ContextVar("around_calls", default=())
"""Return what surrounds a call that is sent to another process now. What they return is pickled."""

Sink: TypeAlias = "Callable[[object, Scope], Awaitable[None]]"
"""Takes an emitted event, and the scope of its emitter, which waits for the end."""


class EffectObserver(Protocol):
    """Receives the beginning and end of named effects and steps: `effect.run(env, observer=...)`.

    Both methods are called in the task that runs the effect, with its context variables. They must be
    fast and must not raise.
    """

    def began(self, name: str) -> None:
        """Receive the beginning of an effect with this name."""
        ...

    def ended(self, name: str, ended: Exit[object, object]) -> None:
        """Receive the end of the effect with this name that began last in this task."""
        ...


class Undos(list[Any]):
    """What a saga would undo, in the order in which it happened.

    Attributes:
        around: what the saga around it would undo then; None without one.
    """

    def __init__(self, around: Undos | None = None) -> None:
        super().__init__()
        self.around = around


class Scope:
    """The position of one effect.

    Attributes:
        fiber: the fiber that it is part of.
        operators: the operators that may cancel it, outermost first. A shield empties the list.
        is_shielded: whether it is part of an acquisition or a finalizer.
        clock: tells the time.
        step: the step whose body this is part of, or None between steps.
        sink: takes emitted events; None without a listener.
        observer: receives the begin and end of named effects; None without an observer.
        finalizer_deadline: the seconds that each finalizer may take; None for no limit.
        context: the context of the run; empty outside runs.
        is_planned: whether a plan replays it, and so runs neither asynchronous effects nor functions in
            acquisitions, finalizers and steps.
        undos: where compensated effects register how to undo them, for the saga; None outside of sagas.
    """

    __slots__ = (
        "clock",
        "context",
        "fiber",
        "finalizer_deadline",
        "is_planned",
        "is_shielded",
        "observer",
        "operators",
        "sink",
        "step",
        "undos",
    )

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        observer: EffectObserver | None = None,
        finalizer_deadline: Duration | None = None,
        context: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Create the scope that a run begins in."""
        self.fiber = PLAIN
        self.clock: Clock = clock or SystemClock()
        self.operators: tuple[Operator, ...] = ()
        self.is_shielded = False
        self.step: RunningStep | None = None
        self.sink: Sink | None = None
        self.observer = observer
        self.finalizer_deadline = (
            None if finalizer_deadline is None else in_seconds(finalizer_deadline)
        )
        self.context = context
        self.is_planned = False
        self.undos: Undos | None = None

    @property
    def is_at_most_once(self) -> bool:
        """Whether this is part of an at-most-once step."""
        return self.step is not None and self.step.at_most_once

    def postpone(self, cancelled: BaseException) -> None:
        """Let the step record its end before a cancellation takes effect that came too late for it.

        Outside steps of a durable run, raise the cancellation.
        """
        if self.step is None or self.fiber is PLAIN:
            raise cancelled
        self.step.is_cancelled = True
        raise_again_later(cancelled)

    def cause(self) -> Operator | None:
        """Return the operator that cancelled this position; None if the cancellation is from outside.

        An expired timeout decides here, when something asks for the first time.
        """
        for operator in self.operators:
            if operator.is_decided or (operator.has_expired() and not self.fiber.is_stopping):
                operator.is_decided = True
                return operator
        for operator in self.operators:
            if operator.is_cancelled_within():
                return operator
        self.fiber.stop()
        return None

    def cancelling_operator(self) -> Operator | None:
        """Return the outermost operator that cancels this position, if one does."""
        for operator in self.operators:
            if operator.cancels():
                return operator
        return None

    def hides_stop(self, error: object) -> bool:
        """Return whether an error only says that the run is being stopped: it answers that."""
        return is_being_cancelled() and _answers_cancellation(error) and self.cause() is None

    @property
    def runs_no_function(self) -> bool:
        """Whether a plan runs no functions here: those in acquisitions, finalizers and steps may act."""
        return self.is_planned and (self.is_shielded or self.step is not None)

    def is_cancelled(self) -> bool:
        """Return whether a scope has cancelled the running task, so that its next wait raises."""
        return self.cancelling_operator() is not None or is_cancelled_by_scope()

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Return a cancel scope that ends after this many seconds."""
        return self.clock.move_on_after(seconds)

    def under(self, operator: Operator) -> Scope:
        """Return the scope within an operator that may cancel it."""
        scope = self.copy()
        scope.operators = (*self.operators, operator)
        return scope

    def shielded(self) -> Scope:
        """Return the same position, which no outer operator can cancel."""
        scope = self.copy()
        scope.operators = ()
        scope.is_shielded = True
        return scope

    def inside_step(self, fiber: Fiber, step: RunningStep | None) -> Scope:
        """Return the scope of the body of a step."""
        scope = self.copy()
        scope.fiber = fiber
        scope.step = step
        # A replay skips the whole step, so undos inside it would not be registered.
        scope.undos = None
        return scope

    def with_fiber(self, fiber: Fiber) -> Scope:
        """Return the same position in another fiber."""
        scope = self.copy()
        scope.fiber = fiber
        return scope

    def with_undos(self, undos: Undos | None) -> Scope:
        """Return the same position in another saga, or in none."""
        scope = self.copy()
        scope.undos = undos
        return scope

    def with_sink(self, sink: Sink | None) -> Scope:
        """Return the same position with another listener."""
        scope = self.copy()
        scope.sink = sink
        return scope

    def copy(self) -> Scope:
        """Return a scope that can be changed."""
        # Without the call of __init__, which takes twice as long.
        scope = Scope.__new__(Scope)
        scope.fiber = self.fiber
        scope.clock = self.clock
        scope.operators = self.operators
        scope.is_shielded = self.is_shielded
        scope.step = self.step
        scope.sink = self.sink
        scope.observer = self.observer
        scope.finalizer_deadline = self.finalizer_deadline
        scope.context = self.context
        scope.is_planned = self.is_planned
        scope.undos = self.undos
        return scope


def _answers_cancellation(error: object) -> bool:
    """Return whether an exception was raised while a cancellation was handled."""
    known: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in known:
        if is_cancellation(error):
            return True
        known.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Operator:
    """One run of an operator that may cancel what is within it.

    It decides once, before the decision takes effect. A fiber that is about to begin something checks
    whether an operator around it has decided, and does not begin it then. A cancellation alone would come
    too late if two fibers wake up in the same iteration of the event loop.

    Attributes:
        path: its path in a durable run.
        is_decided: whether it has decided.
        outer: the scope around it.
        inside: the scope within it.
        cut: the cancel scope of a deadline, which may pass without a call of `decide`; None without one.
        unfinished: the defect of a cancelled body that had not ended.
        suppressed: the errors of finalizers in the branches that it cancelled.
        limit: how many branches may run at once; None for any number.
        read: how many items a parallel operator has read.
        total: how many items it has, if that is known; None once a durable run has recorded it.
        causes, collected, pending: what a durable run keeps here: the failures with which it cancels its
            branches, those of branches that have ended, and fibers that wait for a place.
    """

    __slots__ = (
        "causes",
        "collected",
        "cut",
        "inside",
        "is_decided",
        "limit",
        "outer",
        "path",
        "pending",
        "read",
        "suppressed",
        "total",
        "unfinished",
    )

    def __init__(self, outer: Scope, name: str, *, limit: int | None = None) -> None:
        self.path = outer.fiber.next_path(name)
        self.limit = limit
        self.is_decided = False
        self.cut: anyio.CancelScope | None = None
        self.unfinished: Exception | None = None
        self.read = 0
        self.total: int | None = None
        self.suppressed: list[Suppressed] = []
        self.causes: list[Any] = []
        self.collected: list[Any] = []
        self.pending: dict[Any, None] = {}
        self.outer = outer
        self.inside = outer.under(self)

    def decide(self, fiber: Fiber, *, has_failed: bool) -> None:
        """Decide because of an end in a fiber. Call this before cancelling anything."""
        # The end of a branch that has been cancelled from further outside decides nothing.
        if not self.is_decided and self.outer.cancelling_operator() is None:
            self.is_decided = True
            fiber.decides(self, has_failed=has_failed)

    @property
    def awaits_place(self) -> bool:
        """Whether it reads no more items until one of its branches ends."""
        return False

    def begin_more(self) -> bool:
        """Begin one more branch than the limit allows, for a replay. Return whether that is possible."""
        return False

    def has_expired(self) -> bool:
        """Return whether its deadline cancels what is within it."""
        return self.cut is not None and self.cut.cancel_called

    def cancels(self) -> bool:
        """Return whether it cancels its branches: it has decided, or its deadline has passed."""
        return self.is_decided or self.has_expired()

    def is_cancelled_within(self) -> bool:
        """Return whether a scope inside that of a context manager has cancelled the running task."""
        return False

    def traced(self, outcome: A) -> A | TypedFailure:
        """Return the outcome of the operator, with the failed finalizers in the trail of a failure."""
        if not self.suppressed or not isinstance(outcome, TypedFailure):
            return outcome
        return outcome.after(*self.suppressed)

    def timed_out(self, seconds: float) -> TypedFailure:
        """Return the failure after a limit of this many seconds."""
        return self.traced(TypedFailure(TimedOut(seconds)))


def supervised(
    perform: Callable[[Any, Scope], Coroutine[Any, Any, A]],
) -> Callable[[Any, Scope], Coroutine[Any, Any, A]]:
    """Run an operator as supervised work of its fiber; see `Fiber.supervise`."""

    def perform_supervised(env: Any, scope: Scope) -> Coroutine[Any, Any, A]:
        return scope.fiber.supervise(partial(perform, env, scope))

    return perform_supervised
