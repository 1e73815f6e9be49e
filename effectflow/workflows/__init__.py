"""What users compose: code, lists of steps, machines, graphs, map-reduce jobs, iterations."""

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
from effectflow.workflows.machine import (
    DEFAULT_RETRY,
    Abort,
    History,
    HistoryEntry,
    InvalidMachine,
    Machine,
    MachineMetadata,
    Moved,
    NoTransition,
    Outcome,
    PendingRetry,
    Retry,
    StateMachine,
    Transition,
    TransitionExhausted,
    TransitionInfo,
    UndeclaredState,
    transition_info,
)
from effectflow.workflows.mapreduce import DeadLetter, ItemFailed, JobResult, MapReduce
from effectflow.workflows.progress import JobProgress, job_progress
from effectflow.workflows.workflow import Workflow

__all__ = [
    "DEFAULT_RETRY",
    "Abort",
    "DeadLetter",
    "Graph",
    "GraphError",
    "GraphProgress",
    "History",
    "HistoryEntry",
    "InvalidGraph",
    "InvalidMachine",
    "ItemFailed",
    "Iterative",
    "IterativeResult",
    "JobProgress",
    "JobResult",
    "Machine",
    "MachineMetadata",
    "MapReduce",
    "MaxIterationsExceeded",
    "Moved",
    "NoEdge",
    "NoTransition",
    "Outcome",
    "PendingRetry",
    "Retry",
    "StateGraph",
    "StateMachine",
    "Transition",
    "TransitionExhausted",
    "TransitionInfo",
    "UndeclaredState",
    "Workflow",
    "job_progress",
    "transition_info",
    "workflow",
]
