"""What a journal says of when things happened is told by the clock of the run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, fail, now, sleep, step, uuid, workflow
from effectflow.checkpoint import read_checkpoint, read_entries
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App
from tests.runs.journals import in_turn, made_of

pytestmark = pytest.mark.anyio

BEGAN = datetime(2000, 1, 1, tzinfo=UTC)


@step
def work(seconds: float) -> Effect[App, str, float]:
    return sleep(seconds).map(lambda _: seconds)


@step
def break_down(seconds: float) -> Effect[App, str, float]:
    return sleep(seconds).and_then(lambda _: fail("broken"))


working = made_of(
    lambda: in_turn(
        work(60), sleep(60), uuid(), work(3600).timeout(60).fallback(0.0), break_down(60)
    ),
    "working",
)


async def test_entries_tell_the_time_of_the_clock_of_the_run(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    assert await TestClock(BEGAN).run(working.start(None, run_id="r"), app) == Failure("broken")
    a_day_later = BEGAN + timedelta(days=1)
    assert await TestClock(a_day_later).run(working.resume("r"), app) == Failure("broken")

    told = [
        (type(entry).__name__, entry.at - BEGAN.timestamp())
        for entry in await read_entries(store, "r")
    ]

    day = 24 * 3600.0
    assert told == [
        ("Started", 0.0),
        ("BeforeStep", 0.0),
        ("Completed", 60.0),
        ("Waiting", 60.0),
        ("TimerFired", 120.0),
        ("Value", 120.0),
        ("Value", 120.0),
        ("BeforeStep", 120.0),
        ("TimerFired", 180.0),
        ("Interrupted", 180.0),
        ("BeforeStep", 180.0),
        ("Failed", 240.0),
        ("Finished", 240.0),
        ("Resumed", day),
        ("BeforeStep", day),
        ("Failed", day + 60),
        ("Finished", day + 60),
    ]
    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.created_at == BEGAN.timestamp()
    assert checkpoint.completed_steps[0].duration == 60.0


class SetBack(TestClock):
    """A clock whose time of day goes back by an hour for each second that passes."""

    def now(self) -> datetime:
        return BEGAN - timedelta(hours=self.monotonic())


async def test_a_duration_is_right_though_the_time_of_day_is_set_back(store: MemoryStore) -> None:
    @workflow
    def timed(_: None) -> Do[App, str, float]:
        began = yield from now()
        yield from work(2)
        return ((yield from now()) - began).total_seconds()

    ended = await SetBack().run(timed.start(None, run_id="r"), App(Checkpoints(store)))

    assert ended == Success(-7200.0)
    assert (await read_checkpoint(store, "r")).completed_steps[0].duration == 2.0
