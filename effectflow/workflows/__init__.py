"""What users compose: workflows written as code, lists of steps, and graphs."""

from effectflow.workflows.code import workflow
from effectflow.workflows.graph import (
    Graph,
    GraphError,
    GraphProgress,
    InvalidGraph,
    MaxIterationsExceeded,
    NoEdge,
    StateGraph,
)
from effectflow.workflows.workflow import Workflow

__all__ = [
    "Graph",
    "GraphError",
    "GraphProgress",
    "InvalidGraph",
    "MaxIterationsExceeded",
    "NoEdge",
    "StateGraph",
    "Workflow",
    "workflow",
]
