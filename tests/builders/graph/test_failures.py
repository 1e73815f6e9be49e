"""What the failure of a node tells: the node, the path to it, and the state."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import Effect, fail, pure
from effectflow.graphs import Graph, MaxIterationsExceeded, NoEdge, StateGraph
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on, note
from tests.builders.graph.shapes import branched, line

pytestmark = pytest.mark.anyio


def add_one(number: int) -> Effect[App, Broken, int]:
    return note(f"add {number}").map(lambda _: number + 1)


def counting(*, until: int, max_iterations: int = 1000) -> Graph[App, Any, int]:
    return (
        StateGraph[App, Any, int]("counting", max_iterations=max_iterations)
        .node("begin", add_one)
        .node("add", add_one)
        .node("end", pure)
        .edge("begin", "add")
        .edge("add", "end", when=lambda number: number == until)
        .edge("add", "add")
        .entry("begin")
        .exit("end")
        .build()
    )


PLACE = "in node 'add' of graph 'counting', visit 2, after begin > add, with state 2"


async def test_the_failure_of_a_node_carries_node_path_and_state(store: MemoryStore) -> None:
    app = app_on(store, failing=["add 2"])

    error = (await counting(until=3).start(0, run_id="r").run(app)).failure()
    assert isinstance(error, Broken)
    assert error.__notes__ == [PLACE, "in run 'r'"]

    traced = (await counting(until=3).start(0, run_id="s").traced().run(app)).failure()
    assert traced.trail == (PLACE, "in run 's'")


async def test_a_failure_without_a_store_carries_them_also_if_it_is_not_an_exception() -> None:
    graph = line(first=pure, broken=lambda _: fail("no ink"))

    traced = (await graph.body(7).traced().run(app_on(MemoryStore()))).failure()

    assert traced.error == "no ink"
    [place] = traced.trail
    assert place.startswith("in node 'broken' of graph ")
    assert place.endswith(", visit 1, after first, with state 7")


async def test_a_defect_of_a_node_has_them_as_notes(store: MemoryStore) -> None:
    app = app_on(store)
    app.world.crashing.add("add 2")

    with pytest.raises(Crash) as raised:
        await counting(until=3).start(0, run_id="r").run(app)

    assert PLACE in raised.value.__notes__


async def test_a_failure_in_a_branch_of_a_nested_graph_names_all_around_it() -> None:
    inner = branched({"plus": add_one, "same": pure}, lambda _, found: found["plus"], "inner")
    graph = line(before=pure, work=inner)
    app = app_on(MemoryStore(), failing=["add 5"])

    traced = (await graph.body(5).traced().run(app)).failure()

    branch, node, outer = traced.trail
    assert branch == "in branch 'plus'"
    assert node.startswith("in node 'both' of graph 'inner', visit 1, after no other node")
    assert outer.startswith("in node 'work' of graph ")


async def test_a_graph_that_is_stuck_carries_path_and_state(store: MemoryStore) -> None:
    limited = counting(until=99, max_iterations=25)
    traced = (await limited.start(0, run_id="r").traced().run(app_on(store))).failure()

    assert isinstance(traced.error, MaxIterationsExceeded)
    path = "... > " + " > ".join(["add"] * 20)
    assert traced.trail[0] == f"in graph 'counting', after {path}, with state 25"

    stuck = (
        StateGraph[App, Any, int]("stuck")
        .node("begin", pure)
        .node("end", pure)
        .edge("begin", "end", when=lambda number: number > 3)
        .entry("begin")
        .exit("end")
        .build()
    )
    error = (await stuck.body(1).run(app_on(store))).failure()
    assert isinstance(error, NoEdge)
    assert error.__notes__ == ["in graph 'stuck', after begin, with state 1"]


async def test_a_state_is_shown_only_if_something_fails_and_not_in_full() -> None:
    shown: list[object] = []

    class Long(str):
        __slots__ = ()

        def __repr__(self) -> str:
            shown.append(self)
            return "x\n" * 1000

    good = line(a=pure, b=pure)
    assert await good.body(Long("s")).run(app_on(MemoryStore())) == Success("s")
    assert shown == []

    traced = (
        await line(a=lambda _: fail("no")).body(Long("s")).traced().run(app_on(MemoryStore()))
    ).failure()
    assert traced.trail[0].endswith("with state " + "x " * 150 + "...")


async def test_a_resume_that_replays_the_failure_tells_the_same(store: MemoryStore) -> None:
    app = app_on(store, failing=["add 2"])
    first = (await counting(until=3).start(0, run_id="r").traced().run(app)).failure()
    again = (await counting(until=3).resume("r").traced().run(app)).failure()

    assert first.trail == again.trail == (PLACE, "in run 'r'")
