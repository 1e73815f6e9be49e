"""Check appends and reads: in order, concurrently, and after the store is opened again."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    StoreUnavailable,
)
from effectflow.testing.store_conformance._check import (
    PATIENCE,
    MakeStore,
    at_once,
    begun,
    bodies_of,
    check,
    check_reopening,
    claimed,
    fails,
    found,
    info_of,
    renew,
    summary_of,
    within,
    written,
)


@check
async def the_caller_owns_the_list_that_it_reads(store: CheckpointStore) -> None:
    await written(store, "r", b"1", b"2")

    (await store.read("r")).clear()

    assert await bodies_of(store) == [b"1", b"2"]


@check
async def records_are_read_in_order(store: CheckpointStore) -> None:
    lease = await begun(store, "r", b"1", b"2")
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
async def an_append_at_the_wrong_position_writes_nothing(store: CheckpointStore) -> None:
    lease = await begun(store)

    for after in (0, 2):
        with fails(LeaseLost):
            await store.append(
                lease, [b"x", b"y"], after=after, summary=summary_of(RunStatus.FAILED)
            )

    info = await info_of(store)
    assert (info.length, info.summary) == (1, summary_of())
    assert await bodies_of(store) == [b"1"]


@check
async def an_append_can_replace_the_summary_and_release_the_lease(store: CheckpointStore) -> None:
    lease = await begun(store)
    done = summary_of(RunStatus.COMPLETED)
    await store.append(lease, [b"2"], after=1, summary=done, release=True)

    info = await info_of(store)
    assert info.summary == done
    assert info.lease is None
    assert info.length == 2
    await claimed(store)


@check
async def an_append_without_records_can_change_the_summary(store: CheckpointStore) -> None:
    lease = await begun(store)
    await store.append(lease, [], after=1, summary=summary_of(RunStatus.INTERRUPTED), release=True)

    info = await info_of(store)
    assert (info.summary.status, info.length) == (RunStatus.INTERRUPTED, 1)


@check
async def large_and_unusual_bytes_survive(store: CheckpointStore) -> None:
    large = bytes(range(256)) * 40_000
    # Deeper than some JSON libraries support.
    deep = [b'{"a":' + b"[" * depth + b"]" * depth + b"}\nx" for depth in (*range(245, 260), 5000)]
    odd = [b"", b"\n", b"\0", b'{"a":1e5}\nx', b'{"a":1,"a":1}\nx', *deep, large]
    await begun(store, "r", *odd)

    assert await bodies_of(store) == odd


@check
async def a_long_journal_is_read_completely(store: CheckpointStore) -> None:
    lease = await claimed(store)
    written = [str(number).encode() for number in range(2000)]
    await store.append(lease, written[:1], after=0, summary=summary_of())
    await store.append(lease, written[1:], after=1)

    assert await bodies_of(store) == written


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

    with within(PATIENCE, "the last append is not read"):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
            await write()

    assert all(length % 2 == 0 for length in lengths)


@check
async def two_hundred_runs_can_be_written_concurrently(store: CheckpointStore) -> None:
    async def drive(run_id: str) -> None:
        lease = await begun(store, run_id, b"0")
        for number in range(1, 3):
            await store.append(lease, [str(number).encode()], after=number)
        await store.release(lease)

    await at_once(drive, [f"r{number}" for number in range(200)])

    for number in range(200):
        assert await bodies_of(store, f"r{number}") == [b"0", b"1", b"2"]


@check
async def a_rejected_append_does_not_affect_concurrent_ones(store: CheckpointStore) -> None:
    """A store may commit all of them together."""

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

    await at_once(drive, range(60))

    assert set(await found(store)) == {f"r{number}" for number in range(0, 60, 3)}


@check
async def one_of_many_concurrent_claims_wins(store: CheckpointStore) -> None:
    outcomes: list[str] = []

    async def try_to_claim(_: int) -> None:
        try:
            await claimed(store)
            outcomes.append("won")
        except RunBusy:
            outcomes.append("busy")

    await at_once(try_to_claim, range(50))

    assert (outcomes.count("won"), outcomes.count("busy")) == (1, 49)


@check
async def one_of_many_concurrent_appends_wins(store: CheckpointStore) -> None:
    lease = await begun(store, "r", b"0")
    won: list[bytes] = []

    async def append(body: bytes) -> None:
        try:
            await store.append(lease, [body], after=1)
            won.append(body)
        except LeaseLost:
            pass

    await at_once(append, [str(number).encode() for number in range(50)])

    assert await bodies_of(store) == [b"0", *won]
    assert len(won) == 1


@check
async def a_truncation_removes_the_last_records_and_replaces_the_summary(
    store: CheckpointStore,
) -> None:
    await written(store, "other", b"1", b"2")
    lease = await begun(store, "r", b"1", b"2")
    await store.append(lease, [b"3", b"4"], after=2, summary=summary_of(RunStatus.COMPLETED))
    before = await store.read("r")
    new = replace(summary_of(RunStatus.INTERRUPTED, workflow="new"), dead_letters=1)
    await store.truncate(lease, after=2, summary=new)

    assert await store.read("r") == before[:2]
    info = await info_of(store)
    assert info.summary == new
    assert (info.length, info.updated_at) == (2, before[1].written_at)
    assert info.lease is not None
    assert await found(store, RunQuery(workflow="new")) == ["r"]
    assert await bodies_of(store, "other") == [b"1", b"2"]

    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=4)
    await store.append(lease, [b"3 again"], after=2)
    assert await bodies_of(store) == [b"1", b"2", b"3 again"]
    renew(store, lease, seconds=60)


@check
async def a_truncation_at_the_end_only_replaces_the_summary(store: CheckpointStore) -> None:
    lease = await begun(store, "r", b"1", b"2")
    for _ in range(2):
        await store.truncate(lease, after=2, summary=summary_of(RunStatus.FAILED))

    assert await bodies_of(store) == [b"1", b"2"]
    assert (await info_of(store)).summary.status is RunStatus.FAILED


@check
async def a_truncation_needs_the_lease_and_an_existing_record(store: CheckpointStore) -> None:
    stale = await begun(store, "r", b"1", b"2", seconds=0)
    lease = await claimed(store)
    done = summary_of(RunStatus.COMPLETED)

    with fails(LeaseLost) as caught:
        await store.truncate(stale, after=1, summary=done)
    assert caught.error.owner == lease.owner
    with fails(LeaseLost):
        await store.truncate(lease, after=3, summary=done)
    with fails(ValueError):
        await store.truncate(lease, after=0, summary=done)
    await store.release(lease)
    with fails(LeaseLost):
        await store.truncate(lease, after=1, summary=done)
    unknown = await claimed(store, "unknown")
    with fails(LeaseLost):
        await store.truncate(unknown, after=1, summary=done)
    assert await bodies_of(store) == [b"1", b"2"]
    assert (await info_of(store)).summary == summary_of()
    assert await store.info("unknown") is None


@check
async def a_long_journal_can_be_truncated_anywhere(store: CheckpointStore) -> None:
    bodies = [str(number).encode() for number in range(1100)]
    lease = await begun(store, "r", *bodies[:10])
    for after in range(10, 1100, 109):
        await store.append(lease, bodies[after : after + 109], after=after)
    for after in (1005, 800, 500, 101, 100, 99, 1):
        await store.truncate(lease, after=after, summary=summary_of())
        assert await bodies_of(store) == bodies[:after]
        await store.append(lease, bodies[after : after + 3], after=after)
        assert await bodies_of(store) == bodies[: after + 3]


@check
async def a_cancelled_append_is_not_written_after_the_next_claim(store: CheckpointStore) -> None:
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


@check_reopening
async def records_survive_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await begun(first, "r", b"1", b"2")
        await first.release(lease)
    async with make() as second:
        assert await bodies_of(second) == [b"1", b"2"]
        assert (await claimed(second)).fence > lease.fence


@check_reopening
async def a_truncated_run_survives_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await begun(first, "r", b"1", b"2", b"3")
        await first.truncate(lease, after=2, summary=summary_of(RunStatus.FAILED))
        await first.release(lease)
    async with make() as second:
        assert await bodies_of(second) == [b"1", b"2"]
        assert (await info_of(second)).summary.status is RunStatus.FAILED
        await second.append(await claimed(second), [b"3 again"], after=2)
        assert await bodies_of(second) == [b"1", b"2", b"3 again"]


@check_reopening
async def stores_on_the_same_data_respect_the_same_leases(make: MakeStore) -> None:
    async with make() as one, make() as other:
        lease = await begun(one)
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
async def a_reentered_store_closes_at_the_last_exit(store: CheckpointStore) -> None:
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


@check_reopening
async def a_closed_store_can_be_opened_again(make: MakeStore) -> None:
    store = make()
    async with store:
        lease = await begun(store)
    async with store:
        renewed = renew(store, lease, seconds=60)
        await store.append(renewed, [b"2"], after=1)
        assert await bodies_of(store) == [b"1", b"2"]


@check_reopening
async def using_a_store_that_is_not_open_raises(make: MakeStore) -> None:
    closed, unopened = make(), make()
    async with closed:
        pass
    for store in (closed, unopened):
        try:
            await store.read("r")
        except Exception as error:
            assert "open" in str(error), error  # noqa: PT017, pytest may not be installed
        else:
            raise AssertionError("a store that is not open did not raise")
