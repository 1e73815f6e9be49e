"""State machines: transitions with guards and actions, as plain values and as durable runs."""

from effectflow.workflows.machine._attempt import (
    TransitionExhausted,
    TransitionInfo,
    UndeclaredState,
    transition_info,
)
from effectflow.workflows.machine._machine import (
    History,
    HistoryEntry,
    Machine,
    MachineMetadata,
    PendingRetry,
)
from effectflow.workflows.machine._problems import InvalidMachine
from effectflow.workflows.machine._state_machine import DEFAULT_RETRY, StateMachine
from effectflow.workflows.machine._transition import Abort, Moved, Outcome, Retry, Transition
from effectflow.workflows.machine._transition_table import NoTransition

__all__ = [
    "DEFAULT_RETRY",
    "Abort",
    "History",
    "HistoryEntry",
    "InvalidMachine",
    "Machine",
    "MachineMetadata",
    "Moved",
    "NoTransition",
    "Outcome",
    "PendingRetry",
    "Retry",
    "StateMachine",
    "Transition",
    "TransitionExhausted",
    "TransitionInfo",
    "UndeclaredState",
    "transition_info",
]
