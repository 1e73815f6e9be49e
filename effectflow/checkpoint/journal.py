"""The pure fold of a journal to the `Checkpoint` of its run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from effectflow.checkpoint.checkpoint import Checkpoint, CompletedStep, HistoryItem, Metadata
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
    Resumed,
    Started,
)
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import flow_of

__all__ = ["fold"]


def fold(entries: Iterable[Entry], run_id: str) -> Checkpoint:
    """Return the checkpoint of a journal.

    Raises CorruptCheckpoint if the journal does not begin with `Started`, has two of them, or belongs to
    another run.
    """
    iterator = iter(entries)
    started = next(iterator, None)
    if not isinstance(started, Started):
        raise CorruptCheckpoint(run_id, "its journal does not begin with a `started` entry")
    if started.run_id != run_id:
        raise CorruptCheckpoint(run_id, f"its journal is that of run {started.run_id!r}")
    reading = _Reading(started)
    count = 1
    for entry in iterator:
        count += 1
        if isinstance(entry, Started):
            raise CorruptCheckpoint(run_id, "its journal begins twice", sequence=count)
        reading.take(entry)
    return reading.checkpoint(count)


class _Reading:
    """The state of the fold."""

    def __init__(self, started: Started) -> None:
        self.started = started
        self.definition = Definition(
            started.workflow, started.version, started.kind, started.steps, started.structure
        )
        self.order: dict[str, HistoryItem | None] = {}
        self.completed: dict[str, CompletedStep] = {}
        self.attempts: dict[str, int] = {}
        self.resumes = 0
        self.state: HeadState | None = None
        self.current = _state_in(started.kind, started.input, started.input)
        self.finished: Finished | None = None
        self.updated_at = 0.0

    def take(self, entry: Entry) -> None:
        self.updated_at = entry.at
        match entry:
            case BeforeStep(step, attempt):
                self.order.setdefault(step, None)
                # A step that is begun again comes after what came after it before.
                self.attempts.pop(step, None)
                self.attempts[step] = attempt
                self.state, self.finished = entry, None
            case Completed(step, output, duration, at):
                attempt = self.attempts.get(step, 1)
                self.completed[step] = CompletedStep(step, output, attempt, duration, at)
                self.order[step] = HistoryItem(step, "completed")
                self.state, self.current = entry, self._state_after(step, output)
            case Failed(step, error):
                self.order[step] = HistoryItem(step, "failed", f"{error.type}: {error.message}")
                self.state = entry
            case Interrupted():
                self.state = entry
            case Resumed(version=version, steps=steps, structure=structure):
                self.resumes += 1
                self.finished = None
                if version is not None:
                    self.definition = replace(
                        self.definition, version=version, steps=steps, structure=structure
                    )
            case Finished():
                self.finished = entry
            case _:
                pass

    def _state_after(self, step: str, output: Tree) -> Tree:
        """Where a completed step leaves the run: at its output, or at the state that this says."""
        if self.started.kind != "machine":
            return output
        # What goes on within an attempt moves the machine nowhere.
        return self.current if flow_of(step) else _state_in("machine", output, self.current)

    def checkpoint(self, count: int) -> Checkpoint:
        started = self.started
        return Checkpoint(
            version=FORMAT,
            run_id=started.run_id,
            workflow=started.workflow,
            kind=started.kind,
            definition=self.definition,
            initial_state=started.input,
            current_state=self.current,
            state=self.state,
            completed_steps=tuple(self.completed.values()),
            history=tuple(item for item in self.order.values() if item is not None),
            metadata=Metadata(self.attempts, self.resumes, count),
            context=started.context,
            created_at=started.at,
            updated_at=max(started.at, self.updated_at),
            finished=self.finished,
        )


def _state_in(kind: str, tree: Tree, otherwise: Tree) -> Tree:
    """The state in what a machine takes or its attempts give, which have other parts besides."""
    if kind == "machine" and isinstance(tree, dict):
        return tree.get("current_state", tree.get("state", otherwise))
    return tree
