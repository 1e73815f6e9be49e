"""Workflows: code, lists of steps, machines, graphs, map-reduce jobs and iterations.

Only code and lists of steps are imported with the package, and all others on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.workflows.workflow import Workflow, workflow

if TYPE_CHECKING:
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
    from effectflow.workflows.migrations import StepMigration
    from effectflow.workflows.progress import JobProgress, job_progress

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
    "StepMigration",
    "Transition",
    "TransitionExhausted",
    "TransitionInfo",
    "UndeclaredState",
    "Workflow",
    "job_progress",
    "transition_info",
    "workflow",
]

_HOMES = {
    "graph": "Graph GraphError GraphProgress InvalidGraph MaxIterationsExceeded NoEdge StateGraph",
    "iterative": "Iterative IterativeResult",
    "machine": (
        "DEFAULT_RETRY Abort History HistoryEntry InvalidMachine Machine MachineMetadata Moved "
        "NoTransition Outcome PendingRetry Retry StateMachine Transition TransitionExhausted "
        "TransitionInfo UndeclaredState transition_info"
    ),
    "mapreduce": "DeadLetter ItemFailed JobResult MapReduce",
    "migrations": "StepMigration",
    "progress": "JobProgress job_progress",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
