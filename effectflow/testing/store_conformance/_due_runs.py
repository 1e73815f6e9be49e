"""Check which due runs a worker claims, and the limits of workflows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint.errors import RunBusy
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.store import (
    Claimed,
    DueRuns,
    Limit,
    RunStatus,
    ServiceStore,
    Taken,
)
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    SERVICE,
    appended,
    at_once,
    begun,
    claimed,
    created,
    dead_owner,
    fails,
    info_of,
    owner_in_another_process,
    renew,
    summary_of,
    within,
)
from effectflow.testing.store_conformance._leases import check_lost
from effectflow.testing.store_conformance._messages import GO

DUE = summary_of(due_at=1.0)
SUSPENDED = summary_of(RunStatus.SUSPENDED)


async def claim_due(
    store: ServiceStore,
    most: int = 100,
    *,
    now: float = 100.0,
    workflows: Iterable[str] = ("w",),
    seconds: float = 60,
    limits: Mapping[str, Limit] | None = None,
) -> Claimed:
    """Claim due runs for new owners. The claimant's clock says `now`, a time in 1970."""
    owners = [str(Owner.new()) for _ in range(most)]
    return await store.claim_due(DueRuns(frozenset(workflows), owners, seconds, now, limits or {}))


def taken(claimed: Claimed) -> list[str]:
    return [one.info.run_id for one in claimed.runs]


async def created_due(store: ServiceStore, *run_ids: str, workflow: str = "w") -> None:
    """Create pending runs. The first has been due for longest."""
    for number, run_id in enumerate(run_ids):
        pending = summary_of(RunStatus.PENDING, workflow=workflow, due_at=1.0 + number)
        await created(store, run_id, summary=pending)


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


# Which runs are claimed.


@SERVICE.check
async def due_runs_are_claimed(store: ServiceStore) -> None:
    assert await claim_due(store) == Claimed()
    for run_id, due_at in {"past": 99.0, "now": 100.0, "future": 100.001, "never": None}.items():
        await created(store, run_id, summary=replace(DUE, due_at=due_at))
    before = {info.run_id: info for info in await store.find()}

    answer = await claim_due(store)
    assert taken(answer) == ["past", "now"]
    assert answer.next_due_at == 100.001
    for one in answer.runs:
        assert one.lease.run_id == one.info.run_id
        assert one.info == before[one.info.run_id]
        assert (await info_of(store, one.lease.run_id)).lease == one.lease
        with fails(RunBusy):
            await claimed(store, one.lease.run_id)
    assert await claim_due(store) == Claimed((), 100.001)
    assert taken(await claim_due(store, now=100.001)) == ["future"]
    assert await claim_due(store, now=time.time()) == Claimed()


@SERVICE.check
async def a_due_run_is_claimed_with_an_ordinary_lease(store: ServiceStore) -> None:
    """It invalidates earlier leases, and can be renewed and released."""
    old = await begun(store, summary=DUE, seconds=0)
    before = await info_of(store)
    [one] = (await claim_due(store, most=1)).runs

    assert one == Taken(one.lease, before)
    assert one.lease.fence > old.fence
    await check_lost(store, old)
    [lease] = renew(store, one.lease, seconds=120)
    await appended(store, lease, b"2")
    await store.release(lease)
    [again] = (await claim_due(store, seconds=0)).runs
    assert again.lease.fence > lease.fence
    assert again.info.lease is None
    assert taken(await claim_due(store)) == ["r"]


@SERVICE.check
async def due_runs_are_claimed_by_priority_and_then_by_due_time(store: ServiceStore) -> None:
    there = {
        "low": (-1, 1.0),
        "later": (0, 3.0),
        "earlier": (0, 2.0),
        "high": (5, 50.0),
        "higher": (10, 60.0),
        "future": (99, 200.0),
    }
    for run_id, (priority, due_at) in there.items():
        pending = summary_of(RunStatus.PENDING, priority=priority, due_at=due_at)
        await created(store, run_id, summary=pending)

    assert taken(await claim_due(store, most=0)) == []
    assert taken(await claim_due(store, most=2)) == ["higher", "high"]
    assert taken(await claim_due(store, most=1)) == ["earlier"]
    assert taken(await claim_due(store)) == ["later", "low"]


@SERVICE.check
async def runs_of_other_workflows_are_not_claimed(store: ServiceStore) -> None:
    for workflow in ("a", "b", "c"):
        await created_due(store, workflow, workflow=workflow)
        later = summary_of(workflow=workflow, due_at=200.0 + ord(workflow))
        await created(store, f"{workflow} later", summary=later)

    assert await claim_due(store, workflows=["d"]) == Claimed()
    assert await claim_due(store, workflows=[]) == Claimed()
    answer = await claim_due(store, workflows=["b", "c"])
    assert sorted(taken(answer)) == ["b", "c"]
    assert answer.next_due_at == 200.0 + ord("b")
    assert (await info_of(store, "a")).lease is None


@SERVICE.check
async def due_runs_that_have_not_ended_are_claimed(store: ServiceStore) -> None:
    statuses = [status for status in RunStatus if not status.has_ended]
    for status in statuses:
        await created(store, status.value, summary=summary_of(status, due_at=1.0))

    assert {one.info.summary.status for one in (await claim_due(store)).runs} == {*statuses}


@SERVICE.check
async def a_held_run_is_not_claimed_until_its_lease_expires(store: ServiceStore) -> None:
    held = await begun(store, "held", summary=DUE)
    distant = await begun(store, "distant", summary=DUE, owner=ELSEWHERE)
    expired = await begun(store, "expired", summary=DUE, owner=ELSEWHERE, seconds=-1)

    assert taken(await claim_due(store)) == ["expired"]
    await check_lost(store, expired)
    await store.release(distant)
    assert taken(await claim_due(store)) == ["distant"]
    await appended(store, held, b"2", summary=DUE, release=True)
    assert taken(await claim_due(store)) == ["held"]


@SERVICE.check
async def a_due_run_of_a_dead_process_is_claimed_at_once(store: ServiceStore) -> None:
    """The claimant sees who drove it."""
    async with owner_in_another_process() as owner:
        lease = await begun(store, summary=DUE, owner=owner, seconds=3600)
        assert taken(await claim_due(store)) == []

    [one] = (await claim_due(store)).runs
    assert one.info.lease == lease
    await check_lost(store, lease)


@SERVICE.check
async def held_runs_do_not_hide_free_runs(store: ServiceStore) -> None:
    """However many there are, and even if they have a higher priority."""

    async def hold(run_id: str) -> None:
        await begun(store, run_id, summary=replace(DUE, priority=9))

    await at_once(hold, numbered("held", 300))
    await created_due(store, *numbered("free", 3))

    assert taken(await claim_due(store, most=2)) == ["free0", "free1"]
    assert taken(await claim_due(store)) == ["free2"]


@SERVICE.check
async def a_run_woken_by_a_message_is_claimed(store: ServiceStore) -> None:
    await created(store, summary=replace(SUSPENDED, due_at=time.time() + 3600))
    now = time.time() + 60
    assert taken(await claim_due(store, now=now)) == []
    await store.send("r", GO, key="k")

    assert taken(await claim_due(store, now=now)) == ["r"]


@SERVICE.check
async def the_newest_summary_determines_when_a_run_is_due(store: ServiceStore) -> None:
    """After an append, a truncation or a deletion."""
    await created_due(store, "appended", "truncated", "deleted", "ended")
    lease = await claimed(store, "appended")
    await appended(store, lease, summary=replace(DUE, due_at=200.0), release=True)
    lease = await claimed(store, "truncated")
    await store.truncate(lease, after=1, summary=replace(DUE, due_at=300.0))
    await store.release(lease)
    lease = await claimed(store, "ended")
    await appended(store, lease, summary=summary_of(RunStatus.COMPLETED), release=True)
    await store.delete("deleted")

    assert await claim_due(store) == Claimed((), 200.0)
    assert taken(await claim_due(store, now=300.0)) == ["appended", "truncated"]


# Concurrent claimants.


@SERVICE.check_of_two
async def no_run_is_claimed_twice(store: ServiceStore, other: ServiceStore) -> None:
    run_ids = numbered("r", 60)
    await created_due(store, *run_ids)
    claims: list[str] = []

    async def take(number: int) -> None:
        while len(claims) < len(run_ids):
            claims.extend(taken(await claim_due((store, other)[number % 2], most=4)))
            await anyio.lowlevel.checkpoint()

    with within("some of the due runs are not claimed", times=2):
        await at_once(take, range(12))

    assert sorted(claims) == sorted(run_ids)


@SERVICE.check_of_two
async def claiming_a_run_and_claiming_due_runs_exclude_each_other(
    store: ServiceStore, other: ServiceStore
) -> None:
    for run_id in numbered("r", 20):
        await created_due(store, run_id)
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


@SERVICE.check_of_two
async def a_limit_bounds_how_many_runs_of_a_workflow_are_held_at_once(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created_due(store, *numbered("w", 6))
    await created_due(store, *numbered("free", 6), workflow="free")
    limits = {"w": Limit(at_once=3)}
    held = await claimed(other, "w0")

    first = await claim_due(store, most=1, limits=limits)
    assert taken(first) == ["w1"]
    answer = await claim_due(other, workflows=["w", "free"], limits=limits)
    assert sorted(taken(answer)) == [*numbered("free", 6), "w2"]
    for chosen in (store, other):
        assert taken(await claim_due(chosen, limits=limits)) == []
    await store.release(first.runs[0].lease)
    await other.release(held)
    assert taken(await claim_due(store, limits=limits)) == ["w0", "w1"]


@SERVICE.check
async def a_dead_or_expired_owner_does_not_count_towards_a_limit(store: ServiceStore) -> None:
    await created_due(store, "r0", "r1", "r2")
    await claimed(store, "r0", owner=dead_owner(), seconds=3600)
    await claimed(store, "r1", owner=ELSEWHERE, seconds=-1)

    assert taken(await claim_due(store, limits={"w": Limit(at_once=2)})) == ["r0", "r1"]


@SERVICE.check_of_two
async def concurrent_claimants_share_a_limit(store: ServiceStore, other: ServiceStore) -> None:
    limits = {"held": Limit(at_once=3), "started": Limit(per_second=0.001)}
    for workflow in limits:
        await created_due(store, *numbered(workflow, 12), workflow=workflow)
    claims: list[str] = []

    async def take(number: int) -> None:
        chosen = (store, other)[number % 2]
        claims.extend(taken(await claim_due(chosen, most=2, workflows=limits, limits=limits)))

    await at_once(take, range(8))
    claims += taken(await claim_due(store, workflows=limits, limits=limits))

    assert len(set(claims)) == len(claims)
    assert sum(run_id.startswith("held") for run_id in claims) == 3
    assert sum(run_id.startswith("started") for run_id in claims) == 1


@SERVICE.check_of_two
async def a_limit_bounds_how_fast_pending_runs_are_started(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created_due(store, *numbered("r", 5))
    await created(store, "resumed", summary=replace(SUSPENDED, due_at=10.0))
    limits = {"w": Limit(per_second=0.001)}

    first = await claim_due(store, limits=limits)
    assert taken(first) == ["r0", "resumed"]
    for one in first.runs:
        await store.release(one.lease)
    assert taken(await claim_due(other, limits=limits)) == ["resumed"]
    assert taken(await claim_due(other, most=3)) == ["r0", "r1", "r2"]


@SERVICE.check_of_two
async def more_runs_are_started_when_a_limit_allows_it(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created_due(store, *numbered("r", 8))
    limits = {"w": Limit(per_second=3)}

    began = time.monotonic()
    claims = taken(await claim_due(store, limits=limits))
    assert claims == ["r0", "r1", "r2"]
    with within("no further run is claimed"):
        while len(claims) == 3:
            await anyio.sleep(0.01)
            claims += taken(await claim_due(other, limits=limits))
    assert time.monotonic() - began > 0.99
    assert claims == ["r0", "r1", "r2", "r3", "r4", "r5"]


@SERVICE.check
async def limits_do_not_hide_the_runs_of_other_workflows(store: ServiceStore) -> None:
    limited = summary_of(RunStatus.PENDING, workflow="limited", due_at=1.0, priority=9)

    async def create(run_id: str) -> None:
        await created(store, run_id, summary=limited)

    await at_once(create, numbered("r", 300))
    await created_due(store, "free")
    limits = {"limited": Limit(at_once=1)}

    answer = await claim_due(store, most=2, workflows=["limited", "w"], limits=limits)
    assert [one.info.summary.workflow for one in answer.runs] == ["limited", "w"]
