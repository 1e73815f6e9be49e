"""Durable workflows from composable, typed effects.

The names here are those of every day; the rest is in `effectflow.effects`, `effectflow.checkpoint`,
`effectflow.stores`, `effectflow.workflows` and `effectflow.testing`.
"""

from effectflow.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    Checkpoints,
    HasCheckpoints,
    StepInfo,
    step,
    step_info,
    with_checkpointing,
)
from effectflow.effects import (
    Do,
    Effect,
    EffectError,
    ask,
    asks,
    attempt,
    die,
    do,
    effect,
    fail,
    from_async,
    from_blocking,
    from_fn,
    from_result,
    never,
    now,
    par_traverse,
    pure,
    random,
    sleep,
    suspend,
    uuid,
)
from effectflow.workflows import Workflow, workflow

__all__ = [
    "CheckpointError",
    "CheckpointPolicy",
    "Checkpoints",
    "Do",
    "Effect",
    "EffectError",
    "HasCheckpoints",
    "StepInfo",
    "Workflow",
    "ask",
    "asks",
    "attempt",
    "die",
    "do",
    "effect",
    "fail",
    "from_async",
    "from_blocking",
    "from_fn",
    "from_result",
    "never",
    "now",
    "par_traverse",
    "pure",
    "random",
    "sleep",
    "step",
    "step_info",
    "suspend",
    "uuid",
    "with_checkpointing",
    "workflow",
]

__version__ = "0.1.0"
