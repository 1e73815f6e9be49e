"""Nested runs. The journal of the outer run records when they begin and how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import anyio

from effectflow.checkpoint.entries import ChildEnded
from effectflow.checkpoint.errors import (
    CheckpointError,
    CompensationFailed,
    RunCancelled,
    RunNotFound,
)
from effectflow.checkpoint.failures import write_end
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.paths import as_name
from effectflow.effects.trails import TypedFailure
from effectflow.workflows.child_runs import ChildRun, add_child_end, end_stands, replayed_end
from effectflow.workflows.driver import plan_run
from effectflow.workflows.lookup import Place


async def run_nested(
    place: Place,
    run_id: str | None,
    input_digest: str,
    drive: Callable[[Place, str], Awaitable[Any]],
    *,
    is_forced: bool = False,
) -> Any:
    """Return the outcome of a nested run, recorded or driven now.

    A CheckpointError of the nested run is not a failure of the body: it halts the outer run.

    Parameters:
        run_id: the id of the nested run; made from the outer run's id and the path if None.
        input_digest: tells whether the body reaches the same nested run again.
        drive: drives the nested run.
        is_forced: whether the nested run continues even where a plan of it has a problem.
    """
    flow = place.scope.flow
    assert isinstance(flow, DurableFlow)
    run = flow.run
    run.writer.check()
    path = flow.next_path(as_name(place.blueprint.definition.name))
    call = _NestedCall(place, flow, path, run_id, input_digest, drive, is_forced)
    return await run.stopping.supervised(call.outcome)


@dataclass(frozen=True, slots=True)
class _NestedCall:
    """The call of a nested run at a path of the outer run. The parameters are as in `run_nested`."""

    place: Place
    flow: DurableFlow
    path: str
    run_id: str | None
    input_digest: str
    drive: Callable[[Place, str], Awaitable[Any]]
    is_forced: bool

    async def outcome(self) -> Any:
        """Return the outcome of the nested run, recorded or driven now."""
        place, flow, path, digest = self.place, self.flow, self.path, self.input_digest
        run, scope, workflow = flow.run, place.scope, place.blueprint.definition.name
        child = ChildRun.reach(flow, scope, path, workflow, self.run_id, digest)
        recorded = child.recorded
        if recorded is not None and end_stands(recorded, scope):
            flow.ended_at = recorded.ended or flow.ended_at
            return replayed_end(run, place.blueprint, path, recorded)
        is_replay = recorded is not None and recorded.ended is None and scope.acquisition is None
        if not is_replay:
            await flow.check(scope, path)
        if isinstance(run, PlannedRun):
            if recorded is not None and not self.is_forced and scope.cancelling_operator() is None:
                await _check_can_continue(run, place, child.run_id)
            run.begin_child(path, is_begun=recorded is not None)
        may_be_replaced = flow.is_in_step and self.run_id is None
        # The replay of an interrupted nested run is part of the replay of this one, so it cannot be
        # cancelled before it reaches its finalizers.
        with run.stopping.gated() if is_replay else nullcontext() as gate:
            nested = _NestedRun(child, place, gate, may_be_replaced)
            outcome = await nested.drive(self.drive)
        if may_be_replaced and _is_cancelled(outcome, child.run_id):
            # An earlier attempt of the step cancelled it, and this attempt needs another run.
            run.recording.replace_child(path, child.run_id, digest)
            return await self.outcome()
        nested.record_end(outcome)
        return outcome


async def _check_can_continue(run: Run, place: Place, run_id: str) -> None:
    """Halt a plan with the problem that a resume would meet in a nested run."""
    try:
        plan = await plan_run(place, run_id, effects=not place.scope.is_planned)
        problem = plan.problem
    except RunNotFound:
        # The process died before it had created the run.
        return
    except CheckpointError as error:
        problem = error
    except Exception:
        # The body ends in a defect, and so does a resume of the nested run, which is not refused.
        return
    if problem is not None:
        raise run.writer.halt(problem)


def _is_cancelled(outcome: Any, run_id: str) -> bool:
    error = outcome.error if outcome.__class__ is TypedFailure else None
    return isinstance(error, RunCancelled) and error.run_id == run_id


@dataclass(frozen=True, slots=True)
class _NestedRun:
    """A nested run that is driven now. It is what `Around` describes.

    Attributes:
        gate: the scope that shields its replay; None if nothing does.
        may_be_replaced: whether the next attempt of the step around it begins another run if this one is
            cancelled.
    """

    child: ChildRun
    place: Place
    gate: anyio.CancelScope | None
    may_be_replaced: bool

    @property
    def run(self) -> Run:
        """The outer run."""
        return self.child.flow.run

    @property
    def is_shielded(self) -> bool:
        return self.place.scope.is_shielded or self.run.is_shielded

    @property
    def is_in_step(self) -> bool:
        return self.child.flow.is_in_step

    @property
    def is_pinned(self) -> bool:
        return self.child.flow.is_pinned

    async def begin_cancellation(self) -> None:
        await self.run.cancel_if_decided()
        if not self.may_be_replaced:
            await self.child.begin()

    def open_gate(self) -> None:
        if self.gate is not None:
            self.gate.shield = False

    async def drive(self, drive: Callable[[Place, str], Awaitable[Any]]) -> Any:
        """Record that it begins, and return its outcome. Raise its defect."""
        child = self.child
        await self.run.cancel_if_decided()
        await child.begin()
        try:
            return await drive(replace(self.place, around=self), child.run_id)
        except RunCancelled as cancelled:
            # An operator that has decided ends this flow here, as it ended the nested run.
            self.open_gate()
            await child.flow.check(self.place.scope, child.path)
            return TypedFailure(cancelled)
        except CheckpointError as error:
            raise self.run.writer.halt(error) from error
        except Exception as defect:
            self._fail(defect)
            raise

    def record_end(self, outcome: Any) -> None:
        """Record how it ended. A CheckpointError halts the outer run."""
        if outcome.__class__ is not TypedFailure:
            self._complete(outcome)
        elif isinstance(outcome.error, CompensationFailed):
            raise self.run.stopping.give_up(outcome.error)
        elif isinstance(outcome.error, CheckpointError):
            raise self.run.writer.halt(outcome.error) from outcome.error
        else:
            self._fail(outcome)

    def _complete(self, output: Any) -> None:
        run, path, blueprint = self.run, self.child.path, self.place.blueprint
        tree = run.encode(output, path, blueprint.output_types, blueprint.output_type)
        run.writer.completed_since_save += 1
        ended = ChildEnded(path, RunStatus.COMPLETED, run.now(), tree)
        self.child.flow.ended_at = add_child_end(self.child.flow, ended)

    def _fail(self, ended: TypedFailure | Exception) -> None:
        run, path, flow = self.run, self.child.path, self.child.flow
        types = self.place.blueprint.output_types
        record = write_end(ended, types)
        error = ended.error if isinstance(ended, TypedFailure) else ended
        sequence = add_child_end(flow, ChildEnded(path, RunStatus.FAILED, run.now(), None, record))
        flow.last_failure = (error, sequence)
        # A defect that cannot be rebuilt comes back as a RecordedDefect.
        if not record.is_defect:
            run.failures.check_readable(sequence, error, record, types, path)
