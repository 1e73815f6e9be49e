"""What earlier versions recorded of chance and time is still read: `data/decisions-1.jsonl`.

Both runs failed at `last`, after a failure that they had handled. The position of the child that failed
was recorded, whether or not it had a key; and of `retry` the time that had passed, without the delay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    ask,
    fail,
    par_traverse,
    pure,
    step,
    suspend,
    workflow,
)
from effectflow.checkpoint import import_run, read_exported
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent.parent / "checkpoint" / "data" / "decisions-1.jsonl"


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    is_broken: bool = False


@step
def check(number: int) -> Effect[App, str, int]:
    return fail(f"{number} is bad") if number > 1 else pure(number)


@step
def last() -> Effect[App, str, None]:
    return ask(App).and_then(lambda app: fail("crash here") if app.is_broken else pure(None))


@workflow
def checking(_: None) -> Do[App, Any, str]:
    checked = yield from par_traverse([1, 3, 2], check, limit=1, key=str).result()
    yield from last()
    return str(checked.failure())


@workflow
def patient(_: None) -> Do[App, Any, str]:
    policy = RetryPolicy.constant(10).with_max_elapsed(25)
    retried = yield from suspend(lambda: check(2)).retry(policy).result()
    yield from last()
    error = retried.failure()
    return f"{error.error} after {error.attempts} attempts in {error.elapsed} s"


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with MemoryStore() as store:
        for run in read_exported(DATA.read_bytes().splitlines(keepends=True)):
            await import_run(store, run)
        yield App(Checkpoints(store))


async def test_the_position_of_the_child_that_failed(app: App) -> None:
    assert await TestClock().run(checking.resume("checking"), app) == Success("3 is bad")


async def test_the_time_that_passed_without_the_delay_that_was_drawn(app: App) -> None:
    ended = await TestClock().run(patient.resume("patient"), app)
    assert ended == Success("2 is bad after 3 attempts in 20.0 s")
