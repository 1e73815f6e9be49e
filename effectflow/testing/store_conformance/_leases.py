"""Check who may write to a run: claims, renewals, releases and deletions."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import anyio

from effectflow.checkpoint.errors import RunBusy
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunQuery
from effectflow.testing.store_conformance import _check
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    Journal,
    fails,
    in_thread,
    new_owner,
    owner_in_another_process,
    result_of,
    within,
)


async def a_held_run_is_busy_until_it_is_released(s: Journal, other: Journal) -> None:
    lease = await s.begin()
    for claimant in (s, other):
        with fails(RunBusy) as caught:
            await claimant.claim()
        assert caught.exception.owner == lease.owner
        assert 0 < caught.exception.expires_in <= 60

    await s.store.release(*s.renew(lease))
    await s.check_lost(lease)
    taken = await other.claim()
    assert taken.fence > lease.fence
    await s.check_lost(lease)
    await other.append(taken, b"2")
    assert await s.bodies() == [b"1", b"2"]


async def a_claim_returns_the_run_as_it_was_before(s: Journal) -> None:
    """So the claimant learns whether the last owner died or let the lease expire."""
    lease = await s.begin(owner=ELSEWHERE, seconds=-1)
    before = await s.info()
    assert before.lease == lease
    taken = await s.store.claim("r", owner=new_owner(), seconds=60)
    assert (taken.info, taken.lease) == (before, (await s.info()).lease)

    await s.store.release(taken.lease)
    again = await s.store.claim("r", owner=new_owner(), seconds=60)
    assert again.info == replace(before, lease=None)


async def an_owner_can_claim_a_run_that_it_holds(s: Journal) -> None:
    """It claims again if it does not know whether its first claim succeeded."""
    first = await s.begin()
    second = await s.claim(owner=first.owner)

    assert second.fence > first.fence
    await s.check_lost(first)
    await s.append(second, b"2")


async def a_lease_of_a_dead_process_is_free_at_once(s: Journal) -> None:
    async with owner_in_another_process() as owner:
        for run_id in ("r", "deleted"):
            await s.begin(run_id, owner=owner, seconds=3600)
            with fails(RunBusy):
                await s.claim(run_id)
        with fails(RunBusy):
            await s.store.delete("deleted")

    await s.claim()
    await s.store.delete("deleted")
    assert await s.find() == ["r"]


async def an_expired_lease_is_free_and_stays_valid_until_the_run_is_claimed(s: Journal) -> None:
    """The clock of its owner may be slow."""
    behind = await s.begin(owner=ELSEWHERE, seconds=-3600)
    await s.append(behind, b"2")
    [renewed] = s.renew(behind)
    assert (renewed.owner, renewed.fence) == (behind.owner, behind.fence)
    assert renewed.expires_at > behind.expires_at
    assert renewed == (await s.info()).lease
    with fails(RunBusy):
        await s.claim()

    s.renew(behind, seconds=0.3)
    with within("the run is still busy"):
        while True:
            if await s.find(RunQuery(resumable=True)) == ["r"]:
                break
            await anyio.sleep(0.01)
    taken = await s.claim()
    await s.check_lost(behind)
    await s.append(taken, b"3", after=2)
    assert await s.bodies() == [b"1", b"2", b"3"]


async def a_renewal_can_shorten_a_lease(s: Journal) -> None:
    """It counts from now, even if the lease then ends earlier, as the clock of its owner was fast."""
    ahead = await s.begin(owner=ELSEWHERE, seconds=10**8)
    with fails(RunBusy) as caught:
        await s.claim()
    assert caught.exception.expires_in > 10**7

    [renewed] = s.renew(ahead)
    assert renewed.expires_at < ahead.expires_at
    with fails(RunBusy) as caught:
        await s.claim()
    assert 0 < caught.exception.expires_in <= 60
    await s.claim(owner=ELSEWHERE, seconds=0)
    await s.claim()


async def one_renewal_extends_many_leases(s: Journal) -> None:
    """It leaves out those that are not current any more."""
    leases = [await s.begin(f"r{number}", seconds=0) for number in range(5)]
    await s.claim("r1")
    await s.store.release(leases[3])
    await s.store.delete("r4")
    renewed = s.renew(*leases)

    assert [lease.run_id for lease in renewed] == ["r0", "r2"]
    for lease in renewed:
        with fails(RunBusy):
            await s.claim(lease.run_id)
        await s.append(lease, b"2")
    assert s.renew() == []


async def a_concurrent_renewal_never_undoes_a_takeover(s: Journal) -> None:
    for number in range(10):
        stale = await s.begin(f"r{number}", seconds=0)
        renewing, until = threading.Event(), time.monotonic() + _check.PATIENCE

        def is_lost(
            stale: Lease = stale, renewing: threading.Event = renewing, until: float = until
        ) -> bool:
            while time.monotonic() < until:
                if not s.store.renew([stale], seconds=0):
                    return True
                renewing.set()
                # Another thread may wait for the same lock.
                time.sleep(0.001)
            return False

        renewals = in_thread(is_lost)
        assert renewing.wait(timeout=_check.PATIENCE), "no renewal has succeeded"
        taken = await s.claim(f"r{number}")
        assert result_of(renewals), "a lease is renewed although another owner has claimed the run"
        await s.append(taken, b"2")


async def a_lease_may_last_for_ever(s: Journal) -> None:
    seconds = timedelta.max.total_seconds()
    lease = await s.begin(seconds=seconds)
    assert len(s.renew(lease, seconds=seconds)) == 1
    with fails(RunBusy):
        await s.claim()
    await s.append(lease, b"2", release=True)
    await s.claim(seconds=seconds)


async def the_holder_of_a_run_can_delete_it(s: Journal) -> None:
    """So no other process can claim the run between its last append and the deletion.

    A stale owner cannot restore it, nor write to a new run with the same id.
    """
    for is_held in (True, False):
        lease = await s.begin()
        with fails(RunBusy):
            await s.store.delete("r")
        if not is_held:
            await s.store.release(lease)
        await s.store.delete("r", lease=lease if is_held else None)
        assert (await s.store.find(), await s.bodies()) == ([], [])
        await s.check_lost(lease)

        await s.create()
        await s.check_lost(lease)
        new = await s.claim()
        await s.check_lost(lease)
        await s.store.delete("r", lease=new)


async def runs_that_are_as_they_were_are_deleted_together(s: Journal) -> None:
    """Those that have changed meanwhile, that someone holds, or that are gone, are skipped."""
    for run_id in ("free", "grown", "held", "gone", "other"):
        await s.create(run_id)
    grown, held = await s.claim("grown"), await s.claim("held")
    # It was known while it was held, and is free now.
    known = [one for one in await s.store.find() if one.run_id != "other"]
    await s.append(grown, b"2", release=True)
    await s.store.delete("gone")
    assert await s.store.delete_unchanged(known) == ["free"]
    assert {one.run_id for one in await s.store.find()} == {"grown", "held", "other"}
    assert await s.bodies("free") == []
    await s.append(held, b"2")
    assert await s.store.delete_unchanged([]) == []
