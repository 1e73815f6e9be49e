"""The parts of a built graph: nodes, their work, and the edges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from effectflow.builders.views import View, place_of_visit
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.step import StepDefinition
from effectflow.effects import Effect
from effectflow.effects.paths import StepPath, child_path
from effectflow.runs.step_loop import condition_holds, pure_result
from effectflow.runs.workflow import Workflow

VIEW = View(place=partial(place_of_visit, "node"))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The condition of an edge of a route: `choose` returns this choice."""

    choose: Callable[[Any], object]
    choice: object

    def __call__(self, state: Any, choices: dict[int, object]) -> bool:
        """Return whether this was chosen. `choices` has what each function has chosen in this visit."""
        key = id(self.choose)
        if key not in choices:
            choices[key] = pure_result(self.choose(state), "the function that chooses")
        return choices[key] == self.choice


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from one node to another, taken if `when` holds of the state, or always if that is None.

    `label` is the name of the condition in diagrams and errors.
    """

    source: str
    target: str
    when: Callable[[Any], bool] | Chosen | None = None
    label: str = ""

    def holds(self, state: Any, choices: dict[int, object]) -> bool:
        """Return whether the edge may be taken with this state; `choices` is as in `Chosen`."""
        when = self.when
        if isinstance(when, Chosen):
            when = partial(when, choices=choices)
        return when is None or condition_holds(when, state, f"the condition of the edge {self}")

    def __str__(self) -> str:
        condition = "" if self.when is None else f" if {self.label or '...'}"
        return f"{self.source!r} -> {self.target!r}{condition}"


@dataclass(frozen=True, slots=True)
class Function:
    """Call a function from a state to an effect."""

    function: Callable[[Any], Effect[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Nested:
    """Run another workflow, whose `structure` is known if it is a graph."""

    workflow: Workflow[Any, Any, Any, Any]
    structure: Structure | None


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run branches side by side, and merge their values into the state."""

    branches: tuple[Node, ...]
    merge: Callable[[Any, Mapping[str, Any]], Any]


Work: TypeAlias = Function | Nested | Parallel


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        definition: the durable step that each visit is; it has the node's name.
        work: what a visit does.
        edges: the edges out of the node, in the order in which they are tried.
        is_exit: whether the graph ends after the node.
    """

    definition: StepDefinition
    work: Work
    edges: tuple[Edge, ...] = ()
    is_exit: bool = False

    @property
    def name(self) -> str:
        """The node's name."""
        return self.definition.name

    def next_edge(self, state: Any, report: Callable[[Edge, bool], None] | None) -> Edge | None:
        """Return the first edge that holds, or None. Report each edge that is tried."""
        choices: dict[int, object] = {}
        for edge in self.edges:
            is_taken = edge.holds(state, choices)
            if report is not None:
                report(edge, is_taken)
            if is_taken:
                return edge
        return None


@dataclass(frozen=True, slots=True)
class Structure:
    """A valid graph."""

    name: str
    nodes: Mapping[str, Node]
    entry: str
    max_iterations: int


def definition_of(structure: Structure, version: str) -> Definition:
    """Return the definition that a resume compares: every node, and every edge in its place."""
    steps = tuple(step for node in structure.nodes.values() for step in _steps_of(node, ""))
    return Definition(structure.name, version, "graph", steps, tuple(_lines(structure, "")))


def _steps_of(node: Node, within: str) -> Iterator[str]:
    path = f"{within}{node.name}"
    yield path
    match node.work:
        case Nested(workflow):
            yield from (f"{path}/{step}" for step in workflow.definition.steps)
        case Parallel(branches):
            for branch in branches:
                yield from _steps_of(branch, f"{path}/")
        case Function():
            pass


def _lines(structure: Structure, within: str) -> Iterator[str]:
    """Yield a readable line for the entry, each edge, exit and nested workflow."""
    yield f"{within}(start) -> {structure.entry}"
    for node in structure.nodes.values():
        path = f"{within}{node.name}"
        for edge in node.edges:
            yield f"{path} -> {edge.target}{' if' if edge.when else ''}"
        if node.is_exit:
            yield f"{path} -> (end)"
        branches = node.work.branches if isinstance(node.work, Parallel) else ()
        parts = {path: node, **{f"{path}/{branch.name}": branch for branch in branches}}
        for name, part in parts.items():
            if isinstance(part.work, Nested):
                nested, inner = part.work.workflow, part.work.structure
                yield f"{name} = {nested.name} version {nested.version}"
                if inner is not None:
                    yield from _lines(inner, f"{name}/")


def name_in_flow(path: str, flow: str) -> str:
    """Return the name of the step at a path directly in a flow, without its occurrence."""
    return path[len(flow) + 1 if flow else 0 :].partition("#")[0]


def gives_state(structure: Structure, path: str) -> bool:
    """Return whether the step at a path returns a state of the graph, which migrations then upgrade.

    Visits of nodes do, also in nested graphs and lists of steps. The steps of nested code may return
    anything, and so may branches that are not workflows of states.
    """
    visit, *within = StepPath(path).segments
    node = structure.nodes.get(visit.partition("#")[0])
    return node is not None and _gives_state(node, within)


def _gives_state(node: Node, within: Sequence[str]) -> bool:
    """Return whether a node, or the step at a path within it, returns a state."""
    if not within:
        return True
    match node.work:
        case Nested(workflow):
            inner = workflow.blueprint.gives_state
            return inner is not None and inner("/".join(within))
        case Parallel(branches):
            operator, *inside = within
            return any(
                operator == child_path("par_traverse", branch.name)
                and inside[:1] == [branch.name]
                and isinstance(branch.work, Nested)
                and branch.work.workflow.blueprint.gives_state is not None
                and _gives_state(branch, inside[1:])
                for branch in branches
            )
        case Function():
            return False
