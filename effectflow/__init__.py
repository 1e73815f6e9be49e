"""Durable workflows from composable, typed effects.

The names here are those of every day. The rest is in `effectflow.effects`, `effectflow.checkpoint`,
`effectflow.runs`, `effectflow.machines`, `effectflow.graphs`, `effectflow.mapreduce`,
`effectflow.iterative`, `effectflow.stores`, `effectflow.executors`, `effectflow.service`,
`effectflow.observe` and `effectflow.testing`.

Importing this package imports what every effect needs. The rest is imported with its first use. It logs
nothing before the program configures `logging`.
"""

import logging
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
    attempt as attempt,
    do as do,
    effect as effect,
    fail as fail,
    from_blocking as from_blocking,
    now as now,
    pure as pure,
    race as race,
    random as random,
    sleep as sleep,
    uuid as uuid,
)
from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.builders.code import workflow as workflow
    from effectflow.checkpoint import (
        CheckpointError as CheckpointError,
        Checkpoints as Checkpoints,
        HasCheckpoints as HasCheckpoints,
        Queue as Queue,
        RunCancelled as RunCancelled,
        RunQuery as RunQuery,
        RunStatus as RunStatus,
        current_step as current_step,
        patched as patched,
        step as step,
        transaction as transaction,
        with_checkpointing as with_checkpointing,
    )
    from effectflow.effects import (
        bracket as bracket,
        par as par,
        par_all as par_all,
        par_traverse as par_traverse,
    )
    from effectflow.runs import Workflow as Workflow
    from effectflow.service import (
        App as App,
        Client as Client,
        Handle as Handle,
        Retention as Retention,
        Schedule as Schedule,
        Signal as Signal,
        Worker as Worker,
        compensate as compensate,
        publish as publish,
        saga as saga,
        spawn as spawn,
    )
    from effectflow.service.progress import progress as progress
    from effectflow.stores import SqliteStore as SqliteStore


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "builders.code": "workflow",
            "checkpoint": (
                "CheckpointError Checkpoints HasCheckpoints Queue RunCancelled RunQuery "
                "RunStatus current_step patched step transaction with_checkpointing"
            ),
            "effects": (
                "Do Effect EffectError EmptyRace RetryExhausted RetryPolicy TimedOut ask "
                "attempt bracket do effect fail from_blocking now par par_all par_traverse "
                "pure race random sleep uuid"
            ),
            "runs": "Workflow",
            "service": "App Client Handle Retention Schedule Signal Worker compensate publish saga spawn",
            "service.progress": "progress",
            "stores": "SqliteStore",
        },
    )

# As Python advises for libraries: what is logged is for the program to decide.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def _make_durable(
    step: str, effect: Effect[Any, Any, Any], **options: Any
) -> Effect[Any, Any, Any]:
    """Do what `with_checkpointing` does, which replaces this function once it is imported."""
    from effectflow.checkpoint import with_checkpointing as with_checkpointing

    return with_checkpointing(step, effect, **options)


Effect.make_durable = _make_durable
