"""Every store passes the published suite, and keeps to its event loop and process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from returns.result import Success

from effectflow import Do, Effect, step, workflow
from effectflow.checkpoint import (
    CheckpointStore,
    Owner,
    RunBusy,
    RunQuery,
    RunStatus,
    RunSummary,
    StoreUnavailable,
)
from effectflow.effects import from_async
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import Check, MakeStore
from tests.apps import App, app_on, note
from tests.stores.runs import SUMMARY, begun, claimed
from tests.sweeps import in_turn

pytestmark = pytest.mark.anyio

CHECKS = {check.__name__: check for check in store_conformance.CHECKS}

ON_TRIO = [
    "a_cancelled_append_is_not_written_after_the_next_claim",
    "a_completed_run_is_deleted_unless_it_is_preserved",
    "a_lease_is_renewed_while_the_event_loop_is_blocked",
    "a_lease_of_a_dead_process_is_free_at_once",
    "a_message_sent_during_a_suspension_wakes_the_run",
    "a_reentered_store_closes_at_the_last_exit",
    "a_rejected_append_does_not_affect_concurrent_ones",
    "a_truncation_removes_the_last_records_and_replaces_the_summary",
    "an_append_can_replace_the_summary_and_release_the_lease",
    "concurrent_claimants_share_a_limit",
    "concurrent_tasks_wait_until_the_store_is_open",
    "find_selects_runs_and_sorts_the_newest_first",
    "stores_on_the_same_data_respect_the_same_leases",
    "the_holder_of_a_run_can_delete_it",
    "watchers_see_every_kind_of_change",
]
"""One check for each way in which a store waits."""


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_conformance(check: Check, make_store: MakeStore) -> None:
    await check(make_store)


@pytest.mark.exhaustive
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_conformance_of_memory_on_trio(check: Check) -> None:
    await check(MemoryStore)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@in_turn(
    fixtures=["make_store_named"],
    name=ON_TRIO,
    make_store_named=["redis", "postgres", "file", "sqlite full"],
)
async def test_smoke_on_trio(name: str, make_store: MakeStore) -> None:
    await CHECKS[name](make_store)


@pytest.mark.parametrize("store", [MemoryStore, FileStore, SqliteStore, PostgresStore, RedisStore])
def test_help_describes_each_method_of_the_contract(store: type[CheckpointStore]) -> None:
    contract = [name for name in vars(CheckpointStore) if not name.startswith("_")]

    assert "append" in contract
    assert [name for name in contract if not inspect.getdoc(getattr(store, name))] == []


async def test_entering_an_open_store_never_waits(make_store: MakeStore) -> None:
    async with make_store() as store:
        steps: list[Any] = [store.__aenter__(), store.__aexit__(None, None, None)]
        for step in steps:
            with pytest.raises(StopIteration):
                step.send(None)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_store_can_be_closed_while_it_is_watched(make_store: MakeStore) -> None:
    store = make_store()

    with anyio.fail_after(30):
        await store.__aenter__()
        async with store.changes() as changes:
            await store.__aexit__(None, None, None)
            assert not await changes.wait(0.01)
    async with store, store.changes() as changes:
        await begun(store, [b"1"])
        with anyio.fail_after(30):
            while "r" not in (await changes.wait(30) or ()):
                pass


async def test_an_open_store_rejects_another_event_loop(make_store: MakeStore) -> None:
    store = make_store()

    async def use() -> list[Any]:
        return await store.read("r")

    async def enter() -> None:
        async with store:
            pass

    async with store:
        if store.durability == "memory":
            return
        for work in (use, enter):
            with pytest.raises(StoreUnavailable, match="another event loop"):
                await to_thread.run_sync(anyio.run, work)
        assert await use() == []
    await to_thread.run_sync(anyio.run, enter)


def left_open_by_a_closed_loop(store: CheckpointStore) -> None:
    """Enter the store, and close the event loop in the middle of a read."""

    async def use() -> None:
        await store.__aenter__()
        await store.read("r")
        task.cancel()

    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(60))
    loop.run_until_complete(use())
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


# Drivers warn of the connections that such a loop has left open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_store_whose_event_loop_was_closed_can_be_opened_again(
    make_store: MakeStore,
) -> None:
    store = make_store()
    await to_thread.run_sync(left_open_by_a_closed_loop, store)
    if store.durability != "memory":
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.read("r")
    for _ in range(2):
        async with store:
            lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
            store.renew(lease, seconds=60)
            await store.release(lease)
            assert await store.read("r") == []
    del store
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("make_store_named", ["file", "sqlite full"], indirect=True)
@pytest.mark.parametrize("is_left", [True, False])
def test_a_process_forked_while_a_store_is_open_creates_its_own(
    make_store: MakeStore, is_left: bool
) -> None:
    store = make_store()

    def child() -> None:
        async def use() -> None:
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.__aenter__()
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.read("r")
            async with make_store() as own:
                lease = await own.claim("r", owner=str(Owner.new()), seconds=60)
                await own.release(lease)

        signal.alarm(30)
        asyncio.run(use())

    def forked() -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def parent() -> None:
        async with store:
            assert forked() == 0
            assert await store.read("r") == []

    if is_left:
        asyncio.run(parent())
    else:
        left_open_by_a_closed_loop(store)
        assert forked() == 0
    asyncio.run(parent())


async def test_an_open_store_rejects_a_forked_process(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    async with store:
        if store.durability == "memory":
            return
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(StoreUnavailable, match="forked process"):
                store.renew(lease, seconds=60)
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.read("r")
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.__aenter__()
        store.renew(lease, seconds=60)


@pytest.mark.parametrize("make_store_named", ["file", "sqlite full"], indirect=True)
async def test_files_are_used_while_all_threads_of_anyio_are_busy(make_store: MakeStore) -> None:
    limiter = to_thread.current_default_thread_limiter()
    summary = RunSummary("w", "standard", "1", RunStatus.RUNNING, 0.0)
    async with make_store() as store:
        for _ in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        with anyio.fail_after(10):
            lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
            await store.append(lease, [b"1"], after=0, summary=summary)
            assert len(await store.read("r")) == 1
            async with make_store() as other:
                assert len(await other.find()) == 1


@pytest.fixture
def two_stores(make_store: MakeStore) -> tuple[CheckpointStore, CheckpointStore]:
    """Two stores on the same data, as two processes have."""
    store = make_store()
    return store, store if store.durability == "memory" else make_store()


async def test_a_clock_set_forward_does_not_take_runs_from_a_live_owner(
    two_stores: tuple[CheckpointStore, CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = two_stores
    async with holder, other:
        lease = await begun(holder, [b"1"], seconds=30)
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + 45)
        with pytest.raises(RunBusy) as caught:
            await claimed(other)
        assert 0 < caught.value.expires_in <= 30
        with pytest.raises(RunBusy):
            await other.delete("r")
        assert await other.find(RunQuery(resumable=True)) == []

        monkeypatch.setattr(time, "time", lambda: right() - 3600)
        holder.renew(lease, seconds=30)
        monkeypatch.undo()
        with pytest.raises(RunBusy):
            await claimed(other)


async def test_a_clock_that_is_set_back_does_not_keep_a_lease(
    two_stores: tuple[CheckpointStore, CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = two_stores
    async with holder, other:
        await claimed(holder, seconds=0.2)
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() - 3600)
        await anyio.sleep(0.3)
        await claimed(other)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_can_be_started_again_after_its_event_loop_was_closed(
    backend: str, two_stores: tuple[CheckpointStore, CheckpointStore]
) -> None:
    """Also if nothing of it was left to end orderly."""
    first, second = two_stores
    has_begun = False

    @step
    def wait() -> Effect[App, Any, int]:
        async def wait(_: object) -> int:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                await asyncio.sleep(3600)
            return 1

        return from_async(wait)

    @workflow
    def waiting(_: None) -> Do[App, Any, int]:
        return (yield from wait())

    async def until_begun() -> None:
        while not has_begun:
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    task = loop.create_task(waiting.start(None, run_id="r").run(app_on(first)))
    loop.run_until_complete(until_begun())
    loop.close()
    try:
        again = waiting.start(None, run_id="r").run
        assert anyio.run(again, app_on(second), backend=backend) == Success(1)
    finally:
        # Otherwise asyncio logs that it was destroyed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_run_that_is_not_preserved_is_executed_once_by_starts_at_once(
    make_store: MakeStore,
) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, int]:
        return (yield from step(note)("made"))

    async with make_store() as store:
        for number in range(5):
            app = app_on(store, preserve=False)
            run_id = f"r{number}"
            starts = [made.start(None, run_id=run_id).run(app) for _ in range(5)]
            outcomes = await asyncio.gather(*starts)
            assert app.world.done == ["made"]
            assert await store.info(run_id) is None
            for outcome in outcomes:
                if outcome != Success(1):
                    assert isinstance(outcome.failure(), RunBusy)


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
async def test_a_process_that_dies_before_its_first_entry_leaves_nothing(
    kind: str, tmp_path: Path
) -> None:
    memory = MemoryStore()
    make: dict[str, MakeStore] = {
        "memory": lambda: memory,
        "file": lambda: FileStore(tmp_path),
        "sqlite": lambda: SqliteStore(tmp_path / "runs.db"),
    }
    own = Owner.new()
    dead = str(Owner(2**80, own.host, "1", "1"))
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    async with make[kind]() as store:
        await store.claim("dead", owner=dead, seconds=3600)
        await store.claim("expired", owner=elsewhere, seconds=-7200)
        await store.claim("late", owner=elsewhere, seconds=-60)
        await store.claim("live", owner=str(own), seconds=60)
        lease = await store.claim("begun", owner=dead, seconds=60)
        await store.append(lease, [b"1"], after=0, summary=SUMMARY)

    async with make[kind]() as store:
        assert [info.run_id for info in await store.find()] == ["begun"]
        assert claims_of(store) == {"late", "live", "begun"}
        late = await claimed(store, "late")
        await store.append(late, [b"1"], after=0, summary=SUMMARY)


def claims_of(store: CheckpointStore) -> set[str]:
    """Return the runs of which a store has any data."""
    if isinstance(store, MemoryStore):
        return set(store._leases)
    if isinstance(store, FileStore):
        folders = (store.directory / "sessions").iterdir()
        return {folder.name for folder in folders if not folder.is_symlink()}
    assert isinstance(store, SqliteStore)
    with closing(sqlite3.connect(store.path)) as database:
        return {run_id for [run_id] in database.execute("SELECT run_id FROM leases")}
