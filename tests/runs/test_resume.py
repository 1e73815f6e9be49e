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
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Never

import anyio
import pytest
from returns.result import Result, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Workflow,
    bracket,
    current_step,
    do,
    effect,
    now,
    par,
    par_traverse,
    pure,
    random,
    spawn,
    step,
    uuid,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    Completed,
    CorruptCheckpoint,
    DefinitionChanged,
    Failed,
    LeaseLost,
    NotSerializable,
    Owner,
    RunBusy,
    RunConflict,
    RunNotFound,
    RunStatus,
    SaveFailed,
    StepInputChanged,
    Value,
    find_run,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.effects import from_async, from_fn, never
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import (
    Fault,
    FaultyStore,
    RecordingObserver,
    SaveFails,
    Unavailable,
    crash_everywhere,
)
from tests.apps import App, Broken, Told, app_on, both_backends, cut_off, note
from tests.runs.journals import (
    AnyWorkflow,
    cut,
    in_turn,
    journal,
    made_of,
    resume,
    start,
)

pytestmark = [pytest.mark.anyio, both_backends]


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Item:
    name: str
    size: Size


@step
def act(name: str) -> Effect[App, Broken, str]:
    return note(name).map(lambda _: f"{name} done")


@workflow
def three_acts(prefix: str) -> Do[App, Broken, list[str]]:
    done: list[str] = []
    for number in (1, 2, 3):
        done.append((yield from act(f"{prefix}{number}")))
    return done


async def in_two_lives(
    made: AnyWorkflow, store: MemoryStore, *failing: str
) -> tuple[Result[Any, Any], App]:
    """Return how a run ended that failed there and was resumed, and its app."""
    app = app_on(store, failing=failing)
    assert isinstance((await made.start(None, run_id="r").run(app)).failure(), Broken)
    app.world.recover()
    return await made.resume("r").run(app), app


ALL = ["a1 done", "a2 done", "a3 done"]


async def test_a_run_leaves_a_journal_that_says_what_happened(store: MemoryStore) -> None:
    started = three_acts.start("a", run_id="r", context={"tenant": "t1"})
    assert await started.run(app_on(store)) == Success(ALL)

    checkpoint = await read_checkpoint(store, "r")
    assert [done.step for done in checkpoint.completed_steps] == ["act", "act#2", "act#3"]
    assert [done.output for done in checkpoint.completed_steps] == ALL
    assert checkpoint.status is RunStatus.COMPLETED
    assert checkpoint.initial_state == "a"
    assert checkpoint.context == {"tenant": "t1"}
    assert isinstance(checkpoint.state, Completed)


async def test_a_failed_step_is_run_again_and_those_before_it_are_not(store: MemoryStore) -> None:
    app = app_on(store, failing=["a2"])
    assert isinstance((await three_acts.start("a", run_id="r").run(app)).failure(), Broken)
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
    def prepare(name: str) -> Effect[App, Broken, str]:
        called.append(name)
        return act(name)

    result, _ = await in_two_lives(made_of(lambda: in_turn(prepare("a"), act("b"))), store, "b")
    assert result == Success("b done")
    assert called == ["a"]


async def test_what_the_function_of_a_step_raises_is_a_defect_of_the_step(
    store: MemoryStore,
) -> None:
    tokens: list[str] = []

    @step
    def prepare(name: str) -> Effect[App, Broken, str]:
        return pure(f"{name} {tokens[0]}")

    prepared, app = made_of(lambda: prepare("a")), app_on(store)
    with pytest.raises(IndexError) as raised:
        await prepared.start(None, run_id="r").run(app)
    assert "in step 'prepare' of run 'r', attempt 1" in raised.value.__notes__
    assert isinstance((await read_checkpoint(store, "r")).state, Failed)

    tokens.append("token")
    assert await prepared.resume("r").run(app) == Success("a token")


async def test_start_rejects_an_id_that_belongs_to_another_input_or_workflow(
    store: MemoryStore,
) -> None:
    app = app_on(store, failing=["a2"])
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
    app = app_on(store)
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
async def test_the_same_input_continues_with_the_run(
    store: MemoryStore, first: object, second: object, format: Literal["json", "cbor"]
) -> None:
    app = App(Checkpoints(store, format=format))
    await echo.start(first, run_id="r").run_or_raise(app)

    again = await echo.start(second, run_id="r").run_or_raise(app)
    assert repr(again) == repr(first) or again == first


async def test_an_unknown_run_names_the_nearest(store: MemoryStore) -> None:
    app = app_on(store)
    await three_acts.start("a", run_id="orders-1").run(app)

    error = (await three_acts.resume("order-1").run(app)).failure()

    assert isinstance(error, RunNotFound)
    assert error.nearest == ("orders-1",)


async def test_a_list_of_steps_passes_its_state_along(store: MemoryStore) -> None:
    linear = Workflow.of_steps("linear", [act, with_suffix])
    app = app_on(store, failing=["a"])

    assert (await linear.start("a", run_id="r").run(app)).failure().args == ("a#1",)
    app.world.recover()
    assert await linear.resume("r").run(app) == Success("a done!")
    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.definition.steps == ("act", "with_suffix")
    assert checkpoint.current_state == "a done!"


def with_suffix(text: str) -> Effect[App, Broken, str]:
    return pure(f"{text}!")


async def test_a_changed_definition_is_named(store: MemoryStore) -> None:
    app = app_on(store, failing=["a"])
    await Workflow.of_steps("w", [act, with_suffix]).start("a", run_id="r").run(app)
    changed = Workflow.of_steps("w", [act, renamed, with_suffix_too])

    error = (await changed.resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert set(error.added) | {new for _, new in error.renamed} == {"renamed", "with_suffix_too"}
    plan = (await changed.plan("r").run(app)).unwrap()
    assert (plan.start, str(plan.problem)) == ((), str(error))

    app.world.recover()
    assert await changed.resume("r", force=True).run(app) == Success("a done??")


def renamed(text: str) -> Effect[App, Broken, str]:
    return pure(f"{text}?")


def with_suffix_too(text: str) -> Effect[App, Broken, str]:
    return pure(f"{text}?")


async def test_a_step_by_the_fluent_way(store: MemoryStore) -> None:
    fluent = note("fluent").checkpointed("fluent")
    result, app = await in_two_lives(made_of(lambda: in_turn(fluent, act("a"))), store, "a")
    assert result == Success("a done")
    assert app.world.done == ["fluent", "a", "a"]


async def test_a_defect_parks_the_run_with_its_traceback(store: MemoryStore) -> None:
    buggy = made_of(lambda: with_checkpointing("divide", from_fn(lambda _: 1 / 0)))
    with pytest.raises(ZeroDivisionError) as caught:
        await buggy.start(None, run_id="r").run(app_on(store))

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
    def picking(_: None) -> Do[App, Broken, tuple[Item, ...]]:
        items = yield from pick("hat")
        yield from act("a")
        return tuple(items)

    result, app = await in_two_lives(picking, store, "a")
    assert result == Success((Item("hat", Size.LARGE),))
    assert await picking.resume("r").run(app) == result


async def test_what_cannot_be_saved_ends_the_run_with_its_path(store: MemoryStore) -> None:
    found = with_checkpointing("find", pure({"items": [Item("hat", Size.SMALL)]}))
    careless = made_of(lambda: found.fallback({}))
    error = (await careless.start(None).run(app_on(store))).failure()
    assert isinstance(error, NotSerializable)
    assert error.path == "find: $.items[0]"


async def test_time_and_chance_between_steps_are_recorded(store: MemoryStore) -> None:
    @workflow
    def chancy(_: None) -> Do[App, Broken, tuple[datetime, float, str]]:
        moment = yield from now()
        chance = yield from random()
        name = yield from uuid()
        yield from act("a")
        return moment, chance, str(name)

    moment, chance, name = (await in_two_lives(chancy, store, "a"))[0].unwrap()
    entries = await read_entries(store, "r")
    recorded = {one.path: one.value for one in entries if isinstance(one, Value)}
    assert recorded["now"] == {"$datetime": moment.isoformat()}
    assert recorded["random"] == chance
    assert recorded["uuid"] == {"$uuid": name}


async def test_values_drawn_in_a_step_are_recorded_once_it_begins_another_step(
    store: MemoryStore,
) -> None:
    @step
    @do
    def enroll() -> Do[App, Broken, str]:
        first, (second, _) = (yield from uuid()), (yield from par(uuid(), now()))
        yield from register(f"{first} {second}")
        chance = yield from random()
        yield from register(f"{chance}")
        moment = yield from now()  # nothing inside the step follows
        return f"{first} {second} {chance} {moment}"

    @step
    @effect
    def register(app: App, name: str) -> None:
        app.world.note(name)

    enrolling = made_of(lambda: enroll(), "enrolling")
    first, second, chance, _ = (await start(enrolling, app_on(store))).unwrap().split(maxsplit=3)
    lines = await journal(store)
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        again = (await resume(enrolling, app)).unwrap().split(maxsplit=3)
        # As long as nothing inside has begun, the step begins anew.
        drawn = {first: "B enroll/register", second: "B enroll/register", chance: "V enroll/random"}
        for value, recorded_by in drawn.items():
            assert (value in again) == (count > lines.index(recorded_by)), line


async def test_a_finalizer_in_a_step_that_is_stopped_may_read_the_time(store: MemoryStore) -> None:
    @step
    @do
    def hold() -> Do[App, Broken, None]:
        yield from act("first")
        release = now().within(App).and_then(lambda _: note("release"))
        yield from bracket(pure(None), lambda _: release, lambda _: never())

    app = app_on(store)
    await cut_off(made_of(hold).start(None, run_id="r"), app)
    assert app.world.done == ["first", "release"]


async def test_a_completed_step_reached_with_other_arguments_is_rejected(
    store: MemoryStore,
) -> None:
    names = iter(["first", "second"])
    fickle = made_of(lambda: in_turn(act(next(names)), act("b")))
    result, app = await in_two_lives(fickle, store, "b")
    error = result.failure()
    assert isinstance(error, StepInputChanged)
    assert "first" in error.recorded
    assert "second" in error.current
    assert app.world.done == ["first", "b"]


async def test_a_step_may_be_a_plain_function_of_the_environment(store: MemoryStore) -> None:
    @step
    @effect(errors=Broken)
    def pick(app: App, item: Item) -> Item:
        app.world.note(item.name)
        return item

    @workflow
    def picking(_: None) -> Do[App, Broken, Item]:
        cap = yield from pick(Item("cap", Size.SMALL))
        missing = yield from pick(Item("hat", Size.LARGE)).result()
        yield from act(f"{type(missing.failure()).__name__}")
        return cap

    result, app = await in_two_lives(picking, store, "hat", "Broken")
    [begun, *_] = [e for e in await read_entries(store, "r") if isinstance(e, BeforeStep)]
    assert begun.shown.startswith("(item=Item(name='cap'")
    assert result == Success(Item("cap", Size.SMALL))
    assert app.world.done == ["cap", "hat", "Broken", "Broken"]


async def test_two_items_with_one_key_are_rejected(store: MemoryStore) -> None:
    twice = made_of(lambda: par_traverse(["a", "a"], act, key=str))
    with pytest.raises(ValueError, match="key"):
        await twice.start(None).run(app_on(store))


async def test_the_current_step_names_the_run_and_step(store: MemoryStore) -> None:
    who = from_fn(lambda _: current_step()).map(
        lambda info: [info.run_id, info.step, info.idempotency_key]
    )
    made = made_of(lambda: with_checkpointing("who", who))
    assert await made.start(None, run_id="r").run(app_on(store)) == Success(["r", "who", "r:who"])
    with pytest.raises(LookupError):
        await from_fn(lambda _: current_step()).run(None)


async def test_a_step_runs_outside_a_run_as_a_plain_effect() -> None:
    assert await with_checkpointing("x", pure(1)).run(None) == Success(1)


async def test_a_run_that_is_driven_is_busy_and_is_not_touched(store: MemoryStore) -> None:
    started, go_on = anyio.Event(), anyio.Event()

    slow = made_of(lambda: with_checkpointing("wait", from_async(wait)))

    async def wait(_: object) -> str:
        started.set()
        await go_on.wait()
        return "waited"

    app = app_on(store)
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
    app = app_on(store, failing=["a2"])
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
    async def steal(_: object) -> None:
        info = await find_run(store, "r")
        assert info is not None
        assert info.lease is not None
        await store.release(info.lease)
        await store.claim("r", owner="somebody else", seconds=60)

    app = app_on(store, lease_seconds=30)
    robbed = made_of(lambda: in_turn(act("a"), from_async(steal), act("b")))
    error = (await robbed.start(None, run_id="r").run(app)).failure()

    assert isinstance(error, LeaseLost)
    assert app.world.done == ["a"]
    assert [type(entry) for entry in await read_entries(store, "r")][-1] is BeforeStep


async def test_a_save_that_fails_ends_the_run_past_every_handler(store: MemoryStore) -> None:
    @workflow
    def stubborn(_: None) -> Do[App, Broken, str]:
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


async def test_an_at_most_once_step_does_not_run_before_its_beginning_is_saved(
    store: MemoryStore,
) -> None:
    """Even if the run continues in spite of failed saves: a resume could not know that it ran."""
    order = made_of(lambda: with_checkpointing("charge", note("charge"), at_most_once=True))
    app = app_on(FaultyStore(store, [SaveFails(append=2)]), on_save_error="warn")

    assert isinstance((await order.start(None, run_id="r").run(app)).failure(), SaveFailed)
    assert app.world.done == []
    assert await order.resume("r").run(app_on(store)) == Success(1)


async def test_the_end_of_a_run_is_tried_again_with_on_save_error_warn(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [SaveFails(append=4), SaveFails(append=5)])
    app = app_on(faulty, on_save_error="warn")

    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert not faulty.unmet
    assert (await read_checkpoint(store, "r")).status is RunStatus.COMPLETED


@pytest.mark.parametrize("append", range(2, 5))
@pytest.mark.parametrize(
    "fault", [SaveFails, partial(SaveFails, is_durable=True), partial(Unavailable, "append")]
)
async def test_a_failed_save_leaves_no_gap_in_the_journal_of_a_run_that_continues(
    store: MemoryStore, fault: Callable[[int], Fault], append: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the entries became durable all the same is found out before the next ones."""
    faulty = FaultyStore(store, [fault(append)])
    app = app_on(faulty, on_save_error="warn")

    assert await three_acts.start("a", run_id="r").run(app) == Success(ALL)
    assert not faulty.unmet
    said = ("could not be saved", "Unavailable(operation='append'")
    assert any(text in caplog.text for text in said)
    verification = await verify_run(store, "r")
    assert verification.problem is None
    assert verification.length == 8
    assert app.world.done == ["a1", "a2", "a3"]


async def test_observers_hear_of_entries_and_skipped_steps(store: MemoryStore) -> None:
    observer = RecordingObserver()
    app = app_on(store, observers=[observer], failing=["a2"])
    await three_acts.start("a", run_id="r").run(app)
    app.world.recover()
    await three_acts.resume("r").run(app)

    assert observer.skipped == ["act"]
    assert observer.entries == await read_entries(store, "r")


async def test_a_run_whose_last_entries_are_missing_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        app = app_on(store)
        await three_acts.start("a", run_id="r").run_or_raise(app)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM entries WHERE sequence > 4")

        for effect in (three_acts.resume("r"), three_acts.start("a", run_id="r")):
            error = (await effect.run(app)).failure()
            assert isinstance(error, CorruptCheckpoint)
            assert "what came after entry 4 is missing" in str(error)
    assert app.world.done == ["a1", "a2", "a3"]


async def test_a_run_that_is_not_to_be_preserved_is_gone_once_complete(store: MemoryStore) -> None:
    app = app_on(store, preserve=False, failing=["a2"])
    await three_acts.start("a", run_id="r").run(app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED

    app.world.recover()
    assert await three_acts.resume("r").run(app) == Success(ALL)
    assert await store.find() == []


@pytest.mark.parametrize("run_id", ["", " ", "r\n1", "r\x1b[31m"])
async def test_a_stored_run_with_an_id_that_new_runs_cannot_have_can_be_continued(
    store: MemoryStore, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(store, failing=["a2"])
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(import_module("effectflow.runs.workflow"), "check_new_run_id", str)
        await three_acts.start("a", run_id=run_id).run(app)
    app.world.recover()

    assert (await three_acts.plan(run_id).run_or_raise(app)).retry == ("act#2",)
    assert await three_acts.resume(run_id).run(app) == Success(ALL)
    assert await three_acts.result(run_id).run(app) == Success(ALL)
    assert [info.run_id for info in await store.find()] == [run_id]


async def test_a_spawned_run_is_kept_for_its_parent_though_nothing_is_to_be_preserved(
    store: MemoryStore,
) -> None:
    @workflow
    def inner(name: str) -> Do[App, Broken, str]:
        return (yield from act(name))

    @workflow
    def outer(_: None) -> Do[App, object, str]:
        child = yield from spawn(inner, "spawned", run_id="child")
        spawned = yield from child.result()
        yield from act("stop")
        return spawned

    app = app_on(store, preserve=False, failing=["stop"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outer.start(None, run_id="r").run, app)
        await anyio.wait_all_tasks_blocked()
        assert await inner.resume("child").run(app) == Success("spawned done")
    app.world.recover()

    assert await outer.resume("r").run(app) == Success("spawned done")
    assert app.world.done == ["spawned", "stop", "stop"]
    assert [info.run_id for info in await store.find()] == ["child"]


async def test_steps_show_to_the_observer_of_effects(store: MemoryStore) -> None:
    told = Told()
    await three_acts.start("a").run(app_on(store, failing=["a2"]), observer=told)
    assert told.log == ["act began", "act ended: Success", "act#2 began", "act#2 ended: Failure"]


async def test_a_completed_step_is_durable_soon_though_nothing_follows(store: MemoryStore) -> None:
    """Between steps a run may wait for long; what is done must not be lost meanwhile."""
    app = app_on(store)

    @workflow
    def pausing(_: None) -> Do[App, Broken, str]:
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
    await three_acts.start("a", run_id="r").run(app_on(store, format=format, failing=["a3"]))
    assert await three_acts.resume("r").run(app_on(store)) == Success(ALL)


async def test_a_crash_at_every_entry_changes_nothing() -> None:
    def environment(store: CheckpointStore) -> App:
        return app_on(store, failing=["broken"])

    points = await crash_everywhere(sequence_and_more, ["x", "y", "z"], environment)

    assert len(points) >= 2 * 12


@workflow
def sequence_and_more(names: list[str]) -> Do[App, Broken, list[str]]:
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
