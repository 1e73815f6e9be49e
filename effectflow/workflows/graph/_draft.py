"""A graph as its author describes it: make its nodes, and find everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast

from effectflow.checkpoint.step import Step, StepDefinition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect
from effectflow.effects.signatures import effect_types
from effectflow.workflows.checks import function_problems, reachable, step_name_problems
from effectflow.workflows.graph._graph import Graph
from effectflow.workflows.graph._structure import Call, Edge, Nested, Node, Parallel
from effectflow.workflows.machine import StateMachine
from effectflow.workflows.workflow import Workflow, input_type


class InvalidGraph(ValueError):
    """The description of a graph has problems. `problems` lists all of them."""

    def __init__(self, graph: str, problems: Sequence[str]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        lines = "".join(f"\n- {problem}" for problem in self.problems)
        super().__init__(f"graph {graph!r} cannot be built:{lines}")


_OUTPUTS = {
    "machine": ("a Machine", "lambda machine: machine.current"),
    "mapreduce": ("a JobResult", "lambda result: ..."),
    "iterative": ("an IterativeResult", "lambda result: result.value"),
}
"""By kind of workflow: what it yields instead of a state, and how to get a state from that."""


def node_problems(name: str, body: object) -> Iterator[str]:
    """Yield a problem unless `body` can be a node, which yields the next state."""
    yield from _body_problems(name, body)
    if isinstance(body, Workflow) and body.kind in _OUTPUTS:
        output, state_of = _OUTPUTS[body.kind]
        yield (
            f"the workflow {body.name!r} of node {name!r} yields {output} instead of the next state: "
            f"use `lambda state: workflow.body(state).map({state_of})`"
        )


def parallel_problems(name: str, branches: Mapping[str, object], merge: object) -> Iterator[str]:
    """Yield the problems of a node with branches."""
    yield from step_name_problems(name)
    if not branches:
        yield f"node {name!r} has no branches"
    for branch, body in branches.items():
        yield from _body_problems(branch, body)
        if isinstance(body, StateMachine):
            yield (
                f"the state machine {body.name!r} of branch {branch!r} yields a Machine, which a "
                "step cannot save: use `lambda state: machine.body(state).map(lambda machine: "
                "machine.current)`"
            )
    if not callable(merge):
        yield (
            f"node {name!r} takes a function of the state and the results of its branches to merge them, "
            f"not {merge!r}"
        )


def _body_problems(name: str, body: object) -> Iterator[str]:
    yield from step_name_problems(name)
    if not isinstance(body, Workflow | Step):
        expected = "a function from a state to an effect, or a workflow that is built"
        yield from function_problems(body, f"node {name!r}", expected)


def make_node(name: str, body: object) -> Node:
    """Make a node of a function, a step or a workflow without `node_problems`."""
    match body:
        case Workflow():
            workflow = cast("Workflow[Any, Any, Any, Any]", body)
            structure = workflow.structure if isinstance(workflow, Graph) else None
            blueprint = workflow.blueprint
            work = Nested(workflow.body, workflow.definition, structure, blueprint.gives_state)
            return Node(StepDefinition(name, blueprint.output_types), work)
        case Step():
            step = cast("Step[[Any], Any, Any, Any]", body)
            node = Node(replace(step.definition, name=name), Call(step.function))
            return with_types(node, types_of([node], input_type(step.function)))
        case _:
            function = cast("Callable[[Any], Effect[Any, Any, Any]]", body)
            types = KnownTypes.of(*effect_types(function), input_type(function))
            return Node(StepDefinition(name, types), Call(function))


def make_parallel_node(
    name: str, branches: Mapping[str, object], merge: Callable[[Any, Mapping[str, Any]], Any]
) -> Node:
    """Make a node of branches without `parallel_problems`."""
    made = tuple(make_node(branch, body) for branch, body in branches.items())
    return Node(StepDefinition(name, types_of(made)), Parallel(made, merge))


def types_of(nodes: Iterable[Node], *annotations: object) -> KnownTypes:
    """Return the classes that the nodes and the annotations know.

    Raises ValueError if two different classes have the same name.
    """
    known = [node.definition.types for node in nodes]
    classes = [
        kind for types in known for kind in (*types.classes.values(), *types.errors.values())
    ]
    return KnownTypes.of(*annotations, *classes)


def with_types(node: Node, types: KnownTypes) -> Node:
    """Return the node and its branches with these known classes, which a graph shares."""
    definition, work = replace(node.definition, types=types), node.work
    if isinstance(work, Parallel):
        branches = tuple(with_types(branch, types) for branch in work.branches)
        work = replace(work, branches=branches)
    return replace(node, definition=definition, work=work)


@dataclass(frozen=True, slots=True)
class Draft:
    """The description of a graph, right or wrong."""

    nodes: Sequence[str]
    edges: Sequence[Edge]
    entries: Sequence[str]
    exits: Sequence[str]
    max_iterations: int

    def problems(self) -> Iterator[str]:
        """Yield every problem of the description as a sentence. Pure."""
        yield from self._name_problems()
        if not self.entries:
            yield "it has no entry: add one with .entry(name)"
        if len(set(self.entries)) > 1:
            yield f"it has several entries, {_listed(self.entries)}, but must begin at one"
        yield from self._edge_problems()
        yield from self._path_problems()
        if self.max_iterations < 1:
            yield f"max_iterations must be an int >= 1, not {self.max_iterations}"

    def _name_problems(self) -> Iterator[str]:
        if not self.nodes:
            yield "it has no nodes: add some with .node(name, function)"
        for name in dict.fromkeys(self.nodes):
            if list(self.nodes).count(name) > 1:
                yield f"two nodes have the name {name!r}"
        mentioned = [(f"the entry {name!r}", name) for name in self.entries]
        mentioned += [(f"the exit {name!r}", name) for name in self.exits]
        for edge in self.edges:
            mentioned += [(f"the edge {edge}", edge.source), (f"the edge {edge}", edge.target)]
        for where, name in dict.fromkeys(mentioned):
            if name not in self.nodes:
                near = get_close_matches(name, list(self.nodes), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                yield f"{where} names the unknown node {name!r}{hint}"

    def _edge_problems(self) -> Iterator[str]:
        always: dict[str, Edge] = {}
        for edge in self.edges:
            if edge.when is not None:
                expected = "a function from a state to a bool"
                yield from function_problems(
                    edge.when, f"the condition of the edge {edge}", expected
                )
            if edge.source in self.exits:
                yield f"the edge {edge} is never taken: {edge.source!r} is an exit, where the graph ends"
            elif edge.source in always:
                yield f"the edge {edge} is never tried: {always[edge.source]} before it always holds"
            elif edge.when is None:
                always[edge.source] = edge

    def _path_problems(self) -> Iterator[str]:
        """Yield the nodes that are unreachable, and those from which no exit can be reached."""
        if not self.exits:
            yield "it has no exit: add one with .exit(name)"
        pairs = [(edge.source, edge.target) for edge in self.edges if edge.source not in self.exits]
        sources = {source for source, _ in pairs}
        nodes = tuple(dict.fromkeys(self.nodes))
        dead_ends = [name for name in nodes if name not in sources and name not in self.exits]
        for name in dead_ends:
            yield f"{name!r} is a dead end: add an edge out of it, or make it an exit"
        entries = [name for name in self.entries if name in nodes]
        if not entries:
            return
        reached = reachable(entries, pairs)
        for name in nodes:
            if name not in reached:
                yield f"{name!r} cannot be reached from the entry {_listed(entries)}"
        if not self.exits:
            return
        if reached.isdisjoint(self.exits):
            yield f"no exit can be reached from the entry {_listed(entries)}"
            return
        ending = reachable(
            [*self.exits, *dead_ends], [(target, source) for source, target in pairs]
        )
        for name in nodes:
            if name in reached and name not in ending:
                yield f"no exit can be reached from {name!r}: the graph would loop for ever"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in dict.fromkeys(names))
