"""A graph, and where a run of it stands, as a drawing."""

from __future__ import annotations

from collections.abc import Iterator

from effectflow.workflows.drawing import Arrow, Box, Drawing, Mark
from effectflow.workflows.graph.progress import GraphProgress
from effectflow.workflows.graph.structure import Edge, Nested, Node, Parallel, Structure

__all__ = ["picture"]


def picture(structure: Structure, progress: GraphProgress | None = None) -> Drawing:
    """The drawing of a graph; with progress, the nodes that were visited, and how often. Pure."""
    return Drawing(
        structure.name,
        tuple(_boxes(structure, "", progress or GraphProgress({}, ()))),
        tuple(_arrows(structure, "")),
    )


def _boxes(structure: Structure, within: str, progress: GraphProgress) -> Iterator[Box]:
    yield Box(_start(within), shape="start")
    for node in structure.nodes.values():
        yield _box(node, within, progress)
    yield Box(_end(within), shape="end")


def _box(node: Node, within: str, progress: GraphProgress) -> Box:
    key = f"{within}{node.name}"
    visits = progress.visits.get(key, 0)
    mark: Mark = "current" if key in progress.current else "visited" if visits else "plain"
    counted = f"\n{visits} {'visit' if visits == 1 else 'visits'}" if visits else ""
    match node.work:
        case Nested(structure=Structure() as inner):
            inside = tuple(_boxes(inner, f"{key}/", progress))
            return Box(key, f"{node.name}{counted}", mark=mark, inside=inside)
        case Parallel(branches):
            inside = tuple(_box(branch, f"{key}/", progress) for branch in branches)
            return Box(key, f"{node.name} (in parallel){counted}", mark=mark, inside=inside)
        case _:
            return Box(key, f"{node.name}{counted}", mark=mark)


def _arrows(structure: Structure, within: str) -> Iterator[Arrow]:
    yield Arrow(_start(within), f"{within}{structure.entry}")
    for node in structure.nodes.values():
        key = f"{within}{node.name}"
        for edge in node.edges:
            yield Arrow(key, f"{within}{edge.target}", _label(edge, node))
        if node.is_exit:
            yield Arrow(key, _end(within))
        yield from _arrows_inside(node, key)


def _arrows_inside(node: Node, key: str) -> Iterator[Arrow]:
    match node.work:
        case Nested(structure=Structure() as inner):
            yield from _arrows(inner, f"{key}/")
        case Parallel(branches):
            for branch in branches:
                yield from _arrows_inside(branch, f"{key}/{branch.name}")
        case _:
            pass


def _label(edge: Edge, node: Node) -> str:
    if edge.when is not None:
        return edge.label or "if"
    return "otherwise" if len(node.edges) > 1 else ""


def _start(within: str) -> str:
    # No node has a key like this: a name has no brackets.
    return f"{within}[start]"


def _end(within: str) -> str:
    return f"{within}[end]"
