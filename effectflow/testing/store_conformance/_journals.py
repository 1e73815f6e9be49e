"""Check how stores are opened, how runs are created, appended to and read, and how a journal is cut."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunDetails, RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, find_run
from effectflow.testing.store_conformance._check import (
    COMPLETED,
    ELSEWHERE,
    FAILED,
    PENDING,
    RUNNING,
    Journal,
    MakeJournal,
    at_once,
    fails,
    new_owner,
    winners,
    within,
)


async def a_run_is_created_free_or_with_its_lease(s: Journal) -> None:
    for owner in ("", new_owner()):
        run_id = f"of {owner}"
        info = await s.store.create(run_id, [b"1", b"2"], summary=RUNNING, owner=owner, seconds=60)
        assert info is not None
        assert info == await find_run(s.store, run_id)
        assert (info.run_id, info.summary, info.length) == (run_id, RUNNING, 2)
        assert abs(info.updated_at - time.time()) < 60
        held_by = info.lease and (info.lease.run_id, info.lease.owner)
        assert held_by == ((run_id, owner) if owner else None)
        await s.append(info.lease or await s.claim(run_id), b"3", after=2)
        assert await s.bodies(run_id) == [b"1", b"2", b"3"]


async def an_existing_run_is_not_created_again(s: Journal) -> None:
    """Whether it is held, is free, or has ended, and with an owner or without one."""
    held = await s.begin("held")
    await s.create("free")
    await s.create("ended", summary=COMPLETED)
    before = await s.store.find()

    for run_id in ("held", "free", "ended"):
        for owner in ("", new_owner(), held.owner):
            again = await s.store.create(run_id, [b"x"], summary=FAILED, owner=owner, seconds=60)
            assert again is None
            assert await s.bodies(run_id) == [b"1"]
    assert await s.store.find() == before
    await s.append(held, b"2")


async def one_of_many_concurrent_creations_claims_and_appends_wins(
    s: Journal, other: Journal
) -> None:
    def create(number: int) -> Awaitable[RunInfo | None]:
        chosen, body = (s, other)[number % 2], b"%d" % number
        return chosen.store.create("r", [body], summary=RUNNING, owner=new_owner(), seconds=60)

    [created] = await winners(create, 30)
    assert await s.store.find() == [created]
    assert len(await s.bodies()) == 1
    assert created.lease is not None
    await s.store.release(created.lease)

    [lease] = await winners(lambda number: (s, other)[number % 2].claim(), 30)
    assert lease == (await s.info()).lease

    async def append(number: int) -> bytes:
        await (s, other)[number % 2].append(lease, b"%d" % number)
        return b"%d" % number

    won = await winners(append, 30)
    assert (await s.bodies())[1:] == won
    assert len(won) == 1


async def an_unknown_run_has_nothing(s: Journal) -> None:
    """Nor is a run created without a record: nothing could be said about it."""
    for _ in range(2):
        with fails(ValueError):
            await s.store.create("r", [], summary=RUNNING, owner=new_owner(), seconds=60)
        assert await s.store.read("r") == []
        assert await find_run(s.store, "r") is None
        with fails(RunNotFound):
            await s.claim("r")
        with fails(RunNotFound):
            await s.store.delete("r")
    await s.check_lost(Lease("r", new_owner(), 1, time.time() + 60))
    assert await s.store.find() == []


async def a_summary_is_returned_as_it_was_written(s: Journal, other: Journal) -> None:
    waits_for, blocked = "signal 'ünïcödé-🎈'\nuntil noon", "a step is \"missing\"; build '2'"
    details = RunDetails("iterative", "2.1", 5, waits_for, blocked)
    full = RunSummary(
        *("w", RunStatus.SUSPENDED, 1.25, 1767225600.123456, -7, "a/b: *?[x]%_", "'é'"),
        *("reports: 🎈", "tenant:'7'", details),
    )
    await s.create("free", summary=full)
    lease = await s.begin(summary=full)
    for summary in (PENDING, full):
        await s.append(lease, summary=summary)
        assert (await other.info()).summary == summary
        cut = replace(summary, details=replace(details, dead_letters=6))
        await s.store.truncate(lease, after=1, summary=cut)
        assert (await other.info()).summary == cut
    assert {info.summary for info in await other.store.find()} == {full, cut}


async def records_are_read_in_order(s: Journal) -> None:
    await s.append(await s.begin("r", b"1", b"2"), b"3", after=2)

    records = await s.store.read("r")
    assert [(one.sequence, one.body) for one in records] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert await s.store.read("r", after=2) == records[2:]
    assert await s.store.read("r", after=3) == []
    assert all(abs(one.written_at - time.time()) < 60 for one in records)
    assert (await s.info()).updated_at == records[-1].written_at

    remains = await s.store.salvage("r")
    assert (remains.records, dict(remains.unreadable)) == (records, {})
    assert await s.store.damaged_runs() == []
    (await s.store.read("r")).clear()
    assert await s.store.read("r") == records, "the caller does not own the list that it reads"


async def any_bytes_survive(s: Journal) -> None:
    """Also many of them."""
    large = bytes(range(256)) * 40_000
    # Deeper than some JSON libraries support.
    deep = [b'{"a":' + b"[" * depth + b"]" * depth + b"}\nx" for depth in (*range(245, 260), 5000)]
    odd = [b"", b"\n", b"\0", b'{"a":1e5}\nx', b'{"a":1,"a":1}\nx', *deep, large]
    many = [b"%d" % number for number in range(2000)]
    await s.append(await s.begin("r", *odd), *many, *odd, after=len(odd))

    assert await s.bodies() == [*odd, *many, *odd]


async def a_reader_sees_whole_appends(s: Journal) -> None:
    """Each append has two records, and no read returns just one of them."""
    lengths: list[int] = []

    async def write() -> None:
        lease = await s.begin("r", b"a", b"b")
        for number in range(1, 50):
            await s.append(lease, b"a", b"b", after=number * 2)

    async def read() -> None:
        while not lengths or lengths[-1] < 100:
            lengths.append(len(await s.store.read("r")))
            await anyio.lowlevel.checkpoint()

    with within("the last append is not read"):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)
            await write()

    assert all(length % 2 == 0 for length in lengths)


async def an_append_at_the_wrong_position_changes_nothing(s: Journal) -> None:
    lease = await s.begin()
    before = await s.info()

    for after in (0, 2):
        with fails(LeaseLost):
            await s.append(lease, b"x", b"y", after=after, summary=FAILED, release=True)
    assert (await s.info(), await s.bodies()) == (before, [b"1"])
    await s.append(lease, b"2")


async def an_append_can_replace_the_summary_and_release_the_lease(s: Journal) -> None:
    """With records or without."""
    lease = await s.begin()
    before = await s.info()
    await s.append(lease, summary=FAILED)
    assert await s.info() == replace(before, summary=FAILED)
    await s.append(lease, b"2", summary=COMPLETED, release=True)

    info = await s.info()
    assert (info.summary, info.length, info.lease) == (COMPLETED, 2, None)
    await s.check_lost(lease)
    await s.claim()


async def two_hundred_runs_can_be_written_concurrently(s: Journal) -> None:
    """A store may commit them together, and those that it rejects do not affect the others."""

    async def drive(number: int) -> None:
        lease = await s.begin(f"r{number}", b"0")
        if number % 3:
            stale, after = (lease, 5) if number % 3 == 1 else (replace(lease, owner=ELSEWHERE), 1)
            with fails(LeaseLost):
                await s.append(stale, b"x", after=after, release=True)
        await s.append(lease, b"1")
        await s.append(lease, b"2", after=2, release=True)

    await at_once(drive, range(200))

    for number in range(200):
        assert await s.bodies(f"r{number}") == [b"0", b"1", b"2"]


async def a_cancelled_append_is_not_written_after_the_next_claim(s: Journal) -> None:
    lease = await s.begin()
    for number in range(40):
        length, body = len(await s.store.read("r")), b"%d" % number
        with anyio.move_on_after(number * 0.0001):
            await s.append(lease, body, after=length)
        lease = await s.claim(owner=lease.owner)
        settled = await s.bodies()
        await anyio.sleep(0.002)
        assert await s.bodies() == settled
        assert settled[length:] in ([], [body])


async def a_truncation_removes_the_last_records_and_replaces_the_summary(s: Journal) -> None:
    await s.begin("other", b"1", b"2")
    lease = await s.begin("r", b"1", b"2")
    await s.append(lease, b"3", b"4", after=2, summary=COMPLETED)
    before = await s.store.read("r")
    new = replace(FAILED, workflow="new", tenant="t")
    for after, error in ((0, ValueError), (-1, ValueError), (5, LeaseLost)):
        with fails(error):
            await s.store.truncate(lease, after=after, summary=new)
    assert await s.store.read("r") == before
    for _ in range(2):
        await s.store.truncate(lease, after=2, summary=new)

    assert await s.store.read("r") == before[:2]
    info = await s.info()
    assert (info.summary, info.length, info.updated_at) == (new, 2, before[1].written_at)
    assert info.lease is not None
    assert await s.find(RunQuery(workflow="new")) == ["r"]
    assert await s.bodies("other") == [b"1", b"2"]

    with fails(LeaseLost):
        await s.append(lease, b"x", after=4)
    await s.append(lease, b"3 again", after=2)
    assert await s.bodies() == [b"1", b"2", b"3 again"]


async def a_long_journal_can_be_truncated_anywhere(s: Journal) -> None:
    bodies = [b"%d" % number for number in range(1100)]
    lease = await s.begin("r", *bodies[:10])
    for after in range(10, 1100, 109):
        await s.append(lease, *bodies[after : after + 109], after=after)
    for after in (1005, 800, 500, 101, 100, 99, 1):
        await s.store.truncate(lease, after=after, summary=RUNNING)
        await s.append(lease, *bodies[after : after + 3], after=after)
        assert await s.bodies() == bodies[: after + 3]


# Opening and closing.


async def runs_survive_reopening(make: MakeJournal) -> None:
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


async def concurrent_tasks_wait_until_the_store_is_open(make: MakeJournal) -> None:
    """Tasks that enter while it closes wait, and open it again."""
    store = make().store

    async def use(number: int) -> None:
        for seconds in (number * 0.001, 0):
            async with store:
                assert await store.read("unknown") == []
                await anyio.sleep(seconds)

    for _ in range(3):
        await at_once(use, range(8))
    lease = Lease("unknown", new_owner(), 1, time.time() + 60)
    for closed in (store, make().store):
        # Not SaveFailed: the program is wrong, and not the server.
        for request in (
            closed.read("unknown"),
            closed.create("r", [b"1"], summary=PENDING),
            closed.append(lease, Batch([b"2"], 1)),
        ):
            with fails(StoreUnavailable) as caught:
                await request
            assert "open" in str(caught.exception), caught.exception
