"""What a run leaves behind, and what a resume makes of it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Never

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Workflow,
    effect,
    fail,
    from_async,
    from_fn,
    now,
    par_traverse,
    pure,
    random,
    sleep,
    step,
    step_info,
    uuid,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    Completed,
    CorruptCheckpoint,
    Decided,
    DefinitionChanged,
    Failed,
    Interrupted,
    LeaseLost,
    NotSerializable,
    OutcomeUnknown,
    Owner,
    RunBusy,
    RunConflict,
    RunNotFound,
    RunStatus,
    SaveFailed,
    StepInputChanged,
    current_step,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import (
    Fault,
    FaultyStore,
    RecordingObserver,
    SaveFails,
    Unavailable,
    crash_everywhere,
)
from tests.apps import App, World
from tests.workflows.journals import in_turn, made_of

pytestmark = pytest.mark.anyio


class OutOfStock(Exception):
    """A typed failure of the tests."""


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Item:
    name: str
    size: Size


@step
def act(name: str) -> Effect[App, OutOfStock, str]:
    def perform(app: App) -> Effect[object, OutOfStock, str]:
        app.world.done.append(name)
        return fail(OutOfStock(name)) if name in app.world.failing else pure(f"{name} done")

    return from_fn(perform).and_then(lambda effect: effect)


@workflow
def three_acts(prefix: str) -> Do[App, OutOfStock, list[str]]:
    first = yield from act(f"{prefix}1")
    second = yield from act(f"{prefix}2")
    third = yield from act(f"{prefix}3")
    return [first, second, third]


ALL = ["a1 done", "a2 done", "a3 done"]


async def test_a_run_leaves_a_journal_that_says_what_happened(store: MemoryStore) -> None:
    app = App(Checkpoints(store))

    assert await three_acts.start("a", run_id="r", context={"tenant": "t1"}).run(app) == Success(
        ALL
    )

    checkpoint = await read_checkpoint(store, "r")
    assert [done.step for done in checkpoint.completed_steps] == ["act", "act#2", "act#3"]
    assert [done.output for done in checkpoint.completed_steps] == ALL
    assert checkpoint.status is RunStatus.COMPLETED
    assert checkpoint.initial_state == "a"
    assert checkpoint.context == {"tenant": "t1"}
    assert isinstance(checkpoint.state, Completed)


async def test_a_failed_step_is_run_again_and_those_before_it_are_not(store: MemoryStore) -> None:
    app = App(Checkpoints(store), World(failing={"a2"}))

    failure = await three_acts.start("a", run_id="r").run(app)
    assert isinstance(failure.failure(), OutOfStock)
    checkpoint = await read_checkpoint(store, "r")
    assert isinstance(checkpoint.state, Failed)
    assert checkpoint.status is RunStatus.FAILED
    plan = (await three_acts.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry, plan.skip) == (("act#2",), ("act#2",), ("act",))

    app.world.recover()
    assert await three_acts.resume("r").run(app) == Success(ALL)
    assert app.world.done == ["a1", "a2", "a2", "a3"]


async def test_the_function_of_a_completed_step_is_not_called_again(store: MemoryStore) -> None:
    called: list[str] = []

    @step
    def prepare(name: str) -> Effect[App, OutOfStock, str]:
        called.append(name)
        if called.count(name) > 1:
            raise RuntimeError("there is no token any more")
        return act(name)

    prepared = made_of(lambda: in_turn(prepare("a"), act("b")))

    app = App(Checkpoints(store), World(failing={"b"}))
    await prepared.start(None, run_id="r").run(app)
    app.world.recover()

    assert await prepared.resume("r").run(app) == Success("b done")
    assert called == ["a"]


async def test_what_the_function_of_a_step_raises_is_a_defect_of_the_step(
    store: MemoryStore,
) -> None:
    tokens: list[str] = []

    @step
    def prepare(name: str) -> Effect[App, OutOfStock, str]:
        return pure(f"{name} {tokens[0]}")

    prepared = made_of(lambda: prepare("a"))

    app = App(Checkpoints(store))
    with pytest.raises(IndexError) as raised:
        await prepared.start(None, run_id="r").run(app)
    assert "in step 'prepare' of run 'r', attempt 1" in raised.value.__notes__
    assert isinstance((await read_checkpoint(store, "r")).state, Failed)

    tokens.append("token")
    assert await prepared.resume("r").run(app) == Success("a token")


async def test_a_complete_run_gives_its_recorded_output_and_runs_nothing(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    await three_acts.start("a", run_id="r").run(app)

    assert await three_acts.resume("r").run(app) == Success(ALL)
    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert app.world.done == ["a1", "a2", "a3"]


async def test_start_refuses_an_id_that_belongs_to_another_input_or_workflow(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    other = Workflow.of_steps("other", [act])
    await three_acts.start("a", run_id="r").run(app)

    assert isinstance((await three_acts.start("b", run_id="r").run(app)).failure(), RunConflict)
    assert isinstance((await other.start("a", run_id="r").run(app)).failure(), RunConflict)
    assert isinstance((await other.resume("r").run(app)).failure(), RunConflict)


@workflow
def echo(value: Any) -> Do[App, Never, Any]:
    return (yield from pure(value))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (None, False),
        ({"a": [1, 2]}, {"a": [True, 2]}),
        ({1: "a"}, {True: "a"}),
        ([1], (1,)),
    ],
)
async def test_inputs_that_are_equal_and_not_the_same_are_told_apart(
    store: MemoryStore, first: object, second: object
) -> None:
    app = App(Checkpoints(store))
    await echo.start(first, run_id="r").run_or_raise(app)

    assert isinstance((await echo.start(second, run_id="r").run(app)).failure(), RunConflict)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ([math.nan, math.inf], [math.nan, math.inf]),
        ({"a", "b"}, {"b", "a"}),
        (2**80, 2**80),
    ],
)
@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_the_same_input_goes_on_with_the_run(
    store: MemoryStore, first: object, second: object, format: Literal["json", "cbor"]
) -> None:
    app = App(Checkpoints(store, format=format))
    await echo.start(first, run_id="r").run_or_raise(app)

    again = await echo.start(second, run_id="r").run_or_raise(app)
    assert repr(again) == repr(first) or again == first


async def test_an_empty_run_id_is_an_id_like_any_other(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    for _ in range(2):
        await echo.start(1, run_id="").run_or_raise(app)

    assert [info.run_id for info in await store.find()] == [""]


async def test_an_unknown_run_names_the_nearest(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    await three_acts.start("a", run_id="orders-1").run(app)

    error = (await three_acts.resume("order-1").run(app)).failure()

    assert isinstance(error, RunNotFound)
    assert error.nearest == ("orders-1",)


async def test_a_list_of_steps_passes_its_state_along(store: MemoryStore) -> None:
    linear = Workflow.of_steps("linear", [act, with_suffix])
    app = App(Checkpoints(store), World(failing={"a"}))

    assert (await linear.start("a", run_id="r").run(app)).failure().args == ("a",)
    app.world.recover()
    assert await linear.resume("r").run(app) == Success("a done!")
    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.definition.steps == ("act", "with_suffix")
    assert checkpoint.current_state == "a done!"


def with_suffix(text: str) -> Effect[App, OutOfStock, str]:
    return pure(f"{text}!")


async def test_a_changed_definition_is_named(store: MemoryStore) -> None:
    app = App(Checkpoints(store), World(failing={"a"}))
    await Workflow.of_steps("w", [act, with_suffix]).start("a", run_id="r").run(app)
    changed = Workflow.of_steps("w", [act, renamed, with_suffix_too])

    error = (await changed.resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert set(error.added) | {new for _, new in error.renamed} == {"renamed", "with_suffix_too"}
    plan = (await changed.plan("r").run(app)).unwrap()
    assert (plan.start, str(plan.problem)) == ((), str(error))

    app.world.recover()
    assert await changed.resume("r", force=True).run(app) == Success("a done??")


def renamed(text: str) -> Effect[App, OutOfStock, str]:
    return pure(f"{text}?")


def with_suffix_too(text: str) -> Effect[App, OutOfStock, str]:
    return pure(f"{text}?")


async def test_a_step_by_the_fluent_way(store: MemoryStore) -> None:
    @workflow
    def fluent(name: str) -> Do[App, OutOfStock, str]:
        done = yield from from_fn(perform).map(lambda _: f"{name} done").checkpointed("fluent")
        return (yield from act(f"{done}, then"))

    def perform(app: App) -> None:
        app.world.done.append("fluent")

    app = App(Checkpoints(store), World(failing={"a done, then"}))
    await fluent.start("a", run_id="r").run(app)
    app.world.recover()
    assert await fluent.resume("r").run(app) == Success("a done, then done")
    assert app.world.done.count("fluent") == 1


async def test_interruption_is_recorded_and_the_step_is_run_again(store: MemoryStore) -> None:
    started = anyio.Event()
    app = App(Checkpoints(store))

    waiting = made_of(lambda: in_turn(act("before"), with_checkpointing("wait", from_async(wait))))

    async def wait(app: App) -> str:
        app.world.done.append("wait")
        if app.world.done.count("wait") == 1:
            started.set()
            await anyio.sleep_forever()
        return "waited"

    async with anyio.create_task_group() as group:
        group.start_soon(waiting.start(None, run_id="r").run, app)
        await started.wait()
        group.cancel_scope.cancel()

    checkpoint = await read_checkpoint(store, "r")
    assert isinstance(checkpoint.state, Interrupted)
    assert (checkpoint.state.step, checkpoint.state.in_progress) == ("wait", True)
    assert checkpoint.status is RunStatus.INTERRUPTED
    assert await waiting.resume("r").run(app) == Success("waited")
    assert app.world.done == ["before", "wait", "wait"]


async def test_a_defect_parks_the_run_with_its_traceback(store: MemoryStore) -> None:
    buggy = made_of(lambda: with_checkpointing("divide", from_fn(lambda _: 1 / 0)))

    app = App(Checkpoints(store))
    with pytest.raises(ZeroDivisionError) as caught:
        await buggy.start(None, run_id="r").run(app)

    assert any("step 'divide' of run 'r'" in note for note in caught.value.__notes__)
    checkpoint = await read_checkpoint(store, "r")
    assert isinstance(checkpoint.state, Failed)
    assert checkpoint.state.retryable
    assert "ZeroDivisionError" in (checkpoint.state.error.traceback or "")
    assert checkpoint.status is RunStatus.FAILED


async def test_outputs_come_back_type_for_type(store: MemoryStore) -> None:
    @step
    def pick(name: str) -> Effect[object, Never, list[Item]]:
        return pure([Item(name, Size.LARGE)])

    @workflow
    def picking(name: str) -> Do[App, OutOfStock, tuple[Item, ...]]:
        items = yield from pick(name)
        yield from act("a")
        return tuple(items)

    app = App(Checkpoints(store), World(failing={"a"}))
    await picking.start("hat", run_id="r").run(app)
    app.world.recover()

    expected = Success((Item("hat", Size.LARGE),))
    assert await picking.resume("r").run(app) == expected
    assert await picking.resume("r").run(app) == expected


async def test_what_cannot_be_saved_ends_the_run_with_its_path(store: MemoryStore) -> None:
    @workflow
    def careless(_: None) -> Do[App, str, object]:
        found = with_checkpointing("find", pure({"items": [Item("hat", Size.SMALL)]}))
        return (yield from found.or_else(lambda _: pure({"items": list[Item]()})))

    error = (await careless.start(None).run(App(Checkpoints(store)))).failure()

    assert isinstance(error, NotSerializable)
    assert error.path == "find: $.items[0]"


async def test_a_handled_failure_is_settled(store: MemoryStore) -> None:
    @workflow
    def careful(_: None) -> Do[App, OutOfStock, str]:
        first = yield from act("a").or_else(lambda error: pure(f"without {error}"))
        yield from act("b")
        return first

    app = App(Checkpoints(store), World(failing={"a", "b"}))
    await careful.start(None, run_id="r").run(app)
    app.world.recover()

    # The run went on from the failure of "a", so a resume must not undo that.
    assert await careful.resume("r").run(app) == Success("without a")
    assert app.world.done == ["a", "b", "b"]


async def test_a_failure_that_is_not_retryable_stands(store: MemoryStore) -> None:
    @step(retryable=lambda error: "later" in str(error))
    def choosy(text: str) -> Effect[App, OutOfStock, str]:
        return act(text)

    choosing = Workflow.of_steps("choosing", [choosy])
    app = App(Checkpoints(store), World(failing={"never", "later"}))
    for name in ("never", "later"):
        await choosing.start(name, run_id=name).run(app)
    app.world.recover()

    assert isinstance((await choosing.resume("never").run(app)).failure(), OutOfStock)
    assert await choosing.resume("later").run(app) == Success("later done")


async def test_time_and_chance_between_steps_are_recorded(store: MemoryStore) -> None:
    @workflow
    def chancy(_: None) -> Do[App, OutOfStock, tuple[datetime, float, str]]:
        moment = yield from now()
        chance = yield from random()
        name = yield from uuid()
        yield from act("a")
        return moment, chance, str(name)

    app = App(Checkpoints(store), World(failing={"a"}))
    await chancy.start(None, run_id="r").run(app)
    app.world.recover()
    result = (await chancy.resume("r").run(app)).unwrap()

    recorded = {
        entry.path: entry.value
        for entry in await read_entries(store, "r")
        if isinstance(entry, Decided)
    }
    assert recorded["now"] == {"$datetime": result[0].isoformat()}
    assert recorded["random"] == result[1]
    assert recorded["uuid"] == {"$uuid": result[2]}


async def test_a_completed_step_reached_with_other_arguments_is_refused(
    store: MemoryStore,
) -> None:
    names = iter(["first", "second"])

    @workflow
    def fickle(_: None) -> Do[App, OutOfStock, str]:
        got = yield from act(next(names))
        yield from act("b")
        return got

    app = App(Checkpoints(store), World(failing={"b"}))
    await fickle.start(None, run_id="r").run(app)
    error = (await fickle.resume("r").run(app)).failure()

    assert isinstance(error, StepInputChanged)
    assert "first" in error.recorded
    assert "second" in error.current
    assert app.world.done == ["first", "b"]


async def test_an_at_most_once_step_of_unknown_outcome_is_not_run_again_silently(
    store: MemoryStore,
) -> None:
    paying = made_of(lambda: with_checkpointing("pay", act("pay"), at_most_once=True))

    app = App(Checkpoints(FaultyStore(store, [SaveFails(append=3)])))
    assert isinstance((await paying.start(None, run_id="r").run(app)).failure(), SaveFailed)
    app = App(Checkpoints(store), app.world)

    error = (await paying.resume("r").run(app)).failure()
    assert isinstance(error, OutcomeUnknown)
    assert error.step == "pay"
    assert await paying.resume("r", force=True).run(app) == Success("pay done")


async def test_a_step_may_be_a_plain_function_of_the_environment(store: MemoryStore) -> None:
    @step
    @effect(errors=OutOfStock)
    def pick(app: App, item: Item) -> Item:
        app.world.done.append(item.name)
        if item.name in app.world.failing:
            raise OutOfStock(item.name)
        return item

    @workflow
    def picking(_: None) -> Do[App, OutOfStock, Item]:
        cap = yield from pick(Item("cap", Size.SMALL))
        missing = yield from pick(Item("hat", Size.LARGE)).result()
        yield from act(f"{type(missing.failure()).__name__}")
        return cap

    app = App(Checkpoints(store), World(failing={"hat", "OutOfStock"}))
    await picking.start(None, run_id="r").run(app)
    [begun, *_] = [e for e in await read_entries(store, "r") if isinstance(e, BeforeStep)]
    assert begun.arguments is not None
    assert begun.arguments.shown.startswith("(item=Item(name='cap'")

    app.world.recover()
    assert await picking.resume("r").run(app) == Success(Item("cap", Size.SMALL))
    assert app.world.done == ["cap", "hat", "OutOfStock", "OutOfStock"]


async def test_steps_in_parallel_are_found_again_by_their_keys(store: MemoryStore) -> None:
    @workflow
    def all_of(names: list[str]) -> Do[App, OutOfStock, list[str]]:
        return (yield from par_traverse(names, act, limit=2, key=str))

    names = [f"n{i}/[x]" for i in range(6)]
    app = App(Checkpoints(store), World(failing={names[3]}))
    await all_of.start(names, run_id="r").run(app)
    done_before = set(app.world.done) - {names[3]}
    app.world.recover()
    app.world.done.clear()

    completed = {done.step for done in (await read_checkpoint(store, "r")).completed_steps}
    result = await all_of.resume("r").run(app)

    assert result == Success([f"{name} done" for name in names])
    assert len(completed) + len(app.world.done) == len(names)
    assert completed <= {f"par_traverse[n{i}/%5Bx%5D]/act" for i in range(6)}
    assert done_before


async def test_two_items_with_one_key_are_refused(store: MemoryStore) -> None:
    twice = made_of(lambda: par_traverse(["a", "a"], act, key=str))

    with pytest.raises(ValueError, match="key"):
        await twice.start(None).run(App(Checkpoints(store)))


async def test_step_info_names_the_run_and_step(store: MemoryStore) -> None:
    @step
    def who(_: None) -> Effect[object, Never, list[str]]:
        return step_info().map(lambda info: [info.run_id, info.step, info.idempotency_key])

    ask_who = made_of(lambda: who(None))

    result = await ask_who.start(None, run_id="r").run(App(Checkpoints(store)))

    assert result == Success(["r", "who", "r:who"])
    with pytest.raises(LookupError):
        await step_info().run(None)


async def test_a_step_runs_outside_a_run_as_a_plain_effect() -> None:
    assert await with_checkpointing("x", pure(1)).run(None) == Success(1)


async def test_a_run_that_is_driven_is_busy_and_is_not_touched(store: MemoryStore) -> None:
    started, go_on = anyio.Event(), anyio.Event()

    slow = made_of(lambda: with_checkpointing("wait", from_async(wait)))

    async def wait(_: object) -> str:
        started.set()
        await go_on.wait()
        return "waited"

    app = App(Checkpoints(store))
    results: list[object] = []

    async def drive() -> None:
        results.append(await slow.start(None, run_id="r").run(app))

    async with anyio.create_task_group() as group:
        group.start_soon(drive)
        await started.wait()
        before = await store.read("r")
        assert isinstance((await slow.resume("r").run(app)).failure(), RunBusy)
        assert isinstance((await slow.start(None, run_id="r").run(app)).failure(), RunBusy)
        assert await store.read("r") == before
        go_on.set()

    assert results == [Success("waited")]


async def test_a_run_of_another_host_is_free_once_its_lease_expired(store: MemoryStore) -> None:
    """Whether a process of another host lives cannot be told from here: only time can."""
    app = App(Checkpoints(store), World(failing={"a2"}))
    await three_acts.start("a", run_id="r").run(app)
    app.world.recover()
    elsewhere = Owner(pid=1, host="elsewhere", born="1", claim="1")
    await store.claim("r", owner=str(elsewhere), seconds=0.3)

    busy = (await three_acts.resume("r").run(app)).failure()
    assert isinstance(busy, RunBusy)
    assert "elsewhere" in str(busy)

    await anyio.sleep(busy.expires_in)
    assert await three_acts.resume("r").run(app) == Success(ALL)


async def test_a_run_that_was_taken_over_writes_nothing_more(store: MemoryStore) -> None:
    app = App(Checkpoints(store, lease_seconds=30))

    robbed = made_of(lambda: in_turn(act("a"), from_async(steal), act("b")))

    async def steal(_: object) -> None:
        info = await store.info("r")
        assert info is not None
        assert info.lease is not None
        await store.release(info.lease)
        await store.claim("r", owner="somebody else", seconds=60)

    error = (await robbed.start(None, run_id="r").run(app)).failure()

    assert isinstance(error, LeaseLost)
    assert app.world.done == ["a"]
    assert [type(entry) for entry in await read_entries(store, "r")][-1] is BeforeStep


async def test_a_save_that_fails_ends_the_run_past_every_handler(store: MemoryStore) -> None:
    @workflow
    def stubborn(_: None) -> Do[App, OutOfStock, str]:
        try:
            yield from act("a").or_else(lambda _: pure("handled"))
            yield from act("b")
        except Exception:
            yield from from_fn(go_on)
        return "ended well"

    def go_on(app: App) -> None:
        app.world.done.append("went on")

    app = App(Checkpoints(FaultyStore(store, [SaveFails(append=3)])))
    error = (await stubborn.start(None, run_id="r").run(app)).failure()

    assert isinstance(error, SaveFailed)
    assert app.world.done == ["a"]


async def test_on_save_error_warn_goes_on(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(Checkpoints(FaultyStore(store, [SaveFails(append=3)]), on_save_error="warn"))

    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert "could not be saved" in caplog.text
    assert len((await read_checkpoint(store, "r")).completed_steps) == 3


async def test_an_at_most_once_step_does_not_run_before_its_beginning_is_saved(
    store: MemoryStore,
) -> None:
    """Even if the run continues in spite of failed saves: a resume could not know that it ran."""
    charged: list[str] = []

    @step(at_most_once=True)
    @effect
    async def charge(app: App, amount: int) -> None:
        charged.append(current_step().step)

    @workflow
    def order(_: None) -> Do[App, Any, None]:
        yield from charge(5)

    faulty = FaultyStore(store, [SaveFails(append=2)])
    result = await order.start(None, run_id="r").run(App(Checkpoints(faulty, on_save_error="warn")))

    assert isinstance(result.failure(), SaveFailed)
    assert charged == []
    assert (await order.resume("r").run(App(Checkpoints(store)))) == Success(None)
    assert charged == ["charge"]


async def test_the_end_of_a_run_is_tried_again_with_on_save_error_warn(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [SaveFails(append=4), SaveFails(append=5)])
    app = App(Checkpoints(faulty, on_save_error="warn"))

    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert not faulty.unmet
    assert (await read_checkpoint(store, "r")).status is RunStatus.COMPLETED


@pytest.mark.parametrize("append", range(1, 5))
@pytest.mark.parametrize(
    "fault", [SaveFails, partial(SaveFails, is_durable=True), partial(Unavailable, "append")]
)
async def test_a_failed_save_leaves_no_gap_in_the_journal_of_a_run_that_goes_on(
    store: MemoryStore, fault: Callable[[int], Fault], append: int
) -> None:
    """Whether the entries became durable all the same is found out before the next ones."""
    faulty = FaultyStore(store, [fault(append)])
    app = App(Checkpoints(faulty, on_save_error="warn"))

    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert not faulty.unmet
    verification = await verify_run(store, "r")
    assert verification.problem is None
    assert verification.length == 8
    assert app.world.done == ["a1", "a2", "a3"]


async def test_observers_hear_of_entries_and_skipped_steps(store: MemoryStore) -> None:
    observer = RecordingObserver()
    app = App(Checkpoints(store, observers=[observer]), World(failing={"a2"}))
    await three_acts.start("a", run_id="r").run(app)
    app.world.recover()
    await three_acts.resume("r").run(app)

    assert observer.skipped == ["act"]
    assert observer.entries == await read_entries(store, "r")


async def test_a_run_whose_last_entries_are_missing_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        app = App(Checkpoints(store))
        await three_acts.start("a", run_id="r").run_or_raise(app)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM entries WHERE sequence > 3")

        for effect in (three_acts.resume("r"), three_acts.start("a", run_id="r")):
            error = (await effect.run(app)).failure()
            assert isinstance(error, CorruptCheckpoint)
            assert "what came after entry 3 is missing" in str(error)
    assert app.world.done == ["a1", "a2", "a3"]


async def test_a_run_that_is_not_to_be_preserved_is_gone_once_complete(store: MemoryStore) -> None:
    app = App(Checkpoints(store, preserve=False), World(failing={"a2"}))
    await three_acts.start("a", run_id="r").run(app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED

    app.world.recover()
    assert await three_acts.resume("r").run(app) == Success(ALL)
    assert await store.find() == []


async def test_an_empty_run_id_names_a_run_as_any_other_does(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    for _ in range(2):
        assert await three_acts.start("a", run_id="").run(app) == Success(ALL)

    assert app.world.done == ["a1", "a2", "a3"]
    assert [info.run_id for info in await store.find()] == [""]


async def test_a_run_within_another_is_done_once_though_nothing_is_to_be_preserved(
    store: MemoryStore,
) -> None:
    @workflow
    def inner(name: str) -> Do[App, OutOfStock, str]:
        return (yield from act(name))

    @workflow
    def outer(_: None) -> Do[App, object, list[str]]:
        started = yield from inner.start("started", run_id="a")
        resumed = yield from inner.resume("b")
        yield from act("stop")
        return [started, resumed]

    app = App(Checkpoints(store, preserve=False), World(failing={"resumed", "stop"}))
    await inner.start("resumed", run_id="b").run(app)
    app.world.failing = {"stop"}
    await outer.start(None, run_id="r").run(app)
    app.world.recover()
    app.world.done.clear()

    assert await outer.resume("r").run(app) == Success(["started done", "resumed done"])
    assert app.world.done == ["stop"]
    assert sorted(info.run_id for info in await store.find()) == ["a", "b"]


async def test_steps_show_to_the_observer_of_effects(store: MemoryStore) -> None:
    class Told:
        def __init__(self) -> None:
            self.log: list[str] = []

        def began(self, name: str) -> None:
            self.log.append(f"{name} began")

        def ended(self, name: str, ended: object) -> None:
            self.log.append(f"{name} ended: {type(ended).__name__}")

    told = Told()
    app = App(Checkpoints(store), World(failing={"a2"}))
    await three_acts.start("a").run(app, observer=told)

    assert told.log == [
        "act began",
        "act ended: Success",
        "act#2 began",
        "act#2 ended: Failure",
    ]


async def test_a_completed_step_is_durable_soon_though_nothing_follows(store: MemoryStore) -> None:
    """Between steps a run may wait for long; what is done must not be lost meanwhile."""
    app = App(Checkpoints(store))

    @workflow
    def pausing(_: None) -> Do[App, OutOfStock, str]:
        done = yield from act("a")
        yield from from_async(until_completed)
        return done

    async def until_completed(_: object) -> None:
        with anyio.fail_after(5):
            while not (await read_checkpoint(store, "r")).completed_steps:
                await anyio.sleep(0.005)

    assert await pausing.start(None, run_id="r").run(app) == Success("a done")


@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_either_format_can_be_resumed(
    store: MemoryStore, format: Literal["json", "cbor"]
) -> None:
    app = App(Checkpoints(store, format=format), World(failing={"a3"}))
    await three_acts.start("a", run_id="r").run(app)
    app.world.recover()

    assert await three_acts.resume("r").run(App(Checkpoints(store), app.world)) == Success(ALL)


async def test_a_crash_at_every_entry_changes_nothing() -> None:
    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store), World(failing={"broken"}))

    points = await crash_everywhere(sequence_and_more, ["x", "y", "z"], environment)

    assert len(points) >= 2 * 12


async def test_a_crash_at_every_entry_changes_nothing_about_time() -> None:
    """The clock of these runs stands still, so what workflows ask of it can be compared."""

    @workflow
    def timed(_: None) -> Do[App, OutOfStock, list[str]]:
        began = yield from now()
        yield from act("first")
        yield from sleep(3600)
        ended = yield from now()
        return [str(began), str(ended), (yield from act("second"))]

    points = await crash_everywhere(timed, None, lambda store: App(Checkpoints(store)))

    assert len(points) >= 2 * 3


@workflow
def sequence_and_more(names: list[str]) -> Do[App, OutOfStock, list[str]]:
    """A sequence, a branch, a handled failure, a loop, parallel steps and a nested step."""
    first = yield from act("first")
    yield from act("long" if len(names) > 2 else "short")
    got = yield from act("broken").or_else(lambda error: pure(f"instead of {error}"))
    looped: list[str] = []
    for name in names:
        looped.append((yield from act(name)))
    beside = yield from par_traverse(names, act, limit=2, key=str)
    last = yield from with_checkpointing("nested", act("inner"))
    return [first, got, *looped, *beside, last]
