"""The progress of a job, from its checkpoint after any entry."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from effectflow import Checkpoints, Do, do, par_traverse, pure, step, workflow
from effectflow.builders.progress import JobCounter
from effectflow.checkpoint import BeforeStep, CheckpointError, Entry, read_checkpoint, read_entries
from effectflow.checkpoint.checkpoint import fold
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.mapreduce import JobProgress, job_history, job_progress
from effectflow.stores import MemoryStore
from tests.builders.mapreduce.world import App, app_around, spelling
from tests.runs.journals import made_of

pytestmark = pytest.mark.anyio


def progress_of(entries: list[Entry]) -> JobProgress:
    progress = job_progress(fold(entries, "r"))
    assert progress is not None
    return progress


@pytest.mark.parametrize("has_length", [True, False])
async def test_progress_is_known_after_every_entry_of_a_job(
    store: MemoryStore, has_length: bool
) -> None:
    job = spelling(items=lambda n: range(n) if has_length else iter(range(n)), limit=1, fan_in=2)
    total = 3 if has_length else None
    await job.start(3, run_id="r").run(app_around(store))
    entries = await read_entries(store, "r")

    seen = dict.fromkeys(progress_of(entries[:count]) for count in range(1, len(entries) + 1))

    def at(
        phase: str, items: int, total: int | None, reduce_round: int, groups: int
    ) -> JobProgress:
        return JobProgress(None, phase, items, 0, total, reduce_round, groups)  # pyright: ignore[reportArgumentType]

    assert list(seen) == [
        at("map", 0, None, 0, 0),
        *([at("map", 0, 3, 0, 0)] if has_length else []),
        at("map", 1, total, 0, 0),
        at("map", 2, total, 0, 0),
        at("map", 2, total, 1, 0),
        at("map", 2, total, 1, 1),
        at("map", 3, total, 1, 1),
        at("reduce", 3, 3, 1, 1),
        at("reduce", 3, 3, 1, 2),
        at("reduce", 3, 3, 2, 2),
        at("reduce", 3, 3, 2, 3),
        at("complete", 3, 3, 2, 3),
    ]


async def test_failed_items_are_counted_until_they_succeed(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, 2)
    job = spelling(on_item_failure="dead_letter")
    await job.start(4, run_id="r").run(app)
    before = progress_of(await read_entries(store, "r"))
    app.world.repair(2)
    await job.retry_dead_letters("r").run(app)
    after = progress_of(await read_entries(store, "r"))

    assert (before.items_done, before.items_failed, before.items_total) == (2, 2, 4)
    assert (after.items_done, after.items_failed, after.items_total) == (3, 1, 4)


async def test_a_retry_is_in_the_map_phase_again(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = spelling(on_item_failure="dead_letter")
    await job.start(4, run_id="r").run(app)
    complete = len(await read_entries(store, "r"))
    await job.retry_dead_letters("r").run(app)
    entries = await read_entries(store, "r")

    # Resumed, and the BeforeStep of the item.
    assert progress_of(entries[: complete + 2]).phase == "map"
    assert progress_of(entries).phase == "complete"


async def test_keys_may_be_any_text(store: MemoryStore) -> None:
    job = spelling(key=lambda number: f"a/b]/[{number}\n#2%/map[x]")
    await job.start(5, run_id="r").run(app_around(store))

    assert progress_of(await read_entries(store, "r")).items_done == 5


async def test_the_progress_of_an_iterative_run_is_that_of_its_round(store: MemoryStore) -> None:
    inner = spelling()

    @do
    def one_more(count: int) -> Do[App, CheckpointError, int]:
        result = yield from inner.body(count)
        return result.items + 1

    job = Iterative("c", one_more, converged=lambda before, after: False, max_rounds=3)
    await job.start(4, run_id="r").run(app_around(store))
    entries = await read_entries(store, "r")
    progress = [progress_of(entries[:count]) for count in range(1, len(entries) + 1)]

    assert [one.iteration for one in progress] == sorted(one.iteration or 0 for one in progress)
    last_of_round = {one.iteration: one for one in progress}
    assert {number: (one.items_done, one.items_total) for number, one in last_of_round.items()} == {
        0: (0, None),
        1: (4, 4),
        2: (5, 5),
        3: (6, 6),
    }


async def test_the_last_job_within_another_workflow_is_found(store: MemoryStore) -> None:
    first, second = spelling(), spelling()

    @workflow
    def both(count: int) -> Do[App, Any, str]:
        before = yield from first.body(count)
        after = yield from second.body(before.items + 1)
        return before.value + after.value

    graph = (
        StateGraph("around")
        .node("inner job", both)
        .node("say", lambda text: pure(text))
        .edge("inner job", "say")
        .entry("inner job")
        .exit("say")
        .build()
    )
    for run_id, outer in (("code", both), ("graph", graph)):
        await outer.start(4, run_id=run_id).run(app_around(store))
        entries = await read_entries(store, run_id)
        seen = [job_progress(fold(entries[:end], run_id)) for end in range(1, len(entries) + 1)]
        counts = [(one.items_done, one.items_total) for one in seen if one]

        assert seen[0] is None
        assert [one for one, _ in groupby(counts)] == [
            *((done, 4) for done in range(5)),
            *((done, 5) for done in range(6)),
        ]


async def test_other_runs_have_no_progress(store: MemoryStore) -> None:
    plain = made_of(lambda: pure(None))

    await plain.start(None, run_id="r").run(App(Checkpoints(store)))

    assert job_progress(await read_checkpoint(store, "r")) is None


async def test_the_history_of_a_job_has_the_times_of_its_phases(store: MemoryStore) -> None:
    job = spelling(limit=1, fan_in=2)
    await job.start(3, run_id="r").run(app_around(store))
    entries = await read_entries(store, "r")

    histories = [job_history(fold(entries[:count], "r")) for count in range(1, len(entries) + 1)]
    shown = [
        [(phase.name, phase.round, phase.ended is not None) for phase in history]
        for history in histories
    ]

    mapping, first = ("map", 0, False), ("reduce", 1, False)
    mapped, reduced = ("map", 0, True), ("reduce", 1, True)
    assert [history for history, _ in groupby(shown)] == [
        [],
        [mapping],
        [mapping, first],
        [mapped, first],
        [mapped, first, ("reduce", 2, False)],
        [mapped, reduced, ("reduce", 2, False)],
        [mapped, reduced, ("reduce", 2, True)],
    ]
    phases = histories[-1]
    begun, ended = entries[1].at, [phase.ended for phase in phases]
    assert abs(phases[0].began - begun) < 0.1
    assert ended == sorted(end for end in ended if end is not None)
    assert all(phase.began <= (phase.ended or 0) for phase in phases)


async def test_a_run_without_a_job_has_no_history(store: MemoryStore) -> None:
    await made_of(lambda: pure(1)).start(None, run_id="r").run(app_around(store))
    assert job_history(await read_checkpoint(store, "r")) == ()


async def test_an_operator_over_a_list_knows_its_total_also_after_a_resume(
    store: MemoryStore,
) -> None:
    broken = {7}

    @step
    async def half(number: int) -> int:
        if number in broken:
            raise ValueError(number)
        return number // 2

    @do
    def quartered(number: int) -> Do[App, Any, int]:
        return (yield from half((yield from half(number))))

    @workflow
    def quarters(numbers: list[int]) -> Do[App, Any, list[int]]:
        yield from half(0)
        return (yield from par_traverse(numbers, quartered, limit=1, key=str))

    app, numbers = App(Checkpoints(store)), [*range(10, 5, -1)]
    with pytest.raises(ValueError, match="7"):
        await quarters.start(numbers, run_id="r").run(app)
    stopped = progress_of(await read_entries(store, "r"))
    assert (stopped.items_done, stopped.items_failed, stopped.items_total) == (3, 1, 5)
    assert (stopped.phase, str(stopped)) == ("map", "3 of 5 items, 1 failed")

    broken.clear()
    await quarters.resume("r").run(app)
    entries = await read_entries(store, "r")
    totals = [entry.items for entry in entries if isinstance(entry, BeforeStep) and entry.items]
    # In the first step of each life that begins one.
    assert totals == [5, 5]
    done = progress_of(entries)
    assert (done.items_done, done.items_total, done.phase) == (5, 5, "complete")


def test_the_speed_is_that_of_the_steps_of_this_life() -> None:
    counter = JobCounter()
    counter.expect("par_traverse", 10)
    for item in range(4):
        counter.end(f"par_traverse[{item}]/s")
    assert counter.job is not None
    assert counter.job.progress().seconds_left is None
    for item in range(4, 7):
        counter.begin(f"par_traverse[{item}]/s", at=100.0 + item)
        counter.end(f"par_traverse[{item}]/s", at=101.0 + item)
    progress = counter.job.progress()
    assert (progress.items_done, progress.per_second, progress.seconds_left) == (7, 1.0, 3.0)
