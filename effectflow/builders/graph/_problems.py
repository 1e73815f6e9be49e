"""Find everything that is wrong with a graph as its author describes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from effectflow.builders.checks import (
    InvalidDefinition,
    count_problems,
    effect_problems,
    function_problems,
    reachable,
    step_name_problems,
)
from effectflow.builders.graph._structure import Edge
from effectflow.checkpoint.step import Step
from effectflow.effects.arguments import is_callable
from effectflow.runs.blueprint import Blueprint, Wrapped, unchanged
from effectflow.runs.workflow import Workflow


class InvalidGraph(InvalidDefinition):
    """The description of a graph has problems. `problems` lists all of them."""

    __module__ = "effectflow.graphs"

    def __init__(self, graph: str, problems: Iterable[str]) -> None:
        self.graph = graph
        super().__init__(f"graph {graph!r}", problems)


def node_problems(name: str, body: object) -> Iterator[str]:
    """Yield a problem unless `body` can be a node, which yields the next state."""
    yield from _body_problems(name, body)
    if isinstance(body, Workflow) and (yields := body.blueprint.yields) is not None:
        yield (
            f"the workflow {body.name!r} of node {name!r} yields {yields.output} instead of the next "
            f"state: use `lambda state: workflow.body(state).map({yields.state_of})`"
        )


def parallel_problems(name: str, branches: Mapping[str, object], merge: object) -> Iterator[str]:
    """Yield the problems of a node with branches."""
    yield from step_name_problems(name)
    if not branches:
        yield f"node {name!r} has no branches"
    for branch, body in branches.items():
        yield from _body_problems(branch, body)
        yields = _saved_otherwise(body)
        if yields is not None:
            yield (
                f"the workflow of branch {branch!r} yields {yields.output}, which a step cannot save: "
                f"use `lambda state: workflow.body(state).map({yields.state_of})`"
            )
    if not is_callable(merge):
        yield (
            f"node {name!r} takes a function of the state and the results of its branches to merge them, "
            f"not {merge!r}"
        )


def _saved_otherwise(body: object) -> Wrapped | None:
    """Return what a workflow yields if its runs save something else."""
    if not isinstance(body, Workflow):
        return None
    blueprint: Blueprint = body.blueprint
    return None if blueprint.read_output is unchanged else blueprint.yields


def _body_problems(name: str, body: object) -> Iterator[str]:
    yield from step_name_problems(name)
    if not isinstance(body, Workflow | Step):
        expected = "a function from a state to an effect, or a workflow that is built"
        yield from effect_problems(body, f"node {name!r}", expected)


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
        yield from count_problems(self.max_iterations, "max_iterations", least=1)

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
                yield f"no exit can be reached from {name!r}: the graph would loop forever"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in dict.fromkeys(names))
