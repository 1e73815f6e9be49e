"""Map-reduce jobs: their results, their journals and their resumes."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, RetryPolicy, effect, fail, pure, step, workflow
from effectflow.checkpoint import (
    Batch,
    DefinitionChanged,
    Lease,
    OutcomeUnknown,
    RunStatus,
    StepInputChanged,
    read_checkpoint,
)
from effectflow.effects import from_fn, never
from effectflow.mapreduce import ItemFailed, JobResult, MapReduce
from effectflow.service.structured_input import input_of
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import both_backends, cut_off
from tests.builders.mapreduce.world import (
    App,
    Broken,
    Source,
    app_around,
    join,
    spell,
    spelled,
    spelling,
    up_to,
)

pytestmark = pytest.mark.anyio


@both_backends
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9, 10, 28])
async def test_the_value_combines_all_items_in_order(store: MemoryStore, count: int) -> None:
    result = await spelling().start(count).run(app_around(store))

    assert result == Success(JobResult(spelled(count), count))


async def test_each_item_and_each_group_is_a_durable_step(store: MemoryStore) -> None:
    await spelling().start(5, run_id="r").run(app_around(store))

    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.kind == "mapreduce"
    assert checkpoint.definition.steps == ("spell", "join_and_note")
    assert {done.step: done.output for done in checkpoint.completed_steps} == {
        **{f"map[{number}]/spell": str(number) for number in range(5)},
        "mapped": 5,
        "reduce[1.0]/join_and_note": "0 1 2",
        "reduce[1.1]/join_and_note": "3 4",
        "reduce[2.0]/join_and_note": "0 1 2 3 4",
    }


async def test_a_failed_item_stops_the_job_and_is_named(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(4)

    error = (await spelling().start(100, run_id="r").run(app)).failure()

    assert isinstance(error, ItemFailed)
    assert (error.job, error.key, error.attempts) == ("spelling", "4", 1)
    assert isinstance(error.error, Broken)
    assert "item '4' of job 'spelling' failed with Broken('item 4')" in str(error)
    assert len(app.world.mapped) < 50
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED


async def test_a_resume_runs_only_the_rest(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(7)
    await spelling().start(12, run_id="r").run(app)
    done = {step.step for step in (await read_checkpoint(store, "r")).completed_steps}
    app.world.repair()
    app.world.forget()

    assert await spelling().resume("r").run(app) == Success(JobResult(spelled(12), 12))
    assert {f"map[{number}]/spell" for number in app.world.mapped}.isdisjoint(done)
    assert sorted(app.world.mapped) == sorted(set(app.world.mapped))
    assert ["0", "1", "2"] not in app.world.reduced


async def test_an_item_is_retried_by_its_policy(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, times=2)
    clock = TestClock()
    job = spelling(retry=RetryPolicy.exponential(60).with_max_retries(3))

    assert await clock.run(job.start(3, run_id="r"), app) == Success(JobResult("0 1 2", 3))
    assert app.world.mapped.count(1) == 3
    assert clock.monotonic() == 60 + 120
    checkpoint = await read_checkpoint(store, "r")
    assert [item.outcome for item in checkpoint.history].count("failed") == 0


async def test_the_failure_of_an_item_has_the_number_of_attempts(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = spelling(retry=RetryPolicy.constant(0).with_max_retries(2))

    error = (await job.start(3, run_id="r").run(app)).failure()

    assert isinstance(error, ItemFailed)
    assert isinstance(error.error, Broken)
    assert (error.key, error.attempts, error.error.times) == ("1", 3, 3)
    app.world.break_items(1, times=2)
    assert await job.resume("r").run(app) == Success(JobResult("0 1 2", 3))


async def test_a_defect_of_an_item_parks_the_run(store: MemoryStore) -> None:
    is_broken = True

    def buggy(number: int) -> Effect[App, str, str]:
        return from_fn(lambda _: str(1 // (0 if is_broken and number == 2 else 1)))

    job = spelling(map=buggy, on_item_failure="dead_letter")
    with pytest.raises(ZeroDivisionError) as caught:
        await job.start(3, run_id="r").run(app_around(store))

    assert "in step 'map[2]/buggy' of run 'r', attempt 1" in caught.value.__notes__
    is_broken = False
    assert await job.resume("r").run(app_around(store)) == Success(JobResult("1 1 1", 3))


async def test_a_duplicate_key_is_rejected_by_name(store: MemoryStore) -> None:
    job = spelling(key=lambda number: number % 4)

    with pytest.raises(
        ValueError, match=r"two items of job 'spelling' have the key '0'.*pass a key= function"
    ):
        await job.start(5).run(app_around(store))
    with pytest.raises(ValueError, match="have the key '0'"):
        await job.body(5).run(app_around(store))


async def test_keys_may_be_any_text(store: MemoryStore) -> None:
    """File names may contain undecodable bytes, brackets, slashes and line breaks."""
    keys = ["\udcff", "ünï 🎈", "a/b", "[1]", "line\nend", "%5D", "", " "]
    app = app_around(store)
    app.world.break_items(0, 3)
    job = spelling(key=keys.__getitem__, on_item_failure="dead_letter")

    result = (await job.start(len(keys), run_id="r").run(app)).unwrap()
    assert [letter.key for letter in result.dead_letters] == ["\\udcff", "[1]"]
    app.world.repair()
    assert await job.retry_dead_letters("r").run(app) == Success(JobResult(spelled(8), 8))


async def counted(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await anyio.lowlevel.checkpoint()
        yield number


def generated(count: int) -> Iterator[int]:
    yield from range(count)


def from_the_environment(count: int) -> Effect[App, str, list[int]]:
    return from_fn(
        lambda app: [number for number in range(count) if number not in app.world.mapped]
    )


@pytest.mark.parametrize("items", [counted, generated, from_the_environment])
async def test_items_come_from_any_source(store: MemoryStore, items: Callable[[int], Any]) -> None:
    app = app_around(store)

    assert await spelling(items=items).start(10).run(app) == Success(JobResult(spelled(10), 10))


async def test_a_job_fails_with_the_error_of_its_source(store: MemoryStore) -> None:
    job = spelling(items=lambda _: fail("no such folder"))

    assert await job.start(1).run(app_around(store)) == Failure("no such folder")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_resume_reads_a_broken_source_again(store: MemoryStore, is_async: bool) -> None:
    is_broken = True

    def breaking(count: int) -> Iterator[int]:
        for number in range(count):
            if is_broken and number == 5:
                raise OSError("the source went away")
            yield number

    async def breaking_async(count: int) -> AsyncIterator[int]:
        for number in breaking(count):
            yield number

    app = app_around(store)
    job = spelling(items=breaking_async if is_async else breaking)
    with pytest.raises(OSError, match="went away"):
        await job.start(8, run_id="r").run(app)
    before = len(app.world.mapped)

    is_broken = False
    assert await job.resume("r").run(app) == Success(JobResult(spelled(8), 8))
    assert before <= 5
    assert len(app.world.mapped) <= 8 + 3


@both_backends
async def test_a_generator_of_items_is_closed_when_the_job_ends_early(store: MemoryStore) -> None:
    log: list[str] = []
    kept: list[Iterator[int]] = []

    def read() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            log.append("closed")

    def items(_: object) -> Iterator[int]:
        kept.append(read())
        return kept[-1]

    app = app_around(store)
    app.world.break_items(4)
    assert isinstance((await spelling(items=items).start(1).run(app)).failure(), ItemFailed)
    assert log == ["closed"]

    waiting = spelling(items=items, map=lambda _: never())
    await cut_off(waiting.start(1), app)
    assert log == ["closed", "closed"]


async def test_a_listing_that_is_a_step_is_recorded(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(2)
    listed = [3, 1, 2]

    @step
    def listing(_: None) -> Effect[App, str, list[int]]:
        return from_fn(lambda _: list(listed))

    job = spelling(items=listing)
    await job.start(None, run_id="r").run(app)
    app.world.repair()
    listed.insert(0, 9)

    assert await job.resume("r").run(app) == Success(JobResult("3 1 2", 3))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ([0, 1, 3, 4], "'map[2]/spell'"),
        ([9, 0, 1, 2, 3, 4], "'map[9]/spell'"),
    ],
    ids=["one is gone", "a new one"],
)
async def test_a_changed_item_in_a_reduced_group_is_rejected(
    store: MemoryStore, after: list[int], named: str
) -> None:
    source = Source([0, 1, 2, 3, 4])
    app = await source.stopped_at(store, 4, fan_in=3)
    source.items = after
    error = (await source.job(fan_in=3).resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert named in str(error)


async def test_another_order_in_a_reduced_group_is_rejected(store: MemoryStore) -> None:
    source = Source([0, 1, 2, 3, 4])
    app = await source.stopped_at(store, 4, fan_in=3)
    source.items = [1, 0, 2, 3, 4]
    error = (await source.job(fan_in=3).resume("r").run(app)).failure()
    assert isinstance(error, StepInputChanged)
    assert error.recorded == "(3 items, '0' to '2')"
    assert error.current == "(3 items, '1' to '2')"


async def test_a_step_rejects_another_item_with_the_same_key(store: MemoryStore) -> None:
    source = [("a", 1), ("b", 2), ("c", 3)]
    is_broken = True

    @step
    def content(item: tuple[str, int]) -> Effect[App, str, str]:
        return fail("no") if is_broken and item[0] == "c" else pure(str(item[1]))

    job = spelling(items=lambda _: list(source), map=content, key=lambda item: item[0], limit=1)
    await job.start(None, run_id="r").run(app_around(store))
    is_broken = False
    source[1] = ("b", 200)

    error = (await job.resume("r").run(app_around(store))).failure()

    assert isinstance(error, StepInputChanged)
    assert error.step == "map[b]/content"
    assert (error.recorded, error.current) == ("(item=('b', 2))", "(item=('b', 200))")
    assert "the items of a source" in str(error)


async def test_another_fan_in_is_a_changed_definition(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(4)
    await spelling(fan_in=2).start(5, run_id="r").run(app)

    error = (await spelling(fan_in=3).resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "'fan_in=3' was added; 'fan_in=2' was removed" in str(error)


@both_backends
async def test_an_interrupted_job_continues_where_it_stopped(store: MemoryStore) -> None:
    app = app_around(store)
    stuck = anyio.Event()

    async def spell_until_stuck(app: App, number: int) -> str:
        app.world.mapped.append(number)
        if number >= 6 and not stuck.is_set():
            await anyio.sleep_forever()
        return str(number)

    job = spelling(map=effect(spell_until_stuck))
    await cut_off(job.start(9, run_id="r"), app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.INTERRUPTED
    app.world.forget()
    stuck.set()

    assert await job.resume("r").run(app) == Success(JobResult(spelled(9), 9))
    assert sorted(app.world.mapped) == [6, 7, 8]


@both_backends
async def test_concurrent_items_share_their_commits() -> None:
    class CountingStore(MemoryStore):
        appends = 0

        async def append(self, lease: Lease, batch: Batch) -> None:
            await anyio.lowlevel.checkpoint()
            await super().append(lease, batch)
            self.appends += 1

    async with CountingStore() as store:
        job = spelling(limit=500, fan_in=32)
        result = await job.start(1000).run(app_around(store))

    assert result == Success(JobResult(spelled(1000), 1000))
    assert store.appends < 1000 / 20


async def test_an_executor_receives_only_the_function_and_the_item(store: MemoryStore) -> None:
    class Elsewhere:
        """An executor that pickles its arguments, as another process would get them."""

        def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
            sent.append((function, item))
            far_function, far_item = pickle.loads(pickle.dumps((function, item)))
            return far_function(far_item)

    sent: list[tuple[object, object]] = []
    app = app_around(store)
    app.world.break_items(1, times=1)
    job = spelling(executor=Elsewhere(), retry=RetryPolicy.constant(0).with_max_retries(1))

    assert await job.start(3).run(app) == Success(JobResult("0 1 2", 3))
    # Retries happen here, and send the item again.
    assert sorted(sent, key=str) == [(spell, 0), (spell, 1), (spell, 1), (spell, 2)]


async def test_a_step_keeps_its_name_and_options(store: MemoryStore) -> None:
    @step(name="spell it", at_most_once=True)
    def spell_once(number: int) -> Effect[App, Broken, str]:
        return from_fn(lambda _: cut_off.set()).and_then(lambda _: spell(number))

    class DeadStore(MemoryStore):
        async def append(self, lease: Lease, batch: Batch) -> None:
            if cut_off.is_set():
                raise OSError("dead")
            await super().append(lease, batch)

    cut_off = anyio.Event()
    job = spelling(map=spell_once)
    async with DeadStore() as store:
        await job.start(1, run_id="r").run(app_around(store))
        cut_off = anyio.Event()
        error = (await job.resume("r").run(app_around(store))).failure()

    assert isinstance(error, OutcomeUnknown)
    assert error.step == "map[0]/spell it"


@pytest.mark.parametrize("count", [3, 5])
async def test_a_resume_reduces_a_failed_group_again(store: MemoryStore, count: int) -> None:
    """The failed group is complete, or the last and incomplete one."""
    is_broken = True

    def reduced(words: list[str]) -> Effect[App, str, str]:
        return fail("no") if is_broken and str(count - 1) in words else join(words)

    job = spelling(reduce=reduced)
    app = app_around(store)
    assert await job.start(count, run_id="r").run(app) == Failure("no")
    is_broken = False
    app.world.forget()

    assert await job.resume("r").run(app) == Success(JobResult(spelled(count), count))
    assert app.world.mapped == []


@pytest.mark.parametrize("policy", [None, RetryPolicy.constant(0).with_max_retries(1)])
async def test_a_step_decides_which_failures_a_resume_retries(
    store: MemoryStore, policy: RetryPolicy | None
) -> None:
    @step(retryable=lambda error: error.args != ("item 1",))
    def picky(number: int) -> Effect[App, Broken, str]:
        return spell(number)

    for item, is_final in ((0, False), (1, True)):
        app = app_around(store)
        app.world.break_items(item)
        job = spelling(map=picky, retry=policy)
        first = (await job.start(item + 1, run_id=f"r{item}").run(app)).failure()
        app.world.repair()
        again = await job.resume(f"r{item}").run(app)
        assert isinstance(first, ItemFailed)
        assert (str(again.failure()) == str(first)) if is_final else again.unwrap().value == "0"


async def test_the_failure_of_an_item_says_whether_a_resume_retries_it(store: MemoryStore) -> None:
    final = step(retryable=False)(spell)
    app = app_around(store)
    app.world.break_items(1)

    tried_again = (await spelling().start(2).run(app)).failure()
    stands = (await spelling(map=final).start(2, run_id="r").run(app)).failure()

    assert "A resume retries the item" in str(tried_again)
    assert "a resume fails again without running it" in str(stands)
    app.world.repair()
    assert str((await spelling(map=final).resume("r").run(app)).failure()) == str(stands)
    assert "resumed with force=True" in str(stands)
    aside = spelling(map=final, on_item_failure="dead_letter")
    result = (await aside.resume("r", force=True).run(app)).unwrap()
    assert (result.value, [letter.key for letter in result.dead_letters]) == ("0", ["1"])


@pytest.mark.parametrize("where", ["item", "first group", "last group"])
async def test_a_resume_replays_the_handled_failure_of_a_job(
    store: MemoryStore, where: str
) -> None:
    def mapped(number: int) -> Effect[App, str, str]:
        return spell(number).map_err(str)

    def reduced(words: list[str]) -> Effect[App, str, str]:
        is_last = len(words) == 2
        if (where == "first group" and words[0] == "0") or (where == "last group" and is_last):
            return fail(f"reducing {' '.join(words)}")
        return join(words)

    inner = spelling(map=mapped, reduce=reduced)
    broken = True

    @workflow
    def outer(count: int) -> Do[App, Any, str]:
        ended = yield from inner.body(count).result()
        yield from step(name="after")(lambda: fail("later") if broken else pure(None))()
        error = ended.failure()
        return error.key if isinstance(error, ItemFailed) else error

    app = app_around(store)
    if where == "item":
        app.world.break_items(4)
    assert await outer.start(11, run_id="r").run(app) == Failure("later")
    app.world.repair()
    app.world.forget()
    broken = False

    expected = {"item": "4", "first group": "reducing 0 1 2", "last group": "reducing 9 10"}
    assert await outer.resume("r").run(app) == Success(expected[where])
    assert app.world.mapped == []


async def test_a_job_without_a_run_is_a_plain_effect(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(2)

    assert await spelling(on_item_failure="dead_letter").body(2).run(app) == Success(
        JobResult("0 1", 2)
    )
    assert isinstance((await spelling().body(3).run(app)).failure(), ItemFailed)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"limit": 0},
        {"fan_in": 1},
        {"retry": RetryPolicy.constant(1)},
        {"on_item_failure": "shrug"},
        {"limit": True},
        {"limit": "3"},
    ],
    ids=str,
)
def test_an_invalid_option_is_rejected(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|is unbounded"):
        spelling(**nonsense)


def test_all_problems_of_a_job_are_reported_at_once() -> None:
    def generator(_: object) -> Iterator[object]:
        yield

    mistaken: Any = MapReduce
    with pytest.raises(ValueError, match="cannot be built") as caught:
        mistaken("", items=5, map=generator, reduce=generator, key=None, limit=0, fan_in=1)

    assert str(caught.value).splitlines() == [
        "job '' cannot be built:",
        "- its name must be text that is not empty, not ''",
        "- `items` takes a function from the job's input to its items, not 5",
        (
            "- `map` takes a function from an item to an effect, not a generator function: "
            "decorate it with @do"
        ),
        (
            "- `reduce` takes a function from a list to an effect, not a generator function: "
            "decorate it with @do"
        ),
        "- `key` takes a function from an item to its key, not None",
        "- limit must be an int >= 1, not 0",
        "- fan_in must be an int >= 2, not 1",
    ]


async def test_a_problem_of_a_source_names_the_job(store: MemoryStore) -> None:
    def failing(_: object) -> Iterator[int]:
        yield 1
        raise OSError("went away")

    sources: list[tuple[Callable[[object], Any], type[Exception]]] = [
        (lambda _: None, TypeError),
        (lambda _: [1, 1], ValueError),
        (failing, OSError),
    ]
    for source, kind in sources:
        with pytest.raises(kind) as caught:
            await spelling(items=source).start(None).run(app_around(store))
        assert "in job 'spelling'" in caught.value.__notes__


def test_unnamed_functions_are_named_by_their_role() -> None:
    job = spelling(map=lambda number: pure(str(number)), reduce=lambda words: pure(""))

    assert job.definition.steps == ("map", "reduce")
    assert job.kind == "mapreduce"


def test_the_input_has_the_type_of_the_source() -> None:
    assert input_of(spelling(items=up_to), 3, Checkpoints(MemoryStore())) == 3
    with pytest.raises(ValueError, match="does not fit int"):
        input_of(spelling(items=up_to), "3", Checkpoints(MemoryStore()))
