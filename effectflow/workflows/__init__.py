"""What users compose: workflows as code, lists of steps, graphs, map-reduce jobs, and iterations."""

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
from effectflow.workflows.iterative import Iterative, IterativeResult
from effectflow.workflows.mapreduce import DeadLetter, ItemFailed, JobResult, MapReduce
from effectflow.workflows.progress import JobProgress, job_progress
from effectflow.workflows.workflow import Workflow

__all__ = [
    "DeadLetter",
    "Graph",
    "GraphError",
    "GraphProgress",
    "InvalidGraph",
    "ItemFailed",
    "Iterative",
    "IterativeResult",
    "JobProgress",
    "JobResult",
    "MapReduce",
    "MaxIterationsExceeded",
    "NoEdge",
    "StateGraph",
    "Workflow",
    "job_progress",
    "workflow",
]
