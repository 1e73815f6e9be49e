"""Sagas: work that is undone, last first, unless all of it succeeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, TypeVar

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
    show_suppressed,
)
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.paths import ACQUISITION
from effectflow.effects.scope import Operator, Scope, Undos
from effectflow.effects.trails import Suppressed, TypedFailure

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


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
        >>> from effectflow import compensate, fail, pure, saga
        >>> from effectflow.effects import from_fn
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
        await scope.fiber.check(scope, has_begun=True)
        scope.fiber.next_path(ACQUISITION)
        # A resume continues the effect, and its undo, so a stop of the run may cut it off.
        acquisition = partial(acquire, effect, env, scope, is_kept=False)
        value, cancelled = await scope.fiber.supervise(acquisition)
        if value.__class__ is not TypedFailure:
            undos.append(Undo(undo, value, env))
        if cancelled is not None:
            raise cancelled
        await anyio.lowlevel.checkpoint_if_cancelled()
        await scope.fiber.check(scope, has_begun=True)
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
        >>> from effectflow import compensate, pure, saga
        >>> from effectflow.effects import from_fn
        >>> saga(compensate(pure(1), lambda _: from_fn(print))).run_sync(None)
        <Success: 1>
    """
    check_effects("saga", effect)

    async def perform(env: Any, scope: Scope) -> object:
        return await _Saga(scope, effect).run(env)

    return nodes.Perform(perform, ("saga", effect))


@dataclass(slots=True)
class Undo:
    """What undoes one effect.

    Attributes:
        f: creates the effect that undoes it.
        value: the value of the effect.
        env: the environment of both.
    """

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

    @property
    def planned_name(self) -> str:
        """The name before the undo is made, which may act."""
        return f"{nodes.shortened(self.f)} of {nodes.shortened(self.value)}"


class _Saga:
    """One run of a saga."""

    def __init__(self, outer: Scope, body: AnyEffect) -> None:
        self.outer = outer
        self.body = body
        self.undos = Undos(outer.undos)

    async def run(self, env: Any) -> object:
        """Return or raise how the body ends, once it is undone if it does not succeed."""
        outcome: object = None
        raised: BaseException | None = None
        try:
            outcome = await interpret(self.body, env, self.outer.with_undos(self.undos))
        except BaseException as ended:
            raised = ended
        try:
            if raised is None and outcome.__class__ is not TypedFailure:
                if self.outer.undos is not None:
                    self.outer.undos += self.undos
                return outcome
            is_cancelled = raised is not None and is_cancellation(raised)
            if self.undos and (is_cancelled or raised is None or isinstance(raised, Exception)):
                return await self._undo_after(outcome, raised)
            if raised is not None:
                raise raised
            return outcome
        finally:
            # Its traceback keeps this frame.
            del raised

    async def _undo_after(self, outcome: object, raised: BaseException | None) -> object:
        """Undo the body, and return or raise how it ended."""
        outer = self.outer
        is_cancelled = raised is not None and not isinstance(raised, Exception)
        cause = outer.cause() if is_cancelled else None
        if outer.fiber.is_stopping:
            await self._leave_to_resume(raised)
        outer.fiber.unwinds(cause)
        undoing = partial(self._shielded_undo, outer.shielded().with_undos(None))
        try:
            failures, cancelled = await outer.fiber.supervise(undoing)
        except LeftToResume:
            await self._leave_to_resume(raised)
        return _end(outcome, raised, failures, cancelled, outer, cause)

    async def _shielded_undo(
        self, scope: Scope
    ) -> tuple[Sequence[Suppressed], BaseException | None]:
        return await scope.fiber.shield(self._undo(scope))

    async def _leave_to_resume(self, raised: BaseException | None) -> Never:
        """End with the cancellation of a run that is being stopped from outside."""
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        if self.outer.is_shielded:
            raise LeftToResume(repr(self.body))
        await raise_stop()

    async def _undo(self, scope: Scope) -> Sequence[Suppressed]:
        """Run the registered undos, the last one first. Outside durable runs, return their failures."""
        failures: list[Suppressed] = []
        left = [*self.undos]
        while left:
            failed = await _failure_of(left[-1], scope)
            if failed is not None:
                scope.fiber.undo_failed(failed.error, lambda: [one.name for one in left[::-1]])
                failures.append(failed)
            left.pop()
        return failures


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
    outcome: object,
    raised: BaseException | None,
    failures: Sequence[Suppressed],
    cancelled: BaseException | None,
    outer: Scope,
    cause: Operator | None,
) -> object:
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
