"""The result of a job, and the partial results from which it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.values import digest_of
from effectflow.effects import WorkerLost

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[E_co]):
    """An item that was set aside after its last attempt failed.

    Attributes:
        key: the item's key.
        error: the error of the last attempt; WorkerLost if each worker that ran the item died.
        attempts: the number of attempts, over all retries.
    """

    key: str
    error: E_co | WorkerLost
    attempts: int


@dataclass(frozen=True, slots=True)
class JobResult(Generic[A_co, E_co]):
    """The result of a job.

    Attributes:
        value: the values of all items that succeeded, reduced.
        items: the number of items, dead letters included.
        dead_letters: the items that failed, in the order of the items.
    """

    value: A_co
    items: int
    dead_letters: tuple[DeadLetter[E_co], ...] = ()


class ItemFailed(Exception, Generic[E]):
    """The last attempt of an item failed, which stopped the job.

    Attributes:
        job: the job's name.
        key: the item's key.
        error: the error of the last attempt; WorkerLost if each worker that ran the item died.
        attempts: the number of attempts.

    A resume retries the item, unless `map` is a `@step` that is not retryable.
    """

    def __init__(
        self,
        job: str,
        key: str,
        error: E | WorkerLost,
        attempts: int,
        *,
        is_retryable: bool = True,
    ) -> None:
        self.job = job
        self.key = key
        self.error = error
        self.attempts = attempts
        times = "" if attempts == 1 else f" {attempts} times, at last"
        advice = _RETRYABLE if is_retryable else _NOT_RETRYABLE
        super().__init__(f"item {key!r} of job {job!r} failed{times} with {error!r}. {advice}")


_RETRYABLE = 'A resume retries the item; on_item_failure="dead_letter" sets such items aside'
_NOT_RETRYABLE = (
    "Its step is not retryable, so a resume fails again without running it; "
    'on_item_failure="dead_letter" sets such items aside, also in this run if it is resumed with '
    "force=True"
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
        retry: the retry of dead letters that changed the value last; 0 for none.
        is_reduced: whether `reduce` made the value.
    """

    value: Maybe[Any]
    dead_letters: tuple[DeadLetter[Any], ...]
    count: int
    first: str
    last: str
    digest: str
    retry: int = 0
    is_reduced: bool = False

    @staticmethod
    def of_item(key: str, value: object, *, retry: int = 0) -> PartialResult:
        """Return the part of an item that succeeded."""
        return PartialResult(Some(value), (), 1, key, key, key, retry)

    @staticmethod
    def of_dead_letter(letter: DeadLetter[Any]) -> PartialResult:
        """Return the part of an item that failed."""
        return PartialResult(Nothing, (letter,), 1, letter.key, letter.key, letter.key)

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

    @property
    def arguments(self) -> tuple[str, str]:
        """The keys of the items as arguments: a resume must find the same items here."""
        return self.digest, f"({self.count} items, {self.first!r} to {self.last!r})"
