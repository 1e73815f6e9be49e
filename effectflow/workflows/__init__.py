"""What users compose: code, lists of steps, machines, graphs, map-reduce jobs, iterations.

What is not needed for code and lists of steps is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.workflows.code import workflow
from effectflow.workflows.workflow import Workflow

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
    "Transition",
    "TransitionExhausted",
    "TransitionInfo",
    "UndeclaredState",
    "Workflow",
    "job_progress",
    "transition_info",
    "workflow",
]

# Those that need the fewest others come first.
_SHAPES = ("progress", "iterative", "mapreduce", "machine", "graph")


def __getattr__(name: str) -> object:
    if name in __all__:
        for shape in _SHAPES:
            module = import_module(f"{__name__}.{shape}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
