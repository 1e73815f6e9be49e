"""Which nodes a run of a graph has visited, read from its checkpoint, and the diagram that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from effectflow.builders.diagrams import Arrow, Box, Diagram, Mark
from effectflow.builders.graph._structure import (
    Edge,
    Nested,
    Node,
    Parallel,
    Structure,
    name_in_flow,
)
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.effects.paths import child_path, flow_of, step_path


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """The progress of a run of a graph.

    Nodes of nested graphs, and branches, are named by their path: `checks/spelling`.

    Attributes:
        visits: the number of visits of each node that was visited.
        current: the node that is running, or that completed last; followed, for a nested graph or
            branches, by the current nodes within it.
    """

    visits: Mapping[str, int]
    current: tuple[str, ...]


def progress_of(structure: Structure, checkpoint: Checkpoint) -> GraphProgress:
    """Return the progress of a run of this graph. Pure."""
    completed = {step.step for step in checkpoint.completed_steps}
    # By flow, and ordered by their last beginning. A graph is one flow: if a step follows an attempt that
    # has not completed, the edges have changed and lead elsewhere.
    begun: dict[str, list[str]] = {}
    for path in checkpoint.metadata.attempts:
        begun.setdefault(flow_of(path), []).append(path)

    def visits(
        graph: Structure, flow: str, within: str, is_current: bool
    ) -> Iterator[tuple[str, bool]]:
        """Yield the node of each visit, at any depth, and whether the run is there now."""
        paths = begun.get(flow, [])
        for path in paths:
            node = graph.nodes.get(name_in_flow(path, flow))
            if node is not None:
                yield from visit(node, path, within, is_current and path == paths[-1])

    def visit(node: Node, path: str, within: str, is_current: bool) -> Iterator[tuple[str, bool]]:
        name = f"{within}{node.name}"
        yield name, is_current
        is_running = is_current and path not in completed
        match node.work:
            case Nested(structure=Structure() as inner):
                yield from visits(inner, path, f"{name}/", is_running)
            case Parallel(branches):
                for branch in branches:
                    # The paths that `par_traverse` gives to branches.
                    flow = child_path(step_path(path, "par_traverse", 1), branch.name)
                    of_branch = step_path(flow, branch.name, 1)
                    if of_branch in begun.get(flow, ()):
                        is_left = is_running and of_branch not in completed
                        yield from visit(branch, of_branch, f"{name}/", is_left)
            case _:
                pass

    found = list(visits(structure, "", "", True))
    counts = Counter(name for name, _ in found)
    return GraphProgress(dict(counts), tuple(name for name, is_current in found if is_current))


def diagram_of(structure: Structure, progress: GraphProgress | None = None) -> Diagram:
    """Return the diagram of a graph; with progress, it shows the visits of each node. Pure."""
    return Diagram(
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
    # Not the key of a node: names contain no brackets.
    return f"{within}[start]"


def _end(within: str) -> str:
    return f"{within}[end]"
