"""Append to a run, and read it."""

from __future__ import annotations

import time

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    RunNotFound,
    RunStatus,
)
from effectflow.testing.store_conformance._check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
    written,
)


@check
async def the_caller_owns_the_list_that_it_reads(store: CheckpointStore) -> None:
    await written(store, "r", b"1", b"2")

    (await store.read("r")).clear()

    assert await bodies_of(store) == [b"1", b"2"]


@check
async def records_are_read_in_order(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1", b"2"], after=0, summary=summary_of())
    await store.append(lease, [b"3"], after=2)

    records = await store.read("r")
    assert [(one.sequence, one.body) for one in records] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert [one.body for one in await store.read("r", after=2)] == [b"3"]
    assert await store.read("r", after=3) == []
    assert all(abs(one.written_at - time.time()) < 60 for one in records)


@check
async def an_unknown_run_has_no_records(store: CheckpointStore) -> None:
    assert await store.read("unknown") == []
    assert await store.info("unknown") is None
    with fails(RunNotFound):
        await store.delete("unknown")


@check
async def a_claim_does_not_create_a_run(store: CheckpointStore) -> None:
    await claimed(store)

    assert await store.info("r") is None
    assert await store.find() == []


@check
async def the_first_append_needs_a_summary(store: CheckpointStore) -> None:
    lease = await claimed(store)
    with fails(ValueError):
        await store.append(lease, [b"1"], after=0)

    assert await store.read("r") == []
    await store.append(lease, [b"1"], after=0, summary=summary_of())


@check
async def an_append_at_the_wrong_position_writes_nothing(
    store: CheckpointStore,
) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary_of())

    for after in (0, 2):
        with fails(LeaseLost):
            await store.append(
                lease, [b"x", b"y"], after=after, summary=summary_of(RunStatus.FAILED)
            )

    info = await store.info("r")
    assert info is not None
    assert (info.length, info.summary) == (1, summary_of())
    assert await bodies_of(store) == [b"1"]


@check
async def an_append_can_replace_the_summary_and_release_the_lease(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    done = summary_of(RunStatus.COMPLETED)
    await store.append(lease, [b"2"], after=1, summary=done, release=True)

    info = await store.info("r")
    assert info is not None
    assert info.summary == done
    assert info.lease is None
    assert info.length == 2
    await claimed(store)


@check
async def an_append_without_records_can_change_the_summary(store: CheckpointStore) -> None:
    lease = await claimed(store)
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    await store.append(lease, [], after=1, summary=summary_of(RunStatus.INTERRUPTED), release=True)

    info = await store.info("r")
    assert info is not None
    assert (info.summary.status, info.length) == (RunStatus.INTERRUPTED, 1)


@check
async def large_and_unusual_bytes_survive(store: CheckpointStore) -> None:
    large = bytes(range(256)) * 40_000
    # Deeper than some JSON libraries support.
    deep = [b'{"a":' + b"[" * depth + b"]" * depth + b"}\nx" for depth in (*range(245, 260), 5000)]
    odd = [b"", b"\n", b"\0", b'{"a":1e5}\nx', b'{"a":1,"a":1}\nx', *deep, large]
    lease = await claimed(store)
    await store.append(lease, odd, after=0, summary=summary_of())

    assert await bodies_of(store) == odd


@check
async def a_long_journal_is_read_completely(store: CheckpointStore) -> None:
    lease = await claimed(store)
    written = [str(number).encode() for number in range(2000)]
    await store.append(lease, written[:1], after=0, summary=summary_of())
    await store.append(lease, written[1:], after=1)

    assert await bodies_of(store) == written
