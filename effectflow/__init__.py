"""Durable workflows from composable, typed effects.

The names here are those of every day; the rest is in `effectflow.effects`, `effectflow.checkpoint`,
`effectflow.machines`, `effectflow.graphs`, `effectflow.mapreduce`, `effectflow.stores`,
`effectflow.service` and `effectflow.testing`.

Importing this package imports what every effect needs. The rest is imported with its first use.
"""

import sys
from typing import TYPE_CHECKING, Any

from effectflow.effects import (
    Do as Do,
    Effect as Effect,
    EffectError as EffectError,
    EmptyRace as EmptyRace,
    RetryExhausted as RetryExhausted,
    RetryPolicy as RetryPolicy,
    TimedOut as TimedOut,
    ask as ask,
    asks as asks,
    attempt as attempt,
    die as die,
    do as do,
    effect as effect,
    emit as emit,
    fail as fail,
    first_success as first_success,
    from_async as from_async,
    from_blocking as from_blocking,
    from_fn as from_fn,
    from_optional as from_optional,
    from_result as from_result,
    never as never,
    now as now,
    pure as pure,
    race as race,
    random as random,
    sleep as sleep,
    sleep_until as sleep_until,
    suspend as suspend,
    uuid as uuid,
)
from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.builders.code import workflow as workflow
    from effectflow.builders.iterative import (
        Iterative as Iterative,
        IterativeResult as IterativeResult,
    )
    from effectflow.checkpoint import (
        CheckpointError as CheckpointError,
        CheckpointPolicy as CheckpointPolicy,
        Checkpoints as Checkpoints,
        Codec as Codec,
        HasCheckpoints as HasCheckpoints,
        ReplayFilter as ReplayFilter,
        StepInfo as StepInfo,
        current_step as current_step,
        replaying as replaying,
        run_context as run_context,
        save_now as save_now,
        started_version as started_version,
        step as step,
        step_info as step_info,
        with_checkpointing as with_checkpointing,
    )
    from effectflow.effects import (
        Invalid as Invalid,
        Valid as Valid,
        Validation as Validation,
        acquiring as acquiring,
        bracket as bracket,
        par as par,
        par_all as par_all,
        par_reduce as par_reduce,
        par_traverse as par_traverse,
        par_try_all as par_try_all,
        partition as partition,
        traverse as traverse,
        using as using,
    )
    from effectflow.graphs import (
        GraphError as GraphError,
        InvalidGraph as InvalidGraph,
        MaxIterationsExceeded as MaxIterationsExceeded,
        NoEdge as NoEdge,
        StateGraph as StateGraph,
    )
    from effectflow.machines import (
        Abort as Abort,
        InvalidMachine as InvalidMachine,
        Machine as Machine,
        Moved as Moved,
        NoTransition as NoTransition,
        Outcome as Outcome,
        Retry as Retry,
        StateMachine as StateMachine,
        Transition as Transition,
        TransitionExhausted as TransitionExhausted,
        transition_info as transition_info,
    )
    from effectflow.mapreduce import (
        DeadLetter as DeadLetter,
        ItemFailed as ItemFailed,
        ItemFailure as ItemFailure,
        JobResult as JobResult,
        MapReduce as MapReduce,
        TooManyFailures as TooManyFailures,
    )
    from effectflow.runs import Workflow as Workflow
    from effectflow.service import (
        App as App,
        Client as Client,
        Schedule as Schedule,
        Signal as Signal,
        Worker as Worker,
        compensate as compensate,
        publish as publish,
        saga as saga,
        spawn as spawn,
    )


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "checkpoint": (
                "CheckpointError CheckpointPolicy Checkpoints Codec HasCheckpoints "
                "ReplayFilter StepInfo current_step replaying run_context save_now started_version step "
                "step_info with_checkpointing"
            ),
            "effects": (
                "Do Effect EffectError EmptyRace Invalid RetryExhausted RetryPolicy "
                "TimedOut Valid Validation acquiring ask asks attempt bracket die do "
                "effect emit fail first_success from_async from_blocking from_fn "
                "from_optional from_result never now par par_all par_reduce par_traverse "
                "par_try_all partition pure race random sleep sleep_until suspend "
                "traverse using uuid"
            ),
            "service": "App Client Schedule Signal Worker compensate publish saga spawn",
            "builders.code": "workflow",
            "builders.iterative": "Iterative IterativeResult",
            "graphs": "GraphError InvalidGraph MaxIterationsExceeded NoEdge StateGraph",
            "machines": (
                "Abort InvalidMachine Machine Moved NoTransition Outcome Retry StateMachine Transition "
                "TransitionExhausted transition_info"
            ),
            "mapreduce": "DeadLetter ItemFailed ItemFailure JobResult MapReduce TooManyFailures",
            "runs": "Workflow",
        },
    )


def _make_durable(
    step: str, effect: Effect[Any, Any, Any], **options: Any
) -> Effect[Any, Any, Any]:
    """Do what `with_checkpointing` does, which replaces this function once it is imported."""
    from effectflow.checkpoint import with_checkpointing as with_checkpointing

    return with_checkpointing(step, effect, **options)


Effect.make_durable = _make_durable

if sys.flags.dev_mode and "pytest" not in sys.modules:
    # The plugin for pytest does this for each test.
    from effectflow.testing.unused_effects import watch_program

    watch_program()
