"""A stopped graph continues at the node after the last durable one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryExhausted,
    RetryPolicy,
    Workflow,
    fail,
    now,
    pure,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    Checkpoint,
    CheckpointPolicy,
    CheckpointStore,
    Completed,
    OutcomeUnknown,
    RunStatus,
    read_checkpoint,
    read_entries,
)
from effectflow.graphs import Graph, GraphError, StateGraph
from effectflow.stores import MemoryStore
from effectflow.testing import crash_everywhere
from tests.apps import App, Broken, World, app_on, both_backends, note
from tests.builders.graph.shapes import branched, line
from tests.runs.journals import cut, stopped_once, waiting_once

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Draft:
    """A text that is reviewed until it is long enough."""

    text: str
    remarks: tuple[str, ...] = ()


def write(draft: Draft) -> Effect[App, Broken, Draft]:
    return note("write").map(lambda _: replace(draft, text=f"{draft.text}w"))


def review(draft: Draft) -> Effect[App, Broken, Draft]:
    return note("review").map(lambda _: replace(draft, remarks=(*draft.remarks, draft.text)))


def publish(draft: Draft) -> Effect[App, Broken, Draft]:
    return note("publish").map(lambda _: replace(draft, text=f"{draft.text}!"))


def is_long(draft: Draft) -> bool:
    return len(draft.text) >= 3


def looping() -> Graph[App, Any, Draft]:
    """write, review, write, review, write, review, publish."""
    return (
        StateGraph[App, Broken, Draft]("looping")
        .node("write", write)
        .node("review", review)
        .node("publish", publish)
        .edge("write", "review")
        .edge("review", "publish", when=is_long)
        .edge("review", "write")
        .entry("write")
        .exit("publish")
        .build()
    )


WHOLE = Draft("www!", ("w", "ww", "www"))
VISITS = ["write", "review", "write", "review", "write", "review", "publish"]


@pytest.mark.parametrize("visit", ["write#1", "review#2", "write#3", "publish#1"])
async def test_a_resume_runs_the_node_that_failed_and_none_before_it(
    store: MemoryStore, visit: str
) -> None:
    app = App(Checkpoints(store), World(failing={visit}))
    failed = (await looping().start(Draft(""), run_id="r").run(app)).failure()
    assert isinstance(failed, Broken)
    before = list(app.world.done)

    app.world.recover()
    again = App(app.checkpoints)
    assert await looping().resume("r").run(again) == Success(WHOLE)

    # The failed visit is the last before the resume and the first after it.
    assert [*before[:-1], *again.world.done] == VISITS
    steps = [done.step for done in (await read_checkpoint(store, "r")).completed_steps]
    assert steps == ["write", "review", "write#2", "review#2", "write#3", "review#3", "publish"]


async def test_the_function_of_a_skipped_node_is_not_called(store: MemoryStore) -> None:
    called: list[str] = []

    def counted(name: str) -> Any:
        def function(number: int) -> Effect[object, Broken, int]:
            called.append(name)
            return pure(number + 1) if called.count("b") != 1 else fail(Broken("b"))

        return function

    built, app = line(a=counted("a"), b=counted("b")), app_on(store)
    await built.start(0, run_id="r").run(app)
    assert await built.resume("r").run(app) == Success(2)
    assert called == ["a", "b", "b"]


async def test_a_complete_run_yields_its_recorded_state(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    await looping().start(Draft(""), run_id="r").run(app)
    app.world.done.clear()

    plan = (await looping().plan("r").run(app)).unwrap()
    assert (plan.is_complete, plan.start, len(plan.skip)) == (True, (), 7)
    assert await looping().resume("r").run(app) == Success(WHOLE)
    assert await looping().start(Draft(""), run_id="r").run(app) == Success(WHOLE)
    assert app.world.done == []


async def test_after_any_entry_a_plan_names_the_node_that_a_resume_runs_first(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    await looping().start(Draft(""), run_id="r").run(app)
    entries = await read_entries(store, "r")

    for length in range(1, len(entries) + 1):
        shorter = App(Checkpoints(await cut(store, length)))
        plan = (await looping().plan("r").run(shorter)).unwrap()
        is_begun = isinstance(entries[length - 1], BeforeStep)
        to_come = entries[length - 1 if is_begun else length :]
        expected = tuple(entry.step for entry in to_come if isinstance(entry, BeforeStep))[:1]
        assert (plan.start, plan.retry) == (expected, expected if is_begun else ())


def nested() -> Graph[App, Any, Draft]:
    """A cycle around a sub-graph, with branches, one of which is a graph as well."""

    def measure(draft: Draft) -> Effect[App, Broken, str]:
        return note("measure").map(lambda _: f"length {len(draft.text)}")

    def merge(draft: Draft, results: Mapping[str, object]) -> Draft:
        return replace(draft, remarks=(*draft.remarks, *map(str, results.values())))

    shortened = (
        StateGraph[App, Broken, Draft]("shortened")
        .node("review", review)
        .node("cut", lambda draft: note("cut").map(lambda _: replace(draft, text=draft.text[:1])))
        .edge("review", "cut")
        .entry("review")
        .exit("cut")
        .build()
    )
    return (
        StateGraph[App, Broken, Draft]("nested")
        .node("polish", looping())
        .parallel("checks", {"measure": measure, "shortened": shortened}, merge)
        .node("publish", publish)
        .edge("polish", "checks")
        .edge("checks", "publish", when=lambda draft: len(draft.text) > 8)
        .edge("checks", "polish")
        .entry("polish")
        .exit("publish")
        .build()
    )


@both_backends
async def test_a_crash_at_every_append_changes_nothing_in_a_cycle() -> None:
    points = await crash_everywhere(looping(), Draft(""), lambda store: App(Checkpoints(store)))

    assert len(points) == 2 * 9


@pytest.mark.parametrize(
    "policy", [CheckpointPolicy(), CheckpointPolicy(every_steps=4), CheckpointPolicy(None)]
)
async def test_a_crash_at_every_append_changes_nothing_in_sub_graphs_and_branches(
    policy: CheckpointPolicy,
) -> None:
    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store, policy=policy))

    points = await crash_everywhere(nested(), Draft(""), environment)

    assert len(points) >= (2 * 25 if policy.every_steps == 1 else 2)


async def test_a_plan_names_the_node_of_a_nested_graph_in_progress(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    await nested().start(Draft(""), run_id="r").run(app)
    entries = await read_entries(store, "r")

    async def planned_after(step: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ends = [isinstance(entry, Completed) and entry.step == step for entry in entries]
        shorter = App(Checkpoints(await cut(store, ends.index(True) + 1)))
        plan = (await nested().plan("r").run(shorter)).unwrap()
        return plan.start, plan.retry

    again = ("polish",)
    assert await planned_after("polish/review") == (again, again)
    # The nested graph is at its exit, but its own step is not complete.
    assert await planned_after("polish/publish") == (again, again)
    assert await planned_after("polish") == (("checks",), ())
    # One branch is complete and the other is not, so the node is repeated.
    again = ("checks",)
    assert await planned_after("checks/par_traverse[measure]/measure") == (again, again)
    assert await planned_after("checks") == (("polish#2",), ())


async def test_completed_branches_are_not_run_again(store: MemoryStore) -> None:
    app = App(Checkpoints(store), World(failing={"cut#1"}))
    assert isinstance((await nested().start(Draft(""), run_id="r").run(app)).failure(), Broken)
    assert app.world.done.count("measure") == 1

    app.world.recover()
    assert (await nested().resume("r").run(app)).unwrap().text.endswith("!")
    assert app.world.done.count("measure") == app.world.done.count("cut") - 1


async def test_a_nested_workflow_reads_the_same_time_again(store: MemoryStore) -> None:
    """A node is repeated as a whole, but the steps within it are skipped, so they must fit."""
    seen: list[datetime] = []

    @step
    def stamp(text: str, moment: datetime) -> Effect[App, Broken, str]:
        return pure(f"{text} at {moment}")

    @workflow
    def stamped(text: str) -> Do[App, Broken, str]:
        moment = yield from now()
        seen.append(moment)
        text = yield from stamp(text, moment)
        yield from note("stamped")
        return text

    built, app = line(stamp=stamped), app_on(store, failing=["stamped#1"])
    await built.start("a", run_id="r").run(app)

    # A resume with another time would be rejected with StepInputChanged.
    assert await built.resume("r").run(app) == Success(f"a at {seen[0]}")
    assert seen == [seen[0]] * 2


async def test_a_retried_nested_graph_begins_again(store: MemoryStore) -> None:
    policy = RetryPolicy.constant(0).with_max_retries(3)

    def patient(draft: Draft) -> Effect[App, RetryExhausted[Any], Draft]:
        return looping().body(draft).retry(policy)

    built = line(patient=patient)
    app = app_on(store, failing=["review#2", "review#3"])

    assert await built.start(Draft(""), run_id="r").run(app) == Success(WHOLE)
    assert app.world.done.count("write") == 6
    begun = [one.step for one in await read_entries(store, "r") if isinstance(one, BeforeStep)]
    assert len(begun) == len(set(begun)) == 1 + len(app.world.done)


def handling(graph: Graph[App, Any, Draft]) -> Workflow[App, Any, Draft, str]:
    @workflow
    def handling(draft: Draft) -> Do[App, Broken | GraphError, str]:
        error = (yield from graph.body(draft).result()).failure()
        yield from with_checkpointing("after", note("after"))
        return f"{type(error).__name__}: {getattr(error, 'node', error)}"

    return handling


async def test_a_workflow_can_handle_a_stuck_graph(store: MemoryStore) -> None:
    stuck = StateGraph[App, Broken, Draft]("stuck").node("write", write).node("end", pure)
    stuck.edge("write", "end", when=lambda _: False).entry("write").exit("end")
    made, app = handling(line(inner=stuck.build())), app_on(store, failing=["after#1"])
    await made.start(Draft("a"), run_id="r").run(app)

    # The failure was handled, so it is settled: a resume replays it, and does not repeat `write`.
    assert await made.resume("r").run(app) == Success("NoEdge: write")
    assert app.world.done == ["write", "after", "after"]


async def test_a_workflow_can_handle_the_failure_of_a_nested_list_of_steps(
    store: MemoryStore,
) -> None:
    # The errors of the node are known from its steps, although the graph does not declare them.
    made = handling(line(list=Workflow.of_steps("list", [write])))
    app = app_on(store, failing=["write#1", "after#1"])
    assert isinstance((await made.start(Draft("a"), run_id="r").run(app)).failure(), Broken)
    assert await made.resume("r").run(app) == Success("Broken: write#1")


async def test_an_at_most_once_node_is_not_repeated_silently(store: MemoryStore) -> None:
    began = anyio.Event()

    @step(at_most_once=True)
    def pay(number: int) -> Effect[App, Broken, int]:
        return waiting_once(began).map(lambda _: number + 1)

    built, app = line(charge=pay), app_on(store)
    await stopped_once(began, built.start(0, run_id="r"), app)

    error = (await built.resume("r").run(app)).failure()
    assert isinstance(error, OutcomeUnknown)
    assert error.step == "charge"
    assert await built.resume("r", force=True).run(app) == Success(1)


@both_backends
async def test_an_interrupted_graph_continues_with_the_interrupted_node(store: MemoryStore) -> None:
    began = anyio.Event()
    graph = line(first=pure, wait=lambda text: waiting_once(began).map(lambda _: text))
    app = app_on(store)
    await stopped_once(began, graph.start("a", run_id="r"), app)

    assert (await read_checkpoint(store, "r")).status is RunStatus.INTERRUPTED
    plan = (await graph.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("wait",), ("wait",))
    assert await graph.resume("r").run(app) == Success("a")


@both_backends
async def test_a_graph_interrupted_in_its_branches_completes_with_the_same_result(
    store: MemoryStore,
) -> None:
    began = anyio.Event()
    branches: dict[str, Any] = {
        "quick": lambda text: note("quick").map(lambda _: f"quick {text}"),
        "slow": lambda text: waiting_once(began).map(lambda _: f"slow {text}"),
    }
    built = branched(branches, lambda text, found: f"{text}: {', '.join(found.values())}")
    app = app_on(store)
    await stopped_once(began, built.start("a", run_id="r"), app)

    assert await built.resume("r").run(app) == Success("a: quick a, slow a")
    checkpoint = await read_checkpoint(store, "r")
    assert {item.outcome for item in checkpoint.history} == {"completed"}


async def test_a_changed_graph_continues_by_force(store: MemoryStore) -> None:
    app = App(Checkpoints(store), World(failing={"publish#1"}))
    await looping().start(Draft(""), run_id="r").run(app)
    longer = (
        StateGraph[App, Broken, Draft]("looping")
        .node("write", write)
        .node("review", review)
        .node("sign", lambda draft: pure(replace(draft, text=f"{draft.text} signed")))
        .node("publish", publish)
        .edge("write", "review")
        .edge("review", "sign", when=is_long)
        .edge("review", "write")
        .edge("sign", "publish")
        .entry("write")
        .exit("publish")
        .build()
    )

    app.world.recover()
    assert (await longer.resume("r", force=True).run(app)).unwrap().text == "www signed!"
    assert (await longer.plan("r").run(app)).unwrap().is_complete


def forked(*, is_fixed: bool, stops: str = "") -> Graph[App, Any, Draft]:
    """Leads through `left` to the exit; once fixed, through `right`, and from there perhaps `left`."""
    return (
        StateGraph[App, Any, Draft]("forked")
        .node("begin", write)
        .node("left", lambda draft: fail("down") if stops == "left" else write(draft))
        .node("right", write)
        .node("end", lambda draft: fail("stop") if stops == "end" else publish(draft))
        .edge("begin", "right", when=lambda _: is_fixed)
        .edge("begin", "left")
        .edge("right", "end", when=lambda _: stops != "left")
        .edge("right", "left")
        .edge("left", "end")
        .entry("begin")
        .exit("end")
        .build()
    )


async def test_progress_ignores_an_attempt_that_a_fixed_condition_bypassed(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    await forked(is_fixed=False, stops="left").start(Draft(""), run_id="r").run(app)
    failed = await read_checkpoint(store, "r")
    assert forked(is_fixed=False).progress(failed).current == ("left",)

    fixed = forked(is_fixed=True)
    await forked(is_fixed=True, stops="end").resume("r", force=True).run(app)
    stopped = await read_checkpoint(store, "r")
    assert fixed.progress(stopped).current == ("end",)
    assert (await fixed.resume("r").run(app)).unwrap().text == "ww!"

    ended = await read_checkpoint(store, "r")
    assert fixed.progress(ended).current == ("end",)
    assert dict(fixed.progress(ended).visits) == {"begin": 1, "left": 1, "right": 1, "end": 1}
    again = Checkpoint.from_binary(ended.to_binary())
    assert fixed.progress(again).current == ("end",)
    # After any entry, a completed node is the current one.
    for length in range(failed.metadata.entries + 1, ended.metadata.entries):
        checkpoint = await read_checkpoint(store, "r", at=length)
        if isinstance(checkpoint.state, Completed):
            assert fixed.progress(checkpoint).current == (checkpoint.state.step,)
            expected = {"right": ("end",), "end": ()}[checkpoint.state.step]
            shorter = App(Checkpoints(await cut(store, length)))
            assert (await fixed.plan("r").run(shorter)).unwrap().start == expected


async def test_a_bypassed_node_may_be_reached_later_in_another_state(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    await forked(is_fixed=False, stops="left").start(Draft(""), run_id="r").run(app)
    await forked(is_fixed=True, stops="left").resume("r", force=True).run(app)
    entries = await read_entries(store, "r")
    steps = [entry.step for entry in entries if isinstance(entry, BeforeStep)]
    assert steps == ["begin", "left", "right", "left"]

    graph = forked(is_fixed=True, stops="left")
    after_right = [isinstance(e, Completed) and e.step == "right" for e in entries].index(True) + 1
    shorter = App(Checkpoints(await cut(store, after_right)))
    plan = (await graph.plan("r").run(shorter)).unwrap()
    # Its attempt in another state was left behind.
    assert (plan.start, plan.problem) == (("left",), None)
    assert graph.progress(await read_checkpoint(store, "r")).current == ("left",)
