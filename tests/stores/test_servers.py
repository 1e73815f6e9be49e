"""PostgreSQL and Redis, when the server or the connection fails."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.lowlevel
import psutil
import psycopg
import pytest
import redis as driver
from anyio.abc import ByteStream
from psycopg import sql

from effectflow import Do, step, workflow
from effectflow.checkpoint import (
    CheckpointStore,
    CorruptCheckpoint,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    RunSummary,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.store import Batch, find_run
from effectflow.stores import PostgresStore, RedisStore, open_store
from effectflow.stores._postgres_changes import Notifier
from tests.apps import App, Broken, app_on, both_backends, note
from tests.programs import ran
from tests.stores.proxy import LossyProxy
from tests.stores.runs import SUMMARY, begun, bodies_of, claimed
from tests.stores.servers import (
    ON_DISK,
    PostgresServer,
    RedisServer,
    RestartingPostgres,
    new_database,
    wait_for,
)
from tests.sweeps import in_turn

pytestmark = pytest.mark.anyio


@dataclass
class Proxied:
    """A store behind a proxy; one with short timeouts; and one that does not use the proxy."""

    store: CheckpointStore
    proxy: LossyProxy
    impatient: CheckpointStore
    direct: CheckpointStore


@pytest.fixture
def proxied_postgres(postgres: str, tmp_path: Path) -> Iterator[Proxied]:
    [folder] = parse_qs(urlsplit(postgres).query)["host"]
    proxied, schema = postgres.replace(folder, str(tmp_path)), f"p{time.time_ns()}"
    name = ".s.PGSQL.5432"
    with LossyProxy(tmp_path / name, Path(folder) / name) as proxy:
        yield Proxied(
            PostgresStore(proxied, schema=schema),
            proxy,
            PostgresStore(proxied, schema=schema, reconnect_timeout=0.2, renew_timeout=1),
            PostgresStore(postgres, schema=schema),
        )


@pytest.fixture
def proxied_redis(redis: str, tmp_path: Path) -> Iterator[Proxied]:
    proxied, prefix = f"unix://{tmp_path}/redis.sock", str(tmp_path)
    with LossyProxy(tmp_path / "redis.sock", Path(urlsplit(redis).path)) as proxy:
        yield Proxied(
            RedisStore(proxied, prefix=prefix),
            proxy,
            RedisStore(proxied, prefix=prefix, reconnect_timeout=0.2, renew_timeout=1),
            RedisStore(redis, prefix=prefix),
        )


@pytest.fixture(params=["postgres", "redis"])
def proxied(request: pytest.FixtureRequest) -> Proxied:
    return request.getfixturevalue(f"proxied_{request.param}")


async def test_an_append_whose_answer_is_lost_is_neither_lost_nor_doubled(
    proxied: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied.store as store:
        lease = await begun(store, [b"first"])
        for number in range(1, 4):
            proxied.proxy.lose_answer_to(b"the body of it")
            await store.append(lease, Batch([b"the body of it %d" % number], number))
        proxied.proxy.lose_answer_to(b"the body of it")
        done = RunSummary("w", RunStatus.COMPLETED, 0.0)
        await store.append(lease, Batch([b"the body of it 4"], 4, summary=done, release=True))

        bodies = await bodies_of(store)
        assert bodies == [b"first", *(b"the body of it %d" % n for n in range(1, 5))]
        info = await find_run(store, "r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)
    assert proxied.proxy.cuts == 4
    assert "reconnecting" in caplog.text


async def test_a_last_append_whose_answer_is_lost_counts_even_if_others_continue(
    proxied: Proxied,
) -> None:
    async def resume() -> None:
        async with proxied.direct as other:
            lease = await claimed(other)
            await other.append(lease, Batch([b"resumed"], 2))

    async with proxied.store as store:
        lease = await begun(store, [b"first"])
        proxied.proxy.lose_answer_to(b"the last", meanwhile=lambda: anyio.run(resume))
        await store.append(lease, Batch([b"the last"], 1, release=True))

        bodies = await bodies_of(store)
        assert bodies == [b"first", b"the last", b"resumed"]
        assert proxied.proxy.cuts == 1
        with pytest.raises(LeaseLost):
            await store.append(lease, Batch([b"late"], 3))


async def test_an_append_cut_off_while_the_server_executes_it_is_not_rejected(
    proxied_postgres: Proxied, postgres: str
) -> None:
    async with proxied_postgres.store as store:
        lease = await begun(store, [b"1"])
        with psycopg.connect(postgres) as blocking:
            schema = repr(store).partition("schema='")[2].partition("'")[0]
            blocking.execute(f"LOCK TABLE {schema}.entries IN SHARE MODE")  # type: ignore[arg-type]
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: store.append(lease, Batch([b"2"], 1)))
                await _until_waiting(postgres, 1)
                proxied_postgres.proxy.cut()
                # The first request waits for the table, and the one that follows for the row of its run.
                await _until_waiting(postgres, 2)
                blocking.rollback()

        assert await bodies_of(store) == [b"1", b"2"]


async def _until_waiting(postgres: str, clients: int) -> None:
    """Wait until this number of clients of the server wait for locks."""
    with psycopg.connect(postgres, autocommit=True) as connection, anyio.fail_after(30):
        count = """
            SELECT count(*) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND datname = current_database()"""
        while connection.execute(count).fetchone() != (clients,):
            await anyio.sleep(0.01)


async def test_appends_are_saved_although_the_connection_is_lost_again_while_that_is_found_out(
    proxied_postgres: Proxied,
) -> None:
    proxy = proxied_postgres.proxy
    async with proxied_postgres.store as store:
        leases = [await begun(store, [b"first"], f"r{n}") for n in range(4)]
        # The answer to all of them is lost, and then that to the question whether one was written.
        proxy.lose_answer_to(
            b"second", meanwhile=lambda: proxy.lose_answer_to(b"SELECT sequence, body FROM")
        )
        async with anyio.create_task_group() as group:
            for lease in leases:
                group.start_soon(lambda lease=lease: store.append(lease, Batch([b"second"], 1)))

        assert proxy.cuts == 2
        for lease in leases:
            assert await bodies_of(store, lease.run_id) == [b"first", b"second"]


async def test_an_append_that_is_never_answered_may_have_been_saved(proxied: Proxied) -> None:
    async with proxied.impatient as store:
        lease = await begun(store, [b"first"])
        proxied.proxy.lose_answer_to(b"the second", meanwhile=proxied.proxy.go_away)
        with pytest.raises(SaveFailed, match="may or may not have been saved") as caught:
            await store.append(lease, Batch([b"the second"], 1))
        assert caught.value.is_unknown

    async with proxied.direct as store:
        assert await bodies_of(store) == [b"first", b"the second"]


async def test_an_append_that_was_never_sent_is_known_to_have_failed(
    proxied_redis: Proxied,
) -> None:
    async with proxied_redis.impatient as store:
        lease = await begun(store)
        proxied_redis.proxy.go_away()
        with pytest.raises(StoreUnavailable):
            # This call notices that the connection is lost.
            await store.read("r")
        with pytest.raises(SaveFailed, match="could not be saved") as caught:
            await store.append(lease, Batch([b"first"], 1))
        assert not caught.value.is_unknown


async def test_a_deletion_whose_answer_is_lost_succeeds(proxied: Proxied) -> None:
    async with proxied.store as store:
        for run_id in ("r", "other"):
            await store.release(await begun(store, [b"1"], run_id))
        # The first deletion loads the script of Redis.
        await store.delete("other")
        is_postgres = isinstance(store, PostgresStore)
        proxied.proxy.lose_answer_to(b"COMMIT" if is_postgres else b"EVALSHA")
        await store.delete("r")

        assert proxied.proxy.cuts == 1
        assert await find_run(store, "r") is None
        with pytest.raises(RunNotFound):
            await store.delete("r")


async def test_a_truncation_whose_answer_is_lost_succeeds(proxied: Proxied) -> None:
    done = RunSummary("w", RunStatus.COMPLETED, 0.0)
    async with proxied.store as store:
        lease = await begun(store, [b"%d" % number for number in range(9)])
        # The first truncation loads the script of Redis.
        await store.truncate(lease, after=8, summary=SUMMARY)
        is_postgres = isinstance(store, PostgresStore)
        proxied.proxy.lose_answer_to(b"COMMIT" if is_postgres else b"EVALSHA")
        await store.truncate(lease, after=3, summary=done)

        assert proxied.proxy.cuts == 1
        assert await bodies_of(store) == [b"0", b"1", b"2"]
        info = await find_run(store, "r")
        assert info is not None
        assert info.summary == done
        await store.append(lease, Batch([b"3"], 3))
        assert await bodies_of(store) == [b"0", b"1", b"2", b"3"]


async def test_a_truncation_deletes_the_removed_entries(redis: str, tmp_path: Path) -> None:
    async with RedisStore(redis, prefix=str(tmp_path)) as store:
        lease = await begun(store, [b"secret"] * 1200)
        await store.truncate(lease, after=2, summary=SUMMARY)
    with driver.Redis.from_url(redis) as client:
        [key] = client.keys(f"{tmp_path}:run:*")
        assert sorted(field for field in client.hkeys(key) if field.isdigit()) == [b"1", b"2"]


async def test_the_next_deletion_completes_an_interrupted_one(
    proxied_redis: Proxied, redis: str, tmp_path: Path
) -> None:
    async with proxied_redis.direct as store:
        for run_id in ("r", "other"):
            bodies = [b"secret %d" % n for n in range(1200)]
            await store.create(run_id, bodies, summary=SUMMARY)
        # The first deletion loads the script.
        await store.delete("other")
    async with proxied_redis.impatient as store:
        proxied_redis.proxy.lose_answer_to(b"EVALSHA", meanwhile=proxied_redis.proxy.go_away)
        with pytest.raises(StoreUnavailable):
            await store.delete("r")

    async with proxied_redis.direct as store:
        assert await find_run(store, "r") is None
        assert await store.read("r") == []
        with pytest.raises(RunNotFound):
            await store.delete("r")
    with driver.Redis.from_url(redis) as client:
        # No run was held.
        assert client.keys(f"{tmp_path}:*") == [f"{tmp_path}:layout".encode()]


async def test_a_deletion_that_is_sent_again_keeps_a_new_run(proxied: Proxied) -> None:
    async def begin_anew() -> None:
        async with proxied.direct as other:
            await other.release(await begun(other, [b"new"]))

    async with proxied.store as store:
        for run_id in ("r", "other"):
            await store.release(await begun(store, [b"1", b"2", b"3"], run_id))
        # The first deletion loads the script of Redis.
        await store.delete("other")
        part = b"COMMIT" if isinstance(store, PostgresStore) else b"EVALSHA"
        proxied.proxy.lose_answer_to(part, meanwhile=lambda: anyio.run(begin_anew))
        await store.delete("r")

        assert proxied.proxy.cuts == 1
        assert await bodies_of(store) == [b"new"]
        [info] = await store.find()
        assert (info.run_id, info.length, info.summary) == ("r", 1, SUMMARY)
        lease = await claimed(store)
        await store.append(lease, Batch([b"2", b"3"], 1))
        assert await bodies_of(store) == [b"new", b"2", b"3"]


async def test_a_locked_run_does_not_delay_others(postgres: str) -> None:
    schema = f"locked{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema, statement_timeout=2) as store:
        leases = [await begun(store, [b"1"], run_id) for run_id in ("locked", "a", "b")]
        refused: list[SaveFailed] = []
        took: dict[str, float] = {}

        async def save(lease: Lease) -> None:
            began = time.monotonic()
            try:
                await store.append(lease, Batch([b"2"], 1, summary=SUMMARY))
            except SaveFailed as error:
                refused.append(error)
            took[lease.run_id] = time.monotonic() - began

        with _locked(postgres, schema):
            async with anyio.create_task_group() as group:
                for lease in leases:
                    group.start_soon(save, lease)

        [error] = refused
        assert (error.run_id, error.is_unknown) == ("locked", False)
        assert "another program has locked" in str(error)
        # The last of them.
        assert [*took][2] == "locked"
        # It gives up when its next attempt, after at most 0.25 s, would come too late.
        assert took["locked"] > 1.5
        assert {run_id: len(await store.read(run_id)) for run_id in took} == {
            "locked": 1,
            "a": 2,
            "b": 2,
        }


async def test_an_append_waits_until_its_run_is_unlocked(postgres: str) -> None:
    schema = f"unlocked{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema) as store:
        lease = await begun(store, [b"1"], "locked")
        async with anyio.create_task_group() as group:
            with _locked(postgres, schema):
                group.start_soon(lambda: store.append(lease, Batch([b"2"], 1, release=True)))
                await anyio.sleep(0.5)
                assert await bodies_of(store, "locked") == [b"1"]
        assert await bodies_of(store, "locked") == [b"1", b"2"]


async def test_requests_for_locked_runs_leave_connections_to_others(postgres: str) -> None:
    schema = f"claimed{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema, pool_size=1, statement_timeout=20) as store:
        owner = str(Owner.new())
        locked = await begun(store, [b"1"], "locked", owner=owner)
        await begun(store, [b"1"], "free", owner=owner)
        with _locked(postgres, schema):
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(lambda: store.claim("locked", owner=owner, seconds=60))
                group.start_soon(store.release, locked)
                with anyio.fail_after(10):
                    free = (await store.claim("free", owner=owner, seconds=60)).lease
                    assert await bodies_of(store, "free") == [b"1"]
                # The other one is current, and cannot be claimed before it is unlocked.
                same, renewed = store.renew([locked, free], seconds=6000)
                assert same == locked
                assert renewed.expires_at > free.expires_at + 3000
                group.cancel_scope.cancel()
        last = (await store.claim("locked", owner=owner, seconds=60)).lease
        assert store.renew([last], seconds=60)[0].fence == last.fence


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_request_whose_caller_is_cancelled_does_not_cost_its_connection(
    postgres: str,
) -> None:
    name = f"p{time.time_ns()}"
    store = PostgresStore(f"{postgres}&application_name={name}", schema=name, pool_size=1)
    async with store:
        await store.release(await begun(store, [b"1"], run_id="locked"))

        def backends() -> list[tuple[int]]:
            with psycopg.connect(postgres) as other:
                named = "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY pid"
                return other.execute(named, (name,)).fetchall()

        await find_run(store, "locked")
        # Those of the writers, that of the pool, and that which tells of changes, a moment later.
        with anyio.fail_after(30):
            while len(before := backends()) < 4:
                await anyio.sleep(0.01)
        with _locked(postgres, name):
            for _ in range(3):
                async with anyio.create_task_group() as group:
                    group.start_soon(store.delete, "locked")
                    await _until_waiting(postgres, 1)
                    group.cancel_scope.cancel()
        await find_run(store, "locked")
        assert backends() == before


@contextmanager
def _locked(postgres: str, schema: str) -> Iterator[None]:
    """Lock the row of the run named locked, as another program would."""
    row = "SELECT FROM {}.runs WHERE key = sha256('locked') FOR UPDATE"
    with psycopg.connect(postgres) as other:
        other.execute(sql.SQL(row).format(sql.Identifier(schema)))
        yield
        other.rollback()


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_hosts_whose_clocks_differ_agree_on_the_owner_of_a_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"clock{time.time_ns()}"
    store: CheckpointStore
    if kind == "postgres":
        store = PostgresStore(request.getfixturevalue("postgres"), schema=name)
    else:
        store = RedisStore(request.getfixturevalue("redis"), prefix=name)
    async with store:
        await begun(store, owner=str(Owner(1, "elsewhere", "1", "1")))
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + 3600)

        with pytest.raises(RunBusy) as caught:
            await claimed(store)
        assert 0 < caught.value.expires_in <= 60
        assert await store.find(RunQuery(resumable=True)) == []
        with pytest.raises(RunBusy):
            await store.delete("r")


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_a_server_clock_set_forward_does_not_take_runs_from_a_live_owner(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """By the time since the boot of the host, the lease is valid. Other hosts must trust the server."""
    name = f"forward{time.time_ns()}"
    url: str = request.getfixturevalue(kind)
    store = PostgresStore(url, schema=name) if kind == "postgres" else RedisStore(url, prefix=name)
    async with store:
        here = await begun(store, [b"1"], "here")
        await begun(store, [b"1"], "there", owner="pid 1 on elsewhere (1, 1)", seconds=30)
        if kind == "postgres":
            with psycopg.connect(url) as other:
                other.execute(
                    f"CREATE OR REPLACE FUNCTION {name}.now() RETURNS double precision LANGUAGE sql"  # type: ignore[arg-type]
                    " AS 'SELECT extract(epoch FROM clock_timestamp())::double precision + 3600'"
                )
        else:
            # Its clock cannot be set here. To the scripts it is the same if all was written earlier.
            with driver.Redis.from_url(url) as client:
                for run_id in ("here", "there"):
                    key = f"{name}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"
                    _, uptime = cast("bytes", client.hget(key, "until")).split(b" ")
                    client.hset(key, "until", b"%f %s" % (time.time() - 3600, uptime))

        for attempt in (claimed(store, "here"), store.delete("here")):
            with pytest.raises(RunBusy) as caught:
                await attempt
            assert 0 < caught.value.expires_in <= 60
        resumable = await store.find(RunQuery(resumable=True))
        assert [info.run_id for info in resumable] == ["there"]
        await claimed(store, "there")
        await store.append(here, Batch([b"2"], 1))


async def test_a_server_that_has_lost_its_data_is_not_taken_for_another_owner(
    tmp_path: Path,
) -> None:
    with RedisServer(tmp_path, "--appendonly", "no") as server:
        async with RedisStore(server.url) as store:
            lease = await begun(store, [b"1"])
            server.kill()
            server.start()
            with pytest.raises(LeaseLost, match="the store has lost data") as caught:
                await store.append(lease, Batch([b"2"], 1))
    assert caught.value.owner == ""
    assert "owner" not in str(caught.value)


async def test_find_skips_a_run_with_an_unknown_status(
    postgres: str, redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"later{time.time_ns()}"
    for store in (PostgresStore(postgres, schema=name), RedisStore(redis, prefix=name)):
        async with store:
            for run_id in ("damaged", "good"):
                await begun(store, [b"1"], run_id)
            if isinstance(store, PostgresStore):
                with psycopg.connect(postgres) as other:
                    other.execute(
                        f"UPDATE {name}.runs SET status = 'unknown' WHERE run_id = 'damaged'"  # type: ignore[arg-type]
                    )
            else:
                with driver.Redis.from_url(redis) as client:
                    key = f"{name}:run:{hashlib.sha256(b'damaged').hexdigest()}"
                    state = cast("bytes", client.hget(key, "state"))
                    client.hset(key, "state", state.replace(b"running", b"unknown"))
            caplog.clear()
            assert [info.run_id for info in await store.find()] == ["good"]
            assert "skipping run 'damaged'" in caplog.text
            assert await store.damaged_runs() == ["damaged"]
            with pytest.raises(CorruptCheckpoint, match=r"run 'damaged'.*'unknown'"):
                await find_run(store, "damaged")


async def test_a_renewal_reconnects(proxied: Proxied) -> None:
    async with proxied.store as store:
        lease = await begun(store)
        store.renew([lease], seconds=60)
        proxied.proxy.cut()
        assert store.renew([lease], seconds=6000)[0].expires_at > lease.expires_at + 3000


async def test_a_renewal_does_not_wait_forever_for_a_silent_server(proxied: Proxied) -> None:
    async with proxied.impatient as store:
        lease = await begun(store)
        store.renew([lease], seconds=60)
        proxied.proxy.is_silent = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not renew"):
            store.renew([lease], seconds=60)
        assert time.monotonic() - began < 5
        proxied.proxy.is_silent = False
        store.renew([lease], seconds=60)


async def test_a_deleted_run_leaves_nothing(postgres: str) -> None:
    schema = f"gone{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema) as store:
        await store.release(await begun(store, [b"1"], "deleted"))
        await store.send("deleted", "signal:go", key="1")
        await store.delete("deleted")
    with psycopg.connect(postgres) as other:
        for table in ("runs", "entries", "messages", "received"):
            count = f"SELECT count(*) FROM {schema}.{table}"
            assert other.execute(count).fetchone() == (0,)  # type: ignore[arg-type]


async def test_a_deleted_run_leaves_no_key(redis: str, tmp_path: Path) -> None:
    async with RedisStore(redis, prefix=str(tmp_path)) as store:
        lease = await begun(store)
        await store.send("r", "signal:go", key="k", body=b"body")
        await store.delete("r", lease=lease)
        with driver.Redis.from_url(redis) as client:
            left = cast("list[bytes]", client.keys(f"{tmp_path}:*"))
    names = {key.decode().removeprefix(f"{tmp_path}:") for key in left}
    assert names == {"fences", "layout", "processes"}


async def test_requests_wait_for_a_free_connection(
    redis: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(number: int) -> None:
        lease = await begun(store, run_id=f"r{number}", owner=owner)
        await store.append(lease, Batch([b"2"], 1, release=True))

    owner = str(Owner.new())
    async with RedisStore(redis, prefix=str(tmp_path)) as store:
        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(use, number)
        assert len(await store.find(RunQuery(limit=1000))) == 500
    assert caplog.messages == []


@pytest.mark.parametrize("given", [{"pool_size": 3}, {}])
async def test_a_redis_store_uses_no_more_connections_than_it_may(
    redis: str, tmp_path: Path, given: dict[str, int]
) -> None:
    name = f"few{time.time_ns()}"
    options = "" if given else "&max_connections=3"
    url = f"{redis}?client_name={name}{options}"
    async with RedisStore(url, prefix=str(tmp_path), **given) as store:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(store.read, f"r{number}")
        with driver.Redis.from_url(redis) as other:
            assert sum(client["name"] == name for client in other.client_list()) == 3


async def test_waiting_for_a_connection_to_a_silent_server_has_an_end(
    proxied_redis: Proxied, tmp_path: Path
) -> None:
    ended: list[str] = []

    async def read() -> None:
        with pytest.raises(StoreUnavailable):
            await store.read("r")
        ended.append("unavailable")

    url = f"unix://{tmp_path}/redis.sock"
    async with RedisStore(url, pool_size=1, timeout=0.5, reconnect_timeout=0.2) as store:
        proxied_redis.proxy.is_silent = True
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(read)
        proxied_redis.proxy.is_silent = False
        assert len(ended) == 50
        assert await store.read("r") == []


async def test_a_store_works_as_soon_as_its_server_is_back(proxied: Proxied) -> None:
    async def find() -> None:
        assert len(await proxied.store.find()) == 1

    async with proxied.store as store:
        await begun(store)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(find)
        # Its connections are idle now.
        proxied.proxy.go_away()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(find)
                await anyio.sleep(0.3)
                proxied.proxy.come_back()


async def test_requests_end_in_time_while_their_server_is_away(proxied: Proxied) -> None:
    async def find() -> None:
        with pytest.raises(StoreUnavailable):
            await proxied.impatient.find()

    async with proxied.impatient:
        await proxied.impatient.find()
        proxied.proxy.go_away()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(find)
        proxied.proxy.come_back()
        assert await proxied.impatient.find() == []


async def test_a_silent_postgres_server_counts_as_lost(
    proxied_postgres: Proxied, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectflow.stores._postgres_connection._SECONDS_OF_ANSWER", 0.1)
    [folder] = parse_qs(urlsplit(postgres).query)["host"]
    url = f"{postgres.replace(folder, str(tmp_path))}&connect_timeout=2"
    schema = f"s{time.time_ns()}"
    store = PostgresStore(url, schema=schema, statement_timeout=0.3, reconnect_timeout=0.2)

    async def find() -> None:
        with pytest.raises(StoreUnavailable):
            await store.find()

    async def append() -> None:
        with pytest.raises(SaveFailed) as caught:
            await store.append(lease, Batch([b"3"], 2))
        assert caught.value.is_unknown

    async with PostgresStore(postgres, schema=schema) as other, store:
        lease = await begun(other)
        # The first append of a connection prepares its statement, and waits for that.
        await store.append(lease, Batch([b"2"], 1))
        assert len(await store.find()) == 1
        proxied_postgres.proxy.is_silent = True
        with anyio.fail_after(8):
            async with anyio.create_task_group() as group:
                group.start_soon(find)
                group.start_soon(append)
        proxied_postgres.proxy.is_silent = False
        assert len(await store.read("r")) == 3


# How long the package waits for a server whose caller is cancelled: to save and release the run, and to
# close connections.
LIMITS_OF_A_CANCELLATION = {
    "effectflow.checkpoint.journal_writer._SECONDS_OF_LAST_SAVES": 5.0,
    "effectflow.stores._postgres.CLOSING_SECONDS": 1.0,
    "effectflow.stores._postgres_changes.CLOSING_SECONDS": 1.0,
    "effectflow.stores._postgres_writer.CLOSING_SECONDS": 1.0,
}


@in_turn(anyio_backend=["asyncio", "trio"], is_silent=[False, True])
async def test_a_run_is_cancelled_soon_while_its_server_is_down(
    proxied: Proxied, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of each, so the bounds below are lower by the other nine.
    for name, seconds in LIMITS_OF_A_CANCELLATION.items():
        module, _, constant = name.rpartition(".")
        assert getattr(import_module(module), constant) <= seconds
        monkeypatch.setattr(name, seconds / 10)
    is_down = anyio.Event()

    @workflow
    def made(_: None) -> Do[App, Broken, int]:
        if is_silent:
            proxied.proxy.is_silent = True
        else:
            proxied.proxy.go_away()
        is_down.set()
        return (yield from step(name="one")(lambda: note("one"))())

    with anyio.fail_after(3):
        async with proxied.store as store:
            app, began = app_on(store), 0.0
            async with anyio.create_task_group() as group:
                group.start_soon(made.start(None, run_id="r").run, app)
                await is_down.wait()
                # The run waits for the server to save the beginning of the step.
                await anyio.wait_all_tasks_blocked()
                began = time.monotonic()
                group.cancel_scope.cancel()
            assert time.monotonic() - began < 2
            assert app.world.done == []


@both_backends
async def test_a_server_is_used_while_all_threads_of_anyio_are_busy(
    request: pytest.FixtureRequest, proxied: Proxied
) -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    for _ in range(int(limiter.total_tokens)):
        limiter.acquire_on_behalf_of_nowait(object())
    with anyio.fail_after(10):
        async with proxied.direct as store:
            store.renew([await begun(store)], seconds=60)


async def test_a_redis_server_that_lost_its_data_says_so(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--appendonly", "no") as server:
        async with RedisStore(server.url) as store:
            lease = await begun(store, [b"1", b"2"])
            server.kill()
            server.start()
            with pytest.raises(LeaseLost, match=r"the store has lost data\). Restore the data"):
                await store.append(lease, Batch([b"3"], 2))
            assert store.renew([lease], seconds=60) == []


async def test_a_redis_server_that_lost_its_last_entries_says_so(
    redis: str, tmp_path: Path
) -> None:
    async with RedisStore(redis, prefix=str(tmp_path)) as store:
        lease = await begun(store, [b"1", b"2"])
        with driver.Redis.from_url(redis) as client:
            [run] = cast("list[bytes]", client.keys(f"{tmp_path}:run:*"))
            state = cast("bytes", client.hget(run, "state"))
            client.hset(run, "state", state.replace(b'"length":2', b'"length":1'))
        with pytest.raises(LeaseLost, match=r"Of 2 entries it has only 1, and a resume executes"):
            await store.append(lease, Batch([b"3"], 2))


async def test_a_postgres_server_that_lost_data_says_so(postgres: str) -> None:
    schema = f"lost{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema) as store:
        lease = await begun(store, [b"1", b"2"])
        with psycopg.connect(postgres, autocommit=True) as other:
            # As after a restore of an older backup.
            other.execute(f"UPDATE {schema}.runs SET length = 1")  # type: ignore[arg-type]
            with pytest.raises(LeaseLost, match="its journal has 1 entries, not 2"):
                await store.append(lease, Batch([b"3"], 2))
            # As after a restore of a database in which another process had the same fencing token.
            other.execute(f"UPDATE {schema}.runs SET owner = 'another'")  # type: ignore[arg-type]
            with pytest.raises(LeaseLost, match="another holds it"):
                await store.append(lease, Batch([b"2"], 1))
            assert store.renew([lease], seconds=60) == []
            await store.release(lease)
            [info] = await store.find()
            assert info.lease is not None
            assert info.lease.owner == "another"
            other.execute(f"TRUNCATE {schema}.entries, {schema}.runs")  # type: ignore[arg-type]
            with pytest.raises(LeaseLost, match=r"the store has lost data\)"):
                await store.append(lease, Batch([b"3"], 2))
            assert store.renew([lease], seconds=60) == []
            other.execute(f"DROP SCHEMA {schema} CASCADE")  # type: ignore[arg-type]
            with pytest.raises(SaveFailed, match="open the store again"):
                await store.append(lease, Batch([b"3"], 2))
            with pytest.raises(StoreUnavailable, match="open the store again"):
                await store.read("r")


async def test_a_postgres_server_that_crashes_and_comes_back_loses_nothing() -> None:
    with PostgresServer.with_own_data() as own:
        server = RestartingPostgres(own.url)
        async with PostgresStore(own.url, reconnect_timeout=60) as store:
            await _write_through_restarts(store, server.kill, server.start)


async def test_a_redis_server_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with RedisStore(server.url) as store:
            assert store.durability == "full"
            await _write_through_restarts(store, server.kill, server.start)


async def _write_through_restarts(
    store: CheckpointStore, kill: Callable[[], None], start: Callable[[], None]
) -> None:
    """Append while the server is killed and started again three times."""
    stop = threading.Event()

    def restart_often() -> None:
        try:
            for count in (5, 10, 15):
                wait_for(lambda count=count: written > count, seconds=60)
                kill()
                start()
        finally:
            stop.set()

    thread = threading.Thread(target=restart_often)
    lease = await begun(store, [b"0"], seconds=600)
    written = 1
    thread.start()
    while not stop.is_set():
        await store.append(lease, Batch([b"%d" % written], written))
        written += 1
    thread.join()

    assert written > 15
    assert await bodies_of(store) == [b"%d" % n for n in range(written)]


@pytest.mark.parametrize(
    ("options", "durability", "said"),
    [
        (["--appendonly", "no"], "memory", "keeps nothing on disk"),
        (["--appendonly", "yes", "--appendfsync", "everysec"], "process", ""),
        ([*ON_DISK, "--no-appendfsync-on-rewrite", "yes"], "process", ""),
        (
            [*ON_DISK, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"],
            "full",
            "maxmemory-policy allkeys-lru",
        ),
    ],
)
async def test_opening_warns_of_a_server_that_may_lose_entries(
    options: list[str], durability: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path, *options) as server, caplog.at_level(logging.WARNING):
        async with RedisStore(server.url) as store:
            assert store.durability == durability
    assert said in caplog.text
    assert ("keeps nothing on disk" in caplog.text) is (durability == "memory")


async def test_runs_can_be_deleted_from_a_server_whose_memory_is_full(tmp_path: Path) -> None:
    limits = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"]
    with RedisServer(tmp_path, *ON_DISK, *limits) as server:
        async with RedisStore(server.url) as store:
            megabyte = bytes(10**6)
            await store.release(await begun(store, [megabyte], "old"))
            lease = await begun(store)
            written = await _fill(store, lease, megabyte)

            await store.delete("old")
            await store.append(lease, Batch([b"small"], written))
            assert len(await store.read("r")) == written + 1


async def _fill(store: CheckpointStore, lease: Lease, body: bytes) -> int:
    """Append until the memory is full. Return the number of entries."""
    for written in range(1, 100):
        try:
            await store.append(lease, Batch([body], written))
        except SaveFailed:
            return written
    raise AssertionError


async def test_an_append_waits_for_a_server_that_is_busy_with_a_script(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path, *ON_DISK, "--lua-time-limit", "10") as server:
        async with RedisStore(server.url) as store:
            lease = await begun(store, [b"1"])
            with driver.Redis.from_url(server.url) as client:
                thread = threading.Thread(target=_run_forever, args=[server.url])
                thread.start()
                await anyio.to_thread.run_sync(wait_for, lambda: _is_busy(client))
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: store.append(lease, Batch([b"2"], 1)))
                    with anyio.fail_after(30):
                        while "reconnecting" not in caplog.text:
                            await anyio.sleep(0.01)
                    client.script_kill()
                thread.join()
            assert await bodies_of(store) == [b"1", b"2"]


def _run_forever(url: str) -> None:
    with driver.Redis.from_url(url) as client, suppress(driver.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(client: driver.Redis) -> bool:
    try:
        client.ping()
    except driver.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@pytest.fixture(params=["postgres", "redis"])
def counted(request: pytest.FixtureRequest) -> tuple[CheckpointStore, Callable[[], int]]:
    """A store, and a function that returns how many of its connections the server has."""
    name = f"counted{time.time_ns()}"
    url: str = request.getfixturevalue(request.param)
    if request.param == "postgres":

        def count() -> int:
            named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            with psycopg.connect(url) as other:
                [number] = cast("tuple[int]", other.execute(named, (name,)).fetchone())
            return number

        return PostgresStore(f"{url}&application_name={name}", schema=name), count

    def count_of_redis() -> int:
        with driver.Redis.from_url(url) as other:
            return sum(client["name"] == name for client in other.client_list())

    return RedisStore(f"{url}?client_name={name}", prefix=name), count_of_redis


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cancelled_scope_closes_the_store_completely(
    counted: tuple[CheckpointStore, Callable[[], int]],
) -> None:
    store, connections = counted
    with anyio.CancelScope() as scope:
        async with store:
            assert connections() > 0
            scope.cancel()
            await anyio.sleep_forever()

    # A server takes a moment to notice that a connection was closed.
    wait_for(lambda: connections() == 0)
    assert "portal" not in " ".join(thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_store_that_is_closed_after_one_change_leaves_no_connection(
    counted: tuple[CheckpointStore, Callable[[], int]],
) -> None:
    """The announcement of the change is still on its way then."""
    store, connections = counted
    async with store:
        await begun(store, [b"1"])
    wait_for(lambda: connections() == 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("url", ["postgresql:///db?host={}", "unix://{}/.s.PGSQL.5432"])
async def test_a_cancelled_opening_leaves_nothing_behind(url: str, tmp_path: Path) -> None:
    store = (PostgresStore if url.startswith("postgresql") else RedisStore)(url.format(tmp_path))

    async def open_it() -> None:
        async with store:
            raise AssertionError("opened although the server is silent")

    is_closed = False
    accepted: list[ByteStream] = []
    async with await anyio.create_unix_listener(tmp_path / ".s.PGSQL.5432") as server:
        async with anyio.create_task_group() as group:
            group.start_soon(open_it)
            accepted.append(await server.accept())
            await accepted[0].receive()
            group.cancel_scope.cancel()
        assert "portal" not in " ".join(thread.name for thread in threading.enumerate())
        # The driver of PostgreSQL leaves an unfinished connection to the garbage collector.
        gc.collect()
        async with accepted[0] as connection:
            with anyio.move_on_after(5):
                try:
                    while True:
                        await connection.receive()
                except anyio.EndOfStream:
                    is_closed = True

    assert is_closed


async def test_options_of_a_connection_string_are_kept(postgres: str) -> None:
    name = f"options{time.time_ns()}"
    dsn = f"{postgres}&options=-c%20application_name%3D{name}"
    async with PostgresStore(dsn, schema=name):
        with psycopg.connect(postgres, autocommit=True) as other:
            named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            # The server takes a moment to end the connection that migrated the schema.
            wait_for(lambda: other.execute(named, (name,)).fetchone() == (1,))


async def test_an_existing_postgres_schema_needs_no_privilege_to_create(postgres: str) -> None:
    name = f"granted{time.time_ns()}"
    async with PostgresStore(postgres, schema=name):
        pass
    with psycopg.connect(postgres) as other:
        other.execute(
            f"CREATE ROLE {name} LOGIN;"  # type: ignore[arg-type]
            f"GRANT USAGE ON SCHEMA {name} TO {name};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {name};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {name}"
        )
    async with PostgresStore(f"{postgres}&user={name}", schema=name) as store:
        await begun(store, [b"1"])
    with pytest.raises(StoreUnavailable, match="permission denied"):
        async with PostgresStore(f"{postgres}&user={name}", schema=f"{name}_new"):
            pass


async def test_postgres_statements_have_a_timeout(postgres: str) -> None:
    schema = f"slow{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema, statement_timeout=0.2) as store:
        lease = await begun(store, [b"1"])
        with psycopg.connect(postgres) as other:
            other.execute(f"LOCK TABLE {schema}.runs")  # type: ignore[arg-type]
            with pytest.raises(StoreUnavailable, match="another program has locked"):
                await store.release(lease)
        await store.release(lease)


async def test_large_postgres_appends_are_sent_in_several_statements(postgres: str) -> None:
    """The server rejects a statement of a gibibyte, and closes the connection."""
    schema, body = f"batches{time.time_ns()}", bytes(4 * 2**20)

    async def append(lease: Lease) -> None:
        await store.append(lease, Batch([body], 1))

    async with PostgresStore(postgres, schema=schema) as store:
        leases = [await begun(store, [b"1"], f"r{n}") for n in range(16)]
        async with anyio.create_task_group() as group:
            for lease in leases:
                group.start_soon(append, lease)
    with psycopg.connect(postgres) as connection:
        entries = sql.SQL(
            "SELECT xmin::text, sum(length(body)) FROM {}.entries WHERE sequence > 1 GROUP BY xmin"
        )
        sizes = [size for _, size in connection.execute(entries.format(sql.Identifier(schema)))]
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    # Each row has one byte more.
    assert sum(sizes) == 16 * (len(body) + 1)
    assert max(sizes) <= 16 * 2**20


@pytest.mark.parametrize(
    ("version", "advice"), [(2, "from before the first release"), (99, "Upgrade effectflow")]
)
async def test_a_postgres_schema_of_another_version_is_rejected(
    postgres: str, version: int, advice: str
) -> None:
    schema = f"other{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema):
        pass
    with psycopg.connect(postgres, autocommit=True) as other:
        other.execute(f"UPDATE {schema}.schema_version SET version = {version}")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion, match=advice):
        async with PostgresStore(postgres, schema=schema):
            pass


async def test_redis_runs_of_another_version_are_rejected(redis: str, tmp_path: Path) -> None:
    prefix = str(tmp_path)
    async with RedisStore(redis, prefix=prefix) as store:
        await store.release(await begun(store, [b"1"]))
    with driver.Redis.from_url(redis) as client:
        client.set(f"{prefix}:layout", 99)
        with pytest.raises(UnsupportedVersion, match="Upgrade effectflow"):
            async with RedisStore(redis, prefix=prefix):
                pass
        # Before the first release there was no such key.
        client.delete(f"{prefix}:layout")
        with pytest.raises(UnsupportedVersion, match="from before the first release"):
            async with RedisStore(redis, prefix=prefix):
                pass


async def test_the_name_of_a_postgres_schema_is_quoted(postgres: str) -> None:
    schema = f"""Ünï "?' @ now(); --{time.time_ns()}"""
    async with PostgresStore(postgres, schema=schema) as store:
        await begun(store)
        async with PostgresStore(postgres, schema=schema) as other:
            assert len(await other.find()) == 1
    for name in ("", "a%b", "a\0b", "x" * 64):
        with pytest.raises(ValueError, match="1 to 63 bytes"):
            PostgresStore(postgres, schema=name)


async def test_a_new_postgres_schema_can_be_opened_many_times_at_once(postgres: str) -> None:
    schema = f"shared{time.time_ns()}"

    async def use(name: int) -> None:
        async with PostgresStore(postgres, schema=schema) as store:
            await begun(store, [b"1"], f"r{name}")

    async with anyio.create_task_group() as group:
        for name in range(8):
            group.start_soon(use, name)


@pytest.mark.parametrize("url", ["postgresql:///nowhere?host=/nonexistent", "redis://localhost:1"])
async def test_a_missing_server_is_reported(url: str) -> None:
    with (
        anyio.fail_after(5),
        pytest.raises(StoreUnavailable, match=r"cannot be opened.*(No such file|Connect)"),
    ):
        async with open_store(url):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/db",
        "postgresql://host/db?user=me&password=s3cret",
        # A password with a special character, which should be percent-encoded.
        "postgresql://me:p@s3cret@host/db",
        "postgresql://me:p@a/s3cret@host/db",
        "redis://:s3cret@host",
        "unix:///run/redis.sock?password=s3cret",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    assert "s3cret" not in repr(open_store(url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://me:s3cret@127.0.0.1:1/shop?connect_timeout=2",
            "host='127.0.0.1', port='1', database='shop', schema='effectflow'",
        ),
        ("postgresql:///shop?host=/no/folder", "host='/no/folder', database='shop', schema="),
    ],
)
@pytest.mark.anyio
async def test_a_store_that_cannot_be_opened_names_its_host_and_database(
    url: str, shown: str
) -> None:
    with pytest.raises(StoreUnavailable, match="it cannot be opened") as missing:
        async with open_store(url):
            pass
    assert shown in missing.value.location
    assert "s3cret" not in "".join(traceback.format_exception(missing.value))


def test_an_option_that_the_driver_does_not_know_is_named() -> None:
    with pytest.raises(ValueError, match="an option that the driver does not know: nonsense"):
        PostgresStore("postgresql://me@host/db?nonsense=1")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@host/db",
        "mysql:me:s3cret@host",
        "mysql://host/db?password=s3cret",
        "mysql:password=s3cret",
        "sqlite://me:s3cret@host/db",
        # These would name a file after the password.
        "host=db.example password=s3cret",
        "sqlite:///runs.db?password=s3cret",
        "file:./runs?password=s3cret",
        "memory:me:s3cret@host",
        # A password with a special character, which should be percent-encoded.
        "postgresql://me:s3cret%zt@host/db",
        "postgresql://me:s3cret/t@host/db",
        "redis://:s3cret/t@host",
        "redis://:s3cret?t@host",
        "rediss://me:s3cret#t@host",
    ],
)
def test_a_rejected_url_does_not_show_its_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is checked below
        open_store(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in caplog.text


_PROGRAM = """
    import asyncio
    import os
    import sys
    import anyio
    from dataclasses import dataclass
    from effectflow import *
    from effectflow.effects import from_async
    from effectflow.checkpoint import Owner, RunStatus, RunSummary, StoreUnavailable
    from effectflow.checkpoint.store import Batch
    from effectflow.stores import open_store

    def make():
        return open_store(sys.argv[1])

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    @step
    def blocking() -> Effect[App, str, int]:
        return from_blocking(lambda _: 1)

    @step
    def waiting() -> Effect[App, str, None]:
        async def wait(_):
            print("waiting", flush=True)
            await anyio.sleep(3600)

        return from_async(wait)

    @workflow
    def made(_: None) -> Do[App, str, None]:
        yield from blocking()
        pause = lambda _: from_async(lambda _: anyio.sleep(3))
        yield from bracket(pure(1), pause, lambda _: waiting())
"""


def _program(text: str) -> list[str]:
    """Return the arguments of a program that uses the server whose URL follows."""
    return ["-c", textwrap.dedent(_PROGRAM) + textwrap.dedent(text)]


@pytest.fixture(params=["postgres", "redis"])
def own_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that only this test uses."""
    if request.param == "redis":
        with RedisServer(tmp_path) as server:
            yield server.url
        return
    if request.param != "postgres":
        yield f"{request.param}{tmp_path}/runs"
        return
    yield new_database(request.getfixturevalue("postgres"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@in_turn(fixtures=["own_url"], own_url=["postgres", "redis"], is_left=[True, False])
def test_a_process_forked_while_a_store_is_open_creates_its_own(
    own_url: str, is_left: bool
) -> None:
    program = """
        store = make()
        owner = str(Owner.new())
        summary = RunSummary("w", RunStatus.RUNNING, 0.0)

        async def refused(call):
            try:
                await call()
            except StoreUnavailable as error:
                assert "forked process" in str(error), error
            else:
                raise AssertionError

        async def child():
            await refused(store.__aenter__)
            await refused(lambda: store.read("r"))
            async with make() as own:
                created = await own.create(
                    "child", [b"1"], summary=summary, owner=owner, seconds=60
                )
                own.renew([created.lease], seconds=60)

        def fork():
            pid = os.fork()
            if pid == 0:
                asyncio.run(child())
                # With the interpreter's usual end, which must not touch the parent's connections.
                sys.exit(7)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        async def open_only():
            await store.__aenter__()
            await store.read("r")

        async def parent():
            async with store:
                created = await store.create("r", [b"1"], summary=summary, owner=owner, seconds=60)
                lease = created.lease
                store.renew([lease], seconds=60)
                assert fork() == 7
                await store.append(lease, Batch([b"2"], 1))
                assert store.renew([lease], seconds=60)
                assert len(await store.read("r")) == 2
                assert len(await store.read("child")) == 1

        if sys.argv[2] == "True":
            asyncio.run(parent())
        else:
            asyncio.run(open_only())
            assert fork() == 7
        print("done")
    """
    command = [*_program(program), own_url, str(is_left)]
    ended = ran(command)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "reconnecting" not in ended.stderr


@in_turn(
    fixtures=["own_url"],
    own_url=["sqlite:///", "file:", "postgres", "redis"],
    work=["waiting", "blocking"],
)
def test_a_process_exits_after_its_event_loop_was_closed_in_a_run(own_url: str, work: str) -> None:
    program = """
        import threading
        import time

        started = threading.Event()

        @step
        def work() -> Effect[App, str, None]:
            async def wait(_):
                started.set()
                await asyncio.sleep(3600)

            def block(_):
                started.set()
                time.sleep(1)

            return from_async(wait) if sys.argv[2] == "waiting" else from_blocking(block)

        @workflow
        def cut_off(_: None) -> Do[App, str, None]:
            yield from work()

        async def until_started():
            while not started.is_set():
                await asyncio.sleep(0.01)

        loop = asyncio.new_event_loop()
        task = loop.create_task(cut_off.start(None, run_id="r").run(App(Checkpoints(make()))))
        loop.run_until_complete(until_started())
        loop.close()
        print("closed")
    """
    command = [*_program(program), own_url, work]
    ended = ran(command)
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@in_turn(
    fixtures=["own_url"],
    own_url=["sqlite:///", "file:", "postgres", "redis"],
    backend=["asyncio", "trio"],
)
def test_a_process_exits_after_three_quick_interrupts(own_url: str, backend: Any) -> None:
    program = """
        @workflow
        def nothing(_: None) -> Do[App, str, None]:
            yield from step(name="nothing")(lambda: pure(None))()

        make()
        backend = sys.argv[2]
        # The attempts are processes of their own, forked once everything is imported.
        in_memory = App(Checkpoints(open_store("memory:")))
        anyio.run(nothing.start(None).run, in_memory, backend=backend)
        # Not always does the third interrupt meet the end of the event loop.
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                print(os.getpid(), flush=True)
                app = App(Checkpoints(make()))
                anyio.run(made.start(None, run_id="r").run, app, backend=backend)
                sys.exit()
            os.waitpid(pid, 0)
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *_program(program), own_url, backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(3):
                attempt = psutil.Process(int(process.stdout.readline()))
                assert process.stdout.readline() == "waiting\n"
                time.sleep(0.2)
                # It may end before the third one.
                with suppress(psutil.NoSuchProcess):
                    for _ in range(3):
                        attempt.send_signal(signal.SIGINT)
                        time.sleep(0.05)
                wait_for(lambda attempt=attempt: not attempt.is_running(), seconds=20)
            assert process.wait(20) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_missing_driver_is_named() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from effectflow.stores import open_store\n"
        "try: open_store('postgresql://host/db')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "effectflow[postgres]" in said


class SlowConnection:
    """A connection of a `Notifier` whose answers are late. Keeps what was told."""

    closed = False
    info = SimpleNamespace(backend_pid=1)

    def __init__(self) -> None:
        self.told: list[object] = []
        self.is_answering = anyio.Event()

    async def execute(self, _statement: str, parameters: tuple[str, str] | None = None) -> None:
        if parameters is not None:
            self.told.append(parameters[1])
            await self.is_answering.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_change_during_the_notice_of_another_is_told_as_well() -> None:
    connection: Any = SlowConnection()

    async def connect() -> Any:
        return connection

    async def told(count: int) -> None:
        with anyio.fail_after(10):
            while len(connection.told) < count:
                await anyio.sleep(0.001)

    notifier = Notifier(connect, "channel")
    notifier.tell(["r"])
    await told(1)
    # The server may have told the others before this change.
    notifier.tell(["r"])
    connection.is_answering.set()
    await told(2)
    assert connection.told == ['["r"]', '["r"]']
    connection.close = anyio.lowlevel.checkpoint
    await notifier.close()
