"""The errors that effects of this package fail with, and what ends a run past every handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = [
    "EffectError",
    "EmptyRace",
    "ExecutorError",
    "ExecutorLost",
    "Halt",
    "LeftToResume",
    "NotAcquired",
    "Parked",
    "RetryExhausted",
    "TimedOut",
    "TracedError",
    "WorkerLost",
]

E = TypeVar("E")


class EffectError(Exception, Generic[E]):
    """A typed failure that is no exception itself, as `run_or_raise` raises it.

    `error` is the failure.
    """

    def __init__(self, error: E) -> None:
        self.error = error
        super().__init__(f"the effect failed with {error!r}")


class TimedOut(Exception):
    """An effect was cancelled because it took longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"it took longer than {seconds} s, and was cancelled")


class RetryExhausted(Exception, Generic[E]):
    """An effect failed as often as its retry policy allows.

    Attributes:
        error: what it failed with the last time.
        attempts: how often it was run.
        elapsed: seconds from the beginning of the first attempt to the end of the last.
    """

    def __init__(self, error: E, attempts: int, elapsed: float) -> None:
        self.error = error
        self.attempts = attempts
        self.elapsed = elapsed
        super().__init__(
            f"it failed {attempts} times within {elapsed:.1f} s, at last with {error!r}"
        )


class EmptyRace(Exception):
    """A race was run among no effects, so that nobody could win it."""

    def __init__(self) -> None:
        super().__init__("a race needs at least one effect")


class ExecutorError(Exception):
    """Work that was sent to an executor had no end there, so nothing is known of how it would end.

    ExecutorError
    ├── WorkerLost     the process that ran the item died, as often as the executor tries
    └── ExecutorLost   the executor itself is gone: closed, or its cluster is out of reach
    """


class WorkerLost(ExecutorError):
    """Every worker process that was given an item died.

    Attributes:
        item: what the function was called with, shortened.
        attempts: how many worker processes it was given to, one after another.
        reason: how the last of them ended.
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
    """The executor is gone, and with it everything that ran there.

    `reason` says what happened.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}. What was under way is to be run again: resume the run when the executor is back"
        )


@dataclass(frozen=True, slots=True)
class TracedError(Generic[E]):
    """An error, and the contexts that it has crossed, from inner to outer."""

    error: E
    trail: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(f"{part}: " for part in reversed(self.trail)) + str(self.error)


class Halt(BaseException):
    """Ends a durable run, finalizers apart, because it cannot be recorded any further.

    Like a cancellation it is no `Exception`, so that a body cannot catch it by accident and go on from a
    state that is not recorded. `reason` is the error that `start` or `resume` reports.
    """

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        super().__init__(str(reason))


class LeftToResume(Halt):
    """Ends a finalizer before its next step, since the run around it is being stopped from outside."""

    def __init__(self, what: str) -> None:
        super().__init__(RuntimeError(f"the run is being stopped: {what} is left to its resume"))


class NotAcquired(BaseException):
    """Ends an acquisition before its first operation, since an operator around it has decided."""


class Parked(BaseException):
    """Ends a flow of a plan: what comes next would change something.

    `reason` says what it is; None if it is the next step of the flow.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason)
