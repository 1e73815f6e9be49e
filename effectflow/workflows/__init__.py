"""Workflows: code, lists of steps, machines, graphs, map-reduce jobs and iterations.

Only code and lists of steps are imported with the package, and all others on first use.
"""

from typing import TYPE_CHECKING

from effectflow.effects.lazy_names import lazy_names
from effectflow.workflows.workflow import Workflow, workflow

if TYPE_CHECKING:
    from effectflow.workflows.graph._builder import Graph, StateGraph
    from effectflow.workflows.graph._problems import InvalidGraph
    from effectflow.workflows.graph._visits import GraphProgress
    from effectflow.workflows.graph._walk import GraphError, MaxIterationsExceeded, NoEdge
    from effectflow.workflows.iterative import Iterative, IterativeResult
    from effectflow.workflows.machine._attempt import TransitionInfo, transition_info
    from effectflow.workflows.machine._chart import InvalidMachine
    from effectflow.workflows.machine._machine import (
        History,
        HistoryEntry,
        Machine,
        MachineMetadata,
        PendingRetry,
    )
    from effectflow.workflows.machine._state_machine import DEFAULT_RETRY, StateMachine
    from effectflow.workflows.machine._transition import (
        Abort,
        Moved,
        NoTransition,
        Outcome,
        Retry,
        Transition,
        TransitionExhausted,
        UndeclaredState,
    )
    from effectflow.workflows.mapreduce._job import (
        DeadLetter,
        ItemFailed,
        ItemFailure,
        JobResult,
        TooManyFailures,
    )
    from effectflow.workflows.mapreduce._mapreduce import MapReduce
    from effectflow.workflows.migrations import StepMigration
    from effectflow.workflows.progress import JobPhase, JobProgress, job_history, job_progress

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
    "ItemFailure",
    "Iterative",
    "IterativeResult",
    "JobPhase",
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
    "TooManyFailures",
    "Transition",
    "TransitionExhausted",
    "TransitionInfo",
    "UndeclaredState",
    "Workflow",
    "job_history",
    "job_progress",
    "transition_info",
    "workflow",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "graph._builder": "Graph StateGraph",
            "graph._problems": "InvalidGraph",
            "graph._visits": "GraphProgress",
            "graph._walk": "GraphError MaxIterationsExceeded NoEdge",
            "iterative": "Iterative IterativeResult",
            "machine._attempt": "TransitionInfo transition_info",
            "machine._chart": "InvalidMachine",
            "machine._machine": "History HistoryEntry Machine MachineMetadata PendingRetry",
            "machine._state_machine": "DEFAULT_RETRY StateMachine",
            "machine._transition": (
                "Abort Moved NoTransition Outcome Retry Transition TransitionExhausted UndeclaredState"
            ),
            "mapreduce._job": "DeadLetter ItemFailed ItemFailure JobResult TooManyFailures",
            "mapreduce._mapreduce": "MapReduce",
            "migrations": "StepMigration",
            "progress": "JobPhase JobProgress job_history job_progress",
        },
    )
