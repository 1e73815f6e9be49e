"""Sagas: work that is undone, last first, unless all of it succeeds.

A saga is an operator with two branches: its body, and the work that undoes what the body did. It decides
when the body fails. If an operator around it cancels the body, the decision of that one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from effectflow.effects import nodes
from effectflow.effects.arguments import (
    call_of,
    check_effects,
    check_function,
    misfit_of,
    not_an_effect,
)
from effectflow.effects.effect import Effect
from effectflow.effects.errors import LeftToResume
from effectflow.effects.event_loop import is_cancellation, raise_stop
from effectflow.effects.interpreter import (
    acquire,
    add_suppressed,
    interpret,
    interpret_branch,
    show_suppressed,
)
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Operator, Replayed, Scope
from effectflow.effects.trails import Suppressed, TypedFailure

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")

_UNDO = "undo"
"""The key of the branch that undoes."""


def compensate(
    effect: Effect[Env, E, A], undo: Callable[[A], Effect[Env, object, object]]
) -> Effect[Env, E, A]:
    """Run an effect. If it succeeds, the saga around it can later undo it with `undo(value)`.

    The innermost `saga` around it remembers the undo, also if parallel operators are in between. Outside
    a saga, it ends in a TypeError.

    The effect is shielded from cancellation, like the acquisition of a `bracket`: what has happened is
    always known to the saga. Give an effect that may hang its own timeout.

    In a durable run, both the effect and the undo should be steps. A saga does not know what happened
    inside a step: put `compensate` around the step.

    Parameters:
        effect: what may have to be undone.
        undo: creates the effect that undoes it from the value of the effect. Raises TypeError if it does
            not take exactly one argument.

    Example:
        >>> from effectflow import compensate, fail, from_fn, pure, saga
        >>> log = []
        >>> def cancel(booking):
        ...     return from_fn(lambda _: log.append(f"cancel {booking}"))
        >>> booked = compensate(pure("hotel"), cancel)
        >>> saga(booked.and_then(lambda _: fail("no flight"))).run_sync(None), log
        (<Failure: no flight>, ['cancel hotel'])
    """
    check_effects("compensate", effect)
    check_function(undo, "the undo of compensate")
    # Now, because it is too late once there is something to undo.
    misfit = misfit_of(undo, (None,), {})
    if misfit is not None:
        raise TypeError(
            f"compensate calls the undo with the value of its effect, and {call_of(undo)} rejects that: "
            f"{misfit}. Pass a function of one value, such as `lambda value: {call_of(undo)}`"
        )

    async def perform(env: Any, scope: Scope) -> Any:
        undos = scope.undos
        if undos is None:
            where = " inside a step" if scope.step is not None else ""
            raise TypeError(
                f"{made!r} is run{where} without a saga around it that could undo it: put saga(...) "
                "around the work that must happen completely or not at all"
            )
        await anyio.lowlevel.checkpoint_if_cancelled()
        flow = scope.flow
        value, cancelled = await acquire(effect, env, scope, flow.protect)
        if value.__class__ is not TypedFailure:
            undos.append(Undo(flow.ended_at, undo, value, env))
        if cancelled is not None:
            raise cancelled
        await anyio.lowlevel.checkpoint_if_cancelled()
        return value

    made = nodes.Perform(perform, ("compensate", effect, undo))
    return made


def saga(effect: Effect[Env, E, A]) -> Effect[Env, E, A]:
    """Run an effect, and undo what `compensate` did within it if it fails or is cancelled.

    The undos run one after another, the last one first, shielded from cancellation. Then the saga ends as
    the effect did. If the effect succeeds, nothing is undone; if the saga is within another one, that one
    undoes its work from then on. Of parallel branches, what ended last is undone first.

    In a durable run, a resume finishes the undos. Once one of them has begun a step, the failure of the
    effect stands. If the run is only stopped from outside, nothing is undone: its resume continues. If an
    undo fails, after the retries of its step, the run ends as failed with `CompensationFailed`, which no
    handler of the body sees; a resume tries that undo again, and continues with the rest.

    Outside of durable runs, the other undos run if one fails. Its error is in the trail and notes of the
    failure, as the failure of a `bracket` release is.

    Example:
        >>> from effectflow import compensate, from_fn, pure, saga
        >>> saga(compensate(pure(1), lambda _: from_fn(print))).run_sync(None)
        <Success: 1>
    """
    check_effects("saga", effect)

    async def perform(env: Any, scope: Scope) -> Any:
        operator = Replayed(scope, scope.flow.branches(scope, "saga"))
        try:
            return await _Saga(operator, effect).run(env)
        finally:
            # A resume replays the body to register the undos, so its branches never end for good.
            operator.branches.end(is_complete=False, suppressed=())

    return nodes.Perform(perform, ("saga", effect))


@dataclass(slots=True)
class Undo:
    """What undoes one effect.

    Attributes:
        ended_at: the position in the journal of the end of the effect; 0 outside of durable runs.
        f: creates the effect that undoes it.
        value: the value of the effect.
        env: the environment of both.
    """

    ended_at: int
    f: Callable[[Any], AnyEffect]
    value: Any
    env: Any
    _made: AnyEffect | None = None
    _problem: Exception | None = None

    def effect(self) -> AnyEffect:
        """Return the effect that undoes it, the same each time. Raise what making it raised.

        It is made once, because a function that returns no effect may have acted already.
        """
        if self._problem is not None:
            raise self._problem
        if self._made is None:
            try:
                made: Any = self.f(self.value)
                if not isinstance(made, Effect):
                    raise TypeError(
                        f"the undo of compensate returns an effect: {not_an_effect(made)}"
                    )
            except Exception as problem:
                self._problem = problem
                raise
            self._made = made
        return self._made

    @property
    def name(self) -> str:
        """The name of the undo in messages."""
        try:
            effect = self.effect()
        except Exception:
            # Making the undo may be what failed.
            effect = None
        made = self.f if effect is None else effect
        what = made.definition.name if isinstance(made, nodes.Step) else nodes.shortened(made)
        return f"{what} of {nodes.shortened(self.value)}"


class _Saga:
    """One run of a saga."""

    def __init__(self, operator: Replayed, body: AnyEffect) -> None:
        self.operator = operator
        self.outer = operator.outer
        self.body = body
        self.undos: list[Undo] = []

    async def run(self, env: Any) -> Any:
        """Return or raise how the body ends, once it is undone if it does not succeed."""
        outcome: Any = None
        raised: BaseException | None = None
        try:
            outcome = await self._run_body(env)
        except BaseException as ended:
            raised = ended
        try:
            if raised is None and outcome.__class__ is not TypedFailure:
                if self.outer.undos is not None:
                    self.outer.undos += self._in_order()
                return outcome
            is_cancelled = raised is not None and is_cancellation(raised)
            # A changed body may no longer register what an earlier life has begun to undo.
            has_undos = self.undos or self.operator.branches.has_records(_UNDO)
            if has_undos and (is_cancelled or raised is None or isinstance(raised, Exception)):
                return await self._undo_after(outcome, raised, env)
            if raised is not None:
                raise raised
            return outcome
        finally:
            # Its traceback keeps this frame.
            del raised

    async def _run_body(self, env: Any) -> Any:
        """Return the outcome of the body, or raise its defect or cancellation."""
        operator = self.operator
        inside = operator.branch(None).with_undos(self.undos)
        outcome: Any = None
        if operator.decision is None:
            outcome = await interpret_branch(self.body, env, inside)
            if operator.branches.has_records(_UNDO) and self.outer.cancelling_operator():
                # An earlier life was cancelled after the last step, before the body could end.
                await anyio.sleep_forever()
            return outcome
        # An earlier life has decided that the body failed. It is replayed to register its undos.
        try:
            with operator.cut:
                outcome = await interpret_branch(self.body, env, inside)
        except Exception as raised:
            outcome = raised
        outcome = operator.branches.recorded_failure(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _undo_after(self, outcome: Any, raised: BaseException | None, env: Any) -> Any:
        """Undo the body, and return or raise how it ended."""
        outer, operator = self.outer, self.operator
        failure = outcome if raised is None else raised
        cause = None if isinstance(failure, TypedFailure | Exception) else outer.cause()
        if outer.flow.is_stopping:
            return await self._leave_to_resume(raised)
        if isinstance(failure, TypedFailure | Exception):
            operator.fail(failure)
        else:
            # A step that failed after the cancellation has no undo. A resume must not repeat it now.
            operator.branches.keep_failures()
        inside = self.outer.shielded().with_undos(None)
        inside.flow = operator.branches.branch(_UNDO, None, is_keyed=True)
        inside.is_observing = True
        work = interpret_branch(nodes.Perform(self._undo), env, inside)
        try:
            failures, cancelled = await outer.flow.finalize(work)
        except LeftToResume:
            return await self._leave_to_resume(raised)
        return _end(outcome, raised, failures or (), cancelled, outer, cause)

    async def _leave_to_resume(self, raised: BaseException | None) -> Any:
        """End with the cancellation of a run that is being stopped from outside."""
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        if self.outer.is_out_of_reach:
            raise LeftToResume(repr(self.body))
        await raise_stop()

    async def _undo(self, _env: Any, scope: Scope) -> Sequence[Suppressed]:
        """Run the registered undos, the last one first. Outside durable runs, return their failures."""
        failures: list[Suppressed] = []
        left = self._in_order()
        while left:
            undo = left[-1]
            failed = await _failure_of(undo, scope)
            if failed is not None:
                scope.flow.compensation_failed(
                    failed.error, lambda: [one.name for one in left[::-1]]
                )
                failures.append(failed)
            left.pop()
        return failures

    def _in_order(self) -> list[Undo]:
        # Parallel branches may replay in another order than that in which they ended.
        return sorted(self.undos, key=lambda undo: undo.ended_at)


async def _failure_of(undo: Undo, scope: Scope) -> Suppressed | None:
    """Run an undo. Return its failure, if it fails."""
    try:
        outcome = await interpret(undo.effect(), undo.env, scope)
    except Exception as defect:
        return Suppressed(defect, is_defect=True)
    if outcome.__class__ is TypedFailure:
        return Suppressed(outcome.error, is_defect=False)
    return None


def _end(
    outcome: Any,
    raised: BaseException | None,
    failures: Sequence[Suppressed],
    cancelled: BaseException | None,
    outer: Scope,
    cause: Operator | None,
) -> Any:
    """Return or raise how a body ended, with the failures of its undos.

    Parameters:
        cancelled: the cancellation that arrived during the undos.
        cause: the operator that cancelled the body.
    """
    is_interrupted = raised is not None and not isinstance(raised, Exception)
    is_dropped = cancelled is not None or (not is_interrupted and outer.is_cancelled())
    ended = outcome if raised is None else raised
    for failed in failures:
        if is_dropped:
            show_suppressed(failed, outer.cancelling_operator())
        else:
            ended = add_suppressed("an undo", failed, ended, cause)
    if cancelled is not None and not is_interrupted:
        raise cancelled
    if raised is not None:
        raise raised
    return ended
