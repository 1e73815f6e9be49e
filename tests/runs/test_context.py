"""What a caller attaches to a run is known wherever the run is, and whenever it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, Effect, Workflow, par_traverse, step, workflow
from effectflow.checkpoint import NotSerializable, RunConflict, read_checkpoint, run_context
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore, SqliteStore
from tests.apps import App, app_on, last

pytestmark = pytest.mark.anyio

CONTEXT: dict[str, object] = {"tenant": "acme", "user": 7, "trace": {"id": "4bf9", "flags": [1]}}


def tenant() -> Effect[App, str, str]:
    return run_context().map(lambda context: str(context.get("tenant")))


@step
def tenant_in_step(name: str) -> Effect[App, str, str]:
    return tenant().map(lambda found: f"{name}: {found}")


@workflow
def everywhere(_: None) -> Do[App, str, list[str]]:
    before = yield from tenant_in_step("before")
    yield from last()
    between = yield from tenant()
    branches = yield from par_traverse(["a", "b"], tenant_in_step, key=str)
    return [before, between, *branches]


EVERYWHERE = ["before: acme", "acme", "a: acme", "b: acme"]


async def test_the_context_is_restored_by_a_resume_without_being_passed_again(
    tmp_path: Path,
) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        failed = everywhere.start(None, run_id="r", context=CONTEXT)
        assert (await failed.run(app_on(store, failing=["last"]))).failure() == "crash here"

    async with SqliteStore(tmp_path / "runs.db") as store:
        assert (await read_checkpoint(store, "r")).context == CONTEXT
        assert await everywhere.resume("r").run(app_on(store)) == Success(EVERYWHERE)


async def test_starting_a_run_again_continues_with_the_context_that_it_has() -> None:
    app = app_on(MemoryStore(), failing=["last"])
    await everywhere.start(None, run_id="r", context=CONTEXT).run(app)
    app.world.recover()

    again = everywhere.start(None, run_id="r", context={"tenant": "somebody else"})
    assert await again.run(app) == Success(EVERYWHERE)


async def test_nodes_branches_and_workflows_within_read_the_context_of_the_run() -> None:
    def merge(before: list[str], found: Mapping[str, str]) -> list[str]:
        return [*before, *found.values()]

    graph = (
        StateGraph[App, str, list[str]]("graph")
        .node("read", lambda _: tenant().map(lambda found: [f"node: {found}"]))
        .parallel("branches", {"x": lambda _: tenant_in_step("x")}, merge)
        .node("within", Workflow.of_steps("within", [append_tenant]))
    )
    graph.edge("read", "branches").edge("branches", "within").entry("read").exit("within")
    found = await graph.build().start([], context=CONTEXT).run(App())
    assert found == Success(["node: acme", "x: acme", "list: acme"])


def append_tenant(found: list[str]) -> Effect[App, str, list[str]]:
    return tenant_in_step("list").map(lambda more: [*found, more])


@workflow
def seen(_: None) -> Do[App, str, dict[str, object]]:
    return dict((yield from run_context()))


async def test_later_changes_by_the_caller_do_not_affect_the_run() -> None:
    context: dict[str, Any] = {"tags": ["a"]}

    @workflow
    def changed_meanwhile(_: None) -> Do[App, str, object]:
        context["tags"].append("b")
        context["more"] = 1
        return dict((yield from run_context()))

    assert await changed_meanwhile.start(None, context=context).run(App()) == Success(
        {"tags": ["a"]}
    )


async def test_the_context_cannot_be_changed_by_a_step() -> None:
    @workflow
    def writing(_: None) -> Do[App, str, None]:
        found: Any = yield from run_context()
        found["tenant"] = "somebody else"

    with pytest.raises(TypeError, match="does not support item assignment"):
        await writing.start(None, context=CONTEXT).run(App())


async def test_values_come_back_type_for_type() -> None:
    context = {"at": datetime(2026, 1, 2, tzinfo=UTC), "limit": Decimal("1.10"), "ids": (1, 2)}

    assert await seen.start(None, context=context).run(App()) == Success(context)


async def test_a_context_that_is_not_plain_data_is_rejected_and_nothing_is_started() -> None:
    app = App()

    error = (await seen.start(None, context={"app": app}).run(app)).failure()

    assert isinstance(error, NotSerializable)
    assert error.path.startswith("context: $")
    assert await app.checkpoints.store.find() == []


async def test_without_a_context_and_outside_a_run_it_is_empty() -> None:
    assert await seen.start(None).run(App()) == Success({})
    assert await run_context().map(dict).run(None) == Success({})
    assert await seen.body(None).run(App()) == Success({})


async def test_another_workflow_inside_the_run_has_its_context() -> None:
    @workflow
    def calling(_: None) -> Do[App, Any, dict[str, object]]:
        return (yield from seen.call(None))

    assert await calling.start(None, context=CONTEXT).run(App()) == Success(CONTEXT)


async def test_a_run_that_a_step_drives_inherits_the_context_unless_it_has_its_own() -> None:
    @step
    def starting() -> Do[App, Any, list[dict[str, object]]]:
        inherited = yield from seen.start(None, run_id="child")
        own = yield from seen.start(None, context={"tenant": "another"})
        none = yield from seen.start(None, context={})
        return [inherited, own, none]

    @workflow
    def outer(_: None) -> Do[App, Any, list[dict[str, object]]]:
        return (yield from starting())

    app = App()
    assert await outer.start(None, context=CONTEXT).run(app) == Success(
        [CONTEXT, {"tenant": "another"}, {}]
    )
    assert (await read_checkpoint(app.checkpoints.store, "child")).context == CONTEXT


async def test_another_context_does_not_make_it_another_run_and_another_input_does() -> None:
    app = App()
    await everywhere.start(None, run_id="r", context=CONTEXT).run(app)

    other: Any = "another input"
    assert await everywhere.start(None, run_id="r").run(app) == Success(EVERYWHERE)
    assert isinstance((await everywhere.start(other, run_id="r").run(app)).failure(), RunConflict)
