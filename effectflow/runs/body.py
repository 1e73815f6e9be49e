"""Run the body of a run, from its beginning or by a replay."""

from __future__ import annotations

from contextlib import nullcontext

import anyio

from effectflow.checkpoint.current_life import life_of
from effectflow.checkpoint.endings import Cancelled, Ending, Raised, ending_of
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.suspension import attended
from effectflow.effects.errors import LeftToResume
from effectflow.effects.event_loop import is_cancellation, mark_as_cancelled, raise_stop
from effectflow.effects.interpreter import interpret, raise_hidden_stop
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import TypedFailure, log_hidden
from effectflow.runs.stored_run import Place


async def run_body(
    place: Place,
    run: Run,
    input: object,
    *,
    is_new: bool,
    opens: bool,
    suspend_after: float | None,
) -> Ending:
    """Run the body in the cancel scope of the run, and return how it ended.

    That is `Raised` for a cancellation by this scope. A cancellation from outside is raised.

    Parameters:
        is_new: whether there is nothing to replay, and no message.
        opens: whether the first entry of this life is saved before the body runs.
        suspend_after: as in `Service`, for a run that a worker attends to; otherwise None.
    """
    raised: BaseException | None = None
    with run.stopping.flows, life_of(run.turns):
        run.writer.on_halt = run.end_fibers
        try:
            if opens:
                run.writer.open()
                await run.writer.save()
            body = place.blueprint.body(input)
            if is_new:
                return ending_of(await interpret(body, place.env, _scope_of(run, place.scope)))

            async def replayed() -> Ending:
                async with nullcontext() if suspend_after is None else attended(run, suspend_after):
                    return await replay_body(place, run, body)

            return await run.stopping.supervised(replayed)
        except LeftToResume as left:
            # The run is being stopped.
            raised = left
            await raise_stop()
        except BaseException as error:
            raised = error
            if is_cancellation(error):
                # The scope may uncancel the task, and then the cancellation would look stray.
                mark_as_cancelled(error)
                raise
    assert raised is not None
    return Raised(raised)


async def replay_body(place: Place, run: Run, body: AnyEffect) -> Ending:
    """Run a body that an earlier life may have begun, or that a message may cancel."""
    scope = _scope_of(run, place.scope)
    operator = run.requests.cancellation = Operator(scope, "")
    cut = operator.cut = anyio.CancelScope()
    await run.requests.look()
    run.turns.replay.take_cancellation()
    with cut:
        try:
            outcome = await interpret(body, place.env, operator.inside)
        except Exception as defect:
            run.turns.replay.take_cancellation()
            run.requests.cancel_failed()
            run.requests.end()
            if not operator.is_decided:
                raise
            log_hidden(defect, "the body of a run failed after the run was cancelled")
        else:
            run.turns.replay.take_cancellation()
            if outcome.__class__ is TypedFailure:
                run.requests.cancel_failed()
            run.requests.end()
            # What comes after the cancellation is discarded.
            if not operator.is_decided:
                return ending_of(outcome)
    if run.turns.is_over:
        await raise_hidden_stop(body, scope)
    if operator.unfinished is not None:
        raise operator.unfinished
    return Cancelled()


def _scope_of(run: Run, scope: Scope) -> Scope:
    """Return the scope of the body of a run."""
    inside = scope.copy()
    inside.fiber = run.root
    inside.operators = ()
    inside.step = None
    inside.context = run.context
    inside.is_shielded = False
    inside.undos = None
    return inside
