"""What the checkers infer for map-reduce and iterative jobs. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Never, assert_type

from effectflow import (
    CheckpointError,
    Checkpoints,
    Effect,
    RetryPolicy,
    TimedOut,
    Workflow,
    effect,
    pure,
)
from effectflow.effects import Executor, WorkerLost, par_reduce
from effectflow.iterative import Iterative, IterativeResult
from effectflow.mapreduce import (
    DeadLetter,
    ItemFailed,
    ItemFailure,
    JobResult,
    MapReduce,
    TooManyFailures,
)
from effectflow.stores import MemoryStore


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


class FetchError(Exception): ...


class ListError(Exception): ...


class MergeError(Exception): ...


def names(folder: str) -> list[str]:
    return [folder]


async def stream(folder: str) -> AsyncIterator[str]:
    yield folder


def listing(folder: str) -> Effect[App, ListError, list[str]]:
    return pure([folder])


@effect(errors=FetchError)
async def fetch(app: App, name: str) -> int:
    return len(name)


def measure(name: str) -> Effect[App, Never, int]:
    return pure(len(name))


def total(values: Sequence[int]) -> Effect[object, Never, int]:
    return pure(sum(values))


def merge(values: list[int]) -> Effect[App, MergeError, int]:
    return pure(sum(values))


# A job that stops at the first item that fails has no dead letters, and fails with what names the item.
strict = MapReduce("strict", items=names, map=fetch, reduce=total, key=str, limit=2)
assert_type(strict, MapReduce[App, ItemFailed[FetchError], str, JobResult[int, Never, Never]])
assert_type(
    strict.start("folder"),
    Effect[App, ItemFailed[FetchError] | CheckpointError, JobResult[int, Never, Never]],
)

# One with dead letters has the errors of the items in its result, and not among its own.
lenient = MapReduce(
    "lenient",
    items=stream,
    map=fetch,
    reduce=merge,
    key=len,
    limit=2,
    on_item_failure="dead_letter",
    retry=RetryPolicy.constant(1).with_max_retries(2),
)
assert_type(lenient, MapReduce[App, MergeError, str, JobResult[int, str, FetchError]])
assert_type(
    lenient.retry_dead_letters("r"),
    Effect[App, MergeError | CheckpointError, JobResult[int, str, FetchError]],
)
assert_type(lenient.body("folder"), Effect[App, MergeError, JobResult[int, str, FetchError]])


def looked_at(result: JobResult[int, str, FetchError]) -> None:
    assert_type(result.value, int)
    assert_type(result.dead_letters, tuple[DeadLetter[str, FetchError], ...])


# Items may come of an effect, whose failure is the job's.
listed = MapReduce("listed", items=listing, map=fetch, reduce=total, key=str, limit=2)
assert_type(
    listed, MapReduce[App, ItemFailed[FetchError] | ListError, str, JobResult[int, Never, Never]]
)
listed_leniently = MapReduce(
    "listed",
    items=listing,
    map=fetch,
    reduce=merge,
    key=str,
    limit=2,
    on_item_failure="dead_letter",
)
assert_type(
    listed_leniently, MapReduce[App, MergeError | ListError, str, JobResult[int, str, FetchError]]
)
sure = MapReduce("sure", items=names, map=measure, reduce=total, key=str, limit=2)
assert_type(sure, MapReduce[App, ItemFailed[Never], str, JobResult[int, Never, Never]])


def on(
    executor: Executor,
) -> Workflow[App, ItemFailed[FetchError], str, JobResult[int, Never, Never]]:
    return MapReduce(
        "far", items=names, map=fetch, reduce=total, key=str, limit=2, executor=executor
    )


def halved(number: int) -> Effect[App, MergeError, int]:
    return pure(number // 2)


halving = Iterative(
    "halving", halved, converged=lambda before, after: before == after, max_rounds=9
)
assert_type(halving, Iterative[App, MergeError, int])
assert_type(halving.start(9), Effect[App, MergeError | CheckpointError, IterativeResult[int]])

assert_type(par_reduce(["a"], fetch, merge, limit=2), Effect[App, FetchError | MergeError, int])


def shout(value: int) -> Effect[App, Never, str]:
    return pure(str(value))


# What must be rejected.
MapReduce("w", items=names, map=shout, reduce=total, key=str, limit=2)  # type: ignore[arg-type, misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
MapReduce("w", items=names, map=fetch, reduce=total, key=str)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
Iterative("w", shout, converged=lambda before, after: True, max_rounds=2)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
strict.start(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A bound on failures is one more way to fail.
bounded = MapReduce(
    "bounded",
    items=names,
    map=fetch,
    reduce=merge,
    key=str,
    limit=2,
    on_item_failure="dead_letter",
    max_failures=0.1,
    retry=RetryPolicy.constant(1).with_max_retries(2),
    retryable=lambda error: len(error.args) > 0,
    timeout=timedelta(seconds=5),
    per_second=10,
)
assert_type(
    bounded, MapReduce[App, TooManyFailures | MergeError, str, JobResult[int, str, FetchError]]
)
bounded_listing = MapReduce(
    "bounded",
    items=listing,
    map=fetch,
    reduce=total,
    key=str,
    limit=2,
    on_item_failure="dead_letter",
    max_failures=3,
)
assert_type(
    bounded_listing,
    MapReduce[App, TooManyFailures | ListError, str, JobResult[int, str, FetchError]],
)


def letters(letter: DeadLetter[str, FetchError]) -> None:
    assert_type(letter.item, str)
    assert_type(letter.error, FetchError | WorkerLost | TimedOut)
    assert_type(letter.failures, tuple[ItemFailure[FetchError], ...])
    assert_type(letter.failures[0].began_at, datetime)


# Dead letters of any workflow are retried or dropped, with the type of a resume.
assert_type(
    halving.retry_dead_letters("r", keys=["a", 3]),
    Effect[App, MergeError | CheckpointError, IterativeResult[int]],
)
assert_type(
    bounded.drop_dead_letters("r"),
    Effect[App, TooManyFailures | MergeError | CheckpointError, JobResult[int, str, FetchError]],
)


# An executor may come from the environment, which the job then needs.
@dataclass(frozen=True)
class Cluster(App):
    executor: Executor


def executor_of(env: Cluster) -> Executor:
    return env.executor


def anywhere(name: str) -> Effect[object, FetchError, int]:
    return pure(len(name))


injected = MapReduce(
    "injected",
    items=names,
    map=anywhere,
    reduce=total,
    key=str,
    limit=2,
    executor=executor_of,
)
assert_type(injected, MapReduce[Cluster, ItemFailed[FetchError], str, JobResult[int, Never, Never]])
also_injected = MapReduce(
    "injected",
    items=names,
    map=fetch,
    reduce=total,
    key=str,
    limit=2,
    executor=executor_of,
)
assert_type(
    also_injected, MapReduce[Cluster, ItemFailed[FetchError], str, JobResult[int, Never, Never]]
)


def number_of(env: Cluster) -> int:
    return 1


# What must be rejected: an environment without the executor, and a function of something else.
injected.start("folder").run_sync(App(Checkpoints(MemoryStore())))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
MapReduce("w", items=names, map=fetch, reduce=total, key=str, limit=2, executor=number_of)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
MapReduce("w", items=names, map=fetch, reduce=total, key=str, limit=2, max_failures=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
