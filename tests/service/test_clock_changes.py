"""Clocks that are set while runs wait, and virtual clocks that let days pass in a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Signal, TimedOut, now, sleep, workflow
from effectflow.checkpoint import RunStatus
from effectflow.checkpoint.lease import begin_claim, end_claim
from effectflow.testing import TestClock
from tests.apps import App, Broken
from tests.service.clocks import AdjustableClock
from tests.service.conftest import Service, both_stores
from tests.service.lives import act, info_of, suspended

pytestmark = pytest.mark.anyio

HOUR, DAY = 3600.0, 86400.0
START = datetime(2100, 1, 1, tzinfo=UTC)

approval: Signal[str] = Signal("approval", str)


@pytest.fixture
def clock() -> AdjustableClock:
    return AdjustableClock(START)


@workflow
def nap(seconds: float) -> Do[App, Broken, str]:
    yield from sleep(seconds)
    return (yield from act("awake"))


@workflow
def quick(_: None) -> Do[App, Broken, str]:
    return (yield from act("quick"))


@workflow
def campaign(_: None) -> Do[App, Broken, list[str]]:
    """Write three letters, a week apart, and wait for an answer for a month."""
    began = yield from now()
    days: list[str] = []
    for _number in range(3):
        yield from act("letter")
        yield from sleep(timedelta(days=7))
        days += [f"day {(yield from now()) - began}"]
    answer = yield from approval.wait().timeout(timedelta(days=30)).result()
    if isinstance(answer, Success):
        return [*days, answer.unwrap()]
    assert isinstance(answer.failure(), TimedOut)
    return [*days, f"no answer on day {((yield from now()) - began).days}"]


async def test_a_run_sleeps_for_weeks_in_a_moment(service: Service) -> None:
    clock = TestClock()
    async with service.worker(campaign, clock=clock) as worker:
        handle = await worker.client.submit(campaign, None, run_id="r")
        for number in range(3):
            info = await suspended(service, "r", waits_for="a time")
            assert service.world.done == ["letter"] * (number + 1)
            assert info.summary.due_at is not None
            await clock.advance(info.summary.due_at - clock.now().timestamp())
            with anyio.fail_after(10):
                while (await info_of(service, "r")).length == info.length:
                    await anyio.sleep(0.005)
        info = await suspended(service, "r", waits_for="signal approval")
        await clock.advance(timedelta(days=30))
        result = await handle.result(timeout=10)
        assert result.unwrap()[-1] == "no answer on day 51"
        assert [day.split(",")[0] for day in result.unwrap()[:3]] == [
            "day 7 days",
            "day 14 days",
            "day 21 days",
        ]


async def test_a_run_that_sleeps_in_memory_does_not_notice_that_its_clock_was_set(
    service: Service, clock: AdjustableClock
) -> None:
    for hours in (-1, 1):
        async with service.worker(nap, clock=clock, suspend_after=DAY) as worker:
            handle = await worker.client.submit(nap, 600.0)
            await clock.until_slept_on()
            with anyio.fail_after(10):
                while await handle.status() is RunStatus.PENDING:
                    await anyio.sleep(0.01)
            clock.offset += timedelta(hours=hours)
            await clock.advance(590)
            assert await handle.status() is RunStatus.RUNNING
            await clock.advance(20)
            assert await handle.result(timeout=10) == Success("awake")


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_suspended_run_wakes_once_after_the_clock_was_changed(
    service: Service, clock: AdjustableClock, hours: int
) -> None:
    async with service.worker(nap, clock=clock) as worker:
        handle = await worker.client.submit(nap, 2 * HOUR, run_id="r")
        info = await suspended(service, "r")
        clock.offset += timedelta(hours=hours)
        due_in = (2 - hours) * HOUR
        assert info.summary.due_at == pytest.approx(clock.now().timestamp() + due_in)
        await clock.advance(due_in - 60)
        await anyio.sleep(0.6)
        assert await handle.status() is RunStatus.SUSPENDED
        await clock.advance(61)
        assert await handle.result(timeout=10) == Success("awake")
    assert service.world.done == ["awake"]


async def test_what_was_submitted_before_the_clock_was_set_back_begins_at_once(
    service: Service, clock: AdjustableClock
) -> None:
    client = service.worker(quick, clock=clock).client
    handle = await client.submit(quick, None)
    clock.offset -= timedelta(hours=1)
    async with service.worker(quick, clock=clock):
        assert await handle.result(timeout=30) == Success("quick")


async def test_the_run_of_a_dead_process_continues_although_the_clock_was_set_back(
    service: Service, clock: AdjustableClock
) -> None:
    async with service.worker(nap, clock=clock, suspend_after=DAY, grace=0) as worker:
        handle = await worker.client.submit(nap, 1.0, run_id="r")
        with anyio.fail_after(30):
            while (await info_of(service, "r")).summary.status is not RunStatus.RUNNING:
                await anyio.sleep(0.01)
    assert await handle.status() is RunStatus.INTERRUPTED
    clock.offset -= timedelta(hours=1)
    async with service.worker(nap, clock=clock, suspend_after=DAY) as worker:
        # It never sleeps for longer than it was told.
        await clock.until_slept_on()
        await clock.advance(2)
        assert await handle.result(timeout=10) == Success("awake")


@workflow
def approve(_: None) -> Do[App, Broken, str]:
    return (yield from approval.wait())


@both_stores
async def test_a_message_wakes_a_run_of_a_worker_whose_clock_is_an_hour_behind(
    service: Service,
) -> None:
    """The clock of the store is right, and so is that of the sender."""
    behind = AdjustableClock(datetime.now(UTC) - timedelta(hours=1))
    async with service.worker(approve, clock=behind, suspend_after=0) as worker:
        handle = await worker.client.submit(approve, None, run_id="r")
        await suspended(service, "r")
        await service.client.handle(approve, "r").send(approval, "ann")
        assert await handle.result(timeout=30) == Success("ann")


async def test_a_lease_does_not_expire_because_a_clock_was_set_forward(
    service: Service, clock: AdjustableClock
) -> None:
    owner = begin_claim()
    await service.client.submit(quick, None, run_id="r")
    taken = await service.store.claim("r", owner=str(owner), seconds=60)
    clock.offset += timedelta(hours=1)
    async with service.worker(quick, clock=clock) as worker:
        await anyio.sleep(0.3)
        assert service.world.done == []
        await service.store.release(taken.lease)
        end_claim(owner, is_released=True)
        assert await worker.client.handle(quick, "r").result(timeout=10) == Success("quick")
