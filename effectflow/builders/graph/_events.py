"""The events of graphs, for observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from effectflow.builders.events import WorkflowEvent


@dataclass(frozen=True, slots=True)
class _NodeVisit(WorkflowEvent):
    """One visit of a node of a graph.

    Attributes:
        node: the node's name.
        visit: the number of the visit of this node, from 1.
        step: the path of this visit.
    """

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
class EdgeEvaluated(WorkflowEvent):
    """An edge from a completed node was tried: `is_taken`, or its condition returned False."""

    source: str
    target: str
    is_taken: bool
