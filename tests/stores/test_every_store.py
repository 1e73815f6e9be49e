"""Every store keeps to its event loop and process, and to the clock of its host."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread

from effectflow import stores
from effectflow.checkpoint.errors import RunBusy, StoreUnavailable
from effectflow.checkpoint.run_info import RunQuery
from effectflow.checkpoint.store import Batch, CheckpointStore, ServiceStore
from effectflow.testing.store_conformance import MakeStore
from tests.stores.runs import begun, claimed

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "name", ["MemoryStore", "FileStore", "SqliteStore", "PostgresStore", "RedisStore"]
)
def test_help_describes_each_method_of_the_contract(name: str) -> None:
    contract = CheckpointStore if name == "FileStore" else ServiceStore
    methods = [method for method in dir(contract) if not method.startswith("_")]

    assert "append" in methods
    store = getattr(stores, name)
    assert [method for method in methods if not inspect.getdoc(getattr(store, method))] == []


async def test_a_store_tells_its_layout_and_size(make_store: MakeStore) -> None:
    layouts = {"SqliteStore": 6, "PostgresStore": 6, "RedisStore": 5, "FileStore": 3}
    async with make_store() as store:
        await begun(store)
        facts = await store.facts()

    name = type(store).__name__
    assert facts.layout == layouts.get(name)
    assert (facts.size is not None) == (name in ("SqliteStore", "PostgresStore"))
    assert (facts.size or 5000) > 4096
    assert not facts.is_read_only


async def test_entering_an_open_store_never_waits(make_store: MakeStore) -> None:
    async with make_store() as store:
        steps: list[Any] = [store.__aenter__(), store.__aexit__(None, None, None)]
        for step in steps:
            with pytest.raises(StopIteration):
                step.send(None)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_store_can_be_closed_while_it_is_watched(
    make_service: Callable[[], ServiceStore],
) -> None:
    store = make_service()

    with anyio.fail_after(30):
        await store.__aenter__()
        async with store.changes() as changes:
            await store.__aexit__(None, None, None)
            assert not await changes.wait(0.01)
    async with store, store.changes() as changes:
        await begun(store)
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
    for run_id in ("first", "second"):
        async with store:
            lease = await begun(store, run_id=run_id)
            assert len(store.renew([lease], seconds=60)) == 1
            await store.append(lease, Batch([b"2"], 1, release=True))
            assert len(await store.read(run_id)) == 2
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
                await own.delete("r", lease=await begun(own))

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
        lease = await begun(store)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(StoreUnavailable, match="forked process"):
                store.renew([lease], seconds=60)
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.read("r")
            with pytest.raises(StoreUnavailable, match="forked process"):
                await store.__aenter__()
        store.renew([lease], seconds=60)


@pytest.mark.parametrize("make_store_named", ["file", "sqlite full"], indirect=True)
async def test_files_are_used_while_all_threads_of_anyio_are_busy(make_store: MakeStore) -> None:
    limiter = to_thread.current_default_thread_limiter()
    async with make_store() as store:
        for _ in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        with anyio.fail_after(10):
            await store.append(await begun(store), Batch([b"2"], 1))
            assert len(await store.read("r")) == 2
            async with make_store() as other:
                assert len(await other.find()) == 1


async def test_a_clock_set_forward_does_not_take_runs_from_a_live_owner(
    two_stores: tuple[CheckpointStore, CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = two_stores
    async with holder, other:
        lease = await begun(holder, seconds=30)
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + 45)
        with pytest.raises(RunBusy) as caught:
            await claimed(other)
        assert 0 < caught.value.expires_in <= 30
        with pytest.raises(RunBusy):
            await other.delete("r")
        assert await other.find(RunQuery(resumable=True)) == []

        monkeypatch.setattr(time, "time", lambda: right() - 3600)
        holder.renew([lease], seconds=30)
        monkeypatch.undo()
        with pytest.raises(RunBusy):
            await claimed(other)


async def test_a_clock_that_is_set_back_does_not_keep_a_lease(
    two_stores: tuple[CheckpointStore, CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = two_stores
    async with holder, other:
        await begun(holder, seconds=0.2)
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() - 3600)
        await anyio.sleep(0.3)
        await claimed(other)
