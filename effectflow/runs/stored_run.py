"""Look up the run that a start, a resume or a plan is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from effectflow.checkpoint.checkpoint import Checkpoint, fold
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import Finished, HeadState, Resumed, Started
from effectflow.checkpoint.errors import (
    CLASS_CHANGED,
    CheckpointError,
    CorruptCheckpoint,
    NotSerializable,
    RunConflict,
)
from effectflow.checkpoint.failures import read_failure
from effectflow.checkpoint.journal_reader import Journal, pass_over, read_end, read_journal
from effectflow.checkpoint.observers import CheckpointLoaded, tell
from effectflow.checkpoint.order import ordered_path_of
from effectflow.checkpoint.run_info import RunInfo, RunStatus
from effectflow.checkpoint.schema import frozen
from effectflow.checkpoint.store import Record, find_run, store_errors
from effectflow.checkpoint.values import (
    NO_TYPES,
    KnownTypes,
    MalformedValue,
    Tree,
    are_same,
    from_tree,
    of_type,
    render_tree,
    to_tree,
    tree_digest,
)
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure, add_note
from effectflow.runs.blueprint import Blueprint
from effectflow.runs.run_ids import check_run_id

_OWN_ERRORS = KnownTypes.of(CheckpointError).errors
"""The errors with which a run fails that cannot be continued."""

_SHOWN = 200
"""The characters of an input that an error shows."""

_ENTRIES_AT_THE_END = 8
"""The entries to read of a complete run. The newest step is usually among them."""


@frozen
class Place:
    """The workflow, environment and store of a run."""

    blueprint: Blueprint
    checkpoints: Checkpoints
    env: Any
    scope: Scope

    @staticmethod
    def of(blueprint: Blueprint, checkpoints: Checkpoints, env: Any, scope: Scope) -> Place:
        """Return the place of a run of a workflow."""
        return Place(blueprint.saved_by(checkpoints), checkpoints, env, scope)

    def read(self, outcome: Any) -> Any:
        """Return the outcome of the body as the workflow yields it."""
        return outcome if outcome.__class__ is TypedFailure else self.blueprint.read_output(outcome)


@frozen
class GivenInput:
    """The input of a run in its saved form, and its digest as in `Finished`."""

    tree: Tree
    types: KnownTypes

    @staticmethod
    def of(blueprint: Blueprint, input: object) -> GivenInput:
        """Return an input in its saved form. Raise NotSerializable if it cannot be saved."""
        return GivenInput(blueprint.encode_input(input), blueprint.input_types)

    def equals(self, recorded: Tree) -> bool:
        """Return whether a recorded input is the same value."""
        if are_same(recorded, self.tree):
            return True
        if self.types.options.cipher is None:
            return False
        # Another key may have encrypted its secrets.
        try:
            value = from_tree(recorded, types=self.types)
            return are_same(to_tree(value, types=self.types), self.tree)
        except (MalformedValue, NotSerializable):
            return False

    @property
    def digest(self) -> str:
        return input_digest(self.tree)


def input_digest(tree: Tree) -> str:
    """Return the digest of an input in its saved form, as in `Finished`."""
    return tree_digest(tree)[:32]


@dataclass(frozen=True)
class StoredRun:
    """A run in a store.

    Attributes:
        written: its journal as it is in the store.
        journal: its journal as the current version of the workflow would have written it.
        was: the definition of the workflow when the run was last driven.
        checkpoint: the fold of the journal.
    """

    written: Journal
    journal: Journal
    was: Definition
    checkpoint: Checkpoint

    @property
    def started(self) -> Started:
        """The first entry, as the current version of the workflow would have written it."""
        return self.journal.started

    @property
    def completion(self) -> Finished | None:
        """How the run ended if it is complete."""
        known = self.checkpoint
        return known.finished if known.status is RunStatus.COMPLETED else None

    @property
    def started_version(self) -> str:
        """The version of the workflow that started the run, before any migration."""
        return self.written.started.version

    def path_now(self, path: str) -> str:
        """Return the path that a recorded operation has in the current version of the workflow."""
        if self.journal.entries is not self.written.entries:
            pairs = zip(self.written.entries, self.journal.entries, strict=True)
            for was, now in pairs:
                if ordered_path_of(was) == path:
                    return ordered_path_of(now)
        return path

    def continued_by(self, resumed: Resumed, definition: Definition) -> Resumed:
        """Return the entry that continues the run, with the definition of the workflow if it has changed.

        Later entries are those of this version: no migration changes them.
        """
        if self.was.fingerprint == definition.fingerprint:
            return resumed
        return replace(
            resumed,
            version=definition.version,
            steps=definition.steps,
            structure=definition.structure,
        )


async def run_info(place: Place, run_id: str) -> RunInfo | None:
    """Return one line about a run of this workflow; None if there is none."""
    check_run_id(run_id)
    with store_errors(place.checkpoints.store, run_id):
        info = await find_run(place.checkpoints.store, run_id)
    if info is not None and info.summary.workflow not in place.blueprint.names:
        # Its journal decides whose run it is: `read_run` raises RunConflict, which names the workflow.
        await read_run(place, run_id)
    return info


async def completion_of(
    place: Place, info: RunInfo, given: GivenInput | None = None
) -> Finished | None:
    """Return how a complete run ended; None if it is not complete.

    This reads only the last entries, so the cost does not depend on the length of the run. If they are
    damaged, or of another version, the whole journal is read.

    Parameters:
        given: the input that it must have; None for any.
    """
    if info.summary.status is not RunStatus.COMPLETED:
        return None
    completion = await _last_entry(place, info)
    if completion is not None and (given is None or completion.input == given.digest):
        return completion
    found = await read_run(place, info.run_id)
    if found is None:
        return None
    return found.completion if given is None else last_completion(found, given)


async def _last_entry(place: Place, info: RunInfo) -> Finished | None:
    """Return the last entry of a complete run, if that is enough."""
    blueprint, checkpoints, run_id = place.blueprint, place.checkpoints, info.run_id
    if blueprint.migrations and checkpoints.observers:
        # Observers are told the name of the newest step, which a migration may change.
        return None
    count = _ENTRIES_AT_THE_END
    while True:
        with store_errors(checkpoints.store, run_id):
            entries = await read_end(
                checkpoints.store, run_id, checkpoints.seal, length=info.length, count=count
            )
        last = entries[-1] if entries else None
        if not isinstance(last, Finished) or last.status is not RunStatus.COMPLETED:
            return None
        if last.run_id != run_id or not last.input:
            return None
        if blueprint.migrations and last.version != blueprint.definition.version:
            return None
        steps = [one.step for one in entries if isinstance(one, HeadState)]
        if steps or not checkpoints.observers or count >= info.length:
            step = steps[-1] if steps else None
            tell(checkpoints.observers, CheckpointLoaded(run_id, info.length, step))
            return last
        count *= _ENTRIES_AT_THE_END


async def read_run(place: Place, run_id: str, first: Record | None = None) -> StoredRun | None:
    """Return a run of this workflow, with its whole journal; None if there is none.

    `first` is its only record, if that is known.
    """
    blueprint, checkpoints = place.blueprint, place.checkpoints
    with store_errors(checkpoints.store, run_id):
        written = await read_journal(checkpoints.store, run_id, checkpoints.seal, first)
    if not written.entries:
        return None
    checkpoint = await pass_over(written.entries, lambda: fold(written.entries, run_id))
    if checkpoint.workflow not in blueprint.names:
        owner = f"it is a run of workflow {checkpoint.workflow!r}"
        raise RunConflict(run_id, f"{owner}, not of {blueprint.definition.name!r}")
    was, name = checkpoint.definition, blueprint.definition.name
    if was.name != name:
        was = replace(was, name=name)
    found = StoredRun(written, written, was, checkpoint)
    entries = blueprint.upgraded(written.entries)
    if entries is not written.entries:
        journal, checkpoint = replace(written, entries=entries), fold(entries, run_id)
        found = replace(found, journal=journal, checkpoint=checkpoint)
    step = checkpoint.state.step if checkpoint.state is not None else None
    tell(checkpoints.observers, CheckpointLoaded(run_id, len(entries), step))
    return found


def last_completion(found: StoredRun, given: GivenInput | None = None) -> Finished | None:
    """Return how the run of this input ended when it was last complete; None if it never was.

    That output is valid while a complete run is continued, until that succeeds.
    """
    if given is not None and not given.equals(found.checkpoint.initial_state):
        reason = "it was started with another input"
        # The input of another caller may be a secret of that caller.
        if given.types.options.cipher is None:
            reason += f": {_shown(found.checkpoint.initial_state)}, not {_shown(given.tree)}"
        raise RunConflict(found.checkpoint.run_id, reason)
    for entry in reversed(found.journal.entries):
        if isinstance(entry, Finished) and entry.status is RunStatus.COMPLETED:
            return entry
    return None


def _shown(tree: Tree) -> str:
    """Return a value for messages, shortened."""
    text = render_tree(tree)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def output_of(
    completion: Finished, blueprint: Blueprint, run_id: str, *, force: bool = False
) -> Any:
    """Return the output of a complete run; with `force`, also if it is not of the declared type."""
    types, declared = blueprint.output_types, None if force else blueprint.output_type
    return decode_as(completion.output, types, run_id, "output", declared)


def input_of(known: Checkpoint, blueprint: Blueprint, *, force: bool = False) -> Any:
    """Return the input of a run; with `force`, also if it is not of the declared type."""
    types, declared = blueprint.input_types, None if force else blueprint.input_type
    return decode_as(known.initial_state, types, known.run_id, "input", declared)


def error_types(blueprint: Blueprint) -> KnownTypes:
    """Return the classes that may occur in the recorded failure of a run."""
    types = blueprint.output_types
    return replace(types, errors={**types.errors, **_OWN_ERRORS})


def failure_of(found: StoredRun, blueprint: Blueprint) -> TypedFailure:
    """Return the recorded failure of a run that has failed, or raise its recorded defect."""
    run_id, finished = found.checkpoint.run_id, found.checkpoint.finished
    if finished is None or finished.error is None:
        raise CorruptCheckpoint(run_id, "it has failed, and its error is missing")
    record, name = finished.error, blueprint.definition.name
    try:
        failure = read_failure(record, f"run {run_id!r}", error_types(blueprint))
    except NotSerializable as unreadable:
        raise NotSerializable(
            f"run {run_id!r}",
            f"it failed with {record.type}: {record.message}. The error cannot be rebuilt: declare its "
            f"class in the return annotation of workflow {name!r}, or with errors= if that is an async "
            "function, and let its instances be equal when they are rebuilt from their arguments and "
            "attributes",
        ) from unreadable
    if record.is_defect:
        assert isinstance(failure.error, Exception)
        raise defect_in(run_id, failure.error)
    return failure_in(run_id, failure)


def failure_in(run_id: str, failed: TypedFailure) -> TypedFailure:
    """Return the failure of a run. Its trail names the run, whose id may have been generated."""
    return TypedFailure(failed.error, (*failed.trail, f"in run {run_id!r}"))


def defect_in(run_id: str, defect: BaseException) -> BaseException:
    """Return the defect of a run, with a note that names the run."""
    add_note(defect, f"in run {run_id!r}")
    return defect


def context_of(started: Started) -> Mapping[str, object]:
    """Return the context that a run was started with."""
    if started.context == {}:
        return {}
    context = decode_as(started.context, NO_TYPES, started.run_id, "context")
    if not isinstance(context, dict):
        raise CorruptCheckpoint(started.run_id, "its context is not a mapping")
    return cast("dict[str, object]", context)


def decode_as(
    tree: Tree, types: KnownTypes, run_id: str, what: str, declared: object = None
) -> Any:
    """Return a recorded value. Raises CorruptCheckpoint, which names `what` it is, if it is not valid."""
    try:
        path = f"{what}: $"
        return of_type(from_tree(tree, path=path, types=types), declared, path=path)
    except MalformedValue as error:
        reason = f"its {what} is not what the workflow declares: {error}. {CLASS_CHANGED}"
        raise CorruptCheckpoint(run_id, reason, is_damaged=False) from error
