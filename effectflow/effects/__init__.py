"""Effects as values, and the interpreter that runs them.

Names that many programs do not use are imported on first use.
"""

from typing import TYPE_CHECKING

# First, because the class and the nodes that derive from it import each other.
from effectflow.effects.effect import Effect as Effect, Executor as Executor  # isort: split

from effectflow.effects.clock import Clock as Clock, SystemClock as SystemClock
from effectflow.effects.constructors import (
    ask as ask,
    asks as asks,
    attempt as attempt,
    die as die,
    emit as emit,
    fail as fail,
    from_async as from_async,
    from_blocking as from_blocking,
    from_fn as from_fn,
    from_optional as from_optional,
    from_result as from_result,
    never as never,
    now as now,
    pure as pure,
    random as random,
    sleep as sleep,
    sleep_until as sleep_until,
    suspend as suspend,
    uuid as uuid,
)
from effectflow.effects.errors import (
    Defect as Defect,
    EffectError as EffectError,
    EmptyRace as EmptyRace,
    ExecutorError as ExecutorError,
    ExecutorLost as ExecutorLost,
    Exit as Exit,
    Halt as Halt,
    Interruption as Interruption,
    RetryExhausted as RetryExhausted,
    TimedOut as TimedOut,
    TracedError as TracedError,
    WorkerLost as WorkerLost,
)
from effectflow.effects.functions import Do as Do, do as do, effect as effect
from effectflow.effects.imports import lazy_names
from effectflow.effects.race import first_success as first_success, race as race
from effectflow.effects.retry import FailedAttempt as FailedAttempt, RetryPolicy as RetryPolicy
from effectflow.effects.scope import EffectObserver as EffectObserver

if TYPE_CHECKING:
    from effectflow.effects.catching import catch as catch
    from effectflow.effects.parallel import (
        par as par,
        par_all as par_all,
        par_traverse as par_traverse,
        par_try_all as par_try_all,
        partition as partition,
        traverse as traverse,
    )
    from effectflow.effects.reduce import par_reduce as par_reduce
    from effectflow.effects.resources import (
        Acquisition as Acquisition,
        acquiring as acquiring,
        bracket as bracket,
        using as using,
    )
    from effectflow.effects.validation import (
        Invalid as Invalid,
        Valid as Valid,
        Validation as Validation,
    )

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "catching": "catch",
            "clock": "Clock SystemClock",
            "constructors": (
                "ask asks attempt die emit fail from_async from_blocking from_fn from_optional "
                "from_result never now pure random sleep sleep_until suspend uuid"
            ),
            "effect": "Effect Executor",
            "errors": (
                "Defect EffectError EmptyRace ExecutorError ExecutorLost Exit Halt "
                "Interruption RetryExhausted TimedOut TracedError WorkerLost"
            ),
            "functions": "Do do effect",
            "parallel": "par par_all par_traverse par_try_all partition traverse",
            "race": "first_success race",
            "reduce": "par_reduce",
            "resources": "Acquisition acquiring bracket using",
            "retry": "FailedAttempt RetryPolicy",
            "scope": "EffectObserver",
            "validation": "Invalid Valid Validation",
        },
    )
