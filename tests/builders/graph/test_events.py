"""The events that observers of a graph get, and their order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Effect, fail, pure
from effectflow.checkpoint import (
    CheckpointEvent,
    CheckpointLoaded,
    CheckpointSaved,
    EntryAppended,
    LifeBegan,
    LifeEnded,
    RunResumed,
    StepSkipped,
)
from effectflow.graphs import (
    CycleDetected,
    EdgeEvaluated,
    Graph,
    NodeEnded,
    NodeStarted,
    StateGraph,
)
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver
from tests.apps import App, Broken, Told, app_on, both_backends, note
from tests.builders.graph.shapes import branched, line
from tests.runs.journals import act, stopped_once, waiting_once

pytestmark = pytest.mark.anyio


def add_one(number: int) -> Effect[App, Broken, int]:
    return note(f"add {number}").map(lambda _: number + 1)


def is_two(number: int) -> bool:
    return number == 2


def counting() -> Graph[App, Any, int]:
    return (
        StateGraph[App, Any, int]("counting")
        .node("add", add_one)
        .node("end", pure)
        .edge("add", "end", when=is_two)
        .edge("add", "add")
        .entry("add")
        .exit("end")
        .build()
    )


def without_entries(observer: RecordingObserver) -> list[CheckpointEvent]:
    left_out = EntryAppended | LifeBegan | LifeEnded
    return [event for event in observer.events if not isinstance(event, left_out)]


async def test_observers_see_each_node_and_edge() -> None:
    observer = RecordingObserver()
    app = App(Checkpoints(MemoryStore(), observers=[observer]))

    await counting().start(0, run_id="r").run(app)

    first = ("r", "counting", "add", 1, "add")
    second = ("r", "counting", "add", 2, "add#2")
    end = ("r", "counting", "end", 1, "end")
    assert without_entries(observer) == [
        CheckpointSaved("r", 1, None),
        CheckpointSaved("r", 2, "add"),
        NodeStarted(*first),
        NodeEnded(*first, "completed"),
        EdgeEvaluated("r", "counting", "add", "end", is_taken=False),
        EdgeEvaluated("r", "counting", "add", "add", is_taken=True),
        CheckpointSaved("r", 4, "add#2"),
        CycleDetected(*second),
        NodeStarted(*second),
        NodeEnded(*second, "completed"),
        EdgeEvaluated("r", "counting", "add", "end", is_taken=True),
        CheckpointSaved("r", 6, "end"),
        NodeStarted(*end),
        NodeEnded(*end, "completed"),
        CheckpointSaved("r", 8, "end"),
    ]


async def test_a_resume_does_not_report_skipped_nodes_again() -> None:
    observer = RecordingObserver()
    store = MemoryStore()
    app = app_on(store, failing=["add 1"])
    assert isinstance((await counting().start(0, run_id="r").run(app)).failure(), Broken)

    await counting().resume("r").run(App(Checkpoints(store, observers=[observer])))

    second = ("r", "counting", "add", 2, "add#2")
    end = ("r", "counting", "end", 1, "end")
    assert without_entries(observer) == [
        CheckpointLoaded("r", 6, "add#2"),
        RunResumed("r", "add#2"),
        StepSkipped("r", "add", 1),
        CheckpointSaved("r", 8, "add#2"),
        CycleDetected(*second),
        NodeStarted(*second),
        NodeEnded(*second, "completed"),
        EdgeEvaluated("r", "counting", "add", "end", is_taken=True),
        CheckpointSaved("r", 10, "end"),
        NodeStarted(*end),
        NodeEnded(*end, "completed"),
        CheckpointSaved("r", 12, "end"),
    ]


@pytest.mark.parametrize("observers", [[], [RecordingObserver()]])
async def test_a_resume_with_other_observers_does_not_repeat_the_finalizer_of_a_node(
    observers: list[RecordingObserver],
) -> None:
    def visit(number: int) -> Effect[App, Broken, int]:
        tidied = act("work").on_exit(act("tidy"))
        return tidied.and_then(lambda _: act("check")).map(lambda _: number)

    store = MemoryStore()
    failing = app_on(store, failing=["check"], observers=[] if observers else [RecordingObserver()])
    assert isinstance((await line(a=visit).start(0, run_id="r").run(failing)).failure(), Broken)

    app = app_on(store, observers=observers)
    assert await line(a=visit).resume("r").run(app) == Success(0)
    assert app.world.done == ["check"]


async def test_a_complete_run_is_loaded_but_not_resumed() -> None:
    observer = RecordingObserver()
    store = MemoryStore()
    await counting().start(0, run_id="r").run(App(Checkpoints(store)))

    app = App(Checkpoints(store, observers=[observer]))
    assert await counting().resume("r").run(app) == Success(2)
    assert await counting().start(0, run_id="r").run(app) == Success(2)

    assert observer.events == [CheckpointLoaded("r", 8, "end")] * 2


def raise_a_bug(_: int) -> Effect[App, str, int]:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("node", "outcome"), [(lambda _: fail("no"), "failed"), (raise_a_bug, "failed")]
)
async def test_observers_see_how_a_node_ended(
    node: Callable[[int], Effect[App, str, int]], outcome: str
) -> None:
    observer = RecordingObserver()
    with suppress(ZeroDivisionError):
        await line(a=node).start(0).run(App(Checkpoints(MemoryStore(), observers=[observer])))

    [ended] = [event for event in observer.events if isinstance(event, NodeEnded)]
    assert (ended.node, ended.outcome) == ("a", outcome)


@both_backends
async def test_observers_see_an_interrupted_node() -> None:
    observer, began = RecordingObserver(), anyio.Event()
    app = App(Checkpoints(MemoryStore(), observers=[observer]))
    await stopped_once(began, line(a=lambda _: waiting_once(began)).start(0), app)

    [ended] = [event for event in observer.events if isinstance(event, NodeEnded)]
    assert ended.outcome == "interrupted"


async def test_observers_see_the_paths_of_branches_and_nested_nodes() -> None:
    observer = RecordingObserver()
    branches = {"plus": add_one, "count": counting()}
    graph = branched(branches, lambda _, found: found["count"], "outer")
    await graph.start(0, run_id="r").run(App(Checkpoints(MemoryStore(), observers=[observer])))

    started = [event for event in observer.events if isinstance(event, NodeStarted)]
    assert {(event.workflow, event.step) for event in started} == {
        ("outer", "both"),
        ("outer", "both/par_traverse[plus]/plus"),
        ("outer", "both/par_traverse[count]/count"),
        ("counting", "both/par_traverse[count]/count/add"),
        ("counting", "both/par_traverse[count]/count/add#2"),
        ("counting", "both/par_traverse[count]/count/end"),
    }


async def test_an_effect_observer_sees_the_nodes_of_a_plain_run() -> None:
    told = Told()
    await counting().body(1).run(App(Checkpoints(MemoryStore())), observer=told)
    assert told.log == ["add began", "add ended: Success", "end began", "end ended: Success"]


async def test_a_graph_without_a_store_tells_the_observers_of_its_environment() -> None:
    observer = RecordingObserver()
    app = App(Checkpoints(MemoryStore(), observers=[observer]))

    assert await counting().body(1).run(app) == Success(2)

    first, end = (None, "counting", "add", 1, "add"), (None, "counting", "end", 1, "end")
    assert observer.events == [
        NodeStarted(*first),
        NodeEnded(*first, "completed"),
        EdgeEvaluated(None, "counting", "add", "end", is_taken=True),
        NodeStarted(*end),
        NodeEnded(*end, "completed"),
    ]
    assert await app.checkpoints.store.find() == []


async def test_a_graph_without_a_store_reports_cycles_and_failures() -> None:
    observer = RecordingObserver()
    app = app_on(MemoryStore(), failing=["add 1"], observers=[observer])

    assert isinstance((await counting().body(0).run(app)).failure(), Broken)

    second = (None, "counting", "add", 2, "add#2")
    assert observer.events[-3:] == [
        CycleDetected(*second),
        NodeStarted(*second),
        NodeEnded(*second, "failed"),
    ]


async def test_the_saves_of_a_nested_graph_name_the_outer_node() -> None:
    observer = RecordingObserver()
    graph = line(outer=counting(), last=pure)
    await graph.start(0, run_id="r").run(App(Checkpoints(MemoryStore(), observers=[observer])))

    saved = [event for event in observer.events if isinstance(event, CheckpointSaved)]
    assert [event.step for event in saved] == [
        None,
        "outer",
        "outer/add",
        "outer/add#2",
        "outer/end",
        "last",
        "last",
    ]
    assert [event.node for event in saved] == [None, *["outer"] * 4, "last", "last"]
