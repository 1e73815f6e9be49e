"""Every store passes the published suite, and keeps to its event loop and process."""

from __future__ import annotations

import inspect
import os
from typing import Any

import anyio
import pytest
from anyio import to_thread

from effectflow.checkpoint import CheckpointStore, Owner, RunStatus, RunSummary, StoreUnavailable
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import Check, MakeStore

pytestmark = pytest.mark.anyio

CHECKS = {check.__name__: check for check in store_conformance.CHECKS}

ON_TRIO = [
    "a_completed_run_is_deleted_unless_it_is_preserved",
    "a_cancelled_append_is_settled_by_the_next_claim",
    "a_lease_is_renewed_while_the_event_loop_is_blocked",
    "a_lease_of_a_dead_process_is_free_at_once",
    "a_refused_append_does_not_affect_concurrent_ones",
    "a_store_entered_again_closes_at_the_last_exit",
    "an_append_can_replace_the_summary_and_release_the_lease",
    "find_selects_runs_and_sorts_the_newest_first",
    "tasks_that_enter_at_once_wait_until_the_store_is_open",
    "two_stores_on_the_same_data_fence_each_other",
]
"""One check for each way in which a store waits."""


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_conformance(check: Check, make_store: MakeStore) -> None:
    await check(make_store)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_conformance_of_memory_on_trio(check: Check) -> None:
    await check(MemoryStore)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("name", ON_TRIO)
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


async def test_an_open_store_refuses_another_event_loop(make_store: MakeStore) -> None:
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


async def test_an_open_store_refuses_a_forked_process(
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
