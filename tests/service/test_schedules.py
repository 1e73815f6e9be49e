"""Schedules in workers: each tick starts one run, also if clocks are set and several workers look."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, pure, workflow
from effectflow.checkpoint import RunQuery, RunStatus, run_context
from effectflow.service import App, Schedule
from effectflow.stores import MemoryStore
from tests import apps
from tests.apps import Broken
from tests.service.clocks import AdjustableClock
from tests.service.conftest import Service, both_stores

pytestmark = pytest.mark.anyio


@workflow
def report(day: str) -> Do[apps.App, Broken, str]:
    return (yield from pure(day))


BEGIN = datetime(2026, 6, 1, 9, 59, tzinfo=UTC)


def hourly(**options: Any) -> Schedule[str]:
    return Schedule(report, "0 * * * *", input=lambda tick: f"{tick:%H}", **options)


async def ticks(service: Service) -> list[str]:
    found = await service.client.find(RunQuery(prefix="report@", limit=None))
    return sorted(info.run_id.removeprefix("report@2026-06-01T")[:5] for info in found)


async def advance(clock: AdjustableClock, *, hours: float) -> None:
    """Advance in steps, each once the schedule has done its work of the last one."""
    for _ in range(round(hours * 10)):
        await clock.until_slept_on()
        await clock.advance(360)
    await clock.until_slept_on()


@both_stores
async def test_each_tick_starts_one_run_with_two_workers(service: Service) -> None:
    clocks = [AdjustableClock(BEGIN), AdjustableClock(BEGIN)]
    async with (
        service.worker(report, clock=clocks[0], schedules=[hourly()]),
        service.worker(report, clock=clocks[1], schedules=[hourly()]),
    ):
        async with anyio.create_task_group() as tasks:
            for clock in clocks:
                tasks.start_soon(lambda clock=clock: advance(clock, hours=2))
        assert await ticks(service) == ["10:00", "11:00"]
        handle = service.client.handle(report, "report@2026-06-01T10:00:00+00:00")
        assert (await handle.result(timeout=30)).unwrap() == "10"


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("latest", ["10:00", "13:00"]),
        ("all", ["10:00", "11:00", "12:00", "13:00"]),
        ("skip", ["10:00"]),
    ],
)
async def test_ticks_missed_without_a_worker_are_started_later(
    service: Service, missed: Any, expected: list[str]
) -> None:
    clock = AdjustableClock(BEGIN)
    async with service.worker(report, clock=clock, schedules=[hourly(missed=missed)]):
        await advance(clock, hours=0.1)
    clock.offset += timedelta(hours=3, minutes=20)
    async with service.worker(report, clock=clock, schedules=[hourly(missed=missed)]):
        await clock.until_slept_on()
        assert await ticks(service) == expected


async def test_a_renamed_workflow_continues_its_schedule(service: Service) -> None:
    clock = AdjustableClock(BEGIN)
    async with service.worker(report, clock=clock, schedules=[hourly()]):
        await advance(clock, hours=0.1)
    clock.offset += timedelta(hours=2)

    @workflow(name="summary", aliases=["report"])
    def summary(day: str) -> Do[apps.App, Broken, str]:
        return (yield from pure(day))

    renamed = Schedule(summary, "0 * * * *", input="x", name="report", missed="all")
    async with service.worker(summary, clock=clock, schedules=[renamed]):
        await clock.until_slept_on()
        assert await ticks(service) == ["10:00", "11:00", "12:00"]


async def test_nothing_that_came_before_the_first_use_is_started(service: Service) -> None:
    clock = AdjustableClock(BEGIN)
    async with service.worker(report, clock=clock, schedules=[hourly(missed="all")]):
        await clock.until_slept_on()
    assert await ticks(service) == []


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedules notice soon that a clock was set."""
    monkeypatch.setattr("effectflow.service.schedule._AT_MOST", 0.005)


async def until_ticks(service: Service, *expected: str) -> None:
    with anyio.fail_after(10):
        while (found := await ticks(service)) != list(expected):
            assert len(found) < len(expected)
            await anyio.sleep(0.001)


@pytest.mark.usefixtures("looks_often")
async def test_a_clock_set_back_by_an_hour_does_not_repeat_ticks(service: Service) -> None:
    clock = AdjustableClock(BEGIN)
    async with service.worker(report, clock=clock, schedules=[hourly(missed="all")]):
        await advance(clock, hours=1.2)
        await until_ticks(service, "10:00", "11:00")
        clock.offset -= timedelta(hours=1)
        for _ in range(4):
            await anyio.sleep(0.02)
            await advance(clock, hours=0.5)
        await until_ticks(service, "10:00", "11:00", "12:00")


@pytest.mark.usefixtures("looks_often")
async def test_a_clock_set_forward_by_an_hour_and_back_does_not_lose_ticks(
    service: Service,
) -> None:
    clock = AdjustableClock(BEGIN)
    async with service.worker(report, clock=clock, schedules=[hourly(missed="latest")]):
        await advance(clock, hours=0.1)
        await until_ticks(service, "10:00")
        clock.offset += timedelta(hours=1)
        await until_ticks(service, "10:00", "11:00")
        clock.offset -= timedelta(hours=1)
        for _ in range(4):
            await anyio.sleep(0.02)
            await advance(clock, hours=0.5)
        await until_ticks(service, "10:00", "11:00", "12:00")


async def test_no_tick_of_a_busy_schedule_is_lost(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker is busy for 50 seconds, such as with a slow store, which is less than a minute."""
    clock = AdjustableClock(BEGIN)
    every_second = Schedule(report, "* * * * * *", input="")
    async with service.worker(report, clock=clock, schedules=[every_second]) as worker:
        await worker.idle()
        clock.offset += timedelta(seconds=50)
        await clock.advance(1)
        await worker.idle()
        found = await service.client.find(RunQuery(prefix="report@", limit=None))
        assert len(found) == 51
        assert not caplog.text
        clock.offset += timedelta(minutes=3)
        await clock.advance(1)
        await worker.idle()
        assert "ticks from 2026-06-01T09:59:52+00:00 on" in caplog.text


async def test_a_schedule_over_ninety_days_takes_no_time() -> None:
    clock = AdjustableClock(BEGIN)
    service = Service(MemoryStore())
    daily = Schedule(report, "0 6 * * *", input="")
    async with service.worker(report, clock=clock, schedules=[daily]) as worker:
        await worker.idle()
        before = time.perf_counter()
        await clock.advance(timedelta(days=90))
        assert time.perf_counter() - before < 5
        await worker.idle()
        found = await service.client.find(RunQuery(prefix="report@", limit=None))
        assert {info.summary.status for info in found} == {RunStatus.COMPLETED}
        assert len(found) == 90


async def test_a_broken_input_loses_its_tick_and_not_the_schedule(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_at_ten(tick: datetime) -> str:
        if tick.hour == 10:
            raise ZeroDivisionError
        return str(tick.hour)

    clock = AdjustableClock(BEGIN)
    broken = Schedule(report, "0 * * * *", input=broken_at_ten)
    async with service.worker(report, clock=clock, schedules=[broken]):
        await advance(clock, hours=1.1)
    assert await ticks(service) == ["11:00"]
    assert "run 'report@2026-06-01T10:00:00+00:00' was not started" in caplog.text


@workflow
def tenant(day: str) -> Do[apps.App, Broken, str]:
    return f"{(yield from run_context())['tenant']} at {day}"


async def test_the_runs_of_a_schedule_have_its_priority_and_context(service: Service) -> None:
    schedule = Schedule(
        tenant, "0 * * * *", input="ten", name="report", priority=3, context={"tenant": "acme"}
    )
    clock = AdjustableClock(BEGIN)
    async with service.worker(tenant, clock=clock, schedules=[schedule]):
        await advance(clock, hours=1)
        [info] = await service.client.find()
        result = await service.client.handle(tenant, info.run_id).result(timeout=30)
    assert (info.summary.priority, result) == (3, Success("acme at ten"))


@pytest.mark.parametrize("priority", ["high", 2**31])
def test_a_schedule_rejects_a_priority_that_no_store_can_keep(priority: Any) -> None:
    with pytest.raises(ValueError, match="priority must be an int of 32 bits"):
        hourly(priority=priority)


def test_an_app_rejects_schedules_that_cannot_work() -> None:
    kept, deleted = Checkpoints(MemoryStore()), Checkpoints(MemoryStore(), preserve=False)

    def app(
        *workflows: Any, schedules: list[Schedule[Any]], checkpoints: Checkpoints = kept
    ) -> None:
        App(workflows, environment=apps.App, checkpoints=checkpoints, schedules=schedules)

    app(report, schedules=[hourly(), hourly(name="again")])
    with pytest.raises(ValueError, match="two schedules named 'report'"):
        app(report, schedules=[hourly(), hourly()])
    with pytest.raises(ValueError, match="'report' starts workflow 'report', which is not among"):
        app(schedules=[hourly()])
    with pytest.raises(ValueError, match="preserve=True"):
        app(report, schedules=[hourly()], checkpoints=deleted)
