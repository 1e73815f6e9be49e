"""Check how a store is opened, closed and opened again, also over the data of another one."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from effectflow.checkpoint.errors import RunBusy, StoreUnavailable
from effectflow.testing.store_conformance._check import (
    FAILED,
    Journal,
    at_once,
    fails,
)


async def runs_survive_reopening(make: Callable[[], Journal]) -> None:
    """Of the same store, and of another one over the same data."""
    first = make()
    async with first as s:
        lease = await s.begin("r", b"1", b"2")
        cut = await s.begin("cut", b"1", b"2", b"3")
        await s.store.truncate(cut, after=2, summary=FAILED)
        before = await s.store.find()
    for opened in (first, make()):
        async with opened as s:
            assert await s.store.find() == before
            assert await s.bodies() == await s.bodies("cut") == [b"1", b"2"]
            with fails(RunBusy):
                await s.claim()
            assert len(s.renew(lease, cut)) == 2
            before = await s.store.find()
    async with make() as s:
        await s.append(cut, b"3 again", after=2)
        await s.store.release(lease)
        assert (await s.claim()).fence > lease.fence


async def stores_on_the_same_data_respect_the_same_leases(make: Callable[[], Journal]) -> None:
    async with make() as one, make() as other:
        lease = await one.begin()
        assert await other.bodies() == [b"1"]
        with fails(RunBusy):
            await other.claim()
        await one.store.release(lease)
        taken = await other.claim()
        await one.check_lost(lease)
        await other.append(taken, b"2")
        assert await one.bodies() == [b"1", b"2"]


async def a_reentered_store_closes_at_the_last_exit(s: Journal) -> None:
    async with s.store as again:
        assert again is s.store
    try:
        async with s, s:
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    await s.create()
    assert await s.bodies() == [b"1"]


async def concurrent_tasks_wait_until_the_store_is_open(make: Callable[[], Journal]) -> None:
    """Tasks that enter while it closes wait, and open it again."""
    store = make().store

    async def use(number: int) -> None:
        for seconds in (number * 0.001, 0):
            async with store:
                assert await store.read("unknown") == []
                await anyio.sleep(seconds)

    for _ in range(3):
        await at_once(use, range(8))
    for closed in (store, make().store):
        with fails(StoreUnavailable) as caught:
            await closed.read("unknown")
        assert "open" in str(caught.error), caught.error
