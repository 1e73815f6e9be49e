"""Which steps of a run of a graph give a state of that graph, and so are migrated with it."""

from __future__ import annotations

from collections.abc import Sequence

from effectflow.checkpoint.past import segments_of
from effectflow.effects.scope import child_path
from effectflow.workflows.graph.structure import Nested, Node, Parallel, Structure

__all__ = ["gives_state"]


def gives_state(structure: Structure, path: str) -> bool:
    """Whether the step at a path is the visit of a node, here or in a workflow of states within a node.

    A branch may give anything, unless it is such a workflow itself: then it goes on from the state, and
    gives one. So do sub-graphs and lists of steps; code may do anything.
    """
    visit, *within = segments_of(path)
    node = structure.nodes.get(visit.partition("#")[0])
    return node is not None and _gives_state(node, within)


def _gives_state(node: Node, within: Sequence[str]) -> bool:
    """Whether a node gives a state, or the step at a path within it."""
    if not within:
        return True
    match node.work:
        case Nested(gives_state=inner):
            return inner is not None and inner("/".join(within))
        case Parallel(branches):
            operator, *inside = within
            return any(
                operator == child_path("par_traverse", branch.name)
                and inside[:1] == [branch.name]
                and _is_of_states(branch)
                and _gives_state(branch, inside[1:])
                for branch in branches
            )
        case _:
            return False


def _is_of_states(branch: Node) -> bool:
    return isinstance(branch.work, Nested) and branch.work.gives_state is not None
