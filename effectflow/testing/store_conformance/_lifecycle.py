"""Enter, leave and reopen a store."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from effectflow.checkpoint import CheckpointStore, LeaseLost, RunBusy, StoreUnavailable
from effectflow.testing.store_conformance._check import (
    MakeStore,
    bodies_of,
    check,
    check_reopening,
    claimed,
    fails,
    summary_of,
)


@check_reopening
async def records_survive_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await claimed(first)
        await first.append(lease, [b"1", b"2"], after=0, summary=summary_of())
        await first.release(lease)
    async with make() as second:
        assert await bodies_of(second) == [b"1", b"2"]
        assert (await claimed(second)).fence > lease.fence


@check_reopening
async def two_stores_on_the_same_data_fence_each_other(make: MakeStore) -> None:
    async with make() as one, make() as other:
        lease = await claimed(one)
        await one.append(lease, [b"1"], after=0, summary=summary_of())
        assert await bodies_of(other) == [b"1"]
        with fails(RunBusy):
            await claimed(other)
        await one.release(lease)
        taken = await claimed(other)
        with fails(LeaseLost):
            await one.append(lease, [b"x"], after=1)
        await other.append(taken, [b"2"], after=1)
        assert await bodies_of(one) == [b"1", b"2"]


@check
async def a_store_entered_again_closes_at_the_last_exit(store: CheckpointStore) -> None:
    async with store as again:
        lease = await claimed(again)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    try:
        async with store, store:
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert await bodies_of(store) == [b"1"]


@check_reopening
async def tasks_that_enter_at_once_wait_until_the_store_is_open(make: MakeStore) -> None:
    """And those that enter while it is closed wait, and open it again."""
    store = make()

    async def use(number: int) -> None:
        async with store:
            assert await store.read("unknown") == []
            await anyio.sleep(number * 0.001)
        async with store:
            assert await store.read("unknown") == []

    for _ in range(3):
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(use, number)
    with fails(StoreUnavailable):
        await store.read("unknown")


@check_reopening
async def a_closed_store_can_be_opened_again(make: MakeStore) -> None:
    store = make()
    async with store:
        lease = await claimed(store)
        await store.append(lease, [b"1"], after=0, summary=summary_of())
    async with store:
        renewed = await anyio.to_thread.run_sync(partial(store.renew, lease, seconds=60))
        await store.append(renewed, [b"2"], after=1)
        assert await bodies_of(store) == [b"1", b"2"]


@check_reopening
async def a_store_that_is_not_open_raises(make: MakeStore) -> None:
    for use in (_use_closed, _use_unopened):
        try:
            await use(make)
        except Exception as error:
            assert "open" in str(error), error  # noqa: PT017, pytest may not be installed
        else:
            raise AssertionError("a store that is not open was used")


async def _use_unopened(make: MakeStore) -> Any:
    return await make().read("r")


async def _use_closed(make: MakeStore) -> Any:
    store = make()
    async with store:
        pass
    return await store.read("r")
