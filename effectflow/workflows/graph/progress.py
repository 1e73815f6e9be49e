"""Where a run of a graph stands, read from its checkpoint alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.past import flow_of
from effectflow.checkpoint.values import MalformedValue, from_tree
from effectflow.effects.scope import child_path, step_path
from effectflow.workflows.graph.structure import Nested, Node, Parallel, Structure

__all__ = ["GraphProgress", "next_step", "progress_of"]


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """Where a run of a graph stands.

    A node within a sub-graph, and a branch, is named by the names on the way to it: `checks/spelling`.

    Attributes:
        visits: how often each node was visited. One that never was is not in it.
        current: the node at which the run stands: it is under way, or has completed last. If that is
            a sub-graph or has branches, those of its inside follow it.
    """

    visits: Mapping[str, int]
    current: tuple[str, ...]


def progress_of(structure: Structure, checkpoint: Checkpoint) -> GraphProgress:
    """What a checkpoint says of a run of this graph. Pure."""
    steps = _Steps(checkpoint)
    visits = Counter(_visited(structure, "", "", steps))
    return GraphProgress(dict(visits), tuple(_standing(structure, "", "", steps)))


def next_step(structure: Structure, checkpoint: Checkpoint) -> str | None:
    """The path of the visit that a resume begins with; None at an exit. Pure.

    The edges out of each node that has completed are evaluated on the state that it gave, as the resume
    does. So an attempt is not come to again where the edges, which may be others now, lead past it.
    """
    return _next(structure, "", _Steps(checkpoint), checkpoint.run_id)


class _Steps:
    """The steps of a checkpoint, by the flow that they are in."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.outputs = {step.step: step.output for step in checkpoint.completed_steps}
        self.begun: dict[str, list[str]] = {}
        # In the order in which they were last begun. A graph is one flow: what comes after an attempt
        # that has not completed shows that the edges have led elsewhere since.
        for path in checkpoint.metadata.attempts:
            self.begun.setdefault(flow_of(path), []).append(path)

    def last(self, flow: str) -> str | None:
        """The step that a flow stands at, if it has begun one."""
        return self.begun[flow][-1] if flow in self.begun else None

    def has(self, path: str) -> bool:
        """Whether a step was begun."""
        return path in self.begun.get(flow_of(path), ())


def _visited(structure: Structure, flow: str, within: str, steps: _Steps) -> Iterator[str]:
    """The node of each visit, however deep within sub-graphs."""
    for path in steps.begun.get(flow, ()):
        node = structure.nodes.get(_name_of(path, flow))
        if node is not None:
            yield from _visited_at(node, path, within, steps)


def _visited_at(node: Node, path: str, within: str, steps: _Steps) -> Iterator[str]:
    name = f"{within}{node.name}"
    yield name
    match node.work:
        case Nested(structure=Structure() as inner):
            yield from _visited(inner, path, f"{name}/", steps)
        case Parallel():
            for branch, branch_path in _begun_branches(node.work, path, steps):
                yield from _visited_at(branch, branch_path, f"{name}/", steps)
        case _:
            pass


def _standing(structure: Structure, flow: str, within: str, steps: _Steps) -> Iterator[str]:
    last = steps.last(flow)
    node = None if last is None else structure.nodes.get(_name_of(last, flow))
    if last is not None and node is not None:
        yield from _standing_at(node, last, within, steps)


def _standing_at(node: Node, path: str, within: str, steps: _Steps) -> Iterator[str]:
    name = f"{within}{node.name}"
    yield name
    if path in steps.outputs:
        return
    match node.work:
        case Nested(structure=Structure() as inner):
            yield from _standing(inner, path, f"{name}/", steps)
        case Parallel():
            for branch, branch_path in _begun_branches(node.work, path, steps):
                if branch_path not in steps.outputs:
                    yield from _standing_at(branch, branch_path, f"{name}/", steps)
        case _:
            pass


def _begun_branches(work: Parallel, path: str, steps: _Steps) -> Iterator[tuple[Node, str]]:
    """The branches of a visit that were begun, and their paths, which `par_traverse` has given them."""
    for branch in work.branches:
        flow = child_path(step_path(path, "par_traverse", 1), branch.name)
        branch_path = step_path(flow, branch.name, 1)
        if steps.has(branch_path):
            yield branch, branch_path


def _next(structure: Structure, flow: str, steps: _Steps, run_id: str) -> str | None:
    visits: Counter[str] = Counter()
    name = structure.entry
    while True:
        visits[name] += 1
        node, path = structure.nodes[name], step_path(flow, name, visits[name])
        if path not in steps.outputs:
            return _next_within(node, path, steps, run_id)
        edge = None if node.is_exit else node.next_edge(_state(node, path, steps, run_id))
        if edge is None:
            return None
        name = edge.target


def _next_within(node: Node, path: str, steps: _Steps, run_id: str) -> str:
    """The visit itself, or, if that is of a sub-graph and was begun, the one to come within it."""
    if isinstance(node.work, Nested) and node.work.structure and steps.last(path):
        return _next(node.work.structure, path, steps, run_id) or path
    return path


def _state(node: Node, path: str, steps: _Steps, run_id: str) -> Any:
    """The state that a node gave."""
    try:
        return from_tree(steps.outputs[path], path=f"{path}: $", types=node.definition.types)
    except MalformedValue as error:
        reason = f"the output of node {path!r} is not what the graph declares: {error}"
        raise CorruptCheckpoint(run_id, reason) from error


def _name_of(path: str, flow: str) -> str:
    """The name of a step in a flow, without its occurrence."""
    return path[len(flow) + 1 if flow else 0 :].partition("#")[0]
