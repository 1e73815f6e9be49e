"""In a durable run, too, a decided operator begins none of its other children, nor their next steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import Do, Effect, bracket, fail, par, par_traverse, pure, race, workflow
from effectflow.effects import first_success, from_async, par_reduce
from effectflow.graphs import StateGraph
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, both_backends
from tests.runs.journals import AnyEffect, act, journal, made_of

pytestmark = pytest.mark.anyio


def act_or_fail(item: int) -> AnyEffect:
    return fail("no") if item == 0 else act(f"item {item}")


def total(values: list[Any]) -> AnyEffect:
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
    limit=5,
)


def declined(_: str) -> Effect[App, Any, str]:
    return fail("no")


def charged(_: str) -> Effect[App, Any, str]:
    return act("charge")


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


@both_backends
@pytest.mark.parametrize("is_resource", [False, True], ids=["step", "resource"])
async def test_a_racer_that_lost_in_the_same_tick_starts_no_step(*, is_resource: bool) -> None:
    resource: AnyEffect = bracket(act("loser"), lambda _: act("release"), pure)
    # Which of them wakes first is drawn on trio, so it is tried often.
    for _ in range(20):
        go, store = anyio.Event(), MemoryStore()
        waiting: AnyEffect = from_async(lambda _, go=go: go.wait())
        loser = waiting.and_then(lambda _: resource if is_resource else act("loser"))
        made = made_of(partial(race, [waiting, loser]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.start(None, run_id="r").run, app_on(store))
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            go.set()
        lines = await journal(store)
        # The loser may have been first, and begun before the winner came.
        assert "B race[1]/loser" not in lines[lines.index("L race[0]/local") :]
