"""A resume must find all completed items in its source."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, fail, pure, with_checkpointing, workflow
from effectflow.checkpoint import DefinitionChanged, RunStatus, read_checkpoint
from effectflow.mapreduce import JobResult
from effectflow.stores import MemoryStore
from tests.builders.mapreduce.world import App, Broken, Source, app_around, spelled, spelling

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("after", "missing"),
    [([4], 0), ([1, 2, 3, 4], 0), ([4, 3, 9, 1, 0], 2), ([], 0)],
    ids=["emptied as it was worked on", "shortened", "one for another", "empty"],
)
async def test_the_first_completed_item_that_is_missing_is_named(
    store: MemoryStore, after: list[int], missing: int
) -> None:
    source = Source([0, 1, 2, 3, 4])
    app = await source.stopped_at(store, 4)
    source.items = after

    error = (await source.job().resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert f"'map[{missing}]/spell' has begun" in str(error)
    assert (await read_checkpoint(store, "r")).status is not RunStatus.COMPLETED

    source.items = [0, 1, 2, 3, 4]
    # A new item that was mapped meanwhile is missing now.
    again = source.job().resume("r", force=9 in after)
    assert await again.run(app) == Success(JobResult(spelled(5), 5))


async def test_an_exhausted_iterator_is_not_an_empty_source(store: MemoryStore) -> None:
    shared = iter([0, 1, 2])
    job = spelling(items=lambda _: shared, limit=1)
    app = app_around(store)
    app.world.break_items(2)
    await job.start(None, run_id="r").run(app)

    error = (await job.resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "'map[0]/spell' has begun" in str(error)


@pytest.mark.parametrize("after", [[3, 2, 1, 0], [9, 0, 1, 2, 3]])
async def test_another_order_and_new_items_are_accepted(
    store: MemoryStore, after: list[int]
) -> None:
    source = Source([0, 1, 2, 3])
    app = await source.stopped_at(store, 3)
    source.items = after
    value = " ".join(map(str, after))
    assert await source.job().resume("r").run(app) == Success(JobResult(value, len(after)))


async def test_a_failed_item_can_be_removed_by_force(store: MemoryStore) -> None:
    source = Source([0, 1, 2, 3])
    app = await source.stopped_at(store, 3)
    source.items.remove(3)
    assert isinstance((await source.job().resume("r").run(app)).failure(), DefinitionChanged)
    forced = source.job().resume("r", force=True)
    assert await forced.run(app) == Success(JobResult("0 1 2", 3))


@pytest.mark.parametrize(
    ("after", "named"),
    [([0, 7, 2], "'map[1]/spell'"), ([0, 1, 2, 3], "'map[3]/spell'")],
    ids=["replaced", "grown"],
)
async def test_an_item_that_is_new_after_the_map_phase_is_rejected(
    store: MemoryStore, after: list[int], named: str
) -> None:
    source = Source([0, 1, 2], is_broken=True)
    job = source.job(reduce=source.reduce)
    await job.start(None, run_id="r").run(app_around(store))
    source.is_broken, source.items = False, after

    error = (await job.resume("r").run(app_around(store))).failure()
    assert isinstance(error, DefinitionChanged)
    assert named in str(error)

    # The items of the refused source are not missed later.
    source.items = [0, 1, 2]
    assert await job.resume("r").run(app_around(store)) == Success(JobResult("0 1 2", 3))


async def test_the_error_about_an_item_with_a_long_key_is_short(store: MemoryStore) -> None:
    source = Source(list(range(300)))
    options: dict[str, Any] = {"key": lambda n: f"[{n}/100%]" + "x" * 10_000, "fan_in": 500}
    app = await source.stopped_at(store, 299, **options)
    source.items = [299]

    error = (await source.job(**options).resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert len(str(error)) < 1000


async def test_missing_dead_letters_are_named(store: MemoryStore) -> None:
    source = Source([0, 1, 2, 3], is_broken=True)
    job = source.job(reduce=source.reduce, on_item_failure="dead_letter", limit=3)
    app = app_around(store)
    app.world.break_items(2)
    await job.start(None, run_id="r").run(app)
    source.is_broken = False

    source.items.remove(2)
    gone = (await job.resume("r").run(app)).failure()
    assert isinstance(gone, DefinitionChanged)
    assert "'map[2]/spell'" in str(gone)

    source.items.insert(2, 2)
    app.world.repair()
    result = (await job.resume("r").run(app)).unwrap()
    assert (result.items, [letter.key for letter in result.dead_letters]) == (4, ["2"])
    assert await job.retry_dead_letters("r").run(app) == Success(JobResult("0 1 2 3", 4))


async def test_a_nested_job_misses_only_its_own_items(store: MemoryStore) -> None:
    sources = {"first": [0, 1], "second": [0, 1, 2]}
    job = spelling(items=lambda name: list(sources[name]), limit=1, fan_in=32)

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
    assert "'map#2[0]/spell' has begun" in str(error)

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


async def test_a_renamed_map_function_maps_again_and_misses_nothing(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(2)
    await spelling(limit=1).start(3, run_id="r").run(app)

    def spell_again(number: int) -> Effect[App, Broken, str]:
        return pure(str(number))

    renamed = spelling(map=spell_again, limit=1)
    assert await renamed.resume("r", force=True).run(app) == Success(JobResult("0 1 2", 3))
