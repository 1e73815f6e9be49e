"""How a graph can be wrong, and how a run of it can get stuck.

::

    InvalidGraph                 the definition has problems; all of them are in it
    GraphError                   a run cannot go on
    ├── NoEdge                   no edge out of a node that has completed holds
    └── MaxIterationsExceeded    so many nodes were visited without reaching an exit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["GraphError", "InvalidGraph", "MaxIterationsExceeded", "NoEdge"]


class InvalidGraph(ValueError):
    """A graph was built whose definition cannot work. `problems` has everything that is wrong."""

    def __init__(self, graph: str, problems: Sequence[str]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        lines = "".join(f"\n- {problem}" for problem in self.problems)
        super().__init__(f"graph {graph!r} cannot be built:{lines}")


class GraphError(Exception):
    """A run of a graph cannot go on. What its nodes have done stays done."""

    graph: str
    node: str


class NoEdge(GraphError):
    """A node has completed, and the condition of every edge out of it said no.

    `edges` are those edges, as text.
    """

    def __init__(self, graph: str, node: str, edges: Sequence[str]) -> None:
        self.graph = graph
        self.node = node
        self.edges = tuple(edges)
        super().__init__(
            f"graph {graph!r} is stuck after node {node!r}: no edge out of it holds. Tried were "
            f"{', '.join(self.edges)}. Let the last one have no condition, or mend theirs."
        )


class MaxIterationsExceeded(GraphError):
    """A graph has visited as many nodes as it may, and has not come to an exit.

    `node` is the one that it would have visited next; `visits` says how often each was visited.
    """

    def __init__(
        self, graph: str, node: str, max_iterations: int, visits: Mapping[str, int]
    ) -> None:
        self.graph = graph
        self.node = node
        self.max_iterations = max_iterations
        self.visits = dict(visits)
        counts = ", ".join(f"{name} {count}" for name, count in visits.items())
        super().__init__(
            f"graph {graph!r} has made {max_iterations} visits (its max_iterations) and reached no exit; "
            f"the next would have been to {node!r}. Visits so far: {counts}. If the loop is meant to "
            "take so long, raise max_iterations and resume the run: it goes on from here."
        )
