"""The entries of a run's journal.

A journal is append-only. Every entry has the time when it was written (`at`, seconds since the epoch).
It contains values as trees of plain data (see `values`), never as objects. Entries refer to each other
by sequence number: the position in the journal, from 1.

A resume takes the entries of a run in the order of their turns, which is the order in which everything
happened: see `docs/durability.md`. An entry that is written later than it happened has an earlier turn.

On disk, an entry is JSON or CBOR, distinguished by the first byte: see `docs/format.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal, TypeAlias

from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.run_info import RunStatus, has_result
from effectflow.checkpoint.schema import Schema, frozen, schema_of
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_entry_tree,
    encode_cbor,
    encode_json,
    encode_without_long,
    render_arguments,
)

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of sequence numbers: pairs of the first and the last."""


# The run itself.


@frozen
class Started:
    """The run exists. Always the first entry.

    Attributes:
        run_id: the id of the run, which detects a journal under another id.
        workflow, kind, version: the workflow of the run.
        fingerprint, steps, structure: the workflow's definition when the run was started.
        input: the input of the workflow.
        context: plain data that the caller attached to the run (tenant, user, trace id).
        journal: the version of the entry format.
        module: the module that defines the workflow. It is shown to users, and never imported.
        priority: workers take runs with a higher priority first.
        parent: the run that spawned it; empty without one.
        forked_from: the run, and the entry of it, from which this one was made, such as "order-7@12";
            empty without one.
        by: who made it of that run.
        kept: what observers keep with the life that begins here, by name, such as its trace; or None.
        queue, key: as in `RunSummary`.
    """

    run_id: str
    workflow: str
    kind: str
    version: str
    fingerprint: str
    input: Tree
    context: Tree
    journal: int
    at: float
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    module: str = ""
    priority: int = 0
    parent: str = ""
    forked_from: str = ""
    by: str = ""
    kept: Tree = None
    queue: str = ""
    key: str = ""


@frozen
class Resumed:
    """A process continues or changes the run. This entry comes before the first one that it adds.

    Attributes:
        owner: the process.
        version, steps, structure: the definition of the workflow from here on, if it changed. Otherwise
            `version` is None.
        void: entries that count no longer: what they record is tried again.
        abandoned: entries that a changed workflow does not reach in their order. If it reaches one of
            these steps later, with the same arguments, the recorded result stands.
        dropped: the entries with which something was set aside that counts no longer.
        after_crash: whether the worker found that the process before it had died with the run.
        by: who changed the run, such as "ann@host"; empty if a process continues it.
        kept: as in `Started`.
    """

    owner: str
    at: float
    version: str | None = None
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    void: Ranges = ()
    abandoned: Ranges = ()
    dropped: Ranges = ()
    after_crash: bool = False
    by: str = ""
    kept: Tree = None


@frozen
class ErrorRecord:
    """An error as the journal stores it.

    Attributes:
        type: the name of its class, with the module unless it is built in.
        message: the error as text.
        value: the data from which it is rebuilt; None if that is not possible.
        traceback: the traceback of a defect; None for a typed failure.
        trail: the trail of a failure: the contexts that it crossed, from inner to outer, and a line for
            each finalizer that failed on its way.
        suppressed: the errors of these finalizers, in the order of their lines.
    """

    type: str
    message: str
    value: Tree = None
    traceback: str | None = None
    trail: tuple[str, ...] = ()
    suppressed: tuple[ErrorRecord, ...] = ()

    def __post_init__(self) -> None:
        # A resume raises a defect, so the defect must be an exception.
        if self.is_defect and isinstance(self.value, dict) and "value" in self.value:
            raise ValueError(f"the recorded defect {self.type} is not an exception")

    @property
    def is_defect(self) -> bool:
        """Whether it was an undeclared exception."""
        return self.traceback is not None


@frozen
class Finished:
    """The run ended: completed with an output, failed with an error, or cancelled.

    Only a complete run has `run_id`, `version` and `input`. They tell to which run and input the output
    belongs, without reading all entries.

    Attributes:
        retry: the entries that a resume of a failed run leaves out, to try again what they record.
        run_id: the run.
        version: the version of the workflow that completed it.
        input: the digest of the input, in the form of that version.
    """

    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None
    retry: Ranges = ()
    run_id: str = ""
    version: str = ""
    input: str = ""

    def __post_init__(self) -> None:
        _check_end(self.status, self.error, is_with_error=(RunStatus.FAILED,))


@frozen
class CancelRequested:
    """The run is being cancelled: its finalizers may execute steps, and then it is `cancelled`.

    `place` is the path of what the body waited for, and `by` who asked, such as "ann@host".
    """

    at: float
    place: str = ""
    turn: int = 0
    by: str = ""


# Beginnings: steps, waits, children, and what is published. Each has a place in the order.


@frozen
class BeforeStep:
    """An attempt of a step is about to begin. `attempt` counts from 1.

    Attributes:
        arguments: a digest of the arguments of the step, to compare them.
        preview: the beginning of their JSON, for people. If they are long, it leaves out the output of
            the step before, and is empty if there are no others.
        at_most_once: whether the step is not executed again silently.
        turn: its turn in the order of the run; of all entries with this field.
        items: the number of branches of the operator that the step is in. Only the first step that one of
            them begins in a life has it, if the number is known.
    """

    step: str
    attempt: int = 1
    at: float = 0.0
    arguments: str | None = None
    preview: str = ""
    at_most_once: bool = False
    turn: int = 0
    items: int | None = None

    @property
    def shown(self) -> str:
        """The arguments as text for people."""
        if self.arguments is not None and not self.preview:
            return "the output of the step before"
        return render_arguments(self.preview)


@frozen
class Waiting:
    """A fiber waits: until a time, for a message, or for the end of another run.

    Attributes:
        until: the time, in seconds since the epoch; None without one.
        topic: the topic of the message; empty without one.
        child: the id of the run; empty without one.
    """

    path: str
    until: float | None
    at: float
    topic: str = ""
    child: str = ""
    turn: int = 0


@frozen
class ChildStarted:
    """The run is about to create another run, which any worker may drive.

    Attributes:
        run_id: the id of the child.
        workflow: the workflow of the child.
        input: the digest of its input.
        is_detached: whether it continues when this run is cancelled.
    """

    path: str
    run_id: str
    workflow: str
    input: str
    at: float
    is_detached: bool = False
    turn: int = 0


@frozen
class Published:
    """The run published a value for others to read. The next value with the same key replaces it.

    The path is empty within a step, as each attempt publishes again.
    """

    path: str
    key: str
    value: Tree
    at: float
    turn: int = 0


@frozen
class SetAside:
    """A failure was set aside, so that the run continues without what failed. It stands from here on.

    Attributes:
        value: what failed, for people and for another attempt.
    """

    path: str
    value: Tree
    at: float
    turn: int = 0


# Events: what came from outside. Each is a turn of its own.


@frozen
class Completed:
    """A step succeeded.

    Attributes:
        step: the path of the step.
        output: what it yielded.
        duration: in seconds.
        at: when it ended.
        stands: whether something within the step began because it was cancelled.
        shared: the parts of the output that earlier entries have: for each part, its place, the number of
            the entry, and the place there; see `shared_parts`. The output that is read has them.
    """

    step: str
    output: Tree
    duration: float
    at: float = 0.0
    stands: bool = False
    shared: Tree = None
    turn: int = 0


@frozen
class Failed:
    """An attempt of a step failed.

    Attributes:
        retryable: whether a resume may run the step again.
        retry_at: when the retry policy of the step attempts it again, in seconds since the epoch; None
            if the step fails with this failure.
        inside: the entries within the step that are void with this one.
        stands: as in `Completed`.
    """

    step: str
    error: ErrorRecord
    retryable: bool
    at: float = 0.0
    retry_at: float | None = None
    inside: Ranges = ()
    stands: bool = False
    turn: int = 0


@frozen
class Interrupted:
    """A step was cut off, or the run was told to stop.

    An operator that cancelled the step is part of the run, so its end is an event: `cancelled`. A stop of
    the run is none: its resume continues the step. If an executor lost an at-most-once step, `reason` is
    the class of the error.

    Attributes:
        step: the path of the step; that of the last step if none was in progress.
        in_progress: whether the step was.
        cancelled: whether an operator of the run has cancelled the step.
        inside, stands: as in `Failed`.
    """

    step: str | None
    in_progress: bool
    reason: str = ""
    at: float = 0.0
    cancelled: bool = False
    inside: Ranges = ()
    stands: bool = False
    turn: int = 0


@frozen
class TimerFired:
    """The time of a wait or of a deadline has come."""

    path: str
    at: float
    turn: int = 0


@frozen
class Signalled:
    """A wait received a message. This entry removes the message from the mailbox.

    Attributes:
        path: the path of the wait.
        topic, key: the topic and the key of the message.
        value: the value in the message.
    """

    path: str
    topic: str
    key: str
    value: Tree
    at: float
    turn: int = 0


@frozen
class ChildEnded:
    """Another run has ended: `completed` with an output, `failed` with an error, or `cancelled`.

    The path is that of the wait for its result. A run with the path of its `ChildStarted` was rejected,
    because its id belongs to another run.
    """

    path: str
    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None
    turn: int = 0

    def __post_init__(self) -> None:
        _check_end(self.status, self.error, is_with_error=(RunStatus.FAILED, RunStatus.CANCELLED))


@frozen
class Local:
    """Async code outside of steps has ended while other fibers were waiting. A resume runs it again.

    Attributes:
        end: "ok", "failed", or "cut" if an operator of the run has cancelled it.
    """

    path: str
    at: float
    end: str = "ok"
    turn: int = 0


def _check_end(
    status: RunStatus, error: ErrorRecord | None, *, is_with_error: Collection[RunStatus]
) -> None:
    """Raise ValueError if a run cannot have ended in this way, so that no reader has to ask."""
    if not has_result(status) or (error is not None) is not (status in is_with_error):
        raise ValueError(
            f"no run ends as {status} {'without' if error is None else 'with'} an error"
        )


# Without a place in the order.


@frozen
class Value:
    """A value was computed once: the time, a random number, an answer of `patched`, the delay before a
    retry, the end of a limit.
    """

    path: str
    value: Tree
    at: float


@frozen
class Suspended:
    """All fibers of the run wait, so its process released it. This is the last entry of a life."""

    at: float


@frozen
class Paused:
    """Someone (`by`) has paused the run. No worker continues it until it is resumed or unpaused.

    `due_at` is when it would have been due otherwise; None if it was due or waited without a time.
    """

    at: float
    by: str = ""
    due_at: float | None = None


Ordered: TypeAlias = (
    BeforeStep
    | Waiting
    | ChildStarted
    | Published
    | SetAside
    | Completed
    | Failed
    | Interrupted
    | TimerFired
    | Signalled
    | ChildEnded
    | Local
    | CancelRequested
)
"""An entry that has its place in the order, so that a replay takes it."""

Entry: TypeAlias = Started | Resumed | Value | Suspended | Paused | Finished | Ordered

BEGINNINGS = (BeforeStep, Waiting, ChildStarted, Published, SetAside)
"""The classes of the entries with which an operation begins."""

HeadState: TypeAlias = BeforeStep | Completed | Failed | Interrupted
"""The head state of a run: its newest entry about a step."""


# Entries as bytes.

Format: TypeAlias = Literal["json", "cbor"]

FORMAT = 1
"""The version of the format. The first entry of a journal records it."""

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""The maximum size of an entry, and of an output with the parts that it has of earlier ones."""

_KINDS: Mapping[str, type[Entry]] = {
    "started": Started,
    "resumed": Resumed,
    "before_step": BeforeStep,
    "waiting": Waiting,
    "child_started": ChildStarted,
    "published": Published,
    "set_aside": SetAside,
    "completed": Completed,
    "failed": Failed,
    "interrupted": Interrupted,
    "timer_fired": TimerFired,
    "signalled": Signalled,
    "child_ended": ChildEnded,
    "local": Local,
    "value": Value,
    "suspended": Suspended,
    "paused": Paused,
    "cancel_requested": CancelRequested,
    "finished": Finished,
}
"""The names of the entry classes on disk."""

_SCHEMAS: Mapping[str, Schema[Entry]] = {
    name: schema_of(kind, tag=name) for name, kind in _KINDS.items()
}

_SCHEMA_OF: Mapping[type[Entry], Schema[Entry]] = {
    kind: _SCHEMAS[name] for name, kind in _KINDS.items()
}


def write_entry(entry: Entry) -> dict[str, Tree]:
    """Return an entry as plain data."""
    return _SCHEMA_OF[entry.__class__].write(entry)


def read_entry(tree: Mapping[str, Any]) -> Entry:
    """Return the entry in plain data. Raise KeyError, TypeError or ValueError for other data."""
    return _SCHEMAS[tree["entry"]].read(tree)


def encode_without_base64(
    entry: Entry, format: Format, most: int, *, before: float = inf
) -> tuple[bytes, int]:
    """Return an entry as bytes, without base64 of more than `most` bytes, and the length of that.

    `before` is the time of the entry before it.
    """
    tree = write_entry(entry)
    if entry.at == before and entry.__class__ is BeforeStep and before:
        del tree["at"]
    return (encode_cbor(tree), 0) if format == "cbor" else encode_without_long(tree, most)


def encode_entry(entry: Entry, format: Format = "json") -> bytes:
    """Return an entry as bytes."""
    tree = write_entry(entry)
    return encode_json(tree) if format == "json" else encode_cbor(tree)


def decode_entry(data: bytes, run_id: str, sequence: int, *, before: float = 0.0) -> Entry:
    """Return the entry with this sequence number from bytes.

    `before` is the time of the entry before it, which a step that begins at once does not repeat.

    Raises CorruptCheckpoint if the bytes are not an entry, and UnsupportedVersion if a newer effectflow
    wrote it.
    """
    try:
        tree: Any = decode_entry_tree(data)
        kind = tree["entry"]
        if kind == "started":
            _check_format(tree.get("journal"), run_id)
        elif kind == "before_step" and "at" not in tree:
            tree["at"] = before
        return _SCHEMAS[kind].read(tree)
    except MalformedValue as error:
        raise CorruptCheckpoint(run_id, str(error), sequence=sequence) from error
    except (KeyError, TypeError, ValueError) as error:
        reason = (
            f"this version does not know such an entry ({error!r}): upgrade effectflow if a newer one "
            "wrote it"
        )
        raise CorruptCheckpoint(run_id, reason, sequence=sequence, is_damaged=False) from error


def _check_format(version: object, run_id: str) -> None:
    """Raise UnsupportedVersion for a journal of a newer effectflow, or one from before version 1."""
    if version is None:
        raise UnsupportedVersion(f"run {run_id!r}", 0, FORMAT)
    if isinstance(version, int) and version < 1:
        raise ValueError(f"unknown format {version}")
    if isinstance(version, int) and version > FORMAT:
        raise UnsupportedVersion(f"run {run_id!r}", version, FORMAT)
