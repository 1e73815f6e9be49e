"""Check how a store is opened, closed and opened again, also over the data of another one."""

from __future__ import annotations

import anyio

from effectflow.checkpoint.errors import LeaseLost, RunBusy, StoreUnavailable
from effectflow.checkpoint.store import CheckpointStore, RunStatus
from effectflow.testing.store_conformance._check import (
    JOURNAL,
    MakeStore,
    appended,
    at_once,
    begun,
    bodies_of,
    claimed,
    fails,
    info_of,
    renew,
    summary_of,
)


@JOURNAL.check_reopening
async def runs_survive_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await begun(first, "r", b"1", b"2")
        cut = await begun(first, "cut", b"1", b"2", b"3")
        await first.truncate(cut, after=2, summary=summary_of(RunStatus.FAILED))
        await first.release(cut)
        before = await first.find()
    async with make() as second:
        assert await second.find() == before
        assert await bodies_of(second) == await bodies_of(second, "cut") == [b"1", b"2"]
        with fails(RunBusy):
            await claimed(second)
        await appended(second, await claimed(second, "cut"), b"3 again", after=2)
        assert await bodies_of(second, "cut") == [b"1", b"2", b"3 again"]
        await second.release(lease)
        assert (await claimed(second)).fence > lease.fence


@JOURNAL.check_reopening
async def stores_on_the_same_data_respect_the_same_leases(make: MakeStore) -> None:
    async with make() as one, make() as other:
        lease = await begun(one)
        assert await bodies_of(other) == [b"1"]
        with fails(RunBusy):
            await claimed(other)
        await one.release(lease)
        taken = await claimed(other)
        with fails(LeaseLost):
            await appended(one, lease, b"x")
        await appended(other, taken, b"2")
        assert await bodies_of(one) == [b"1", b"2"]


@JOURNAL.check
async def a_reentered_store_closes_at_the_last_exit(store: CheckpointStore) -> None:
    async with store as again:
        lease = await begun(again)
    await appended(store, lease, b"2")
    try:
        async with store, store:
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert await bodies_of(store) == [b"1", b"2"]


@JOURNAL.check_reopening
async def concurrent_tasks_wait_until_the_store_is_open(make: MakeStore) -> None:
    """Tasks that enter while it closes wait, and open it again."""
    store = make()

    async def use(number: int) -> None:
        async with store:
            assert await store.read("unknown") == []
            await anyio.sleep(number * 0.001)
        async with store:
            assert await store.read("unknown") == []

    for _ in range(3):
        await at_once(use, range(8))
    with fails(StoreUnavailable):
        await store.read("unknown")


@JOURNAL.check_reopening
async def a_closed_store_can_be_opened_again(make: MakeStore) -> None:
    store = make()
    async with store:
        lease = await begun(store)
    async with store:
        [renewed] = renew(store, lease)
        await appended(store, renewed, b"2")
        assert (await info_of(store)).length == 2


@JOURNAL.check_reopening
async def using_a_store_that_is_not_open_raises(make: MakeStore) -> None:
    closed, unopened = make(), make()
    async with closed:
        pass
    for store in (closed, unopened):
        with fails(StoreUnavailable) as caught:
            await store.read("r")
        assert "open" in str(caught.error), caught.error
