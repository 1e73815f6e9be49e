"""What a built graph is made of: nodes, the work they do, and the edges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.durable_step import StepDefinition
from effectflow.effects import Effect
from effectflow.effects.notes import add_note
from effectflow.workflows.answers import answered

__all__ = ["Call", "Edge", "Nested", "Node", "Parallel", "Structure", "Work", "definition_of"]

NodeBody: TypeAlias = Callable[[Any], Effect[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another, open while `when` holds of the state; always if that is None.

    `label` is what the condition is called in drawings and errors.
    """

    source: str
    target: str
    when: Callable[[Any], bool] | None = None
    label: str = ""

    def holds(self, state: Any) -> bool:
        """Whether it may be taken with this state."""
        if self.when is None:
            return True
        try:
            answer = self.when(state)
        except Exception as defect:
            add_note(defect, f"in the condition of the edge {self}")
            raise
        return bool(answered(answer, f"the condition of the edge {self}"))

    def __str__(self) -> str:
        condition = "" if self.when is None else f" if {self.label or '...'}"
        return f"{self.source!r} -> {self.target!r}{condition}"


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function from a state to an effect."""

    function: NodeBody


@dataclass(frozen=True, slots=True)
class Nested:
    """Run another workflow. `structure` is its own, if that is a graph.

    `gives_state` says which of its steps give a state, as in `Blueprint`.
    """

    body: NodeBody
    definition: Definition
    structure: Structure | None
    gives_state: Callable[[str], bool] | None


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run branches side by side, and merge what they give into the state."""

    branches: tuple[Node, ...]
    merge: Callable[[Any, Mapping[str, Any]], Any]


Work: TypeAlias = Call | Nested | Parallel


@dataclass(frozen=True, slots=True)
class Node:
    """A durable step of a graph, what it does, and where it leads.

    Attributes:
        definition: the step that each visit is; it is named as the node.
        work: what it does.
        edges: the ways out, in the order in which they are tried.
        is_exit: whether the graph ends after it.
    """

    definition: StepDefinition
    work: Work
    edges: tuple[Edge, ...] = ()
    is_exit: bool = False

    @property
    def name(self) -> str:
        """What edges and paths call it."""
        return self.definition.name

    def next_edge(
        self, state: Any, report: Callable[[Edge, bool], None] | None = None
    ) -> Edge | None:
        """The first edge that holds, or None. Each one that was tried is reported."""
        for edge in self.edges:
            is_taken = edge.holds(state)
            if report is not None:
                report(edge, is_taken)
            if is_taken:
                return edge
        return None


@dataclass(frozen=True, slots=True)
class Structure:
    """A graph that was found to be valid."""

    name: str
    nodes: Mapping[str, Node]
    entry: str
    max_iterations: int


def definition_of(structure: Structure, version: str) -> Definition:
    """What a resume compares: every node, and every edge in its place."""
    return Definition(
        structure.name,
        version,
        "graph",
        tuple(_steps(structure, "")),
        tuple(_lines(structure, "")),
    )


def _steps(structure: Structure, within: str) -> Iterator[str]:
    for node in structure.nodes.values():
        yield from _steps_of(node, within)


def _steps_of(node: Node, within: str) -> Iterator[str]:
    path = f"{within}{node.name}"
    yield path
    match node.work:
        case Nested(structure=Structure() as inner):
            yield from _steps(inner, f"{path}/")
        case Nested(definition=definition):
            yield from (f"{path}/{step}" for step in definition.steps)
        case Parallel(branches):
            for branch in branches:
                yield from _steps_of(branch, f"{path}/")
        case Call():
            pass


def _lines(structure: Structure, within: str) -> Iterator[str]:
    """Entry, edges and exits, and the workflows within, as lines for people."""
    yield f"{within}(start) -> {structure.entry}"
    for node in structure.nodes.values():
        path = f"{within}{node.name}"
        for edge in node.edges:
            yield f"{path} -> {edge.target}{' if' if edge.when else ''}"
        if node.is_exit:
            yield f"{path} -> (end)"
        for name, work in _nested(node):
            yield f"{within}{name} = {work.definition.name} version {work.definition.version}"
            if work.structure is not None:
                yield from _lines(work.structure, f"{within}{name}/")


def _nested(node: Node) -> Iterator[tuple[str, Nested]]:
    """The workflows that a node, or a branch of it, runs."""
    match node.work:
        case Nested() as work:
            yield node.name, work
        case Parallel(branches):
            for branch in branches:
                if isinstance(branch.work, Nested):
                    yield f"{node.name}/{branch.name}", branch.work
        case Call():
            pass
