"""Check leases, searches, run ids, and deletions."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import anyio
import anyio.lowlevel

from effectflow.builders.code import workflow
from effectflow.checkpoint import (
    Checkpoints,
    CheckpointStore,
    KeepsHistory,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunNotFound,
    RunQuery,
    RunStatus,
    step,
)
from effectflow.effects import Do, Effect, ask, fail, pure, traverse
from effectflow.testing.store_conformance._check import (
    PATIENCE,
    InThread,
    at_once,
    begun,
    bodies_of,
    check,
    claimed,
    fails,
    found,
    info_of,
    owner_in_another_process,
    renew,
    summary_of,
    within,
    written,
)


@check
async def a_stale_owner_cannot_write(store: CheckpointStore) -> None:
    old = await begun(store, seconds=0)
    new = await claimed(store)

    assert new.fence > old.fence
    with fails(LeaseLost):
        await store.append(old, [b"x"], after=1)
    with fails(LeaseLost):
        renew(store, old, seconds=60)
    await store.release(old)
    await store.append(new, [b"2"], after=1)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def an_expired_lease_stays_valid_until_the_run_is_claimed(store: CheckpointStore) -> None:
    lease = await begun(store, seconds=0)
    renew(store, lease, seconds=60)

    assert await bodies_of(store) == [b"1"]
    with fails(RunBusy):
        await claimed(store)


@check
async def a_held_run_is_busy_until_it_is_released(store: CheckpointStore) -> None:
    lease = await claimed(store)
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.owner == lease.owner
    assert 0 < caught.error.expires_in <= 60

    await store.release(lease)
    again = await claimed(store)
    assert again.fence > lease.fence
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary_of())


@check
async def an_owner_can_claim_a_run_that_it_holds(store: CheckpointStore) -> None:
    """It claims again if it does not know whether its first claim succeeded."""
    owner = str(Owner.new())
    first = await store.claim("r", owner=owner, seconds=60)
    second = await store.claim("r", owner=owner, seconds=60)

    assert second.fence > first.fence
    with fails(LeaseLost):
        await store.append(first, [b"x"], after=0, summary=summary_of())
    with fails(LeaseLost):
        renew(store, first, seconds=60)
    await store.release(first)
    await store.append(second, [b"1"], after=0, summary=summary_of())


@check
async def a_renewal_extends_the_lease(store: CheckpointStore) -> None:
    lease = await claimed(store, seconds=0)
    renewed = renew(store, lease, seconds=60)

    assert renewed.expires_at > lease.expires_at
    with fails(RunBusy):
        await claimed(store)


@check
async def a_lease_is_renewed_while_the_event_loop_is_blocked(store: CheckpointStore) -> None:
    """One other thread renews the leases of all runs."""
    expired = await claimed(store, seconds=0)
    stale = await claimed(store, "taken", seconds=0)
    await claimed(store, "taken")

    renewed = renew(store, expired, seconds=60)
    with fails(LeaseLost):
        renew(store, stale, seconds=60)

    assert (renewed.owner, renewed.fence) == (expired.owner, expired.fence)
    assert renewed.expires_at > expired.expires_at
    with fails(RunBusy):
        await claimed(store)


@check
async def a_concurrent_renewal_never_undoes_a_takeover(store: CheckpointStore) -> None:
    for number in range(10):
        run_id = f"r{number}"
        stale = await claimed(store, run_id, seconds=0)
        renewing, until = threading.Event(), time.monotonic() + PATIENCE

        def is_lost(
            stale: Lease = stale, renewing: threading.Event = renewing, until: float = until
        ) -> bool:
            try:
                while time.monotonic() < until:
                    store.renew(stale, seconds=0)
                    renewing.set()
            except LeaseLost:
                return True
            return False

        renewals = InThread(is_lost)
        assert renewing.wait(timeout=PATIENCE), "no renewal has returned"
        taken = await claimed(store, run_id)
        assert renewals.result(), "a lease is renewed although another owner has claimed the run"
        await store.append(taken, [b"1"], after=0, summary=summary_of())


ELSEWHERE = str(Owner(1, "elsewhere", "1", "1"))
"""An owner on another host, so that this host cannot check whether it is alive."""


@check
async def an_expired_lease_is_free(store: CheckpointStore) -> None:
    lease = await store.claim("r", owner=ELSEWHERE, seconds=60)
    with fails(RunBusy):
        await claimed(store)

    renew(store, lease, seconds=0.3)
    with within(PATIENCE, "the run is still busy"):
        while True:
            with suppress(RunBusy):
                await claimed(store)
                return
            await anyio.sleep(0.01)


@check
async def a_lease_may_end_after_the_year_9999(store: CheckpointStore) -> None:
    seconds = timedelta.max.total_seconds()
    lease = await begun(store, seconds=seconds)
    renew(store, lease, seconds=seconds)
    with fails(RunBusy):
        await claimed(store)
    await store.append(lease, [b"2"], after=1)
    await store.release(lease)
    await claimed(store)


@check
async def a_lease_from_a_slow_clock_can_be_taken_over(store: CheckpointStore) -> None:
    """By its own clock, the owner still holds it, and may write until another owner claims the run."""
    behind = await store.claim("r", owner=ELSEWHERE, seconds=-3600)
    await store.append(behind, [b"1"], after=0, summary=summary_of())
    assert await found(store, RunQuery(resumable=True)) == ["r"]

    taken = await claimed(store)
    with fails(LeaseLost):
        await store.append(behind, [b"x"], after=1)
    with fails(LeaseLost):
        renew(store, behind, seconds=3600)
    await store.release(behind)
    await store.append(taken, [b"2"], after=1)
    with fails(RunBusy):
        await claimed(store)
    assert await bodies_of(store) == [b"1", b"2"]


@check
async def a_renewal_can_shorten_a_lease_from_a_fast_clock(store: CheckpointStore) -> None:
    """A renewal counts from now, even if the lease then ends earlier."""
    ahead = await store.claim("r", owner=ELSEWHERE, seconds=10**8)
    await store.append(ahead, [b"1"], after=0, summary=summary_of())
    with fails(RunBusy) as caught:
        await claimed(store)
    assert caught.error.expires_in > 10**7

    renewed = renew(store, ahead, seconds=60)
    assert renewed.expires_at < ahead.expires_at
    with fails(RunBusy) as caught:
        await store.delete("r")
    assert 0 < caught.error.expires_in <= 60
    again = await store.claim("r", owner=ELSEWHERE, seconds=0)
    assert again.fence > ahead.fence
    await claimed(store)


@check
async def a_run_whose_lease_has_expired_can_be_deleted(store: CheckpointStore) -> None:
    stale = await begun(store, seconds=0)
    await store.delete("r")

    assert await store.info("r") is None
    with fails(LeaseLost):
        await store.append(stale, [b"x"], after=0, summary=summary_of())


@check
async def a_lease_of_a_dead_process_is_free_at_once(store: CheckpointStore) -> None:
    async with owner_in_another_process() as owner:
        for run_id in ("r", "deleted"):
            lease = await store.claim(run_id, owner=owner, seconds=3600)
            await store.append(lease, [b"1"], after=0, summary=summary_of())
            with fails(RunBusy):
                await store.claim(run_id, owner=str(Owner.new()), seconds=60)
        with fails(RunBusy):
            await store.delete("deleted")

    await claimed(store)
    await store.delete("deleted")
    assert await found(store) == ["r"]


@check
async def the_holder_of_a_run_can_delete_it(store: CheckpointStore) -> None:
    """So no other process can claim the run between its last append and the deletion."""
    lease = await begun(store)
    with fails(RunBusy):
        await store.delete("r")
    await store.delete("r", lease=lease)
    assert await store.info("r") is None
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary_of())
    with fails(RunNotFound):
        await store.delete("r", lease=lease)

    stale = await begun(store, "taken", seconds=0)
    taken = await claimed(store, "taken")
    with fails(LeaseLost):
        await store.delete("taken", lease=stale)
    await store.release(taken)
    with fails(LeaseLost):
        await store.delete("taken", lease=taken)
    assert await bodies_of(store, "taken") == [b"1"]


@check
async def a_lost_lease_names_its_new_owner_if_there_is_one(store: CheckpointStore) -> None:
    stale = await begun(store, seconds=0)
    taken = await claimed(store)
    with fails(LeaseLost) as caught:
        await store.append(stale, [b"x"], after=1)
    assert caught.error.owner == taken.owner
    assert taken.owner in str(caught.error)

    await store.release(taken)
    with fails(LeaseLost) as caught:
        await store.append(taken, [b"x"], after=1)
    assert caught.error.owner == ""
    assert "resume the run" in str(caught.error)


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


@check
async def find_selects_runs_and_sorts_the_newest_first(store: CheckpointStore) -> None:
    for number in range(5):
        lease = await claimed(store, f"r{number}")
        status = RunStatus.COMPLETED if number % 2 else RunStatus.FAILED
        row = summary_of(status, workflow="even" if number % 2 == 0 else "odd", created_at=number)
        await store.append(lease, [b"x"], after=0, summary=row, release=number != 4)

    assert await found(store) == ["r4", "r3", "r2", "r1", "r0"]
    assert await found(store, RunQuery(limit=2)) == ["r4", "r3"]
    assert await found(store, RunQuery(limit=2, offset=3)) == ["r1", "r0"]
    assert await found(store, RunQuery(offset=9)) == []
    assert await found(store, RunQuery(limit=0)) == []
    assert await found(store, RunQuery(limit=0, offset=2)) == []
    assert await found(store, RunQuery(workflow="odd")) == ["r3", "r1"]
    failed = RunQuery(statuses=frozenset({RunStatus.FAILED}))
    assert await found(store, failed) == ["r4", "r2", "r0"]
    # A live process holds r4.
    assert await found(store, RunQuery(resumable=True)) == ["r2", "r0"]
    assert await found(store, RunQuery(updated_before=time.time() - 60)) == []
    assert len(await found(store, RunQuery(updated_before=time.time() + 60))) == 5


@check
async def find_selects_runs_by_the_beginning_of_their_ids(store: CheckpointStore) -> None:
    run_ids = [
        *("a", "A", "ab", "a%", "a%b", "a_b", "aXb", "a*b", "a?b", "a[x]", "ax", "a\\b", "a'b"),
        *(
            "",
            "%",
            "_",
            "é",
            "e\u0301",
            "a\U0010ffff",
            "a\U0010ffffz",
            "z\U0010ffff",
            "a\nb",
            "a\0b",
        ),
    ]
    for number, run_id in enumerate(run_ids):
        summary = summary_of(workflow="ab" if run_id == "ab" else "w", created_at=100.0 - number)
        await written(store, run_id, b"1", summary=summary)

    for prefix in [*run_ids, "aX", "a[", "nothing", "a*b?"]:
        expected = [run_id for run_id in run_ids if run_id.startswith(prefix)]
        assert await found(store, RunQuery(prefix=prefix)) == expected, prefix
    query = RunQuery(prefix="a", workflow="w", offset=1, limit=2)
    assert await found(store, query) == ["a%", "a%b"]


@check
async def find_without_a_limit_returns_all_runs(store: CheckpointStore) -> None:
    run_ids = [f"r{number:03}" for number in range(120)]
    await at_once(lambda run_id: written(store, run_id, b"x"), run_ids)

    assert await found(store, RunQuery(limit=None)) == run_ids
    assert await found(store, RunQuery(limit=None, offset=100)) == run_ids[100:]


@check
async def a_run_is_resumable_until_it_is_completed_or_cancelled(store: CheckpointStore) -> None:
    for status in RunStatus:
        await written(store, status.value, b"x", summary=summary_of(status))

    resumable = await found(store, RunQuery(resumable=True))
    assert set(resumable) == {"pending", "running", "suspended", "interrupted", "failed"}
    cancelled = RunQuery(statuses=frozenset({RunStatus.CANCELLED}))
    assert await found(store, cancelled) == ["cancelled"]


@check
async def pages_contain_every_run_once(store: CheckpointStore) -> None:
    run_ids = [f"r{number:02}" for number in range(23)]
    for run_id in run_ids:
        await written(store, run_id, b"x")

    paged: list[str] = []
    for _ in run_ids:
        paged += await found(store, RunQuery(limit=5, offset=len(paged)))
    assert paged == run_ids


@check
async def each_run_is_found_once_while_others_are_added(store: CheckpointStore) -> None:
    """Even if the store reads its runs in several queries."""
    there = {f"r{number:03}" for number in range(450)}
    await at_once(lambda run_id: written(store, run_id, b"x"), there)

    searches = 0

    async def add() -> None:
        number = 0
        while searches < 2:
            number += 1
            await written(store, f"new{number}", b"x", summary=summary_of(created_at=number))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(add)
        while searches < 2:
            seen = await found(store, RunQuery(limit=10**6))
            assert len(seen) == len(set(seen))
            assert there <= set(seen)
            searches += 1


@check
async def a_stale_owner_cannot_restore_a_deleted_run(store: CheckpointStore) -> None:
    lease = await begun(store)
    with fails(RunBusy):
        await store.delete("r")
    await store.release(lease)
    await store.delete("r")

    assert await store.read("r") == []
    assert await store.info("r") is None
    assert await store.find() == []
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, summary=summary_of())
    await written(store, "r", b"anew")
    assert await bodies_of(store) == [b"anew"]


@check
async def hostile_run_ids_are_treated_as_plain_names(store: CheckpointStore) -> None:
    for run_id in HOSTILE_RUN_IDS:
        await written(store, run_id, run_id.encode())

    for run_id in HOSTILE_RUN_IDS:
        assert await bodies_of(store, run_id) == [run_id.encode()]
        info = await info_of(store, run_id)
        assert info.run_id == run_id
    assert set(await found(store)) == set(HOSTILE_RUN_IDS)
    for run_id in HOSTILE_RUN_IDS:
        await store.delete(run_id)
    assert await store.find() == []


@dataclass(frozen=True)
class _App:
    checkpoints: Checkpoints
    is_broken: bool = False


@step
def _deliver(item: str) -> Effect[_App, str, str]:
    def perform(app: _App) -> Effect[object, str, str]:
        return fail("broken") if app.is_broken else pure(item)

    return ask(_App).and_then(perform)


@workflow
def _delivery(items: list[str]) -> Do[_App, str, list[str]]:
    return (yield from traverse(items, _deliver))


@check
async def a_completed_run_is_deleted_unless_it_is_preserved(store: CheckpointStore) -> None:
    """A failed run stays and can be resumed. A deleted run can be started again."""
    checkpoints = Checkpoints(store, preserve=False)
    for _ in range(2):
        await _delivery.start(["a", "b"], run_id="r").run(_App(checkpoints, is_broken=True))
        info = await info_of(store)
        assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)

        assert await _delivery.resume("r").run_or_raise(_App(checkpoints)) == ["a", "b"]
        assert await store.info("r") is None
        assert await store.read("r") == []
        assert await store.find() == []
        with fails(RunNotFound):
            await store.delete("r")


@check
async def a_history_limit_removes_no_records(store: CheckpointStore) -> None:
    """At any value, set at any time. Each run has its own limit."""
    if not isinstance(store, KeepsHistory):
        return
    expected: dict[str, list[bytes]] = {"r0": [], "r1": [], "other": []}
    for limits in ((0, 1), (10, 0), (1, 2)):
        for run_id, limit in zip(("r0", "r1"), limits, strict=True):
            store.keep_history(run_id, limit)
        for run_id, bodies in expected.items():
            lease = await claimed(store, run_id)
            for number in range(4):
                await store.append(lease, [b"%d" % number], after=len(bodies), summary=summary_of())
                bodies.append(b"%d" % number)
            await store.release(lease)

    for run_id, bodies in expected.items():
        assert await bodies_of(store, run_id) == bodies
    await store.delete("r0")
    assert set(await found(store)) == {"r1", "other"}
