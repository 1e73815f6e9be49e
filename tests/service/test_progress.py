"""Values that a run publishes: others read them, in order, also after a crash and after its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Effect, Signal, do, publish, step, workflow
from effectflow.checkpoint import NotSerializable, RunStatus, read_entries
from effectflow.checkpoint.entries import Published
from effectflow.service import Change, Handle
from tests.apps import App, Broken, note
from tests.service.conftest import Service
from tests.service.lives import act, killed_everywhere, working

pytestmark = pytest.mark.anyio

go = Signal("go", int)


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


@workflow
def packed(total: int) -> Do[App, Broken, Progress]:
    for done in range(total):
        yield from publish("progress", Progress(done, total))
        yield from act(f"pack {done}")
    return Progress(total, total)


@workflow
def guided(_: None) -> Do[App, Broken, None]:
    yield from publish("place", "start")
    yield from go.wait()
    yield from publish("place", "finish")


async def published_by(service: Service, run_id: str) -> list[Any]:
    entries = await read_entries(service.store, run_id)
    return [entry.value for entry in entries if isinstance(entry, Published)]


async def until_published(handle: Handle[Any, Any], key: str, value: object) -> None:
    with anyio.fail_after(10):
        while await handle.published(key) != value:
            await anyio.sleep(0.005)


async def test_the_last_value_can_be_read_also_after_the_end(service: Service) -> None:
    async with service.worker(packed) as worker:
        handle = await worker.client.submit(packed, 3)
        assert await handle.result() == Success(Progress(3, 3))
    assert await handle.published("progress") == Progress(2, 3)
    assert await handle.published("other") is None


async def test_a_value_can_be_read_while_the_run_waits(service: Service) -> None:
    async with working(service, guided) as worker:
        handle = await worker.client.submit(guided, None)
        await until_published(handle, "place", "start")
        await handle.send(go, 1)
        assert await handle.result() == Success(None)
        assert await handle.published("place") == "finish"


async def test_a_follower_of_a_run_sees_each_value_once(service: Service) -> None:
    seen: list[Change] = []
    async with working(service, guided) as worker:
        handle = await worker.client.submit(guided, None)
        async for change in handle:
            seen.append(change)
            if change == Change(RunStatus.SUSPENDED):
                await handle.send(go, 1, idempotency_key="once")
    assert [change.value for change in seen if change.key == "place"] == ["start", "finish"]
    assert seen[-1] == Change(RunStatus.COMPLETED)


async def test_killed_anywhere_it_publishes_the_same_and_nothing_twice() -> None:
    async def live(service: Service) -> object:
        async with working(service, packed) as worker:
            handle = await worker.client.submit(packed, 2, run_id="r")
            return await handle.result(timeout=10), await published_by(service, "r")

    await killed_everywhere(live, more_than=5)


async def test_a_step_publishes(service: Service) -> None:
    @do
    def halves() -> Do[App, Broken, str]:
        yield from publish("half", 1)
        yield from note("half")
        yield from publish("half", 2)
        return "whole"

    @workflow
    def stepped(_: None) -> Do[App, Broken, str]:
        return (yield from step(halves)())

    async with service.worker(stepped) as worker:
        handle = await worker.client.submit(stepped, None)
        assert await handle.result() == Success("whole")
        assert await handle.published("half") == 2


async def test_killed_anywhere_a_run_continues_after_the_steps_that_published() -> None:
    @step
    def pack(number: int) -> Effect[object, Never, int]:
        return publish("packing", number).map(lambda _: number)

    @workflow
    def packing(total: int) -> Do[App, Broken, int]:
        for number in range(total):
            yield from pack(number)
        return total

    async def live(service: Service) -> object:
        async with working(service, packing) as worker:
            handle = await worker.client.submit(packing, 3, run_id="r")
            return await handle.result(timeout=10), await handle.published("packing")

    await killed_everywhere(live, more_than=5)


async def test_a_value_that_readers_cannot_rebuild_is_rejected(service: Service) -> None:
    @workflow
    def careless(_: None) -> Do[App, Broken, None]:
        yield from publish("progress", Progress(1, 2))

    started = await careless.start(None).run(App(service.checkpoints()))

    refused = started.failure()
    assert isinstance(refused, NotSerializable)
    assert "publish: $" in str(refused)
    assert "Progress" in str(refused)


async def test_without_a_run_nothing_happens() -> None:
    effect: Effect[object, Any, None] = publish("progress", 1)
    assert await effect.run(None) == Success(None)
