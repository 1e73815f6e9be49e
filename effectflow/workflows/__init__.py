"""Workflows: code, lists of steps, machines, graphs, map-reduce jobs and iterations.

Only code and lists of steps are imported with the package, and all others on first use.
"""

from typing import TYPE_CHECKING

from effectflow.effects.imports import lazy_names
from effectflow.workflows.workflow import Workflow as Workflow, workflow as workflow

if TYPE_CHECKING:
    from effectflow.workflows.graph._builder import Graph as Graph, StateGraph as StateGraph
    from effectflow.workflows.graph._events import (
        CycleDetected as CycleDetected,
        EdgeEvaluated as EdgeEvaluated,
        NodeEnded as NodeEnded,
        NodeStarted as NodeStarted,
    )
    from effectflow.workflows.graph._problems import InvalidGraph as InvalidGraph
    from effectflow.workflows.graph._visits import GraphProgress as GraphProgress
    from effectflow.workflows.graph._walk import (
        GraphError as GraphError,
        MaxIterationsExceeded as MaxIterationsExceeded,
        NoEdge as NoEdge,
    )
    from effectflow.workflows.iterative import (
        Iterative as Iterative,
        IterativeResult as IterativeResult,
    )
    from effectflow.workflows.machine._attempt import (
        TransitionInfo as TransitionInfo,
        transition_info as transition_info,
    )
    from effectflow.workflows.machine._chart import InvalidMachine as InvalidMachine
    from effectflow.workflows.machine._events import (
        TransitionEnded as TransitionEnded,
        TransitionStarted as TransitionStarted,
    )
    from effectflow.workflows.machine._machine import (
        History as History,
        HistoryEntry as HistoryEntry,
        Machine as Machine,
        MachineMetadata as MachineMetadata,
        PendingRetry as PendingRetry,
    )
    from effectflow.workflows.machine._state_machine import (
        DEFAULT_RETRY as DEFAULT_RETRY,
        StateMachine as StateMachine,
    )
    from effectflow.workflows.machine._transition import (
        Abort as Abort,
        Moved as Moved,
        NoTransition as NoTransition,
        Outcome as Outcome,
        Retry as Retry,
        Transition as Transition,
        TransitionExhausted as TransitionExhausted,
        UndeclaredState as UndeclaredState,
    )
    from effectflow.workflows.mapreduce._mapreduce import MapReduce as MapReduce
    from effectflow.workflows.mapreduce._results import (
        DeadLetter as DeadLetter,
        ItemFailed as ItemFailed,
        ItemFailure as ItemFailure,
        JobResult as JobResult,
        TooManyFailures as TooManyFailures,
    )
    from effectflow.workflows.migrations import StepMigration as StepMigration
    from effectflow.workflows.progress import (
        JobPhase as JobPhase,
        JobProgress as JobProgress,
        job_history as job_history,
        job_progress as job_progress,
    )

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "graph._builder": "Graph StateGraph",
            "graph._events": "CycleDetected EdgeEvaluated NodeEnded NodeStarted",
            "graph._problems": "InvalidGraph",
            "graph._visits": "GraphProgress",
            "graph._walk": "GraphError MaxIterationsExceeded NoEdge",
            "iterative": "Iterative IterativeResult",
            "machine._attempt": "TransitionInfo transition_info",
            "machine._chart": "InvalidMachine",
            "machine._events": "TransitionEnded TransitionStarted",
            "machine._machine": "History HistoryEntry Machine MachineMetadata PendingRetry",
            "machine._state_machine": "DEFAULT_RETRY StateMachine",
            "machine._transition": (
                "Abort Moved NoTransition Outcome Retry Transition TransitionExhausted "
                "UndeclaredState"
            ),
            "mapreduce._mapreduce": "MapReduce",
            "mapreduce._results": "DeadLetter ItemFailed ItemFailure JobResult TooManyFailures",
            "migrations": "StepMigration",
            "progress": "JobPhase JobProgress job_history job_progress",
            "workflow": "Workflow workflow",
        },
    )
