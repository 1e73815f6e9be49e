"""How effects end: their errors, the exceptions that end a run past every handler, and exits.

`Success` and `Failure` are the classes of `returns`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from returns.result import Result

from effectflow.effects.trails import OUR_NOTES

E = TypeVar("E")
A = TypeVar("A")


class Copyable:
    """Makes an exception come back whole from `copy` and `pickle`: attributes, arguments and notes.

    Python would call its class with `args`, which fails if `__init__` takes anything else.
    """

    __slots__ = ()

    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        state: dict[str, Any] = dict(vars(self))
        for notes in {"__notes__", OUR_NOTES} & state.keys():
            # A note on a copy must not appear on the original.
            state[notes] = [*state[notes]]
        return _without_init, (type(self), self.args), state


def _without_init(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    # An OSError is made without arguments.
    error.args = args
    return error


class EffectError(Copyable, Exception):
    """Wraps a failure that is not an exception, where it must be raised: `error` is the failure.

    `run_or_raise` raises it, and `@do` bodies receive it at the `yield from` of the failed effect.
    """

    def __init__(self, error: object) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return f"the effect failed with {self.error!r}"


class TimedOut(Copyable, TimeoutError):
    """The effect was cancelled because it took longer than `seconds`. It is a `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"it took longer than {seconds} s, and was cancelled")


class RetryExhausted(Copyable, Exception, Generic[E]):
    """The effect failed as often as its retry policy allows.

    Attributes:
        error: the error of the last attempt.
        attempts: the number of attempts.
        elapsed: seconds from the beginning of the first attempt to the end of the last.
    """

    def __init__(self, error: E, attempts: int, elapsed: float) -> None:
        self.error = error
        self.attempts = attempts
        self.elapsed = elapsed
        super().__init__(error, attempts, elapsed)

    def __str__(self) -> str:
        return f"it failed {self.attempts} times within {self.elapsed:.1f} s, at last with {self.error!r}"


class EmptyRace(Copyable, Exception):
    """A race was run without effects."""

    def __init__(self) -> None:
        super().__init__("a race needs at least one effect")


class ExecutorError(Copyable, Exception):
    """Work that was sent to an executor did not end there, so its outcome is unknown.

    If it ends an at-most-once step of a durable run, the run ends with OutcomeUnknown.

    ExecutorError
    ├── WorkerLost     the process that ran the item died, as often as the executor tries
    └── ExecutorLost   the executor is gone: closed, or its cluster cannot be reached
    """


class WorkerLost(ExecutorError):
    """Every worker process that received an item died.

    Attributes:
        item: the argument of the function, shortened.
        attempts: the number of worker processes that received it, one after another.
        reason: how the last one ended.
    """

    def __init__(self, item: str, attempts: int, reason: str) -> None:
        self.item = item
        self.attempts = attempts
        self.reason = reason
        workers = (
            f"a worker process, which died ({reason})"
            if attempts == 1
            else f"{attempts} worker processes, each of which died (the last: {reason})"
        )
        super().__init__(
            f"item {item} was given to {workers}. Most often it is memory that ends a process; one that "
            "exits on its own says why on its standard error"
        )


class ExecutorLost(ExecutorError):
    """The executor is gone, and with it all work that ran there. `reason` says what happened."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}. The work in progress must run again: resume the run when the executor is back"
        )


@dataclass(frozen=True, slots=True)
class TracedError(Generic[E]):
    """An error and its trail.

    Attributes:
        error: the error.
        trail: the contexts that it crossed, from inner to outer, and a line for each failed finalizer.
        suppressed: the errors and defects of those finalizers, such as the release of a `bracket` whose
            use failed or was cancelled.
    """

    error: E
    trail: tuple[str, ...]
    suppressed: tuple[object, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return "".join(f"{part}: " for part in reversed(self.trail)) + str(self.error)


class Halt(Copyable, BaseException):
    """Ends a durable run after its finalizers, because nothing more can be recorded.

    Like a cancellation, it is not an `Exception`, so a body cannot catch it by accident and continue
    from an unrecorded state. `reason` is the error that `start` or `resume` reports.
    """

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        super().__init__(str(reason))


class LeftToResume(Halt):
    """Ends a finalizer before its next step, because the run is being stopped from outside."""

    def __init__(self, what: str) -> None:
        super().__init__(RuntimeError(f"the run is being stopped: a resume will do {what}"))


class Parked(Copyable, BaseException):
    """Ends a fiber of a plan, because what comes next would change something."""


@dataclass(frozen=True, slots=True)
class Defect:
    """An undeclared exception: a bug."""

    exception: Exception


@dataclass(frozen=True, slots=True)
class Interruption:
    """The backend's cancellation, or another exception that ends a run from outside."""

    cause: BaseException


Exit: TypeAlias = Result[A, E] | Defect | Interruption
"""How an effect ended: `Success(value)`, `Failure(error)`, `Defect` or `Interruption`."""
