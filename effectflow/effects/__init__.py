"""Effects as values, and the interpreter that runs them.

What many programs do not use is imported with its first use.
"""

from typing import TYPE_CHECKING

# First, because the class and the nodes that derive from it import each other.
from effectflow.effects.effect import Effect, Executor  # isort: split

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
    from_optional,
    from_result,
    never,
    now,
    pure,
    random,
    sleep,
    sleep_until,
    suspend,
    uuid,
)
from effectflow.effects.errors import (
    Defect,
    EffectError,
    EmptyRace,
    ExecutorError,
    ExecutorLost,
    Exit,
    Halt,
    Interruption,
    RetryExhausted,
    TimedOut,
    TracedError,
    WorkerLost,
)
from effectflow.effects.events import emit
from effectflow.effects.functions import Do, do, effect
from effectflow.effects.lazy_names import lazy_names
from effectflow.effects.race import first_success, race
from effectflow.effects.retry import FailedAttempt, RetryPolicy
from effectflow.effects.scope import EffectObserver

if TYPE_CHECKING:
    from effectflow.effects.parallel import (
        par,
        par_all,
        par_traverse,
        par_try_all,
        partition,
        traverse,
    )
    from effectflow.effects.reduce import par_reduce
    from effectflow.effects.resources import Acquisition, acquiring, bracket, using
    from effectflow.effects.validation import Invalid, Valid, Validation

__all__ = [
    "Acquisition",
    "Clock",
    "Defect",
    "Do",
    "Effect",
    "EffectError",
    "EffectObserver",
    "EmptyRace",
    "Executor",
    "ExecutorError",
    "ExecutorLost",
    "Exit",
    "FailedAttempt",
    "Halt",
    "Interruption",
    "Invalid",
    "RetryExhausted",
    "RetryPolicy",
    "SystemClock",
    "TimedOut",
    "TracedError",
    "Valid",
    "Validation",
    "WorkerLost",
    "acquiring",
    "ask",
    "asks",
    "attempt",
    "bracket",
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
    "pure",
    "race",
    "random",
    "sleep",
    "sleep_until",
    "suspend",
    "traverse",
    "using",
    "uuid",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "parallel": "par par_all par_traverse par_try_all partition traverse",
            "reduce": "par_reduce",
            "resources": "Acquisition acquiring bracket using",
            "validation": "Invalid Valid Validation",
        },
    )
