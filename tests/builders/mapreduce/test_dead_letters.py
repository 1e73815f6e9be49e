"""Failed items are set aside, and can be retried alone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings, strategies as st
from returns.result import Success

from effectflow import Effect, RetryExhausted, RetryPolicy, effect, fail, pure
from effectflow.checkpoint import (
    DefinitionChanged,
    Failed,
    NotSerializable,
    RunNotFound,
    RunStatus,
    SetAside,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.effects import from_async
from effectflow.mapreduce import ItemFailed, JobResult
from effectflow.stores import MemoryStore
from tests.apps import cut_off
from tests.builders.mapreduce.world import (
    App,
    Broken,
    Source,
    World,
    app_around,
    join,
    setting_aside,
    spell,
    spelled,
    spelling,
)
from tests.runs.journals import stopped_once

pytestmark = pytest.mark.anyio

TWICE = RetryPolicy.constant(0).with_max_retries(1)


def letters(result: JobResult[Any, Any, Any]) -> list[tuple[str, str, int]]:
    return [(letter.key, repr(letter.error), letter.attempts) for letter in result.dead_letters]


async def test_a_failed_item_is_set_aside_and_the_others_continue(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(7, 3)

    result = (await setting_aside().start(11, run_id="r").run(app)).unwrap()

    assert result.value == spelled(11, without=(3, 7))
    assert result.items == 11
    assert letters(result) == [("3", "Broken('item 3')", 1), ("7", "Broken('item 7')", 1)]
    assert (await read_checkpoint(store, "r")).status is RunStatus.COMPLETED


async def test_the_journal_has_the_error_and_the_attempts(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    await setting_aside(retry=TWICE).start(3, run_id="r").run(app)

    entries = await read_entries(store, "r")
    failed = [entry for entry in entries if isinstance(entry, Failed)]
    [recorded] = [entry for entry in entries if isinstance(entry, SetAside)]
    assert [(one.step, one.error.message) for one in failed] == [("map[1]/spell", "item 1")] * 2
    assert [one.retry_at is None for one in failed] == [False, True]
    assert recorded.path == "map[1]/dead_letter"
    assert recorded.value == {"item": 1, "failed": 1}


async def test_errors_of_dead_letters_are_restored_exactly(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside(retry=TWICE)
    first = (await job.start(3, run_id="r").run(app)).unwrap()

    again = (await job.resume("r").run(app)).unwrap()

    for result in (first, again):
        [letter] = result.dead_letters
        assert letters(result) == [("1", "Broken('item 1')", 2)]
        assert isinstance(letter.error, Broken)
        assert letter.error.times == 2


async def test_a_resume_does_not_retry_dead_letters(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    stuck = True

    @effect
    async def spell_or_hang(app: App, number: int) -> str:
        if number == 9 and stuck:
            await anyio.sleep_forever()
        return str(number)

    def mapped(number: int) -> Effect[App, Broken, str]:
        app.world.mapped.append(number)
        return fail(Broken(1, times=1)) if number == 1 else spell_or_hang(number)

    job = setting_aside(map=mapped)
    await cut_off(job.start(12, run_id="r"), app)
    app.world.forget()
    stuck = False

    result = (await job.resume("r").run(app)).unwrap()

    assert letters(result) == [("1", "Broken('item 1')", 1)]
    assert result.value == spelled(12, without=(1,))
    assert 1 not in app.world.mapped


async def test_a_retry_repeats_only_dead_letters_and_their_groups(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(4, 13)
    await setting_aside().start(18, run_id="r").run(app)
    app.world.repair(4)
    app.world.forget()

    result = (await setting_aside().retry_dead_letters("r").run(app)).unwrap()

    assert sorted(app.world.mapped) == [4, 13]
    assert result.value == spelled(18, without=(13,))
    assert letters(result) == [("13", "Broken('item 13')", 2)]
    assert sorted(map(" ".join, app.world.reduced)) == sorted(
        ["3 4 5", spelled(9), f"{spelled(9)} {' '.join(str(n) for n in range(9, 18) if n != 13)}"]
    )


async def test_a_retry_replaces_the_result_of_the_run(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside()
    await job.start(3, run_id="r").run(app)
    app.world.repair()
    retried = await job.retry_dead_letters("r").run(app)
    app.world.forget()

    assert retried == Success(JobResult("0 1 2", 3))
    for again in (job.resume("r"), job.start(3, run_id="r"), job.retry_dead_letters("r")):
        assert await again.run(app) == retried
    assert app.world.mapped == []
    assert (await read_checkpoint(store, "r")).status is RunStatus.COMPLETED


async def test_attempts_add_up_over_all_retries(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside(retry=TWICE)
    found = [await job.start(3, run_id="r").run(app)]
    found += [await job.retry_dead_letters("r").run(app) for _ in range(2)]

    attempts = [result.unwrap().dead_letters[0].attempts for result in found]
    assert attempts == [2, 4, 6]


async def test_a_job_whose_items_all_failed_reduces_an_empty_list(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(*range(10))
    job = setting_aside()

    result = (await job.start(10, run_id="r").run(app)).unwrap()
    assert result.value == ""
    assert len(result.dead_letters) == 10
    assert app.world.reduced == [[]]

    app.world.repair()
    assert await job.retry_dead_letters("r").run(app) == Success(JobResult(spelled(10), 10))


async def test_a_resume_continues_an_interrupted_retry(store: MemoryStore) -> None:
    began = anyio.Event()

    async def hang_once(app: App) -> None:
        if not (app.world.failures_left or began.is_set()):
            began.set()
            await anyio.sleep_forever()

    def hesitate(number: int) -> Effect[App, Broken, str]:
        return from_async(hang_once).and_then(lambda _: spell(number))

    app = app_around(store)
    app.world.break_items(2, 5)
    job = setting_aside(map=hesitate)
    await job.start(8, run_id="r").run(app)

    app.world.repair()
    await stopped_once(began, job.retry_dead_letters("r"), app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.INTERRUPTED

    assert await job.resume("r").run(app) == Success(JobResult(spelled(8), 8))


async def test_a_retry_whose_source_fails_keeps_the_result_and_can_be_continued(
    store: MemoryStore,
) -> None:
    app = app_around(store)
    app.world.break_items(1)
    is_lost = False

    def listing(count: int) -> Effect[App, str, range]:
        return fail("no source") if is_lost else pure(range(count))

    job = setting_aside(items=listing)
    first = await job.start(3, run_id="r").run(app)
    is_lost = True

    for _ in range(2):
        assert isinstance((await job.retry_dead_letters("r").run(app)).failure(), DefinitionChanged)
        assert repr(await job.start(3, run_id="r").run(app)) == repr(first)
    assert app.world.mapped.count(1) == 1

    is_lost = False
    app.world.repair()
    assert await job.retry_dead_letters("r").run(app) == Success(JobResult("0 1 2", 3))
    assert await job.start(3, run_id="r").run(app) == Success(JobResult("0 1 2", 3))
    assert (await verify_run(store, "r")).problem is None


async def test_a_retry_whose_source_grew_maps_the_new_items_too(store: MemoryStore) -> None:
    source, app = Source([0, 1, 2]), app_around(store)
    app.world.break_items(1)
    job = source.job(on_item_failure="dead_letter")
    await job.start(None, run_id="r").run(app)
    app.world.repair()
    app.world.forget()
    source.items.append(3)

    assert await job.retry_dead_letters("r").run(app) == Success(JobResult("0 1 2 3", 4))
    assert sorted(app.world.mapped) == [1, 3]
    assert await job.start(None, run_id="r").run(app) == Success(JobResult("0 1 2 3", 4))
    assert (await verify_run(store, "r")).problem is None


async def test_during_a_retry_start_yields_the_earlier_result(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    asked: list[Any] = []

    @effect(errors=Broken)
    async def ask_meanwhile(app: App, number: int) -> str:
        if is_retry:
            asked.append(await job.start(3, run_id="r").run(app))
        return await spell(number).run_or_raise(app)

    is_retry = False
    job = setting_aside(map=ask_meanwhile)
    first = await job.start(3, run_id="r").run(app)
    is_retry = True
    app.world.repair()

    assert await job.retry_dead_letters("r").run(app) == Success(JobResult("0 1 2", 3))
    assert [repr(answer) for answer in asked] == [repr(first)]


async def test_a_retry_of_an_incomplete_run_continues_it(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(4)
    await spelling().start(6, run_id="r").run(app)
    app.world.repair()

    assert await spelling().retry_dead_letters("r").run(app) == Success(JobResult(spelled(6), 6))


async def test_a_retry_fails_as_a_resume_does(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    await setting_aside().start(3, run_id="r").run(app)
    changed = setting_aside(version="2")

    assert isinstance((await changed.retry_dead_letters("q").run(app)).failure(), RunNotFound)
    assert isinstance((await changed.retry_dead_letters("r").run(app)).failure(), DefinitionChanged)
    app.world.repair()
    assert await changed.retry_dead_letters("r", force=True).run(app) == Success(
        JobResult("0 1 2", 3)
    )


async def test_an_error_that_cannot_be_restored_is_rejected_at_the_first_item(
    store: MemoryStore,
) -> None:
    class Undeclared(Exception):
        pass

    job = setting_aside(map=lambda number: fail(Undeclared("no")), limit=1)

    error = (await job.start(100, run_id="r").run(app_around(store))).failure()

    assert isinstance(error, NotSerializable)
    assert "map[0]/map" in str(error)
    assert "Declare its class" in str(error)


@given(
    count=st.integers(0, 30),
    broken=st.lists(st.sets(st.integers(0, 29)), min_size=1, max_size=3),
    fan_in=st.integers(2, 5),
    limit=st.integers(1, 8),
)
@settings(max_examples=30)
def test_after_any_retries_the_result_is_as_if_the_items_had_succeeded_at_once(
    count: int, broken: list[set[int]], fan_in: int, limit: int
) -> None:
    """Each retry yields the value of a new run in which the same items fail."""

    async def main() -> None:
        async with MemoryStore() as store:
            app = app_around(store)
            job = setting_aside(fan_in=fan_in, limit=limit)
            failing = set(range(count))
            result: JobResult[Any, Any, Any] = JobResult("", 0)
            for number, items in enumerate([*broken, set[int]()]):
                failing &= items
                app.world.repair()
                app.world.break_items(*failing)
                life = job.retry_dead_letters("r") if number else job.start(count, run_id="r")
                result = (await life.run(app)).unwrap()

                fresh = app_around(store, World())
                fresh.world.break_items(*failing)
                at_once = (await job.start(count).run(fresh)).unwrap()
                assert (result.value, result.items) == (at_once.value, at_once.items)
                assert [letter.key for letter in result.dead_letters] == [
                    letter.key for letter in at_once.dead_letters
                ]
            assert result == JobResult(spelled(count), count)

    anyio.run(main)


@pytest.mark.parametrize(("before", "after"), [(None, TWICE), (TWICE, None)])
async def test_the_retry_policy_may_change_while_there_are_dead_letters(
    store: MemoryStore, before: RetryPolicy | None, after: RetryPolicy | None
) -> None:
    app = app_around(store)
    app.world.break_items(1, 4)
    await setting_aside(retry=before).start(6, run_id="r").run(app)
    app.world.repair(4)
    changed = setting_aside(retry=after)

    result = (await changed.retry_dead_letters("r").run(app)).unwrap()

    assert result.value == spelled(6, without=(1,))
    assert letters(result) == [("1", "Broken('item 1')", 3)]
    app.world.repair()
    assert await changed.retry_dead_letters("r").run(app) == Success(JobResult(spelled(6), 6))


async def test_a_retry_exhausted_of_the_map_function_is_the_error_of_the_item(
    store: MemoryStore,
) -> None:
    def mapped(number: int) -> Effect[App, RetryExhausted[Broken], str]:
        return spell(number).retry(TWICE)

    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside(map=mapped)
    await job.start(3, run_id="r").run(app)

    result = (await job.retry_dead_letters("r").run(app)).unwrap()

    [letter] = result.dead_letters
    assert isinstance(letter.error, RetryExhausted)
    assert isinstance(letter.error.error, Broken)
    assert (letter.attempts, letter.error.attempts) == (2, 2)


@pytest.mark.parametrize("is_complete", [True, False])
async def test_a_job_that_no_longer_keeps_dead_letters_retries_them_by_force(
    store: MemoryStore, is_complete: bool
) -> None:
    app = app_around(store)
    app.world.break_items(1)
    is_interrupted = not is_complete

    def join_once(words: list[str]) -> Effect[App, str, str]:
        return fail("interrupted") if is_interrupted and "3" in words else join(words)

    await setting_aside(reduce=join_once).start(6, run_id="r").run(app)
    is_interrupted = False
    strict = spelling(reduce=join_once)

    refused = (await strict.retry_dead_letters("r").run(app)).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "'on_item_failure=fail' was added" in str(refused)
    again = (await strict.retry_dead_letters("r", force=True).run(app)).failure()
    assert isinstance(again, ItemFailed)
    assert (again.key, again.attempts) == ("1", 2)
    app.world.repair()
    # The groups that the item joins are other steps than before.
    assert await strict.resume("r", force=True).run(app) == Success(JobResult(spelled(6), 6))
    assert app.world.mapped.count(1) == 3
