"""`Checkpoint`: the state of a run, folded from its journal, as one value to save and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import (
    FORMAT,
    BeforeStep,
    Completed,
    Entry,
    Failed,
    Finished,
    HeadState,
    Interrupted,
    Paused,
    Resumed,
    Started,
    Suspended,
)
from effectflow.checkpoint.errors import CorruptCheckpoint, NotSerializable, UnsupportedVersion
from effectflow.checkpoint.run_info import RunDetails, RunStatus, RunSummary
from effectflow.checkpoint.schema import frozen, schema_of
from effectflow.checkpoint.values import (
    MAX_COMPACT_BYTES,
    MalformedValue,
    Tree,
    decode_compact,
    decode_json,
    encode_compact,
    encode_json,
    tree_digest,
    write_json,
)
from effectflow.effects.paths import StepPath, steps_around


@frozen
class CompletedStep:
    """A completed step. `duration` is in seconds, `completed_at` in seconds since the epoch."""

    step: str
    output: Tree
    attempt: int
    duration: float
    completed_at: float


@frozen
class HistoryItem:
    """How one step ended. A history is in the order in which the steps first began.

    It has only the outcome of the last attempt, so a resumed run has the same history as an
    uninterrupted one.
    """

    step: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Counts about a run.

    Attributes:
        attempts: the number of attempts of each step, in the order in which they last began.
        resumes: the number of resumes.
        entries: the number of entries in its journal.
        items: the number of branches of each parallel operator that has so far begun steps, by its path;
            None if no items have had a length.
        unknown: the at-most-once steps that have begun and not ended; None without any.
    """

    attempts: dict[str, int] = field(default_factory=dict[str, int])
    resumes: int = 0
    entries: int = 0
    items: dict[str, int] | None = None
    unknown: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run: its journal, folded into one value.

    Values are trees of plain data, as they are saved. Only the workflow can turn them into typed values.
    `completed_steps` leaves out what the next attempt of a step around it executes again.
    `state` is None until the first step begins, and `finished` is None until the run ends.
    `suspended_at` is the time of the suspension, if that is the newest entry. `module` defined the
    workflow when the run started; it is a hint for users, and may be "". `forked_from` has the run, and
    its entry, from which the run was made, such as "order-7@12"; empty without one. `paused` is the
    newest entry of a run that someone has paused.
    """

    version: int
    run_id: str
    workflow: str
    kind: str
    definition: Definition
    initial_state: Tree
    current_state: Tree
    state: HeadState | None
    completed_steps: tuple[CompletedStep, ...]
    history: tuple[HistoryItem, ...]
    metadata: Metadata
    context: Tree
    created_at: float
    updated_at: float
    finished: Finished | None = None
    module: str = ""
    suspended_at: float | None = None
    forked_from: str = ""
    paused: Paused | None = None

    @property
    def id(self) -> str:
        """The id of this checkpoint: the run and the number of its entries."""
        return f"{self.run_id}@{self.metadata.entries}"

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        if self.finished is not None:
            return self.finished.status
        if self.suspended_at is not None:
            return RunStatus.SUSPENDED
        if self.paused is not None:
            return RunStatus.PAUSED
        return RunStatus.INTERRUPTED if isinstance(self.state, Interrupted) else RunStatus.RUNNING

    @property
    def digest(self) -> str:
        """The SHA-256 of the checkpoint, in hex. Raises NotSerializable as `to_tree`."""
        return tree_digest(_write(self))

    def to_tree(self) -> dict[str, Tree]:
        """Return the checkpoint as plain data, with its digest.

        Raises NotSerializable if the outputs of its steps have more than 64 MiB together.
        """
        tree = _write(self)
        return {**tree, "digest": tree_digest(tree)}

    def to_json(self) -> str:
        """Return the checkpoint as readable JSON, with times in ISO 8601; `from_json` reads it back."""
        tree = _over_times(self.to_tree(), iso_time)
        return write_json(tree, orjson.OPT_INDENT_2).decode()

    def to_binary(self) -> bytes:
        """Return the checkpoint in compact binary form; `from_binary` reads it back."""
        return encode_compact(self.to_tree())

    @staticmethod
    def from_json(text: str) -> Checkpoint:
        """Return the checkpoint that `to_json` saved.

        Raises CorruptCheckpoint for any other text, and UnsupportedVersion for text of a newer
        effectflow.
        """

        def decode(data: bytes) -> Any:
            return _over_times(decode_json(data), _seconds)

        return _read_with(decode, text.encode("utf-8", "surrogatepass"))

    @staticmethod
    def from_binary(data: bytes) -> Checkpoint:
        """Return the checkpoint that `to_binary` saved.

        Raises CorruptCheckpoint for any other data, and UnsupportedVersion for data of a newer
        effectflow.
        """
        return _read_with(decode_compact, data)


def _write(checkpoint: Checkpoint) -> dict[str, Tree]:
    definition = checkpoint.definition
    _check_size(checkpoint)
    tree = schema_of(Checkpoint).write(checkpoint)
    tree["definition"] = {
        **schema_of(Definition).write(definition),
        "fingerprint": definition.fingerprint,
    }
    first: dict[str, Tree] = {
        "version": checkpoint.version,
        "id": checkpoint.id,
        "run_id": checkpoint.run_id,
        "workflow": checkpoint.workflow,
        "kind": checkpoint.kind,
        "status": str(checkpoint.status),
    }
    return {**first, **tree, "finished": tree.get("finished")}


def _check_size(checkpoint: Checkpoint) -> None:
    """Raise NotSerializable if the outputs of the steps are longer than what is read back."""
    size = 0
    for step in checkpoint.completed_steps:
        size += len(write_json(step.output))
        if size > MAX_COMPACT_BYTES:
            raise NotSerializable(
                f"the checkpoint {checkpoint.id!r}",
                f"its steps have outputs of more than {MAX_COMPACT_BYTES:,} bytes in total. The journal "
                "saves what they have in common once: read its entries, or export the run",
            )


def _over_times(tree: Any, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the tree of a checkpoint with its times converted, and the data of workflows unchanged."""

    def over(part: Any, *names: str) -> Any:
        if part is None:
            return None
        return {**part, **{name: convert(part[name]) for name in names if name in part}}

    return {
        **over(tree, "created_at", "updated_at", "suspended_at"),
        "state": over(tree["state"], "at", "retry_at"),
        "completed_steps": [over(step, "completed_at") for step in tree["completed_steps"]],
        "finished": over(tree["finished"], "at"),
    }


def iso_time(seconds: Any) -> Any:
    """Return a time in ISO 8601, with exactly the digits of the number, so that it can be read back."""
    if seconds is None:
        return None
    whole, point, fraction = f"{Decimal(repr(seconds)):f}".partition(".")
    moment = datetime.fromtimestamp(int(whole), UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}{point}{fraction}+00:00"


def _seconds(text: Any) -> Any:
    """Return the seconds since the epoch of a time that `iso_time` wrote. Raise ValueError otherwise."""
    if not isinstance(text, str):
        return text
    whole, point, fraction = text.removesuffix("+00:00").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return float(f"{seconds}.{fraction}") if point else seconds


def _read_with(decode: Callable[[bytes], Tree], data: bytes) -> Checkpoint:
    try:
        tree: Any = decode(data)
        if tree["version"] > FORMAT:
            raise UnsupportedVersion("the checkpoint", tree["version"], FORMAT)
        if tree.pop("digest") != tree_digest(tree):
            raise ValueError("its digest is wrong")
        return schema_of(Checkpoint).read(tree)
    except (MalformedValue, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it was not saved by effectflow ({error!r})"
        raise CorruptCheckpoint("", reason, what="the checkpoint") from error


def fold(entries: Iterable[Entry], run_id: str) -> Checkpoint:
    """Return the checkpoint of a journal.

    Raises CorruptCheckpoint if the journal does not begin with `Started`, has two of them, belongs to
    another run, or ends a step that has not begun.
    """
    return Folding(run_id, entries).checkpoint()


class Folding:
    """The fold of a journal, which can go on with later entries. Raises as `fold`."""

    def __init__(self, run_id: str, entries: Iterable[Entry]) -> None:
        iterator = iter(entries)
        self._run_id = run_id
        self._started = started = _first_of(iterator, run_id)
        self._definition = Definition(
            started.workflow, started.version, started.kind, started.steps, started.structure
        )
        self._steps = _Steps()
        self._state: HeadState | None = None
        self._current = started.input
        self._finished: Finished | None = None
        self._last: Entry = started
        self._resumes, self._count = 0, 1
        self._has_changed = False
        self.go_on(iterator)

    def go_on(self, entries: Iterable[Entry]) -> None:
        """Fold the entries that follow."""
        steps, run_id = self._steps, self._run_id
        count, last = self._count, self._last
        # By its class, which takes a third of the time of a `match` with a class pattern.
        for count, last in enumerate(entries, self._count + 1):
            entry: Any = last
            kind_of_entry = entry.__class__
            if kind_of_entry is BeforeStep:
                self._state, self._finished = entry, None
                steps.begin(entry)
            elif kind_of_entry is Completed or kind_of_entry is Failed:
                self._state = entry
                if entry.step not in steps.attempts:
                    if not self._has_changed:
                        reason = f"it ends step {entry.step!r}, which has not begun"
                        raise CorruptCheckpoint(run_id, reason, sequence=count)
                    # A migration has renamed it since it began.
                    steps.attempts[entry.step] = 1
                if kind_of_entry is Failed:
                    steps.fail(entry)
                    continue
                steps.complete(entry)
                self._current = entry.output
            elif kind_of_entry is Interrupted:
                self._state = entry
            elif kind_of_entry is Resumed:
                # The first one directly after `Started` begins a submitted run.
                self._resumes += count > 2
                self._finished = None
                self._definition = _definition_after(entry, self._definition)
                self._has_changed = self._has_changed or entry.version is not None
            elif kind_of_entry is Finished:
                self._finished = entry
            elif kind_of_entry is Started:
                raise CorruptCheckpoint(run_id, "its journal begins twice", sequence=count)
        self._count, self._last = count, last

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint after the entries so far."""
        started, steps, last = self._started, self._steps, self._last
        return Checkpoint(
            version=FORMAT,
            run_id=self._run_id,
            workflow=started.workflow,
            kind=started.kind,
            definition=self._definition,
            initial_state=started.input,
            current_state=self._current,
            state=self._state,
            completed_steps=tuple(steps.completed.values()),
            history=tuple(item for item in steps.outcomes.values() if item is not None),
            metadata=Metadata(
                dict(steps.attempts),
                self._resumes,
                self._count,
                dict(steps.items) or None,
                tuple(steps.unknown) or None,
            ),
            context=started.context,
            created_at=started.at,
            updated_at=max(started.at, last.at),
            finished=self._finished,
            module=started.module,
            suspended_at=last.at if isinstance(last, Suspended) else None,
            forked_from=started.forked_from,
            paused=last if isinstance(last, Paused) else None,
        )


def summary_of(
    started: Started, status: RunStatus, *, due_at: float | None, details: RunDetails
) -> RunSummary:
    """Return the summary of a run that began with this entry."""
    tenant = started.context.get("tenant", "") if isinstance(started.context, dict) else ""
    return RunSummary(
        started.workflow,
        status,
        started.at,
        due_at,
        started.priority,
        started.parent,
        tenant if isinstance(tenant, str) else encode_json(tenant).decode(),
        started.queue,
        started.key,
        details,
    )


def _first_of(entries: Iterator[Entry], run_id: str) -> Started:
    started = next(entries, None)
    if not isinstance(started, Started):
        reason = "its journal does not begin with a `started` entry"
        raise CorruptCheckpoint(run_id, reason, intact=0)
    if started.run_id != run_id:
        raise CorruptCheckpoint(run_id, f"its journal is that of run {started.run_id!r}", intact=0)
    if not isinstance(started.context, dict):
        raise CorruptCheckpoint(run_id, "its context is not a mapping", intact=0)
    return started


def _definition_after(resumed: Resumed, definition: Definition) -> Definition:
    """Return the definition from a resume on, which may have another one than the run before."""
    if resumed.version is None:
        return definition
    return replace(
        definition,
        version=resumed.version,
        steps=resumed.steps,
        structure=resumed.structure,
    )


class _Steps:
    """What entries tell about steps, by their paths.

    Attributes:
        outcomes: how each step ended, in the order in which the steps first began; None if it has not.
        completed: the completed steps, without those that the next attempt of an outer step repeats.
        attempts: the number of attempts, in the order in which the steps last began.
        items, unknown: as in `Metadata`.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, HistoryItem | None] = {}
        self.completed: dict[str, CompletedStep] = {}
        self.attempts: dict[str, int] = {}
        self.items: dict[str, int] = {}
        self.unknown: dict[str, None] = {}
        self._completed_within: dict[str, list[str]] = {}

    def begin(self, begun: BeforeStep) -> None:
        step = begun.step
        # It keeps its place, and what an earlier attempt has led to counts no longer.
        self.outcomes[step] = None
        # A step that begins again moves to the end.
        self.attempts.pop(step, None)
        self.attempts[step] = begun.attempt
        if begun.at_most_once:
            self.unknown[step] = None
        if begun.items is not None:
            self.items[str(StepPath(step).flow.operator)] = begun.items

    def complete(self, ended: Completed) -> None:
        step = ended.step
        self.completed[step] = CompletedStep(
            step, ended.output, self.attempts[step], ended.duration, ended.at
        )
        if "/" in step:
            for outer in steps_around(step, self.attempts):
                self._completed_within.setdefault(outer, []).append(step)
        self.unknown.pop(step, None)
        self.outcomes[step] = HistoryItem(step, "completed")

    def fail(self, ended: Failed) -> None:
        step, error = ended.step, ended.error
        if ended.retry_at is not None:
            # The next attempt executes what is inside the step again.
            for inner in self._completed_within.pop(step, ()):
                self.completed.pop(inner, None)
        self.unknown.pop(step, None)
        self.outcomes[step] = HistoryItem(step, "failed", f"{error.type}: {error.message}")
