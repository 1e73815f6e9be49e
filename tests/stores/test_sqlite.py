"""SqliteStore: its file, locks, log and commits."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import anyio
import psutil
import pytest
from anyio import to_thread

from effectflow import Do, sleep, step, workflow
from effectflow.checkpoint import (
    CorruptCheckpoint,
    LeaseLost,
    RunQuery,
    RunStatus,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
    verify_run,
)
from effectflow.checkpoint.journal_reader import all_run_ids
from effectflow.checkpoint.store import Batch, find_run
from effectflow.stores import SqliteStore, open_store
from effectflow.stores._changes import Announcements
from effectflow.stores._sql import Query, Rows
from effectflow.stores._sqlite_database import DatabaseFiles, open_database
from effectflow.stores._sqlite_writer import SqliteWriter
from tests.apps import App, app_on, note
from tests.programs import ran
from tests.stores.damage import change_status
from tests.stores.runs import SUMMARY, begun, bodies_of, claimed

pytestmark = pytest.mark.anyio


async def append_many(store: SqliteStore, run_id: str, count: int, body: bytes = b"x") -> None:
    lease = await begun(store, [body], run_id)
    for number in range(1, count):
        await store.append(lease, Batch([body], number))
    await store.release(lease)


async def test_a_file_that_is_not_a_database_is_rejected_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, all of them, and they are longer than a header" * 100)
    before = path.read_bytes()

    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        async with SqliteStore(path):
            pass

    assert path.read_bytes() == before


async def test_a_damaged_schema_is_told_whatever_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path):
        pass
    path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE settings", b"CREATE TA\xccLE settings")
    )

    with pytest.raises(StoreUnavailable, match=r"malformed database schema .* near .TA.xccLE"):
        async with SqliteStore(path):
            pass


async def test_a_database_of_another_program_is_rejected_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(StoreUnavailable, match="another program"):
        async with SqliteStore(path):
            pass

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "advice"), [(1, "from before the first release"), (99, "Upgrade effectflow")]
)
async def test_a_database_of_another_version_is_rejected(
    tmp_path: Path, version: int, advice: str
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path):
        pass
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()

    with pytest.raises(UnsupportedVersion, match=advice) as caught:
        async with SqliteStore(path):
            pass

    assert caught.value.found == version


async def test_opening_restores_the_write_ahead_log(tmp_path: Path) -> None:
    """Without a write-ahead log the last commit might not survive a power loss."""
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await append_many(store, "r", 3)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA journal_mode = DELETE")
    other.close()

    async with SqliteStore(path) as store:
        assert Path(f"{path}-wal").exists()
        assert len(await store.read("r")) == 3


def test_a_database_that_cannot_have_a_log_is_rejected() -> None:
    """SQLite itself continues in another mode, which survives less."""
    with pytest.raises(StoreUnavailable, match="journal mode is memory"):
        open_database(Path(":memory:"), "full", lock_timeout=5)


def test_a_new_file_can_be_opened_many_times_at_once(tmp_path: Path) -> None:
    """A file that is being created must not be taken for the database of another program."""
    with ThreadPoolExecutor(4) as pool:
        for number in range(25):
            together = threading.Barrier(4)

            def open_it(path: Path, together: threading.Barrier = together) -> None:
                together.wait()
                open_database(path, "process", lock_timeout=5).close()

            list(pool.map(open_it, [tmp_path / f"{number}.db"] * 4))


async def test_a_folder_is_rejected_and_missing_parents_are_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        async with SqliteStore(tmp_path):
            pass
    async with SqliteStore(tmp_path / "new" / "folder" / "runs.db") as store:
        assert await store.find() == []


async def test_a_database_locked_by_another_program_loses_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path, lock_timeout=0.2) as store:
        await append_many(store, "r", 3)
        lease = await claimed(store)
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(SaveFailed, match=r"locked it for more than 0\.2 s"):
            await store.append(lease, Batch([b"4"], 3))
        assert len(await store.read("r")) == 3
        stranger.execute("ROLLBACK")
        stranger.close()

        await store.append(lease, Batch([b"4"], 3))
        assert len(await store.read("r")) == 4


async def test_requests_wait_together_while_another_program_has_locked_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path, lock_timeout=1.5) as store:
        for run_id in "rs":
            await append_many(store, run_id, 1)
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        waited: list[float] = []

        async def claim(run_id: str, delay: float) -> None:
            await anyio.sleep(delay)
            asked_at = time.monotonic()
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.claim(run_id, owner="me", seconds=60)
            waited.append(time.monotonic() - asked_at)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(claim, str(number), 0.01 * number)
        # One after the other, they would wait for 30 seconds.
        assert time.monotonic() - began < 15
        assert min(waited) > 1.4
        stranger.execute("ROLLBACK")
        stranger.close()
        # The file is free, and the next program that locks it is waited for again.
        await store.claim("r", owner="me", seconds=60)
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")

        async def claim_when_free() -> None:
            await store.claim("s", owner="me", seconds=60)

        async with anyio.create_task_group() as group:
            group.start_soon(claim_when_free)
            await anyio.sleep(0.1)
            stranger.execute("ROLLBACK")
        stranger.close()


async def test_opening_waits_for_a_locked_file_as_long_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"locked it for more than 0\.2 s"):
        async with SqliteStore(path, lock_timeout=0.2):
            pass
    assert time.monotonic() - began < 3
    stranger.close()


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{path}{suffix}")


def replace_by_copy(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def unlink_log_and_keep_times(path: Path) -> None:
    folder = path.parent.stat()
    os.unlink(f"{path}-wal")
    os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


HARM: dict[str, Callable[[Path], object]] = {
    "removed": remove,
    "moved": lambda path: os.rename(path, f"{path}.moved"),
    "replaced": replace_by_copy,
    "emptied": lambda path: os.truncate(path, 0),
    "without its log": lambda path: os.unlink(f"{path}-wal"),
    "without its log, in a folder with its old times": unlink_log_and_keep_times,
    "without its index": lambda path: os.unlink(f"{path}-shm"),
    "with its folder": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("age", [0, 0.05])
@pytest.mark.parametrize("harm", HARM)
async def test_a_run_ends_if_its_database_is_gone(
    harm: str, age: float, durability: Literal["full", "process"], tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "runs.db"

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        # The store trusts the times of a folder once they are older than their granularity.
        yield from sleep(age)
        yield from step(name="one")(lambda: note("one"))()
        HARM[harm](path)
        return (yield from step(name="two")(lambda: note("two"))())

    app = app_on(SqliteStore(path, durability=durability))
    result = await made.start(None, run_id="r").run(app)
    assert isinstance(result.failure(), StoreUnavailable)
    assert "while the store had it open" in str(result.failure())
    assert app.world.done == ["one"]


@pytest.mark.parametrize("harm", HARM)
async def test_a_run_does_not_succeed_if_its_database_is_gone_at_its_end(
    harm: str, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "runs.db"

    @workflow
    def made(_: None) -> Do[App, Any, int]:
        count = yield from step(name="one")(lambda: note("one"))()
        HARM[harm](path)
        return count

    result = await made.start(None, run_id="r").run(app_on(SqliteStore(path)))
    assert isinstance(result.failure(), StoreUnavailable)


async def test_an_open_database_that_is_gone_is_neither_read_nor_renewed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await append_many(store, "r", 3)
        lease = await claimed(store)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(StoreUnavailable, match=r"runs\.db: deleted, moved"):
            await store.read("r")
        with pytest.raises(StoreUnavailable, match=r"runs\.db: deleted, moved"):
            await store.facts()
        with pytest.raises(StoreUnavailable, match=r"runs\.db: deleted, moved"):
            store.renew([lease], seconds=60)
        with pytest.raises(StoreUnavailable, match=r"runs\.db: deleted, moved"):
            await store.append(lease, Batch([b"4"], 3))
        (tmp_path / "moved.db").rename(path)
        await store.append(lease, Batch([b"4"], 3))
        assert len(await store.read("r")) == 4


async def test_a_database_is_found_again_through_a_link_and_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "runs.db")
    monkeypatch.chdir(tmp_path)
    async with SqliteStore("link.db") as store:
        (tmp_path / "else").mkdir()
        monkeypatch.chdir(tmp_path / "else")
        await append_many(store, "r", 3)
        assert len(await store.read("r")) == 3
        (tmp_path / "link.db").unlink()
        (tmp_path / "link.db").symlink_to(tmp_path / "else" / "runs.db")
        with pytest.raises(StoreUnavailable, match="deleted, moved"):
            await append_many(store, "s", 1)


async def test_other_programs_may_maintain_an_open_database(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await append_many(store, "r", 30, b"x" * 10_000)
        await store.delete("r")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.execute("VACUUM")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.close()
        async with SqliteStore(path) as second:
            await append_many(second, "second", 3)
        await append_many(store, "r", 3)
        assert len(await store.read("second")) == len(await store.read("r")) == 3


async def saved_at_once(store: SqliteStore, bodies: list[bytes]) -> list[type | None]:
    """Append each body to a run of its own, in one transaction. Return what was raised for each."""
    leases = [await begun(store, [b"1"], str(number)) for number in range(len(bodies))]
    raised: list[type | None] = [None] * len(bodies)

    async def save(number: int) -> None:
        try:
            await store.append(leases[number], Batch([bodies[number]], 1))
        except SaveFailed as error:
            raised[number] = type(error)

    async with anyio.create_task_group() as group:
        for number in range(len(bodies)):
            group.start_soon(save, number)
    return raised


async def test_an_entry_that_does_not_fit_on_the_disk_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_to_small_disk(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_small_disk)
    async with SqliteStore(tmp_path / "runs.db") as store:
        bodies = [b"x"] * 20
        bodies[3] = bodies[11] = b"y" * 1_000_000
        raised = await saved_at_once(store, bodies)
        assert [number for number, error in enumerate(raised) if error] == [3, 11]
        for number, error in enumerate(raised):
            assert len(await store.read(str(number))) == (1 if error else 2)


async def test_an_entry_that_is_too_large_for_a_file_fails_alone(tmp_path: Path) -> None:
    """The write to the log fails, when the transaction is committed."""
    child = in_child(
        """
        import resource, signal, sys
        import anyio
        from tests.stores.test_sqlite import saved_at_once
        from effectflow.stores import SqliteStore
        async def main():
            async with SqliteStore(sys.argv[1]) as store:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
                raised = await saved_at_once(store, [b"x", b"x", b"y" * 1_000_000, b"x"])
                print([error and error.__name__ for error in raised])
            async with SqliteStore(sys.argv[1]) as store:
                print([len(await store.read(str(number))) for number in (0, 1, 3)])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        anyio.run(main)
        """,
        str(tmp_path / "runs.db"),
    )
    assert child.stdout.splitlines() == ["[None, None, 'SaveFailed', None]", "[2, 2, 2]"], child


def in_child(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(["-c", textwrap.dedent(script), *arguments])


async def test_a_read_only_database_cannot_be_written() -> None:
    # Root may write anywhere, so the child becomes another user. It could not enter a folder of pytest,
    # which makes its folders private whenever it starts.
    with TemporaryDirectory() as created:
        folder = Path(created)
        path = folder / "runs.db"
        async with SqliteStore(path) as store:
            await append_many(store, "r", 3)
        path.chmod(0o444)
        folder.chmod(0o555)
        child = in_child(
            """
            import os, sys
            import anyio
            from effectflow.checkpoint import CheckpointError
            from effectflow.stores import SqliteStore
            async def main():
                if os.geteuid() == 0:
                    os.setuid(65534)
                try:
                    async with SqliteStore(sys.argv[1]) as store:
                        await store.claim("r", owner="me", seconds=1)
                except CheckpointError as error:
                    print(type(error).__name__, error)
            anyio.run(main)
            """,
            str(path),
        )
        folder.chmod(0o755)
        path.chmod(0o644)

        assert child.returncode == 0, child.stderr
        assert "read-only" in child.stdout or "unable to open" in child.stdout
        async with SqliteStore(path) as store:
            assert len(await store.read("r")) == 3


async def test_a_copy_with_its_log_in_a_read_only_folder_is_explained() -> None:
    with TemporaryDirectory() as created:
        folder = Path(created)
        async with SqliteStore(folder / "live.db") as store:
            await append_many(store, "r", 3)
            for end in ("", "-wal"):
                shutil.copy(folder / f"live.db{end}", folder / f"copy.db{end}")
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        child = in_child(
            """
            import os, sys
            import anyio
            from effectflow.checkpoint import CheckpointError
            from effectflow.stores import SqliteStore
            async def main():
                if os.geteuid() == 0:
                    os.setuid(65534)
                try:
                    async with SqliteStore(sys.argv[1]) as store:
                        print(len(await store.read("r")))
                except CheckpointError as error:
                    print(error)
            anyio.run(main)
            """,
            str(folder / "copy.db"),
        )
        folder.chmod(0o755)

    assert "Copy both files to such a folder" in child.stdout, child


async def test_queued_appends_share_a_commit_even_if_one_is_rejected(tmp_path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()
    path = tmp_path / "runs.db"
    database = open_database(path, "full", lock_timeout=5)
    writer = SqliteWriter(
        database, DatabaseFiles(path), lock_timeout=5, announcements=Announcements()
    )
    outcomes: list[object] = []

    def held_up(_: sqlite3.Connection) -> str:
        begun.set()
        gate.wait()
        return "first"

    def number(n: int) -> str:
        if n == 50:
            raise LeaseLost("r", "staged")
        return "written"

    async def submit(n: int) -> None:
        try:
            outcomes.append(await writer.submit("r", lambda _: number(n)))
        except LeaseLost:
            outcomes.append("refused")

    async with anyio.create_task_group() as group:
        group.start_soon(writer.submit, "r", held_up)
        await to_thread.run_sync(begun.wait)
        for n in range(100):
            group.start_soon(submit, n)
        await anyio.wait_all_tasks_blocked()
        gate.set()
    writer.close()
    database.close()

    assert writer.commits == 1
    assert (outcomes.count("written"), outcomes.count("refused")) == (99, 1)


async def test_a_cancelled_append_is_still_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        lease = await begun(store, [b"1"])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.append(lease, Batch([b"2"], 1))
    async with SqliteStore(path) as store:
        assert await bodies_of(store) == [b"1", b"2"]


def open_files(path: Path) -> list[str]:
    """Return the files of the store that this process has open."""
    files = [file.path for file in psutil.Process().open_files()]
    return [file for file in files if file.startswith(str(path))]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cancelled_scope_closes_the_store_completely(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with anyio.CancelScope() as scope:
        async with SqliteStore(path):
            assert open_files(path)
            scope.cancel()
            await anyio.sleep_forever()

    assert open_files(path) == []
    assert str(path) not in " ".join(thread.name for thread in threading.enumerate())


async def test_a_store_whose_second_connection_fails_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_once(*arguments: Any, **options: Any) -> sqlite3.Connection:
        if made:
            raise sqlite3.OperationalError("unable to open database file")
        made.append(connect(*arguments, **options))
        return made[0]

    monkeypatch.setattr(sqlite3, "connect", connect_once)
    with pytest.raises(StoreUnavailable, match="unable to open"):
        async with SqliteStore(path):
            pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


async def test_the_log_stays_bounded_while_readers_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path, durability="process") as store:
        writing = True

        async def read_on() -> None:
            while writing:
                await store.read("r")
                await store.find(RunQuery(limit=1))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(read_on)
            await append_many(store, "r", 800, b"x" * 1000)
            writing = False
        assert Path(f"{path}-wal").stat().st_size < 8 * 1024 * 1024


async def test_the_log_shrinks_after_a_long_transaction_of_another_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    log = Path(f"{path}-wal")
    async with SqliteStore(path) as store:
        await append_many(store, "r0", 2)
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN")
        stranger.execute("SELECT * FROM runs").fetchall()
        await append_many(store, "r1", 400, b"x" * 20_000)
        assert log.stat().st_size > 4 * 1024 * 1024
        assert "one long transaction" in caplog.text
        stranger.execute("COMMIT")
        stranger.close()
        await append_many(store, "r2", 150)

        assert log.stat().st_size <= 4 * 1024 * 1024


async def test_find_skips_a_run_with_an_unknown_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await append_many(store, "bad", 1)
        await append_many(store, "good", 1)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE runs SET status = 'unknown' WHERE run_id = 'bad'")
        other.close()

        assert [info.run_id for info in await store.find()] == ["good"]
        assert "skipping run 'bad'" in caplog.text
        with pytest.raises(CorruptCheckpoint, match="'unknown'"):
            await find_run(store, "bad")
        assert await all_run_ids(store) == ["good", "bad"]
        problem = (await verify_run(store, "bad")).problem
        assert isinstance(problem, CorruptCheckpoint)


async def test_a_deleted_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await append_many(store, "deleted", 2)
        await store.send("deleted", "signal:go", key="1")
        await store.delete("deleted")
        with sqlite3.connect(path) as other:
            for table in ("runs", "entries", "messages", "received"):
                assert other.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        other.close()


async def test_a_slow_find_does_not_delay_other_reads(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        await append_many(store, "r", 2)
        begun, gate = threading.Event(), threading.Event()

        def held_up() -> Generator[Sequence[Query], Sequence[Rows], str]:
            begun.set()
            gate.wait()
            yield [Query("SELECT 1")]
            return "slow"

        async with anyio.create_task_group() as group:
            group.start_soon(store._read, held_up)
            await to_thread.run_sync(begun.wait)
            assert await find_run(store, "r") is not None
            gate.set()


async def test_a_renewal_does_not_wait_forever_for_a_locked_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path, renew_timeout=0.2) as store:
        lease = await begun(store)
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"within 0\.2 s"):
            store.renew([lease], seconds=60)
        stranger.execute("ROLLBACK")
        stranger.close()

        store.renew([lease], seconds=60)


@pytest.mark.parametrize("make", [SqliteStore, lambda path: open_store(f"sqlite:///{path}")])
def test_a_database_in_memory_is_rejected(make: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="memory:"):
        make(":memory:")


def test_open_store_returns_the_store_of_a_url(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "runs.db"
    for url in ("mongo://x", "sqlite:runs.db", "sqlite:///", "memory:x", "memory", "redis", ""):
        with pytest.raises(ValueError, match=r"use|does not name|write"):
            open_store(url)


@pytest.mark.parametrize(
    "path",
    ["runs.db", "./runs.db", "/var/runs.db", "a b/runs", "./a:b.db", "C:\\runs.db", "c:runs"],
)
def test_a_plain_path_means_an_sqlite_database(path: str) -> None:
    store = open_store(path)
    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


async def test_a_run_ends_although_its_parent_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        await store.release(await begun(store, [b"1"], "parent"))
        await change_status(store, "parent")
        lease = await begun(store, [b"1"])
        ended = replace(SUMMARY, status=RunStatus.COMPLETED, parent="parent")

        await store.append(lease, Batch([b"2"], 1, summary=ended, release=True))

        assert await bodies_of(store) == [b"1", b"2"]
    assert "'parent' is not notified about run 'r'" in caplog.text


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("sqlite:///runs.db?durability=process&lock_timeout=2", "process"),
        ("sqlite:///runs.db", "full"),
    ],
)
async def test_a_url_has_options_of_its_store(
    url: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store(url) as opened:
        assert opened.durability == store
    assert (tmp_path / "runs.db").exists()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "sqlite:///runs.db?mode=ro",
            "unknown option 'mode'; the store has durability, lock_timeout",
        ),
        ("sqlite:///runs.db?durability=none", "durability must be"),
        ("sqlite:///runs.db?lock_timeout=soon", "lock_timeout of a store is a number of seconds"),
        ("file:runs?prefix=x", "unknown option 'prefix'"),
        ("postgresql://me:s3cret@host/db?pool_size=many", "pool_size of a store is a whole number"),
        ("postgresql://me:s3cret@host/db?prefix=x", "prefix|parsed"),
        ("redis://me:s3cret@host?schema=x", "unknown option 'schema'"),
    ],
)
def test_a_url_with_a_wrong_option_is_rejected(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value)


def test_a_url_of_a_server_has_options_of_its_store_and_of_its_driver() -> None:
    postgres = open_store("postgresql://host/shop?schema=orders&connect_timeout=2")
    assert "schema='orders'" in repr(postgres)
    redis = open_store("redis://host?prefix=orders&socket_timeout=3")
    assert "prefix='orders'" in repr(redis)
