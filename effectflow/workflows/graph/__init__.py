"""State graphs: nodes that change a state, and edges that say which node comes next."""

from effectflow.workflows.graph.builder import StateGraph
from effectflow.workflows.graph.errors import (
    GraphError,
    InvalidGraph,
    MaxIterationsExceeded,
    NoEdge,
)
from effectflow.workflows.graph.graph import Graph
from effectflow.workflows.graph.progress import GraphProgress

__all__ = [
    "Graph",
    "GraphError",
    "GraphProgress",
    "InvalidGraph",
    "MaxIterationsExceeded",
    "NoEdge",
    "StateGraph",
]
