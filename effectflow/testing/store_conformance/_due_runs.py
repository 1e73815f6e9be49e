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
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.store import Claimed, DueRuns, Queue
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
    queues: Mapping[str, Queue] | None = None,
) -> Claimed:
    """Claim due runs for new owners. The claimant's clock says `now`, a time in 1970."""
    owners = [new_owner() for _ in range(most)]
    return await s.store.claim_due(
        DueRuns(frozenset(workflows), owners, seconds, now, queues or {})
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
    queues = {"w": Queue("w", limit=3)}
    held = await other.claim("w0")

    first = await _claim_due(s, 1, queues=queues)
    assert _ids(first) == ["w1"]
    answer = await _taken(other, workflows=["w", "free"], queues=queues)
    assert sorted(answer) == [*_numbered("free", 6), "w2"]
    for chosen in (s, other):
        assert await _taken(chosen, queues=queues) == []
    await s.store.release(first.runs[0].lease)
    await other.store.release(held)
    await s.claim("w0", owner=dead_owner(), seconds=3600)
    await s.claim("w1", owner=ELSEWHERE, seconds=-1)
    assert await _taken(s, queues=queues) == ["w0", "w1"]


async def concurrent_claimants_share_a_limit(s: Service, other: Service) -> None:
    queues = {"held": Queue("held", limit=3), "started": Queue("started", per_second=0.001)}
    for workflow in queues:
        await _create_due(s, *_numbered(workflow, 12), workflow=workflow)
    claims: list[str] = []

    async def take(number: int) -> None:
        chosen = (s, other)[number % 2]
        claims.extend(await _taken(chosen, 2, workflows=queues, queues=queues))

    await at_once(take, range(8))
    claims += await _taken(s, workflows=queues, queues=queues)

    assert len(set(claims)) == len(claims)
    assert sum(run_id.startswith("held") for run_id in claims) == 3
    assert sum(run_id.startswith("started") for run_id in claims) == 1


async def a_limit_bounds_how_fast_pending_runs_are_started(s: Service, other: Service) -> None:
    await _create_due(s, *_numbered("r", 8))
    await s.create("resumed", summary=replace(SUSPENDED, due_at=10.0))
    slow, fast = {"w": Queue("w", per_second=0.001)}, {"fast": Queue("fast", per_second=3)}

    first = await _claim_due(s, queues=slow)
    assert _ids(first) == ["r0", "resumed"]
    for one in first.runs:
        await s.store.release(one.lease)
    assert await _taken(other, queues=slow) == ["resumed"]
    assert await _taken(other, 1) == ["r0"]

    await _create_due(s, *_numbered("f", 8), workflow="fast")
    claims, began = list[str](), time.monotonic()
    with within("no further run is claimed"):
        while len(claims) <= 3:
            claims += await _taken((s, other)[len(claims) % 2], workflows=fast, queues=fast)
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
    queues = {"limited": Queue("limited", limit=1)}

    assert await _taken(s, 1) == ["free0"]
    first, *others = await _taken(s, 2, workflows=["limited", "w"], queues=queues)
    assert first.startswith("limited")
    assert others == ["free1"]
    assert await _taken(s, workflows=["limited", "w"], queues=queues) == ["free2"]


# Queues.

QUEUED = replace(DUE, queue="q", created_at=1.0)


async def _submit(s: Service, **counts: int) -> None:
    """Create runs of these keys in queue `q`, all of one key before those of the next."""
    number = 0.0
    for key, count in counts.items():
        for run_id in _numbered(key, count):
            number += 0.001
            await s.create(run_id, summary=replace(QUEUED, due_at=number, key=key))


async def the_keys_of_a_queue_take_turns(s: Service) -> None:
    """However many runs others have, and in whatever portions runs are claimed."""
    await _submit(s, a=6, b=2, c=1, d=1)

    assert await _taken(s, 1) == ["a0"]
    assert await _taken(s, 1) == ["b0"]
    assert await _taken(s, 3) == ["c0", "d0", "a1"]
    await s.create("late0", summary=replace(QUEUED, key="late", due_at=0.9))
    assert await _taken(s, 3) == ["b1", "late0", "a2"]
    await s.create("a6", summary=replace(QUEUED, key="a", due_at=0.9))
    await s.create("later0", summary=replace(QUEUED, key="later", due_at=0.9))
    assert await _taken(s, 2) == ["later0", "a3"]
    assert await _taken(s) == ["a4", "a5", "a6"]


async def runs_without_a_key_take_their_turn_as_one(s: Service) -> None:
    """Also those of another workflow in the same queue."""
    await _submit(s, a=3)
    for number in range(3):
        later = replace(QUEUED, due_at=0.1 + number / 1000)
        await s.create(f"free{number}", summary=later)
        await s.create(f"other{number}", summary=replace(later, workflow="v", key="o"))

    both = await _taken(s, 1, workflows=["w", "v"]) + await _taken(s, 3, workflows=["w", "v"])
    assert both[:3] == ["a0", "other0", "free0"]
    assert sorted(both[3:] + await _taken(s, workflows=["w", "v"])) == [
        *("a1", "a2", "free1", "free2", "other1", "other2")
    ]


async def a_queue_with_a_higher_priority_comes_first(s: Service) -> None:
    await _create_due(s, "plain0")
    await _submit(s, a=1)
    await s.create("urgent", summary=replace(QUEUED, priority=-1, key="b"))
    queues = {"q": Queue("q", priority=2)}

    assert await _taken(s, 1, queues=queues) == ["a0"]
    assert await _taken(s, queues=queues) == ["urgent", "plain0"]


async def a_limit_per_key_holds_back_only_that_key(s: Service, other: Service) -> None:
    """Also for runs that continue. Dead owners do not count."""
    await _submit(s, a=40, b=3)
    resumed = replace(SUSPENDED, due_at=0.5, queue="q", key="a")
    await s.create("resumed", summary=resumed)
    queues = {"q": Queue("q", per_key=2)}

    first = await _claim_due(s, queues=queues)
    assert _ids(first) == ["resumed", "a0", "b0", "b1"]
    assert await _taken(other, queues=queues) == []
    await s.create("resumed2", summary=resumed)
    assert await _taken(other, queues=queues) == []
    leases = {one.info.run_id: one.lease for one in first.runs}
    await s.store.release(leases["b0"])
    assert await _taken(other, queues=queues) == ["b0"]
    await s.append(leases["resumed"], summary=replace(resumed, due_at=None), release=True)
    assert await _taken(other, 1, queues=queues) == ["resumed2"]
    await s.append(leases["a0"], summary=COMPLETED, release=True)
    assert await _taken(s, queues=queues) == ["a1"]


async def the_limits_of_a_queue_hold_for_all_its_workflows(s: Service) -> None:
    for number, workflow in enumerate(("w", "v", "q", "w")):
        own = "" if workflow == "q" else "q"
        summary = replace(DUE, workflow=workflow, queue=own, due_at=0.1 * number)
        await s.create(f"{workflow}{number}", summary=summary)
    queues = {"q": Queue("q", limit=3)}

    assert await _taken(s, workflows=["w"], queues=queues) == ["w0", "w3"]
    assert await _taken(s, workflows=["w", "v", "q"], queues=queues) == ["v1"]
    stopped = {"q": Queue("q", limit=0)}
    await s.store.delete("q2")
    assert await _taken(s, workflows=["w", "v", "q"], queues=stopped) == []


async def the_runs_of_a_dead_owner_are_left_to_claimants_of_their_workflow(s: Service) -> None:
    """Also in a queue that the claimant knows."""
    await s.create("w", summary=replace(DUE, queue="q"))
    await s.create("v", summary=replace(DUE, workflow="v", queue="q"))
    await s.claim("v", owner=dead_owner(), seconds=3600)
    queues = {"q": Queue("q", limit=2)}
    assert await _taken(s, queues=queues) == ["w"]
    assert await _taken(s, workflows=["v"], queues=queues) == ["v"]


async def a_run_that_waits_for_a_time_does_not_wait_for_its_turn(s: Service) -> None:
    await _submit(s, a=2)
    await s.create("delayed", summary=replace(QUEUED, key="z", due_at=50.0))
    await s.create("future", summary=replace(QUEUED, key="z", due_at=150.0))

    answer = await _claim_due(s, 2)
    assert (_ids(answer), answer.next_due_at) == (["a0", "delayed"], 150.0)
    assert await _taken(s, now=150.0) == ["a1", "future"]


async def no_key_waits_for_long_among_many(s: Service, other: Service) -> None:
    """Two claimants serve them together."""
    await s.create_all([f"a{number}" for number in range(200)], replace(QUEUED, key="a"))
    for number in range(40):
        key = f"k{number:02}"
        await s.create(key, summary=replace(QUEUED, key=key, due_at=0.9))

    claims: list[str] = []
    for number in range(12):
        claims += await _taken((s, other)[number % 2], 4)
    assert {run_id for run_id in claims if run_id.startswith("k")} == {
        f"k{number:02}" for number in range(40)
    }


# Settings.


async def settings_are_shared(s: Service, other: Service) -> None:
    assert await s.store.settings("paused") == {}
    await s.store.save_setting("paused", "queue:ü", b"\0\xff")
    await s.store.save_setting("paused", "b", b"1")
    await other.store.save_setting("paused", "b", b"2")
    await other.store.save_setting("pausedlong", "b", b"3")
    await other.store.save_setting("Paused", "b", b"4")
    assert await s.store.settings("paused") == {"queue:ü": b"\0\xff", "b": b"2"}
    await other.store.save_setting("paused", "b", None)
    await other.store.save_setting("paused", "never", None)
    assert await s.store.settings("paused") == {"queue:ü": b"\0\xff"}
    assert await s.store.settings("pausedlong") == {"b": b"3"}
