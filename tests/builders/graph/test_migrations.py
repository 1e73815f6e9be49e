"""Migrations of a graph upgrade its states, and no other outputs of nodes and branches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, Workflow, pure, sleep, step, workflow
from effectflow.graphs import Graph, StateGraph
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, app_on, note
from tests.builders.graph.shapes import line, lined

pytestmark = pytest.mark.anyio

State = dict[str, int]


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with MemoryStore() as store:
        yield app_on(store, failing=["hold"])


@step
def quote(number: int) -> Effect[App, Broken, str]:
    return note("quote").map(lambda _: f"{number} EUR")


@step
def hold() -> Effect[App, Broken, int]:
    """Ends the run until the world has recovered."""
    return note("hold")


def total_of(state: Any) -> Any:
    """From `{"number": n}` to `{"total": n}`; fails for anything else than a state."""
    return {"total": state["number"]}


def parts(key: str) -> tuple[Any, Any]:
    """A node that adds one, after a step of its own, and a node that fails until the world recovers."""

    def add(state: State) -> Effect[App, Broken, State]:
        return quote(state[key]).map(lambda _: {key: state[key] + 1})

    def wait(state: State) -> Effect[App, Broken, State]:
        return hold().map(lambda _: {key: state[key] * 10})

    return add, wait


def versions(make: Any) -> tuple[Graph[App, Any, State], Graph[App, Any, State]]:
    """A graph whose state was `{"number": n}` in version 1, and is `{"total": n}` in version 2."""
    first = StateGraph[App, Any, State]("sums")
    second = StateGraph[App, Any, State]("sums", version="2", migrations={1: total_of})
    return make(first, "number").build(), make(second, "total").build()


async def resumed(app: App, first: Any, second: Any, done: list[str]) -> Any:
    """Resume a run of the first version with the second, which does only `done`."""
    failed = await TestClock().run(first.start({"number": 1}, run_id="r"), app)
    assert isinstance(failed, Failure)
    app.world.recover()
    app.world.done.clear()
    result = await second.resume("r").run(app)
    assert app.world.done == done
    # The output of the run, now complete, is of the second version as well.
    assert await second.resume("r").run(app) == result
    return result


async def test_steps_within_a_node_are_not_migrated(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        add, wait = parts(key)
        return lined(graph, add=add, wait=wait)

    assert await resumed(app, *versions(make), ["hold"]) == Success({"total": 20})


async def test_a_complete_run_of_the_first_version_has_its_output_upgraded(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        return graph.node("add", parts(key)[0]).entry("add").exit("add")

    first, second = versions(make)
    assert await first.start({"number": 1}, run_id="r").run(app) == Success({"number": 2})
    assert await second.resume("r").run(app) == Success({"total": 2})


async def test_branches_are_not_migrated_but_their_merged_state_is(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        wait = parts(key)[1]

        def priced(state: State) -> Effect[App, Broken, str]:
            return quote(state[key])

        def merge(state: State, gave: Mapping[str, Any]) -> State:
            assert gave == {"left": "1 EUR", "right": 7}
            return {key: state[key] + gave["right"]}

        return (
            graph.parallel("both", {"left": priced, "right": lambda _: pure(7)}, merge)
            .parallel("held", {"left": priced, "right": wait}, lambda _, gave: gave["right"])
            .edge("both", "held")
            .entry("both")
            .exit("held")
        )

    # In version 1, the branch that waits had failed, and the other branch had yielded text.
    assert await resumed(app, *versions(make), ["hold"]) == Success({"total": 80})


async def test_nodes_of_a_nested_graph_are_migrated(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        add, wait = parts(key)
        inner = line("inner", add=add, wait=wait)
        side = graph.parallel("side", {"inner": inner}, lambda _, gave: gave["inner"])
        return side.node("inner", inner).edge("side", "inner").entry("side").exit("inner")

    first, second = versions(make)
    assert await resumed(app, first, second, ["hold", "quote", "hold"]) == Success({"total": 210})


async def test_a_branch_that_was_a_complete_graph_is_upgraded(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        add, wait = parts(key)

        def wait_long(state: State) -> Effect[App, Broken, State]:
            """Fails only once the other branch is complete."""
            return sleep(60).and_then(lambda _: wait(state))

        branches = {"inner": line("inner", add=add), "wait": wait_long}
        side = graph.parallel("side", branches, lambda _, gave: gave["inner"])
        return side.entry("side").exit("side")

    assert await resumed(app, *versions(make), ["hold"]) == Success({"total": 2})


async def test_a_nested_list_of_steps_is_migrated_and_nested_code_is_not(app: App) -> None:
    def make(graph: Any, key: str) -> Any:
        add, wait = parts(key)

        @workflow(name="code")
        def code(state: State) -> Do[App, Broken, State]:
            text = yield from quote(state[key])
            yield from hold()
            return {key: state[key] + len(text)}

        listed = Workflow.of_steps("listed", [step(name="add")(add), step(name="wait")(wait)])
        return lined(graph, code=code, listed=listed)

    first, second = versions(make)
    assert await resumed(app, first, second, ["hold", "quote", "hold"]) == Success({"total": 70})


async def test_an_interrupted_list_of_steps_in_a_node_continues_from_its_upgraded_state(
    app: App,
) -> None:
    def make(graph: Any, key: str) -> Any:
        add, wait = parts(key)
        steps = [step(name="add")(add), step(name="wait")(wait)]
        return lined(graph, listed=Workflow.of_steps("listed", steps))

    assert await resumed(app, *versions(make), ["hold"]) == Success({"total": 20})
