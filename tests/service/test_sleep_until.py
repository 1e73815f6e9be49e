"""Waiting until a moment: recorded once, and over when it has passed, in any process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, now, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.effects import sleep_until
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock, crash_everywhere
from tests.apps import App, Broken, app_on
from tests.runs.journals import clock_at, journal
from tests.service.conftest import Service
from tests.service.lives import act, suspended, working

pytestmark = pytest.mark.anyio

NEW_YEAR = datetime(2000, 1, 1, tzinfo=UTC)
NOON = NEW_YEAR + timedelta(hours=12)


@workflow
def at_noon(moment: datetime) -> Do[App, Broken, str]:
    yield from act("before")
    yield from sleep_until(moment)
    return (yield from act("after"))


async def test_a_wait_ends_at_the_moment_or_at_once_if_that_has_passed() -> None:
    waited = sleep_until(NOON).and_then(lambda _: now())
    assert await TestClock(NEW_YEAR).run(waited, None) == Success(NOON)
    later = NOON + timedelta(days=1)
    assert await TestClock(later).run(waited, None) == Success(later)


def test_a_moment_needs_a_time_zone() -> None:
    with pytest.raises(ValueError, match="a time zone"):
        sleep_until(NOON.replace(tzinfo=None))


async def test_a_run_that_is_killed_at_any_write_waits_for_the_same_moment() -> None:
    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store))

    assert await crash_everywhere(at_noon, NOON, environment)


@pytest.mark.parametrize(
    "hours",
    [-(10**6), -1, 1, 13],
    ids=["before 1970", "past", "to come", "passed by a resume"],
)
async def test_a_resume_waits_for_the_recorded_moment(hours: int) -> None:
    moment = NEW_YEAR + timedelta(hours=hours)
    app = app_on(MemoryStore(), failing=["after"])
    await clock_at().run(at_noon.start(moment, run_id="r"), app)
    app.world.recover()
    app.world.done.clear()

    assert await clock_at(12 * 3600).run(at_noon.resume("r"), app) == Success("after")
    assert app.world.done == ["after"]
    assert (await journal(app.checkpoints.store)).count("W sleep") == 1


async def test_a_worker_suspends_the_run_until_the_moment(service: Service) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=0.4)
    async with working(service, at_noon) as worker:
        handle = await worker.client.submit(at_noon, moment, run_id="r")
        info = await suspended(service, "r", waits_for="a time")
        assert info.summary.due_at == pytest.approx(moment.timestamp())
        assert await handle.result(timeout=10) == Success("after")
    assert datetime.now(UTC) >= moment
    assert service.world.done == ["before", "after"]
