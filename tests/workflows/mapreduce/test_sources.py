"""A resume must find all completed items in its source."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, JobResult, fail, pure, with_checkpointing, workflow
from effectflow.checkpoint import DefinitionChanged, RunStatus, StepInputChanged, read_checkpoint
from effectflow.stores import MemoryStore
from tests.workflows.mapreduce.world import App, Broken, app_around, spelled, spelling

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("after", "missing"),
    [([4], "0123"), ([1, 2, 3, 4], "0"), ([4, 3, 9, 1, 0], "2"), ([], "01234")],
    ids=["emptied as it was worked on", "shortened", "one for another", "empty"],
)
async def test_completed_items_that_are_missing_are_named(
    store: MemoryStore, after: list[int], missing: str
) -> None:
    source = [0, 1, 2, 3, 4]
    job = spelling(items=lambda _: list(source), max_parallel=1, fan_in=32)
    app = app_around(store)
    app.world.break_items(4)
    await job.start(None, run_id="r").run(app)
    app.world.repair()
    source[:] = after

    error = (await job.resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    branches = ", ".join(f"'map[{key}]'" for key in missing)
    assert f"'map' had the branches {branches}, and their items did not reappear" in str(error)
    assert (await read_checkpoint(store, "r")).status is not RunStatus.COMPLETED

    source[:] = [0, 1, 2, 3, 4]
    # A new item that was mapped meanwhile is missing now.
    again = job.resume("r", force=9 in after)
    assert await again.run(app) == Success(JobResult(spelled(5), 5))


async def test_an_exhausted_iterator_is_not_an_empty_source(
    store: MemoryStore,
) -> None:
    shared = iter([0, 1, 2])
    job = spelling(items=lambda _: shared, max_parallel=1)
    app = app_around(store)
    app.world.break_items(2)
    await job.start(None, run_id="r").run(app)

    error = (await job.resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "'map[0]', 'map[1]', 'map[2]', and their items did not reappear" in str(error)


@pytest.mark.parametrize("after", [[3, 2, 1, 0], [9, 0, 1, 2, 3]])
async def test_another_order_and_new_items_are_accepted(
    store: MemoryStore, after: list[int]
) -> None:
    source = [0, 1, 2, 3]
    job = spelling(items=lambda _: list(source), max_parallel=1, fan_in=32)
    app = app_around(store)
    app.world.break_items(3)
    await job.start(None, run_id="r").run(app)
    app.world.repair()
    source[:] = after

    value = " ".join(map(str, after))
    assert await job.resume("r").run(app) == Success(JobResult(value, len(after)))


async def test_a_failed_item_can_be_removed_by_force(store: MemoryStore) -> None:
    source = [0, 1, 2, 3]
    job = spelling(items=lambda _: list(source), max_parallel=1, fan_in=32)
    app = app_around(store)
    app.world.break_items(3)
    await job.start(None, run_id="r").run(app)
    source.remove(3)

    assert isinstance((await job.resume("r").run(app)).failure(), DefinitionChanged)
    assert await job.resume("r", force=True).run(app) == Success(JobResult("0 1 2", 3))


async def test_an_item_replaced_after_the_map_phase_is_missed(store: MemoryStore) -> None:
    source = [0, 1, 2]
    is_broken = True

    def breaking(words: list[str]) -> Effect[App, str, str]:
        return fail("no") if is_broken else pure(" ".join(words))

    job = spelling(items=lambda _: list(source), reduce=breaking, fan_in=5)
    await job.start(None, run_id="r").run(app_around(store))
    is_broken = False
    source[1] = 7

    error = (await job.resume("r").run(app_around(store))).failure()

    assert isinstance(error, StepInputChanged)
    assert error.current == "(a new item '7')"


async def test_items_of_a_refused_source_are_not_missed(store: MemoryStore) -> None:
    source = [0, 1, 2]
    is_broken = True

    def breaking(words: list[str]) -> Effect[App, str, str]:
        return fail("no") if is_broken else pure(" ".join(words))

    job = spelling(items=lambda _: list(source), reduce=breaking, fan_in=5)
    await job.start(None, run_id="r").run(app_around(store))
    is_broken = False
    source.append(3)
    assert isinstance((await job.resume("r").run(app_around(store))).failure(), StepInputChanged)
    source.pop()

    assert await job.resume("r").run(app_around(store)) == Success(JobResult("0 1 2", 3))


async def test_the_error_about_many_missing_items_is_short(
    store: MemoryStore,
) -> None:
    source = list(range(1000))
    job = spelling(
        items=lambda _: list(source),
        key=lambda number: f"[{number}/100%]" + "x" * 10_000,
        max_parallel=1,
        fan_in=2000,
    )
    app = app_around(store)
    app.world.break_items(999)
    await job.start(None, run_id="r").run(app)
    app.world.repair()
    source[:] = [999]

    error = (await job.resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "' and more" in str(error)
    assert len(str(error)) < 1000


async def test_missing_dead_letters_are_named(store: MemoryStore) -> None:
    source = [0, 1, 2, 3]
    is_broken = True

    def breaking(words: list[str]) -> Effect[App, str, str]:
        return fail("no") if is_broken else pure(" ".join(words))

    options: dict[str, Any] = {"on_item_failure": "dead_letter", "reduce": breaking, "fan_in": 9}
    job = spelling(items=lambda _: list(source), **options)
    app = app_around(store)
    app.world.break_items(2)
    await job.start(None, run_id="r").run(app)
    is_broken = False

    source.remove(2)
    gone = (await job.resume("r").run(app)).failure()
    assert isinstance(gone, DefinitionChanged)
    assert "'map[2]'" in str(gone)

    source.insert(2, 2)
    app.world.repair()
    result = (await job.resume("r").run(app)).unwrap()
    assert (result.items, [letter.key for letter in result.dead_letters]) == (4, ["2"])
    assert await job.retry_dead_letters("r").run(app) == Success(JobResult("0 1 2 3", 4))


async def test_a_nested_job_misses_only_its_own_items(store: MemoryStore) -> None:
    sources = {"first": [0, 1], "second": [0, 1, 2]}
    job = spelling(items=lambda name: list(sources[name]), max_parallel=1, fan_in=32)

    @workflow
    def both(_: None) -> Do[App, Any, list[str]]:
        first = yield from job.body("first")
        second = yield from job.body("second")
        return [first.value, second.value]

    app = app_around(store)
    app.world.break_items(2)
    await both.start(None, run_id="r").run(app)
    app.world.repair()

    sources["second"] = [1, 2]
    error = (await both.resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert "'map#2' had the branches 'map#2[0]', and" in str(error)

    sources["second"] = [0, 1, 2]
    assert await both.resume("r").run(app) == Success(["0 1", "0 1 2"])


async def test_items_skipped_after_a_handled_failure_are_not_missed(store: MemoryStore) -> None:
    """The last group fails, and this is handled: a resume maps only the items of that group."""
    job = spelling(
        reduce=lambda words: fail("no") if words == ["3"] else pure(" ".join(words)), fan_in=3
    )
    is_stuck = True

    @workflow
    def handling(count: int) -> Do[App, Any, str]:
        outcome = yield from job.body(count).result()
        # A step after the failure, so that the journal says that it was handled.
        yield from with_checkpointing("continue", pure(None))
        if is_stuck:
            yield from fail("stuck")
        return str(outcome.failure())

    app = app_around(store)
    assert await handling.start(4, run_id="r").run(app) == Failure("stuck")
    is_stuck = False
    app.world.forget()

    assert await handling.resume("r").run(app) == Success("no")
    assert app.world.mapped == []


async def test_a_renamed_map_function_maps_again_and_misses_nothing(
    store: MemoryStore,
) -> None:
    app = app_around(store)
    app.world.break_items(2)
    await spelling(max_parallel=1).start(3, run_id="r").run(app)

    def spell_again(number: int) -> Effect[App, Broken, str]:
        return pure(str(number))

    renamed = spelling(map=spell_again, max_parallel=1)
    assert await renamed.resume("r", force=True).run(app) == Success(JobResult("0 1 2", 3))
