"""Check who may write to a run: claims, renewals and releases."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import anyio

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import CheckpointStore, RunQuery, find_run
from effectflow.testing.store_conformance import _check
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    JOURNAL,
    InThread,
    appended,
    at_once,
    begun,
    bodies_of,
    claimed,
    created,
    deadline,
    fails,
    found,
    info_of,
    owner_in_another_process,
    renew,
    summary_of,
    within,
)


async def check_lost(store: CheckpointStore, lease: Lease) -> None:
    """Check that a lease allows nothing any more."""
    info, bodies = await find_run(store, lease.run_id), await bodies_of(store, lease.run_id)
    with fails(LeaseLost):
        await appended(store, lease, b"x", after=len(bodies), summary=summary_of())
    with fails(LeaseLost):
        await store.truncate(lease, after=1, summary=summary_of())
    assert renew(store, lease) == []
    await store.release(lease)
    if info is not None:
        with fails(LeaseLost):
            await store.delete(lease.run_id, lease=lease)
    assert await find_run(store, lease.run_id) == info
    assert await bodies_of(store, lease.run_id) == bodies


# Claiming.


@JOURNAL.check
async def an_unknown_run_cannot_be_claimed(store: CheckpointStore) -> None:
    with fails(RunNotFound):
        await claimed(store, "unknown")
    assert await store.find() == []
    await created(store, "unknown")


@JOURNAL.check
async def a_held_run_is_busy_until_it_is_released(store: CheckpointStore) -> None:
    lease = await begun(store)
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.owner == lease.owner
    assert 0 < caught.error.expires_in <= 60

    await store.release(lease)
    again = await claimed(store)
    assert again.fence > lease.fence
    await check_lost(store, lease)


@JOURNAL.check
async def a_claim_returns_the_run_as_it_was_before(store: CheckpointStore) -> None:
    """So the claimant learns whether the last owner died or let the lease expire."""
    lease = await begun(store, owner=ELSEWHERE, seconds=-1)
    before = await info_of(store)
    assert before.lease == lease
    taken = await store.claim("r", owner=str(Owner.new()), seconds=60)
    assert taken.info == before
    assert taken.lease == (await info_of(store)).lease
    assert taken.lease.fence > lease.fence
    await check_lost(store, lease)

    await store.release(taken.lease)
    again = await store.claim("r", owner=str(Owner.new()), seconds=60)
    assert again.info == replace(before, lease=None)


@JOURNAL.check
async def an_owner_can_claim_a_run_that_it_holds(store: CheckpointStore) -> None:
    """It claims again if it does not know whether its first claim succeeded."""
    owner = str(Owner.new())
    first = await begun(store, owner=owner)
    second = await claimed(store, owner=owner)

    assert second.fence > first.fence
    await check_lost(store, first)
    await appended(store, second, b"2")


@JOURNAL.check
async def one_of_many_concurrent_claims_wins(store: CheckpointStore) -> None:
    await created(store)
    won: list[Lease] = []

    async def try_to_claim(_: int) -> None:
        with suppress(RunBusy):
            won.append(await claimed(store))

    await at_once(try_to_claim, range(50))

    assert won == [(await info_of(store)).lease]


@JOURNAL.check
async def a_lease_of_a_dead_process_is_free_at_once(store: CheckpointStore) -> None:
    async with owner_in_another_process() as owner:
        for run_id in ("r", "deleted"):
            await begun(store, run_id, owner=owner, seconds=3600)
            with fails(RunBusy):
                await claimed(store, run_id)
        with fails(RunBusy):
            await store.delete("deleted")

    await claimed(store)
    await store.delete("deleted")
    assert await found(store) == ["r"]


# Expiry and renewal.


@JOURNAL.check
async def an_expired_lease_stays_valid_until_the_run_is_claimed(store: CheckpointStore) -> None:
    lease = await begun(store, seconds=0)
    await appended(store, lease, b"2")
    [renewed] = renew(store, lease)

    assert (renewed.owner, renewed.fence) == (lease.owner, lease.fence)
    assert renewed.expires_at > lease.expires_at
    assert renewed == (await info_of(store)).lease
    with fails(RunBusy):
        await claimed(store)


@JOURNAL.check
async def an_expired_lease_is_free(store: CheckpointStore) -> None:
    lease = await begun(store, owner=ELSEWHERE)
    with fails(RunBusy):
        await claimed(store)

    renew(store, lease, seconds=0.3)
    with within("the run is still busy"):
        while True:
            with suppress(RunBusy):
                await claimed(store)
                return
            await anyio.sleep(0.01)


@JOURNAL.check
async def one_renewal_extends_many_leases(store: CheckpointStore) -> None:
    """It leaves out those that are not current any more."""
    leases = [await begun(store, f"r{number}", seconds=0) for number in range(5)]
    await claimed(store, "r1")
    await store.release(leases[3])
    await store.delete("r4")
    renewed = renew(store, *leases)

    assert [lease.run_id for lease in renewed] == ["r0", "r2"]
    for lease in renewed:
        with fails(RunBusy):
            await claimed(store, lease.run_id)
        await appended(store, lease, b"2")
    assert renew(store) == []


@JOURNAL.check
async def a_concurrent_renewal_never_undoes_a_takeover(store: CheckpointStore) -> None:
    for number in range(10):
        run_id = f"r{number}"
        stale = await begun(store, run_id, seconds=0)
        renewing, until = threading.Event(), deadline()

        def is_lost(
            stale: Lease = stale, renewing: threading.Event = renewing, until: float = until
        ) -> bool:
            while time.monotonic() < until:
                if not store.renew([stale], seconds=0):
                    return True
                renewing.set()
            return False

        renewals = InThread(is_lost)
        assert renewing.wait(timeout=_check.PATIENCE), "no renewal has succeeded"
        taken = await claimed(store, run_id)
        assert renewals.result(), "a lease is renewed although another owner has claimed the run"
        await appended(store, taken, b"2")


@JOURNAL.check
async def a_lease_may_last_for_ever(store: CheckpointStore) -> None:
    seconds = timedelta.max.total_seconds()
    lease = await begun(store, seconds=seconds)
    assert len(renew(store, lease, seconds=seconds)) == 1
    with fails(RunBusy):
        await claimed(store)
    await appended(store, lease, b"2", release=True)
    await claimed(store, seconds=seconds)


@JOURNAL.check
async def a_lease_from_a_slow_clock_can_be_taken_over(store: CheckpointStore) -> None:
    """By its own clock, the owner still holds it, and may write until another owner claims the run."""
    behind = await begun(store, owner=ELSEWHERE, seconds=-3600)
    await appended(store, behind, b"2")
    assert await found(store, RunQuery(resumable=True)) == ["r"]

    taken = await claimed(store)
    await check_lost(store, behind)
    await appended(store, taken, b"3", after=2)
    assert await bodies_of(store) == [b"1", b"2", b"3"]


@JOURNAL.check
async def a_renewal_can_shorten_a_lease_from_a_fast_clock(store: CheckpointStore) -> None:
    """A renewal counts from now, even if the lease then ends earlier."""
    ahead = await begun(store, owner=ELSEWHERE, seconds=10**8)
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.expires_in > 10**7

    [renewed] = renew(store, ahead)
    assert renewed.expires_at < ahead.expires_at
    with fails(RunBusy) as caught:
        await claimed(store)
    assert 0 < caught.error.expires_in <= 60
    again = await claimed(store, owner=ELSEWHERE, seconds=0)
    assert again.fence > ahead.fence
    await claimed(store)


@JOURNAL.check
async def a_lost_lease_names_its_new_owner_if_there_is_one(store: CheckpointStore) -> None:
    stale = await begun(store, seconds=0)
    taken = await claimed(store)
    with fails(LeaseLost) as caught:
        await appended(store, stale, b"x")
    assert caught.error.owner == taken.owner
    assert taken.owner in str(caught.error)

    await store.release(taken)
    with fails(LeaseLost) as caught:
        await appended(store, taken, b"x")
    assert caught.error.owner == ""
    assert "resume the run" in str(caught.error)


# Deleting.


@JOURNAL.check
async def an_unknown_run_cannot_be_deleted(store: CheckpointStore) -> None:
    with fails(RunNotFound):
        await store.delete("unknown")


@JOURNAL.check
async def the_holder_of_a_run_can_delete_it(store: CheckpointStore) -> None:
    """So no other process can claim the run between its last append and the deletion."""
    lease = await begun(store)
    with fails(RunBusy):
        await store.delete("r")
    await store.delete("r", lease=lease)
    assert await find_run(store, "r") is None
    assert await store.read("r") == []
    await check_lost(store, lease)
    with fails(RunNotFound):
        await store.delete("r", lease=lease)


@JOURNAL.check
async def a_stale_owner_cannot_restore_a_deleted_run(store: CheckpointStore) -> None:
    """Nor write to a new run with the same id."""
    for seconds in (0, 60):
        lease = await begun(store, seconds=seconds)
        if seconds:
            await store.release(lease)
        await store.delete("r")
        assert await store.find() == []
        await check_lost(store, lease)

        await created(store, "r", b"anew")
        await check_lost(store, lease)
        await store.delete("r")
        new = await begun(store)
        await check_lost(store, lease)
        await store.delete("r", lease=new)
