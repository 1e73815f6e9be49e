"""Bounds of a job: how many items may fail, which failures are retried, how long an item may take."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, RetryPolicy, TimedOut, effect, fail, pure, sleep, step, workflow
from effectflow.checkpoint import CheckpointStore, OutcomeUnknown, RunStatus, read_checkpoint
from effectflow.effects import never
from effectflow.executors import ProcessExecutor
from effectflow.mapreduce import DeadLetter, ItemFailed, JobResult, TooManyFailures
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock, crash_everywhere
from tests.apps import both_backends, cut_off
from tests.builders.mapreduce.world import (
    App,
    Broken,
    World,
    app_around,
    setting_aside,
    spell,
    spelled,
    spelling,
)

pytestmark = pytest.mark.anyio

THRICE = RetryPolicy.constant(1).with_max_retries(2)


def generated(count: int) -> Iterator[int]:
    yield from range(count)


@both_backends
@pytest.mark.parametrize("max_failures", [0, 9, 0.0, 0.09])
async def test_a_job_with_too_many_failures_stops_as_soon_as_that_is_known(
    store: MemoryStore, max_failures: float
) -> None:
    app = app_around(store)
    app.world.break_items(*range(100))
    allowed = 9 if max_failures else 0

    error = (await setting_aside(max_failures=max_failures).start(100).run(app)).failure()

    assert isinstance(error, TooManyFailures)
    assert (error.job, error.max_failures, error.failed) == ("spelling", max_failures, allowed + 1)
    assert len(app.world.mapped) <= allowed + 1 + 3


@both_backends
@pytest.mark.parametrize("max_failures", [2, 0.2, 1.0])
async def test_as_many_failures_as_allowed_complete_the_job(
    store: MemoryStore, max_failures: float
) -> None:
    app = app_around(store)
    app.world.break_items(3, 7)

    result = (await setting_aside(max_failures=max_failures).start(10).run(app)).unwrap()

    assert [letter.key for letter in result.dead_letters] == ["3", "7"]


@both_backends
async def test_a_share_of_a_source_without_a_length_is_checked_after_its_last_item(
    store: MemoryStore,
) -> None:
    app = app_around(store)
    app.world.break_items(0, 1, 2)
    job = setting_aside(items=generated, max_failures=0.25)

    error = (await job.start(10, run_id="r").run(app)).failure()

    assert isinstance(error, TooManyFailures)
    assert "more than 25% of the items of job 'spelling' failed: 3" in str(error)
    assert sorted(app.world.mapped) == list(range(10))
    assert (await job.start(12).run(app)).unwrap().value == spelled(12, without=(0, 1, 2))


@both_backends
async def test_a_share_is_not_off_by_a_rounding_error(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(*range(29))

    assert (await setting_aside(max_failures=0.29).start(100).run(app)).unwrap().items == 100


@both_backends
@pytest.mark.parametrize("items", [range, generated])
async def test_a_job_with_too_many_failures_continues_in_every_way(
    store: MemoryStore, items: Any
) -> None:
    """Repaired items are retried, others dropped, or the bound is raised."""
    app = app_around(store)
    job = setting_aside(items=items, max_failures=0.3, limit=1)
    app.world.break_items(0, 2, 4, 6)
    for run_id in "abcd":
        error = (await job.start(9, run_id=run_id).run(app)).failure()
        assert isinstance(error, TooManyFailures)
        assert (await read_checkpoint(store, run_id)).status is RunStatus.FAILED
    app.world.forget()

    assert isinstance((await job.resume("a").run(app)).failure(), TooManyFailures)
    assert not {0, 2, 4} & set(app.world.mapped)
    raised = setting_aside(items=items, max_failures=4, limit=1)
    assert (await raised.resume("b").run(app)).unwrap().value == spelled(9, without=(0, 2, 4, 6))
    dropped = (await job.drop_dead_letters("c", keys=[0, 4]).run(app)).unwrap()
    assert (dropped.value, dropped.items) == (spelled(9, without=(0, 2, 4, 6)), 7)
    assert [letter.key for letter in dropped.dead_letters] == ["2", "6"]
    app.world.repair()
    assert await job.retry_dead_letters("d").run(app) == Success(JobResult(spelled(9), 9))


@both_backends
async def test_a_handled_end_by_too_many_failures_stays_as_it_is(store: MemoryStore) -> None:
    job = setting_aside(max_failures=2, limit=1)
    is_broken = True

    @workflow
    def outer(count: int) -> Do[App, str, str]:
        ended = yield from job.body(count).result()
        yield from step(name="after")(lambda: fail("later") if is_broken else pure(None))()
        return str(ended.failure())

    app = app_around(store)
    app.world.break_items(1, 3, 5, 7)
    assert await outer.start(9, run_id="r").run(app) == Failure("later")
    is_broken = False
    app.world.repair()
    app.world.forget()

    found = (await outer.resume("r").run(app)).unwrap()
    assert "more than 2 items of job 'spelling' failed: 3" in found
    assert app.world.mapped == []


@both_backends
@pytest.mark.parametrize("max_failures", [2, 0.2])
async def test_a_crash_changes_nothing_about_too_many_failures(max_failures: float) -> None:
    def make(store: CheckpointStore) -> App:
        world = World()
        world.break_items(1, 2, 4)
        return app_around(store, world)

    job = setting_aside(items=generated, max_failures=max_failures, limit=1)

    assert len(await crash_everywhere(job, 7, make)) > 10


@both_backends
async def test_only_retryable_errors_are_retried(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, 2)

    def is_first(error: Broken) -> bool:
        return "1" in str(error)

    job = setting_aside(retry=THRICE, retryable=is_first)
    result = (await TestClock().run(job.start(4, run_id="r"), app)).unwrap()

    assert [letter.attempts for letter in result.dead_letters] == [3, 1]
    app.world.repair()
    retried = await job.retry_dead_letters("r").run(app)
    assert retried == Success(JobResult(spelled(4), 4))


@both_backends
async def test_a_resume_tries_only_retryable_errors_again(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = spelling(limit=1, retryable=lambda error: "1" not in str(error))
    await job.start(3, run_id="r").run(app)
    app.world.repair()
    app.world.break_items(2)
    await job.start(3, run_id="again").run(app)

    app.world.repair()
    error = (await job.resume("r").run(app)).failure()
    assert isinstance(error, ItemFailed)
    assert "Its step is not retryable" in str(error)
    assert await job.resume("again").run(app) == Success(JobResult("0 1 2", 3))


@both_backends
@pytest.mark.parametrize("of_job", [None, True])
async def test_the_job_decides_what_is_retryable_before_its_step_does(
    store: MemoryStore, of_job: bool | None
) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside(map=step(retryable=False)(spell), retry=THRICE, retryable=of_job)

    [letter] = (await TestClock().run(job.start(3), app)).unwrap().dead_letters

    assert letter.attempts == (1 if of_job is None else 3)


@both_backends
async def test_what_is_retryable_counts_outside_runs_too(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside(retry=THRICE, retryable=lambda error: False)

    [letter] = (await job.body(3).run(app)).unwrap().dead_letters

    assert (letter.key, letter.item, letter.attempts) == ("1", 1, 1)
    assert [str(failure.error) for failure in letter.failures] == ["item 1"]


@effect(errors=Broken)
async def hang_at_two(app: App, number: int) -> str:
    app.world.mapped.append(number)
    if number == 2:
        await anyio.sleep_forever()
    return str(number)


@both_backends
@pytest.mark.parametrize("seconds", [0.02, timedelta(seconds=0.02)])
async def test_an_attempt_that_takes_too_long_is_a_dead_letter(
    store: MemoryStore, seconds: Any
) -> None:
    app = app_around(store)
    job = setting_aside(
        map=hang_at_two, timeout=seconds, retry=RetryPolicy.constant(0).with_max_retries(1)
    )

    for life in (job.start(4, run_id="r"), job.resume("r")):
        result = (await life.run(app)).unwrap()
        [letter] = result.dead_letters
        assert isinstance(letter.error, TimedOut)
        assert letter.error.seconds == 0.02
        assert [type(failure.error) for failure in letter.failures] == [TimedOut, TimedOut]
        assert (result.value, letter.attempts) == ("0 1 3", 2)
    assert app.world.mapped.count(2) == 2


@both_backends
async def test_the_time_limit_of_a_step_is_kept_as_well(store: MemoryStore) -> None:
    timed = step(timeout=0.02)(lambda number: hang_at_two(number))

    [letter] = (
        (await setting_aside(map=timed).start(4).run(app_around(store))).unwrap().dead_letters
    )

    assert isinstance(letter.error, TimedOut)


async def raise_late(app: App, number: int) -> str:
    if number == 2:
        await never().timeout(0.01).run_or_raise(app)
    return str(number)


def fail_late(number: int) -> Effect[App, Broken, str]:
    late: Any = never().timeout(0.01)
    return late if number == 2 else spell(number)


@both_backends
@pytest.mark.parametrize("mapped", [effect(errors=Broken)(raise_late), fail_late])
async def test_an_undeclared_timeout_is_a_dead_letter(store: MemoryStore, mapped: Any) -> None:
    app = app_around(store)
    job = setting_aside(map=mapped)

    for life in (job.start(4, run_id="r"), job.resume("r")):
        [letter] = (await life.run(app)).unwrap().dead_letters
        assert (letter.key, type(letter.error)) == ("2", TimedOut)
    error = (await spelling(map=mapped).start(4).run(app)).failure()
    assert isinstance(error, ItemFailed)
    assert isinstance(error.error, TimedOut)


@both_backends
async def test_a_limited_rate_spaces_attempts_on_the_clock_of_the_run(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, times=1)
    clock = TestClock()
    begun: list[float] = []

    def noting(number: int) -> Effect[App, Broken, str]:
        begun.append(clock.monotonic())
        return spell(number).and_then(lambda word: sleep(0.1).map(lambda _: word))

    retry = RetryPolicy.constant(0).with_max_retries(1)
    job = spelling(map=noting, per_second=2, retry=retry, limit=4)

    assert await clock.run(job.start(8, run_id="r"), app) == Success(JobResult(spelled(8), 8))
    assert begun == [number * 0.5 for number in range(9)]
    before = clock.monotonic()
    assert await clock.run(job.resume("r"), app) == Success(JobResult(spelled(8), 8))
    assert clock.monotonic() == before


@both_backends
async def test_completed_items_do_not_wait_for_their_turn_again(store: MemoryStore) -> None:
    app, clock = app_around(store), TestClock()
    app.world.break_items(6)
    job = spelling(per_second=1, limit=1)
    assert isinstance((await clock.run(job.start(8, run_id="r"), app)).failure(), ItemFailed)
    app.world.repair()
    before = clock.monotonic()

    assert await clock.run(job.resume("r"), app) == Success(JobResult(spelled(8), 8))
    assert clock.monotonic() - before == 1  # items 6 and 7


@both_backends
async def test_waiting_for_a_turn_is_not_part_of_an_at_most_once_step(store: MemoryStore) -> None:
    @step(at_most_once=True)
    def once(number: int) -> Effect[App, Broken, str]:
        return spell(number)

    app = app_around(store)
    job = spelling(map=once, per_second=2, limit=2)
    await cut_off(job.start(3, run_id="r"), app)
    assert app.world.mapped == [0]

    resumed = await job.resume("r").run(app)
    assert not isinstance(resumed, Failure) or not isinstance(resumed.failure(), OutcomeUnknown)
    assert resumed == Success(JobResult("0 1 2", 3))


@both_backends
async def test_a_plan_does_not_wait_for_turns(store: MemoryStore) -> None:
    app, clock = app_around(store), TestClock()
    app.world.break_items(1)
    job = spelling(per_second=0.1, limit=1)
    await clock.run(job.start(3, run_id="r"), app)
    before = clock.monotonic()

    plan = (await clock.run(job.plan("r"), app)).unwrap()

    assert plan.start == ("map[1]/spell",)
    assert clock.monotonic() == before


@both_backends
async def test_attempts_of_a_step_with_retries_are_counted(store: MemoryStore) -> None:
    @step(retry=THRICE)
    def again(number: int) -> Effect[App, Broken, str]:
        return spell(number)

    app = app_around(store)
    app.world.break_items(1)
    lenient, strict = setting_aside(map=again), spelling(map=again)

    [letter] = (await TestClock().run(lenient.start(3), app)).unwrap().dead_letters
    error = (await TestClock().run(strict.start(3), app)).failure()

    assert isinstance(letter, DeadLetter)
    assert (letter.attempts, len(letter.failures)) == (3, 3)
    assert isinstance(error, ItemFailed)
    assert error.attempts == 3


@effect
def infallible(app: App, number: int) -> str:
    return str(number)


def test_a_policy_may_retry_only_what_a_limit_or_an_executor_ends() -> None:
    spelling(map=infallible, retry=THRICE, timeout=1)
    spelling(map=infallible, retry=THRICE, executor=ProcessExecutor())


@pytest.mark.parametrize(
    ("nonsense", "problem"),
    [
        ({"max_failures": -1}, "max_failures must be an int >= 0 or a float from 0.0 to 1.0"),
        ({"max_failures": 1.5}, "max_failures must be an int >= 0 or a float from 0.0 to 1.0"),
        ({"max_failures": True}, "max_failures must be an int >= 0 or a float from 0.0 to 1.0"),
        (
            {"max_failures": 1, "on_item_failure": "fail"},
            'max_failures needs on_item_failure="dead_letter"',
        ),
        ({"per_second": 0}, "per_second must be a number > 0"),
        ({"timeout": -1}, "timeout must be 0 seconds or more"),
        ({"retryable": 5}, "`retryable` takes a bool, or a function"),
        ({"retryable": raise_late}, "not an async function"),
        ({"map": infallible, "retry": THRICE}, "`retry` has nothing to retry in `map`"),
        (
            {"map": spelled},
            r"`map` takes .*, and spelled returns str: return an effect, such as pure",
        ),
        ({"reduce": spelled}, "`reduce` takes .*, and spelled returns str"),
        ({"executor": raise_late}, "`executor` takes an executor, or a function.* not an async"),
        ({"executor": 5}, "`executor` takes an executor, or a function from the environment"),
        (
            {"items": raise_late},
            "`items` takes .*, not an async function: write an async generator",
        ),
    ],
)
def test_an_invalid_limit_is_rejected(nonsense: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        spelling(**{"on_item_failure": "dead_letter", **nonsense})
