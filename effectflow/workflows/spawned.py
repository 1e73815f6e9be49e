"""Spawned runs: independent runs that another run creates and may wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from effectflow.checkpoint.changes import woken_by
from effectflow.checkpoint.entries import ChildEnded, Finished
from effectflow.checkpoint.errors import (
    CheckpointError,
    RunCancelled,
    RunConflict,
    RunNotFound,
)
from effectflow.checkpoint.failures import write_error
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.planned_run import PlannedRun
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import RunStatus, has_result
from effectflow.checkpoint.values import KnownTypes, digest_of
from effectflow.checkpoint.waits import begin_wait, check_can_wait
from effectflow.effects import Effect
from effectflow.effects.arguments import check_type
from effectflow.effects.nodes import Options, Perform, Written
from effectflow.effects.paths import as_name
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.workflows.child_runs import ChildRun, add_child_end, end_stands, replayed_end
from effectflow.workflows.lookup import Place, find, look
from effectflow.workflows.run_ids import check_new_run_id
from effectflow.workflows.runs import submit_run
from effectflow.workflows.workflow import Workflow

_REFUSALS = KnownTypes.of(RunConflict)
"""The errors with which the creation of a run fails."""

Input = TypeVar("Input", contravariant=True)
E = TypeVar("E", covariant=True)
Out = TypeVar("Out", covariant=True)


def spawn(
    workflow: Workflow[Any, E, Input, Out],
    input: Input,
    *,
    run_id: str | None = None,
    is_detached: bool = False,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
) -> Effect[object, CheckpointError, Child[E, Out]]:
    """Create an independent run, which any worker may drive, and yield it at once.

    It is cancelled when this run is cancelled, but not when this run completes or fails.

    Parameters:
        workflow: its workflow, which a worker of the same store has in its `App`.
        input: the input of its body.
        run_id: the id of the run; by default derived from the id of this run and the path.
        is_detached: leave it alone when this run is cancelled.
        priority: workers take runs with a higher one first.
        context: plain data to keep with it; by default the context of this run.

    Fails with RunConflict if a run with this id and another workflow or input exists. Any other error of
    the store halts this run, as when a step cannot be saved. Raises ValueError for an id that
    `Workflow.start` rejects.
    """
    check_type(workflow, Workflow, "spawn takes a workflow and its input")
    check_new_run_id(run_id)

    options = Options(run_id=run_id, is_detached=is_detached, priority=priority, context=context)
    work = _Spawn(workflow, input, run_id, is_detached, priority, context)
    return Perform(work.perform, ("spawn", Written(workflow.name), input, options))


@dataclass(frozen=True, slots=True)
class _Spawn:
    """What `spawn` does, with its parameters."""

    workflow: Workflow[Any, Any, Any, Any]
    input: object
    run_id: str | None
    is_detached: bool
    priority: int
    context: Mapping[str, object] | None

    async def perform(self, _env: object, scope: Scope) -> Any:
        """Record the start of the run and create it, unless an earlier life has."""
        workflow = self.workflow
        flow = _durable_flow(scope, f"spawn({workflow.name!r}, ...)")
        place = _place(workflow, flow, scope)
        run = flow.run
        path = flow.next_path(as_name(workflow.name))
        run.writer.check()
        digest = _input_digest(run, place, self.input)
        child = ChildRun.reach(flow, scope, path, workflow.name, self.run_id, digest)
        spawned = Child(workflow, child.run_id)
        recorded = child.recorded
        if recorded is not None:
            if recorded.ended is None and flow.has_gone_on(scope, path, recorded.begun):
                return spawned
            if end_stands(recorded, scope):
                # The run was rejected, and a resume does not try to create it again.
                assert recorded.error is not None
                return run.replay_failure(recorded.error, path, _REFUSALS)
        if recorded is None or recorded.ended is not None:
            await flow.check(scope, path)
            if isinstance(run, PlannedRun):
                run.begin_child(path, is_begun=False)
            begun = await child.begin(is_spawned=True, is_detached=self.is_detached)
        else:
            begun = recorded.begun
        if run.records:
            try:
                await self._create(flow, place, child.run_id)
            except RunConflict as refused:
                return _record_refusal(flow, path, begun, refused)
            except CheckpointError as error:
                raise run.writer.halt(error) from error
        return spawned

    async def _create(self, flow: DurableFlow, place: Place, run_id: str) -> None:
        """Create the run, which may exist: an earlier life may have ended after it had created it.

        An operator cannot cut this off. Otherwise the run could be created after all, and nothing would
        cancel it.
        """
        run = flow.run
        creation = submit_run(
            place,
            self.input,
            run_id=run_id,
            context=run.context if self.context is None else self.context,
            priority=self.priority,
            parent=run.run_id,
        )
        await run.stopping.protected(creation)


@dataclass(frozen=True, slots=True)
class Child(Generic[E, Out]):
    """A spawned run.

    Attributes:
        workflow: its workflow.
        run_id: its id.
    """

    workflow: Workflow[Any, E, Any, Out]
    run_id: str

    def result(self) -> Effect[object, E, Out]:
        """Wait for the end of the run, durably, and yield its output or fail as it failed.

        A defect of the run is raised again. If it was cancelled, the wait ends in a RunCancelled, which
        is a defect here. Giving up the wait, for example by a timeout, does not cancel the run.
        """

        async def perform(_env: object, scope: Scope) -> Any:
            flow = _durable_flow(scope, f"result of run {self.run_id!r}")
            return await _result(flow, scope, self)

        return Perform(perform, (".result", self))


def _durable_flow(scope: Scope, what: str) -> DurableFlow:
    flow = scope.flow
    if not isinstance(flow, DurableFlow):
        raise TypeError(f"{what} needs a durable run around it: use it in the body of a workflow")
    check_can_wait(flow, scope, what)
    return flow


def _input_digest(run: Run, place: Place, input: object) -> str:
    """Return the digest of the input of a run to spawn. Halt unless it fits the workflow."""
    try:
        saved = place.blueprint.save_input(input)
        place.blueprint.check_types(saved)
        return digest_of(saved, options=run.checkpoints.value_options)
    except CheckpointError as error:
        raise run.writer.halt(error) from error


def _place(workflow: Workflow[Any, Any, Any, Any], flow: DurableFlow, scope: Scope) -> Place:
    checkpoints = flow.run.checkpoints
    return Place.of(workflow.blueprint, checkpoints, None, scope)


def _record_refusal(flow: DurableFlow, path: str, begun: int, refused: RunConflict) -> TypedFailure:
    """Record that the id belongs to another run, which is not cancelled with this one."""
    run = flow.run
    run.spawned.pop(begun, None)
    error = write_error(refused, _REFUSALS, is_defect=False)
    ended = ChildEnded(path, RunStatus.FAILED, run.now(), None, error)
    flow.last_failure = (refused, add_child_end(flow, ended))
    return TypedFailure(refused)


async def _result(flow: DurableFlow, scope: Scope, child: Child[Any, Any]) -> Any:
    run, place = flow.run, _place(child.workflow, flow, scope)
    path = flow.next_path(f"{as_name(child.workflow.name)}.result")
    run.writer.check()
    if flow.reach(path, scope):
        wait = run.recording.waits[path]
        ended = wait.child
        if ended is not None and end_stands(ended, scope):
            return place.read(replayed_end(run, place.blueprint, path, ended))
        await flow.check(scope, path)
    else:
        await flow.check(scope, path)
        begin_wait(flow, scope, path, child=child.run_id)
    if isinstance(run, PlannedRun):
        found = await find(place, child.run_id)
        finished = None if found is None else found.checkpoint.finished
        if finished is None:
            return await run.wait(path)
    else:
        finished = await _end_of(flow, scope, place, child.run_id)
    # An operator may have decided at the same time.
    await flow.check(scope, path)
    return _record_result(flow, place, path, child.run_id, finished)


async def _end_of(flow: DurableFlow, scope: Scope, place: Place, run_id: str) -> Finished:
    """Wait until a run has ended. Return its last entry."""
    run = flow.run
    async with woken_by(run.checkpoints.store, run_id) as woken:
        while True:
            try:
                finished = await _last_entry_of(place, run_id)
            except CheckpointError as error:
                raise run.writer.halt(error) from error
            if finished is not None:
                return finished
            with run.rest(flow, scope, f"run {run_id!r}", look=woken.set):
                await woken.wait()


async def _last_entry_of(place: Place, run_id: str) -> Finished | None:
    """Return the last entry of a run; None if it has not ended."""
    info = await look(place, run_id)
    # A look at each change must not read the whole journal.
    if info is not None and not has_result(info.summary.status):
        return None
    found = None if info is None else await find(place, run_id)
    if found is None:
        raise RunNotFound(run_id)
    return found.checkpoint.finished


def _record_result(flow: DurableFlow, place: Place, path: str, run_id: str, end: Finished) -> Any:
    """Record how a spawned run has ended. Return its output or `TypedFailure`, or raise its defect."""
    run = flow.run
    status, error = end.status, end.error
    if status is RunStatus.CANCELLED:
        types = place.blueprint.output_types
        error = write_error(RunCancelled(run_id), types, is_defect=True)
    ended = ChildEnded(path, status, run.now(), end.output, error)
    if run.records:
        add_child_end(flow, ended)
    return place.read(replayed_end(run, place.blueprint, path, ended))
