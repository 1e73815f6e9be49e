"""Check how runs are created, how records are appended and read, and how a journal is truncated."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint.errors import LeaseLost, RunBusy
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import (
    Batch,
    CheckpointStore,
    RunDetails,
    RunQuery,
    RunStatus,
    find_run,
)
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    JOURNAL,
    appended,
    at_once,
    begun,
    bodies_of,
    claimed,
    created,
    fails,
    found,
    info_of,
    renew,
    summary_of,
    within,
)

# Creating runs.


@JOURNAL.check
async def a_created_run_is_free(store: CheckpointStore) -> None:
    summary = replace(summary_of(RunStatus.PENDING), due_at=1234.5678, priority=-3)
    info = await store.create("r", [b"1", b"2"], summary=summary)

    assert info is not None
    assert info == await find_run(store, "r")
    assert (info.run_id, info.summary, info.length, info.lease) == ("r", summary, 2, None)
    assert abs(info.updated_at - time.time()) < 60
    assert await bodies_of(store) == [b"1", b"2"]
    await appended(store, await claimed(store), b"3", after=2)
    assert await bodies_of(store) == [b"1", b"2", b"3"]


@JOURNAL.check
async def a_run_is_created_with_its_lease(store: CheckpointStore) -> None:
    owner = str(Owner.new())
    info = await store.create("r", [b"1"], summary=summary_of(), owner=owner, seconds=60)

    assert info is not None
    assert info == await find_run(store, "r")
    assert info.lease is not None
    assert (info.lease.run_id, info.lease.owner) == ("r", owner)
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.owner == owner
    assert 0 < caught.error.expires_in <= 60
    await appended(store, info.lease, b"2")
    [renewed] = renew(store, info.lease)
    await store.release(renewed)
    assert (await claimed(store)).fence > info.lease.fence


@JOURNAL.check
async def an_existing_run_is_not_created_again(store: CheckpointStore) -> None:
    """Whether it is held, is free, or has ended, and with an owner or without one."""
    held = await begun(store, "held")
    await created(store, "free")
    await created(store, "ended", summary=summary_of(RunStatus.COMPLETED))
    before = await store.find()

    for run_id in ("held", "free", "ended"):
        for owner in ("", str(Owner.new()), held.owner):
            other = summary_of(RunStatus.PENDING, workflow="other")
            again = await store.create(run_id, [b"x"], summary=other, owner=owner, seconds=60)
            assert again is None, run_id
            assert await bodies_of(store, run_id) == [b"1"]
    assert await store.find() == before
    await appended(store, held, b"2")


@JOURNAL.check_of_two
async def one_of_many_concurrent_creations_wins(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    won: list[tuple[bytes, Lease]] = []

    async def create(number: int) -> None:
        body, chosen = b"%d" % number, store if number % 2 else other
        owner = str(Owner.new())
        info = await chosen.create("r", [body], summary=summary_of(), owner=owner, seconds=60)
        if info is not None:
            assert info.lease is not None
            won.append((body, info.lease))

    await at_once(create, range(30))

    [(body, lease)] = won
    assert await bodies_of(store) == [body]
    assert (await info_of(store)).lease == lease


@JOURNAL.check
async def a_run_without_records_is_not_created(store: CheckpointStore) -> None:
    """It would be in the way of all others, as nothing can be said about it."""
    with fails(ValueError):
        await store.create("r", [], summary=summary_of(), owner=str(Owner.new()), seconds=60)

    assert await store.find() == []
    await created(store)


@JOURNAL.check_of_two
async def a_summary_is_returned_as_it_was_written(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    details = RunDetails(
        kind="iterative",
        version="2.1",
        dead_letters=5,
        waits_for="signal 'ünïcödé-🎈'\nuntil noon",
        blocked="a step is \"missing\"; build '2'",
    )
    full = replace(
        summary_of(RunStatus.SUSPENDED, created_at=1.25, parent="a/b: *?[x]%_", tenant="'é'"),
        due_at=1767225600.123456,
        priority=-7,
        details=details,
    )
    bare = summary_of(RunStatus.PENDING)
    await created(store, "free", summary=full)
    lease = await begun(store, summary=full)
    for summary in (bare, full):
        await appended(store, lease, summary=summary)
        assert (await info_of(other)).summary == summary
        cut = replace(summary, details=replace(details, dead_letters=6))
        await store.truncate(lease, after=1, summary=cut)
        assert (await info_of(other)).summary == cut
    assert {info.run_id: info.summary for info in await other.find()} == {"free": full, "r": cut}


# Reading.


@JOURNAL.check
async def records_are_read_in_order(store: CheckpointStore) -> None:
    await appended(store, await begun(store, "r", b"1", b"2"), b"3", after=2)

    records = await store.read("r")
    assert [(one.sequence, one.body) for one in records] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert await store.read("r", after=2) == records[2:]
    assert await store.read("r", after=3) == []
    assert all(abs(one.written_at - time.time()) < 60 for one in records)
    assert (await info_of(store)).updated_at == records[-1].written_at


@JOURNAL.check
async def the_caller_owns_the_list_that_it_reads(store: CheckpointStore) -> None:
    await created(store, "r", b"1", b"2")
    (await store.read("r")).clear()

    assert await bodies_of(store) == [b"1", b"2"]


@JOURNAL.check
async def an_unknown_run_has_no_records(store: CheckpointStore) -> None:
    assert await store.read("unknown") == []
    assert await find_run(store, "unknown") is None


@JOURNAL.check
async def what_is_left_of_an_intact_run_are_its_records(store: CheckpointStore) -> None:
    await created(store, "r", b"1", b"2")
    remains = await store.salvage("r")

    assert remains.records == await store.read("r")
    assert not remains.unreadable
    assert await store.damaged_runs() == []


@JOURNAL.check
async def large_and_unusual_bytes_survive(store: CheckpointStore) -> None:
    large = bytes(range(256)) * 40_000
    # Deeper than some JSON libraries support.
    deep = [b'{"a":' + b"[" * depth + b"]" * depth + b"}\nx" for depth in (*range(245, 260), 5000)]
    odd = [b"", b"\n", b"\0", b'{"a":1e5}\nx', b'{"a":1,"a":1}\nx', *deep, large]
    await appended(store, await begun(store, "r", *odd), *odd, after=len(odd))

    assert await bodies_of(store) == odd * 2


@JOURNAL.check
async def a_long_journal_is_read_completely(store: CheckpointStore) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    await appended(store, await begun(store, "r", *bodies[:1]), *bodies[1:])

    assert await bodies_of(store) == bodies


@JOURNAL.check
async def a_reader_sees_whole_appends(store: CheckpointStore) -> None:
    """Each append has two records, and no read returns just one of them."""
    lengths: list[int] = []

    async def write() -> None:
        lease = await begun(store, "r", b"a", b"b")
        for number in range(1, 50):
            await appended(store, lease, b"a", b"b", after=number * 2)

    async def read() -> None:
        while not lengths or lengths[-1] < 100:
            lengths.append(len(await store.read("r")))
            await anyio.lowlevel.checkpoint()

    with within("the last append is not read"):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
            await write()

    assert all(length % 2 == 0 for length in lengths)


# Appending.


@JOURNAL.check
async def an_append_at_the_wrong_position_changes_nothing(store: CheckpointStore) -> None:
    lease = await begun(store)
    before = await info_of(store)

    for after in (0, 2):
        with fails(LeaseLost):
            failed = summary_of(RunStatus.FAILED)
            await appended(store, lease, b"x", b"y", after=after, summary=failed, release=True)
    assert await info_of(store) == before
    assert await bodies_of(store) == [b"1"]
    await appended(store, lease, b"2")


@JOURNAL.check
async def an_append_can_replace_the_summary_and_release_the_lease(store: CheckpointStore) -> None:
    lease = await begun(store)
    done = summary_of(RunStatus.COMPLETED)
    await appended(store, lease, b"2", summary=done, release=True)

    info = await info_of(store)
    assert (info.summary, info.length, info.lease) == (done, 2, None)
    with fails(LeaseLost):
        await appended(store, lease, b"x", after=2)
    await claimed(store)


@JOURNAL.check
async def an_append_without_records_can_change_the_summary(store: CheckpointStore) -> None:
    lease = await begun(store)
    before = await info_of(store)
    await appended(store, lease, summary=summary_of(RunStatus.INTERRUPTED))

    assert await info_of(store) == replace(before, summary=summary_of(RunStatus.INTERRUPTED))


@JOURNAL.check
async def two_hundred_runs_can_be_written_concurrently(store: CheckpointStore) -> None:
    async def drive(run_id: str) -> None:
        lease = await begun(store, run_id, b"0")
        await appended(store, lease, b"1")
        await appended(store, lease, b"2", after=2, release=True)

    run_ids = [f"r{number}" for number in range(200)]
    await at_once(drive, run_ids)

    for run_id in run_ids:
        assert await bodies_of(store, run_id) == [b"0", b"1", b"2"]


@JOURNAL.check
async def a_rejected_append_does_not_affect_concurrent_ones(store: CheckpointStore) -> None:
    """A store may commit all of them together."""
    leases = [await begun(store, f"r{number}") for number in range(60)]

    async def append(number: int) -> None:
        if number % 3 == 0:
            await appended(store, leases[number], b"2")
            return
        with fails(LeaseLost):
            if number % 3 == 1:
                await appended(store, leases[number], b"x", after=5, release=True)
            else:
                await appended(store, replace(leases[number], owner=ELSEWHERE), b"x")

    await at_once(append, range(60))

    for number, lease in enumerate(leases):
        expected = [b"1", b"2"] if number % 3 == 0 else [b"1"]
        assert await bodies_of(store, lease.run_id) == expected
    assert len(renew(store, *leases)) == 60


@JOURNAL.check
async def one_of_many_concurrent_appends_wins(store: CheckpointStore) -> None:
    lease = await begun(store, "r", b"0")
    won: list[bytes] = []

    async def append(body: bytes) -> None:
        try:
            await appended(store, lease, body)
            won.append(body)
        except LeaseLost:
            pass

    await at_once(append, [b"%d" % number for number in range(50)])

    assert await bodies_of(store) == [b"0", *won]
    assert len(won) == 1


@JOURNAL.check
async def a_cancelled_append_is_not_written_after_the_next_claim(store: CheckpointStore) -> None:
    owner = str(Owner.new())
    lease = await begun(store, owner=owner)
    for number in range(40):
        length = len(await store.read("r"))
        body = b"%d" % number
        with anyio.move_on_after(number * 0.0001):
            await store.append(lease, Batch([body], length))
        lease = await claimed(store, owner=owner)
        settled = await bodies_of(store)
        await anyio.sleep(0.002)
        assert await bodies_of(store) == settled
        assert settled[length:] in ([], [body])


# Truncating.


@JOURNAL.check
async def a_truncation_removes_the_last_records_and_replaces_the_summary(
    store: CheckpointStore,
) -> None:
    await created(store, "other", b"1", b"2")
    lease = await begun(store, "r", b"1", b"2")
    await appended(store, lease, b"3", b"4", after=2, summary=summary_of(RunStatus.COMPLETED))
    before = await store.read("r")
    new = summary_of(RunStatus.INTERRUPTED, workflow="new", tenant="t")
    for _ in range(2):
        await store.truncate(lease, after=2, summary=new)

    assert await store.read("r") == before[:2]
    info = await info_of(store)
    assert (info.summary, info.length, info.updated_at) == (new, 2, before[1].written_at)
    assert info.lease is not None
    assert await found(store, RunQuery(workflow="new")) == ["r"]
    assert await bodies_of(store, "other") == [b"1", b"2"]

    with fails(LeaseLost):
        await appended(store, lease, b"x", after=4)
    await appended(store, lease, b"3 again", after=2)
    assert await bodies_of(store) == [b"1", b"2", b"3 again"]
    assert len(renew(store, lease)) == 1


@JOURNAL.check
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
    for gone in (lease, replace(lease, run_id="unknown")):
        with fails(LeaseLost):
            await store.truncate(gone, after=1, summary=done)
    assert await bodies_of(store) == [b"1", b"2"]
    assert (await info_of(store)).summary == summary_of()


@JOURNAL.check
async def a_long_journal_can_be_truncated_anywhere(store: CheckpointStore) -> None:
    bodies = [b"%d" % number for number in range(1100)]
    lease = await begun(store, "r", *bodies[:10])
    for after in range(10, 1100, 109):
        await appended(store, lease, *bodies[after : after + 109], after=after)
    for after in (1005, 800, 500, 101, 100, 99, 1):
        await store.truncate(lease, after=after, summary=summary_of())
        assert await bodies_of(store) == bodies[:after]
        await appended(store, lease, *bodies[after : after + 3], after=after)
        assert await bodies_of(store) == bodies[: after + 3]
