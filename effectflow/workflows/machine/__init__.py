"""State machines: transitions with guards and actions, as plain values and as durable runs."""

from effectflow.workflows.machine.attempt import TransitionInfo, transition_info
from effectflow.workflows.machine.errors import (
    InvalidMachine,
    NoTransition,
    TransitionExhausted,
    UndeclaredState,
)
from effectflow.workflows.machine.history import History, HistoryEntry
from effectflow.workflows.machine.machine import Machine, MachineMetadata, PendingRetry
from effectflow.workflows.machine.outcomes import Abort, Moved, Outcome, Retry
from effectflow.workflows.machine.state_machine import DEFAULT_RETRY, StateMachine
from effectflow.workflows.machine.transition import Transition

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
