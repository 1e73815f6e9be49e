"""Runs of an earlier version of a workflow go on in a later one, with what they saved upgraded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, Workflow, effect, now, par_traverse, step, workflow
from effectflow.checkpoint import (
    CheckpointError,
    DefinitionChanged,
    ResumePlan,
    read_checkpoint,
    read_entries,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Broken

pytestmark = pytest.mark.anyio

State = dict[str, Any]


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with MemoryStore() as store:
        yield App(Checkpoints(store))


def stage(name: str, change: Callable[[State], State]) -> Any:
    """A step that changes the state, unless it fails."""

    @step(name=name)
    @effect(errors=Broken)
    def perform(app: App, state: State) -> Any:
        app.world.note(name)
        return change(state)

    return perform


def priced(version: str, **options: Any) -> Workflow[App, Broken, State, State]:
    """A workflow whose state had a `price` in version 1, in version 2 `cents`, and in 3 a `currency`."""
    match version:
        case "1":
            take = stage("take", lambda state: {"price": state["price"] * 2})
            send = stage("send", lambda state: {"price": state["price"] + 1})
        case "2":
            take = stage("take", lambda state: {"cents": state["cents"] * 2})
            send = stage("send", lambda state: {"cents": state["cents"] + 100})
        case _:
            take = stage("take", lambda state: state | {"cents": state["cents"] * 2})
            send = stage("send", lambda state: state | {"cents": state["cents"] + 100})
    thank = stage("thank", lambda state: state)
    stages = [take, send] if version == "1" else [take, send, thank]
    return Workflow.of_steps("sale", stages, version=version, **options)


def to_cents(state: State) -> State:
    state["cents"] = state.pop("price") * 100
    return state


def with_currency(state: State) -> State:
    return {**state, "currency": "EUR"}


first = priced("1")
second = priced("2", migrations={1: to_cents})
third = priced("3", migrations={1: to_cents, 2: with_currency})


async def test_a_run_of_an_earlier_version_continues_upgraded(app: App) -> None:
    app.world.failing.add("send")
    await first.start({"price": 5}, run_id="r").run(app)
    assert isinstance((await priced("2").resume("r").run(app)).failure(), DefinitionChanged)

    app.world.recover()
    plan = await second.plan("r").run_or_raise(app)
    assert plan == ResumePlan(("send",), retry=("send",), skip=("take",))
    assert await second.resume("r").run(app) == Success({"cents": 1100})
    assert app.world.done == ["take", "send", "send", "thank"]


async def test_a_run_may_be_several_versions_behind(app: App) -> None:
    app.world.failing.add("send")
    await first.start({"price": 5}, run_id="r").run(app)

    app.world.recover()
    assert await third.resume("r").run(app) == Success({"cents": 1100, "currency": "EUR"})


async def test_what_the_later_version_saved_is_not_upgraded_again(app: App) -> None:
    app.world.failing.add("send")
    await first.start({"price": 5}, run_id="r").run(app)
    app.world.failing = {"thank"}
    await second.resume("r").run(app)
    assert app.world.done == ["take", "send", "send", "thank"]

    app.world.recover()
    assert await second.resume("r").run(app) == Success({"cents": 1100})
    assert app.world.done == ["take", "send", "send", "thank", "thank"]
    assert (await read_checkpoint(app.checkpoints.store, "r")).definition == second.definition
    # The next version takes over what two earlier ones have saved.
    assert await third.resume("r").run(app) == Success({"cents": 1100, "currency": "EUR"})


async def test_starting_a_known_run_again_compares_the_upgraded_input(app: App) -> None:
    await first.start({"price": 5}, run_id="r").run(app)

    assert await second.start({"cents": 500}, run_id="r").run(app) == Success({"cents": 1100})
    assert isinstance(
        (await second.start({"cents": 600}, run_id="r").run(app)).failure(), CheckpointError
    )


async def test_a_migration_that_fails_says_where_and_changes_nothing(app: App) -> None:
    app.world.failing.add("send")
    await first.start({"price": 5}, run_id="r").run(app)
    before = await read_entries(app.checkpoints.store, "r")
    careless = priced("2", migrations={1: lambda state: state["cost"]})

    with pytest.raises(KeyError) as caught:
        await careless.resume("r").run(app)

    assert any("migration of the input of run 'r'" in note for note in caught.value.__notes__)
    assert await read_entries(app.checkpoints.store, "r") == before


@pytest.mark.parametrize(
    ("version", "migrations"),
    [
        ("two", {1: to_cents}),
        ("1", {1: to_cents}),
        ("3", {1: to_cents}),
        ("4", {1: to_cents, 3: with_currency}),
        ("2", {2: to_cents}),
    ],
)
def test_migrations_must_lead_to_the_version(version: str, migrations: Any) -> None:
    with pytest.raises(ValueError, match="'sale'"):
        priced(version, migrations=migrations)


async def test_outputs_of_steps_within_listed_steps_are_not_migrated(app: App) -> None:
    count = stage("count", lambda state: state)

    def taking(key: str) -> Any:
        def take(state: State) -> Effect[App, Broken, State]:
            return count({"items": state[key]}).map(lambda counted: {key: counted["items"]})

        return take

    def selling(version: str, key: str, **options: Any) -> Workflow[App, Broken, State, State]:
        send = stage("send", lambda state: state)
        steps = [step(name="take")(taking(key)), send]
        return Workflow.of_steps("sale", steps, version=version, **options)

    app.world.failing.add("send")
    await selling("1", "price").start({"price": 5}, run_id="r").run(app)
    app.world.recover()

    later = selling("2", "cents", migrations={1: to_cents})
    assert await later.resume("r").run(app) == Success({"cents": 500})
    assert app.world.done == ["count", "send", "send"]


async def test_of_code_a_migration_is_given_all_that_steps_gave_at_any_depth(app: App) -> None:
    inner = stage("inner", lambda state: {"is": "inner"})

    def none_of(state: State) -> Any:
        return None

    nothing = stage("nothing", none_of)

    @step
    def outer(state: State) -> Effect[App, Broken, State]:
        return inner(state).map(lambda _: {"is": "outer"})

    def body(state: State) -> Do[App, Broken, State]:
        yield from par_traverse([1, 2], lambda _: inner({}), key=str)
        yield from outer(state)
        yield from nothing(state)
        yield from now()
        return {"is": "output"}

    await workflow(name="code")(body).start({"is": "input"}, run_id="r").run(app)
    given: list[object] = []

    def note(state: Any) -> Any:
        given.append(state["is"])
        return state

    later = workflow(name="code", version="2", migrations={1: note})(body)

    assert await later.resume("r").run(app) == Success({"is": "output"})
    assert given[0] == "input"
    assert sorted(map(str, given[1:-1])) == ["inner", "inner", "inner", "outer"]
    assert given[-1] == "output"


@dataclass(frozen=True)
class Cart:
    items: int


@dataclass(frozen=True)
class Basket:
    goods: int


@step(name="fill")
@effect(errors=Broken)
def fill_cart(app: App, cart: Cart) -> Cart:
    app.world.note("fill")
    return Cart(cart.items + 1)


@step(name="fill")
@effect(errors=Broken)
def fill_basket(app: App, basket: Basket) -> Basket:
    app.world.note("fill")
    return Basket(basket.goods + 1)


@step
@effect(errors=Broken)
def pay(app: App, amount: int) -> int:
    app.world.note("pay")
    return amount


@workflow(name="shop")
def old(cart: Cart) -> Do[App, Broken, int]:
    filled = yield from fill_cart(cart)
    return (yield from pay(filled.items))


def to_basket(state: Any) -> Any:
    match state:
        case {"$object": ["Cart", {"items": items}]}:
            return {"$object": ["Basket", {"goods": items}]}
        case other:
            return other


@workflow(name="shop", version="2", migrations={1: to_basket})
def new(basket: Basket) -> Do[App, Broken, int]:
    filled = yield from fill_basket(basket)
    return (yield from pay(filled.goods))


async def test_a_class_may_be_renamed_and_steps_are_not_run_again(app: App) -> None:
    app.world.failing.add("pay")
    assert isinstance(await old.start(Cart(2), run_id="r").run(app), Failure)
    app.world.recover()

    assert await new.resume("r").run(app) == Success(3)
    assert app.world.done == ["fill", "pay", "pay"]


async def test_a_changed_run_that_was_forced_on_belongs_to_the_new_definition(app: App) -> None:
    def noted(state: State) -> Effect[App, Broken, State]:
        return stage("note", lambda state: state)(state)

    longer = Workflow.of_steps("sale", [stage("take", lambda state: state), noted])
    shorter = Workflow.of_steps("sale", [stage("take", lambda state: state)])
    app.world.failing.add("take")
    await shorter.start({}, run_id="r").run(app)
    assert isinstance((await longer.resume("r").run(app)).failure(), DefinitionChanged)
    assert isinstance((await longer.resume("r", force=True).run(app)).failure(), Broken)

    app.world.recover()
    assert isinstance((await shorter.resume("r").run(app)).failure(), DefinitionChanged)
    assert await longer.resume("r").run(app) == Success({})
