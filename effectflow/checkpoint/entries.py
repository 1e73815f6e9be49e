"""What a run's journal is made of.

A journal is append-only. Every entry says when it was written (`at`, seconds since the epoch), and
carries values as trees of plain data (see `values`), never as objects. Entries refer to one another by
their sequence number: the place in the journal, from 1.

The entries of the first three groups follow the rules of replay: see `docs/durability.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree, render_arguments

__all__ = [
    "Arguments",
    "BeforeStep",
    "BranchesEnded",
    "CancelRequested",
    "ChildEnded",
    "ChildStarted",
    "Completed",
    "Decided",
    "Entry",
    "ErrorRecord",
    "Failed",
    "Finished",
    "HeadState",
    "Interrupted",
    "Ranges",
    "Resumed",
    "SourceEnd",
    "Started",
    "Waiting",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sequence numbers, as pairs of the first and the last of a range."""


# What a run is.


@dataclass(frozen=True, slots=True)
class Started:
    """The run exists. Always the first entry.

    Attributes:
        run_id: the run, so that an entry that strayed into another journal is noticed.
        workflow, kind, version: which workflow it is a run of.
        fingerprint, steps, structure: the workflow's definition when the run was started.
        input: what the workflow was started with.
        context: what the caller attached to the run (tenant, user, trace id).
        format: the version of the entry format.
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


@dataclass(frozen=True, slots=True)
class Resumed:
    """A process continues the run: this comes before the first entry that it adds.

    Attributes:
        owner: which process.
        version, steps, structure: the workflow's definition from here on, if it has changed; `version` is
            None if it has not.
        abandoned: entries that a changed workflow was allowed to leave behind.
        reopened: paths of operators whose branches are run again, although the run was complete.
    """

    owner: str
    at: float
    version: str | None = None
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    abandoned: Ranges = ()
    reopened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error as the journal keeps it.

    Attributes:
        type: the name of its class, with its module unless that is built in.
        message: the error as text.
        value: the error itself, to be rebuilt from a declared type; None if it has no such form.
        traceback: where a defect was raised; None for a typed failure.
    """

    type: str
    message: str
    value: Tree = None
    traceback: str | None = None

    @property
    def is_defect(self) -> bool:
        """Whether it was an undeclared exception."""
        return self.traceback is not None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run ended: completed with an output, failed with an error, or cancelled."""

    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The run is being cancelled: its finalizers may execute steps, and then it is `cancelled`."""

    at: float
    reason: str = ""


# Steps, child runs and waits: what a flow executes. They begin with the failures that they settle.


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a step was called with: a digest to compare, and the beginning of its JSON to show."""

    digest: str
    preview: str

    @property
    def shown(self) -> str:
        """The arguments as text for people."""
        return render_arguments(self.preview)


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """How the source of a finalizer ended, recorded when the finalizer begins its first step.

    Attributes:
        finalizer: the path of the finalizer.
        kind: "success"; "failure" or "defect" of a step that has an entry, or of none; "cancelled".
        sequence: the entry of the failure, or of the decision that cancelled the source.
        error: a failure or defect that has no entry of its own. A resume does not run the source then.
        reached: with such an error, the last segment of each name that the flow has used so far.
    """

    finalizer: str
    kind: str
    sequence: int | None = None
    error: ErrorRecord | None = None
    reached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BeforeStep:
    """A step is about to run, for the `attempt`-th time (from 1).

    Attributes:
        arguments: what it is called with.
        function: the qualified name of its function, for messages.
        item: in the first entry of a branch without a key, the digest of the item that it works on.
        settles: the failures that the workflow has handled by going on to this step.
        source_ends: how the sources of finalizers ended of which this is the first step.
    """

    step: str
    attempt: int
    at: float = 0.0
    arguments: Arguments | None = None
    function: str | None = None
    item: str | None = None
    settles: Ranges = ()
    source_ends: tuple[SourceEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """A step succeeded. `duration` is in seconds; `settles` are failures inside the step."""

    step: str
    output: Tree
    duration: float
    at: float = 0.0
    settles: Ranges = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt of a step failed.

    Attributes:
        retryable: whether a resume runs the step again.
        retry_at: when the step's own retry policy tries it again, in seconds since the epoch; None if
            it does not, so that the failure is that of the step.
    """

    step: str
    error: ErrorRecord
    retryable: bool
    at: float = 0.0
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run was told to stop. `step` is the one that was cut off, if it was `in_progress`."""

    step: str | None
    in_progress: bool
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A run within this run is about to start, or to be resumed. The fields are as in `BeforeStep`.

    Attributes:
        run_id: the id of the child.
        workflow: the workflow that it is a run of.
        input: the digest of its input.
    """

    path: str
    run_id: str
    workflow: str
    input: str
    at: float
    item: str | None = None
    settles: Ranges = ()
    source_ends: tuple[SourceEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run within this run ended: `completed` with an output, or `failed` with an error."""

    path: str
    status: RunStatus
    at: float
    output: Tree = None
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A flow waits until a time, in seconds since the epoch."""

    path: str
    until: float
    at: float
    item: str | None = None
    settles: Ranges = ()


# Decisions: what operators found out.


@dataclass(frozen=True, slots=True)
class Decided:
    """A value was computed once, or an operator decided: a winner, an expired timeout, a first failure.

    Attributes:
        failed: whether it means a failure. Such a decision stands once it is settled.
        because: the failures that led to it, which are settled with it.
    """

    path: str
    value: Tree
    at: float
    failed: bool = False
    because: Ranges = ()
    settles: Ranges = ()


@dataclass(frozen=True, slots=True)
class BranchesEnded:
    """All branches that an operator cancelled have ended, and their finalizers have executed steps."""

    path: str
    at: float


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
    | CancelRequested
    | Finished
)

HeadState: TypeAlias = BeforeStep | Completed | Failed | Interrupted
"""Where a run stands: the newest of its entries that speaks of a step."""
