"""Observers and the events of runs that they receive."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.values import Tree
from effectflow.effects.paths import StepPath

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry was added to a run's journal."""

    run_id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class StepSkipped:
    """A step with a recorded outcome was reached and not run.

    Attributes:
        run_id: the run.
        step: the path of the step.
        output: its output in its saved form; None if it failed.
        has_failed: whether the recorded outcome is a failure.
    """

    run_id: str
    step: str
    output: Tree
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class _AtEntry:
    """A run after one of its entries.

    Attributes:
        entries: the number of entries up to that one.
        step: the path of the newest step in these entries; None before the first one.
    """

    run_id: str
    entries: int
    step: str | None

    @property
    def node(self) -> str | None:
        """The name of the step, or of the outermost step around it. In a graph, this is the node."""
        if self.step is None:
            return None
        return StepPath(StepPath(self.step).segments[0]).name


@dataclass(frozen=True, slots=True)
class CheckpointSaved(_AtEntry):
    """The journal of a run is durable up to its entry number `entries`.

    Attributes:
        reason: why, if `save_now` or the end of a phase of a map-reduce job requested the save.
    """

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointLoaded(_AtEntry):
    """A run was found in the store, with this many `entries`."""


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A run is resumed at `step`; None if only the workflow's code determines the step."""

    run_id: str
    step: str | None


@dataclass(frozen=True, slots=True)
class _NodeVisit:
    """One visit of a node of a graph.

    Attributes:
        run_id: the run; None if the graph runs without a store.
        graph: the graph's name.
        node: the node's name.
        visit: the number of the visit of this node, from 1.
        step: the path of this visit.
    """

    run_id: str | None
    graph: str
    node: str
    visit: int
    step: str


@dataclass(frozen=True, slots=True)
class NodeStarted(_NodeVisit):
    """A node of a graph begins. Skipped nodes have no event."""


@dataclass(frozen=True, slots=True)
class NodeEnded(_NodeVisit):
    """A node of a graph ended."""

    outcome: Literal["completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class CycleDetected(_NodeVisit):
    """A graph visits a node again. `NodeStarted` follows."""


@dataclass(frozen=True, slots=True)
class EdgeEvaluated:
    """An edge from a completed node was tried: `is_taken`, or its condition returned False."""

    run_id: str | None
    graph: str
    source: str
    target: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class _TransitionAttempt:
    """One attempt of a state machine at a transition.

    Attributes:
        run_id: the run; None if the machine runs without a store.
        machine: the machine's name.
        transition: the transition's name.
        source: the name of the state before.
        attempt: the number of the attempt, from 1. It continues after `Retry`.
        step: the path of this attempt.
    """

    run_id: str | None
    machine: str
    transition: str
    source: str
    attempt: int
    step: str


@dataclass(frozen=True, slots=True)
class TransitionStarted(_TransitionAttempt):
    """An attempt at a transition begins. Skipped attempts have no event."""


@dataclass(frozen=True, slots=True)
class TransitionEnded(_TransitionAttempt):
    """An attempt at a transition ended.

    Attributes:
        target: the name of the state that the machine moved or aborted to; None if it stays.
    """

    outcome: Literal["moved", "retry", "abort", "failed", "interrupted"]
    target: str | None = None


CheckpointEvent: TypeAlias = (
    EntryAppended
    | StepSkipped
    | CheckpointSaved
    | CheckpointLoaded
    | RunResumed
    | NodeStarted
    | NodeEnded
    | EdgeEvaluated
    | CycleDetected
    | TransitionStarted
    | TransitionEnded
)


class Observer(Protocol):
    """Receives the events of runs. An exception that it raises is logged and otherwise ignored."""

    def notify(self, event: CheckpointEvent) -> None:
        """Receive an event. It is called in the task of the run, so it must be fast."""
        ...


def tell(observers: Iterable[Observer], event: CheckpointEvent) -> None:
    """Pass an event to all observers."""
    for observer in observers:
        try:
            observer.notify(event)
        except Exception:
            logger.exception("an observer failed on %r", event)
