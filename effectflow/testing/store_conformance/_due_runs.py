"""Check which due runs a worker claims, and the limits of workflows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel

from effectflow.checkpoint.errors import RunBusy
from effectflow.checkpoint.store import Claimed, DueRuns, Limit, RunStatus
from effectflow.testing.store_conformance._check import (
    COMPLETED,
    ELSEWHERE,
    GO,
    PENDING,
    SUSPENDED,
    Service,
    at_once,
    dead_owner,
    fails,
    new_owner,
    owner_in_another_process,
    summary_of,
    within,
)

DUE = replace(PENDING, due_at=1.0)


async def _claim_due(
    s: Service,
    most: int = 100,
    *,
    now: float = 100.0,
    workflows: Iterable[str] = ("w",),
    seconds: float = 60,
    limits: Mapping[str, Limit] | None = None,
) -> Claimed:
    """Claim due runs for new owners. The claimant's clock says `now`, a time in 1970."""
    owners = [new_owner() for _ in range(most)]
    return await s.store.claim_due(
        DueRuns(frozenset(workflows), owners, seconds, now, limits or {})
    )


async def _taken(s: Service, most: int = 100, **options: Any) -> list[str]:
    """Claim due runs, and return their ids."""
    return _ids(await _claim_due(s, most, **options))


def _ids(claimed: Claimed) -> list[str]:
    return [one.info.run_id for one in claimed.runs]


async def _create_due(s: Service, *run_ids: str, workflow: str = "w") -> None:
    """Create pending runs. The first has been due for longest."""
    for number, run_id in enumerate(run_ids):
        await s.create(run_id, summary=replace(DUE, workflow=workflow, due_at=1.0 + number))


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


# Which runs are claimed.


async def due_runs_are_claimed(s: Service) -> None:
    assert await _claim_due(s) == Claimed()
    for run_id, due_at in {"past": 99.0, "now": 100.0, "future": 100.001, "never": None}.items():
        await s.create(run_id, summary=replace(DUE, due_at=due_at))
    before = {info.run_id: info for info in await s.store.find()}

    answer = await _claim_due(s)
    assert (_ids(answer), answer.next_due_at) == (["past", "now"], 100.001)
    for one in answer.runs:
        run_id = one.info.run_id
        assert one.info == before[run_id]
        assert one.lease == (await s.info(run_id)).lease
        with fails(RunBusy):
            await s.claim(run_id)
    assert await _claim_due(s) == Claimed((), 100.001)
    assert await _taken(s, now=100.001) == ["future"]
    assert await _claim_due(s, now=time.time()) == Claimed()


async def a_due_run_is_claimed_with_an_ordinary_lease(s: Service) -> None:
    """It invalidates earlier leases, and can be renewed and released."""
    old = await s.begin(summary=DUE, seconds=0)
    [one] = (await _claim_due(s, 1)).runs

    assert one.info.lease == old
    assert one.lease.fence > old.fence
    await s.check_lost(old)
    [lease] = s.renew(one.lease)
    await s.append(lease, b"2")
    await s.store.release(lease)
    [again] = (await _claim_due(s, seconds=0)).runs
    assert again.lease.fence > lease.fence
    assert again.info.lease is None
    assert await _taken(s) == ["r"]


async def a_claim_returns_a_record_only_if_it_is_all_that_a_run_has(s: Service) -> None:
    """A store need not return any."""
    await _create_due(s, "new", "received")
    await s.store.send("received", "signal:a", key="a")
    new, received = (await _claim_due(s)).runs

    assert new.first is None or [new.first] == await s.store.read("new")
    assert received.first is None
    await s.append(new.lease, b"2", summary=DUE, release=True)
    [grown] = (await _claim_due(s)).runs
    assert grown.first is None


async def due_runs_are_claimed_by_priority_and_then_by_due_time(s: Service) -> None:
    """Whatever their status is, if they have not ended."""
    there = {"low": (-1, 1.0), "later": (0, 3.0), "earlier": (0, 2.0), "future": (99, 200.0)}
    there |= {"high": (5, 50.0), "higher": (10, 60.0)}
    for number, (run_id, (priority, due_at)) in enumerate(there.items()):
        status = [status for status in RunStatus if not status.has_ended][number % 5]
        summary = replace(summary_of(status), priority=priority, due_at=due_at)
        await s.create(run_id, summary=summary)

    assert await _taken(s, 0) == []
    assert await _taken(s, 2) == ["higher", "high"]
    assert await _taken(s, 1) == ["earlier"]
    assert await _taken(s) == ["later", "low"]


async def runs_of_other_workflows_are_not_claimed(s: Service) -> None:
    for workflow in ("a", "b", "c"):
        await _create_due(s, workflow, workflow=workflow)
        later = replace(DUE, workflow=workflow, due_at=200.0 + ord(workflow))
        await s.create(f"{workflow} later", summary=later)

    for others in (["d"], []):
        assert await _claim_due(s, workflows=others) == Claimed()
    answer = await _claim_due(s, workflows=["b", "c"])
    assert sorted(_ids(answer)) == ["b", "c"]
    assert answer.next_due_at == 200.0 + ord("b")
    assert (await s.info("a")).lease is None


async def a_held_run_is_claimed_once_its_owner_is_gone(s: Service) -> None:
    """The claimant sees who drove it."""
    async with owner_in_another_process() as owner:
        dead = await s.begin("dead", summary=DUE, owner=owner, seconds=3600)
        expired = await s.begin("expired", summary=DUE, owner=ELSEWHERE, seconds=-1)
        distant = await s.begin("distant", summary=DUE, owner=ELSEWHERE)
        held = await s.begin("held", summary=DUE)
        assert await _taken(s) == ["expired"]
        await s.check_lost(expired)

    [one] = (await _claim_due(s)).runs
    assert one.info.lease == dead
    await s.check_lost(dead)
    await s.store.release(distant)
    assert await _taken(s) == ["distant"]
    await s.append(held, b"2", summary=DUE, release=True)
    assert await _taken(s) == ["held"]


async def a_run_is_due_by_its_newest_summary(s: Service) -> None:
    """After an append, a truncation, a deletion or a message."""
    await _create_due(s, "appended", "truncated", "deleted", "ended")
    lease = await s.claim("appended")
    await s.append(lease, summary=replace(DUE, due_at=200.0), release=True)
    lease = await s.claim("truncated")
    await s.store.truncate(lease, after=1, summary=replace(DUE, due_at=300.0))
    await s.store.release(lease)
    await s.append(await s.claim("ended"), summary=COMPLETED, release=True)
    await s.store.delete("deleted")
    await s.create("woken", summary=replace(SUSPENDED, due_at=time.time() + 3600))

    assert await _claim_due(s) == Claimed((), 200.0)
    assert await _taken(s, now=300.0) == ["appended", "truncated"]
    await s.store.send("woken", GO, key="k")
    assert await _taken(s, now=time.time() + 60) == ["woken"]


# Concurrent claimants.


async def no_run_is_claimed_twice(s: Service, other: Service) -> None:
    run_ids = _numbered("r", 60)
    await _create_due(s, *run_ids)
    claims: list[str] = []

    async def take(number: int) -> None:
        while len(claims) < len(run_ids):
            claims.extend(await _taken((s, other)[number % 2], 4))
            await anyio.lowlevel.checkpoint()

    with within("some of the due runs are not claimed", times=2):
        await at_once(take, range(12))

    assert sorted(claims) == sorted(run_ids)


async def claiming_a_run_and_claiming_due_runs_exclude_each_other(
    s: Service, other: Service
) -> None:
    for run_id in _numbered("r", 20):
        await _create_due(s, run_id)
        winners: list[str] = []

        async def claim_it(run_id: str = run_id, winners: list[str] = winners) -> None:
            with suppress(RunBusy):
                winners.append((await other.claim(run_id)).owner)

        async with anyio.create_task_group() as group:
            group.start_soon(claim_it)
            winners += [one.lease.owner for one in (await _claim_due(s)).runs]
        lease = (await s.info(run_id)).lease
        assert lease is not None
        assert winners == [lease.owner]


# Limits.


async def a_limit_bounds_how_many_runs_of_a_workflow_are_held_at_once(
    s: Service, other: Service
) -> None:
    """Dead and expired owners do not count."""
    await _create_due(s, *_numbered("w", 6))
    await _create_due(s, *_numbered("free", 6), workflow="free")
    limits = {"w": Limit(limit=3)}
    held = await other.claim("w0")

    first = await _claim_due(s, 1, limits=limits)
    assert _ids(first) == ["w1"]
    answer = await _taken(other, workflows=["w", "free"], limits=limits)
    assert sorted(answer) == [*_numbered("free", 6), "w2"]
    for chosen in (s, other):
        assert await _taken(chosen, limits=limits) == []
    await s.store.release(first.runs[0].lease)
    await other.store.release(held)
    await s.claim("w0", owner=dead_owner(), seconds=3600)
    await s.claim("w1", owner=ELSEWHERE, seconds=-1)
    assert await _taken(s, limits=limits) == ["w0", "w1"]


async def concurrent_claimants_share_a_limit(s: Service, other: Service) -> None:
    limits = {"held": Limit(limit=3), "started": Limit(per_second=0.001)}
    for workflow in limits:
        await _create_due(s, *_numbered(workflow, 12), workflow=workflow)
    claims: list[str] = []

    async def take(number: int) -> None:
        chosen = (s, other)[number % 2]
        claims.extend(await _taken(chosen, 2, workflows=limits, limits=limits))

    await at_once(take, range(8))
    claims += await _taken(s, workflows=limits, limits=limits)

    assert len(set(claims)) == len(claims)
    assert sum(run_id.startswith("held") for run_id in claims) == 3
    assert sum(run_id.startswith("started") for run_id in claims) == 1


async def a_limit_bounds_how_fast_pending_runs_are_started(s: Service, other: Service) -> None:
    await _create_due(s, *_numbered("r", 8))
    await s.create("resumed", summary=replace(SUSPENDED, due_at=10.0))
    slow, fast = {"w": Limit(per_second=0.001)}, {"fast": Limit(per_second=3)}

    first = await _claim_due(s, limits=slow)
    assert _ids(first) == ["r0", "resumed"]
    for one in first.runs:
        await s.store.release(one.lease)
    assert await _taken(other, limits=slow) == ["resumed"]
    assert await _taken(other, 1) == ["r0"]

    await _create_due(s, *_numbered("f", 8), workflow="fast")
    claims, began = list[str](), time.monotonic()
    with within("no further run is claimed"):
        while len(claims) <= 3:
            claims += await _taken((s, other)[len(claims) % 2], workflows=fast, limits=fast)
            assert len(claims) in (3, 6)
            await anyio.sleep(0.01)
    assert time.monotonic() - began > 0.99
    assert claims == _numbered("f", 6)


async def held_and_limited_runs_do_not_hide_others(s: Service) -> None:
    """However many there are, and even if they have a higher priority."""

    async def hold(run_id: str) -> None:
        await s.begin(run_id, summary=replace(DUE, priority=9))

    await at_once(hold, _numbered("held", 300))
    limited = replace(DUE, workflow="limited", priority=9)
    await s.create_all(_numbered("limited", 300), limited)
    await _create_due(s, *_numbered("free", 3))
    limits = {"limited": Limit(limit=1)}

    assert await _taken(s, 1) == ["free0"]
    first, *others = await _taken(s, 2, workflows=["limited", "w"], limits=limits)
    assert first.startswith("limited")
    assert others == ["free1"]
    assert await _taken(s, workflows=["limited", "w"], limits=limits) == ["free2"]
