"""Forks: runs that are made from the beginning of other runs, with other outputs or another input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import (
    App as Service,
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    Worker,
    Workflow,
    current_step,
    effect,
    par,
    race,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    ChangeRejected,
    CheckpointError,
    CheckpointStore,
    Completed,
    NotSerializable,
    RunCancelled,
    RunConflict,
    RunNotFound,
    RunStatus,
    Started,
    StepInputChanged,
    find_run,
    read_entries,
)
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, cut_off
from tests.runs.journals import AnyWorkflow, act, clock_at

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Lab:
    """An environment in which steps can be told what to yield, by their paths.

    Attributes:
        yields: what these steps yield.
        done: the steps that were executed.
    """

    checkpoints: Checkpoints
    yields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    done: list[str] = field(default_factory=list[str])


@effect
def measured(lab: Lab, number: int) -> int:
    path = current_step().step
    lab.done.append(path)
    return int(lab.yields.get(path, number))


@step
def double(number: int) -> Effect[Lab, Any, int]:
    return measured(number * 2)


@step
def increment(number: int) -> Effect[Lab, Any, int]:
    return measured(number + 1)


@workflow
def code(number: int) -> Do[Lab, Any, int]:
    doubled = yield from double(number)
    first, second = yield from par(
        increment(doubled), race([increment(5), sleep(60).map(lambda _: 0)])
    )
    return (yield from double(first + second))


def plus(number: int) -> Effect[Lab, Any, int]:
    return measured(number + 1)


def times(number: int) -> Effect[Lab, Any, int]:
    return measured(number * 3)


def up(number: int) -> Effect[Lab, Any, Moved[int]]:
    return measured(number + 1).map(Moved)


def items(number: int) -> list[int]:
    return [number, number + 1, number + 2]


def total(numbers: list[int]) -> Effect[Lab, Any, int]:
    return measured(sum(numbers))


BUILT: list[AnyWorkflow] = [
    code,
    Workflow.of_steps("steps", [plus, times]),
    StateGraph("graph")
    .node("plus", plus)
    .node("times", times)
    .edge("plus", "times", when=lambda number: number > 2)
    .edge("plus", "plus")
    .edge("times", "end")
    .node("end", plus)
    .entry("plus")
    .exit("end")
    .build(),
    StateMachine(
        "machine",
        initial=1,
        transitions=[
            Transition("up", int, int, action=up, guard=lambda number: number < 3),
            Transition("end", int, "ended", guard=lambda number: number >= 3),
        ],
        final={"ended"},
    ),
    Iterative("rounds", plus, converged=lambda _, after: after > 4, max_rounds=9),
    MapReduce("job", items=items, map=times, reduce=total, key=str, limit=2),
]


def lab_on(store: CheckpointStore, **yields: Any) -> Lab:
    return Lab(Checkpoints(store), yields)


def seen(result: Any) -> object:
    """Return how a run ended, without the times that a machine has in its history."""
    return result.map(lambda value: getattr(value, "current", value))


each_builder = pytest.mark.parametrize("built", BUILT, ids=lambda one: one.name)


@each_builder
async def test_a_fork_at_any_entry_ends_as_the_run_did(
    store: MemoryStore, built: AnyWorkflow
) -> None:
    whole = await clock_at(0).run(built.start(1, run_id="r"), lab_on(store))
    entries = await read_entries(store, "r")
    for at in range(1, len(entries) + 1):
        lab = lab_on(store)
        made = (await built.fork("r", at=at, new_run_id=f"fork {at}").run(lab)).unwrap()
        assert lab.done == []
        assert seen(await clock_at(0).run(built.resume(made), lab)) == seen(whole)
        kept = {one.step for one in entries[:at] if isinstance(one, Completed)}
        assert not kept.intersection(lab.done)
    assert await read_entries(store, "r") == entries


@each_builder
async def test_a_fork_with_another_output_ends_as_a_run_in_which_the_step_had_it(
    store: MemoryStore, built: AnyWorkflow
) -> None:
    await clock_at(0).run(built.start(1, run_id="r"), lab_on(store))
    entries = await read_entries(store, "r")
    for changed in [one.step for one in entries if isinstance(one, Completed)]:
        if changed in ("mapped", "end"):
            # A job counts its items with the first, and the second yields a text.
            continue
        lab = lab_on(store)
        now = clock_at(0).now()
        moved = {"outcome": "moved", "state": 3, "began": now, "ended": now}
        value = moved if built.name == "machine" else 3
        forked = await built.fork("r", changes={changed: value}).run(lab)
        result = await clock_at(0).run(built.resume(forked.unwrap()), lab)
        assert changed not in lab.done
        undisturbed = built.start(1, run_id=f"undisturbed {changed}")
        expected = await clock_at(0).run(undisturbed, Lab(lab.checkpoints, {changed: 3}))
        assert seen(result) == seen(expected), changed


async def test_a_fork_at_a_step_executes_the_step_again(store: MemoryStore) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    lab = lab_on(store, **{"par[0]/increment": 10})
    made = (await code.fork("r", at="par[0]/increment").run(lab)).unwrap()
    assert await clock_at(0).run(code.resume(made), lab) == Success(32)
    assert "double" not in lab.done


async def test_several_outputs_can_be_changed_at_once(store: MemoryStore) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    lab = lab_on(store)
    changes = {"par[0]/increment": 10, "par[1]/race[0]/increment": 20}
    made = (await code.fork("r", changes=changes).run(lab)).unwrap()
    assert await clock_at(0).run(code.resume(made), lab) == Success(60)
    assert lab.done == ["double#2"]


async def test_a_change_that_does_not_fit_what_was_recorded_after_it_is_rejected(
    store: MemoryStore,
) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    lab, changes = lab_on(store), {"double": 10, "par[0]/increment": 11}
    rejected = (await code.fork("r", changes=changes, new_run_id="new").run(lab)).failure()
    assert isinstance(rejected, StepInputChanged)
    assert await find_run(store, "new") is None


async def test_a_fork_with_another_input_begins_anew(store: MemoryStore) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    made = (await code.fork("r", input=2).run(lab_on(store))).unwrap()
    result = await clock_at(0).run(code.resume(made), lab_on(store))
    assert result == await clock_at(0).run(code.start(2), lab_on(store))


async def test_a_fork_says_where_it_comes_from_and_who_made_it(store: MemoryStore) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    made = (await code.fork("r", at=3, by="ann").run(lab_on(store))).unwrap()
    started = (await read_entries(store, made))[0]
    assert isinstance(started, Started)
    assert (started.forked_from, started.by) == ("r@3", "ann")
    info = await find_run(store, made)
    assert info is not None
    assert info.summary.status is RunStatus.INTERRUPTED


async def test_a_worker_drives_a_fork_and_a_rerun() -> None:
    async with MemoryStore() as store:
        lab = lab_on(store)
        service = Service([code], environment=lambda _: lab, checkpoints=lab.checkpoints)
        await code.start(1, run_id="r").run(lab)
        async with Worker(service) as worker:
            client = Client(lab.checkpoints, by="ann")
            made = (await code.fork("r", changes={"double": 10}).run(lab)).unwrap()
            assert await client.handle(code, made).result(timeout=10) == Success(34)
            again = await client.handle(code, "r").rerun(run_id="again")
            assert await again.result(timeout=10) == Success(18)
            assert worker.client is not client
        started = (await read_entries(store, "again"))[0]
        assert isinstance(started, Started)
        assert (started.forked_from, started.by) == ("r@1", "ann")


async def test_a_failed_run_is_forked_like_any_other(store: MemoryStore) -> None:
    @workflow
    def flaky() -> Do[App, Any, str]:
        yield from act("first")
        return (yield from act("second"))

    app = app_on(store, failing=["second"])
    assert isinstance(await flaky.start(run_id="r").run(app), Failure)
    count = len(await read_entries(store, "r"))
    made = (await flaky.fork("r", at=count).run(app)).unwrap()
    app.world.recover()
    assert await flaky.resume(made).run(app) == Success("second")
    assert app.world.done == ["first", "second", "second"]


@step
def grown(texts: list[str]) -> Effect[App, Any, list[str]]:
    return act("grow").map(lambda _: [*texts, "x" * 2000])


async def test_long_outputs_are_whole_in_a_fork(store: MemoryStore) -> None:
    @workflow
    def growing() -> Do[App, Any, list[str]]:
        texts: list[str] = []
        for _ in range(4):
            texts = yield from grown(texts)
        return texts

    app = app_on(store)
    whole = await growing.start(run_id="r").run(app)
    made = (await growing.fork("r", at="grown#4").run(app)).unwrap()
    assert await growing.resume(made).run(app) == whole
    made = (await growing.fork("r", changes={"grown#3": ["y"]}).run(app)).unwrap()
    assert await growing.resume(made).run(app) == Success(["y", "x" * 2000])


WRONG: list[tuple[dict[str, Any], type[CheckpointError], str]] = [
    ({"at": 0}, ChangeRejected, "has no entry 0"),
    ({"at": 99}, ChangeRejected, "1 to "),
    ({"at": "refund"}, ChangeRejected, "no step 'refund' has begun"),
    ({"changes": {"refund": 1}}, ChangeRejected, "'refund' has not completed"),
    ({"changes": {"double": "many"}}, NotSerializable, "int"),
    ({"changes": {"double#2": 1}, "at": 2}, ChangeRejected, "after entry 2"),
    ({"new_run_id": "r"}, RunConflict, "exists already"),
    ({"input": "many"}, NotSerializable, "int"),
]


@pytest.mark.parametrize(("options", "kind", "said"), WRONG)
async def test_a_wrong_fork_makes_no_run(
    store: MemoryStore, options: dict[str, Any], kind: type[CheckpointError], said: str
) -> None:
    await clock_at(0).run(code.start(1, run_id="r"), lab_on(store))
    rejected = (await code.fork("r", **options).run(lab_on(store))).failure()
    assert type(rejected) is kind
    assert said in str(rejected)
    assert [info.run_id for info in await store.find()] == ["r"]


async def test_a_run_that_does_not_exist_cannot_be_forked(store: MemoryStore) -> None:
    assert isinstance((await code.fork("no").run(lab_on(store))).failure(), RunNotFound)


async def test_what_a_step_within_a_completed_step_yielded_cannot_be_changed(
    store: MemoryStore,
) -> None:
    @workflow
    def outer() -> Do[Lab, Any, int]:
        return (yield from code.call(1))

    await clock_at(0).run(outer.start(run_id="r"), lab_on(store))
    entries = await read_entries(store, "r")
    rejected = await outer.fork("r", changes={"code/double": 1}, at=len(entries)).run(lab_on(store))
    assert isinstance(rejected.failure(), ChangeRejected)
    assert "within a step that has completed" in str(rejected.failure())
    # Before its end, the step is reached.
    lab = lab_on(store)
    made = (await outer.fork("r", changes={"code/double": 10}).run(lab)).unwrap()
    assert await clock_at(0).run(outer.resume(made), lab) == Success(34)


async def test_what_is_in_progress_elsewhere_is_not_taken_over(store: MemoryStore) -> None:
    go = Signal("go", bool)

    @workflow
    def child() -> Do[Lab, Any, bool]:
        return (yield from go.wait())

    @workflow
    def parent() -> Do[Lab, Any, bool]:
        spawned = yield from spawn(child, None, run_id="child")
        return (yield from spawned.result())

    lab = lab_on(store)
    await cut_off(parent.start(run_id="r"), lab)
    count = len(await read_entries(store, "r"))
    rejected = (await parent.fork("r", at=count).run(lab)).failure()
    assert isinstance(rejected, ChangeRejected)
    assert "run 'child'" in str(rejected)
    assert isinstance(await parent.fork("r", at=1).run(lab), Success)


async def test_a_cancelled_fork_leaves_what_the_other_run_has_spawned() -> None:
    @workflow
    def child() -> Do[App, Broken, str]:
        return (yield from act("break"))

    @workflow
    def parent() -> Do[App, Any, str]:
        spawned = yield from spawn(child, None, run_id="child")
        yield from spawned.result().fallback("none")
        yield from sleep(3600)
        return "done"

    async with MemoryStore() as store:
        app = app_on(store, failing=["break"])
        service = Service([parent, child], environment=lambda _: app, checkpoints=app.checkpoints)
        async with Worker(service, suspend_after=0.0) as worker:
            handle = await worker.client.submit(parent, run_id="r")
            while await handle.status() is not RunStatus.SUSPENDED:
                await worker.idle()
            count = len(await read_entries(store, "r"))
            made = (await parent.fork("r", at=count).run(app)).unwrap()
            fork = worker.client.handle(parent, made)
            await fork.cancel()
            assert isinstance((await fork.result(timeout=10)).failure(), RunCancelled)
            assert await worker.client.handle(child, "child").status() is RunStatus.FAILED
