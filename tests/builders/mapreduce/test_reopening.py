"""Dead letters carry what failed; some or all of them are retried or dropped, wherever the job runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Workflow,
    current_step,
    do,
    effect,
    fail,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    NotSerializable,
    OutcomeUnknown,
    Resumed,
    RunStatus,
    SetAside,
    find_run,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.iterative import Iterative
from effectflow.machines import Machine, Moved, StateMachine, Transition
from effectflow.mapreduce import JobResult, MapReduce
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock, crash_everywhere
from tests.apps import both_backends
from tests.builders.mapreduce.world import (
    App,
    Broken,
    app_around,
    join,
    setting_aside,
    spell,
    spelled,
)
from tests.runs.journals import cut
from tests.sweeps import in_turn

pytestmark = pytest.mark.anyio

TWICE = RetryPolicy.constant(10).with_max_retries(1)


def keys(result: JobResult[Any, Any, Any]) -> list[str]:
    return [letter.key for letter in result.dead_letters]


@dataclass(frozen=True)
class Page:
    number: int


@effect(errors=Broken)
async def spell_page(app: App, page: Page) -> str:
    return await spell(page.number).run_or_raise(app)


def pages(count: int) -> list[Page]:
    return [Page(number) for number in range(count)]


# What dead letters carry.


@both_backends
async def test_a_dead_letter_has_the_item_and_every_failure_with_its_times(
    store: MemoryStore,
) -> None:
    app, clock = app_around(store), TestClock()
    app.world.break_items(1)
    job = setting_aside(
        items=pages, map=spell_page, key=lambda page: page.number, retry=TWICE, limit=1
    )
    began = clock.now()
    found = [await clock.run(job.start(3, run_id="r"), app)]
    await clock.run(sleep(60), app)
    found += [await clock.run(job.retry_dead_letters("r"), app)]
    found += [await clock.run(job.resume("r"), app)]

    for result, times in zip(found, [(0, 10), (0, 10, 70, 80), (0, 10, 70, 80)], strict=True):
        [letter] = result.unwrap().dead_letters
        assert (letter.key, letter.item) == ("1", Page(1))
        assert [failure.began_at - began for failure in letter.failures] == [
            timedelta(seconds=seconds) for seconds in times
        ]
        assert all(failure.ended_at == failure.began_at for failure in letter.failures)
        assert [failure.error.times for failure in letter.failures] == [
            number + 1 for number in range(len(times))
        ]
        assert letter.error is letter.failures[-1].error or letter.error.times == len(times)
        assert letter.failures[0].began_at.tzinfo is UTC
        assert letter.attempts == len(times)


@both_backends
async def test_attempts_that_a_crash_cut_off_count_and_have_no_error(store: MemoryStore) -> None:
    app, clock = app_around(store), TestClock()
    app.world.break_items(1)
    job = setting_aside(retry=TWICE.with_max_retries(2), limit=1)
    await clock.run(job.start(3, run_id="r"), app)
    entries = await read_entries(store, "r")
    second = [getattr(entry, "attempt", 0) for entry in entries].index(2) + 1

    again = App(Checkpoints(await cut(store, second)), app.world)
    [letter] = (await clock.run(job.resume("r"), again)).unwrap().dead_letters

    assert (letter.attempts, len(letter.failures)) == (3, 2)


async def test_an_item_that_cannot_be_saved_is_rejected_before_it_acts(store: MemoryStore) -> None:
    class Handle:
        pass

    app = app_around(store)
    job = setting_aside(items=lambda _: [Handle()], key=id, map=lambda _: spell(1))

    error = (await job.start(1).run(app)).failure()

    assert isinstance(error, NotSerializable)
    assert "which a dead letter would have" in str(error)
    assert app.world.mapped == []


# Selections, and drops.


@both_backends
async def test_a_selection_of_dead_letters_is_retried(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, 2, 7)
    job = setting_aside()
    await job.start(9, run_id="r").run(app)
    app.world.repair()

    for chosen, left in (([1], ["2", "7"]), (["7"], ["2"]), ([2, 7], [])):
        app.world.forget()
        result = (await job.retry_dead_letters("r", keys=chosen).run(app)).unwrap()
        assert keys(result) == left
        assert app.world.mapped == [int(chosen[0])]
        assert result.value == spelled(9, without=tuple(map(int, left)))
        assert (await job.resume("r").run(app)).unwrap().value == result.value
    assert (await verify_run(store, "r")).problem is None


async def test_a_key_that_never_was_a_dead_letter_is_rejected(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1)
    job = setting_aside()
    await job.start(3, run_id="r").run(app)

    for change in (job.retry_dead_letters, job.drop_dead_letters):
        with pytest.raises(ValueError, match="no dead letters with the keys '2', '9'"):
            await change("r", keys=[1, 2, 9]).run(app)
        with pytest.raises(TypeError, match=r"write keys=\['12'\]"):
            change("r", keys="12")
    assert (await read_checkpoint(store, "r")).metadata.resumes == 0


@both_backends
async def test_dropped_dead_letters_do_not_count_any_more(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, 2, 7)
    job = setting_aside()
    await job.start(9, run_id="r").run(app)
    app.world.forget()

    some = (await job.drop_dead_letters("r", keys=[2]).run(app)).unwrap()
    assert (some.value, some.items, keys(some)) == (spelled(9, without=(1, 2, 7)), 8, ["1", "7"])
    app.world.repair()
    retried = (await job.retry_dead_letters("r", keys=["7"]).run(app)).unwrap()
    assert (retried.value, retried.items, keys(retried)) == (spelled(9, without=(1, 2)), 8, ["1"])
    none = (await job.drop_dead_letters("r").run(app)).unwrap()
    assert none == JobResult(spelled(9, without=(1, 2)), 7)

    assert app.world.mapped == [7]
    for life in (job.resume("r"), job.drop_dead_letters("r"), job.retry_dead_letters("r")):
        assert await life.run(app) == Success(none)
    assert app.world.mapped == [7]


async def test_the_journal_names_reopened_dead_letters_by_ranges_of_entries(
    store: MemoryStore,
) -> None:
    app = app_around(store)
    app.world.break_items(*range(50))
    job = setting_aside(limit=1)
    await job.start(50, run_id="r").run(app)
    await job.drop_dead_letters("r", keys=[3]).run(app)
    app.world.repair()
    await job.retry_dead_letters("r").run(app)

    entries = await read_entries(store, "r")
    resumed = [entry for entry in entries if isinstance(entry, Resumed)]
    dropped, retried = resumed
    letters = [n for n, entry in enumerate(entries, 1) if isinstance(entry, SetAside)]
    third = letters.pop(3)
    assert dropped.dropped == ((third, third),)
    assert retried.dropped == ()
    assert set(letters) <= {n for first, last in retried.void for n in range(first, last + 1)}


async def test_dead_letters_of_an_incomplete_run_are_retried_as_well(store: MemoryStore) -> None:
    app = app_around(store)
    is_broken = True

    def joined(words: list[str]) -> Effect[App, str, str]:
        return fail("broken") if is_broken and "8" in words else join(words)

    app.world.break_items(1, 4)
    job = setting_aside(reduce=joined)
    assert (await job.start(9, run_id="r").run(app)).failure() == "broken"
    is_broken = False
    app.world.repair()
    app.world.forget()

    result = (await job.retry_dead_letters("r", keys=[1]).run(app)).unwrap()

    assert app.world.mapped == [1]
    assert (result.value, keys(result)) == (spelled(9, without=(4,)), ["4"])


# Jobs within workflows.


def spelling_twice(job: MapReduce[App, Any, Any, Any]) -> Workflow[App, Any, int, list[Any]]:
    """A workflow of two jobs with steps before, between and after them."""

    @step
    @effect
    def log(app: App, line: str) -> None:
        app.world.reduced.append([line])

    @workflow
    def twice(count: int) -> Do[App, Any, list[Any]]:
        yield from log("begin")
        first = yield from job.body(count)
        yield from log(f"first {first.value}")
        second = yield from job.body(count - 1)
        yield from log(f"second {second.value}")
        return [first.value, keys(first), second.value, keys(second)]

    return twice


def lines(app: App) -> list[str]:
    """Return what the steps of `spelling_twice` logged."""
    return [words[0] for words in app.world.reduced if words and not words[0].isdigit()]


@both_backends
async def test_a_reopened_job_in_a_workflow_repeats_only_what_came_after_it(
    store: MemoryStore,
) -> None:
    job = setting_aside(fan_in=8)
    twice = spelling_twice(job)
    app = app_around(store)
    app.world.break_items(1, 3)
    first = (await twice.start(5, run_id="r").run(app)).unwrap()
    assert first == ["0 2 4", ["1", "3"], "0 2", ["1", "3"]]

    # Item 3 of both jobs: all of the second job runs again, as it came after the first one.
    app.world.repair(3)
    app.world.forget()
    found = (await twice.retry_dead_letters("r", keys=[3]).run(app)).unwrap()
    assert found == ["0 2 3 4", ["1"], "0 2 3", ["1"]]
    assert sorted(app.world.mapped) == [0, 1, 2, 3, 3]
    assert lines(app) == ["first 0 2 3 4", "second 0 2 3"]
    assert (await twice.resume("r").run(app)).unwrap() == found

    app.world.repair()
    app.world.forget()
    dropped = (await twice.drop_dead_letters("r").run(app)).unwrap()
    assert dropped == ["0 2 3 4", [], "0 1 2 3", []]
    assert sorted(app.world.mapped) == [0, 1, 2, 3]
    assert (await verify_run(store, "r")).problem is None


async def test_a_machine_whose_action_has_a_job_is_a_machine_again_once_it_is_reopened(
    store: MemoryStore,
) -> None:
    job = setting_aside()
    machine: StateMachine[App, Any, str] = StateMachine(
        "spells",
        initial="new",
        transitions=[
            Transition("spell", "new", "done", lambda _: job.body(3).map(lambda _: Moved("done")))
        ],
        final={"done"},
    )
    app = app_around(store)
    app.world.break_items(1)
    first = await machine.start(run_id="r").run_or_raise(app)

    app.world.repair()
    app.world.forget()
    again = await machine.retry_dead_letters("r").run_or_raise(app)
    assert isinstance(again, Machine)
    assert again.path() == first.path() == ("new", "done")
    assert app.world.mapped == [1]


@both_backends
async def test_a_job_in_a_later_step_leaves_earlier_jobs_alone(store: MemoryStore) -> None:
    inner = setting_aside(fan_in=8)

    @step
    def counted(count: int) -> Effect[App, Any, str]:
        return inner.body(count).map(lambda result: result.value)

    @workflow
    def outer(count: int) -> Do[App, Any, list[str]]:
        first = yield from counted(2)
        second = yield from counted(count)
        return [first, second]

    app = app_around(store)
    app.world.break_items(3)
    assert (await outer.start(5, run_id="r").run(app)).unwrap() == ["0 1", "0 1 2 4"]
    app.world.repair()
    app.world.forget()

    assert (await outer.retry_dead_letters("r").run(app)).unwrap() == ["0 1", "0 1 2 3 4"]
    assert app.world.mapped == [3]
    assert (await outer.resume("r").run(app)).unwrap() == ["0 1", "0 1 2 3 4"]


async def test_a_retry_in_a_poor_environment_leaves_the_run_complete(store: MemoryStore) -> None:
    @dataclass(frozen=True)
    class Poor:
        checkpoints: Checkpoints

    job, app = setting_aside(), app_around(store)
    app.world.break_items(1)
    first = await job.start(3, run_id="r").run(app)
    poor: Any = Poor(app.checkpoints)
    with pytest.raises(TypeError, match=r"needs an environment with world .*The run is unchanged"):
        await job.retry_dead_letters("r").run(poor)
    info = await find_run(store, "r")
    assert info is not None
    assert info.summary.status is RunStatus.COMPLETED
    assert repr(await job.result("r").run(app)) == repr(first)


@pytest.mark.parametrize(
    "before", [(), ("map",), ("reduce", "mapped"), ("map", "reduce", "mapped")]
)
async def test_steps_with_the_names_of_the_parts_of_a_job_are_told_from_them(
    before: tuple[str, ...], store: MemoryStore
) -> None:
    job = setting_aside(fan_in=2, limit=1)

    def noted(name: str) -> Effect[App, Any, None]:
        @step(name=name)
        @effect
        def note(app: App) -> None:
            app.world.reduced.append([name])

        return note()

    @workflow
    def outer(count: int) -> Do[App, Any, str]:
        for name in before:
            yield from noted(name)
        result = yield from job.body(count)
        for name in ("reduce", "mapped"):
            yield from noted(name)
        return result.value

    app = app_around(store)
    app.world.break_items(5)
    assert (await outer.start(6, run_id="r").run(app)).unwrap() == "0 1 2 3 4"
    app.world.repair()
    app.world.forget()
    assert (await outer.retry_dead_letters("r").run(app)).unwrap() == spelled(6)
    assert app.world.mapped == [5]
    # Only the groups that the item joins, and what came after the job.
    assert app.world.reduced[:1] == [["4", "5"]]
    assert ["0", "1"] not in app.world.reduced
    assert app.world.reduced[-2:] == [["reduce"], ["mapped"]]
    assert sum(len(one) == 1 for one in app.world.reduced) == 2


@both_backends
@pytest.mark.parametrize("method", ["retry_dead_letters", "drop_dead_letters"])
async def test_an_at_most_once_step_after_the_job_runs_again_only_by_force(
    method: str, store: MemoryStore
) -> None:
    job = setting_aside(fan_in=8)

    @step(at_most_once=True)
    @effect
    def pay(app: App, amount: int) -> None:
        app.world.reduced.append([f"pay {amount}"])

    @workflow
    def paying(count: int) -> Do[App, Any, str]:
        result = yield from job.body(count)
        yield from pay(5)
        return result.value

    app = app_around(store)
    app.world.break_items(1)
    first = await paying.start(3, run_id="r").run(app)
    app.world.repair()
    entries = await read_entries(store, "r")
    change: Callable[..., Effect[App, Any, str]] = getattr(paying, method)

    refused = (await change("r").run(app)).failure()
    assert isinstance(refused, OutcomeUnknown)
    assert (refused.step, refused.is_repeated) == ("pay", True)
    assert "step 'pay' of run 'r' is marked at_most_once, has begun before" in str(refused)
    assert await read_entries(store, "r") == entries
    assert await paying.resume("r").run(app) == first
    assert app.world.reduced.count(["pay 5"]) == 1

    forced = await change("r", force=True).run(app)
    assert forced == Success("0 1 2" if method == "retry_dead_letters" else "0 2")
    assert app.world.reduced.count(["pay 5"]) == 2


async def test_an_at_most_once_item_that_timed_out_is_retried_only_by_force(
    store: MemoryStore,
) -> None:
    begun: list[int] = []

    @step(at_most_once=True)
    @effect(errors=Broken)
    async def send(app: App, number: int) -> str:
        begun.append(number)
        if number == 1 and begun.count(1) == 1:
            await anyio.sleep(60)
        if (number == 2 and begun.count(2) == 1) or (number == 1 and begun.count(1) == 2):
            raise Broken(number, times=1)
        return str(number)

    job = setting_aside(map=send, reduce=join, timeout=0.05)
    app = app_around(store)
    first = await job.start(3, run_id="r").run(app)
    assert keys(first.unwrap()) == ["1", "2"]
    entries = await read_entries(store, "r")

    refused = (await job.retry_dead_letters("r").run(app)).failure()
    assert isinstance(refused, OutcomeUnknown)
    assert (refused.step, refused.is_repeated) == ("map[1]/send", True)
    assert await read_entries(store, "r") == entries
    # Item 2 is known to have failed.
    assert keys((await job.retry_dead_letters("r", keys=[2]).run(app)).unwrap()) == ["1"]
    assert keys((await job.retry_dead_letters("r", force=True).run(app)).unwrap()) == ["1"]
    # So is the attempt that was forced.
    assert (await job.retry_dead_letters("r").run(app)).unwrap().value == "0 1 2"
    assert sorted(begun) == [0, 1, 1, 1, 2, 2]


async def test_a_job_within_an_at_most_once_step_is_reopened_only_by_force(
    store: MemoryStore,
) -> None:
    job = setting_aside(fan_in=8)

    @step(at_most_once=True)
    def spelled_once(count: int) -> Effect[App, Any, str]:
        return job.body(count).map(lambda result: result.value)

    @workflow
    def outer(count: int) -> Do[App, Any, str]:
        return (yield from spelled_once(count))

    app = app_around(store)
    app.world.break_items(1)
    first = await outer.start(3, run_id="r").run(app)
    app.world.repair()

    refused = (await outer.retry_dead_letters("r").run(app)).failure()
    assert isinstance(refused, OutcomeUnknown)
    assert await outer.resume("r").run(app) == first
    assert await outer.retry_dead_letters("r", force=True).run(app) == Success("0 1 2")


@both_backends
async def test_another_workflow_that_is_called_after_the_job_runs_again(store: MemoryStore) -> None:
    job = setting_aside(fan_in=8)

    @step
    @effect
    def log(app: App, line: str) -> str:
        app.world.reduced.append([f"log {line}"])
        return line

    @workflow
    def inner(line: str) -> Do[App, Any, str]:
        return (yield from log(line))

    @workflow
    def outer(count: int) -> Do[App, Any, list[str]]:
        result = yield from job.body(count)
        constant = yield from inner.call("constant")
        return [constant, (yield from inner.call(result.value))]

    app = app_around(store)
    app.world.break_items(1, 2)
    assert (await outer.start(4, run_id="r").run(app)).unwrap() == ["constant", "0 3"]
    for repaired, value in ((1, "0 1 3"), (2, "0 1 2 3")):
        app.world.repair(repaired)
        app.world.forget()
        retried = await outer.retry_dead_letters("r", keys=[repaired]).run(app)
        assert retried == Success(["constant", value])
        assert app.world.reduced[1:] == [["log constant"], [f"log {value}"]]
        assert await outer.resume("r").run(app) == retried


def calling_after(job: MapReduce[App, Any, Any, Any]) -> Workflow[App, Any, int, str]:
    """A workflow of a job, and of another workflow that gets its result."""

    @step
    @effect
    def echo(app: App, line: str) -> str:
        return line

    @workflow
    def inner(line: str) -> Do[App, Any, str]:
        return (yield from echo(line))

    @workflow
    def calling(count: int) -> Do[App, Any, str]:
        result = yield from job.body(count)
        return (yield from inner.call(result.value))

    return calling


def shrinking(job: MapReduce[App, Any, Any, Any]) -> Iterative[App, Any, int]:
    """Each round continues with the number of items that succeeded, less two."""

    @do
    def shrink(count: int) -> Do[App, Any, int]:
        result = yield from job.body(count)
        return max(len(result.value.split()) - 2, 0)

    return Iterative("shrinking", shrink, converged=lambda before, after: after == 0, max_rounds=9)


@both_backends
async def test_the_rounds_after_a_reopened_one_run_again(store: MemoryStore) -> None:
    app = app_around(store)
    job = shrinking(setting_aside())
    app.world.break_items(8, 5)
    first = (await job.start(9, run_id="r").run(app)).unwrap()
    assert first.rounds == 4  # 9 items yield 7 - 2 = 5, then 3, 1, 0

    app.world.repair()
    app.world.forget()
    result = (await job.retry_dead_letters("r", keys=[8]).run(app)).unwrap()
    assert app.world.mapped[0] == 8
    assert sorted(app.world.mapped) == sorted([8, *range(6), *range(4), *range(2)])
    assert result.rounds == 4
    app.world.forget()
    assert (await job.resume("r").run(app)).unwrap() == result
    assert app.world.mapped == []


class Reopened(Workflow[App, Any, Any, Any]):
    """A workflow whose dead letters are retried or dropped after each start."""

    def __init__(self, inner: Workflow[App, Any, Any, Any], *changes: tuple[str, Any]) -> None:
        super().__init__(inner.blueprint)
        self.changes = changes

    def start(
        self,
        input: Any = None,
        *,
        run_id: str | None = None,
        context: Mapping[str, object] | None = None,
        retry_failed: bool = True,
    ) -> Effect[App, Any, Any]:
        assert run_id is not None
        life = super().start(input, run_id=run_id, context=context, retry_failed=retry_failed)
        for method, chosen in self.changes:
            change: Callable[..., Any] = getattr(self, method)
            life = life.and_then(lambda _, change=change, chosen=chosen: change(run_id, chosen))
        return life


def spell_at_second_go(number: int) -> Effect[App, str, str]:
    """Items 1 and 3 of the first job fail at first, and succeed when they are retried."""
    is_failing = current_step().step in (
        f"{flow}[{item}]/spell_at_second_go" for flow in ("map", "round/map") for item in (1, 3)
    )
    return fail("not yet") if is_failing else pure(str(number))


CHANGES: list[list[tuple[str, Any]]] = [
    [("retry_dead_letters", None)],
    [("retry_dead_letters", ["3"]), ("drop_dead_letters", None)],
    [("drop_dead_letters", ["1"]), ("retry_dead_letters", None)],
]


@in_turn(
    where=["job", "workflow", "iterative", "calling"],
    change=range(len(CHANGES)),
    anyio_backend=["asyncio", "trio"],
)
async def test_a_crash_changes_nothing_about_reopened_dead_letters(where: str, change: int) -> None:
    job = setting_aside(map=spell_at_second_go, reduce=join, fan_in=2)
    inner: dict[str, Any] = {
        "job": job,
        "workflow": spelling_twice(job),
        "iterative": shrinking(job),
        "calling": calling_after(job),
    }

    assert len(await crash_everywhere(Reopened(inner[where], *CHANGES[change]), 4, app_around)) > 15


async def test_the_summary_of_a_run_counts_its_dead_letters(store: MemoryStore) -> None:
    app = app_around(store)
    app.world.break_items(1, 3, 5)
    job = setting_aside()

    async def counted() -> int:
        info = await find_run(store, "r")
        assert info is not None
        return info.summary.details.dead_letters

    await job.start(7, run_id="r").run(app)
    assert await counted() == 3
    await job.drop_dead_letters("r", keys=[5]).run(app)
    assert await counted() == 2
    app.world.repair(1)
    await job.retry_dead_letters("r").run(app)
    assert await counted() == 1
