"""What a run's journal is made of.

A journal is append-only. Every entry says when it was written (`at`, seconds since the epoch), and
carries values as trees of plain data (see `values`), never as objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree

__all__ = [
    "Arguments",
    "BeforeStep",
    "Completed",
    "Entry",
    "ErrorRecord",
    "Failed",
    "Finished",
    "HeadState",
    "Interrupted",
    "Recorded",
    "Resumed",
    "Started",
]


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
    steps: tuple[str, ...]
    input: Tree
    context: Tree
    format: int
    at: float
    structure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A process has taken the run up again.

    Attributes:
        owner: which process.
        version, steps, structure: the workflow's definition from here on, if it is not what it was;
            `version` is None if it is.
        format: the version of the format from here on; None if it is what it was.
    """

    owner: str
    at: float
    version: str | None = None
    steps: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    format: int | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a step was called with: a digest to compare, and a bounded text to show."""

    digest: str
    shown: str


@dataclass(frozen=True, slots=True)
class BeforeStep:
    """A step is about to run, for the `attempt`-th time (from 1)."""

    step: str
    attempt: int
    arguments: Arguments | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """A step succeeded. `duration` is in seconds."""

    step: str
    output: Tree
    duration: float
    at: float = 0.0


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
class Failed:
    """A step failed. A resume runs it again if it is `retryable`."""

    step: str
    error: ErrorRecord
    retryable: bool
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run was told to stop. `step` is the one that was cut off, if it was `in_progress`."""

    step: str | None
    in_progress: bool
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `now()`, `random()` or `uuid()` gave between steps, or what a parallel operator decided.

    `is_failure` says that it was decided to fail: that stands once the workflow has handled it.
    """

    step: str
    value: Tree
    at: float = 0.0
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The run ended: completed with an output, or failed with an error."""

    status: RunStatus
    output: Tree = None
    error: ErrorRecord | None = None
    at: float = 0.0


Entry: TypeAlias = (
    Started | Resumed | BeforeStep | Completed | Failed | Interrupted | Recorded | Finished
)

HeadState: TypeAlias = BeforeStep | Completed | Failed | Interrupted
"""Where a run stands: the newest of its entries that speaks of a step."""
