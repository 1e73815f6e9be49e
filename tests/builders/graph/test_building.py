"""Which descriptions can be built, and which changes are a changed definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, HasCheckpoints, fail, pure, workflow
from effectflow.checkpoint import DefinitionChanged
from effectflow.graphs import Graph, InvalidGraph, StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.service.structured_input import input_of
from effectflow.stores import MemoryStore
from tests.apps import App

AnyGraph = StateGraph[HasCheckpoints, Any, int]


def described(*nodes: str, edges: str = "", entry: str = "", exits: str = "") -> AnyGraph:
    """A graph of nodes that do nothing; its edges are written `ab bc`."""
    graph = AnyGraph("g")
    for name in nodes:
        graph.node(name, pure)
    for source, target in edges.split():
        graph.edge(source, target)
    for name in entry:
        graph.entry(name)
    for name in exits:
        graph.exit(name)
    return graph


def problems(graph: AnyGraph) -> tuple[str, ...]:
    with pytest.raises(InvalidGraph) as caught:
        graph.build()
    return caught.value.problems


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        pytest.param(
            described("a", "b", edges="ab ac", entry="a", exits="b"),
            [
                "the edge 'a' -> 'c' names the unknown node 'c'",
                "the edge 'a' -> 'c' is never tried: 'a' -> 'b' before it always holds",
            ],
            id="unknown-target",
        ),
        pytest.param(
            described("review", entry="", exits="").entry("reveiw").exit("review"),
            ["the entry 'reveiw' names the unknown node 'reveiw'; did you mean 'review'?"],
            id="unknown-entry",
        ),
        pytest.param(
            described("a", edges="", entry="a", exits="ab"),
            ["the exit 'b' names the unknown node 'b'"],
            id="unknown-exit",
        ),
        pytest.param(
            described("a", exits="a"), ["it has no entry: add one with .entry(name)"], id="no-entry"
        ),
        pytest.param(
            described("a", "b", edges="ab", entry="ab", exits="b"),
            ["it has several entries, 'a' and 'b', but must begin at one"],
            id="two-entries",
        ),
        pytest.param(
            described("a", edges="aa", entry="a"),
            ["it has no exit: add one with .exit(name)"],
            id="no-exit",
        ),
        pytest.param(
            described("a", "b", "c", edges="ab ba", entry="a", exits="c"),
            [
                "'c' cannot be reached from the entry 'a'",
                "no exit can be reached from the entry 'a'",
            ],
            id="no-exit-in-reach",
        ),
        pytest.param(
            described("a", "b", entry="a", exits="a"),
            [
                "'b' is a dead end: add an edge out of it, or make it an exit",
                "'b' cannot be reached from the entry 'a'",
            ],
            id="unreachable-and-dead-end",
        ),
        pytest.param(
            described("a", "b", "c", entry="a", exits="b")
            .edge("a", "c", when=lambda _: True)
            .edge("a", "b")
            .edge("c", "c"),
            ["no exit can be reached from 'c': the graph would loop forever"],
            id="trap",
        ),
        pytest.param(
            described("a", "b", edges="ab ba", entry="a", exits="b"),
            ["the edge 'b' -> 'a' is never taken: 'b' is an exit, where the graph ends"],
            id="edge-out-of-an-exit",
        ),
        pytest.param(
            described("a", "a", entry="a", exits="a"),
            ["two nodes have the name 'a'"],
            id="duplicate",
        ),
        pytest.param(
            described(),
            [
                "it has no nodes: add some with .node(name, function)",
                "it has no entry: add one with .entry(name)",
                "it has no exit: add one with .exit(name)",
            ],
            id="empty",
        ),
        pytest.param(
            AnyGraph("g", max_iterations=0).node("a", pure).entry("a").exit("a"),
            ["max_iterations must be an int >= 1, not 0"],
            id="no-iterations",
        ),
    ],
)
def test_each_problem_is_reported(graph: AnyGraph, said: list[str]) -> None:
    assert problems(graph) == tuple(said)


def generator(number: int) -> Do[HasCheckpoints, str, int]:
    return (yield from pure(number))


def half(number: int) -> int:
    return number // 2


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a/b", pure, "cannot name a step"),
        ("", pure, "cannot name a step"),
        ("a", 3, "takes a function from a state to an effect, or a workflow that is built, not 3"),
        ("a", described("x", entry="x", exits="x"), "a workflow that is built"),
        ("a", generator, "not a generator function: decorate it with @do"),
        ("a", half, "and half returns int: return an effect, such as pure(value)"),
    ],
)
def test_an_invalid_node_is_reported(name: str, body: Any, said: str) -> None:
    [problem] = problems(AnyGraph("g").node(name, body).entry(name).exit(name))

    assert said in problem


def test_a_graph_needs_a_name_and_each_node_has_all_of_its_problems() -> None:
    body: Any = 3
    unnamed, path, number = problems(AnyGraph("").node("a/b", body).entry("a/b").exit("a/b"))

    assert unnamed == "its name must be text that is not empty, not ''"
    assert path.startswith("'a/b' cannot name a step")
    assert number.startswith("node 'a/b' takes a function")


def test_a_state_machine_cannot_be_a_node_but_its_body_can() -> None:
    machine = StateMachine("count", initial=1, transitions=[Transition("add", 1, 2)], final={2})
    given: Any = machine

    [problem] = problems(AnyGraph("g").node("a", given).entry("a").exit("a"))
    assert "yields a Machine instead of the next state" in problem

    def count(number: int) -> Effect[Any, Any, int]:
        return machine.body(number).map(lambda ended: ended.current)

    graph = AnyGraph("g").node("a", count).entry("a").exit("a").build()
    assert graph.start(1).run_sync(App()) == Success(2)


@pytest.mark.parametrize(
    ("workflow", "result"),
    [
        (
            MapReduce(
                "sum",
                items=range,
                map=lambda number: pure(number),
                reduce=lambda values: pure(sum(values)),
                key=str,
                limit=2,
            ),
            "a JobResult",
        ),
        (
            Iterative(
                "halve",
                lambda number: pure(number // 2),
                converged=lambda before, after: before == after,
                max_rounds=9,
            ),
            "an IterativeResult",
        ),
    ],
)
def test_a_workflow_that_does_not_yield_a_state_cannot_be_a_node(
    workflow: Any, result: str
) -> None:
    [problem] = problems(AnyGraph("g").node("a", workflow).entry("a").exit("a"))

    assert (
        f"the workflow {workflow.name!r} of node 'a' yields {result} instead of the next" in problem
    )
    assert "workflow.body(state).map(lambda result: " in problem

    inner = AnyGraph("g").node("a", lambda number: workflow.body(number).map(lambda r: r.value))
    assert isinstance(inner.entry("a").exit("a").build().start(4).run_sync(App()), Success)


def test_a_state_machine_cannot_be_a_branch() -> None:
    machine = StateMachine("count", initial=1, transitions=[Transition("add", 1, 2)], final={2})
    branches: Any = {"x": pure, "y": machine}

    graph = AnyGraph("g").parallel("a", branches, lambda number, _: number).entry("a").exit("a")

    [problem] = problems(graph)
    assert problem.startswith(
        "the workflow of branch 'y' yields a Machine, which a step cannot save"
    )


def test_branches_are_checked_as_nodes_are() -> None:
    def problem(branches: Any, merge: Any) -> str:
        [found] = problems(AnyGraph("g").parallel("a", branches, merge).entry("a").exit("a"))
        return found

    def first(number: int, _: object) -> int:
        return number

    assert "no branches" in problem({}, first)
    assert "node 'y' takes a function from a state to an effect" in problem(
        {"x": pure, "y": 3}, first
    )
    assert "to merge them, not None" in problem({"x": pure}, None)


def test_a_condition_must_be_callable() -> None:
    condition: Any = "is_even"
    graph = described("a", "b", edges="", entry="a", exits="b").edge("a", "b", when=condition)

    [problem] = problems(graph)
    assert problem == (
        "the condition of the edge 'a' -> 'b' if ... takes a function from a state to a bool, "
        "not 'is_even'"
    )


async def later(state: int) -> bool:
    return False


def test_conditions_and_choices_cannot_be_async() -> None:
    asked: Any = later
    graph = (
        described("a", "b", "c", entry="a", exits="c")
        .edge("b", "c", when=asked)
        .route("a", asked, {True: "b"})
    )

    assert problems(graph) == (
        "the route out of 'a' takes a function from a state to a choice, not an async function",
        (
            "the condition of the edge 'b' -> 'c' if later takes a function from a state to a bool, "
            "not an async function"
        ),
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "kind"), [(lambda _: pure(False), "an effect"), (lambda _: later(1), "an awaitable")]
)
async def test_a_condition_that_returns_an_effect_or_awaitable_is_a_defect(
    answer: Any, kind: str
) -> None:
    asking = described("a", "b", entry="a", exits="b").edge("a", "b", when=answer).build()
    with pytest.raises(
        TypeError, match=f"^the condition of the edge 'a' -> 'b' .* returned {kind}"
    ):
        await asking.start(1).run(App())

    routed = described("a", "b", entry="a", exits="b").route("a", answer, {True: "b"}).build()
    with pytest.raises(TypeError, match=f"^the function that chooses returned {kind}") as caught:
        await routed.start(1).run(App())
    assert "in the condition of the edge 'a' -> 'b' if True" in caught.value.__notes__


def test_two_classes_with_the_same_name_are_rejected() -> None:
    def of_a_class() -> Callable[[int], Effect[object, Never, int]]:
        @dataclass
        class Order:
            number: int

        def act(order: Order) -> Effect[object, Never, Order]:
            return pure(order)

        # As in a module without postponed annotations.
        act.__annotations__ = {"order": Order, "return": Effect[object, Never, Order]}
        return act  # type: ignore[return-value]

    graph = AnyGraph("g").node("a", of_a_class()).node("b", of_a_class()).edge("a", "b")

    [problem] = problems(graph.entry("a").exit("b"))
    assert "named Order" in problem


def test_an_edge_may_be_added_before_its_nodes() -> None:
    graph = AnyGraph("g").exit("b").edge("a", "b").entry("a").node("b", pure).node("a", pure)

    assert graph.build().body(1).run_sync(App()) == Success(1)


def test_later_changes_do_not_affect_a_built_graph() -> None:
    description = described("a", "b", edges="ab", entry="a", exits="b")
    built = description.build()
    description.node("c", pure)

    assert built.definition.steps == ("a", "b")
    assert problems(description)
    assert built.body(1).run_sync(App()) == Success(1)


def test_a_graph_is_a_workflow_of_kind_graph() -> None:
    graph = AnyGraph("g", version="3").node("a", pure).entry("a").exit("a").build()

    assert (graph.name, graph.version, graph.kind) == ("g", "3", "graph")
    assert repr(graph) == "<Graph 'g' version '3'>"


def base() -> AnyGraph:
    return AnyGraph("g").node("a", fail).node("b", pure).node("c", pure).entry("a").exit("c")


def is_even(number: int) -> bool:
    return number % 2 == 0


def is_small(number: int) -> bool:
    return number < 10


def built(*edges: tuple[str, str, Any]) -> Graph[HasCheckpoints, Any, int]:
    graph = base()
    for edge in edges:
        graph.edge(*edge)
    return graph.build()


USUAL = (("a", "c", is_even), ("a", "b", None), ("b", "c", None))


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        pytest.param(
            (("a", "c", is_even), ("a", "b", None), ("b", "a", None)),
            ["'b -> a' was added", "'b -> c' was removed"],
            id="another-target",
        ),
        pytest.param(
            (("a", "b", is_even), ("a", "c", None), ("b", "c", None)),
            ["'a -> b if' was added", "'a -> b' was removed"],
            id="another-condition",
        ),
        pytest.param(
            (*USUAL[:1], ("b", "c", is_even), *USUAL[1:]), ["'b -> c if' was added"], id="one-more"
        ),
    ],
)
@pytest.mark.anyio
async def test_changed_edges_are_a_changed_definition(
    edges: tuple[tuple[str, str, Any], ...], said: list[str]
) -> None:
    app = App()
    await built(*USUAL).start(1, run_id="r").run(app)

    error = (await built(*edges).resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    for part in said:
        assert part in str(error)
    plan = (await built(*edges).plan("r").run(app)).unwrap()
    assert isinstance(plan.problem, DefinitionChanged)


def test_the_definition_includes_the_order_of_edges_but_not_the_names_of_conditions() -> None:
    first = (("a", "c", is_even), ("a", "b", is_small), ("b", "c", None))
    other_order = (first[1], first[0], first[2])
    other_names = (("a", "c", is_small), ("a", "b", is_even), first[2])

    assert built(*first).fingerprint == built(*other_names).fingerprint
    changed = built(*other_order).definition.changed_since(built(*first).definition, "r")
    assert changed is not None
    assert "its edges come in another order" in str(changed)


def within(inner: Any) -> Graph[HasCheckpoints, Any, int]:
    return AnyGraph("outer").node("inner", inner).entry("inner").exit("inner").build()


def test_a_changed_nested_workflow_is_a_changed_definition() -> None:
    def coded(version: str) -> Any:
        @workflow(version=version)
        def body(number: int) -> Effect[HasCheckpoints, str, int]:
            return pure(number)

        return body

    graphs = [
        within(built(*USUAL)),
        within(built(("a", "b", None), ("b", "c", None))),
        within(coded("1")),
        within(coded("2")),
    ]

    assert len({graph.fingerprint for graph in graphs}) == 4
    assert graphs[0].fingerprint == within(built(*USUAL)).fingerprint
    assert graphs[0].definition.steps == ("inner", "inner/a", "inner/b", "inner/c")


def test_the_input_is_structured_as_the_declared_state() -> None:
    @dataclass(frozen=True)
    class Draft:
        text: str

    graph = StateGraph[HasCheckpoints, Never, Draft]("g").node("a", pure).entry("a").exit("a")

    assert input_of(graph.build(), {"text": "hello"}, Checkpoints(MemoryStore())) == Draft("hello")
    with pytest.raises(ValueError, match="does not fit"):
        input_of(graph.build(), {"words": 1}, Checkpoints(MemoryStore()))
