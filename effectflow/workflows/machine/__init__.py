"""State machines: transitions with guards and actions, as plain values and as durable runs."""

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
