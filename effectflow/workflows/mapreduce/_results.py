"""The result of a job, and its failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

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
