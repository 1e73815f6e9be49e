"""Many concurrent calls."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    Owner,
    RunBusy,
)
from effectflow.testing.store_conformance._check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
)


@check
async def a_reader_sees_whole_appends(store: CheckpointStore) -> None:
    """Each append has two records, and no read returns just one of them."""
    lengths: list[int] = []

    async def write() -> None:
        lease = await claimed(store)
        for number in range(50):
            summary = summary_of() if number == 0 else None
            await store.append(lease, [b"a", b"b"], after=number * 2, summary=summary)

    async def read() -> None:
        while not lengths or lengths[-1] < 100:
            lengths.append(len(await store.read("r")))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(read)
        await write()

    assert all(length % 2 == 0 for length in lengths)


@check
async def two_hundred_runs_are_written_at_once(store: CheckpointStore) -> None:
    async def drive(run_id: str) -> None:
        lease = await claimed(store, run_id)
        await store.append(lease, [b"0"], after=0, summary=summary_of())
        for number in range(1, 5):
            await store.append(lease, [str(number).encode()], after=number)
        await store.release(lease)

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(drive, f"r{number}")

    for number in range(200):
        assert await bodies_of(store, f"r{number}") == [b"0", b"1", b"2", b"3", b"4"]


@check
async def a_refused_append_does_not_affect_concurrent_ones(store: CheckpointStore) -> None:
    """They may be part of the same commit."""

    async def drive(number: int) -> None:
        lease = await claimed(store, f"r{number}")
        if number % 3 == 0:
            await store.append(lease, [b"1"], after=0, summary=summary_of())
        elif number % 3 == 1:
            with fails(LeaseLost):
                await store.append(lease, [b"1"], after=5, summary=summary_of())
        else:
            with fails(ValueError):
                await store.append(lease, [b"1"], after=0)

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(drive, number)

    found = {info.run_id for info in await store.find()}
    assert found == {f"r{number}" for number in range(0, 60, 3)}


@check
async def one_of_many_concurrent_claims_wins(store: CheckpointStore) -> None:
    outcomes: list[str] = []

    async def try_to_claim() -> None:
        try:
            await claimed(store)
            outcomes.append("won")
        except RunBusy:
            outcomes.append("busy")

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(try_to_claim)

    assert (outcomes.count("won"), outcomes.count("busy")) == (1, 49)


@check
async def one_of_many_concurrent_appends_wins(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"0"], after=0, summary=summary_of())
    won: list[bytes] = []

    async def append(body: bytes) -> None:
        try:
            await store.append(lease, [body], after=1)
            won.append(body)
        except LeaseLost:
            pass

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(append, str(number).encode())

    assert await bodies_of(store) == [b"0", *won]
    assert len(won) == 1


@check
async def a_cancelled_append_is_settled_by_the_next_claim(
    store: CheckpointStore,
) -> None:
    owner = str(Owner.new())
    lease = await store.claim("r", owner=owner, seconds=60)
    await store.append(lease, [b"first"], after=0, summary=summary_of())
    for number in range(40):
        length = len(await store.read("r"))
        with anyio.move_on_after(number * 0.0001):
            await store.append(lease, [b"%d" % number], after=length)
        lease = await store.claim("r", owner=owner, seconds=60)
        settled = await bodies_of(store)
        await anyio.sleep(0.002)
        assert await bodies_of(store) == settled
        assert settled[length:] in ([], [b"%d" % number])
