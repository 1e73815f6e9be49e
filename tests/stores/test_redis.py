"""RedisStore: its keys, and what it reads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
import redis as driver
from redis.asyncio.client import Pipeline

from effectflow.checkpoint.errors import CorruptCheckpoint, LeaseLost, RunBusy
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.run_info import RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, DueRuns, Queue, find_run
from effectflow.stores import RedisStore
from tests.stores.damage import in_redis
from tests.stores.runs import SUMMARY, begun, bodies_of
from tests.stores.servers import RedisServer

pytestmark = pytest.mark.anyio

DUE = RunSummary("w", RunStatus.PENDING, 0.0, due_at=1.0)


@pytest.fixture
async def store(redis: str, tmp_path: Path) -> AsyncIterator[RedisStore]:
    async with RedisStore(redis, prefix=str(tmp_path)) as store:
        yield store


@pytest.fixture
def client(redis: str) -> Iterator[Any]:
    with driver.Redis.from_url(redis) as client:
        yield client


async def claim_due(store: RedisStore, most: int = 5, *queues: Queue) -> list[str]:
    owners = [str(Owner.new()) for _ in range(most)]
    due = DueRuns(frozenset(["w"]), owners, 60, time.time(), {one.name: one for one in queues})
    return [taken.info.run_id for taken in (await store.claim_due(due)).runs]


LEASES: dict[str, dict[str, bytes]] = {
    "no owner": {"held": b"one"},
    "no expiry": {"held": b"1 someone", "until": b"nan "},
    "no text": {"held": b"\xff\xff \xff"},
}


@pytest.mark.parametrize("fields", LEASES.values(), ids=LEASES)
@pytest.mark.parametrize("is_held", [False, True])
async def test_a_damaged_lease_is_free_and_its_owner_loses_it(
    store: RedisStore, client: Any, fields: dict[str, bytes], is_held: bool
) -> None:
    await store.create("r", [b"1"], summary=DUE)
    lease = None
    if is_held:
        lease = (await store.claim("r", owner=str(Owner.new()), seconds=60)).lease
    client.hset(in_redis(store, "r")[1], mapping=fields)
    if lease is not None:
        with pytest.raises(LeaseLost):
            await store.append(lease, Batch([b"2"], 1))
        client.zadd(f"{store._prefix}:held:w", {"r": 0})

    taken, owner = list[str](), str(Owner.new())
    while not taken:
        taken = await claim_due(store)
    assert taken == ["r"]
    assert await claim_due(store) == []
    assert len(await store.find(RunQuery(resumable=True))) == 0
    with pytest.raises(RunBusy):
        await store.claim("r", owner=owner, seconds=60)


async def test_a_damaged_length_is_a_missing_entry(store: RedisStore, client: Any) -> None:
    await store.create("r", [b"1"] * 700, summary=DUE)
    assert len(await store.read("r")) == 700
    key = in_redis(store, "r")[1]
    client.hset(key, "state", client.hget(key, "state").replace(b":700", b":%d" % 10**18))

    with pytest.raises(CorruptCheckpoint) as caught:
        await store.read("r")
    assert caught.value.sequence == 701
    assert len((await store.salvage("r")).records) == 700


BREAK: dict[str, Callable[[Any, str], object]] = {
    "another type": lambda client, key: (client.delete(key), client.set(key, "text")),
    "no JSON": lambda client, key: client.hset(key, "state", b"\xff{"),
    "a list": lambda client, key: client.hset(key, "state", b"[1]"),
    "no length": lambda client, key: client.hset(
        key, "state", client.hget(key, "state").replace(b'"length":1', b'"length":0')
    ),
    "a number": lambda client, key: client.hset(
        key, "state", client.hget(key, "state").replace(b'"created_at":0.0', b'"created_at":"x"')
    ),
    "a mailbox of any size": lambda client, key: client.hset(
        key, "state", client.hget(key, "state").replace(b"{", b'{"mailbox":[[1,%d]],' % 2**62, 1)
    ),
    "no time": lambda client, key: client.hset(key, "updated", b"yesterday"),
}


@pytest.mark.parametrize("how", BREAK)
@pytest.mark.parametrize("is_held", [False, True])
async def test_a_damaged_run_hurts_no_other_one(
    store: RedisStore, client: Any, how: str, is_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in ("first", "damaged", "last"):
        await store.create(run_id, [b"1"], summary=DUE)
    held = await begun(store, [b"1"], "held")
    if is_held:
        await store.claim("damaged", owner=str(Owner.new()), seconds=0.01)
    _, key = in_redis(store, "damaged")
    BREAK[how](client, key)

    await anyio.sleep(0.02)
    assert {info.run_id for info in await store.find()} == {"first", "held", "last"}
    assert "skipping run 'damaged'" in caplog.text
    assert await store.damaged_runs() == ["damaged"]
    # The damaged one was due first, and takes no place of others.
    assert await claim_due(store, 1) == ["first"]
    assert await claim_due(store, 5, Queue("w", 3)) == ["last"]
    assert await claim_due(store) == []
    assert store.renew([held], seconds=60)[0].fence == held.fence
    if how != "another type":
        with pytest.raises(CorruptCheckpoint):
            await find_run(store, "damaged")
        await store.delete("damaged")
        assert await store.damaged_runs() == []
        assert await store.create("damaged", [b"anew"], summary=SUMMARY)
        assert await bodies_of(store, "damaged") == [b"anew"]


async def test_find_reads_a_page_and_not_all_runs(store: RedisStore, client: Any) -> None:
    async with anyio.create_task_group() as group:
        for number in range(300):
            status = RunStatus.RUNNING if number % 100 == 0 else RunStatus.COMPLETED
            summary = replace(SUMMARY, created_at=float(number), status=status, tenant=str(number))
            create = partial(store.create, f"r{number:03}", [b"1"], summary=summary)
            group.start_soon(create)
    # The first one after the start of a server looks at all runs once.
    await store.find(RunQuery(limit=1))
    pages: list[str] = []
    after = None
    for _ in range(3):
        client.config_resetstat()
        page = await store.find(RunQuery(limit=20, after=after))
        pages += [info.run_id for info in page]
        after = page[-1].place
        assert reads(client) <= 20
    assert pages == [f"r{number:03}" for number in range(299, 239, -1)]
    for query, count in (
        (RunQuery(crashed=True), 3),
        (RunQuery(resumable=True), 3),
        (RunQuery(tenant="7"), 1),
        (RunQuery(parent="unknown"), 0),
        (RunQuery(statuses=frozenset([RunStatus.RUNNING]), workflow="w"), 3),
    ):
        client.config_resetstat()
        assert len(await store.find(query)) == count
        assert reads(client) <= count


def reads(client: Any) -> int:
    """Return how many runs were read since the statistics were reset."""
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    return stats.get("cmdstat_hmget", {"calls": 0})["calls"]


async def test_many_children_that_end_at_once_all_notify_their_parent(
    store: RedisStore, redis: str, tmp_path: Path
) -> None:
    """Each changes the parent, and none of them waits for long."""
    async with RedisStore(redis, prefix=str(tmp_path)) as other:
        await store.create("parent", [b"1"], summary=replace(SUMMARY, status=RunStatus.SUSPENDED))

        async def run(number: int) -> None:
            its = store if number % 2 else other
            lease = await begun(its, [b"1"], f"child {number}")
            done = replace(SUMMARY, status=RunStatus.COMPLETED, parent="parent")
            await its.append(lease, Batch([b"2"], 1, summary=done, release=True))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(run, number)
        messages = await store.mailbox("parent")
    assert [message.number for message in messages] == list(range(1, 201))
    assert {message.key for message in messages} == {f"child {number}" for number in range(200)}


async def test_messages_that_are_taken_leave_only_their_digest(
    store: RedisStore, client: Any
) -> None:
    lease = await begun(store)
    for number in range(4):
        await store.send("r", "signal:go", key=str(number), body=bytes(1000))
    await store.append(lease, Batch([b"2"], 1, takes=[1, 3]))
    await store.append(lease, Batch([b"3"], 2))

    _, key = in_redis(store, "r")
    left = [field for field in client.hkeys(key) if field.startswith(b"message")]
    assert sorted(left) == [b"message 2", b"message 4"]
    assert [message.number for message in await store.mailbox("r")] == [2, 4]
    assert not await store.send("r", "signal:go", key="0")


async def test_sets_that_lack_a_run_are_completed_after_a_restart(tmp_path: Path) -> None:
    """A server that was killed while it wrote may have left it out of them."""
    with RedisServer(tmp_path) as server:
        async with RedisStore(server.url) as store:
            await store.create("due", [b"1"], summary=DUE)
            for key in ("a", "b"):
                waits = replace(DUE, created_at=2.0, queue="q", key=key)
                assert waits.turn == key
                await store.create(f"of {key}", [b"1"], summary=waits)
            await begun(store, [b"1"], "held", owner="pid 1 on elsewhere (1, 1)")
            assert len(await store.find()) == 4
            with driver.Redis.from_url(server.url) as client:
                for key in cast("list[bytes]", client.keys("effectflow:*")):
                    if client.type(key) in (b"zset", b"set"):
                        client.delete(key)
            assert await store.find() == []
            server.kill()
            server.start()

            queued = {"of a", "of b"}
            assert {info.run_id for info in await store.find()} == {"due", "held"} | queued
            # The held one counts.
            assert {*await claim_due(store, 5, Queue("w", 1))} == queued
            assert await claim_due(store, 5, Queue("w", 2)) == ["due"]


async def test_a_claim_sends_as_many_requests_for_many_keys_as_for_one(
    redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds for the next one, too, when the keys have no more runs."""
    sent, execute = list[int](), Pipeline.execute

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        sent.append(len(self))
        return execute(self, *args, **options)

    async def requests_for(keys: int) -> tuple[int, int]:
        async with RedisStore(redis, prefix=f"{tmp_path}{keys}") as store:
            for number in range(keys):
                waits = replace(DUE, created_at=2.0, key=str(number))
                await store.create(str(number), [b"1"], summary=waits)
            assert len(await store.find()) == keys
            sent.clear()
            assert len(await claim_due(store, keys)) == keys
            first = len(sent)
            assert await claim_due(store, 1) == []
            return first, len(sent) - first

    monkeypatch.setattr(Pipeline, "execute", counted)
    assert await requests_for(20) == await requests_for(1)


async def test_a_claim_passes_many_keys_whose_runs_were_deleted(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        waits = replace(DUE, created_at=2.0, key=f"{number:02}")
        await store.create(str(number), [b"1"], summary=waits)
    for number in range(49):
        await store.delete(str(number))
    searches, execute = 0, Pipeline.execute

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal searches
        searches += 1
        return execute(self, *args, **options)

    assert len(await store.find()) == 1
    monkeypatch.setattr(Pipeline, "execute", counted)
    assert await claim_due(store, 1) == ["49"]
    assert searches < 50


async def test_no_append_fails_while_the_scripts_are_flushed(
    store: RedisStore, client: Any
) -> None:
    await store.create("r", [b"1"], summary=DUE)
    lease = (await store.claim("r", owner=str(Owner.new()), seconds=60)).lease
    is_over = False

    def flush() -> None:
        while not is_over:
            client.script_flush()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, flush)
        try:
            for number in range(1, 150):
                await store.append(lease, Batch([b"2"], number))
                assert store.renew([lease], seconds=60)
        finally:
            is_over = True
