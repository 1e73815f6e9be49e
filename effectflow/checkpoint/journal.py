"""A journal read back: a pure fold of its entries to the `Checkpoint` of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    Entry,
    Failed,
    Finished,
    HeadState,
    Interrupted,
    Recorded,
    Resumed,
    Started,
)
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.store import RunStatus
from effectflow.checkpoint.values import Tree, encode_json

__all__ = ["Checkpoint", "CompletedStep", "HistoryItem", "Metadata", "fold"]


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that is done. `duration` is in seconds, `completed_at` in seconds since the epoch."""

    step: str
    output: Tree
    attempt: int
    duration: float
    completed_at: float


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """How one step ended, in the order in which the steps were first begun.

    A step that failed and was run again by a resume has the outcome of its last attempt only, so a
    resumed run has the history of one that was never stopped.
    """

    step: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a run has cost so far.

    Attributes:
        attempts: how often each step was begun.
        resumes: how often the run was taken up again.
        entries: how many entries its journal has.
    """

    attempts: dict[str, int] = field(default_factory=dict[str, int])
    resumes: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stands: everything that its journal says, folded into one value.

    Values are trees of plain data, as they are saved; the workflow that owns the run gives them their
    types back. `state` is None until the first step begins; `finished` is None until the run ends.
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

    @property
    def id(self) -> str:
        """Names this state of this run: the run and the number of its entries."""
        return f"{self.run_id}@{self.metadata.entries}"

    @property
    def status(self) -> RunStatus:
        """Where the run stands, in one word."""
        if self.finished is not None:
            return self.finished.status
        return RunStatus.INTERRUPTED if isinstance(self.state, Interrupted) else RunStatus.RUNNING

    @property
    def digest(self) -> str:
        """The SHA-256 of the checkpoint, in hex."""
        return hashlib.sha256(encode_json(self.to_tree())).hexdigest()

    def to_tree(self) -> Tree:
        """The checkpoint as plain data, for people and other programs."""
        return {
            "version": self.version,
            "id": self.id,
            "run_id": self.run_id,
            "workflow": self.workflow,
            "kind": self.kind,
            "status": str(self.status),
            "definition": {
                "version": self.definition.version,
                "fingerprint": self.definition.fingerprint,
                "steps": list(self.definition.steps),
            },
            "initial_state": self.initial_state,
            "current_state": self.current_state,
            "state": _head_tree(self.state),
            "completed_steps": [_plain(step) for step in self.completed_steps],
            "history": [_plain(item) for item in self.history],
            "metadata": _plain(self.metadata),
            "context": self.context,
            "created_at": _iso(self.created_at),
            "updated_at": _iso(self.updated_at),
            "error": _plain(self.finished.error) if self.finished and self.finished.error else None,
        }


def fold(entries: Iterable[Entry], run_id: str) -> Checkpoint:
    """The checkpoint that a journal says.

    Fails with CorruptCheckpoint if the journal does not begin with `Started`, or begins twice, or
    belongs to another run.
    """
    iterator = iter(entries)
    started = next(iterator, None)
    if not isinstance(started, Started):
        raise CorruptCheckpoint(run_id, "its journal does not begin with a `started` entry")
    if started.run_id != run_id:
        raise CorruptCheckpoint(run_id, f"its journal is that of run {started.run_id!r}")
    reading = _Reading()
    count = 1
    for entry in iterator:
        count += 1
        if isinstance(entry, Started):
            raise CorruptCheckpoint(run_id, "its journal begins twice", sequence=count)
        reading.take(entry)
    return reading.checkpoint(started, count)


class _Reading:
    """What has been read of a journal so far."""

    def __init__(self) -> None:
        self.order: dict[str, HistoryItem | None] = {}
        self.completed: dict[str, CompletedStep] = {}
        self.attempts: dict[str, int] = {}
        self.resumes = 0
        self.state: HeadState | None = None
        self.current: Tree = None
        self.finished: Finished | None = None
        self.updated_at = 0.0

    def take(self, entry: Entry) -> None:
        self.updated_at = entry.at
        match entry:
            case BeforeStep(step, attempt):
                self.order.setdefault(step, None)
                self.attempts[step] = attempt
                self.state, self.finished = entry, None
            case Completed(step, output, duration, at):
                attempt = self.attempts.get(step, 1)
                self.completed[step] = CompletedStep(step, output, attempt, duration, at)
                self.order[step] = HistoryItem(step, "completed")
                self.state, self.current = entry, output
            case Failed(step, error):
                self.order[step] = HistoryItem(step, "failed", f"{error.type}: {error.message}")
                self.state = entry
            case Interrupted():
                self.state = entry
            case Resumed():
                self.resumes += 1
                self.finished = None
            case Finished():
                self.finished = entry
            case Recorded() | Started():
                pass

    def checkpoint(self, started: Started, count: int) -> Checkpoint:
        return Checkpoint(
            version=started.format,
            run_id=started.run_id,
            workflow=started.workflow,
            kind=started.kind,
            definition=Definition(started.workflow, started.version, started.kind, started.steps),
            initial_state=started.input,
            current_state=self.current if self.completed else started.input,
            state=self.state,
            completed_steps=tuple(self.completed.values()),
            history=tuple(item for item in self.order.values() if item is not None),
            metadata=Metadata(self.attempts, self.resumes, count),
            context=started.context,
            created_at=started.at,
            updated_at=max(started.at, self.updated_at),
            finished=self.finished,
        )


def _plain(value: Any) -> Tree:
    names: tuple[str, ...] = value.__slots__
    return {name: _plain_part(getattr(value, name)) for name in names}


def _plain_part(part: Any) -> Tree:
    return {**part} if isinstance(part, dict) else part


def _head_tree(state: HeadState | None) -> Tree:
    if state is None:
        return None
    tree: dict[str, Tree] = {"state": type(state).__name__, "step": state.step}
    match state:
        case Failed():
            tree |= {"error": _plain(state.error), "retryable": state.retryable}
        case Interrupted():
            tree |= {"in_progress": state.in_progress, "reason": state.reason}
        case BeforeStep():
            tree |= {"attempt": state.attempt}
        case Completed():
            tree |= {"duration": state.duration}
    return tree


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
