"""A timeout and a message at the same moment: one of them decides, and every later life agrees."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Signal, TimedOut, race, sleep, workflow
from effectflow.checkpoint import RunEnded, RunStatus, find_run
from effectflow.checkpoint.entries import Signalled, TimerFired
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, TestClock
from effectflow.testing.crash import crash_points
from tests.apps import App, Broken, World
from tests.service.conftest import Service
from tests.service.lives import act, entries_of, until

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)

START = datetime(2100, 1, 1, tzinfo=UTC)


@workflow
def in_time(_: None) -> Do[App, Broken, str]:
    answer = yield from approval.wait().timeout(60).result()
    if isinstance(answer, Success):
        return (yield from act(f"approved by {answer.unwrap()}"))
    assert isinstance(answer.failure(), TimedOut)
    return (yield from act("too late"))


@workflow
def racing(_: None) -> Do[App, Broken, str]:
    first = yield from race(approval.wait(), sleep(60).map(lambda _: "time"))
    return (yield from act(f"first: {first}"))


OUTCOMES = {
    "in_time": {"approved by ann", "too late"},
    "racing": {"first: ann", "first: time"},
}


async def live(service: Service, workflow: Any, clock: TestClock) -> object:
    """Let the message and the time come together, and end the run."""
    async with service.worker(workflow, clock=clock, suspend_after=3600, grace=0) as worker:
        handle = await worker.client.submit(workflow, None, run_id="r")
        with anyio.fail_after(10):
            while not (await handle.status()).has_ended:
                await handle_both(handle, clock)
    return str(await handle.result())


async def handle_both(handle: Any, clock: TestClock) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send, handle)
        tasks.start_soon(clock.advance, 61)
    await anyio.sleep(0.01)


async def send(handle: Any) -> None:
    with suppress(RunEnded):
        await handle.send(approval, "ann", idempotency_key="1")


def decided(entries: list[Any]) -> str | None:
    """Return what the first life decided, as far as it was saved."""
    for entry in entries:
        if isinstance(entry, Signalled):
            return "message"
        if isinstance(entry, TimerFired):
            return "time"
    return None


@pytest.mark.parametrize("workflow", [in_time, racing], ids=["timeout", "race"])
async def test_one_of_them_decides(workflow: Any) -> None:
    ends: set[object] = set()
    for _ in range(20):
        service = Service(MemoryStore())
        ends.add(await live(service, workflow, TestClock(START)))
        assert len(service.world.done) == 1
        assert service.world.done[0] in OUTCOMES[workflow.name]
        entries = await entries_of(service, "r")
        signalled = sum(isinstance(entry, Signalled) for entry in entries)
        # A message that lost is not taken, and none that was taken loses.
        assert signalled == (service.world.done[0] in {"approved by ann", "first: ann"})
    assert ends


@pytest.mark.parametrize("workflow", [in_time, racing], ids=["timeout", "race"])
async def test_a_resume_follows_what_the_first_life_decided(workflow: Any) -> None:
    whole = Service(FaultyStore(MemoryStore()))
    await live(whole, workflow, TestClock(START))
    assert isinstance(whole.store, FaultyStore)
    points: list[CrashPoint] = crash_points(whole.store)
    assert len(points) > 5
    for point in points:
        store = FaultyStore(MemoryStore(), [point])
        world = World()
        clock = TestClock(START)
        with store.life():
            await live(Service(store, world), workflow, clock)
        if store.unmet:
            continue  # what was written one by one was written together this time
        service = Service(store, world)
        before = decided(await entries_of(service, "r")) if await find_run(store, "r") else None
        await live(service, workflow, clock)
        await until(service, "r", RunStatus.COMPLETED)
        after = decided(await entries_of(service, "r"))
        assert before in (None, after), f"killed {point}"
        by = "message" if "ann" in service.world.done[-1] else "time"
        assert by == after, f"killed {point}"
        assert len(set(service.world.done)) == 1, f"killed {point}"
