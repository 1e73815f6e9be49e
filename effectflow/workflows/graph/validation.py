"""What is wrong with a graph as it was described: everything, not only the first of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from effectflow.workflows.checks import function_problems
from effectflow.workflows.graph.structure import Edge

__all__ = ["Draft", "problems_of"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph as its author has described it, right or wrong."""

    nodes: Sequence[str]
    edges: Sequence[Edge]
    entries: Sequence[str]
    exits: Sequence[str]
    max_iterations: int


def problems_of(draft: Draft) -> list[str]:
    """All the reasons for which this cannot be a graph, each as a sentence. Pure."""
    return [
        *_problems_of_names(draft),
        *_problems_of_entry(draft),
        *_problems_of_edges(draft),
        *_problems_of_ways(draft),
        *_problems_of_limit(draft),
    ]


def _problems_of_names(draft: Draft) -> Iterator[str]:
    if not draft.nodes:
        yield "it has no nodes: add some with .node(name, function)"
    for name in _twice(draft.nodes):
        yield f"two nodes are named {name!r}: give each a name of its own"
    mentioned = [(f"the entry {name!r}", name) for name in draft.entries]
    mentioned += [(f"the exit {name!r}", name) for name in draft.exits]
    for edge in draft.edges:
        mentioned += [(f"the edge {edge}", edge.source), (f"the edge {edge}", edge.target)]
    for where, name in dict.fromkeys(mentioned):
        if name not in draft.nodes:
            yield f"{where} names the unknown node {name!r}{_nearest(name, draft.nodes)}"


def _problems_of_entry(draft: Draft) -> Iterator[str]:
    entries = tuple(dict.fromkeys(draft.entries))
    if not entries:
        yield "it has no entry: say where it begins with .entry(name)"
    if len(entries) > 1:
        yield f"it has several entries, {_listed(entries)}: it can begin in one place only"


def _problems_of_edges(draft: Draft) -> Iterator[str]:
    always: dict[str, Edge] = {}
    for edge in draft.edges:
        if edge.when is not None and not callable(edge.when):
            yield f"the condition of the edge {edge} is {edge.when!r}: it takes a function of the state"
        elif edge.when is not None:
            takes = "a function from a state to a bool"
            yield from function_problems(edge.when, f"the condition of the edge {edge}", takes)
        if edge.source in draft.exits:
            yield f"the edge {edge} is never taken: {edge.source!r} is an exit, where the graph ends"
        elif edge.source in always:
            yield f"the edge {edge} is never tried: {always[edge.source]} before it always holds"
        elif edge.when is None:
            always[edge.source] = edge


def _problems_of_ways(draft: Draft) -> Iterator[str]:
    """Nodes that nothing leads to, and nodes that lead nowhere."""
    if not draft.exits:
        yield "it has no exit: say where it ends with .exit(name)"
    ways = [(edge.source, edge.target) for edge in draft.edges if edge.source not in draft.exits]
    sources = {source for source, _ in ways}
    dead_ends = [name for name in draft.nodes if name not in sources and name not in draft.exits]
    for name in dict.fromkeys(dead_ends):
        yield f"{name!r} is a dead end: add an edge out of it, or make it an exit"
    entries = [name for name in draft.entries if name in draft.nodes]
    if not entries:
        return
    reached = _reachable(entries, ways)
    for name in dict.fromkeys(draft.nodes):
        if name not in reached:
            yield f"{name!r} cannot be reached from the entry {_listed(entries)}"
    if not draft.exits:
        return
    if reached.isdisjoint(draft.exits):
        yield f"no exit can be reached from the entry {_listed(entries)}"
        return
    backwards = [(target, source) for source, target in ways]
    ending = _reachable([*draft.exits, *dead_ends], backwards)
    for name in dict.fromkeys(draft.nodes):
        if name in reached and name not in ending:
            yield f"no exit can be reached from {name!r}: once there, it would go round for ever"


def _problems_of_limit(draft: Draft) -> Iterator[str]:
    if draft.max_iterations < 1:
        yield f"max_iterations must be 1 or more, not {draft.max_iterations}"


def _reachable(begin: Iterable[str], ways: Iterable[tuple[str, str]]) -> set[str]:
    following: dict[str, list[str]] = {}
    for source, target in ways:
        following.setdefault(source, []).append(target)
    found = set(begin)
    todo = list(found)
    while todo:
        for target in following.get(todo.pop(), ()):
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if list(names).count(name) > 1]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in names)
