"""The common part of operators that cancel flows, and the simplest one: timeouts.

An operator decides once, before the decision takes effect. A flow that is about to begin a step checks
whether an operator around it has decided, and does not begin the step then. A cancellation alone would
come too late if two flows wake up in the same iteration of the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, Self

import anyio

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import LeftToResume, Parked, Suppressed, TimedOut, add_note
from effectflow.effects.event_loop import (
    Waiter,
    cancel_natively,
    has_been_cancelled_natively,
    in_context,
    is_cancellation,
    is_cancelled_by_scope,
    mark_as_cancelled,
    new_waiter,
    raise_pending_cancellation,
    stray_cancellation,
    wake,
)
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import PLAIN, Branches, Decision, Scope


class Operator:
    """One run of an operator that may cancel the flows within it.

    Attributes:
        branches: the flows within it, and their records.
        is_decided: whether it has decided, in this life or an earlier one.
        outer: the scope around it.
        inside: the scope within it.
        limit: the cancel scope of a timeout, whose deadline may pass without a call of `decide`.
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

    async def run_branch(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> Any:
        """Return the outcome of a branch, run in the `scope` that `branch` returned."""
        if scope.flow is PLAIN:
            return await interpret(effect, env, scope)
        return await scope.flow.run_branch(scope, partial(interpret, effect, env, scope))

    async def run_cancelled(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> None:
        """Complete the finalizers of a branch that an earlier life cancelled.

        The branch replays the entries before the decision and is cancelled then. In a plan, it ends at
        the step of a finalizer that a resume begins.
        """
        # Shielded, or the cancellation of an outer operator would skip the branches that follow this one.
        with anyio.CancelScope(shield=True) as cancelled:
            cancelled.cancel()
            try:
                await self.run_branch(effect, env, scope)
            except Parked as parked:
                if parked.reason is None:
                    raise

    def decide(self, value: object, *, failed: bool) -> None:
        """Decide, unless a decision exists. Call this before cancelling anything."""
        if self._may_decide():
            self._decide(value, failed=failed)

    def fail(self, ended: nodes.Failed | Exception) -> None:
        """Decide that this failure or defect ends the operator, unless a decision exists."""
        if self._may_decide():
            self.is_decided = True
            self.branches.fail(ended)

    def has_expired(self) -> bool:
        """Return whether the deadline has passed and cancels the branches."""
        return self.limit is not None and self.limit.cancel_called

    def cancels(self) -> bool:
        """Return whether it cancels its branches: it has decided, or its deadline has passed."""
        return self.is_decided or self.has_expired()

    def is_cancelled_within(self) -> bool:
        """Return whether a scope inside that of a context manager has cancelled the running task."""
        return False

    def expire(self) -> None:
        """Decide that the deadline has passed, unless a decision exists."""
        if not self.is_decided:
            self._decide(True, failed=True)

    def traced(self, outcome: Any) -> Any:
        """Return the outcome of the operator, with the failed finalizers in the trail of a failure."""
        if not self.suppressed or outcome.__class__ is not nodes.Failed:
            return outcome
        return outcome.after(*self.suppressed)

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


class Children:
    """A task group that never loses the end of a child.

    An anyio task group ends silently when asyncio itself cancels one of its tasks, and wraps exceptions
    of tasks in a group. This class keeps the end of each child.

    Attributes:
        defects: the exceptions of children, in order of time. Code that adds one cancels the others.
        parked: why the children of a plan ended.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        """Create a group without children. `stop` is called if asyncio itself cancels its task."""
        self._stop = stop
        self._running = 0
        self._has_ended: Waiter | None = None
        self.defects: list[BaseException] = []
        self.parked: list[Parked] = []
        self._was_cancelled_natively = False
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *raised_inside: Any) -> bool | None:
        if raised_inside[0] is None and self._running:
            self._has_ended = new_waiter()
            try:
                await self._has_ended
            except BaseException as raised:
                if is_cancellation(raised) and has_been_cancelled_natively():
                    # The task group cancels the children, and does not say why.
                    self._stop()
                raised_inside = type(raised), raised, raised.__traceback__
        try:
            return await self._tasks.__aexit__(*raised_inside)
        except BaseException as raised:
            if is_cancellation(raised):
                # Nested task groups of anyio 4.16 uncancel the host too often after a native
                # cancellation. It then looks as if nothing had cancelled the task.
                mark_as_cancelled(raised)
            raise
        finally:
            # Its traceback keeps this frame.
            del raised_inside

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a child. `run` handles defects itself."""
        self._running += 1
        self._tasks.start_soon(self._watched, run, *arguments)

    def cancel(self) -> None:
        """Cancel all children. A child that has not begun must check whether it still has work to do."""
        self._tasks.cancel_scope.cancel()

    async def raise_bad_end(self, operator: Operator) -> None:
        """Raise the first defect, with the others as notes, or what parked a child. Call it last."""
        if self.defects:
            first, *others = self.defects
            for line in operator.suppressed:
                add_note(first, str(line))
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

    async def _watched(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        try:
            await run(*arguments)
            await raise_pending_cancellation()
        except Parked as parked:
            self.parked.append(parked)
        except BaseException as ended:
            defect = stray_cancellation(ended) or ended
            if not is_cancellation(defect):
                # SystemExit or KeyboardInterrupt: raised as itself, not in a group.
                self.defects.append(defect)
                self.cancel()
                return
            if has_been_cancelled_natively():
                self._was_cancelled_natively = True
            raise
        finally:
            self._running -= 1
            if self._has_ended is not None and not self._running:
                wake(self._has_ended)


class ImmediateChildren(Children):
    """Runs children that never wait one after another, in the task of their operator.

    So a parallel operator of immediate effects is immediate itself.
    """

    def __init__(self) -> None:
        self._running = 0
        self._has_ended = None
        self.defects = []
        self.parked = []
        self._was_cancelled_natively = False
        self._started: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...]]] = []
        self._is_cancelled = False

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self

    async def __aexit__(self, *raised_inside: Any) -> None:
        if raised_inside[0] is not None:
            return
        for run, arguments in self._started:
            if self._is_cancelled:
                return
            # With its own context variables, like a task.
            await in_context(copy_context(), self._watched(run, *arguments))

    def start(self, run: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        self._running += 1
        self._started.append((run, arguments))

    def cancel(self) -> None:
        self._is_cancelled = True


def supervised(
    perform: Callable[[Any, Scope], Coroutine[Any, Any, Any]],
) -> Callable[[Any, Scope], Coroutine[Any, Any, Any]]:
    """Run an operator as supervised work of its flow; see `Flow.supervise`."""

    def perform_supervised(env: Any, scope: Scope) -> Coroutine[Any, Any, Any]:
        return scope.flow.supervise(partial(perform, env, scope))

    return perform_supervised


def timeout(source: Effect[Any, Any, Any], seconds: float) -> Effect[Any, Any, Any]:
    """Cancel an effect after a number of seconds; see `Effect.timeout`."""
    if not seconds >= 0:
        raise ValueError(f"a timeout must be 0 seconds or more, not {seconds}")

    @supervised
    async def perform(env: Any, scope: Scope) -> Any:
        operator = Operator.begin(scope, "timeout")
        inside = operator.branch(None)
        decided = operator.decision is not None
        left = 0.0 if decided else operator.branches.deadline(seconds)
        return await run_limited(operator, source, env, inside, seconds, left)

    return nodes.Perform(perform, (".timeout", source, seconds))


async def run_limited(
    operator: Operator,
    source: Effect[Any, Any, Any],
    env: Any,
    inside: Scope,
    seconds: float,
    left: float | None,
) -> Any:
    """Return the outcome of an effect, or TimedOut if a limit cuts it off, or did in an earlier life.

    Parameters:
        operator: decides about the limit.
        inside: the scope of the effect.
        seconds: the whole time that the effect may take.
        left: the seconds that are left; None if the limit no longer applies.
    """
    scope, decision = operator.outer, operator.decision
    try:
        if decision is not None:
            if not decision.has_ended:
                await operator.run_cancelled(source, env, inside)
        elif left is None:
            return await operator.run_branch(source, env, inside)
        else:
            with scope.clock.move_on_after(left) as operator.limit:
                outcome = await operator.run_branch(source, env, inside)
                # What comes after the decision is discarded.
                if not operator.is_decided:
                    return outcome
            if scope.flow.is_stopping:
                # The run is also being stopped, which the expired limit hides.
                if scope.is_out_of_reach:
                    # The cancelled task is not this one, but the one that waits for its finalizer.
                    raise LeftToResume(f"{source!r}")
                await anyio.lowlevel.checkpoint_if_cancelled()
                await cancel_natively()
            operator.expire()
    finally:
        operator.end()
    return operator.traced(nodes.Failed(TimedOut(seconds)))
