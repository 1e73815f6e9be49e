"""Which runs another connection to the file of an SqliteStore has changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import RunStatus
from effectflow.checkpoint.store import Batch, Changes
from effectflow.stores import SqliteStore
from tests.apps import both_backends
from tests.stores.runs import SUMMARY, begun, claimed

pytestmark = pytest.mark.anyio

SUSPENDED = replace(SUMMARY, status=RunStatus.SUSPENDED)
PAUSED = replace(SUMMARY, status=RunStatus.PAUSED)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "runs.db") as store:
        yield store


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "runs.db") as store:
        yield store


async def noticed(changes: Changes) -> None:
    """Wait until a change of another connection is noticed."""
    with anyio.fail_after(30):
        while await changes.wait(30) is not None:
            pass


async def create(store: SqliteStore, run_id: str = "r") -> None:
    assert await store.create(run_id, [b"1"], summary=SUSPENDED)


async def send(store: SqliteStore) -> None:
    await store.send("r", "signal:go", key="k")


async def end(store: SqliteStore) -> None:
    summary = replace(SUMMARY, status=RunStatus.COMPLETED)
    await store.append(await claimed(store), Batch([b"2"], 1, summary, release=True))


async def pause_and_unpause(store: SqliteStore) -> None:
    for summary in (PAUSED, SUSPENDED):
        await store.append(await claimed(store), Batch([], 1, summary, release=True))


async def delete(store: SqliteStore) -> None:
    await store.delete("r")


async def replace_by_equal(store: SqliteStore) -> None:
    await store.delete("r")
    await create(store)


@both_backends
@pytest.mark.parametrize("change", [send, end, pause_and_unpause, delete, replace_by_equal])
async def test_each_change_of_a_run_is_told_once_and_of_that_run_only(
    store: SqliteStore, other: SqliteStore, change: Callable[[SqliteStore], Awaitable[None]]
) -> None:
    await create(store)
    await create(store, "s")
    run_ids = ["r", "s", "unknown"]
    async with store.changes() as changes:
        # Any of them may have changed before the first look.
        assert {*await changes.among(run_ids)} == {*run_ids}
        await change(other)
        await noticed(changes)
        assert [*await changes.among(run_ids)] == ["r"]
        assert not await changes.among(run_ids)


async def test_the_creation_of_a_run_that_is_waited_for_is_told(
    store: SqliteStore, other: SqliteStore
) -> None:
    async with store.changes() as changes:
        await changes.among(["r", "s"])
        await create(other)
        await noticed(changes)
        assert [*await changes.among(["r", "s"])] == ["r"]


async def test_the_renewal_of_a_lease_is_no_change(store: SqliteStore, other: SqliteStore) -> None:
    lease = await begun(other)
    async with store.changes() as changes:
        await changes.among(["r"])
        assert other.renew([lease], seconds=600)
        await noticed(changes)
        assert not await changes.among(["r"])


async def test_a_run_that_was_left_out_of_a_look_may_have_changed(store: SqliteStore) -> None:
    await create(store)
    async with store.changes() as changes:
        await changes.among(["r", "s"])
        await changes.among(["s"])
        assert [*await changes.among(["r", "s"])] == ["r"]


async def test_one_change_is_found_among_thousands_of_runs(
    store: SqliteStore, other: SqliteStore
) -> None:
    run_ids = [f"r{number}" for number in range(2001)]
    async with store.changes() as changes:
        assert len(await changes.among(run_ids)) == 2001
        await create(other, "r1700")
        await noticed(changes)
        assert [*await changes.among(run_ids)] == ["r1700"]


async def test_if_the_file_cannot_be_read_all_runs_may_have_changed(
    store: SqliteStore, tmp_path: Path
) -> None:
    await create(store)
    async with store.changes() as changes:
        await changes.among(["r"])
        moved = (tmp_path / "runs.db").rename(tmp_path / "moved.db")
        assert [*await changes.among(["r"])] == ["r"]
        moved.rename(tmp_path / "runs.db")
        assert [*await changes.among(["r"])] == ["r"]
        assert not await changes.among(["r"])
