"""Spawned runs: independent runs that another run creates and may wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar, overload

from effectflow.checkpoint.causes import Cause
from effectflow.checkpoint.durable_fiber import DurableFiber
from effectflow.checkpoint.entries import (
    BEGINNINGS,
    ChildEnded,
    ChildStarted,
    Finished,
    Local,
    Ordered,
    TimerFired,
    Waiting,
)
from effectflow.checkpoint.errors import (
    CheckpointError,
    DefinitionChanged,
    RunCancelled,
    RunConflict,
    RunNotFound,
    StepInputChanged,
)
from effectflow.checkpoint.failures import write_error
from effectflow.checkpoint.notifications import woken_by
from effectflow.checkpoint.order import path_of
from effectflow.checkpoint.ordered_fiber import Intent
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.run_info import RunStatus, has_result
from effectflow.checkpoint.store import service_of
from effectflow.checkpoint.values import KnownTypes, digest_of
from effectflow.checkpoint.waits import rest_during
from effectflow.effects import Effect
from effectflow.effects.arguments import check_type
from effectflow.effects.clock import Duration, finite_time
from effectflow.effects.nodes import Options, Perform, Written
from effectflow.effects.paths import as_name, is_within
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.effects.type_variables import Fitting
from effectflow.runs.run_ids import check_new_run_id
from effectflow.runs.start import check_priority, submit_run
from effectflow.runs.stored_run import Place, error_types, read_run, run_info
from effectflow.runs.workflow import Workflow

_REFUSALS = KnownTypes.of(RunConflict)
"""The errors with which the creation of a run fails."""

Input = TypeVar("Input", contravariant=True)
E = TypeVar("E", covariant=True)
Out = TypeVar("Out", covariant=True)


@overload
def spawn(
    workflow: Workflow[Any, E, None, Out],
    input: None = None,
    *,
    run_id: None = None,
    delay: Duration = 0,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
    is_detached: bool = False,
) -> Effect[object, Never, Child[E, Out]]: ...
@overload
def spawn(
    workflow: Workflow[Any, E, Input, Out],
    input: Fitting[Input],
    *,
    run_id: None = None,
    delay: Duration = 0,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
    is_detached: bool = False,
) -> Effect[object, Never, Child[E, Out]]: ...
@overload
def spawn(
    workflow: Workflow[Any, E, None, Out],
    input: None = None,
    *,
    run_id: str,
    delay: Duration = 0,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
    is_detached: bool = False,
) -> Effect[object, RunConflict, Child[E, Out]]: ...
@overload
def spawn(
    workflow: Workflow[Any, E, Input, Out],
    input: Fitting[Input],
    *,
    run_id: str,
    delay: Duration = 0,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
    is_detached: bool = False,
) -> Effect[object, RunConflict, Child[E, Out]]: ...
def spawn(
    workflow: Workflow[Any, E, Any, Out],
    input: Any = None,
    *,
    run_id: str | None = None,
    delay: Duration = 0,
    priority: int = 0,
    context: Mapping[str, object] | None = None,
    is_detached: bool = False,
) -> Effect[object, RunConflict, Child[E, Out]]:
    """Create an independent run, which any worker may drive, and yield it at once.

    It is cancelled when this run is cancelled, but not when this run completes or fails.

    Parameters:
        workflow: its workflow, which a worker of the same store has in its `App`.
        input: the input of its body; nothing for a workflow without an input.
        run_id: the id of the run; by default derived from the id of this run and the path.
        delay: the seconds, or the `timedelta`, until a worker may take it.
        priority: workers take runs with a higher one first. Any 32-bit integer.
        context: plain data to keep with it; by default the context of this run.
        is_detached: leave it alone when this run is cancelled.

    With a `run_id`, it fails with RunConflict if another run has the id: one of another workflow or
    input, or one that this run has not spawned.
    Any other error of the store halts this run, as when a step cannot be saved. Raises ValueError for an
    id that `Workflow.start` rejects.
    """
    check_type(workflow, Workflow, "spawn takes a workflow and its input")
    check_new_run_id(run_id)
    check_priority(priority)
    seconds = finite_time("delay", delay)
    options = Options(
        run_id=run_id,
        delay=delay or None,
        priority=priority or None,
        context=context,
        is_detached=is_detached,
    )
    work = _Spawn(workflow, input, run_id, seconds, priority, context, is_detached)
    return Perform(work.perform, ("spawn", Written(workflow.name), input, options))


@dataclass(frozen=True, slots=True)
class _Spawn:
    """What `spawn` does, with its parameters."""

    workflow: Workflow[Any, Any, Any, Any]
    input: object
    run_id: str | None
    delay: float
    priority: int
    context: Mapping[str, object] | None
    is_detached: bool

    async def perform(self, _env: object, scope: Scope) -> Any:
        """Record the start of the run and create it, unless an earlier life has."""
        workflow = self.workflow
        fiber = _durable_fiber(scope, f"spawn({workflow.name!r}, ...)")
        place = _place(workflow, fiber, scope)
        run, turns = fiber.run, fiber.turns
        path = fiber.next_path(as_name(workflow.name), tuple(map(as_name, workflow.aliases)))
        digest = _input_digest(run, place, self.input)
        run_id = self.run_id or _default_id(run, path, digest)
        await fiber.check(scope)
        begun = await fiber.reach_begin(path, scope, ChildStarted)
        begun_at = turns.replay.number_taken
        if begun is not None:
            _check_same(run, begun, run_id, digest)
            run_id = begun.run_id
        ended = await fiber.reach_end(path, scope, (ChildEnded, Local))
        if isinstance(ended, ChildEnded):
            # The run was rejected, and a resume does not try to create it again.
            return _failed(fiber, path, ended, place, turns.replay.number_taken)
        spawned = Child(workflow, run_id)
        if ended is not None or (begun is not None and _has_gone_on(fiber, begun_at)):
            await fiber.check(scope)
            return spawned
        await turns.to_frontier(fiber, scope, Intent.BEGIN)
        await fiber.check(scope)
        if begun is None:
            fiber.begins()
            begun = ChildStarted(
                path, run_id, workflow.name, digest, run.now(), self.is_detached, turns.turn
            )
            number = run.add(begun, fiber.step)
            if not self.is_detached:
                run.spawned[number] = run_id
            await fiber.unrecorded(scope, run.writer.save())
        is_alone = turns.is_alone
        try:
            # An operator cannot cut this off: the run could be created after all, and nothing would
            # cancel it.
            _, cancelled = await fiber.unrecorded(
                scope, run.stopping.shielded(self._create(run, place, run_id))
            )
        except RunConflict as refused:
            if self.run_id is None:
                # The body did not choose the id, so its type does not have the failure.
                raise run.halt(refused) from refused
            return _record_refusal(fiber, path, refused)
        except CheckpointError as error:
            raise run.halt(error) from error
        if not (is_alone or turns.is_over):
            # Its end is an event, as that of local code.
            fiber.follows(path, run.hold(Local(path, run.now(), turn=turns.turn), fiber.step))
        if cancelled is not None:
            raise cancelled
        await fiber.check(scope, has_begun=True)
        return spawned

    async def _create(self, run: Run, place: Place, run_id: str) -> None:
        """Create the run, which may exist: an earlier life may have ended after it had created it."""
        service_of(run.checkpoints.store, "a spawned run")
        await submit_run(
            place,
            self.input,
            run_id=run_id,
            context=run.context if self.context is None else self.context,
            priority=self.priority,
            delay=self.delay,
            parent=run.run_id,
        )


def _has_gone_on(fiber: DurableFiber, number: int) -> bool:
    """Return whether a fiber has begun something after this entry, so that the run exists."""
    turns, line = fiber.turns, fiber.line
    entries, values = turns.order.entries, turns.order.values

    def shows_beginning(entry: Ordered) -> bool:
        if isinstance(entry, TimerFired):
            # A timeout begins with a value, which says until when it lasts.
            return entry.path in values and values[entry.path][0] > number
        return isinstance(entry, (*BEGINNINGS, Local))

    # Not a slice: to get to its beginning takes as long as the past is.
    left = (entries[at] for at in range(turns.replay.position, len(entries)))
    begun = (path_of(entry) for entry in left if shows_beginning(entry))
    return any(not line or is_within(path, line) for path in begun)


def _default_id(run: Run, path: str, digest: str) -> str:
    """Return the id of a run that is spawned here. With another input than before, it is another run."""
    known = run.turns.order.children.setdefault(path, {})
    if digest not in known:
        default = f"{run.run_id}/{path}"
        known[digest] = f"{default} after retry {len(known)}" if known else default
    return known[digest]


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
            fiber = _durable_fiber(scope, f"result of run {self.run_id!r}")
            return await _result(fiber, scope, self)

        return Perform(perform, (".result", self))


def _durable_fiber(scope: Scope, what: str) -> DurableFiber:
    fiber = scope.fiber
    if not isinstance(fiber, DurableFiber):
        raise TypeError(f"{what} needs a durable run around it: use it in the body of a workflow")
    return fiber


def _input_digest(run: Run, place: Place, input: object) -> str:
    """Return the digest of the input of a run to spawn. Halt unless it fits the workflow."""
    try:
        saved = place.blueprint.save_input(input)
        place.blueprint.check_types(saved)
        return digest_of(saved, options=run.checkpoints.value_options)
    except CheckpointError as error:
        raise run.halt(error) from error


def _place(workflow: Workflow[Any, Any, Any, Any], fiber: DurableFiber, scope: Scope) -> Place:
    return Place.of(workflow.blueprint, fiber.run.checkpoints, None, scope)


def _check_same(run: Run, begun: ChildStarted, run_id: str, digest: str) -> None:
    """Halt if the code starts another run than an earlier life has."""
    if (begun.run_id, begun.input) != (run_id, digest):
        raise run.halt(
            StepInputChanged(
                run.run_id,
                begun.path,
                f"run {begun.run_id!r}",
                f"run {run_id!r}" if begun.run_id != run_id else "another input",
            )
        )


def _record_refusal(fiber: DurableFiber, path: str, refused: RunConflict) -> TypedFailure:
    """Record that the id belongs to another run, which is not cancelled with this one."""
    run = fiber.run
    for number in [number for number, child in run.spawned.items() if child == refused.run_id]:
        del run.spawned[number]
    error = write_error(refused, _REFUSALS, is_defect=False)
    ended = ChildEnded(path, RunStatus.FAILED, run.now(), None, error, run.turns.turn)
    number = run.add(ended, fiber.step)
    fiber.failures.append(Cause((path, number), step=path))
    return TypedFailure(refused)


def _failed(
    fiber: DurableFiber, path: str, ended: ChildEnded, place: Place, number: int
) -> TypedFailure:
    """Return the recorded failure of a run, or raise its recorded defect."""
    run, error = fiber.run, ended.error
    assert error is not None
    types = run.checkpoints.known(error_types(place.blueprint))
    name = path.rpartition("/")[2].partition("#")[0]
    if name in map(as_name, place.blueprint.names):
        types = _REFUSALS
    failure, unreadable = run.read_failure(error, path, types)
    fiber.failures.append(Cause((path, number), step=path, unreadable=unreadable))
    if run.planning is not None:
        run.planning.fails(path, failure.error)
    if error.is_defect:
        assert isinstance(failure.error, Exception)
        raise failure.error
    return failure


async def _result(fiber: DurableFiber, scope: Scope, child: Child[Any, Any]) -> Any:
    run, turns = fiber.run, fiber.turns
    place = _place(child.workflow, fiber, scope)
    name, *was = (f"{as_name(one)}.result" for one in place.blueprint.names)
    path = fiber.next_path(name, tuple(was))
    await fiber.check(scope)
    begun = await fiber.reach_begin(path, scope, Waiting)
    if begun is not None and begun.child != child.run_id:
        detail = f"{path!r} waited for run {begun.child!r}, and now waits for run {child.run_id!r}"
        raise run.halt(DefinitionChanged(run.run_id, run.workflow, detail=detail))
    ended = await fiber.reach_end(path, scope, ChildEnded)
    if ended is None:
        await turns.to_frontier(fiber, scope, Intent.WAIT)
        await fiber.check(scope)
        if begun is None:
            fiber.begins()
            run.add(Waiting(path, None, run.now(), child=child.run_id, turn=turns.turn), fiber.step)
        finished = await _end_of(fiber, scope, place, child.run_id)
        # An operator may have decided at the same time.
        await fiber.check(scope)
        ended = _end_entry(fiber, place, path, child.run_id, finished)
        number = run.add(ended, fiber.step)
        fiber.follows(path, number)
    else:
        number = turns.replay.number_taken
        await fiber.check(scope)
    if ended.status is not RunStatus.COMPLETED:
        return _failed(fiber, path, ended, place, number)
    types, declared = place.blueprint.output_types, place.blueprint.output_type
    return place.read(run.decode(ended.output, path, types, declared))


async def _end_of(fiber: DurableFiber, scope: Scope, place: Place, run_id: str) -> Finished:
    """Wait until a run has ended, and for the turn of that. Return its last entry."""
    run = fiber.run
    async with woken_by(run.checkpoints.store, run_id) as woken:
        while True:
            try:
                finished = await fiber.unrecorded(scope, _last_entry_of(place, run_id))
            except CheckpointError as error:
                raise run.halt(error) from error
            await fiber.check(scope)
            if finished is not None:
                if finished.at <= run.opened_at:
                    await fiber.turns.arrive(fiber, scope, since=finished.at)
                return finished
            await rest_during(fiber, scope, f"run {run_id!r}", woken.wait, look=woken.set)


async def _last_entry_of(place: Place, run_id: str) -> Finished | None:
    """Return the last entry of a run; None if it has not ended."""
    info = await run_info(place, run_id)
    # A look at each change must not read the whole journal.
    if info is not None and not has_result(info.summary.status):
        return None
    found = None if info is None else await read_run(place, run_id)
    if found is None:
        raise RunNotFound(run_id)
    return found.checkpoint.finished


def _end_entry(
    fiber: DurableFiber, place: Place, path: str, run_id: str, end: Finished
) -> ChildEnded:
    """Return the entry that a spawned run has ended."""
    error = end.error
    if end.status is RunStatus.CANCELLED:
        types = place.blueprint.output_types
        error = write_error(RunCancelled(run_id), types, is_defect=True)
    run = fiber.run
    return ChildEnded(path, end.status, run.now(), end.output, error, run.turns.turn)
