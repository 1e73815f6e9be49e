"""Nested runs. The journal of the outer run records when they begin and how they end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio

from effectflow.checkpoint.entries import ChildEnded, ChildStarted
from effectflow.checkpoint.errors import (
    CheckpointError,
    CompensationFailed,
    RunCancelled,
    RunNotFound,
    StepInputChanged,
)
from effectflow.checkpoint.failures import write_end
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.recording import RecordedChild
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import RunStatus
from effectflow.effects.paths import as_name
from effectflow.effects.scope import Scope
from effectflow.effects.trails import Failed
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
    work = partial(_run_at, place, flow, path, run_id, input_digest, drive, is_forced=is_forced)
    return await run.stopping.supervised(work)


async def _run_at(
    place: Place,
    flow: DurableFlow,
    path: str,
    run_id: str | None,
    input_digest: str,
    drive: Callable[[Place, str], Awaitable[Any]],
    *,
    is_forced: bool,
) -> Any:
    """Return the outcome of the nested run at a path; see `run_nested`."""
    run, scope = flow.run, place.scope
    child_id = derived_id(flow, path, input_digest) if run_id is None else run_id
    recorded = run.recording.children.get(path) if flow.reach(path, scope) else None
    if recorded is not None:
        check_same(run, path, recorded, child_id, input_digest)
        if end_stands(recorded, scope):
            flow.ended_at = recorded.ended or flow.ended_at
            return replayed_end(run, place, path, recorded)
    is_interrupted = recorded is not None and recorded.ended is None and scope.acquisition is None
    if not is_interrupted:
        await flow.check(scope, path)
    if isinstance(run, PlannedRun):
        if recorded is not None and not is_forced and scope.cancelling_operator() is None:
            await _check_can_continue(run, place, child_id)
        run.begin_child(path, is_begun=recorded is not None)
    # The replay of an interrupted nested run is part of the replay of this one, so it cannot be
    # cancelled before it reaches its finalizers.
    with run.stopping.gated() if is_interrupted else nullcontext() as gate:
        child = _Child(
            flow, place, path, child_id, input_digest, gate, has_own_id=run_id is not None
        )
        await child.begin()
        try:
            outcome = await drive(replace(place, around=child), child_id)
        except RunCancelled as cancelled:
            # An operator that has decided ends this flow here, as it ended the nested run.
            child.open_gate()
            await flow.check(scope, path)
            outcome = Failed(cancelled)
        except CheckpointError as error:
            raise run.writer.halt(error) from error
        except Exception as defect:
            child.fail(defect)
            raise
    if outcome.__class__ is not Failed:
        child.complete(outcome)
    elif isinstance(outcome.error, CompensationFailed):
        raise run.stopping.give_up(outcome.error)
    elif child.may_be_replaced and _is_cancelled(outcome.error, child_id):
        # An earlier attempt of the step cancelled it, and this attempt needs another run.
        run.recording.replace_child(path, child_id, input_digest)
        again = _run_at(place, flow, path, run_id, input_digest, drive, is_forced=is_forced)
        return await again
    elif isinstance(outcome.error, CheckpointError):
        raise run.writer.halt(outcome.error) from outcome.error
    else:
        child.fail(outcome)
    return outcome


async def _check_can_continue(run: Run, place: Place, run_id: str) -> None:
    """Halt a plan with the problem that a resume would meet in a nested run."""
    # Imported late, because the driver imports this module.
    from effectflow.workflows.driver import plan_run

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


def _is_cancelled(error: object, run_id: str) -> bool:
    return isinstance(error, RunCancelled) and error.run_id == run_id


def derived_id(flow: DurableFlow, path: str, input_digest: str) -> str:
    """Return the id of a run within this one for which its caller chose none.

    Once dead letters were retried or dropped, or a retry policy has begun the step around it anew, the
    run may have another input, and is another run then. So is one that replaces a cancelled run.
    """
    known = flow.run.recording
    recorded = known.children.get(path)
    if recorded is not None and recorded.input == input_digest:
        return recorded.run_id
    former = known.former_children.get(path, {})
    for child in former.values():
        # Between steps, an interrupted run may have been cancelled, and then it cannot continue. In a
        # step, another one replaces it once that is known.
        may_continue = flow.is_in_step and child.status is not RunStatus.CANCELLED
        stands = may_continue or child.is_spawned or child.ended is not None
        if child.input == input_digest and stands:
            return child.run_id
    made = f"{flow.run.run_id}/{path}"
    return f"{made} after retry {len(former)}" if former else made


@dataclass(frozen=True)
class _Child:
    """A nested run, as the outer run records it. `has_own_id` if the caller chose the id."""

    flow: DurableFlow
    place: Place
    path: str
    run_id: str
    input_digest: str
    gate: anyio.CancelScope | None
    has_own_id: bool

    @property
    def run(self) -> Run:
        """The outer run."""
        return self.flow.run

    @property
    def is_shielded(self) -> bool:
        return self.place.scope.is_shielded or self.run.is_shielded

    @property
    def is_pinned(self) -> bool:
        return self.flow.is_pinned

    async def begin(self) -> None:
        """Record durably that it starts or continues."""
        run = self.run
        await run.cancel_if_decided()
        workflow = self.place.blueprint.definition.name
        begun = record_start(self.flow, self.path, self.run_id, workflow, self.input_digest)
        if self.is_in_step:
            # The next attempt continues it or, with another input, begins another one.
            former = RecordedChild(begun, self.run_id, self.input_digest)
            run.recording.add_former_child(self.path, former)
        await run.writer.save()

    async def begin_cancellation(self) -> None:
        if self.may_be_replaced:
            await self.run.cancel_if_decided()
        else:
            await self.begin()

    @property
    def is_in_step(self) -> bool:
        return self.flow.is_in_step

    @property
    def may_be_replaced(self) -> bool:
        """Whether the next attempt of the step around it begins another run if this one is cancelled."""
        return self.is_in_step and not self.has_own_id

    def open_gate(self) -> None:
        if self.gate is not None:
            self.gate.shield = False

    def complete(self, output: Any) -> None:
        run = self.run
        blueprint = self.place.blueprint
        tree = run.encode(output, self.path, blueprint.output_types, blueprint.output_type)
        run.writer.completed_since_save += 1
        ended = ChildEnded(self.path, RunStatus.COMPLETED, run.now(), tree)
        self.flow.ended_at = record_end(self.flow, ended)

    def fail(self, ended: Failed | Exception) -> None:
        types = self.place.blueprint.output_types
        record = write_end(ended, types)
        error = ended.error if isinstance(ended, Failed) else ended
        entry = ChildEnded(self.path, RunStatus.FAILED, self.run.now(), None, record)
        sequence = record_end(self.flow, entry)
        self.flow.last_failure = (error, sequence)
        # A defect that cannot be rebuilt comes back as a RecordedDefect.
        if not record.is_defect:
            self.run.failures.check_readable(sequence, error, record, types, self.path)


def record_start(
    flow: DurableFlow,
    path: str,
    run_id: str,
    workflow: str,
    input_digest: str,
    *,
    is_spawned: bool = False,
    is_detached: bool = False,
) -> int:
    """Add the entry that a run within this one starts. Return its sequence number."""
    run = flow.run
    flow.record_from_here()
    return run.writer.add(
        ChildStarted(
            path,
            run_id,
            workflow,
            input_digest,
            run.now(),
            flow.take_item(),
            run.failures.settle(flow),
            flow.take_source_ends(),
            is_spawned,
            is_detached,
        )
    )


def record_end(flow: DurableFlow, ended: ChildEnded) -> int:
    """Add the entry that a run within this one ended. Return its sequence number."""
    sequence = flow.run.writer.add(ended)
    if ended.status is not RunStatus.COMPLETED:
        flow.run.failures.add(sequence)
        flow.unsettled.append(sequence)
    return sequence


def end_stands(recorded: RecordedChild, scope: Scope) -> bool:
    """Return whether a run within this one has ended for good: a resume tries a failure again, unless
    the body continued after it."""
    if recorded.ended is None or recorded.ended >= scope.limit:
        return False
    is_completed = recorded.status is RunStatus.COMPLETED
    return is_completed or recorded.is_settled or scope.limit < math.inf


def check_same(
    run: Run, path: str, recorded: RecordedChild, run_id: str, input_digest: str
) -> None:
    """Halt the run if the body reaches another run than the recorded one."""
    if (recorded.run_id, recorded.input) != (run_id, input_digest):
        raise run.writer.halt(
            StepInputChanged(
                run.run_id,
                path,
                f"run {recorded.run_id!r}",
                f"run {run_id!r}" if recorded.run_id != run_id else "another input",
            )
        )


def replayed_end(run: Run, place: Place, path: str, recorded: RecordedChild) -> Any:
    """Return or raise how a run within this run has ended."""
    types = place.blueprint.output_types
    if recorded.status is RunStatus.COMPLETED:
        return run.decode(recorded.output, path, types, place.blueprint.output_type)
    assert recorded.error is not None
    return run.replay_failure(recorded.error, path, types)
