"""Changed code goes on with runs of an earlier version, where a migration or a branch says how."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, Workflow, fail, pure, step, workflow
from effectflow.checkpoint import (
    DefinitionChanged,
    find_run,
    read_entries,
    started_version,
    verify_run,
)
from effectflow.observe.recorded_run import read_recorded
from effectflow.runs import StepMigration
from effectflow.stores import MemoryStore
from tests.apps import App, app_on
from tests.runs.journals import cut

pytestmark = pytest.mark.anyio


@step
def reserve(item: str) -> Effect[object, str, str]:
    return pure(f"{item} is reserved")


@step
def notify(item: str) -> Effect[object, str, None]:
    return pure(None)


@step
def charge(item: str) -> Effect[object, str, str]:
    return pure(f"{item} is charged")


@step(name="pay")
def pay(item: str) -> Effect[object, str, str]:
    return fail("charged twice")


@step
def ship(item: str) -> Effect[object, str, str]:
    return fail("no carrier")


@step(name="ship")
def ship_again(item: str) -> Effect[object, str, str]:
    return pure(f"{item} is shipped")


@workflow(name="order")
def order(item: str) -> Do[App, str, list[str]]:
    reserved = yield from reserve(item)
    yield from notify(item)
    charged = yield from charge(item)
    return [reserved, charged, (yield from ship(item))]


async def started() -> App:
    app = App(Checkpoints(MemoryStore()))
    assert await order.start("cap", run_id="r").run(app) == Failure("no carrier")
    return app


DONE = Success(["cap is reserved", "cap is charged", "cap is shipped"])


async def test_a_migration_removes_and_renames_steps() -> None:
    changes = StepMigration(removes=("notify",), renames={"charge": "pay"})

    @workflow(name="order", version="2", migrations={1: changes})
    def changed(item: str) -> Do[App, str, list[str]]:
        reserved = yield from reserve(item)
        paid = yield from pay(item)
        return [reserved, paid, (yield from ship_again(item))]

    app = await started()
    assert (await changed.plan("r").run(app)).unwrap().start == ("ship",)
    assert await changed.resume("r").run(app) == DONE


async def test_the_same_change_without_a_migration_is_rejected() -> None:
    @workflow(name="order")
    def changed(item: str) -> Do[App, str, Any]:
        reserved = yield from reserve(item)
        return [reserved, (yield from charge(item))]

    app = await started()
    refused = (await changed.resume("r").run(app)).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "'notify'" in str(refused)
    assert "'charge'" in str(refused)


async def test_a_branch_on_the_started_version_inserts_a_step_for_new_runs_only() -> None:
    @workflow(name="order", version="2", migrations={1: StepMigration()})
    def changed(item: str) -> Do[App, str, list[str]]:
        reserved = yield from reserve(item)
        yield from notify(item)
        if (yield from started_version()) != "1":
            yield from notify(item)
        charged = yield from charge(item)
        return [reserved, charged, (yield from ship_again(item))]

    app = await started()
    assert await changed.resume("r").run(app) == DONE
    assert await changed.start("cap", run_id="new").run(app) == DONE


async def test_what_people_give_a_step_of_an_earlier_version_is_not_migrated() -> None:
    """Its path may be the recorded one or the present one."""

    def change(state: dict[str, int]) -> dict[str, int]:
        return {**state, "migrations": state.get("migrations", 0) + 1}

    @step
    def first(state: dict[str, int]) -> Effect[App, str, dict[str, int]]:
        return pure(state)

    @step
    def second(state: dict[str, int]) -> Effect[App, str, dict[str, int]]:
        return fail("closed")

    @step(name="last")
    def renamed(state: dict[str, int]) -> Effect[App, str, dict[str, int]]:
        return fail("closed")

    before = Workflow.of_steps("total", [first, second])
    migration = StepMigration(change, renames={"second": "last"})
    after = Workflow.of_steps("total", [first, renamed], version="2", migrations={1: migration})
    for path in ("second", "last"):
        app = App(Checkpoints(MemoryStore()))
        assert await before.start({"sum": 1}, run_id="r").run(app) == Failure("closed")
        assert await after.fork("r", at=path, new_run_id="forked").run(app) == Success("forked")
        assert await after.resume("forked").run(app) == Failure("closed")

        await after.complete_step("r", path, {"sum": 5}).run_or_raise(app)

        async with app.checkpoints.store as store:
            info = await find_run(store, "r")
        assert info is not None
        assert info.summary.details.version == "2"
        recorded = await read_recorded(app.checkpoints, "r")
        assert [one.path for one in recorded.operations if one.is_open] == []
        assert await after.resume("r").run(app) == Success({"sum": 5})


def shop(outer: str, inner: str, **options: Any) -> Any:
    """Return a workflow with a step that has steps, which fail until they have another name."""

    @step(name=inner)
    def last(item: str) -> Effect[object, str, str]:
        return fail("closed") if inner == "last" else pure(f"{item} is shipped")

    @step(name=outer)
    def both(item: str) -> Do[App, str, str]:
        yield from reserve(item)
        return (yield from last(item))

    @workflow(name="shop", **options)
    def body(item: str) -> Do[App, str, str]:
        return (yield from both(item))

    return body


async def test_a_step_that_was_renamed_while_it_was_in_progress_leaves_a_journal_that_can_be_read() -> (
    None
):
    before = shop("whole", "last")
    renames = {1: StepMigration(renames={"whole": "all", "last": "end"})}
    after = shop("all", "end", version="2", migrations=renames)
    whole = App(Checkpoints(MemoryStore()))
    assert await before.start("cap", run_id="r").run(whole) == Failure("closed")
    length = len(await read_entries(whole.checkpoints.store, "r"))
    for kept in range(2, length + 1):
        app = app_on(await cut(whole.checkpoints.store, kept))
        assert await after.resume("r").run(app) == Success("cap is shipped")
        store = app.checkpoints.store
        assert (await verify_run(store, "r")).problem is None
        for later in range(kept + 1, len(await read_entries(store, "r"))):
            crashed = app_on(await cut(store, later))
            assert await after.resume("r").run(crashed) == Success("cap is shipped")
        recorded = await read_recorded(app.checkpoints, "r")
        assert [one.state for one in recorded.operations if one.path == "all"] == ["completed"]
