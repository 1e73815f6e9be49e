"""What any store must do, as checks that its tests run.

A check is an async function that is given a function which makes the store, yet to be entered. A store
that outlives its closing must be made over the same data each time; each check wants one that is empty
at first. With pytest and anyio::

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", store_conformance.CHECKS, ids=lambda check: check.__name__)
    async def test_my_store(check: store_conformance.Check, tmp_path: Path) -> None:
        await check(lambda: MyStore(tmp_path))

A check that is not passed raises AssertionError, or whatever the store raised.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    CheckpointStore,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    RunSummary,
)

__all__ = ["CHECKS", "Check", "MakeStore"]

X = TypeVar("X", bound=Exception)

MakeStore: TypeAlias = Callable[[], CheckpointStore]
Check: TypeAlias = Callable[[MakeStore], Awaitable[None]]

CHECKS: list[Check] = []
"""Every check, in an order that goes from the simple to the hard."""

HOSTILE_RUN_IDS = (
    "",
    ".",
    "..",
    "../up",
    "/etc/passwd",
    "a/b",
    "C:\\con",
    "ünïcödé-🎈",
    "'; DROP TABLE runs; --",
    "nul\0",
    "new\nline",
    "%2e%2e",
    "*?[a]",
    "A",
    "a",
    "x" * 5000,
)


def _check(f: Callable[[CheckpointStore], Awaitable[None]]) -> Check:
    """A check of one open store."""

    async def check(make: MakeStore) -> None:
        async with make() as store:
            await f(store)

    return _listed(check, f.__name__)


def _check_reopening(f: Check) -> Check:
    """A check that opens and closes the store itself; for those that keep things."""

    async def check(make: MakeStore) -> None:
        if make().durability != "memory":
            await f(make)

    return _listed(check, f.__name__)


def _listed(check: Check, name: str) -> Check:
    check.__name__ = name
    CHECKS.append(check)
    return check


class _Caught(Generic[X]):
    error: X


@contextmanager
def _fails(kind: type[X]) -> Generator[_Caught[X]]:
    caught = _Caught[X]()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"nothing failed where {kind.__name__} was expected")


def _summary(
    status: RunStatus = RunStatus.RUNNING, *, workflow: str = "w", created_at: float = 0.0
) -> RunSummary:
    return RunSummary(workflow, "standard", "1", status, created_at)


async def _claimed(store: CheckpointStore, run_id: str = "r", seconds: float = 60) -> Lease:
    return await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)


async def _written(store: CheckpointStore, run_id: str, *bodies: bytes) -> None:
    """A run with these entries, which nobody holds."""
    lease = await _claimed(store, run_id)
    await store.append(lease, bodies, after=0, summary=_summary(), release=True)


async def _bodies(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    return [record.body for record in await store.read(run_id)]


@_check
async def what_was_read_is_the_readers_own(store: CheckpointStore) -> None:
    await _written(store, "r", b"1", b"2")

    (await store.read("r")).clear()

    assert await _bodies(store) == [b"1", b"2"]


@_check
async def records_are_read_back_in_order(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"1", b"2"], after=0, summary=_summary())
    await store.append(lease, [b"3"], after=2)

    records = await store.read("r")
    assert [(one.sequence, one.body) for one in records] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert [one.body for one in await store.read("r", after=2)] == [b"3"]
    assert await store.read("r", after=3) == []
    assert all(abs(one.written_at - time.time()) < 60 for one in records)


@_check
async def an_unknown_run_is_empty(store: CheckpointStore) -> None:
    assert await store.read("nobody") == []
    assert await store.info("nobody") is None
    with _fails(RunNotFound):
        await store.delete("nobody")


@_check
async def a_claim_alone_is_no_run(store: CheckpointStore) -> None:
    await _claimed(store)

    assert await store.info("r") is None
    assert await store.find() == []


@_check
async def the_first_append_needs_a_summary(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    with _fails(ValueError):
        await store.append(lease, [b"1"], after=0)

    assert await store.read("r") == []
    await store.append(lease, [b"1"], after=0, summary=_summary())


@_check
async def an_append_after_another_than_the_last_record_is_refused_whole(
    store: CheckpointStore,
) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"1"], after=0, summary=_summary())

    for after in (0, 2):
        with _fails(LeaseLost):
            await store.append(lease, [b"x", b"y"], after=after, summary=_summary(RunStatus.FAILED))

    info = await store.info("r")
    assert info is not None
    assert (info.length, info.summary) == (1, _summary())
    assert await _bodies(store) == [b"1"]


@_check
async def a_stale_owner_is_fenced(store: CheckpointStore) -> None:
    old = await _claimed(store, seconds=0)
    await store.append(old, [b"1"], after=0, summary=_summary())
    new = await _claimed(store)

    assert new.fence > old.fence
    with _fails(LeaseLost):
        await store.append(old, [b"x"], after=1)
    with _fails(LeaseLost):
        await store.renew(old, seconds=60)
    await store.release(old)
    await store.append(new, [b"2"], after=1)
    assert await _bodies(store) == [b"1", b"2"]


@_check
async def an_expired_lease_that_nobody_took_still_writes(store: CheckpointStore) -> None:
    lease = await _claimed(store, seconds=0)
    await store.append(lease, [b"1"], after=0, summary=_summary())
    await store.renew(lease, seconds=60)

    assert await _bodies(store) == [b"1"]
    with _fails(RunBusy):
        await _claimed(store)


@_check
async def a_held_run_is_busy_until_it_is_released(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    with _fails(RunBusy) as caught:
        await _claimed(store)
    assert caught.error.owner == lease.owner
    assert 0 < caught.error.expires_in <= 60

    await store.release(lease)
    again = await _claimed(store)
    assert again.fence > lease.fence
    with _fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=_summary())


@_check
async def an_owner_may_claim_what_it_holds(store: CheckpointStore) -> None:
    """As it does when it does not know whether its first claim got through."""
    owner = str(Owner.new())
    first = await store.claim("r", owner=owner, seconds=60)
    second = await store.claim("r", owner=owner, seconds=60)

    assert second.fence > first.fence
    with _fails(LeaseLost):
        await store.append(first, [b"x"], after=0, summary=_summary())
    await store.append(second, [b"1"], after=0, summary=_summary())


@_check
async def renewal_moves_the_expiry(store: CheckpointStore) -> None:
    lease = await _claimed(store, seconds=0)
    renewed = await store.renew(lease, seconds=60)

    assert renewed.expires_at > lease.expires_at
    with _fails(RunBusy):
        await _claimed(store)


@_check
async def a_lease_that_has_expired_is_free(store: CheckpointStore) -> None:
    """Also that of an owner of another host, of which nobody here can tell whether it lives."""
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    await store.claim("r", owner=elsewhere, seconds=0.3)
    with _fails(RunBusy):
        await _claimed(store)

    await anyio.sleep(0.4)
    await _claimed(store)


@_check
async def a_lease_of_a_dead_process_is_free_at_once(store: CheckpointStore) -> None:
    script = "from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); input()"
    child = subprocess.Popen(  # noqa: ASYNC220, for no time worth speaking of
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        await store.claim("r", owner=owner, seconds=3600)
        with _fails(RunBusy):
            await _claimed(store)
        child.kill()

    await _claimed(store)


@_check
async def an_append_can_end_the_lease_and_replace_the_summary(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"1"], after=0, summary=_summary())
    done = _summary(RunStatus.COMPLETED)
    await store.append(lease, [b"2"], after=1, summary=done, release=True)

    info = await store.info("r")
    assert info is not None
    assert info.summary == done
    assert info.lease is None
    assert info.length == 2
    await _claimed(store)


@_check
async def an_append_without_records_may_change_the_summary(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"1"], after=0, summary=_summary())
    await store.append(lease, [], after=1, summary=_summary(RunStatus.INTERRUPTED), release=True)

    info = await store.info("r")
    assert info is not None
    assert (info.summary.status, info.length) == (RunStatus.INTERRUPTED, 1)


@_check
async def runs_are_found_by_what_they_are_newest_first(store: CheckpointStore) -> None:
    for number in range(5):
        lease = await _claimed(store, f"r{number}")
        status = RunStatus.COMPLETED if number % 2 else RunStatus.FAILED
        row = _summary(status, workflow="even" if number % 2 == 0 else "odd", created_at=number)
        await store.append(lease, [b"x"], after=0, summary=row, release=number != 4)

    async def found(query: RunQuery) -> list[str]:
        return [info.run_id for info in await store.find(query)]

    assert await found(RunQuery()) == ["r4", "r3", "r2", "r1", "r0"]
    assert await found(RunQuery(limit=2)) == ["r4", "r3"]
    assert await found(RunQuery(limit=2, offset=3)) == ["r1", "r0"]
    assert await found(RunQuery(offset=9)) == []
    assert await found(RunQuery(limit=0)) == []
    assert await found(RunQuery(limit=0, offset=2)) == []
    assert await found(RunQuery(workflow="odd")) == ["r3", "r1"]
    assert await found(RunQuery(statuses=frozenset({RunStatus.FAILED}))) == ["r4", "r2", "r0"]
    # The newest is held by this very process.
    assert await found(RunQuery(resumable=True)) == ["r2", "r0"]
    assert await found(RunQuery(updated_before=time.time() - 60)) == []
    assert len(await found(RunQuery(updated_before=time.time() + 60))) == 5


@_check
async def pages_have_every_run_once(store: CheckpointStore) -> None:
    run_ids = [f"r{number:02}" for number in range(23)]
    for run_id in run_ids:
        await _written(store, run_id, b"x")

    paged: list[str] = []
    while page := await store.find(RunQuery(limit=5, offset=len(paged))):
        paged += [info.run_id for info in page]
    assert paged == run_ids


@_check
async def each_run_is_found_once_while_others_are_added(store: CheckpointStore) -> None:
    """Also by a store that asks for them piece by piece."""
    there = {f"r{number:03}" for number in range(450)}
    async with anyio.create_task_group() as group:
        for run_id in there:
            group.start_soon(_written, store, run_id, b"x")

    searches = 0

    async def add() -> None:
        number = 0
        while searches < 5:
            number += 1
            lease = await _claimed(store, f"new{number}")
            summary = _summary(created_at=number)
            await store.append(lease, [b"x"], after=0, summary=summary, release=True)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(add)
        while searches < 5:
            found = [info.run_id for info in await store.find(RunQuery(limit=10**6))]
            assert len(found) == len(set(found))
            assert there <= set(found)
            searches += 1


@_check
async def a_deleted_run_is_gone_and_its_stale_owner_cannot_bring_it_back(
    store: CheckpointStore,
) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"1"], after=0, summary=_summary())
    with _fails(RunBusy):
        await store.delete("r")
    await store.release(lease)
    await store.delete("r")

    assert await store.read("r") == []
    assert await store.info("r") is None
    assert await store.find() == []
    with _fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=_summary())
    await _written(store, "r", b"anew")
    assert await _bodies(store) == [b"anew"]


@_check
async def hostile_run_ids_are_names_like_any_other(store: CheckpointStore) -> None:
    for run_id in HOSTILE_RUN_IDS:
        await _written(store, run_id, run_id.encode())

    for run_id in HOSTILE_RUN_IDS:
        assert await _bodies(store, run_id) == [run_id.encode()]
        info = await store.info(run_id)
        assert info is not None
        assert info.run_id == run_id
    assert {info.run_id for info in await store.find()} == set(HOSTILE_RUN_IDS)
    for run_id in HOSTILE_RUN_IDS:
        await store.delete(run_id)
    assert await store.find() == []


@_check
async def large_and_odd_bytes_survive(store: CheckpointStore) -> None:
    large = bytes(range(256)) * 40_000
    lease = await _claimed(store)
    await store.append(lease, [b"", b"\n", b"\0", large], after=0, summary=_summary())

    assert await _bodies(store) == [b"", b"\n", b"\0", large]


@_check
async def a_long_journal_is_read_whole(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    written = [str(number).encode() for number in range(2000)]
    await store.append(lease, written[:1], after=0, summary=_summary())
    await store.append(lease, written[1:], after=1)

    assert await _bodies(store) == written


@_check
async def reading_while_others_write_sees_whole_appends(store: CheckpointStore) -> None:
    """Each append has two records: nobody ever sees one of them alone."""
    lengths: list[int] = []

    async def write() -> None:
        lease = await _claimed(store)
        for number in range(50):
            summary = _summary() if number == 0 else None
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


@_check
async def two_hundred_runs_at_once(store: CheckpointStore) -> None:
    async def drive(run_id: str) -> None:
        lease = await _claimed(store, run_id)
        await store.append(lease, [b"0"], after=0, summary=_summary())
        for number in range(1, 5):
            await store.append(lease, [str(number).encode()], after=number)
        await store.release(lease)

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(drive, f"r{number}")

    for number in range(200):
        assert await _bodies(store, f"r{number}") == [b"0", b"1", b"2", b"3", b"4"]


@_check
async def appends_that_are_refused_leave_those_beside_them_alone(store: CheckpointStore) -> None:
    """They may well go to the same commit."""

    async def drive(number: int) -> None:
        lease = await _claimed(store, f"r{number}")
        if number % 3 == 0:
            await store.append(lease, [b"1"], after=0, summary=_summary())
        elif number % 3 == 1:
            with _fails(LeaseLost):
                await store.append(lease, [b"1"], after=5, summary=_summary())
        else:
            with _fails(ValueError):
                await store.append(lease, [b"1"], after=0)

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(drive, number)

    found = {info.run_id for info in await store.find()}
    assert found == {f"r{number}" for number in range(0, 60, 3)}


@_check
async def of_many_claims_at_once_one_wins(store: CheckpointStore) -> None:
    outcomes: list[str] = []

    async def try_to_claim() -> None:
        try:
            await _claimed(store)
            outcomes.append("won")
        except RunBusy:
            outcomes.append("busy")

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(try_to_claim)

    assert (outcomes.count("won"), outcomes.count("busy")) == (1, 49)


@_check
async def of_many_appends_at_once_one_wins(store: CheckpointStore) -> None:
    lease = await _claimed(store)
    await store.append(lease, [b"0"], after=0, summary=_summary())
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

    assert await _bodies(store) == [b"0", *won]
    assert len(won) == 1


@_check
async def a_cancelled_append_has_happened_by_the_next_claim_or_never_will(
    store: CheckpointStore,
) -> None:
    owner = str(Owner.new())
    lease = await store.claim("r", owner=owner, seconds=60)
    await store.append(lease, [b"first"], after=0, summary=_summary())
    for number in range(40):
        length = len(await store.read("r"))
        with anyio.move_on_after(number * 0.0001):
            await store.append(lease, [b"%d" % number], after=length)
        lease = await store.claim("r", owner=owner, seconds=60)
        settled = await _bodies(store)
        await anyio.sleep(0.002)
        assert await _bodies(store) == settled
        assert settled[length:] in ([], [b"%d" % number])


@_check_reopening
async def what_was_appended_is_there_after_reopening(make: MakeStore) -> None:
    async with make() as first:
        lease = await _claimed(first)
        await first.append(lease, [b"1", b"2"], after=0, summary=_summary())
        await first.release(lease)
    async with make() as second:
        assert await _bodies(second) == [b"1", b"2"]
        assert (await _claimed(second)).fence == lease.fence + 1


@_check_reopening
async def two_stores_over_the_same_data_see_and_fence_one_another(make: MakeStore) -> None:
    async with make() as one, make() as other:
        lease = await _claimed(one)
        await one.append(lease, [b"1"], after=0, summary=_summary())
        assert await _bodies(other) == [b"1"]
        with _fails(RunBusy):
            await _claimed(other)
        await one.release(lease)
        taken = await _claimed(other)
        with _fails(LeaseLost):
            await one.append(lease, [b"x"], after=1)
        await other.append(taken, [b"2"], after=1)
        assert await _bodies(one) == [b"1", b"2"]


@_check_reopening
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
