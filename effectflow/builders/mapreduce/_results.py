"""The results of a job: its value, the items that failed, and the parts that are still to be joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.values import digest_of
from effectflow.effects import TimedOut, WorkerLost
from effectflow.effects.errors import Copyable

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ItemFailure(Generic[E_co]):
    """A failed attempt of an item.

    Attributes:
        error: its error; WorkerLost if each worker that ran the item died, and TimedOut if the attempt
            took too long, even if `map` does not declare it.
        began_at, ended_at: when the attempt began and ended, aware, in UTC.
    """

    error: E_co | WorkerLost | TimedOut
    began_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[Item_co, E_co]):
    """An item that was set aside after its last attempt failed.

    Attributes:
        key: the item's key.
        item: the item.
        error: the error of the last attempt.
        attempts: the number of attempts, over all retries and lives of the run. Attempts that a crash
            interrupted count as well.
        failures: the attempts that failed, oldest first.
    """

    key: str
    item: Item_co
    error: E_co | WorkerLost | TimedOut
    # Not shown: a crash adds attempts, and tests compare what a job shows with and without crashes.
    attempts: int = field(repr=False)
    failures: tuple[ItemFailure[E_co], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class JobResult(Generic[A_co, Item_co, E_co]):
    """The result of a job.

    Attributes:
        value: the values of all items that succeeded, reduced.
        items: the number of items, without those that were dropped. Dead letters are included.
        dead_letters: the items that failed, in the order of the items.
    """

    value: A_co
    items: int
    dead_letters: tuple[DeadLetter[Item_co, E_co], ...] = ()


class ItemFailed(Copyable, Exception, Generic[E]):
    """The last attempt of an item failed, which stopped the job.

    Attributes:
        job: the job's name.
        key: the item's key.
        error: the error of the last attempt, as in `ItemFailure`.
        attempts: the number of attempts, as in `DeadLetter`.

    A resume retries the item, unless `map` is a `@step` that is not retryable.
    """

    __module__ = "effectflow.mapreduce"

    def __init__(
        self,
        job: str,
        key: str,
        error: E | WorkerLost | TimedOut,
        attempts: int,
        *,
        is_retryable: bool = True,
    ) -> None:
        self.job = job
        self.key = key
        self.error = error
        self.attempts = attempts
        advice = _RETRYABLE if is_retryable else _NOT_RETRYABLE
        super().__init__(f"item {key!r} of job {job!r} failed with {error!r}. {advice}")


_RETRYABLE = 'A resume retries the item; on_item_failure="dead_letter" sets such items aside'
_NOT_RETRYABLE = (
    "Its step is not retryable, so a resume fails again without running it; "
    'on_item_failure="dead_letter" sets such items aside, also in this run if it is resumed with '
    "force=True"
)


class TooManyFailures(Copyable, Exception):
    """More items of a job failed than `max_failures` allows, which stopped the job.

    Attributes:
        job: the job's name.
        max_failures: the number of items that may fail, or their share.
        failed: the number of items that had failed.
    """

    __module__ = "effectflow.mapreduce"

    def __init__(self, job: str, max_failures: float, failed: int) -> None:
        self.job = job
        self.max_failures = max_failures
        self.failed = failed
        super().__init__(job, max_failures, failed)

    def __str__(self) -> str:
        allowed = self.max_failures
        most = f"{allowed:.0%} of the" if isinstance(allowed, float) else str(allowed)
        return (
            f"more than {most} items of job {self.job!r} failed: {self.failed}. Retry them with "
            "retry_dead_letters, or drop them with drop_dead_letters; a resume with a higher "
            "max_failures continues as well"
        )


@dataclass(frozen=True, slots=True)
class PartialResult:
    """The partial result of consecutive items.

    Attributes:
        value: the value of the items; nothing if all of them are dead letters.
        dead_letters: the items that failed, in order.
        count: the number of items.
        first, last: the keys of the first and the last item.
        digest: the key of a single item; for several, a digest of their keys.
        retry: the reopening of the run that changed the value last; 0 for none.
        is_reduced: whether `reduce` made the value.
    """

    value: Maybe[Any]
    dead_letters: tuple[DeadLetter[Any, Any], ...]
    count: int
    first: str
    last: str
    digest: str
    retry: int = 0
    is_reduced: bool = False

    @staticmethod
    def of_item(key: str, value: object, *, retry: int) -> PartialResult:
        """Return the part of an item that succeeded."""
        return PartialResult(Some(value), (), 1, key, key, key, retry)

    @staticmethod
    def of_dead_letter(letter: DeadLetter[Any, Any]) -> PartialResult:
        """Return the part of an item that failed."""
        return PartialResult(Nothing, (letter,), 1, letter.key, letter.key, letter.key)

    @staticmethod
    def of_dropped(key: str) -> PartialResult:
        """Return the part of an item that failed and does not count any more."""
        return PartialResult(Nothing, (), 0, key, key, key)

    @staticmethod
    def of_group(parts: Sequence[PartialResult]) -> PartialResult:
        """Return the part of all items of these parts, still without a value."""
        return PartialResult(
            value=Nothing,
            dead_letters=tuple(letter for part in parts for letter in part.dead_letters),
            count=sum(part.count for part in parts),
            first=parts[0].first,
            last=parts[-1].last,
            digest=digest_of([part.digest for part in parts]),
            retry=max(part.retry for part in parts),
            is_reduced=True,
        )
