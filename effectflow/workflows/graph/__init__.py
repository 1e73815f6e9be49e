"""State graphs: nodes that change a state, and edges that choose the next node."""

from effectflow.workflows.graph._builder import Graph, StateGraph
from effectflow.workflows.graph._problems import InvalidGraph
from effectflow.workflows.graph._visits import GraphProgress
from effectflow.workflows.graph._walk import GraphError, MaxIterationsExceeded, NoEdge

__all__ = [
    "Graph",
    "GraphError",
    "GraphProgress",
    "InvalidGraph",
    "MaxIterationsExceeded",
    "NoEdge",
    "StateGraph",
]
