"""Check which runs `find` returns, and in which order."""

from __future__ import annotations

from dataclasses import replace

import anyio
import anyio.lowlevel

from effectflow.checkpoint.run_info import RunQuery, RunStatus
from effectflow.testing.store_conformance._check import (
    ELSEWHERE,
    FAILED,
    HOSTILE_RUN_IDS,
    PENDING,
    RUNNING,
    SUSPENDED,
    Journal,
    at_once,
    dead_owner,
    summary_of,
    within,
)


async def find_sorts_the_newest_first_and_then_by_id(s: Journal) -> None:
    """Ids by their code points."""
    run_ids = ["%", "A", "B", "a", "e\u0301", "é", "\uffee", "\U0001f388"]
    for number, run_id in enumerate(reversed(run_ids)):
        await s.create(run_id)
        await s.create(f"r{number}", summary=replace(PENDING, created_at=number + 1.5))

    newest_first = [f"r{number}" for number in reversed(range(len(run_ids)))]
    assert await s.find() == [*newest_first, *run_ids]
    assert await s.find(RunQuery(limit=2)) == newest_first[:2]
    assert await s.find(RunQuery(limit=0)) == []


async def find_selects_runs_by_each_filter_and_by_all(s: Journal) -> None:
    special = replace(FAILED, workflow="special", parent="p%", tenant="t'")
    for number in range(5):
        summary = special if number == 0 else RUNNING
        await s.create(f"r{number}", summary=replace(summary, created_at=4.0 - number))
    first, last = (await s.info("r0")).updated_at, (await s.info("r4")).updated_at
    others, failed = ["r1", "r2", "r3", "r4"], frozenset({RunStatus.FAILED})
    both = failed | {RunStatus.RUNNING}

    queries = {
        RunQuery(run_id="r3"): ["r3"],
        RunQuery(run_id="r"): [],
        RunQuery(workflow="special"): ["r0"],
        RunQuery(workflow=""): [],
        RunQuery(parent="p%"): ["r0"],
        RunQuery(parent="p"): [],
        RunQuery(parent=""): others,
        RunQuery(tenant="t'"): ["r0"],
        RunQuery(tenant=""): others,
        RunQuery(statuses=failed): ["r0"],
        RunQuery(statuses=both, limit=2): ["r0", "r1"],
        RunQuery(updated_before=first): [],
        RunQuery(updated_since=first): ["r0", *others],
        RunQuery(updated_before=last + 60): ["r0", *others],
        RunQuery(updated_since=last + 60): [],
        RunQuery("r0", "special", "r", "p%", "t'", failed, last + 60, first, True): ["r0"],
        RunQuery(workflow="special", tenant="other"): [],
    }
    for query, expected in queries.items():
        assert await s.find(query) == expected, query


async def find_selects_runs_that_can_be_resumed(s: Journal) -> None:
    """Those that have not ended, and that no live owner holds. They have crashed if they were running."""
    for status in RunStatus:
        await s.create(status.value, summary=summary_of(status))
    await s.begin("held")
    await s.begin("held elsewhere", owner=ELSEWHERE)
    await s.begin("expired", owner=ELSEWHERE, seconds=-1)
    await s.begin("dead", owner=dead_owner(), seconds=3600)
    await s.begin("expired, suspended", summary=SUSPENDED, owner=ELSEWHERE, seconds=-1)

    crashed = {"running", "expired", "dead"}
    others = {"completed", "cancelled", "held", "held elsewhere"}
    assert set(await s.find(RunQuery(crashed=True))) == crashed
    assert set(await s.find(RunQuery(crashed=True, resumable=True))) == crashed
    assert set(await s.find(RunQuery(resumable=True))) == set(await s.find()) - others
    # A limit counts those that match.
    assert len(await s.find(RunQuery(crashed=True, limit=3))) == 3


async def find_selects_runs_by_the_beginning_of_their_ids(s: Journal) -> None:
    run_ids = [
        *("a", "A", "ab", "a%", "a%b", "a_b", "aXb", "a*b", "a?b", "a[x]", "ax", "a\\b", "a'b"),
        *("", "%", "_", "é", "e\u0301"),
        *("a\U0010ffff", "a\U0010ffffz", "z\U0010ffff", "a\nb", "a\0b"),
    ]
    for number, run_id in enumerate(run_ids):
        workflow = "ab" if run_id == "ab" else "w"
        summary = replace(PENDING, workflow=workflow, created_at=100.0 - number)
        await s.create(run_id, summary=summary)

    for prefix in [*run_ids, "aX", "a[", "nothing", "a*b?"]:
        expected = [run_id for run_id in run_ids if run_id.startswith(prefix)]
        assert await s.find(RunQuery(prefix=prefix)) == expected, prefix
    query = RunQuery(prefix="a", workflow="w", after=(100.0, "a"), limit=2)
    assert await s.find(query) == ["a%", "a%b"]


async def pages_contain_every_run_once(s: Journal) -> None:
    """Also runs of the same age. A page begins behind a place, whether a run is there or not."""
    run_ids = [f"r{number:03}" for number in range(120)]

    async def create(run_id: str) -> None:
        age = int(run_id[1:]) // 5
        await s.create(run_id, summary=replace(PENDING, created_at=0.1 * (50 - age)))

    await at_once(create, run_ids)

    assert await s.find() == run_ids[:100]
    assert await s.find(RunQuery(limit=None)) == run_ids
    paged: list[str] = []
    after: tuple[float, str] | None = None
    with within("the pages do not end"):
        while page := await s.store.find(RunQuery(after=after, limit=7)):
            after = page[-1].place
            paged += [info.run_id for info in page]
            await s.store.delete(paged[-1])
            # A store that waits for nothing would not let the limit end this.
            await anyio.lowlevel.checkpoint()
    assert paged == run_ids


async def each_run_is_found_once_while_others_are_added_and_removed(s: Journal) -> None:
    """Even if the store reads its runs in several queries."""
    there = {f"r{number:03}" for number in range(450)}
    await s.create_all(there)
    searches = 0

    async def add() -> None:
        number = 0
        while searches < 2:
            number += 1
            await s.create(f"new{number}", summary=replace(PENDING, created_at=float(number)))
            if number % 2:
                await s.store.delete(f"new{number}")
            await anyio.lowlevel.checkpoint()

    with within("find does not end"):
        async with anyio.create_task_group() as group:
            group.start_soon(add)
            while searches < 2:
                seen = await s.find(RunQuery(limit=10**6))
                assert len(seen) == len(set(seen))
                assert there <= set(seen)
                searches += 1


async def hostile_run_ids_are_treated_as_plain_names(s: Journal) -> None:
    for run_id in HOSTILE_RUN_IDS:
        await s.begin(run_id, run_id.encode(), seconds=0)

    for run_id in HOSTILE_RUN_IDS:
        assert await s.bodies(run_id) == [run_id.encode()]
        assert (await s.info(run_id)).run_id == run_id
    assert set(await s.find()) == set(HOSTILE_RUN_IDS)
    for run_id in HOSTILE_RUN_IDS:
        await s.store.delete(run_id)
    assert await s.store.find() == []
