"""In a durable run, too, a decided operator starts none of its other children."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    MapReduce,
    StateGraph,
    fail,
    first_success,
    par,
    par_reduce,
    par_traverse,
    pure,
    race,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, note

pytestmark = pytest.mark.anyio


@step
def act(action: str) -> Effect[App, Broken, int]:
    return note(action)


def act_or_fail(item: int) -> Effect[App, Any, int]:
    return fail("no") if item == 0 else act(f"item {item}")


def total(values: list[int]) -> Effect[object, Any, int]:
    return pure(sum(values))


@workflow
def in_par(_: str) -> Do[App, Any, object]:
    return (yield from par(fail("no"), act("charge"), act("refund")))


@workflow
def in_a_race(_: str) -> Do[App, Any, object]:
    return (yield from race([pure(0), act("charge")]))


@workflow
def in_first_success(_: str) -> Do[App, Any, object]:
    return (yield from first_success([fail("no"), pure(0), act("charge")]))


@workflow
def in_a_traversal(_: str) -> Do[App, Any, object]:
    return (yield from par_traverse(range(5), act_or_fail, key=str))


@workflow
def in_a_reduction(_: str) -> Do[App, Any, object]:
    return (yield from par_reduce(range(5), act_or_fail, total, limit=5))


in_a_job = MapReduce(
    "in_a_job",
    items=lambda _: range(5),
    map=act_or_fail,
    reduce=total,
    key=str,
    max_parallel=5,
)


def declined(_: str) -> Effect[App, Any, str]:
    return fail("no")


def charged(_: str) -> Effect[App, Any, str]:
    return act("charge").map(str)


in_a_graph = (
    StateGraph[App, Any, str]("in_a_graph")
    .parallel(
        "both",
        {"a": declined, "b": charged},
        lambda state, _: state,
    )
    .entry("both")
    .exit("both")
    .build()
)


@pytest.mark.parametrize(
    "flow",
    [in_par, in_a_race, in_first_success, in_a_traversal, in_a_reduction, in_a_job, in_a_graph],
    ids=lambda flow: flow.name,
)
async def test_what_was_not_started_before_the_decision_is_not_started(
    store: MemoryStore, flow: Any
) -> None:
    for number in range(5):
        app = app_on(store)
        result = await flow.start("input", run_id=f"r{number}").run(app)

        assert isinstance(result, Success) == (flow in (in_a_race, in_first_success))
        assert app.world.done == []
