"""Durable workflows from composable, typed effects.

The names here are those of every day; the rest is in `effectflow.effects`, `effectflow.checkpoint`,
`effectflow.stores`, `effectflow.workflows` and `effectflow.testing`.

Importing this package imports what every effect needs. The rest is imported with its first use.
"""

from typing import TYPE_CHECKING, Any

from effectflow.effects import (
    Do,
    Effect,
    EffectError,
    EmptyRace,
    RetryExhausted,
    RetryPolicy,
    TimedOut,
    ask,
    asks,
    attempt,
    die,
    do,
    effect,
    emit,
    fail,
    first_success,
    from_async,
    from_blocking,
    from_fn,
    from_optional,
    from_result,
    never,
    now,
    pure,
    race,
    random,
    sleep,
    sleep_until,
    suspend,
    uuid,
)
from effectflow.effects.lazy_names import lazy_names

if TYPE_CHECKING:
    from effectflow.checkpoint import (
        CheckpointError,
        CheckpointPolicy,
        Checkpoints,
        Codec,
        HasCheckpoints,
        StepInfo,
        current_step,
        run_context,
        save_now,
        started_version,
        step,
        step_info,
        with_checkpointing,
    )
    from effectflow.effects import (
        Invalid,
        Valid,
        Validation,
        acquiring,
        bracket,
        par,
        par_all,
        par_reduce,
        par_traverse,
        par_try_all,
        partition,
        traverse,
        using,
    )
    from effectflow.service import (
        App,
        Client,
        Schedule,
        Signal,
        Worker,
        compensate,
        publish,
        saga,
        spawn,
    )
    from effectflow.workflows import (
        Abort,
        DeadLetter,
        GraphError,
        InvalidGraph,
        InvalidMachine,
        ItemFailed,
        ItemFailure,
        Iterative,
        IterativeResult,
        JobResult,
        Machine,
        MapReduce,
        MaxIterationsExceeded,
        Moved,
        NoEdge,
        NoTransition,
        Outcome,
        Retry,
        StateGraph,
        StateMachine,
        TooManyFailures,
        Transition,
        TransitionExhausted,
        Workflow,
        transition_info,
        workflow,
    )

__all__ = [
    "Abort",
    "App",
    "CheckpointError",
    "CheckpointPolicy",
    "Checkpoints",
    "Client",
    "Codec",
    "DeadLetter",
    "Do",
    "Effect",
    "EffectError",
    "EmptyRace",
    "GraphError",
    "HasCheckpoints",
    "Invalid",
    "InvalidGraph",
    "InvalidMachine",
    "ItemFailed",
    "ItemFailure",
    "Iterative",
    "IterativeResult",
    "JobResult",
    "Machine",
    "MapReduce",
    "MaxIterationsExceeded",
    "Moved",
    "NoEdge",
    "NoTransition",
    "Outcome",
    "Retry",
    "RetryExhausted",
    "RetryPolicy",
    "Schedule",
    "Signal",
    "StateGraph",
    "StateMachine",
    "StepInfo",
    "TimedOut",
    "TooManyFailures",
    "Transition",
    "TransitionExhausted",
    "Valid",
    "Validation",
    "Worker",
    "Workflow",
    "acquiring",
    "ask",
    "asks",
    "attempt",
    "bracket",
    "compensate",
    "current_step",
    "die",
    "do",
    "effect",
    "emit",
    "fail",
    "first_success",
    "from_async",
    "from_blocking",
    "from_fn",
    "from_optional",
    "from_result",
    "never",
    "now",
    "par",
    "par_all",
    "par_reduce",
    "par_traverse",
    "par_try_all",
    "partition",
    "publish",
    "pure",
    "race",
    "random",
    "run_context",
    "saga",
    "save_now",
    "sleep",
    "sleep_until",
    "spawn",
    "started_version",
    "step",
    "step_info",
    "suspend",
    "transition_info",
    "traverse",
    "using",
    "uuid",
    "with_checkpointing",
    "workflow",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "checkpoint": (
                "CheckpointError CheckpointPolicy Checkpoints Codec HasCheckpoints StepInfo "
                "current_step run_context save_now started_version step step_info "
                "with_checkpointing"
            ),
            "effects": (
                "Invalid Valid Validation acquiring bracket par par_all par_reduce "
                "par_traverse par_try_all partition traverse using"
            ),
            "service": "App Client Schedule Signal Worker compensate publish saga spawn",
            "workflows": (
                "Abort DeadLetter GraphError InvalidGraph InvalidMachine ItemFailed "
                "ItemFailure Iterative IterativeResult JobResult Machine MapReduce "
                "MaxIterationsExceeded Moved NoEdge NoTransition Outcome Retry StateGraph "
                "StateMachine TooManyFailures Transition TransitionExhausted Workflow "
                "transition_info workflow"
            ),
        },
    )


def _make_durable(
    step: str, effect: Effect[Any, Any, Any], **options: Any
) -> Effect[Any, Any, Any]:
    """Do what `with_checkpointing` does, which replaces this function once it is imported."""
    from effectflow.checkpoint import with_checkpointing

    return with_checkpointing(step, effect, **options)


Effect.make_durable = _make_durable
