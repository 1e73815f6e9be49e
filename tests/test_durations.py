"""Every public duration is a number of seconds or a `timedelta`; anything else is rejected at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    App,
    Checkpoints,
    Effect,
    RetryPolicy,
    TimedOut,
    Worker,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import CheckpointPolicy
from effectflow.executors import ProcessExecutor
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from effectflow.testing import FaultyStore, Slow, TestClock

POSTGRES, REDIS = "postgresql://localhost/runs", "redis://localhost:6379/0"


@step(timeout=timedelta(minutes=1))
def double(number: int) -> Effect[object, str, int]:
    return pure(2 * number)


@workflow
def doubled(number: int) -> Effect[object, Any, int]:
    return double(number)


class Environment:
    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints


def service() -> App[Environment]:
    return App([doubled], environment=Environment, checkpoints=Checkpoints(MemoryStore()))


async def submitted(delay: Any, timeout: Any) -> None:
    async with Worker(service(), clock=TestClock()) as worker:
        handle = await worker.client.submit(doubled, 4, delay=delay)
        if delay == 0:
            with suppress(TimedOut):
                await handle.result(timeout=timeout)


DURATIONS: dict[str, Callable[[Any], object]] = {
    "sleep": sleep,
    "timeout": pure(1).timeout,
    "constant": RetryPolicy.constant,
    "linear": RetryPolicy.linear,
    "exponential": RetryPolicy.exponential,
    "fibonacci": RetryPolicy.fibonacci,
    "with_max_delay": RetryPolicy.constant(1).with_max_delay,
    "with_max_elapsed": RetryPolicy.constant(1).with_max_elapsed,
    "finalizer_deadline of run_sync": lambda d: pure(1).run_sync(None, finalizer_deadline=d),
    "finalizer_deadline of run_sync_or_raise": lambda d: pure(1).run_sync_or_raise(
        None, finalizer_deadline=d
    ),
    "timeout of step": lambda d: step(timeout=d)(lambda: pure(1)),
    "every_seconds": lambda d: CheckpointPolicy(every_steps=None, every_seconds=d),
    "lease_seconds": lambda d: Checkpoints(MemoryStore(), lease_seconds=d),
    "max_block": lambda d: Checkpoints(MemoryStore(), max_block=d),
    "lock_timeout of SqliteStore": lambda d: SqliteStore("runs.db", lock_timeout=d),
    "renew_timeout of SqliteStore": lambda d: SqliteStore("runs.db", renew_timeout=d),
    "lock_timeout of FileStore": lambda d: FileStore("runs", lock_timeout=d),
    "renew_timeout of FileStore": lambda d: FileStore("runs", renew_timeout=d),
    "statement_timeout of PostgresStore": lambda d: PostgresStore(POSTGRES, statement_timeout=d),
    "reconnect_timeout of PostgresStore": lambda d: PostgresStore(POSTGRES, reconnect_timeout=d),
    "renew_timeout of PostgresStore": lambda d: PostgresStore(POSTGRES, renew_timeout=d),
    "timeout of RedisStore": lambda d: RedisStore(REDIS, timeout=d),
    "reconnect_timeout of RedisStore": lambda d: RedisStore(REDIS, reconnect_timeout=d),
    "renew_timeout of RedisStore": lambda d: RedisStore(REDIS, renew_timeout=d),
    "grace": lambda d: ProcessExecutor(grace=d),
    "grace of Worker": lambda d: Worker(service(), grace=d),
    "suspend_after of Worker": lambda d: Worker(service(), suspend_after=d),
    "delay of submit": lambda d: anyio.run(submitted, d, 0),
    "timeout of result": lambda d: anyio.run(submitted, 0, d),
    "advance": lambda d: anyio.run(TestClock().advance, d),
}


@pytest.mark.parametrize("take", DURATIONS.values(), ids=DURATIONS)
def test_a_duration_is_a_number_or_a_timedelta(take: Callable[[Any], object]) -> None:
    for duration in (2, 2.5, timedelta(minutes=1)):
        take(duration)
    for wrong in ("2", True):
        with pytest.raises(TypeError, match="a number of seconds or a timedelta"):
            take(wrong)


def test_a_run_with_durations_as_timedelta(tmp_path: Path) -> None:
    second = timedelta(seconds=1)
    store = SqliteStore(tmp_path / "runs.db", lock_timeout=second, renew_timeout=second)
    policy = CheckpointPolicy(every_steps=None, every_seconds=timedelta(milliseconds=5))
    slow = FaultyStore(store, [Slow("append", timedelta(milliseconds=1))])
    checkpoints = Checkpoints(slow, policy=policy, lease_seconds=second, max_block=60 * second)

    assert doubled.start(4).run_sync(
        Environment(checkpoints), finalizer_deadline=second
    ) == Success(8)


def test_a_clock_advances_by_a_timedelta() -> None:
    clock = TestClock()
    anyio.run(clock.advance, timedelta(hours=1))
    assert clock.monotonic() == 3600


COUNTS: dict[str, Callable[[Any], object]] = {
    "every_steps": lambda n: CheckpointPolicy(every_steps=n),
    "history": lambda n: FileStore("runs", history=n),
    "limit": lambda n: ProcessExecutor(limit=n),
    "attempts": lambda n: ProcessExecutor(attempts=n),
}


@pytest.mark.parametrize("take", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("count", [2.5, True, "2", -1])
def test_wrong_counts_are_rejected(take: Callable[[Any], object], count: Any) -> None:
    with pytest.raises(ValueError, match="must be an int >= "):
        take(count)
