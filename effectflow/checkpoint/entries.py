"""The entries of a run's journal.

A journal is append-only. Every entry has the time when it was written (`at`, seconds since the epoch).
It contains values as trees of plain data (see `values`), never as objects. Entries refer to each other
by sequence number: the position in the journal, from 1.

The entries of the first three groups follow the rules of replay: see `docs/durability.md`.

On disk, an entry is JSON or CBOR, distinguished by the first byte: see `docs/format.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from effectflow.checkpoint.errors import CorruptCheckpoint, UnsupportedVersion
from effectflow.checkpoint.schema import Schema, frozen, schema_of
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import (
    MalformedValue,
    Tree,
    decode_entry_tree,
    encode_cbor,
    encode_json,
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
        format: the version of the entry format.
        module: the module that defines the workflow. It is shown to users, and never imported.
        priority: workers take runs with a higher priority first.
        parent: the run that spawned it or within which it is nested; empty without one.
        is_nested: whether the parent drives it.
    """

    run_id: str
    workflow: str
    kind: str
    version: str
    fingerprint: str
    input: Tree
    context: Tree
    format: int
    at: float
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    module: str = ""
    priority: int = 0
    parent: str = ""
    is_nested: bool = False


@frozen
class Resumed:
    """A process continues the run. This entry comes before the first one that the process adds.

    Attributes:
        owner: the process.
        version, steps, structure: the definition of the workflow from here on, if it changed. Otherwise
            `version` is None.
        abandoned: entries that a changed workflow may leave behind.
        retried: the dead letters whose items are mapped again, by the entries that set them aside.
        dropped: the dead letters that no longer count, by the entries that set them aside.
        after_crash: whether the worker found that the process before it had died with the run.
    """

    owner: str
    at: float
    version: str | None = None
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    abandoned: Ranges = ()
    retried: Ranges = ()
    dropped: Ranges = ()
    after_crash: bool = False


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

    Only a complete run has the last three fields. They tell to which run and input the output belongs,
    without reading all entries.

    Attributes:
        run_id: the run.
        version: the version of the workflow that completed it.
        input: the digest of the input, in the form of that version.
    """

    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None
    run_id: str = ""
    version: str = ""
    input: str = ""


@frozen
class CancelRequested:
    """The run is being cancelled: its finalizers may execute steps, and then it is `cancelled`."""

    at: float
    reason: str = ""


# Steps, child runs and waits: what a flow executes. Their first entries list the failures that they
# settle.


@frozen
class Arguments:
    """The arguments of a step: a digest to compare, and the beginning of their JSON to show."""

    digest: str
    preview: str

    @property
    def shown(self) -> str:
        """The arguments as text for people."""
        return render_arguments(self.preview)


@frozen
class SourceEnd:
    """How the source of a finalizer ended, recorded when the finalizer begins its first step.

    Attributes:
        finalizer: the path of the finalizer.
        kind: "success", "failure", "defect" or "cancelled".
        sequence: the entry of the failure or defect, or of the decision that cancelled the source.
        error: a failure or defect that has no other entry. A resume then does not run the source.
        reached: with an `error`, the last segment of each name that the flow has used so far.
    """

    finalizer: str
    kind: str
    sequence: int | None = None
    error: ErrorRecord | None = None
    reached: tuple[str, ...] = ()


@frozen
class BeforeStep:
    """An attempt of a step is about to begin. `attempt` counts from 1.

    Attributes:
        arguments: the arguments of the step.
        function: the qualified name of its function, for messages.
        item: the digest of the branch's item, in the first entry of a branch without a key.
        settles: the failures that the workflow handled by continuing to this step.
        source_ends: the ends of the sources of all finalizers whose first step this is.
        at_most_once: whether the step is not executed again silently.
    """

    step: str
    attempt: int
    at: float = 0.0
    arguments: Arguments | None = None
    function: str | None = None
    item: str | None = None
    settles: Ranges = ()
    source_ends: tuple[SourceEnd, ...] = ()
    at_most_once: bool = False


@frozen
class Completed:
    """A step succeeded.

    Attributes:
        step: the path of the step.
        output: what it yielded.
        duration: in seconds.
        at: when it ended.
        settles: failures inside the step.
        shared: in the store, the parts of the output that earlier entries have: for each part, its place,
            the number of the entry, and the place there; see `shared_parts`. None after reading.
    """

    step: str
    output: Tree
    duration: float
    at: float = 0.0
    settles: Ranges = ()
    shared: Tree = None


@frozen
class Failed:
    """An attempt of a step failed.

    Attributes:
        retryable: whether a resume may run the step again.
        retry_at: when the retry policy of the step attempts it again, in seconds since the epoch; None
            if the step fails with this failure.
    """

    step: str
    error: ErrorRecord
    retryable: bool
    at: float = 0.0
    retry_at: float | None = None


@frozen
class Interrupted:
    """The run was told to stop. `step` was interrupted if it was `in_progress`.

    If an executor lost an at-most-once step, `reason` is the class of the error.
    """

    step: str | None
    in_progress: bool
    reason: str = ""
    at: float = 0.0


@frozen
class ChildStarted:
    """A run within this run is about to start or to be resumed. Other fields are as in `BeforeStep`.

    Attributes:
        run_id: the id of the child.
        workflow: the workflow of the child.
        input: the digest of its input.
        is_spawned: whether it is an independent run, which any worker may drive.
        is_detached: whether it continues when this run is cancelled.
    """

    path: str
    run_id: str
    workflow: str
    input: str
    at: float
    item: str | None = None
    settles: Ranges = ()
    source_ends: tuple[SourceEnd, ...] = ()
    is_spawned: bool = False
    is_detached: bool = False


@frozen
class ChildEnded:
    """A run within this run ended: `completed` with an output, `failed` with an error, or `cancelled`.

    For a nested run, the path is that of its `ChildStarted`. For a spawned run, it is that of the wait
    for its result. A spawned run with the path of its `ChildStarted` was rejected, because its id belongs
    to another run.
    """

    path: str
    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None


@frozen
class Waiting:
    """A flow waits: until a time, for a message, or for the end of a spawned run.

    Attributes:
        until: the time, in seconds since the epoch; None without one.
        topic: the topic of the message; empty without one.
        child: the id of the spawned run; empty without one.
    """

    path: str
    until: float | None
    at: float
    item: str | None = None
    settles: Ranges = ()
    topic: str = ""
    child: str = ""


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


@frozen
class Published:
    """The run published a value for others to read. The next value with the same key replaces it.

    The other fields are as in `BeforeStep`.
    """

    path: str
    key: str
    value: Tree
    at: float
    item: str | None = None


@frozen
class Suspended:
    """All flows of the run wait, so its process released it. This is the last entry of a life."""

    at: float


# The decisions of operators.


@frozen
class Decided:
    """A value was computed once, or an operator decided: a winner, an expired timeout, a first failure.

    Attributes:
        failed: whether it is a failure. A failed decision stands only once it is settled.
        because: the failures that led to it, which are settled together with it.
    """

    path: str
    value: Tree
    at: float
    failed: bool = False
    because: Ranges = ()
    settles: Ranges = ()


@frozen
class BranchesEnded:
    """All branches that an operator cancelled have ended. Their finalizers executed steps.

    Attributes:
        failures: the errors of finalizers in these branches. A resume does not repeat them.
    """

    path: str
    at: float
    failures: tuple[ErrorRecord, ...] = ()


Entry: TypeAlias = (
    Started
    | Resumed
    | BeforeStep
    | Completed
    | Failed
    | Interrupted
    | Decided
    | BranchesEnded
    | ChildStarted
    | ChildEnded
    | Waiting
    | Signalled
    | Published
    | Suspended
    | CancelRequested
    | Finished
)

HeadState: TypeAlias = BeforeStep | Completed | Failed | Interrupted
"""The head state of a run: its newest entry about a step."""


# Entries as bytes.

Format: TypeAlias = Literal["json", "cbor"]

FORMAT = 1
"""The version of the format. The first entry of a journal records it."""

_KINDS: Mapping[str, type[Entry]] = {
    "started": Started,
    "resumed": Resumed,
    "before_step": BeforeStep,
    "completed": Completed,
    "failed": Failed,
    "interrupted": Interrupted,
    "decided": Decided,
    "branches_ended": BranchesEnded,
    "child_started": ChildStarted,
    "child_ended": ChildEnded,
    "waiting": Waiting,
    "signalled": Signalled,
    "published": Published,
    "suspended": Suspended,
    "cancel_requested": CancelRequested,
    "finished": Finished,
}
"""The names of the entry classes on disk."""

_SCHEMAS: Mapping[str, Schema[Entry]] = {
    name: schema_of(kind, tag=name) for name, kind in _KINDS.items()
}

_WRITERS: Mapping[type[Entry], Callable[[Any], dict[str, Tree]]] = {
    kind: _SCHEMAS[name].write for name, kind in _KINDS.items()
}


def write_entry(entry: Entry) -> dict[str, Tree]:
    """Return an entry as plain data."""
    return _WRITERS[entry.__class__](entry)


def read_entry(tree: Mapping[str, Any]) -> Entry:
    """Return the entry in plain data. Raise KeyError, TypeError or ValueError for other data."""
    return _SCHEMAS[tree["entry"]].read(tree)


def encode_entry(entry: Entry, format: Format = "json") -> bytes:
    """Return an entry as bytes."""
    tree = _WRITERS[entry.__class__](entry)
    return encode_json(tree) if format == "json" else encode_cbor(tree)


def decode_entry(data: bytes, run_id: str, sequence: int) -> Entry:
    """Return the entry with this sequence number from bytes.

    Raises CorruptCheckpoint if the bytes are not an entry, and UnsupportedVersion if a newer effectflow
    wrote it.
    """
    try:
        tree: Any = decode_entry_tree(data)
        entry = read_entry(tree)
        if isinstance(entry, Started) and entry.format < 1:
            raise ValueError(f"unknown format {entry.format}")
    except MalformedValue as error:
        raise CorruptCheckpoint(run_id, str(error), sequence=sequence) from error
    except (KeyError, TypeError, ValueError) as error:
        reason = (
            f"this version does not know such an entry ({error!r}): upgrade effectflow if a newer one "
            "wrote it"
        )
        raise CorruptCheckpoint(run_id, reason, sequence=sequence, is_damaged=False) from error
    if isinstance(entry, Started) and entry.format > FORMAT:
        raise UnsupportedVersion(f"run {run_id!r}", entry.format, FORMAT)
    return entry
