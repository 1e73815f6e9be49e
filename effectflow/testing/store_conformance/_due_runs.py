"""Check claims of due runs, limits, and the changes that watchers receive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint import (
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    LeaseLost,
    Limit,
    Owner,
    RunBusy,
    RunStatus,
)
from effectflow.testing.store_conformance._check import (
    PATIENCE,
    at_once,
    begun,
    check,
    check_of_two,
    claimed,
    created,
    fails,
    info_of,
    owner_in_another_process,
    renew,
    summary_of,
    within,
)
from effectflow.testing.store_conformance._mailboxes import GO

SUSPENDED = RunStatus.SUSPENDED


async def claim_due(
    store: CheckpointStore,
    most: int = 100,
    *,
    now: float = 100.0,
    workflows: Iterable[str] = ("w",),
    seconds: float = 60,
    limits: Mapping[str, Limit] | None = None,
) -> Claimed:
    """Claim due runs for new owners. The claimant's clock says `now`, a time in 1970."""
    owners = [str(Owner.new()) for _ in range(most)]
    return await store.claim_due(
        DueRuns(frozenset(workflows), owners, seconds, now, {} if limits is None else limits)
    )


def taken(claimed: Claimed) -> list[str]:
    return [one.info.run_id for one in claimed.runs]


# Which runs are claimed.


@check
async def due_runs_are_claimed(store: CheckpointStore) -> None:
    assert await claim_due(store) == Claimed()
    for run_id, due_at in {"past": 99.0, "now": 100.0, "future": 100.001, "never": None}.items():
        await created(store, run_id, due_at=due_at)

    answer = await claim_due(store)
    assert taken(answer) == ["past", "now"]
    assert answer.next_due_at == 100.001
    for one in answer.runs:
        assert one.lease.run_id == one.info.run_id
        assert (await info_of(store, one.lease.run_id)).lease == one.lease
        with fails(RunBusy):
            await claimed(store, one.lease.run_id)
    assert await claim_due(store) == Claimed((), 100.001)
    assert taken(await claim_due(store, now=100.001)) == ["future"]
    assert await claim_due(store, now=time.time()) == Claimed()


@check
async def a_due_run_is_claimed_with_an_ordinary_lease(store: CheckpointStore) -> None:
    """It invalidates earlier leases, and can be renewed and released."""
    old = await begun(store, seconds=0)
    due = replace(summary_of(), due_at=1.0)
    await store.append(old, [], after=1, summary=due)
    [one] = (await claim_due(store, most=1)).runs

    assert one.lease.fence > old.fence
    assert (one.info.summary, one.info.length) == (due, 1)
    with fails(LeaseLost):
        await store.append(old, [b"x"], after=1)
    lease = renew(store, one.lease, seconds=120)
    await store.append(lease, [b"2"], after=1)
    await store.release(lease)
    [again] = (await claim_due(store, seconds=0)).runs
    assert again.lease.fence > lease.fence
    assert again.info.lease is None
    assert taken(await claim_due(store)) == ["r"]


@check
async def due_runs_are_claimed_by_priority_and_then_by_due_time(
    store: CheckpointStore,
) -> None:
    there = {
        "low": (-1, 1.0),
        "later": (0, 3.0),
        "earlier": (0, 2.0),
        "high": (5, 50.0),
        "higher": (10, 60.0),
        "future": (99, 200.0),
    }
    for run_id, (priority, due_at) in there.items():
        await created(store, run_id, priority=priority, due_at=due_at)

    assert taken(await claim_due(store, most=0)) == []
    assert taken(await claim_due(store, most=2)) == ["higher", "high"]
    assert taken(await claim_due(store, most=1)) == ["earlier"]
    assert taken(await claim_due(store)) == ["later", "low"]


@check
async def runs_of_other_workflows_are_not_claimed(store: CheckpointStore) -> None:
    for workflow in ("a", "b", "c"):
        await created(store, workflow, workflow=workflow, due_at=1.0)
        await created(store, f"{workflow} later", workflow=workflow, due_at=200.0 + ord(workflow))

    assert await claim_due(store, workflows=["d"]) == Claimed()
    assert await claim_due(store, workflows=[]) == Claimed()
    answer = await claim_due(store, workflows=["b", "c"])
    assert sorted(taken(answer)) == ["b", "c"]
    assert answer.next_due_at == 200.0 + ord("b")
    assert (await info_of(store, "a")).lease is None


@check
async def due_runs_that_have_not_ended_are_claimed(store: CheckpointStore) -> None:
    statuses = [status for status in RunStatus if not status.has_ended]
    for status in statuses:
        await created(store, status.value, status, due_at=1.0)

    answer = await claim_due(store)
    assert {one.info.run_id: one.info.summary.status for one in answer.runs} == {
        status.value: status for status in statuses
    }


@check
async def a_held_run_is_not_claimed_until_its_lease_expires(
    store: CheckpointStore,
) -> None:
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    due = replace(summary_of(), due_at=1.0)
    held = await claimed(store, "held")
    await store.append(held, [b"1"], after=0, summary=due)
    distant = await store.claim("distant", owner=elsewhere, seconds=60)
    await store.append(distant, [b"1"], after=0, summary=due)
    expired = await store.claim("expired", owner=elsewhere, seconds=-1)
    await store.append(expired, [b"1"], after=0, summary=due)

    assert taken(await claim_due(store)) == ["expired"]
    with fails(LeaseLost):
        await store.append(expired, [b"x"], after=1)
    await store.release(distant)
    assert taken(await claim_due(store)) == ["distant"]
    await store.append(held, [b"2"], after=1, summary=due, release=True)
    assert taken(await claim_due(store)) == ["held"]


@check
async def a_run_of_a_dead_process_is_claimed_at_once(store: CheckpointStore) -> None:
    """The claimant sees who drove it."""
    async with owner_in_another_process() as owner:
        lease = await store.claim("r", owner=owner, seconds=3600)
        due = replace(summary_of(), due_at=1.0)
        await store.append(lease, [b"1"], after=0, summary=due)
        assert taken(await claim_due(store)) == []

    [one] = (await claim_due(store)).runs
    assert one.info.run_id == "r"
    assert one.info.lease is not None
    assert one.info.lease.owner == owner
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=1)


@check
async def held_runs_do_not_hide_free_runs(store: CheckpointStore) -> None:
    """However many there are, and even if they have a higher priority."""

    async def hold(number: int) -> None:
        lease = await claimed(store, f"held{number}")
        due = replace(summary_of(), due_at=1.0, priority=9)
        await store.append(lease, [b"1"], after=0, summary=due)

    await at_once(hold, range(300))
    for number in range(3):
        await created(store, f"free{number}", due_at=2.0 + number)

    assert taken(await claim_due(store, most=2)) == ["free0", "free1"]
    assert taken(await claim_due(store)) == ["free2"]


@check
async def a_nested_run_is_never_claimed(store: CheckpointStore) -> None:
    """Not even after a message, which makes the outer run due."""
    await created(store, "outer", SUSPENDED)
    summary = await created(store, "nested", SUSPENDED, parent="outer", is_nested=True)
    await store.send("nested", GO, key="k")

    now = time.time() + 60
    assert taken(await claim_due(store, now=now)) == ["outer"]
    lease = await claimed(store, "nested")
    await store.append(lease, [], after=1, summary=summary, seen=0, release=True)
    assert await claim_due(store, now=now) == Claimed()


@check
async def a_run_woken_by_a_message_is_claimed(store: CheckpointStore) -> None:
    await created(store, "r", SUSPENDED, due_at=time.time() + 3600)
    now = time.time() + 60
    assert taken(await claim_due(store, now=now)) == []
    await store.send("r", GO, key="k")

    assert taken(await claim_due(store, now=now)) == ["r"]


@check
async def the_newest_summary_determines_when_a_run_is_due(store: CheckpointStore) -> None:
    """After an append, a truncation or a deletion."""
    for run_id in ("appended", "truncated", "deleted", "ended"):
        await created(store, run_id, due_at=1.0)
    later = replace(summary_of(), due_at=200.0)
    lease = await claimed(store, "appended")
    await store.append(lease, [], after=1, summary=later, release=True)
    lease = await claimed(store, "truncated")
    await store.truncate(lease, after=1, summary=replace(later, due_at=300.0))
    await store.release(lease)
    lease = await claimed(store, "ended")
    await store.append(lease, [], after=1, summary=summary_of(RunStatus.COMPLETED), release=True)
    await store.delete("deleted")

    assert await claim_due(store) == Claimed((), 200.0)
    assert taken(await claim_due(store, now=300.0)) == ["appended", "truncated"]


# Concurrent claimants.


@check_of_two
async def no_run_is_claimed_twice(store: CheckpointStore, other: CheckpointStore) -> None:
    run_ids = [f"r{number}" for number in range(60)]

    async def create(run_id: str) -> None:
        await created(store, run_id, due_at=1.0)

    await at_once(create, run_ids)
    claims: list[str] = []

    async def take(number: int) -> None:
        while len(claims) < len(run_ids):
            claims.extend(taken(await claim_due((store, other)[number % 2], most=4)))
            await anyio.lowlevel.checkpoint()

    with within(2 * PATIENCE, "some of the due runs are not claimed"):
        await at_once(take, range(12))

    assert sorted(claims) == sorted(run_ids)


@check_of_two
async def claiming_a_run_and_claiming_due_runs_exclude_each_other(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    for number in range(20):
        run_id = f"r{number}"
        await created(store, run_id, due_at=1.0)
        winners: list[str] = []

        async def claim_it(run_id: str = run_id, winners: list[str] = winners) -> None:
            with suppress(RunBusy):
                winners.append((await claimed(other, run_id)).owner)

        async with anyio.create_task_group() as group:
            group.start_soon(claim_it)
            winners += [one.lease.owner for one in (await claim_due(store)).runs]
        lease = (await info_of(store, run_id)).lease
        assert lease is not None
        assert winners == [lease.owner]


# Limits.


@check_of_two
async def a_limit_bounds_how_many_runs_of_a_workflow_are_held_at_once(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    for number in range(6):
        await created(store, f"w{number}", due_at=number)
        await created(store, f"free{number}", workflow="free", due_at=50 + number)
    limits = {"w": Limit(3)}
    held = await claimed(other, "w0")

    first = await claim_due(store, most=1, limits=limits)
    assert taken(first) == ["w1"]
    both = ["w", "free"]
    answer = await claim_due(other, workflows=both, limits=limits)
    assert taken(answer) == ["w2", *(f"free{number}" for number in range(6))]
    for chosen in (store, other):
        assert taken(await claim_due(chosen, limits=limits)) == []
    await store.release(first.runs[0].lease)
    await other.release(held)
    assert taken(await claim_due(store, limits=limits)) == ["w0", "w1"]


@check
async def a_dead_or_expired_owner_does_not_count_towards_a_limit(store: CheckpointStore) -> None:
    own = Owner.new()
    dead = str(Owner(2**80, own.host, "1", "1"))
    elsewhere = str(Owner(1, "elsewhere", "1", "1"))
    for number in range(3):
        await created(store, f"r{number}", due_at=number)
    await store.claim("r0", owner=dead, seconds=3600)
    await store.claim("r1", owner=elsewhere, seconds=-1)

    assert taken(await claim_due(store, limits={"w": Limit(2)})) == ["r0", "r1"]


@check_of_two
async def concurrent_claimants_share_a_limit(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    limits = {"held": Limit(3), "started": Limit(per_second=0.001)}
    for workflow in limits:
        for number in range(12):
            await created(store, f"{workflow}{number}", workflow=workflow, due_at=1.0)
    claims: list[str] = []

    async def take(number: int) -> None:
        chosen = (store, other)[number % 2]
        claims.extend(taken(await claim_due(chosen, most=2, workflows=limits, limits=limits)))

    await at_once(take, range(8))
    claims += taken(await claim_due(store, workflows=limits, limits=limits))

    assert len(set(claims)) == len(claims)
    assert sum(run_id.startswith("held") for run_id in claims) == 3
    assert sum(run_id.startswith("started") for run_id in claims) == 1


@check_of_two
async def a_limit_bounds_how_fast_pending_runs_are_started(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    for number in range(5):
        await created(store, f"r{number}", due_at=number)
    await created(store, "resumed", SUSPENDED, due_at=10.0)
    limits = {"w": Limit(per_second=0.001)}

    first = await claim_due(store, limits=limits)
    assert taken(first) == ["r0", "resumed"]
    for one in first.runs:
        await store.release(one.lease)
    assert taken(await claim_due(other, limits=limits)) == ["resumed"]
    assert taken(await claim_due(other, most=3)) == ["r0", "r1", "r2"]


@check_of_two
async def more_runs_are_started_when_a_limit_allows_it(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    for number in range(8):
        await created(store, f"r{number}", due_at=number)
    limits = {"w": Limit(per_second=3)}

    began = time.monotonic()
    claims = taken(await claim_due(store, limits=limits))
    assert claims == ["r0", "r1", "r2"]
    with within(PATIENCE, "no further run is claimed"):
        while len(claims) == 3:
            await anyio.sleep(0.01)
            claims += taken(await claim_due(other, limits=limits))
    assert time.monotonic() - began > 0.99
    assert claims == ["r0", "r1", "r2", "r3", "r4", "r5"]


@check
async def limits_do_not_hide_the_runs_of_other_workflows(store: CheckpointStore) -> None:
    async def create(number: int) -> None:
        await created(store, f"r{number}", workflow="limited", due_at=1.0, priority=9)

    await at_once(create, range(300))
    await created(store, "free", due_at=2.0)
    both = ["limited", "w"]
    limits = {"limited": Limit(1)}

    answer = await claim_due(store, most=2, workflows=both, limits=limits)
    assert [one.info.summary.workflow for one in answer.runs] == ["limited", "w"]


# Changes.


async def has_changed(changes: Changes, *run_ids: str) -> bool:
    """Return whether a change of each of these runs arrives in time."""
    missing = set(run_ids)
    until = time.monotonic() + PATIENCE
    while missing and time.monotonic() < until:
        changed = await changes.wait(until - time.monotonic())
        if changed is None:
            return True
        missing -= changed
    return not missing


async def is_quiet(changes: Changes) -> bool:
    """Return whether changes stop arriving."""
    for _ in range(100):
        if await changes.wait(0.2) == frozenset():
            return True
    return False


@check_of_two
async def watchers_see_every_kind_of_change(store: CheckpointStore, other: CheckpointStore) -> None:
    """Through either store, whichever made the change."""
    async with store.changes() as changes, other.changes() as others:
        both = (changes, others)
        for writer in (store, other):
            await created(writer, "r")
            assert [await has_changed(one, "r") for one in both] == [True, True]
            await writer.send("r", GO, key="k")
            assert [await has_changed(one, "r") for one in both] == [True, True]
            lease = await claimed(writer)
            await writer.append(lease, [], after=1, summary=summary_of(SUSPENDED), release=True)
            assert [await has_changed(one, "r") for one in both] == [True, True]
            await writer.delete("r")
            assert [await has_changed(one, "r") for one in both] == [True, True]


@check_of_two
async def a_notice_is_a_change_of_the_parent(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    await created(store, "outer", SUSPENDED)
    await created(store, "nested", SUSPENDED, parent="outer", is_nested=True)
    summary = await created(store, "child", parent="outer")
    async with other.changes() as changes:
        assert await is_quiet(changes)
        await store.send("nested", GO, key="k")
        assert await has_changed(changes, "nested", "outer")
        assert await is_quiet(changes)
        lease = await claimed(store, "child")
        ended = replace(summary, status=RunStatus.COMPLETED)
        await store.append(lease, [], after=1, summary=ended, release=True)
        assert await has_changed(changes, "child", "outer")


@check_of_two
async def changes_accumulate_until_a_watcher_asks_for_them(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    run_ids = [f"r{number}" for number in range(20)]
    async with other.changes() as changes:
        for run_id in run_ids:
            await created(store, run_id)
        assert await has_changed(changes, *run_ids)
        with anyio.move_on_after(0.05):
            await changes.wait(PATIENCE)
        await store.send("r7", GO, key="k")
        assert await has_changed(changes, "r7")


@check
async def reads_are_not_reported_as_changes(store: CheckpointStore) -> None:
    await created(store, due_at=1.0)
    async with store.changes() as changes:
        assert await is_quiet(changes)
        await store.mailbox("r")
        await store.find()
        await store.read("r")
        assert await changes.wait(0) == frozenset()
        began = time.monotonic()
        assert await changes.wait(0.2) == frozenset()
        assert time.monotonic() - began > 0.15


@check_of_two
async def a_waiting_watcher_wakes_at_once(store: CheckpointStore, other: CheckpointStore) -> None:
    async with other.changes() as changes:
        assert await is_quiet(changes)
        waits, began = list[float](), time.monotonic()

        async def watch() -> None:
            assert await has_changed(changes, "r")
            waits.append(time.monotonic() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.1)
            began = time.monotonic()
            await created(store)
        assert waits[0] < 2
