"""What every store must do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from effectflow.checkpoint import (
    CheckpointStore,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    RunSummary,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(make_store: Callable[[], CheckpointStore]) -> AsyncIterator[CheckpointStore]:
    async with make_store() as store:
        yield store


def summary(
    status: RunStatus = RunStatus.RUNNING, *, workflow: str = "w", created_at: float = 0.0
) -> RunSummary:
    return RunSummary(workflow, "standard", "1", status, created_at)


async def claimed(store: CheckpointStore, run_id: str = "r", seconds: float = 60) -> Lease:
    return await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)


async def bodies(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    return [record.body for record in await store.read(run_id)]


async def test_records_are_read_back_in_order(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1", b"2"], after=0, summary=summary())
    await store.append(lease, [b"3"], after=2)

    records = await store.read("r")
    assert [(record.sequence, record.body) for record in records] == [
        (1, b"1"),
        (2, b"2"),
        (3, b"3"),
    ]
    assert [record.body for record in await store.read("r", after=2)] == [b"3"]
    assert all(abs(record.written_at - time.time()) < 60 for record in records)


async def test_an_unknown_run_is_empty(store: CheckpointStore) -> None:
    assert await store.read("nobody") == []
    assert await store.info("nobody") is None
    with pytest.raises(RunNotFound):
        await store.delete("nobody")


async def test_an_append_after_another_than_the_last_record_is_refused_whole(
    store: CheckpointStore,
) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary())

    for after in (0, 2):
        with pytest.raises(LeaseLost):
            await store.append(lease, [b"x", b"y"], after=after)

    assert await bodies(store) == [b"1"]


async def test_a_stale_owner_is_fenced(store: CheckpointStore) -> None:
    old = await claimed(store, seconds=0)
    await store.append(old, [b"1"], after=0, summary=summary())
    new = await claimed(store)

    assert new.fence > old.fence
    with pytest.raises(LeaseLost):
        await store.append(old, [b"x"], after=1)
    with pytest.raises(LeaseLost):
        await store.renew(old, seconds=60)
    await store.release(old)
    await store.append(new, [b"2"], after=1)
    assert await bodies(store) == [b"1", b"2"]


async def test_an_expired_lease_that_nobody_took_still_writes(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    await store.append(lease, [b"1"], after=0, summary=summary())

    assert await bodies(store) == [b"1"]


async def test_a_held_run_is_busy_until_it_is_released(store: CheckpointStore) -> None:
    lease = await claimed(store)
    with pytest.raises(RunBusy) as caught:
        await claimed(store)
    assert caught.value.owner == lease.owner

    await store.release(lease)
    again = await claimed(store)
    assert again.fence > lease.fence
    with pytest.raises(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary())


async def test_renewal_moves_the_expiry(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    renewed = await store.renew(lease, seconds=60)

    assert renewed.expires_at > lease.expires_at
    with pytest.raises(RunBusy):
        await claimed(store)


async def test_a_lease_of_a_dead_process_is_free_at_once(store: CheckpointStore) -> None:
    script = "from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        await store.claim("r", owner=owner, seconds=3600)
        with pytest.raises(RunBusy):
            await claimed(store)
        child.kill()

    await claimed(store)


async def test_an_append_can_end_the_lease_and_replace_the_summary(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary())
    done = summary(RunStatus.COMPLETED)
    await store.append(lease, [b"2"], after=1, summary=done, release=True)

    info = await store.info("r")
    assert info is not None
    assert info.summary == done
    assert info.lease is None
    assert info.length == 2
    await claimed(store)


async def test_an_append_without_records_may_change_the_summary(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary())
    await store.append(lease, [], after=1, summary=summary(RunStatus.INTERRUPTED), release=True)

    info = await store.info("r")
    assert info is not None
    assert (info.summary.status, info.length) == (RunStatus.INTERRUPTED, 1)


async def test_a_claim_alone_is_no_run(store: CheckpointStore) -> None:
    await claimed(store)

    assert await store.info("r") is None
    assert await store.find() == []


async def test_runs_are_found_by_what_they_are_newest_first(store: CheckpointStore) -> None:
    for number in range(5):
        run_id = f"r{number}"
        lease = await claimed(store, run_id)
        status = RunStatus.COMPLETED if number % 2 else RunStatus.FAILED
        row = summary(status, workflow="even" if number % 2 == 0 else "odd", created_at=number)
        await store.append(lease, [b"x"], after=0, summary=row, release=number != 4)

    async def found(query: RunQuery) -> list[str]:
        return [info.run_id for info in await store.find(query)]

    assert await found(RunQuery()) == ["r4", "r3", "r2", "r1", "r0"]
    assert await found(RunQuery(limit=2)) == ["r4", "r3"]
    assert await found(RunQuery(limit=2, offset=3)) == ["r1", "r0"]
    assert await found(RunQuery(workflow="odd")) == ["r3", "r1"]
    assert await found(RunQuery(statuses=frozenset({RunStatus.FAILED}))) == ["r4", "r2", "r0"]
    # The newest is held by this very process.
    assert await found(RunQuery(resumable=True)) == ["r2", "r0"]
    assert await found(RunQuery(updated_before=time.time() - 60)) == []
    assert len(await found(RunQuery(updated_before=time.time() + 60))) == 5


async def test_a_deleted_run_is_gone_and_its_stale_owner_cannot_bring_it_back(
    store: CheckpointStore,
) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary())
    with pytest.raises(RunBusy):
        await store.delete("r")
    await store.release(lease)
    await store.delete("r")

    assert await store.read("r") == []
    assert await store.find() == []
    with pytest.raises(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary())


@pytest.mark.parametrize(
    "run_id", ["", "../up", "a/b", "ünïcödé-🎈", "'; DROP TABLE runs; --", "nul\0", "x" * 5000]
)
async def test_hostile_run_ids_are_names_like_any_other(
    store: CheckpointStore, run_id: str
) -> None:
    lease = await claimed(store, run_id)
    await store.append(lease, [b"1"], after=0, summary=summary())

    assert await bodies(store, run_id) == [b"1"]
    assert [info.run_id for info in await store.find()] == [run_id]


async def test_large_and_odd_bytes_survive(store: CheckpointStore) -> None:
    large = bytes(range(256)) * 40_000
    lease = await claimed(store)
    await store.append(lease, [b"", large], after=0, summary=summary())

    assert await bodies(store) == [b"", large]


async def test_many_runs_at_once(store: CheckpointStore) -> None:
    async def drive(run_id: str) -> None:
        lease = await claimed(store, run_id)
        await store.append(lease, [b"0"], after=0, summary=summary())
        for number in range(1, 10):
            await store.append(lease, [str(number).encode()], after=number)
        await store.release(lease)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(drive, f"r{number}")

    for number in range(50):
        assert await bodies(store, f"r{number}") == [str(n).encode() for n in range(10)]


async def test_of_many_claims_at_once_one_wins(store: CheckpointStore) -> None:
    outcomes: list[str] = []

    async def try_to_claim() -> None:
        try:
            await claimed(store)
            outcomes.append("won")
        except RunBusy:
            outcomes.append("busy")

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(try_to_claim)

    assert outcomes.count("won") == 1


async def test_what_was_appended_is_there_after_reopening(
    make_store: Callable[[], CheckpointStore],
) -> None:
    first = make_store()
    if first.durability == "memory":
        return
    async with first:
        lease = await claimed(first)
        await first.append(lease, [b"1"], after=0, summary=summary())
        await first.release(lease)
    async with make_store() as second:
        assert await bodies(second) == [b"1"]
        assert (await claimed(second)).fence == lease.fence + 1
