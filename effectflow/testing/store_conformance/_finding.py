"""Check which runs `find` returns, and in which order."""

from __future__ import annotations

from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint.store import CheckpointStore, RunQuery, RunStatus
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    HOSTILE_RUN_IDS,
    JOURNAL,
    at_once,
    begun,
    bodies_of,
    created,
    dead_owner,
    found,
    info_of,
    summary_of,
    within,
)


@JOURNAL.check
async def find_sorts_the_newest_first_and_then_by_id(store: CheckpointStore) -> None:
    """Ids by their code points."""
    run_ids = ["%", "A", "B", "a", "e\u0301", "é", "\uffee", "\U0001f388"]
    for number, run_id in enumerate(reversed(run_ids)):
        await created(store, run_id)
        await created(store, f"r{number}", summary=summary_of(created_at=number + 1))

    newest_first = [f"r{number}" for number in reversed(range(len(run_ids)))]
    assert await found(store) == [*newest_first, *run_ids]
    assert await found(store, RunQuery(limit=2)) == newest_first[:2]
    assert await found(store, RunQuery(limit=0)) == []


@JOURNAL.check
async def find_selects_runs(store: CheckpointStore) -> None:
    """By each filter alone, and by all of them."""
    special = summary_of(RunStatus.FAILED, workflow="special", parent="p%", tenant="t'")
    for number, summary in enumerate([special, *(summary_of() for _ in range(4))]):
        await created(store, f"r{number}", summary=replace(summary, created_at=4.0 - number))
    times = {run_id: (await info_of(store, run_id)).updated_at for run_id in ("r0", "r4")}

    queries = {
        RunQuery(run_id="r3"): ["r3"],
        RunQuery(run_id="r"): [],
        RunQuery(workflow="special"): ["r0"],
        RunQuery(workflow=""): [],
        RunQuery(parent="p%"): ["r0"],
        RunQuery(parent="p"): [],
        RunQuery(parent=""): ["r1", "r2", "r3", "r4"],
        RunQuery(tenant="t'"): ["r0"],
        RunQuery(tenant=""): ["r1", "r2", "r3", "r4"],
        RunQuery(statuses=frozenset({RunStatus.FAILED})): ["r0"],
        RunQuery(statuses=frozenset({RunStatus.FAILED, RunStatus.RUNNING}), limit=2): ["r0", "r1"],
        RunQuery(updated_before=times["r0"]): [],
        RunQuery(updated_since=times["r0"]): ["r0", "r1", "r2", "r3", "r4"],
        RunQuery(updated_before=times["r4"] + 60): ["r0", "r1", "r2", "r3", "r4"],
        RunQuery(updated_since=times["r4"] + 60): [],
        RunQuery(
            run_id="r0",
            workflow="special",
            prefix="r",
            parent="p%",
            tenant="t'",
            statuses=frozenset({RunStatus.FAILED}),
            updated_before=times["r4"] + 60,
            updated_since=times["r0"],
            resumable=True,
        ): ["r0"],
        RunQuery(workflow="special", tenant="other"): [],
    }
    for query, expected in queries.items():
        assert await found(store, query) == expected, query


@JOURNAL.check
async def find_selects_runs_that_can_be_resumed(store: CheckpointStore) -> None:
    """Those that have not ended, and that no live owner holds. They have crashed if they were running."""
    for status in RunStatus:
        await created(store, status.value, summary=summary_of(status))
    await begun(store, "held")
    await begun(store, "held elsewhere", owner=ELSEWHERE)
    await begun(store, "expired", owner=ELSEWHERE, seconds=-1)
    await begun(store, "dead", owner=dead_owner(), seconds=3600)
    suspended = summary_of(RunStatus.SUSPENDED)
    await begun(store, "expired, suspended", summary=suspended, owner=ELSEWHERE, seconds=-1)

    crashed = {"running", "expired", "dead"}
    ended = {"completed", "cancelled"}
    held = {"held", "held elsewhere"}
    assert set(await found(store, RunQuery(crashed=True))) == crashed
    assert set(await found(store, RunQuery(crashed=True, resumable=True))) == crashed
    everything = set(await found(store))
    assert set(await found(store, RunQuery(resumable=True))) == everything - ended - held
    # A limit counts those that match.
    assert len(await found(store, RunQuery(crashed=True, limit=3))) == 3


@JOURNAL.check
async def find_selects_runs_by_the_beginning_of_their_ids(store: CheckpointStore) -> None:
    run_ids = [
        *("a", "A", "ab", "a%", "a%b", "a_b", "aXb", "a*b", "a?b", "a[x]", "ax", "a\\b", "a'b"),
        *("", "%", "_", "é", "e\u0301"),
        *("a\U0010ffff", "a\U0010ffffz", "z\U0010ffff", "a\nb", "a\0b"),
    ]
    for number, run_id in enumerate(run_ids):
        workflow = "ab" if run_id == "ab" else "w"
        summary = summary_of(workflow=workflow, created_at=100.0 - number)
        await created(store, run_id, summary=summary)

    for prefix in [*run_ids, "aX", "a[", "nothing", "a*b?"]:
        expected = [run_id for run_id in run_ids if run_id.startswith(prefix)]
        assert await found(store, RunQuery(prefix=prefix)) == expected, prefix
    query = RunQuery(prefix="a", workflow="w", after=(100.0, "a"), limit=2)
    assert await found(store, query) == ["a%", "a%b"]


@JOURNAL.check
async def pages_contain_every_run_once(store: CheckpointStore) -> None:
    """Also runs of the same age. A page begins behind a place, whether a run is there or not."""
    run_ids = [f"r{number:02}" for number in range(23)]
    for number, run_id in enumerate(run_ids):
        await created(store, run_id, summary=summary_of(created_at=0.1 * (5 - number // 5)))

    paged: list[str] = []
    after: tuple[float, str] | None = None
    with within("the pages do not end"):
        while page := await store.find(RunQuery(after=after, limit=3)):
            after = page[-1].place
            paged += [info.run_id for info in page]
            await store.delete(paged[-1])
    assert paged == run_ids


@JOURNAL.check
async def find_without_a_limit_returns_all_runs(store: CheckpointStore) -> None:
    run_ids = [f"r{number:03}" for number in range(120)]

    async def create(run_id: str) -> None:
        await created(store, run_id)

    await at_once(create, run_ids)

    assert await found(store, RunQuery(limit=None)) == run_ids
    assert await found(store) == run_ids[:100]
    behind = RunQuery(limit=None, after=(0.0, run_ids[99]))
    assert await found(store, behind) == run_ids[100:]


@JOURNAL.check
async def each_run_is_found_once_while_others_are_added_and_removed(
    store: CheckpointStore,
) -> None:
    """Even if the store reads its runs in several queries."""
    there = {f"r{number:03}" for number in range(450)}

    async def create(run_id: str) -> None:
        await created(store, run_id)

    await at_once(create, there)
    searches = 0

    async def add() -> None:
        number = 0
        while searches < 2:
            number += 1
            await created(store, f"new{number}", summary=summary_of(created_at=number))
            if number % 2:
                await store.delete(f"new{number}")
            await anyio.lowlevel.checkpoint()

    with within("find does not end"):
        async with anyio.create_task_group() as group:
            group.start_soon(add)
            while searches < 2:
                seen = await found(store, RunQuery(limit=10**6))
                assert len(seen) == len(set(seen))
                assert there <= set(seen)
                searches += 1


@JOURNAL.check
async def hostile_run_ids_are_treated_as_plain_names(store: CheckpointStore) -> None:
    for run_id in HOSTILE_RUN_IDS:
        await created(store, run_id, run_id.encode())

    for run_id in HOSTILE_RUN_IDS:
        assert await bodies_of(store, run_id) == [run_id.encode()]
        assert (await info_of(store, run_id)).run_id == run_id
    assert set(await found(store)) == set(HOSTILE_RUN_IDS)
    for run_id in HOSTILE_RUN_IDS:
        await store.delete(run_id)
    assert await store.find() == []
