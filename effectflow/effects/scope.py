"""The position of an effect in a run, and the durability protocol that effects use.

A `Flow` is one sequential line of a run: the body, a branch of an operator, the body of a step. It has
the three durable operations: *execute a step*, *decide once*, and *wait*. Outside durable runs, the only
flow is `PLAIN`, with the methods of the protocol itself: it executes, computes and sleeps, and records
nothing. So no operator asks whether it is durable.

A `Scope` is the position of one effect: its flow, the operators that may cancel it, the clock, and the
listeners. An `Operator` decides about the flows within it, and cancels them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio

from effectflow.effects.clock import Clock, Duration, SystemClock, in_seconds
from effectflow.effects.errors import Exit, Halt, TimedOut
from effectflow.effects.event_loop import is_cancelled_by_scope, raise_again_later, run_to_the_end
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

Sink: TypeAlias = Callable[[object], Awaitable[None]]
"""Takes emitted events, one at a time. The emitter waits for it."""


class EffectObserver(Protocol):
    """Receives the beginning and end of named effects and steps: `effect.run(env, observer=...)`.

    Both methods are called in the task that runs the effect, with its context variables. They must be
    fast and must not raise.
    """

    def began(self, name: str) -> None:
        """Receive the beginning of an effect with this name."""
        ...

    def ended(self, name: str, ended: Exit[Any, Any]) -> None:
        """Receive the end of the effect with this name that began last in this task."""
        ...


class Decision(Protocol):
    """The decision of an operator in an earlier life of the run.

    Attributes:
        sequence: the position of the decision in the journal.
        value: the winner of a race, the branch that failed first, and so on.
        has_ended: whether the branches that it cancelled have ended, finalizers included.
    """

    @property
    def sequence(self) -> int: ...
    @property
    def value(self) -> Any: ...
    @property
    def has_ended(self) -> bool: ...


class Branches(Protocol):
    """The flows within one run of an operator, and its decision about them."""

    @property
    def decision(self) -> Decision | None:
        """The decision of an earlier life, if it stands."""
        return None

    def deadline(self, seconds: float) -> float | None:
        """Return the seconds left until the deadline that the operator set in its first life.

        None if the operator ended in time in an earlier life.
        """
        return seconds

    def branch(self, key: object, item: object, *, is_keyed: bool) -> Flow:
        """Return the flow of a branch. Without a key, `item` shows whether it is the same branch."""
        return PLAIN

    def has_records(self, key: object) -> bool:
        """Return whether an earlier life recorded anything in this branch."""
        return False

    def has_more_records(self) -> bool:
        """Return whether an earlier life recorded anything in branches that have not begun."""
        return False

    def reading(self) -> AbstractContextManager[object]:
        """Note that the operator reads an item, which takes time while its branches run.

        No operator can cancel it before the branches that an earlier life recorded have begun.
        """
        return nullcontext()

    def decide(self, value: object, *, failed: bool) -> None:
        """Record the decision, before it takes effect."""
        return

    def fail(self, ended: TypedFailure | Exception) -> None:
        """Record the decision that this failure or defect ends the operator, before it takes effect."""
        return

    def keep_failures(self) -> None:
        """Let what follows the cancelled branches settle their failures."""
        return

    def recorded_failure(self, again: object) -> TypedFailure | Exception:
        """Return the failure or defect that the decision of an earlier life recorded.

        `again` is how the branch ended when it was replayed.
        """
        raise AssertionError("nothing is recorded outside of durable runs")

    def nothing_failed(self) -> Halt:
        """Halt the run because the failure that an earlier life decided about does not come again.

        The other branches were cancelled, so there are no values to continue with. Return the exception
        to raise.
        """
        raise AssertionError("nothing is recorded outside of durable runs")

    def suppressed(self) -> Sequence[Suppressed]:
        """Return the errors of finalizers in the branches that an earlier life cancelled and ended."""
        return ()

    def check_complete(self) -> None:
        """Raise if a branch with recorded entries did not reappear."""
        return

    def end(self, *, is_complete: bool, suppressed: Sequence[Suppressed]) -> None:
        """Record that all branches have ended, if they recorded anything after the decision.

        Parameters:
            is_complete: whether their finalizers are complete. If not, nothing is recorded: a resume
                cancels the branches again.
            suppressed: the errors of finalizers in the branches that were cancelled.
        """
        return


class Finalization(Protocol):
    """The place of one finalizer in a durable flow."""

    async def recorded_end(
        self, scope: Scope, replay: Callable[[Scope], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Return or raise the recorded failure or defect of the source.

        Return None if the source must run: its finalizer has not begun a step, or the source succeeded.
        `replay` runs the source.
        """
        ...

    async def run(self, work: Coroutine[Any, Any, A]) -> tuple[A | None, BaseException | None]:
        """Run the finalizer, shielded from cancellation; see `run_to_the_end`."""
        ...

    def scope(self, outer: Scope, ended: object, cause: Operator | None) -> Scope:
        """Return the scope of the finalizer.

        Parameters:
            outer: the scope of the source.
            ended: the value of the source, a `TypedFailure`, or what it raised.
            cause: the operator that cancelled the source, if one did.
        """
        ...


class Flow(Protocol):
    """One sequential line of a run. This class itself is a flow outside durable runs."""

    @property
    def path(self) -> str:
        """Its path; empty for the body of a run, and outside runs."""
        return ""

    @property
    def is_stopping(self) -> bool:
        """Whether the run is being stopped from outside."""
        return False

    @property
    def is_shielded(self) -> bool:
        """Whether its run is part of an acquisition or a finalizer of an outer run."""
        return False

    @property
    def started_version(self) -> str | None:
        """The version of the workflow that the run was started with; None outside runs."""
        return None

    @property
    def ended_at(self) -> int:
        """The position in the journal of the last step that ended in it; 0 outside runs."""
        return 0

    def has_ahead(self, limit: float) -> bool:
        """Return whether an earlier life recorded operations here that this one has not reached.

        `limit` is as in `Scope`.
        """
        return False

    def execute(self, step: Any, env: Any, scope: Scope) -> Coroutine[Any, Any, Any]:
        """Execute a step, or return its recorded outcome: its value or a `TypedFailure`.

        `step` is a `Step` of `nodes.py`.
        """
        return step.definition.execute_plainly(step, env, scope)

    async def decide(
        self,
        scope: Scope,
        name: str,
        compute: Callable[[], A],
        *,
        has_failed: Callable[[A], bool] | None = None,
    ) -> A:
        """Compute a value once. A resume returns the recorded value.

        `has_failed` returns whether a value means a failure. Such a value stands only once it is settled.
        """
        return compute()

    async def wait(self, scope: Scope, seconds: float) -> None:
        """Wait. A resume waits only for the remaining time."""
        await scope.clock.sleep(seconds)

    async def wait_until(self, scope: Scope, until: float) -> None:
        """Wait until a time, in seconds since the epoch. A resume waits for the recorded one."""
        await scope.clock.sleep(max(0.0, until - scope.clock.now().timestamp()))

    async def wait_for_retry(self, scope: Scope, until: float, longest: float) -> None:
        """Wait before a retry that a decision has recorded.

        Parameters:
            until: the time of the retry, in seconds since the epoch.
            longest: the seconds to wait at most.
        """
        left = until - scope.clock.now().timestamp()
        await scope.clock.sleep(min(max(0.0, left), longest))

    def branches(self, scope: Scope, name: str) -> Branches:
        """Return the flows of the next operator in this flow."""
        return PLAIN_BRANCHES

    def limit(self, scope: Scope, seconds: float | None) -> Branches | None:
        """Return what records that a limit has cut off this flow, the body of a step or a finalizer.

        Return None if there is no limit, now or in an earlier life.
        """
        return None if seconds is None else PLAIN_BRANCHES

    def finalization(self, name: str) -> Finalization | None:
        """Return the place of the next finalizer in this flow; None if nothing is recorded here."""
        return None

    async def finalize(self, work: Coroutine[Any, Any, A]) -> tuple[A | None, BaseException | None]:
        """Run a finalizer or its like, shielded from cancellation; see `run_to_the_end`."""
        return await run_to_the_end(work)

    async def protect(self, work: Coroutine[Any, Any, A]) -> tuple[A, BaseException | None]:
        """Run work that no operator may interrupt; see `run_to_the_end`. Stopping a durable run may."""
        return await run_to_the_end(work)

    def supervise(self, work: Callable[[], Coroutine[Any, Any, A]]) -> Coroutine[Any, Any, A]:
        """Run an operator or an acquisition. A durable run notices meanwhile that it is being stopped."""
        return work()

    def compensation_failed(self, error: object, left: Callable[[], Sequence[str]]) -> None:
        """End a durable run as failed, because an undo has failed. Elsewhere, do nothing.

        Parameters:
            error: the failure or defect of the undo.
            left: returns the names of the undos that are left, this one first.
        """
        return

    async def run_branch(self, scope: Scope, work: Callable[[], Awaitable[A]]) -> A:
        """Run everything that happens in this flow, which is a branch."""
        return await work()

    async def save_now(self, reason: str) -> None:
        """Make everything durable that the run has recorded. Elsewhere, do nothing."""
        return

    def record_waits(self) -> None:
        """Let operators record their decisions and waits, also inside a step."""
        return

    def stop(self) -> None:
        """Record that the run is being stopped from outside, instead of cancelled by an operator."""
        return


class _PlainBranches(Branches):
    __slots__ = ()


class _PlainFlow(Flow):
    __slots__ = ()


PLAIN_BRANCHES: Branches = _PlainBranches()
PLAIN: Flow = _PlainFlow()
"""The flow outside durable runs. It records nothing."""


class AcquisitionStart:
    """Whether an acquisition may begin. Once it has, it is shielded from the operators around it.

    It must not begin once one of them has decided, unless an earlier life has begun it.
    """

    __slots__ = ("_has_begun", "_operators")

    def __init__(self, operators: tuple[Operator, ...], *, has_begun: bool = False) -> None:
        self._operators = operators
        self._has_begun = has_begun

    def may_continue(self) -> bool:
        """Return whether its next operation may begin."""
        if not self._has_begun:
            self._has_begun = not any(one.cancels() for one in self._operators)
        return self._has_begun


class Scope:
    """The position of one effect.

    Attributes:
        flow: the sequential flow that it is part of.
        operators: the operators that may cancel it, outermost first. A shield empties the list.
        is_shielded: whether it is part of an acquisition or a finalizer.
        acquisition: whether the acquisition that it is part of may begin; None outside of acquisitions.
        is_observing: whether it only reacts to a failure that continues, like the handler of `tap_err`.
        limit: the position in the journal after which entries do not count here, because an operator's
            decision at this position cancelled the flow.
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
        "acquisition",
        "clock",
        "context",
        "finalizer_deadline",
        "flow",
        "is_observing",
        "is_planned",
        "is_shielded",
        "limit",
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
        self.flow = PLAIN
        self.clock: Clock = clock or SystemClock()
        self.operators: tuple[Operator, ...] = ()
        self.is_shielded = False
        self.is_observing = False
        self.limit = math.inf
        self.step: RunningStep | None = None
        self.sink: Sink | None = None
        self.observer = observer
        self.finalizer_deadline = (
            None if finalizer_deadline is None else in_seconds(finalizer_deadline)
        )
        self.context = context
        self.is_planned = False
        self.acquisition: AcquisitionStart | None = None
        self.undos: list[Any] | None = None

    @property
    def path(self) -> str:
        """The path of the flow."""
        return self.flow.path

    @property
    def is_out_of_reach(self) -> bool:
        """Whether it or its run is part of an acquisition or a finalizer: no cancellation reaches it."""
        return self.is_shielded or self.flow.is_shielded

    @property
    def is_at_most_once(self) -> bool:
        """Whether this is part of an at-most-once step."""
        return self.step is not None and self.step.at_most_once

    def postpone(self, cancelled: BaseException) -> None:
        """Let the step record its end before a cancellation takes effect that came too late for it.

        Outside steps of a durable run, raise the cancellation.
        """
        if self.step is None or self.flow is PLAIN:
            raise cancelled
        self.step.is_cancelled = True
        raise_again_later(cancelled)

    def cause(self) -> Operator | None:
        """Return the operator that cancelled this position; None if the cancellation is from outside.

        An expired timeout decides here, when something asks for the first time.
        """
        for operator in self.operators:
            if operator.is_decided or (operator.has_expired() and not self.flow.is_stopping):
                operator.expire()
                return operator
        for operator in self.operators:
            if operator.is_cancelled_within():
                return operator
        self.flow.stop()
        return None

    def cancelling_operator(self) -> Operator | None:
        """Return the outermost operator that cancels this position, if one does."""
        for operator in self.operators:
            if operator.cancels():
                return operator
        return None

    @property
    def runs_no_function(self) -> bool:
        """Whether a plan runs no functions here: those in acquisitions, finalizers and steps may act."""
        return self.is_planned and (self.is_shielded or self.step is not None)

    def was_cancelled(self) -> bool:
        """Return whether an operator cancelled this flow in an earlier life.

        The flow that led to the decision, such as the winner of a race, has its limit, too.
        """
        return self.limit < math.inf and any(operator.is_decided for operator in self.operators)

    def is_cancelled(self) -> bool:
        """Return whether a scope has cancelled the running task, so that its next wait raises."""
        return self.cancelling_operator() is not None or is_cancelled_by_scope()

    def deadline(self, seconds: float | None) -> AbstractContextManager[anyio.CancelScope]:
        """Return a cancel scope that ends after this many seconds; without a deadline if None."""
        return anyio.CancelScope() if seconds is None else self.clock.move_on_after(seconds)

    def under(self, operator: Operator) -> Scope:
        """Return the scope within an operator that may cancel it."""
        scope = self.copy()
        scope.operators = (*self.operators, operator)
        return scope

    def shielded(self) -> Scope:
        """Return the same position, which no outer operator can cancel."""
        scope = self.copy()
        scope.operators = ()
        scope.limit = math.inf
        scope.is_shielded = True
        scope.acquisition = None
        return scope

    def observing(self) -> Scope:
        """Return the same position for an effect that only reacts to a failure."""
        scope = self.copy()
        scope.is_observing = True
        return scope

    def inside_step(self, flow: Flow, step: RunningStep | None) -> Scope:
        """Return the scope of the body of a step."""
        scope = self.copy()
        scope.flow = flow
        scope.step = step
        # A replay skips the whole step, so undos inside it would not be registered.
        scope.undos = None
        return scope

    def with_undos(self, undos: list[Any] | None) -> Scope:
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
        scope.flow = self.flow
        scope.clock = self.clock
        scope.operators = self.operators
        scope.is_shielded = self.is_shielded
        scope.is_observing = self.is_observing
        scope.limit = self.limit
        scope.step = self.step
        scope.sink = self.sink
        scope.observer = self.observer
        scope.finalizer_deadline = self.finalizer_deadline
        scope.context = self.context
        scope.is_planned = self.is_planned
        scope.acquisition = self.acquisition
        scope.undos = self.undos
        return scope


class Operator:
    """One run of an operator that may cancel the flows within it.

    It decides once, before the decision takes effect. A flow that is about to begin a step checks whether
    an operator around it has decided, and does not begin the step then. A cancellation alone would come
    too late if two flows wake up in the same iteration of the event loop.

    Attributes:
        branches: the flows within it, and their records.
        is_decided: whether it has decided, in this life or an earlier one.
        outer: the scope around it.
        inside: the scope within it.
        limit: the cancel scope of a limit, such as a deadline that passes without a call of `decide`.
        unfinished: the defect of a cancelled body that had not ended.
        suppressed: the errors of finalizers in the flows that it cancelled, in this life or an earlier
            one.
    """

    __slots__ = ("branches", "inside", "is_decided", "limit", "outer", "suppressed", "unfinished")

    def __init__(self, outer: Scope, branches: Branches) -> None:
        self.branches = branches
        self.is_decided = branches.decision is not None
        self.limit: anyio.CancelScope | None = None
        self.unfinished: Exception | None = None
        self.suppressed: list[Suppressed] = [*branches.suppressed()]
        self.outer = outer
        self.inside = outer.under(self)
        if branches.decision is not None:
            self.inside.limit = min(self.inside.limit, branches.decision.sequence)

    @staticmethod
    def begin(outer: Scope, name: str) -> Operator:
        """Return the next operator with this name in a flow."""
        return Operator(outer, outer.flow.branches(outer, name))

    @property
    def decision(self) -> Decision | None:
        """The decision of an earlier life, or None."""
        return self.branches.decision

    def branch(
        self, key: object, item: object = None, *, is_keyed: bool = True, has_decided: bool = False
    ) -> Scope:
        """Return the scope of one branch.

        `has_decided` means that the branch led to the recorded decision, which does not cancel it.
        """
        flow = self.branches.branch(key, item, is_keyed=is_keyed)
        if flow is PLAIN:
            return self.inside
        scope = self.inside.copy()
        scope.flow = flow
        if has_decided:
            scope.operators = self.outer.operators
        return scope

    def decide(self, value: object, *, failed: bool) -> None:
        """Decide, unless a decision exists. Call this before cancelling anything."""
        if self._may_decide():
            self._decide(value, failed=failed)

    def fail(self, ended: TypedFailure | Exception) -> None:
        """Decide that this failure or defect ends the operator, unless a decision exists."""
        if self._may_decide():
            self.is_decided = True
            self.branches.fail(ended)

    def has_expired(self) -> bool:
        """Return whether its limit cancels the branches, as after a deadline."""
        return self.limit is not None and self.limit.cancel_called

    def cancels(self) -> bool:
        """Return whether it cancels its branches: it has decided, or its limit does."""
        return self.is_decided or self.has_expired()

    def is_cancelled_within(self) -> bool:
        """Return whether a scope inside that of a context manager has cancelled the running task."""
        return False

    def expire(self) -> None:
        """Decide that the limit has cut off the branches, unless a decision exists."""
        if not self.is_decided:
            self._decide(True, failed=True)

    def traced(self, outcome: Any) -> Any:
        """Return the outcome of the operator, with the failed finalizers in the trail of a failure."""
        if not self.suppressed or outcome.__class__ is not TypedFailure:
            return outcome
        return outcome.after(*self.suppressed)

    def timed_out(self, seconds: float) -> TypedFailure:
        """Return the failure after a limit of this many seconds."""
        return self.traced(TypedFailure(TimedOut(seconds)))

    def _may_decide(self) -> bool:
        if not self.is_decided and is_cancelled_by_scope():
            # A branch ended in spite of a cancellation: record the cause of that first.
            self.outer.cause()
        return not self.is_decided

    def _decide(self, value: object, *, failed: bool) -> None:
        self.is_decided = True
        self.branches.decide(value, failed=failed)

    def end(self) -> None:
        """Record that all branches have ended, including their finalizers."""
        self.branches.end(is_complete=self.unfinished is None, suppressed=self.suppressed)


class Replayed(Operator):
    """An operator whose body may have ended in an earlier life.

    The body is replayed then, and cancelled once it is about to begin something that is not recorded.

    Attributes:
        cut: the cancel scope around the replay.
    """

    __slots__ = ("cut",)

    def __init__(self, outer: Scope, branches: Branches) -> None:
        super().__init__(outer, branches)
        self.cut = anyio.CancelScope()

    def cancels(self) -> bool:
        if self.is_decided:
            self.cut.cancel()
        return self.is_decided


def supervised(
    perform: Callable[[Any, Scope], Coroutine[Any, Any, Any]],
) -> Callable[[Any, Scope], Coroutine[Any, Any, Any]]:
    """Run an operator as supervised work of its flow; see `Flow.supervise`."""

    def perform_supervised(env: Any, scope: Scope) -> Coroutine[Any, Any, Any]:
        return scope.flow.supervise(partial(perform, env, scope))

    return perform_supervised
