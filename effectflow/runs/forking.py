"""Make a run from the beginning of another one: time travel, with other outputs or another input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effectflow.checkpoint.checkpoint import fold, summary_of
from effectflow.checkpoint.entries import (
    BeforeStep,
    ChildEnded,
    ChildStarted,
    Completed,
    Entry,
    Finished,
    Interrupted,
    Resumed,
    Started,
    Waiting,
)
from effectflow.checkpoint.errors import ChangeRejected, RunConflict
from effectflow.checkpoint.journal_reader import Journal, run_not_found
from effectflow.checkpoint.order import Order, Spans, in_ranges, read_order
from effectflow.checkpoint.rebuilding import sealed_entries
from effectflow.checkpoint.run_info import RunDetails, RunStatus, due_at_once
from effectflow.checkpoint.step import StepDefinition
from effectflow.checkpoint.store import store_errors
from effectflow.checkpoint.values import Tree
from effectflow.runs.blueprint import KEPT
from effectflow.runs.plan import replay_to_frontier
from effectflow.runs.run_ids import check_run_id, new_run_id
from effectflow.runs.settling import saved_output
from effectflow.runs.stored_run import Place, StoredRun, read_run


@dataclass(frozen=True, slots=True)
class Fork:
    """How a run is made from another one.

    Attributes:
        at: the entry up to which the other run is repeated; or the path of a step, which is executed
            again; None for the last of `changes`, or for the beginning without any.
        changes: the outputs of completed steps that are different, by path.
        input: the input of the new run, which then begins from its beginning; `KEPT` for the same one.
        run_id: the id of the new run; None for a random one.
        by: who makes it.
        effects: whether the replay that checks it runs all effects between steps.
        read: returns the value of a change, given the definition of the step and what `changes` has.
    """

    by: str
    at: int | str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    input: Any = KEPT
    run_id: str | None = None
    effects: bool = False
    read: Callable[[StepDefinition, Any], Any] = lambda _definition, value: value


async def fork_run(place: Place, run_id: str, fork: Fork) -> str:
    """Make a run from the beginning of another one, and return its id. The other run stays as it is.

    The errors are those of `Workflow.fork`.
    """
    entries = await forked_entries(place, run_id, fork)
    started = Journal(entries, b"").started
    await _create(place, started.run_id, entries, started.at)
    return started.run_id


async def forked_entries(place: Place, run_id: str, fork: Fork) -> tuple[Entry, ...]:
    """Return the entries that a fork of a run would have. Make nothing.

    The errors are those of `Workflow.fork`.
    """
    check_run_id(run_id)
    found = await read_run(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    fork = _in_current_paths(found, fork)
    at = end_of_prefix(run_id, found.journal.entries, fork)
    made_id = new_run_id(place.blueprint.definition.name) if fork.run_id is None else fork.run_id
    started = replace(
        found.started,
        run_id=made_id,
        at=place.scope.clock.now().timestamp(),
        parent="",
        forked_from=f"{run_id}@{at}",
        by=fork.by,
        **_anew(place, fork) if at == 1 else {},
    )
    return (started,) if at == 1 else await _continued(place, found, started, at, fork)


async def changeable_steps(
    place: Place, run_id: str, fork: Fork
) -> Mapping[str, tuple[StepDefinition, Tree]]:
    """Return the definition and the output of each step that a fork changes. Change nothing.

    The errors are those of `Workflow.fork`.
    """
    found = await read_run(place, run_id)
    if found is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    given, fork = fork.changes, _in_current_paths(found, fork)
    at = end_of_prefix(run_id, found.journal.entries, fork)
    entries = found.journal.entries[:at]
    known = replace(found, journal=Journal(entries, b""), checkpoint=fold(entries, run_id))
    steps = await _changed_steps(place, known, fork)
    outputs = {one.step: one.output for one in known.checkpoint.completed_steps}
    return {
        step: (steps[now], outputs.get(now)) for step, now in zip(given, fork.changes, strict=True)
    }


def _in_current_paths(found: StoredRun, fork: Fork) -> Fork:
    """Return a fork with the paths of steps in the current version of the workflow."""
    at = found.path_now(fork.at) if isinstance(fork.at, str) else fork.at
    changes = {found.path_now(step): value for step, value in fork.changes.items()}
    return replace(fork, at=at, changes=changes)


def _anew(place: Place, fork: Fork) -> dict[str, Any]:
    """Return what a run that begins anew has of the current workflow."""
    blueprint = place.blueprint
    definition = blueprint.definition
    new: dict[str, Any] = {
        "version": definition.version,
        "fingerprint": definition.fingerprint,
        "steps": definition.steps,
        "structure": definition.structure,
        "module": blueprint.module,
    }
    if fork.input is not KEPT:
        given = blueprint.save_input(fork.input)
        blueprint.check_types(given)
        new["input"] = blueprint.encode_input(given)
    return new


def end_of_prefix(run_id: str, entries: Sequence[Entry], fork: Fork) -> int:
    """Return the number of the last entry that the new run has of the other one.

    Raise ChangeRejected for an entry or a step that does not exist.
    """
    if fork.input is not KEPT:
        if fork.at is not None or fork.changes:
            raise ValueError("a fork with another input begins anew: leave out at= and changes=")
        return 1
    last = max((_completion_of(run_id, entries, step) for step in fork.changes), default=1)
    at = last if fork.at is None else _number_of(run_id, entries, fork.at)
    if at < last:
        raise ChangeRejected(
            run_id,
            f"one of the changed steps has completed by entry {last}, after entry {at}, where the fork "
            "begins",
            "Leave out at=, or fork later.",
        )
    return at - 1 if isinstance(entries[at - 1], Finished) else at


def _number_of(run_id: str, entries: Sequence[Entry], at: int | str) -> int:
    if isinstance(at, int):
        if 1 <= at <= len(entries):
            return at
        raise ChangeRejected(
            run_id,
            f"it has no entry {at}",
            f"Its entries have the numbers 1 to {len(entries)}; `history` shows them.",
        )
    left_out = _left_out(entries)
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, BeforeStep) and entry.step == at and number not in left_out:
            return number - 1
    raise ChangeRejected(run_id, f"no step {at!r} has begun", "`history` shows its steps.")


def _completion_of(run_id: str, entries: Sequence[Entry], step: str) -> int:
    left_out = _left_out(entries)
    for number in range(len(entries), 0, -1):
        entry = entries[number - 1]
        if isinstance(entry, Completed) and entry.step == step and number not in left_out:
            return number
    raise ChangeRejected(
        run_id,
        f"step {step!r} has not completed, so it has no output to change",
        "`history` shows its steps. To execute one again, fork at it.",
    )


def _left_out(entries: Sequence[Entry]) -> Spans:
    resumes = [entry for entry in entries if isinstance(entry, Resumed)]
    return Spans(span for one in resumes for span in (*one.void, *one.abandoned))


async def _continued(
    place: Place, found: StoredRun, started: Started, at: int, fork: Fork
) -> tuple[Entry, ...]:
    """Return the entries of a run that continues another one after its entry number `at`.

    A replay has reached the steps whose output is changed, and continues from there.
    """
    run_id, now = found.checkpoint.run_id, started.at
    removed = [number for number in place.blueprint.removed(found.written.entries) if number <= at]
    entries = found.journal.entries[:at]
    order = read_order(entries, removed)
    _check_is_whole(run_id, at, entries, order)
    known = StoredRun(found.written, Journal(entries, b""), found.was, fold(entries, run_id))
    if fork.changes:
        outputs = await _saved_changes(place, known, fork)
        entries = tuple(
            replace(entry, output=outputs[entry.step], shared=None)
            if isinstance(entry, Completed) and entry.step in outputs
            else entry
            for entry in entries
        )
    reason = f"forked from run {run_id!r} after entry {at} by {fork.by}"
    step = None if known.checkpoint.state is None else known.checkpoint.state.step
    last: list[Entry] = [Interrupted(step, False, reason, now, turn=order.last_turn)]
    if removed:
        last.insert(0, Resumed("", now, void=in_ranges(removed), by=fork.by))
    # What the other run has spawned is not cancelled with this one.
    kept = (
        replace(entry, is_detached=True) if isinstance(entry, ChildStarted) else entry
        for entry in entries[1:]
    )
    made = (started, *kept, *last)
    checked = replace(known, journal=Journal(made, b""), checkpoint=fold(made, started.run_id))
    reached = await replay_to_frontier(place, checked, effects=fork.effects)
    if reached.plan.problem is not None:
        raise reached.plan.problem
    return made


def _check_is_whole(run_id: str, at: int, entries: Sequence[Entry], order: Order) -> None:
    """Raise ChangeRejected if something is in progress that the new run must not take over."""
    for step in order.open:
        if order.begun[step].at_most_once:
            raise ChangeRejected(
                run_id,
                f"step {step!r}, which is marked at_most_once, is in progress at entry {at}",
                "Fork at the step, which executes it in the new run, or at another entry.",
            )
    waits = {one.path: one.child for one in entries if isinstance(one, Waiting)}
    ended = {waits.get(one.path) for one in entries if isinstance(one, ChildEnded)}
    for entry in entries:
        if isinstance(entry, ChildStarted) and not (entry.is_detached or entry.run_id in ended):
            raise ChangeRejected(
                run_id,
                f"run {entry.run_id!r}, which it has spawned, has not ended for it at entry {at}, and "
                "tells only this run when it ends",
                "Fork at an entry before it was spawned, or after its result was received.",
            )


async def _changed_steps(
    place: Place, known: StoredRun, fork: Fork
) -> Mapping[str, StepDefinition]:
    """Return the definitions of the steps whose outputs are changed."""
    reached = await replay_to_frontier(place, known, effects=fork.effects, wanted=fork.changes)
    if reached.plan.problem is not None:
        raise reached.plan.problem
    for step in fork.changes:
        if step not in reached.steps:
            raise ChangeRejected(
                known.checkpoint.run_id,
                f"a replay does not reach step {step!r}, which may be within a step that has completed",
                "Change the output of the outermost step, or pass effects=True to run the effects "
                "between steps.",
            )
    return reached.steps


async def _saved_changes(place: Place, known: StoredRun, fork: Fork) -> dict[str, Tree]:
    """Return the changed outputs in their saved form, by step."""
    steps = await _changed_steps(place, known, fork)
    return {
        step: saved_output(place, step, steps[step], fork.read(steps[step], value))
        for step, value in fork.changes.items()
    }


async def _create(place: Place, run_id: str, entries: tuple[Entry, ...], now: float) -> None:
    checkpoints, definition = place.checkpoints, place.blueprint.definition
    started = entries[0]
    assert isinstance(started, Started)
    status = RunStatus.PENDING if len(entries) == 1 else RunStatus.INTERRUPTED
    details = RunDetails(started.kind, definition.version, read_order(entries).dead_letters)
    summary = summary_of(started, status, due_at=due_at_once(now), details=details)
    bodies = sealed_entries(run_id, entries, checkpoints.seal)
    with store_errors(checkpoints.store, run_id, saves="run"):
        if await checkpoints.store.create(run_id, bodies, summary=summary) is None:
            raise RunConflict(run_id, "it exists already, and a fork makes a new run")
