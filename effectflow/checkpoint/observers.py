"""What observers are told: everything that happens to runs, as it happens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.values import Tree

__all__ = [
    "CheckpointEvent",
    "CheckpointLoaded",
    "CheckpointSaved",
    "CycleDetected",
    "EdgeEvaluated",
    "EntryAppended",
    "NodeEnded",
    "NodeStarted",
    "Observer",
    "RunResumed",
    "StepSkipped",
    "tell",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry was added to a run's journal."""

    run_id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class StepSkipped:
    """A step was reached whose end is recorded; it was not run. `output` is as it was saved."""

    run_id: str
    step: str
    output: Tree


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """What was added to a run's journal is durable, up to its entry number `entries`."""

    run_id: str
    entries: int


@dataclass(frozen=True, slots=True)
class CheckpointLoaded:
    """A run was found in the store: `entries` of them, and `step` is the newest that they speak of."""

    run_id: str
    entries: int
    step: str | None


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A run is taken up again. `step` is where; None if only the workflow's own code knows that."""

    run_id: str
    step: str | None


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node of a graph is run. One whose end is recorded is skipped, and not told of here.

    Attributes:
        graph: the graph's name.
        node: the node's name.
        visit: how many times this run of the graph has come to it, from 1.
        step: the path of this visit.
    """

    run_id: str
    graph: str
    node: str
    visit: int
    step: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A node of a graph that was run has ended. The first fields are as in `NodeStarted`."""

    run_id: str
    graph: str
    node: str
    visit: int
    step: str
    outcome: Literal["completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class EdgeEvaluated:
    """An edge out of a node that has completed was tried: it `is_taken`, or its condition said no."""

    run_id: str
    graph: str
    source: str
    target: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class CycleDetected:
    """A graph comes to a node again. The fields are as in `NodeStarted`, which follows."""

    run_id: str
    graph: str
    node: str
    visit: int
    step: str


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
)


class Observer(Protocol):
    """Is told what happens to runs. An exception that it raises is logged and goes no further."""

    def notify(self, event: CheckpointEvent) -> None:
        """Called in the run's own task, so it must be quick."""
        ...


def tell(observers: Iterable[Observer], event: CheckpointEvent) -> None:
    """Tell all the observers."""
    for observer in observers:
        try:
            observer.notify(event)
        except Exception:
            logger.exception("an observer failed on %r", event)
