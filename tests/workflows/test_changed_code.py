"""Changed code: a resume that leaves what is recorded is refused, and any other is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    Workflow,
    do,
    effect,
    now,
    par_traverse,
    pure,
    sleep,
    started_version,
    step,
    traverse,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import Completed, DefinitionChanged, StepInputChanged, read_entries
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on

pytestmark = pytest.mark.anyio

AnyWorkflow = Workflow[Any, Any, Any, Any]


@step
@effect(errors=Broken)
def charge(app: App, amount: int = 1) -> str:
    app.world.note("charge")
    return "charged"


@step
@effect(errors=Broken)
def ship(app: App) -> str:
    app.world.note("ship")
    return "shipped"


@step
@effect(errors=Broken)
def thank(app: App) -> str:
    app.world.note("thank")
    return "thanked"


def coded(body: Callable[[Any], Any], **options: Any) -> AnyWorkflow:
    made: AnyWorkflow = workflow(name="order", **options)(body)
    return made


def charge_and_ship(_: None) -> Do[App, Broken, str]:
    yield from charge()
    return (yield from ship())


async def changed_to(
    store: MemoryStore, after: AnyWorkflow, before: AnyWorkflow | None = None, failing: str = "ship"
) -> tuple[App, Any]:
    """Return how the changed workflow ends the run that the first one left behind, failed."""
    app = app_on(store, failing=[failing])
    first = before or coded(charge_and_ship)
    assert isinstance(await first.start(None, run_id="r").run(app), Failure)
    app.world.recover()
    app.world.done.clear()
    return app, await after.resume("r").run(app)


# What is detected.


async def test_a_renamed_step_is_named_with_the_one_in_its_place(store: MemoryStore) -> None:
    def body(_: None) -> Do[App, Broken, str]:
        yield from with_checkpointing("bill", charge.function())
        return (yield from ship())

    app, ended = await changed_to(store, coded(body))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert "at operation 1 of the body the run reached 'charge'" in str(ended.failure())
    assert "now it reaches 'bill'" in str(ended.failure())
    assert app.world.done == []


async def test_a_step_renamed_in_a_helper_is_detected(store: MemoryStore) -> None:
    @do
    def helper(name: str) -> Do[App, Broken, str]:
        return (yield from with_checkpointing(name, charge.function()))

    def calling(name: str) -> AnyWorkflow:
        def body(_: None) -> Do[App, Broken, str]:
            yield from helper(name)
            return (yield from ship())

        return coded(body)

    app, ended = await changed_to(store, calling("bill"), calling("charge"))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert app.world.done == []


async def test_a_branch_that_passes_over_a_recorded_step_is_detected(store: MemoryStore) -> None:
    app, ended = await changed_to(store, coded(lambda _: ship()))

    assert "the run reached 'charge', and now it reaches 'ship'" in str(ended.failure())
    assert app.world.done == []


async def test_a_body_that_ends_before_a_recorded_step_is_detected(store: MemoryStore) -> None:
    app, ended = await changed_to(store, coded(lambda _: charge()))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert "'ship', and now it ends before that" in str(ended.failure())
    assert app.world.done == []


async def test_steps_in_another_order_are_detected(store: MemoryStore) -> None:
    def body(_: None) -> Do[App, Broken, str]:
        yield from ship()
        return (yield from charge())

    app, ended = await changed_to(store, coded(body))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert app.world.done == []


async def test_an_item_that_does_not_come_again_is_detected(store: MemoryStore) -> None:
    def over(names: list[str]) -> AnyWorkflow:
        def body(_: None) -> Do[App, Broken, str]:
            yield from par_traverse(names, lambda _: charge(), key=str)
            return (yield from ship())

        return coded(body)

    app, ended = await changed_to(store, over(["b"]), over(["a", "b"]))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert "'par_traverse[a]'" in str(ended.failure())
    assert app.world.done == []


async def test_an_item_without_a_key_is_known_by_its_digest(store: MemoryStore) -> None:
    def over(names: list[str]) -> AnyWorkflow:
        def body(_: None) -> Do[App, Broken, str]:
            yield from par_traverse(names, lambda _: charge())
            return (yield from ship())

        return coded(body)

    app, ended = await changed_to(store, over(["b", "a"]), over(["a", "b"]))

    assert isinstance(ended.failure(), StepInputChanged)
    assert "key=" in str(ended.failure())
    assert app.world.done == []


async def test_a_refused_resume_changes_nothing(store: MemoryStore) -> None:
    await changed_to(store, coded(lambda _: pure("nothing")))
    before = await store.read("r")
    info = await store.info("r")

    ended = await coded(lambda _: ship()).resume("r").run(app_on(store))

    assert isinstance(ended.failure(), DefinitionChanged)
    assert await store.read("r") == before
    assert await store.info("r") == info


async def test_a_plan_tells_that_a_resume_would_be_refused(store: MemoryStore) -> None:
    after = coded(lambda _: ship())
    app, ended = await changed_to(store, after)

    plan = (await after.plan("r").run(app)).unwrap()

    assert isinstance(plan.problem, DefinitionChanged)
    assert str(plan.problem) == str(ended.failure())
    assert plan.start == ()


async def test_a_defect_is_raised_as_itself(store: MemoryStore) -> None:
    def body(_: None) -> Do[App, Broken, str]:
        yield from pure(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await changed_to(store, coded(body))


# What is not.


@do
def charging_first() -> Do[App, Broken, str]:
    yield from charge()
    return (yield from ship())


def with_more_steps_after_the_frontier(_: None) -> Do[App, Broken, str]:
    yield from charge()
    shipped = yield from ship()
    yield from thank()
    return shipped


def in_a_helper(_: None) -> Do[App, Broken, str]:
    return (yield from charging_first())


def with_other_things_between_steps(_: None) -> Do[App, Broken, str]:
    yield from now()
    yield from sleep(0)
    yield from charge()
    return (yield from ship())


def in_a_loop(_: None) -> Do[App, Broken, str]:
    steps: list[Effect[App, Broken, str]] = [charge(), ship()]
    ended = yield from traverse(steps, lambda each: each)
    return ended[-1]


@pytest.mark.parametrize(
    "body",
    [
        with_more_steps_after_the_frontier,
        in_a_helper,
        with_other_things_between_steps,
        in_a_loop,
    ],
    ids=lambda body: body.__name__,
)
async def test_a_refactoring_that_keeps_the_steps_is_accepted(
    store: MemoryStore, body: Callable[[Any], Any]
) -> None:
    app, ended = await changed_to(store, coded(body))

    assert ended == Success("shipped")
    assert app.world.done[:1] == ["ship"]


async def test_a_failed_step_of_a_handler_may_be_replaced_by_none(store: MemoryStore) -> None:
    """The failure that led to `thank` is settled, so only what comes after `thank` may change."""

    def before(_: None) -> Do[App, Broken, str]:
        yield from charge().result()
        yield from thank()
        return (yield from ship())

    def after(_: None) -> Do[App, Broken, str]:
        failed = yield from charge().result()
        yield from thank()
        return f"without {failed.failure()}"

    app = app_on(store, failing=["charge", "thank#1"])
    await coded(before).start(None, run_id="r").run(app)
    app.world.recover()

    assert await coded(after).resume("r").run(app) == Success("without charge#1")


async def test_a_step_may_be_inserted_for_runs_that_start_later(store: MemoryStore) -> None:
    def body(_: None) -> Do[App, Broken, str]:
        version = yield from started_version()
        if version != "1":
            yield from thank()
        yield from charge()
        return (yield from ship())

    after = coded(body, version="2", migrations={1: lambda state: state})
    app, ended = await changed_to(store, after)
    assert ended == Success("shipped")
    assert app.world.done == ["ship"]

    assert await after.start(None, run_id="later").run(app) == Success("shipped")
    assert app.world.done == ["ship", "thank", "charge", "ship"]


# What force=True does.


async def test_force_continues_and_later_resumes_need_no_force(store: MemoryStore) -> None:
    def body(_: None) -> Do[App, Broken, str]:
        yield from thank()
        return (yield from ship())

    after = coded(body)
    app, ended = await changed_to(store, after)
    assert isinstance(ended.failure(), DefinitionChanged)

    app.world.failing.add("ship")
    assert isinstance((await after.resume("r", force=True).run(app)).failure(), Broken)
    app.world.recover()
    app.world.done.clear()

    assert await after.resume("r").run(app) == Success("shipped")
    assert app.world.done == ["ship"]
    completed = [e.step for e in await read_entries(store, "r") if isinstance(e, Completed)]
    assert completed == ["charge", "thank", "ship"]


# The identity of a step is its name.


async def test_two_functions_that_give_one_flow_steps_of_one_name_are_an_error(
    store: MemoryStore,
) -> None:
    @step(name="charge")
    def other() -> Effect[App, Broken, str]:
        return pure("other")

    def body(_: None) -> Do[App, Broken, str]:
        yield from charge()
        return (yield from other())

    with pytest.raises(TypeError, match="two functions give steps of the name 'charge'"):
        await coded(body).start(None).run(app_on(store))


async def test_closures_of_one_function_count_as_one(store: MemoryStore) -> None:
    def charging(amount: int) -> Effect[App, Broken, int]:
        @step
        def pay() -> Effect[App, Broken, int]:
            return pure(amount)

        return pay()

    def body(_: None) -> Do[App, Broken, int]:
        return (yield from charging(1)) + (yield from charging(2))

    assert await coded(body).start(None).run(app_on(store)) == Success(3)
