"""Changed code goes on with runs of an earlier version, where a migration or a branch says how."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow
from effectflow.checkpoint import DefinitionChanged, started_version
from effectflow.runs import StepMigration
from effectflow.stores import MemoryStore
from tests.apps import App

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
