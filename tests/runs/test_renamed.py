"""Runs that are recorded under the former names of workflows and steps continue."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    App as Service,
    Checkpoints,
    Do,
    Effect,
    Worker,
    Workflow,
    current_step,
    par,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    ChildStarted,
    Completed,
    RunStatus,
    find_run,
    read_entries,
    verify_run,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import check_runs
from tests.apps import App, World, app_on, note
from tests.runs.journals import AnyEffect, AnyWorkflow, act, cut, in_turn, made_of, resume, start

pytestmark = pytest.mark.anyio


@step
def charge(amount: int) -> Effect[App, Exception, str]:
    return _paid(amount)


@step(name="bill", was="charge")
def bill(amount: int) -> Effect[App, Exception, str]:
    return _paid(amount)


@step(name="pay", was=("charge", "bill"))
def pay(amount: int) -> Effect[App, Exception, str]:
    return _paid(amount)


def _paid(amount: int) -> Effect[App, Exception, str]:
    return note(f"{amount}").map(lambda _: current_step().idempotency_key)


Payment = Any


def paying(by: Payment) -> AnyEffect:
    """Pay three times, twice of these in branches, and once within another step."""
    return in_turn(by(1), par(by(2), by(3)), made_of(lambda: by(4), "inner").call(None), by(5))


async def test_a_renamed_step_continues_where_it_is_recorded_and_keeps_its_idempotency_key() -> (
    None
):
    store = MemoryStore()
    whole = await start(made_of(lambda: paying(charge)), app_on(store))
    assert whole == Success("r:charge#2")
    for kept in range(2, len(await read_entries(store, "r"))):
        left = await cut(store, kept)
        entries = await read_entries(left, "r")
        ended = [one for one in entries if isinstance(one, Completed) and "charge" in one.step]
        app = app_on(left)

        result = await resume(made_of(lambda: paying(bill)), app)

        assert result.unwrap() in ("r:charge#2", "r:bill#2", "r:bill")
        assert len(app.world.done) == 5 - len(ended)
        # And renamed again, after each entry of that life.
        for later in range(kept, len(await read_entries(left, "r"))):
            again = await resume(made_of(lambda: paying(pay)), app_on(await cut(left, later)))
            assert again.unwrap().startswith("r:")


async def test_a_step_that_is_in_progress_is_executed_again_under_its_recorded_name() -> None:
    store = MemoryStore()
    await start(made_of(lambda: charge(1)), app_on(store))

    result = await resume(made_of(lambda: bill(1)), app_on(left := await cut(store, 2)))

    assert result == Success("r:charge")
    steps = [one.step for one in await read_entries(left, "r") if isinstance(one, BeforeStep)]
    assert steps == ["charge", "charge"]


async def test_new_runs_record_the_new_name() -> None:
    assert await start(made_of(lambda: pay(1)), app_on(MemoryStore())) == Success("r:pay")


async def test_another_step_of_the_fiber_may_not_have_the_former_name() -> None:
    with pytest.raises(TypeError, match="two functions give the name 'charge' to steps"):
        await start(made_of(lambda: in_turn(bill(1), charge(2))), app_on(MemoryStore()))


async def test_a_list_of_steps_continues_with_a_renamed_step() -> None:
    @step
    def first(state: int) -> Effect[App, Exception, int]:
        return note("first").map(lambda _: state + 1)

    @step
    def second(state: int) -> Effect[App, Exception, int]:
        return note("second").map(lambda _: state * 10)

    @step(was="first")
    def renamed(state: int) -> Effect[App, Exception, int]:
        return first.function(state)

    store = MemoryStore()
    before = Workflow.of_steps("sum", [first, second])
    after = Workflow.of_steps("total", [renamed, second], aliases=["sum"])
    await start(before, app_on(store), input=1)

    app = app_on(left := await cut(store, 3))
    assert (await after.plan("r").run(app)).unwrap().start == ("second",)
    assert await resume(after, app) == Success(20)
    assert app.world.done == ["second"]
    assert await after.result("r").run(app_on(left)) == Success(20)


# Workflows.


def shop(name: str, aliases: tuple[str, ...] = (), **options: Any) -> AnyWorkflow:
    def body(amount: int) -> Do[App, Exception, str]:
        yield from act("reserve")
        return (yield from charge(amount))

    decorate: Any = workflow(name=name, aliases=aliases, **options)
    return decorate(body)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


async def test_a_renamed_workflow_continues_its_runs_in_a_worker(store: CheckpointStore) -> None:
    before, after, world = shop("checkout"), shop("order", ("checkout", "basket")), World()
    async with store:
        service = Service(
            [after],
            environment=lambda _: App(known, world),
            checkpoints=(known := Checkpoints(store)),
        )
        async with Worker(service) as worker:
            old = await worker.client.submit(before, 5, run_id="r")
            assert await worker.client.handle(after, "r").result(timeout=10) == Success("r:charge")
            # It is the same run, by either name.
            again = await worker.client.submit(after, 5, run_id="r")
            assert await again.result() == await old.result()

        # In stores, it keeps its name.
        info = await find_run(store, "r")
        assert info is not None
        assert (info.summary.workflow, info.summary.status) == ("checkout", RunStatus.COMPLETED)
        assert (await verify_run(store, "r")).problem is None


async def test_a_renamed_workflow_resumes_plans_and_passes_a_check() -> None:
    store = MemoryStore()
    await start(shop("checkout"), app_on(store), input=5)
    after = shop("order", ("checkout",), version="2", migrations={1: lambda state: state})
    app = app_on(left := await cut(store, 3))

    service = Service([after], environment=lambda _: app, checkpoints=Checkpoints(left))
    checked = await check_runs(service, workflows=["order"])
    assert (checked.runs, checked.all_fit) == (1, True)
    assert (await after.plan("r").run(app)).unwrap().start == ("charge",)
    assert await resume(after, app) == Success("r:charge")
    assert app.world.done == ["5"]


async def test_runs_that_have_called_or_spawned_a_renamed_workflow_continue() -> None:
    def parent(child: AnyWorkflow) -> AnyWorkflow:
        @workflow(name="parent")
        def made(_: object) -> Do[App, Exception, list[str]]:
            called = yield from child.call(1)
            spawned = yield from spawn(child, 2)
            return [called, (yield from spawned.result()), (yield from act("end"))]

        return made

    before, after = shop("checkout"), shop("order", ("checkout",))
    store = MemoryStore()
    app = app_on(store)
    service = Service(
        [parent(before), before], environment=lambda _: app, checkpoints=app.checkpoints
    )
    async with Worker(service) as worker:
        handle = await worker.client.submit(parent(before), None, run_id="r")
        whole = await handle.result(timeout=10)
    assert whole == Success(["r:checkout/charge", "r%2Fcheckout%232:charge", "end"])

    entries = await read_entries(store, "r")
    [spawned] = [number for number, one in enumerate(entries, 1) if isinstance(one, ChildStarted)]
    for kept in range(spawned, len(entries)):
        left = await cut(store, kept)
        # The spawned run.
        for info in await store.find():
            if info.run_id != "r":
                bodies = [record.body for record in await store.read(info.run_id)]
                await left.create(info.run_id, bodies, summary=info.summary)
        assert await resume(parent(after), app_on(left)) == whole


async def test_an_app_may_not_have_an_alias_that_names_two_workflows() -> None:
    with pytest.raises(ValueError, match="'checkout' is an alias of workflow 'order' of the App"):
        Service(
            [shop("order", ("checkout",)), shop("checkout")],
            environment=lambda _: app_on(MemoryStore()),
            checkpoints=Checkpoints(MemoryStore()),
        )
    with pytest.raises(TypeError, match="takes a list of names, not 'checkout'"):
        shop("order", "checkout")  # type: ignore[arg-type]
