"""The algebra: effects as values, and the interpreter that runs them."""

from effectflow.effects.clock import Clock, SystemClock
from effectflow.effects.constructors import (
    ask,
    asks,
    attempt,
    die,
    fail,
    from_async,
    from_blocking,
    from_fn,
    from_result,
    never,
    now,
    pure,
    random,
    sleep,
    suspend,
    uuid,
)
from effectflow.effects.do import Do, do
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EffectError, Halt
from effectflow.effects.exit import Defect, Exit, Interruption
from effectflow.effects.functions import effect
from effectflow.effects.parallel import par_traverse

__all__ = [
    "Clock",
    "Defect",
    "Do",
    "Effect",
    "EffectError",
    "Exit",
    "Halt",
    "Interruption",
    "SystemClock",
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
    "suspend",
    "uuid",
]
