"""The path of a state through a graph, and what ends it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Never

import anyio
import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    HasCheckpoints,
    Workflow,
    current_step,
    do,
    fail,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.effects import from_fn
from effectflow.graphs import Graph, MaxIterationsExceeded, NoEdge, StateGraph
from effectflow.iterative import Iterative
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, both_backends
from tests.builders.graph.shapes import branched, line
from tests.memory import memory_held, memory_traced
from tests.sweeps import sample_or_all

pytestmark = pytest.mark.anyio

Trail = tuple[str, ...]
"""The state of most graphs here: the visited nodes."""


def visiting(name: str) -> Callable[[Trail], Effect[object, Never, Trail]]:
    """A node that appends its name to the trail."""
    return lambda trail: pure((*trail, name))


def trails(name: str = "trails", *, max_iterations: int = 1000) -> StateGraph[App, str, Trail]:
    return StateGraph[App, str, Trail](name, max_iterations=max_iterations)


@both_backends
async def test_edges_are_tried_in_order_and_the_first_that_holds_is_taken() -> None:
    asked: list[str] = []

    def says(answer: bool, name: str) -> Callable[[Trail], bool]:
        def condition(_: Trail) -> bool:
            asked.append(name)
            return answer

        return condition

    graph = trails().node("a", visiting("a")).entry("a").edge("a", "b", says(False, "b"))
    graph.edge("a", "c", says(True, "c")).edge("a", "d", says(True, "d")).edge("a", "e")
    for name in "bcde":
        graph.node(name, visiting(name)).exit(name)

    assert await graph.build().body(()).run(App()) == Success(("a", "c"))
    assert asked == ["b", "c"]


class Verdict(Enum):
    GOOD = 1
    BAD = 2


async def test_a_route_leads_to_the_target_of_the_choice() -> None:
    def judge(trail: Trail) -> Verdict:
        return Verdict.GOOD if len(trail) > 2 else Verdict.BAD

    graph = trails().node("write", visiting("write")).node("publish", visiting("publish"))
    graph.route("write", judge, {Verdict.GOOD: "publish", Verdict.BAD: "write"})
    built = graph.entry("write").exit("publish").build()
    assert await built.body(()).run(App()) == Success(("write", "write", "write", "publish"))


async def test_a_route_asks_its_function_once_per_visit() -> None:
    asked: list[str] = []
    names = ["b", "c", "d"]

    def choose(trail: Trail) -> str:
        asked.append(" ".join(trail))
        return names[len(trail) - 1]

    graph = trails().node("a", visiting("a")).entry("a").edge("b", "a").exit("d")
    for name in names:
        graph.node(name, visiting(name))
    graph.edge("c", "d").route("a", choose, {name: name for name in reversed(names)})

    assert await graph.build().body(()).run(App()) == Success(("a", "b", "a", "d"))
    assert asked == ["a", "a b a"]


def routed(choice: str) -> StateGraph[App, str, Trail]:
    graph = trails("routed").node("a", visiting("a")).entry("a")
    for name in ("b", "c"):
        graph.node(name, visiting(name)).exit(name)
    return graph.route("a", lambda _: choice, {"to b": "b"})


async def test_a_choice_without_a_target_fails_unless_an_unconditional_edge_follows() -> None:
    stuck = await routed("to d").edge("a", "c", lambda _: False).build().body(()).run(App())

    error = stuck.failure()
    assert isinstance(error, NoEdge)
    assert (error.graph, error.node) == ("routed", "a")
    assert error.edges == ("'a' -> 'b' if to b", "'a' -> 'c' if ...")
    assert "stuck after node 'a'" in str(error)
    assert await routed("to d").edge("a", "c").build().body(()).run(App()) == Success(("a", "c"))


def circle(max_iterations: int) -> Graph[App, Any, Trail]:
    """A graph that loops twice and exits: five visits."""
    return (
        trails("circle", max_iterations=max_iterations)
        .node("a", visiting("a"))
        .node("b", visiting("b"))
        .node("end", visiting("end"))
        .edge("a", "b")
        .edge("b", "end", when=lambda trail: len(trail) == 4)
        .edge("b", "a")
        .entry("a")
        .exit("end")
        .build()
    )


async def test_a_run_may_make_exactly_max_iterations_visits() -> None:
    assert await circle(5).body(()).run(App()) == Success(("a", "b", "a", "b", "end"))

    error = (await circle(4).body(()).run(App())).failure()
    assert isinstance(error, MaxIterationsExceeded)
    assert (error.graph, error.node, error.max_iterations) == ("circle", "end", 4)
    assert error.visits == {"a": 2, "b": 2}
    assert "4 visits" in str(error)
    assert "a 2, b 2" in str(error)


async def test_a_run_stopped_by_max_iterations_continues_with_a_higher_limit() -> None:
    app = App()
    assert isinstance(
        (await circle(4).start((), run_id="r").run(app)).failure(), MaxIterationsExceeded
    )

    assert await circle(5).resume("r").run(app) == Success(("a", "b", "a", "b", "end"))


async def test_the_first_exit_that_is_reached_ends_the_graph() -> None:
    graph = trails().entry("a").exit("b").exit("c")
    for name in "abc":
        graph.node(name, visiting(name))
    graph.edge("a", "b", when=lambda trail: trail[0] == "to b").edge("a", "c")
    built = graph.build()
    assert await built.body(("to b",)).run(App()) == Success(("to b", "a", "b"))
    assert await built.body(("to c",)).run(App()) == Success(("to c", "a", "c"))


async def test_a_graph_fails_with_the_error_of_its_node() -> None:
    assert await line(a=lambda _: fail("no ink")).body(()).run(App()) == Failure("no ink")


@dataclass(frozen=True)
class Model:
    checkpoints: Checkpoints
    answer: str


def answer_of(model: Model) -> str:
    return model.answer


@do
def ask_model(trail: Trail) -> Do[Model, str, Trail]:
    info = current_step()
    answer = yield from from_fn(answer_of)
    return (*trail, f"{answer} in {info.step}")


async def test_a_node_has_the_environment_and_is_a_step() -> None:
    built, model = line(ask=ask_model), Model(Checkpoints(MemoryStore()), "yes")
    assert await built.body(()).run(model) == Success(("yes in ask",))
    assert await built.start(()).run(model) == Success(("yes in ask",))


@step(name="another name")
def signed(trail: Trail) -> Effect[object, Never, Trail]:
    return pure((*trail, current_step().step))


@workflow
def in_two_steps(trail: Trail) -> Do[App, str, Trail]:
    once = yield from signed(trail)
    return (yield from signed(once))


def nested() -> Graph[App, Any, Trail]:
    inner = line("inner", first=signed, second=signed)
    lists = Workflow.of_steps("lists", [signed])
    return line("outer", step=signed, graph=inner, workflow=in_two_steps, list=lists)


async def test_steps_and_workflows_of_every_kind_are_nodes() -> None:
    paths = (
        "step",
        "graph/first",
        "graph/second",
        "workflow/another name",
        "workflow/another name#2",
        "list/another name",
    )

    assert await nested().start(()).run(App()) == Success(paths)
    names = ("step", "first", "second", *["another name"] * 3)
    assert await nested().body(()).run(App()) == Success(names)


def compared(*names: str) -> Graph[App, Any, Trail]:
    """Branches of which the first takes longest."""

    def branch(name: str, seconds: float) -> Callable[[Trail], Effect[object, Never, str]]:
        return lambda trail: sleep(seconds).map(lambda _: f"{name} of {len(trail)}")

    def merge(trail: Trail, results: Mapping[str, str]) -> Trail:
        return (*trail, *(f"{name}: {result}" for name, result in results.items()))

    return branched({name: branch(name, len(names) - i) for i, name in enumerate(names)}, merge)


@both_backends
async def test_branches_run_concurrently_and_merge_in_the_order_of_their_names() -> None:
    clock = TestClock()

    result = await clock.run(compared("x", "y", "z").body(("before",)), App())

    assert result == Success(("before", "x: x of 1", "y: y of 1", "z: z of 1"))
    assert clock.monotonic() == 3


@both_backends
async def test_the_first_branch_that_fails_cancels_the_others() -> None:
    ended: list[str] = []
    waiting = sleep(60).on_exit(from_fn(lambda _: ended.append("waiting")))
    failing = sleep(1).and_then(lambda _: fail("torn"))
    branches = {"waiting": lambda _: waiting, "failing": lambda _: failing}
    graph, clock = branched(branches, lambda trail, _: trail), TestClock()
    assert await clock.run(graph.start(()), App()) == Failure("torn")
    assert (ended, clock.monotonic()) == (["waiting"], 1)


async def test_a_branch_may_be_a_graph() -> None:
    graph = branched(
        {"nested": nested(), "circle": circle(5)},
        lambda trail, results: (*trail, *(str(len(result)) for result in results.values())),
    )
    assert await graph.start(()).run(App()) == Success(("6", "5"))


async def test_a_branch_may_be_a_job_or_an_iterative_workflow_and_is_recorded() -> None:
    ran: list[int] = []
    is_broken = True

    def note(number: int) -> Effect[object, Never, int]:
        return from_fn(lambda _: ran.append(number)).map(lambda _: number)

    job = MapReduce(
        "job", items=range, map=note, reduce=lambda found: pure(sum(found)), key=str, limit=2
    )
    halving = Iterative(
        "halving", lambda n: pure(n // 2), converged=lambda a, b: a == b, max_rounds=9
    )

    def merge(_: int, results: Mapping[str, Any]) -> int:
        if is_broken:
            raise ZeroDivisionError("a bug")
        return results["job"].value + results["halving"].rounds

    built, app = branched({"job": job, "halving": halving}, merge), App()
    with pytest.raises(ZeroDivisionError):
        await built.start(4, run_id="r").run(app)
    assert sorted(ran) == [0, 1, 2, 3]
    is_broken = False
    assert await built.resume("r").run(app) == Success(6 + 4)
    assert len(ran) == 4


def raising(_: object) -> Never:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_defect_names_its_node_or_edge(is_durable: bool) -> None:
    def fails_at(graph: StateGraph[App, str, Trail]) -> Graph[App, Any, Trail]:
        return graph.entry("a").exit("end").node("end", visiting("end")).build()

    in_node = fails_at(trails().node("a", raising).edge("a", "end"))
    in_condition = fails_at(trails().node("a", visiting("a")).edge("a", "end", when=raising))
    in_merge = fails_at(
        trails().parallel("a", {"x": visiting("x")}, raising_merge).edge("a", "end")
    )
    said = {in_node: "in step 'a'", in_condition: "edge 'a' -> 'end' if raising", in_merge: "'a'"}

    for graph, note in said.items():
        work = graph.start(()) if is_durable else graph.body(())
        with pytest.raises(ZeroDivisionError) as caught:
            await work.run(App())
        assert any(note in line for line in caught.value.__notes__)


def raising_merge(_: Trail, __: Mapping[str, Trail]) -> Never:
    raise ZeroDivisionError("a bug")


async def test_a_node_that_does_not_return_an_effect_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="expected an effect"):
        await line(a=lambda trail: (*trail, "a")).body(()).run(App())


def counting(to: int) -> Graph[HasCheckpoints, Any, int]:
    return (
        StateGraph[HasCheckpoints, Never, int]("counting", max_iterations=to + 1)
        .node("add one", lambda number: pure(number + 1))
        .node("end", pure)
        .edge("add one", "end", when=lambda number: number == to)
        .edge("add one", "add one")
        .entry("add one")
        .exit("end")
        .build()
    )


@sample_or_all("rounds", 3_000, 100_000)
async def test_many_rounds_need_no_recursion(rounds: int) -> None:
    app, limit = App(), sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        assert await counting(rounds).body(0).run(app) == Success(rounds)
    finally:
        sys.setrecursionlimit(limit)


@sample_or_all("rounds", 2_000, 100_000)
async def test_memory_does_not_grow_with_the_rounds(rounds: int) -> None:
    held: list[int] = []
    early, late = range(200, 500, 100), range(rounds - 300, rounds, 100)

    def count(number: int) -> Effect[object, Never, int]:
        if number in early or number in late:
            held.append(memory_held())
        return pure(number + 1)

    graph = (
        StateGraph[HasCheckpoints, Never, int]("counting", max_iterations=rounds + 1)
        .node("add one", count)
        .node("end", pure)
        .edge("add one", "end", when=lambda number: number == rounds)
        .edge("add one", "add one")
        .entry("add one")
        .exit("end")
        .build()
    )
    with memory_traced():
        assert await graph.body(0).run(App()) == Success(rounds)

    # What threads of other tests take for a moment does not count. Half a reference to each round does.
    assert min(held[3:]) - max(held[:3]) < (rounds - 800) * 4


async def test_one_graph_may_be_run_many_times_at_once() -> None:
    graph, app = circle(5), App()
    results: list[object] = []

    async def run() -> None:
        results.append(await graph.start(()).run(app))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(run)

    assert results == [Success(("a", "b", "a", "b", "end"))] * 10


@st.composite
def ways(draw: st.DrawFn) -> list[list[int]]:
    """For each node but the last, its targets in order; all but the last of them have conditions."""
    count = draw(st.integers(2, 6))
    target = st.integers(0, count - 1)
    inner = [draw(st.lists(target, max_size=3)) for _ in range(count - 2)]
    # The ring at the end of each list keeps every node reachable and the exit in reach.
    return [[*targets, i + 1] for i, targets in enumerate(inner)] + [[count - 1]]


def holds(source: int, position: int, length: int) -> bool:
    """A condition with varying results, which is False from some length on."""
    return (source * 7 + position * 3 + length) % 3 == 0 and length < 40


def expected_trail(targets: list[list[int]]) -> Trail:
    """The path of a state, computed without a graph."""
    trail: Trail = ()
    node = 0
    while True:
        trail = (*trail, str(node))
        if node == len(targets):
            return trail
        *conditional, last = targets[node]
        open_ways = (to for i, to in enumerate(conditional) if holds(node, i, len(trail)))
        node = next(open_ways, last)


def as_graph(targets: list[list[int]]) -> Graph[App, Any, Trail]:
    graph = trails("generated").entry("0").exit(str(len(targets)))
    for node in range(len(targets) + 1):
        graph.node(str(node), visiting(str(node)))
    for node, (*conditional, last) in enumerate(targets):
        for position, to in enumerate(conditional):
            graph.edge(
                str(node), str(to), lambda trail, n=node, i=position: holds(n, i, len(trail))
            )
        graph.edge(str(node), str(last))
    return graph.build()


@given(ways())
def test_any_graph_follows_its_edges(targets: list[list[int]]) -> None:
    graph = as_graph(targets)

    assert graph.body(()).run_sync(App()) == Success(expected_trail(targets))
    assert graph.start(()).run_sync(App()) == Success(expected_trail(targets))
