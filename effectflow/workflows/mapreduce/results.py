"""What a job gives: its value, and the items that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from effectflow.effects import WorkerLost

__all__ = ["DeadLetter", "ItemFailed", "JobResult"]

E = TypeVar("E")
A = TypeVar("A")
E_co = TypeVar("E_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[E_co]):
    """An item that failed for good, and was set aside.

    Attributes:
        key: the item's.
        error: what it failed with the last time; WorkerLost where it ended each worker that it was given.
        attempts: how often it was tried, over all retries.
    """

    key: str
    error: E_co | WorkerLost
    attempts: int


@dataclass(frozen=True, slots=True)
class JobResult(Generic[A_co, E_co]):
    """What a job gives.

    Attributes:
        value: what was reduced of all items that succeeded.
        items: how many there were, dead letters included.
        dead_letters: the items that failed, in the order of the items.
    """

    value: A_co
    items: int
    dead_letters: tuple[DeadLetter[E_co], ...] = ()


class ItemFailed(Exception, Generic[E]):
    """An item of a job failed for good, which stopped the job.

    Attributes:
        job: the job's name.
        key: the item's.
        error: what it failed with the last time; WorkerLost where it ended each worker that it was given.
        attempts: how often it was tried.

    `is_retryable` says whether a resume tries the item again: not if `map` is a `@step` that says no.
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
        way_on = _TRIED_AGAIN if is_retryable else _FINAL
        super().__init__(f"item {key!r} of job {job!r} failed{times} with {error!r}. {way_on}")


_TRIED_AGAIN = (
    'A resume tries it again and goes on; on_item_failure="dead_letter" sets such items aside'
)
_FINAL = (
    "Its step is not retryable, so a resume does not try it again, and fails as well; "
    'on_item_failure="dead_letter" sets such items aside, also in this run if it is resumed with '
    "force=True"
)
