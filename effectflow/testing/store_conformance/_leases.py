"""Claim, renew and release the lease of a run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import anyio

from effectflow.checkpoint import (
    CheckpointStore,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunQuery,
)
from effectflow.testing.store_conformance._check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
)


@check
async def a_stale_owner_cannot_write(store: CheckpointStore) -> None:
    old = await claimed(store, seconds=0)
    await store.append(old, [b"1"], after=0, summary=summary_of())
    new = await claimed(store)

    assert new.fence > old.fence
    with fails(LeaseLost):
        await store.append(old, [b"x"], after=1)
    with fails(LeaseLost):
        store.renew(old, seconds=60)
    await store.release(old)
    await store.append(new, [b"2"], after=1)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def an_expired_lease_writes_until_the_run_is_claimed(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    store.renew(lease, seconds=60)

    assert await bodies_of(store) == [b"1"]
    with fails(RunBusy):
        await claimed(store)


@check
async def a_held_run_is_busy_until_it_is_released(store: CheckpointStore) -> None:
    lease = await claimed(store)
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.owner == lease.owner
    assert 0 < caught.error.expires_in <= 60

    await store.release(lease)
    again = await claimed(store)
    assert again.fence > lease.fence
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary_of())


@check
async def an_owner_can_claim_a_run_that_it_holds(store: CheckpointStore) -> None:
    """It does so if it does not know whether its first claim succeeded."""
    owner = str(Owner.new())
    first = await store.claim("r", owner=owner, seconds=60)
    second = await store.claim("r", owner=owner, seconds=60)

    assert second.fence > first.fence
    with fails(LeaseLost):
        await store.append(first, [b"x"], after=0, summary=summary_of())
    with fails(LeaseLost):
        store.renew(first, seconds=60)
    await store.release(first)
    await store.append(second, [b"1"], after=0, summary=summary_of())


@check
async def a_renewal_extends_the_lease(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    renewed = store.renew(lease, seconds=60)

    assert renewed.expires_at > lease.expires_at
    with fails(RunBusy):
        await claimed(store)


@check
async def a_lease_is_renewed_while_the_event_loop_is_blocked(store: CheckpointStore) -> None:
    """From another thread, as one that renews the leases of all runs does."""
    expired = await claimed(store, seconds=0)
    stale = await claimed(store, "taken", seconds=0)
    await claimed(store, "taken")

    with ThreadPoolExecutor(1) as pool:
        renewed = pool.submit(partial(store.renew, expired, seconds=60)).result(timeout=30)
        lost = pool.submit(partial(store.renew, stale, seconds=60)).exception(timeout=30)

    assert (renewed.owner, renewed.fence) == (expired.owner, expired.fence)
    assert renewed.expires_at > expired.expires_at
    assert isinstance(lost, LeaseLost)
    with fails(RunBusy):
        await claimed(store)


@check
async def a_concurrent_renewal_never_undoes_a_takeover(store: CheckpointStore) -> None:
    for number in range(10):
        run_id = f"r{number}"
        stale = await claimed(store, run_id, seconds=0)
        renewing = threading.Event()

        def renew_until_lost(stale: Lease = stale, renewing: threading.Event = renewing) -> bool:
            try:
                while True:
                    store.renew(stale, seconds=0)
                    renewing.set()
            except LeaseLost:
                return True

        with ThreadPoolExecutor(1) as pool:
            is_lost = pool.submit(renew_until_lost)
            assert renewing.wait(timeout=30)
            taken = await claimed(store, run_id)
            assert is_lost.result(timeout=30)
        await store.append(taken, [b"1"], after=0, summary=summary_of())


@check
async def an_expired_lease_is_free(store: CheckpointStore) -> None:
    """Even if its owner is on another host, where nothing tells whether it lives."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    await store.claim("r", owner=elsewhere, seconds=0.3)
    with fails(RunBusy):
        await claimed(store)

    await anyio.sleep(0.4)
    await claimed(store)


@check
async def a_lease_from_a_slow_clock_is_free_and_then_fenced(
    store: CheckpointStore,
) -> None:
    """By its own clock the owner still holds it, and may write until another owner claims the run."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    behind = await store.claim("r", owner=elsewhere, seconds=-3600)
    await store.append(behind, [b"1"], after=0, summary=summary_of())
    assert [info.run_id for info in await store.find(RunQuery(resumable=True))] == ["r"]

    taken = await claimed(store)
    with fails(LeaseLost):
        await store.append(behind, [b"x"], after=1)
    with fails(LeaseLost):
        store.renew(behind, seconds=3600)
    await store.release(behind)
    await store.append(taken, [b"2"], after=1)
    with fails(RunBusy):
        await claimed(store)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def a_renewal_can_shorten_a_lease_from_a_fast_clock(
    store: CheckpointStore,
) -> None:
    """A renewal counts from now, even if the lease then ends earlier."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    ahead = await store.claim("r", owner=elsewhere, seconds=10**8)
    await store.append(ahead, [b"1"], after=0, summary=summary_of())
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.expires_in > 10**7

    renewed = store.renew(ahead, seconds=60)
    assert renewed.expires_at < ahead.expires_at
    with fails(RunBusy) as caught:
        await store.delete("r")
    assert 0 < caught.error.expires_in <= 60
    again = await store.claim("r", owner=elsewhere, seconds=0)
    assert again.fence > ahead.fence
    await claimed(store)


@check
async def a_run_whose_lease_has_expired_can_be_deleted(store: CheckpointStore) -> None:
    stale = await claimed(store, seconds=0)
    await store.append(stale, [b"1"], after=0, summary=summary_of())
    await store.delete("r")

    assert await store.info("r") is None
    with fails(LeaseLost):
        await store.append(stale, [b"x"], after=0, summary=summary_of())


@check
async def a_lease_of_a_dead_process_is_free_at_once(store: CheckpointStore) -> None:
    async with _held_by_another_process(store, "r", "deleted"):
        for run_id in ("r", "deleted"):
            with fails(RunBusy):
                await store.claim(run_id, owner=str(Owner.new()), seconds=60)
        with fails(RunBusy):
            await store.delete("deleted")

    await claimed(store)
    await store.delete("deleted")
    assert [info.run_id for info in await store.find()] == ["r"]


@asynccontextmanager
async def _held_by_another_process(store: CheckpointStore, *run_ids: str) -> AsyncGenerator[None]:
    """Write runs whose leases belong to another process, which is killed at the end."""
    script = "from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); input()"
    child = subprocess.Popen(  # noqa: ASYNC220, it takes only milliseconds
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        for run_id in run_ids:
            lease = await store.claim(run_id, owner=owner, seconds=3600)
            await store.append(lease, [b"1"], after=0, summary=summary_of())
        yield
        child.kill()
