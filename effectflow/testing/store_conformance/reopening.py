"""Stores that are closed, and opened again."""

from __future__ import annotations

from typing import Any

from effectflow.checkpoint import (
    LeaseLost,
    RunBusy,
)
from effectflow.testing.store_conformance.check import (
    MakeStore,
    bodies_of,
    check_reopening,
    claimed,
    fails,
    summary_of,
)


@check_reopening
async def what_was_appended_is_there_after_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await claimed(first)
        await first.append(lease, [b"1", b"2"], after=0, summary=summary_of())
        await first.release(lease)
    async with make() as second:
        assert await bodies_of(second) == [b"1", b"2"]
        assert (await claimed(second)).fence == lease.fence + 1


@check_reopening
async def two_stores_over_the_same_data_see_and_fence_one_another(make: MakeStore) -> None:
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


@check_reopening
async def a_store_that_is_not_open_says_so(make: MakeStore) -> None:
    for use in (_use_closed, _use_unopened):
        try:
            await use(make)
        except Exception as error:
            assert "open" in str(error), error  # noqa: PT017, there is no pytest here
        else:
            raise AssertionError("a store that is not open was used")


async def _use_unopened(make: MakeStore) -> Any:
    return await make().read("r")


async def _use_closed(make: MakeStore) -> Any:
    store = make()
    async with store:
        pass
    return await store.read("r")
