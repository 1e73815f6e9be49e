"""State machines: the names to build one, the errors it fails with, and its events for observers."""

from effectflow.builders.machine._attempt import (
    TransitionInfo as TransitionInfo,
    transition_info as transition_info,
)
from effectflow.builders.machine._chart import InvalidMachine as InvalidMachine
from effectflow.builders.machine._events import (
    TransitionEnded as TransitionEnded,
    TransitionStarted as TransitionStarted,
)
from effectflow.builders.machine._machine import (
    History as History,
    HistoryEntry as HistoryEntry,
    Machine as Machine,
    MachineMetadata as MachineMetadata,
    PendingRetry as PendingRetry,
)
from effectflow.builders.machine._state_machine import (
    DEFAULT_RETRY as DEFAULT_RETRY,
    StateMachine as StateMachine,
)
from effectflow.builders.machine._transition import (
    Abort as Abort,
    Moved as Moved,
    NoTransition as NoTransition,
    Outcome as Outcome,
    Retry as Retry,
    Transition as Transition,
    TransitionExhausted as TransitionExhausted,
    UndeclaredState as UndeclaredState,
)
