"""Who may write to a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    Owner,
    RunBusy,
    RunQuery,
)
from effectflow.testing.store_conformance.check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
)


@check
async def a_stale_owner_is_fenced(store: CheckpointStore) -> None:
    old = await claimed(store, seconds=0)
    await store.append(old, [b"1"], after=0, summary=summary_of())
    new = await claimed(store)

    assert new.fence > old.fence
    with fails(LeaseLost):
        await store.append(old, [b"x"], after=1)
    with fails(LeaseLost):
        await store.renew(old, seconds=60)
    await store.release(old)
    await store.append(new, [b"2"], after=1)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def an_expired_lease_that_nobody_took_still_writes(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    await store.renew(lease, seconds=60)

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
async def an_owner_may_claim_what_it_holds(store: CheckpointStore) -> None:
    """As it does when it does not know whether its first claim got through."""
    owner = str(Owner.new())
    first = await store.claim("r", owner=owner, seconds=60)
    second = await store.claim("r", owner=owner, seconds=60)

    assert second.fence > first.fence
    with fails(LeaseLost):
        await store.append(first, [b"x"], after=0, summary=summary_of())
    with fails(LeaseLost):
        await store.renew(first, seconds=60)
    await store.release(first)
    await store.append(second, [b"1"], after=0, summary=summary_of())


@check
async def renewal_moves_the_expiry(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    renewed = await store.renew(lease, seconds=60)

    assert renewed.expires_at > lease.expires_at
    with fails(RunBusy):
        await claimed(store)


@check
async def a_lease_that_has_expired_is_free(store: CheckpointStore) -> None:
    """Also that of an owner of another host, of which nobody here can tell whether it lives."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    await store.claim("r", owner=elsewhere, seconds=0.3)
    with fails(RunBusy):
        await claimed(store)

    await anyio.sleep(0.4)
    await claimed(store)


@check
async def a_lease_that_a_clock_far_behind_has_set_is_free_and_fenced(
    store: CheckpointStore,
) -> None:
    """Its owner, by whose clock it holds, may write until somebody takes the run, and not after."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    behind = await store.claim("r", owner=elsewhere, seconds=-3600)
    await store.append(behind, [b"1"], after=0, summary=summary_of())
    assert [info.run_id for info in await store.find(RunQuery(resumable=True))] == ["r"]

    taken = await claimed(store)
    with fails(LeaseLost):
        await store.append(behind, [b"x"], after=1)
    with fails(LeaseLost):
        await store.renew(behind, seconds=3600)
    await store.release(behind)
    await store.append(taken, [b"2"], after=1)
    with fails(RunBusy):
        await claimed(store)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def a_lease_that_a_clock_far_ahead_has_set_ends_when_its_owner_says_so(
    store: CheckpointStore,
) -> None:
    """A renewal counts from now, also if that is earlier."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    ahead = await store.claim("r", owner=elsewhere, seconds=10**8)
    await store.append(ahead, [b"1"], after=0, summary=summary_of())
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.expires_in > 10**7

    renewed = await store.renew(ahead, seconds=60)
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
    """Runs whose leases name a process, which is killed in the end."""
    script = "from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); input()"
    child = subprocess.Popen(  # noqa: ASYNC220, for no time worth speaking of
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
