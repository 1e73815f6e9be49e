"""A worker tells the store that it lives, so people see idle workers, and that none is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from effectflow import Checkpoints, Client, Do, pure, workflow
from effectflow.observe import Overview, read_overview
from effectflow.observe.workers import KnownWorker, known_workers, save_worker
from effectflow.runs import StepMigration
from effectflow.service import App, Worker
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio

NOW = TestClock().now().timestamp()


@dataclass(frozen=True)
class Environment:
    checkpoints: Checkpoints


@workflow(version="2", aliases=["old greet"], migrations={1: StepMigration()})
def greet(name: str) -> Do[Environment, str, str]:
    return (yield from pure(f"Hello {name}"))


def worker_of(store: MemoryStore) -> Worker[Any]:
    app = App([greet], environment=Environment, checkpoints=Checkpoints(store))
    return Worker(app, limit=7, versions={"greet": ["2", "1"]}, clock=TestClock())


class Failing(MemoryStore):
    """Fails to save what workers tell, while `fails`."""

    fails = True

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        if kind == "worker" and self.fails:
            raise OSError("no space")
        await super().save_setting(kind, name, value)


async def overview(store: MemoryStore, seconds: float = 0.0) -> Overview:
    return await read_overview(store, NOW + seconds)


async def until_known(store: MemoryStore) -> KnownWorker:
    with anyio.fail_after(30):
        while not (known := await known_workers(store)):
            await anyio.sleep(0.001)
    return known[0]


async def explained(store: MemoryStore, seconds: float = 0.0) -> str:
    clock = TestClock()
    client = Client(Checkpoints(store), clock=clock)
    await client.submit(greet, "Ada", run_id="g")
    await clock.advance(seconds)
    return (await client.handle(greet, "g").explain()).reason


async def test_an_idle_worker_is_known_until_it_ends() -> None:
    store = MemoryStore()
    async with worker_of(store):
        await until_known(store)
        [process] = (await overview(store)).processes
        assert (process.driven, process.limit, process.seen_at) == (0, 7, NOW)
        assert process.workflows == {"greet": "1, 2", "old greet": "1, 2"}
    after = await overview(store)
    assert (after.processes, after.lost) == ((), ())


async def test_a_worker_without_heartbeats_is_lost_and_an_operator_is_told() -> None:
    store = MemoryStore()
    elsewhere = KnownWorker("pid 4 on far/x (b, c)", 5, {"greet": "2"}, NOW, NOW)
    await save_worker(store, elsewhere)
    await save_worker(store, KnownWorker("pid 5 on far/x (b, c)", 5, {"other": "1"}, NOW, NOW + 99))

    assert [one.name for one in (await overview(store, 89)).lost] == []
    assert "It is due, and continues" in await explained(store, 89)
    assert [one.name for one in (await overview(store, 91)).lost] == ["process 4 on far"]
    assert await explained(store, 91) == (
        "It has not begun. It is due, but no worker with workflow 'greet' was seen since "
        "2100-01-01 00:00:00 UTC."
    )


async def test_nobody_claims_that_a_worker_was_seen_where_none_has_told() -> None:
    assert await explained(MemoryStore()) == (
        "It has not begun. It is due, but no worker with workflow 'greet' is known."
    )


async def test_a_heartbeat_that_fails_costs_the_worker_nothing() -> None:
    store = Failing()
    async with worker_of(store) as worker:
        handle = await worker.client.submit(greet, "Ada")
        assert (await handle.result(timeout=30)).unwrap() == "Hello Ada"
        assert await known_workers(store) == []
        store.fails = False
        await until_known(store)
        store.fails = True
    assert len(await known_workers(store)) == 1
    assert (await overview(store)).processes == (), "this process knows that its worker has ended"


async def test_workers_that_were_lost_a_day_ago_are_forgotten() -> None:
    store = MemoryStore()
    for pid, seen_at in ((4, NOW - 86401), (5, NOW - 86399)):
        await save_worker(store, KnownWorker(f"pid {pid} on far/x (b, c)", 5, {}, seen_at, seen_at))
    async with worker_of(store):
        with anyio.fail_after(30):
            while len(await known_workers(store)) != 2:
                await anyio.sleep(0.001)
    assert [one.process for one in await known_workers(store)] == ["process 5 on far"]


async def test_what_another_version_tells_in_another_form_is_left_out() -> None:
    store = MemoryStore()
    await store.save_setting("worker", "x", b'{"owner": 1}')
    await store.save_setting("worker", "y", b"\xff")
    assert await known_workers(store) == []
