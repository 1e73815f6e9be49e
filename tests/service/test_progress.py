"""Values that a run publishes: others read them, in order, also after a crash and after its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Never

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Effect, Signal, do, publish, step, workflow
from effectflow.checkpoint import NotSerializable, Record, RunStatus, read_entries
from effectflow.checkpoint.entries import Published
from effectflow.service import Change, Handle
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, both_backends, note
from tests.service.conftest import Service
from tests.service.lives import act, killed_everywhere, suspended, working

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
    statuses = [change.status for change in [change async for change in handle]]
    assert statuses == [RunStatus.RUNNING] * 3 + [RunStatus.COMPLETED]


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
            if change.status is RunStatus.SUSPENDED:
                await handle.send(go, 1, idempotency_key="once")
    assert [change.value for change in seen if change.key == "place"] == ["start", "finish"]
    assert (seen[-1].status, seen[-1].key) == (RunStatus.COMPLETED, None)


async def test_one_who_reconnects_sees_nothing_twice_and_misses_nothing(service: Service) -> None:
    async with working(service, guided) as worker:
        handle = await worker.client.submit(guided, None)
        await suspended(service, handle.run_id)
        before = await following(handle, until=RunStatus.SUSPENDED)
        for number, change in enumerate(before[:-1], 1):
            again = await following(handle, until=RunStatus.SUSPENDED, after=change.sequence)
            assert again == before[number:]
        await handle.send(go, 1)
        await handle.result(timeout=10)
    seen = [change async for change in handle]
    later = [one async for one in handle.changes(after=before[-1].sequence)]
    assert [one.value for one in later if one.key] == ["finish"]
    for number, change in enumerate(seen, 1):
        assert [one async for one in handle.changes(after=change.sequence)] == seen[number:]


class Slow(ForwardingStore):
    """A store in which something else happens before the next read of entries."""

    before: Callable[[], Awaitable[object]] | None = None

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().read(run_id, after=after)


async def test_one_who_reconnects_sees_the_end_that_came_while_the_entries_were_read() -> None:
    store = Slow(MemoryStore())
    service = Service(store)
    handle = await service.client.submit(packed, 1)

    async def end() -> None:
        async with working(service, packed):
            await handle.result(timeout=10)

    store.before = end
    async with aclosing(handle.changes()) as changes:
        first = await anext(changes)
    assert first.status is RunStatus.PENDING
    later = [change async for change in handle.changes(after=first.sequence)]
    assert [change.key for change in later] == ["progress", None]
    assert later[-1].status is RunStatus.COMPLETED


async def following(handle: Handle[Any, Any], *, until: RunStatus, after: int = 0) -> list[Change]:
    seen: list[Change] = []
    async with aclosing(handle.changes(after=after)) as changes:
        async for change in changes:
            seen.append(change)
            if change.key is None and change.status is until:
                break
    return seen


@both_backends
@pytest.mark.parametrize("ended", ["worker", "client"])
async def test_nobody_follows_a_run_longer_than_the_worker_or_the_client_is_open(
    service: Service, ended: str
) -> None:
    seen: list[Change] = []
    is_over = anyio.Event()

    async def follow(handle: Handle[Any, Any]) -> None:
        async for change in handle:
            seen.append(change)
        is_over.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks, working(service, guided) as worker:
            async with service.client as client:
                follower = client if ended == "client" else service.client
                tasks.start_soon(follow, await follower.submit(guided, None))
                await worker.idle()
                assert not is_over.is_set()
            if ended == "client":
                await is_over.wait()
    assert seen[-1].status is RunStatus.SUSPENDED


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
