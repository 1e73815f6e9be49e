"""How effects end: their errors, the exceptions that end a run past every handler, and exits.

`Success` and `Failure` are the classes of `returns`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from returns.result import Result

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
        for notes in {"__notes__", _OURS} & state.keys():
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


class Suppressed(str):
    """The line of a trail that reports a failed finalizer.

    Attributes:
        error: its error or its defect.
        is_defect: whether it was a defect.
    """

    __slots__ = ("error", "is_defect")

    PREFIX = "and a finalizer failed: "

    error: object
    is_defect: bool

    def __new__(cls, error: object, *, is_defect: bool) -> Self:
        return cls.read(f"{cls.PREFIX}{error!r}", error, is_defect=is_defect)

    @classmethod
    def read(cls, text: str, error: object, *, is_defect: bool) -> Self:
        """Return the line with this text, which an earlier life has made of the error."""
        line = super().__new__(cls, text)
        line.error = error
        line.is_defect = is_defect
        return line

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Suppressed.read, is_defect=self.is_defect), (str(self), self.error)


class Origin(str):
    """The line of a trail in a plan: the path of a recorded failure that led to this one."""

    __slots__ = ()


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


class NotAcquired(BaseException):
    """Ends an acquisition before its first operation, because an operator around it has decided."""


class Parked(Copyable, BaseException):
    """Ends a flow of a plan, because its next operation would change something.

    Attributes:
        reason: names the operation; None if it is the next step of the flow.
        is_shielded: whether it ended an acquisition or a finalizer. An operator around it that has
            decided waits for those.
        is_before_others: whether the flow has recorded operations that the plan has not reached.
    """

    is_shielded = False
    is_before_others = False

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason)


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


# Effects that run many times may fail with the same error object. So we remember which notes (PEP 678)
# are ours, and remove them when the error is used again.
_OURS = "_effectflow_notes"


def add_hint(error: Exception, hint: str) -> None:
    """Append what to do to the message of an exception that Python has just raised."""
    # It may pass through several interpreters.
    if hint not in str(error):
        error.args = (f"{error}. {hint}",)


def add_note(error: BaseException, note: str) -> None:
    """Add a note and remember that we added it. A frozen exception gets none."""
    # A frozen dataclass with slots raises TypeError.
    with suppress(AttributeError, TypeError):
        error.add_note(note)
        vars(error).setdefault(_OURS, []).append(note)


def our_notes(error: BaseException) -> tuple[str, ...]:
    """Return the notes that we added."""
    return tuple(vars(error).get(_OURS, ()))


def renew(error: object, notes: tuple[str, ...] = ()) -> None:
    """Undo what we added to an error when it was used before, and give it these notes.

    Its traceback would otherwise grow with each use, and keep the environment of each run.
    """
    if isinstance(error, BaseException):
        error.with_traceback(_before_use(error.__traceback__))
        for note in vars(error).pop(_OURS, ()):
            with suppress(AttributeError, ValueError):
                error.__notes__.remove(note)
        for note in notes:
            add_note(error, note)


raising_code: set[CodeType] = set()
"""The code of the functions that raise the error of an effect."""


def _before_use(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from before an effect raised the error."""
    before = traceback
    while traceback is not None:
        if traceback.tb_frame.f_code in raising_code:
            before = traceback.tb_next
        traceback = traceback.tb_next
    return before


def show_trail(error: Any, trail: tuple[str, ...]) -> Any:
    """Return the error, with its trail as notes if it is an exception."""
    if trail and isinstance(error, BaseException):
        known = getattr(error, "__notes__", ())
        for message in trail:
            if message not in known:
                add_note(error, str(message))
    return error


def log_hidden(hidden: BaseException | None, message: str, *arguments: object) -> None:
    """Log an exception that another end of an effect hides."""
    # Imported late, because few programs need it, and it takes four milliseconds.
    import logging

    logging.getLogger(__name__).error(message, *arguments, exc_info=hidden)


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Raise an error that names the extra to install if its package is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this needs the package {missing.name}: pip install 'effectflow[{extra}]'",
            name=missing.name,
        ) from missing
