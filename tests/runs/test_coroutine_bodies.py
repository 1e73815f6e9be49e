"""Bodies that await: `@workflow`, `@step` and `@do` on `async def`, nested anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Result, Success

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    EffectError,
    RetryPolicy,
    Signal,
    TimedOut,
    ask,
    bracket,
    compensate,
    current_step,
    do,
    effect,
    fail,
    now,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    random,
    saga,
    sleep,
    spawn,
    step,
    uuid,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointPolicy,
    CheckpointStore,
    Completed,
    DefinitionChanged,
    RunStatus,
    find_run,
    read_checkpoint,
    read_entries,
)
from effectflow.effects import asks, first_success, from_async, never
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, after, before, crash_everywhere
from tests.apps import App, Broken, Crash, World, app_on, both_backends, cut_off
from tests.service.conftest import Service
from tests.service.lives import suspended, working

pytestmark = [pytest.mark.anyio, both_backends]

pause: Signal[str] = Signal("pause", str)

POLICY = RetryPolicy.constant(0).with_max_retries(3)


class Declined(Exception):
    """The bank declines the card."""


# Steps.


async def noted(action: str) -> int:
    """Note an action in the world of the run around: code outside of steps, without a decorator."""
    app = await ask(App)
    return app.world.note(action)


@step
async def charge(amount: int) -> str:
    await noted(f"charge {amount}")
    return f"{amount} paid"


@step
async def ship(item: str) -> str:
    await noted(f"ship {item}")
    return f"{item} is on its way"


@step
@effect(errors=Declined)
async def pay(app: App, amount: int) -> str:
    """Pay by card: a step with an environment parameter and a typed failure."""
    app.world.note(f"pay {amount}")
    if amount > 100:
        raise Declined(amount)
    return f"{amount} paid by card"


@step
async def hold() -> str:
    """Never end in the first life, and at once in any other one."""
    if await noted("hold") == 1:
        await anyio.sleep_forever()
    return "held"


def made_of(body: Callable[[], Awaitable[Any]], name: str = "made") -> Any:
    """Return a workflow whose coroutine body awaits this."""

    @workflow(name=name)
    async def made(_: object) -> Any:
        return await body()

    return made


async def steps_of(store: Any, run_id: str = "r") -> list[str]:
    """Return the paths of the completed steps of a run, in order."""
    entries = await read_entries(store, run_id)
    return [entry.step for entry in entries if isinstance(entry, Completed)]


async def crashed(made: Any, store: MemoryStore, point: CrashPoint) -> World:
    """Let the process of the run `r` die at some point. Return what was done until then."""
    faulty = FaultyStore(store, [point])
    app = app_on(faulty)
    with faulty.life():
        await made.start(None, run_id="r").run(app)
    assert not faulty.unmet
    return app.world


# Workflows.


@workflow
async def checkout(cart: dict[str, int]) -> list[str]:
    return [await charge(price) for price in cart.values()]


CART = {"cap": 5, "hat": 7}


async def test_a_body_awaits_its_steps(store: MemoryStore) -> None:
    app = app_on(store)

    assert await checkout.start(CART, run_id="r").run(app) == Success(["5 paid", "7 paid"])

    assert app.world.done == ["charge 5", "charge 7"]
    assert await steps_of(store) == ["charge", "charge#2"]


async def test_a_resume_executes_no_completed_step_again(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [CrashPoint(after("charge"), is_durable=True)])
    with faulty.life():
        await checkout.start(CART, run_id="r").run(app_on(faulty))
    app = app_on(store)

    assert await checkout.resume("r").run(app) == Success(["5 paid", "7 paid"])

    assert "charge 5" not in app.world.done


async def test_a_complete_run_yields_its_recorded_result(store: MemoryStore) -> None:
    app = app_on(store)
    for _ in range(2):
        assert await checkout.start(CART, run_id="r").run(app) == Success(["5 paid", "7 paid"])

    assert app.world.done == ["charge 5", "charge 7"]


async def test_a_plan_names_the_step_that_a_resume_begins_with(store: MemoryStore) -> None:
    made = made_of(lambda: in_order(charge(5), ship("cap")))
    await crashed(made, store, CrashPoint(before("ship"), is_durable=True))
    app = app_on(store)

    plan = await made.plan("r").run_or_raise(app)

    assert (plan.start, plan.retry, plan.skip) == (("ship",), ("ship",), ("charge",))
    assert app.world.done == []


async def test_changed_code_is_refused(store: MemoryStore) -> None:
    made = made_of(lambda: in_order(charge(5), ship("cap")))
    await crashed(made, store, CrashPoint(before("ship"), is_durable=True))
    app = app_on(store)

    error = (await made_of(lambda: in_order(pay(5), ship("cap"))).resume("r").run(app)).failure()

    assert isinstance(error, DefinitionChanged)
    assert "charge" in str(error)
    assert "pay" in str(error)
    assert app.world.done == []


@do
async def in_order(*effects: Effect[Any, Any, Any]) -> list[Any]:
    return [await each for each in effects]


async def test_a_body_may_become_a_coroutine_between_two_lives(store: MemoryStore) -> None:
    @workflow(name="made")
    def generator(_: object) -> Do[App, Any, list[str]]:
        return [(yield from charge(5)), (yield from ship("cap"))]

    made = made_of(lambda: in_order(charge(5), ship("cap")))
    await crashed(generator, store, CrashPoint(before("ship"), is_durable=True))
    app = app_on(store)

    assert await made.resume("r").run(app) == Success(["5 paid", "cap is on its way"])

    assert app.world.done == ["ship cap"]


async def test_a_body_may_await_nothing(store: MemoryStore) -> None:
    @workflow
    async def trivial(number: int) -> int:
        return number + 1

    assert await trivial.start(1, run_id="r").run(app_on(store)) == Success(2)


async def test_an_effect_that_is_awaited_twice_is_two_operations(store: MemoryStore) -> None:
    @workflow
    async def twice(_: None) -> list[str]:
        charged = charge(5)
        return [await charged, await charged]

    app = app_on(store)

    assert await twice.start(None, run_id="r").run(app) == Success(["5 paid", "5 paid"])

    assert await steps_of(store) == ["charge", "charge#2"]
    assert app.world.done == ["charge 5", "charge 5"]


async def test_two_runs_at_the_same_time_do_not_mix(store: MemoryStore) -> None:
    @workflow
    async def slowly(item: str) -> list[str]:
        found: list[str] = []
        for number in range(5):
            await anyio.sleep(0.001)
            found.append(await ship(f"{item} {number}"))
        return found

    apps = {item: app_on(store) for item in ("cap", "hat", "tie")}
    async with anyio.create_task_group() as tasks:
        for item, app in apps.items():
            tasks.start_soon(slowly.start(item, run_id=item).run, app)

    for item, app in apps.items():
        assert app.world.done == [f"ship {item} {number}" for number in range(5)]
        assert len(await steps_of(store, item)) == 5


# Without an input.


@workflow
async def nightly() -> str:
    return await ship("cap")


@workflow
def nightly_in_turns() -> Do[App, Any, str]:
    return (yield from ship("cap"))


@pytest.mark.parametrize("made", [nightly, nightly_in_turns], ids=["coroutine", "generator"])
@pytest.mark.parametrize("given", [(), (None,)], ids=["nothing", "None"])
async def test_a_workflow_without_a_parameter_is_started_without_an_input(
    made: Any, given: tuple[None, ...], store: MemoryStore
) -> None:
    app = app_on(store)
    for _ in range(2):
        assert await made.start(*given, run_id="r").run(app) == Success("cap is on its way")
    assert app.world.done == ["ship cap"]


@pytest.mark.parametrize("made", [nightly, nightly_in_turns], ids=["coroutine", "generator"])
async def test_a_workflow_without_a_parameter_can_be_called_and_resumed(
    made: Any, store: MemoryStore
) -> None:
    @workflow(name="outer")
    async def outer(_: None) -> list[str]:
        return [await charge(5), await made.call(None)]

    await crashed(outer, store, CrashPoint(after("charge"), is_durable=True))
    app = app_on(store)

    assert await outer.resume("r").run(app) == Success(["5 paid", "cap is on its way"])

    assert app.world.done == ["ship cap"]


async def test_more_than_one_parameter_is_rejected_when_the_workflow_is_made() -> None:
    with pytest.raises(TypeError, match="one input"):

        @workflow  # pyright: ignore[reportCallIssue, reportArgumentType]
        async def two(item: str, price: int) -> str:
            return f"{item} for {price}"


async def test_an_async_generator_is_no_body() -> None:
    async def items(count: int) -> AsyncIterator[int]:
        yield count

    for decorate in (step, workflow, do):
        with pytest.raises(TypeError):
            decorate(items)  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_wrong_arguments_of_a_step_are_an_error_that_names_them(store: MemoryStore) -> None:
    @workflow
    async def made(_: None) -> str:
        return await charge()  # pyright: ignore[reportCallIssue]

    with pytest.raises(TypeError, match="amount"):
        await made.start(None, run_id="r").run(app_on(store))


# Effects.


@do
async def twice_in_a_coroutine(amount: int) -> list[str]:
    return [await charge(amount), await pay(amount)]


@do
def twice_in_a_generator(amount: int) -> Do[App, Declined, list[str]]:
    return [(yield from charge(amount)), (yield from pay(amount))]


@effect
async def twice_in_an_effect(app: App, amount: int) -> list[str]:
    app.world.note("effect")
    return [await charge(amount), await pay(amount)]


def twice_in_functions(amount: int) -> Effect[App, Declined, list[str]]:
    charged = charge(amount).within(App)
    return charged.and_then(lambda first: pay(amount).map(lambda second: [first, second]))


STYLES = [twice_in_a_coroutine, twice_in_a_generator, twice_in_an_effect, twice_in_functions]
style = pytest.mark.parametrize("twice", STYLES, ids=lambda twice: twice.__name__)
TWICE = ["5 paid", "5 paid by card"]


@style
async def test_an_effect_runs_in_memory(twice: Callable[[int], Any]) -> None:
    app = app_on(MemoryStore())

    assert await twice(5).run(app) == Success(TWICE)

    assert [action for action in app.world.done if action != "effect"] == ["charge 5", "pay 5"]


@style
async def test_bodies_of_any_style_may_be_nested_in_each_other(
    twice: Callable[[int], Any], store: MemoryStore
) -> None:
    @do
    async def coroutine() -> Any:
        return await twice(5)

    @do
    def generator() -> Do[Any, Any, Any]:
        return (yield from coroutine())

    @do
    async def outermost() -> Any:
        return await generator()

    app = app_on(store)

    assert await outermost().run(app) == Success(TWICE)
    assert await made_of(outermost).start(None, run_id="r").run(app) == Success(TWICE)

    assert await steps_of(store) == ["charge", "pay"]


def test_an_effect_runs_in_a_script(anyio_backend: Any) -> None:
    ran = twice_in_a_coroutine(5).run_sync(app_on(MemoryStore()), backend=anyio_backend)

    assert ran == Success(TWICE)


async def test_one_effect_can_run_many_times_and_at_the_same_time() -> None:
    app, twice = app_on(MemoryStore()), twice_in_a_coroutine(5)

    assert await par(twice, twice).run(app) == Success((TWICE, TWICE))
    assert await twice.run(app) == Success(TWICE)


async def test_the_body_of_an_effect_that_is_not_run_is_not_called() -> None:
    """And Python does not warn of a coroutine that was never awaited."""
    called: list[str] = []

    @do
    async def calling() -> None:
        called.append("called")

    made = calling()
    del made

    assert called == []


async def test_the_environment() -> None:
    @do
    async def looking() -> tuple[object, object, str]:
        return await ask(), await asks(type), await asks(lambda app: str(app))

    assert await looking().run("app") == Success(("app", str, "app"))
    assert await looking().provide("other").run("app") == Success(("other", str, "other"))
    local = looking().local(lambda app: f"{app} more")
    assert await local.run("app") == Success(("app more", str, "app more"))


async def test_an_environment_that_is_provided_for_a_part_ends_with_it(store: MemoryStore) -> None:
    inside = app_on(store)

    @do
    async def inner() -> App:
        await charge(5)
        return await ask(App)

    @workflow
    async def outer(_: None) -> list[bool]:
        found = [await inner().provide(inside) is inside]
        await ship("cap")
        return [*found, await ask(App) is inside]

    outside = app_on(store)

    assert await outer.start(None, run_id="r").run(outside) == Success([True, False])
    assert (inside.world.done, outside.world.done) == (["charge 5"], ["ship cap"])


async def test_operators_take_effects_of_coroutines_and_can_be_awaited(store: MemoryStore) -> None:
    @do
    async def quote(item: str) -> str:
        await anyio.lowlevel.checkpoint()
        return await ship(item)

    @workflow
    async def everything(_: None) -> dict[str, object]:
        return {
            "par": await par(quote("a"), charge(1)),
            "par_traverse": await par_traverse(["b", "c"], quote, key=str, limit=1),
            "par_all": await par_all([charge(2), quote("d")]),
            "race": await race([quote("e"), never()]),
            "first_success": await first_success([pay(999), quote("f")]),
            "timeout": await quote("g").timeout(60),
            "saga": await saga(compensate(charge(3), lambda _: ship("back"))),
            "bracket": await bracket(charge(4), lambda _: ship("h"), lambda _: quote("i")),
            "map": await quote("j").map(len),
            "and_then": await quote("k").and_then(lambda _: charge(5)),
            "retry": await charge(6).retry(POLICY),
            "on_exit": await quote("l").on_exit(ship("m")),
            "result": (await pay(999).result()).failure().args,
            "with_checkpointing": await with_checkpointing("outer", quote("n")),
        }

    def on_its_way(item: str) -> str:
        return f"{item} is on its way"

    assert await everything.start(None, run_id="r").run(app_on(store)) == Success(
        {
            "par": (on_its_way("a"), "1 paid"),
            "par_traverse": [on_its_way("b"), on_its_way("c")],
            "par_all": ["2 paid", on_its_way("d")],
            "race": on_its_way("e"),
            "first_success": on_its_way("f"),
            "timeout": on_its_way("g"),
            "saga": "3 paid",
            "bracket": on_its_way("i"),
            "map": len(on_its_way("j")),
            "and_then": "5 paid",
            "retry": "6 paid",
            "on_exit": on_its_way("l"),
            "result": (999,),
            "with_checkpointing": on_its_way("n"),
        }
    )


async def test_an_async_generator_of_a_body_may_await_effects(store: MemoryStore) -> None:
    async def charged() -> AsyncIterator[str]:
        for amount in (1, 2):
            yield await charge(amount)

    @workflow
    async def made(_: None) -> list[str]:
        return [f"{paid}: {await ship(paid)}" async for paid in charged()]

    app = app_on(store)

    await made.start(None, run_id="r").run_or_raise(app)

    assert app.world.done == ["charge 1", "ship 1 paid", "charge 2", "ship 2 paid"]


# Steps within the code of steps.


async def note_and_await() -> list[str]:
    await noted("outer")
    return [await charge(5), await ship("cap")]


@step(name="outer")
async def by_step() -> list[str]:
    return await note_and_await()


@step(name="outer")
@effect
async def by_effect(app: App) -> list[str]:
    assert app is await ask(App)
    return await note_and_await()


@step(name="outer")
@do
async def by_do() -> list[str]:
    return await note_and_await()


@step(name="outer")
def by_function() -> Effect[App, Any, list[str]]:
    return from_async(lambda _: note_and_await())


def by_combinator() -> Effect[App, Any, list[str]]:
    return with_checkpointing("outer", from_async(lambda _: note_and_await()))


OUTER = [by_step, by_effect, by_do, by_function, by_combinator]
outer_step = pytest.mark.parametrize("outer", OUTER, ids=lambda outer: outer.__name__)


@outer_step
async def test_a_step_that_is_awaited_in_the_code_of_a_step_is_recorded(
    outer: Callable[[], Any], store: MemoryStore
) -> None:
    made = made_of(outer)

    await made.start(None, run_id="r").run_or_raise(app_on(store))

    assert await steps_of(store) == ["outer/charge", "outer/ship", "outer"]


@outer_step
async def test_a_step_that_is_awaited_in_the_code_of_a_step_is_not_executed_again(
    outer: Callable[[], Any], store: MemoryStore
) -> None:
    made = made_of(outer)
    first = await crashed(made, store, CrashPoint(before("ship"), is_durable=True))
    assert first.done == ["outer", "charge 5"]
    app = app_on(store)

    assert await made.resume("r").run(app) == Success(["5 paid", "cap is on its way"])

    assert app.world.done == ["outer", "ship cap"]


@outer_step
async def test_a_generator_body_with_such_a_step_ends_the_same_wherever_it_crashes(
    outer: Callable[[], Any],
) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        return (yield from outer())

    await died_everywhere(made)


async def test_the_info_of_a_step() -> None:
    @step
    async def outer() -> list[str]:
        keys = [current_step().idempotency_key, await inner(), current_step().idempotency_key]
        await anyio.lowlevel.checkpoint()
        return [*keys, current_step().step]

    @step
    async def inner() -> str:
        return current_step().idempotency_key

    made = made_of(outer)

    keys = await made.start(None, run_id="r").run_or_raise(app_on(MemoryStore()))

    assert keys == ["r:outer", "r:outer/inner", "r:outer", "outer"]


# Failures.


async def test_a_failure_is_raised_and_can_be_caught(store: MemoryStore) -> None:
    @workflow
    async def forgiving(_: None) -> str:
        try:
            return await pay(999)
        except Declined as error:
            return f"declined: {error.args[0]}"

    assert await forgiving.start(None, run_id="r").run(app_on(store)) == Success("declined: 999")


async def test_a_failure_that_was_caught_is_raised_again_by_a_resume(store: MemoryStore) -> None:
    @workflow
    async def forgiving(_: None) -> list[str]:
        try:
            await pay(999)
        except Declined as error:
            return [str(error), await ship("an apology"), await ship("more")]
        raise AssertionError

    await crashed(forgiving, store, CrashPoint(before("ship#2"), is_durable=True))
    app = app_on(store)

    result = await forgiving.resume("r").run(app)

    assert result.unwrap()[0] == "999"
    assert app.world.done == ["ship more"]


async def test_a_failure_that_is_not_caught_is_the_failure_of_the_run(store: MemoryStore) -> None:
    made, app = made_of(lambda: in_order(pay(999))), app_on(store)

    result = await made.start(None, run_id="r").run(app)

    assert isinstance(result.failure(), Declined)
    # It is tried again, as nothing followed from it.
    result = await made.resume("r").run(app)
    assert isinstance(result.failure(), Declined)
    assert app.world.done == ["pay 999", "pay 999"]


async def test_a_failure_that_is_no_exception_is_raised_as_an_effect_error() -> None:
    @do
    async def catching() -> object:
        try:
            await fail("out of stock")
        except EffectError as failure:
            return failure.error

    @do
    async def passing() -> None:
        await fail("out of stock")

    assert await catching().run(None) == Success("out of stock")
    assert await passing().run(None) == Failure("out of stock")


async def test_a_failure_of_an_operator_is_raised(store: MemoryStore) -> None:
    @workflow
    async def made(_: None) -> list[str]:
        found: list[str] = []
        try:
            await par(pay(999), never())
        except Declined:
            found.append("par")
        try:
            await never().timeout(0.001)
        except TimedOut:
            found.append("timeout")
        try:
            charged = compensate(charge(5), lambda _: ship("back")).within(App)
            await saga(charged.and_then(lambda _: pay(999)))
        except Declined:
            found.append("saga")
        return found

    app = app_on(store)

    result = await made.start(None, run_id="r").run(app)

    assert result == Success(["par", "timeout", "saga"])
    assert app.world.done == ["pay 999", "charge 5", "pay 999", "ship back"]


async def test_an_undeclared_exception_of_a_step_is_a_defect(store: MemoryStore) -> None:
    made = made_of(lambda: in_order(charge(5), ship("cap")))
    app = app_on(store)
    app.world.crashing.add("ship cap")

    with pytest.raises(Crash) as raised:
        await made.start(None, run_id="r").run(app)

    assert "step 'ship' of run 'r'" in str(raised.value.__notes__)
    app.world.recover()
    assert await made.resume("r").run(app) == Success(["5 paid", "cap is on its way"])
    assert app.world.done == ["charge 5", "ship cap", "ship cap"]


async def test_an_undeclared_exception_of_a_body_is_a_defect_and_a_resume_tries_again(
    store: MemoryStore,
) -> None:
    is_broken = True

    @workflow
    async def made(_: None) -> str:
        await charge(5)
        if is_broken:
            raise Crash("a bug")
        return await ship("cap")

    app = app_on(store)

    with pytest.raises(Crash, match="a bug"):
        await made.start(None, run_id="r").run(app)

    is_broken = False
    assert await made.resume("r").run(app) == Success("cap is on its way")
    assert app.world.done == ["charge 5", "ship cap"]


async def test_a_defect_can_be_caught(store: MemoryStore) -> None:
    @workflow
    async def careful(_: None) -> str:
        try:
            return await ship("cap")
        except Crash:
            return await charge(5)

    app = app_on(store)
    app.world.crashing.add("ship cap")

    assert await careful.start(None, run_id="r").run(app) == Success("5 paid")


@pytest.mark.parametrize("count", [1, 9, 40])
async def test_a_failure_that_was_collected_is_a_failure_when_it_is_raised(count: int) -> None:
    @do
    async def collecting() -> None:
        errors: list[Declined] = []
        for number in range(count):
            try:
                await pay(101 + number)
            except Declined as error:
                errors.append(error)
        raise errors[0]

    result = await collecting().run(app_on(MemoryStore()))

    assert isinstance(result.failure(), Declined)
    assert result.failure().args == (101,)


async def test_the_timeout_of_a_step_is_a_failure(store: MemoryStore) -> None:
    @step(timeout=0.01)
    async def slow() -> None:
        await anyio.sleep(60)

    @workflow
    async def patient(_: None) -> str:
        try:
            await slow()
        except TimedOut:
            return "late"
        return "in time"

    assert await patient.start(None, run_id="r").run(app_on(store)) == Success("late")


async def test_a_retry_policy_retries_undeclared_exceptions_or_is_rejected(
    store: MemoryStore,
) -> None:
    """Silently retrying nothing is the one thing that it must not do."""
    try:

        @step(retry=POLICY)
        async def flaky() -> int:
            if await noted("flaky") < 3:
                raise ConnectionError
            return current_step().attempt

    except TypeError as rejected:
        assert "retry" in str(rejected)  # noqa: PT017
        return
    app = app_on(store)

    assert await made_of(flaky).start(None, run_id="r").run(app) == Success(3)

    assert app.world.done == ["flaky"] * 3


async def test_a_retry_policy_retries_typed_failures(store: MemoryStore) -> None:
    @step(retry=POLICY)
    @effect(errors=Declined)
    async def flaky(app: App) -> int:
        if app.world.note("flaky") < 3:
            raise Declined
        return current_step().attempt

    assert await made_of(flaky).start(None, run_id="r").run(app_on(store)) == Success(3)


# Ordinary code between effects.


async def test_ordinary_awaits_run_again_in_each_life(store: MemoryStore) -> None:
    @workflow
    async def mixed(_: None) -> list[str]:
        await anyio.sleep(0.001)
        await noted("first")
        found = [await charge(5)]
        await anyio.lowlevel.checkpoint()
        await noted("second")
        return [*found, await ship("cap")]

    await crashed(mixed, store, CrashPoint(before("ship"), is_durable=True))
    app = app_on(store)

    assert await mixed.resume("r").run(app) == Success(["5 paid", "cap is on its way"])

    assert app.world.done == ["first", "second", "ship cap"]


async def test_a_race_of_ordinary_awaits_goes_as_before_even_if_they_take_other_times(
    store: MemoryStore,
) -> None:
    seconds = {"cap": 0.001, "hat": 0.1}

    @do
    async def first(item: str) -> str:
        await anyio.sleep(seconds[item])
        return item

    @workflow
    async def racing(_: None) -> str:
        return await ship(await race([first("hat"), first("cap")]))

    await crashed(racing, store, CrashPoint(before("ship"), is_durable=True))
    seconds |= {"cap": 0.1, "hat": 0.001}

    assert await racing.resume("r").run(app_on(store)) == Success("cap is on its way")


async def test_recorded_values_come_back(store: MemoryStore) -> None:
    @workflow
    async def drawing(_: None) -> list[object]:
        drawn = [str(await now()), await random(), str(await uuid())]
        await ship(str(drawn))
        return [*drawn, await charge(5)]

    first = await crashed(drawing, store, CrashPoint(before("charge"), is_durable=True))
    app = app_on(store)

    result = await drawing.resume("r").run(app)

    assert first.done == [f"ship {result.unwrap()[:3]}"]
    assert app.world.done == ["charge 5"]


async def test_a_branch_in_an_ordinary_await_is_cancelled_when_its_sibling_fails(
    store: MemoryStore,
) -> None:
    left: list[str] = []

    @do
    async def waiting() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            left.append("left")

    made = made_of(
        lambda: in_order(par(waiting(), charge(5).within(App).and_then(lambda _: pay(999))))
    )

    result = await made.start(None, run_id="r").run(app_on(store))

    assert isinstance(result.failure(), Declined)
    assert left == ["left"]


# Resources.


@asynccontextmanager
async def room() -> AsyncIterator[str]:
    """A resource of this process, which is entered and left in each life."""
    await noted("enter")
    try:
        yield "room"
    finally:
        # Not awaited: an effect may not begin here once the body is cancelled.
        LEFT.append("leave")


LEFT: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    LEFT.clear()
    yield
    LEFT.clear()


@do
async def held_in_a_room() -> str:
    async with room():
        return await hold()


async def test_async_with_around_a_step_is_left_when_a_timeout_cancels_it(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: in_order(held_in_a_room().timeout(0.02)))
    app = app_on(store)

    result = await made.start(None, run_id="r").run(app)

    assert isinstance(result.failure(), TimedOut)
    assert app.world.done == ["enter", "hold"]
    assert LEFT == ["leave"]


async def test_async_with_around_a_step_is_left_by_a_stop_and_entered_again_by_a_resume(
    store: MemoryStore,
) -> None:
    made, app = made_of(held_in_a_room), app_on(store)

    await cut_off(made.start(None, run_id="r"), app)
    assert LEFT == ["leave"]

    assert await made.resume("r").run(app) == Success("held")
    assert app.world.done == ["enter", "hold", "enter", "hold"]
    assert LEFT == ["leave", "leave"]


async def test_a_step_in_finally_is_executed_once_after_a_success_and_a_failure(
    store: MemoryStore,
) -> None:
    @workflow
    async def made(_: None) -> str:
        try:
            await charge(5)
        finally:
            await ship("first")
        try:
            await pay(999)
        except Declined:
            return "declined"
        finally:
            await ship("second")
        raise AssertionError

    await crashed(made, store, CrashPoint(after("ship#2"), is_durable=True))
    app = app_on(store)

    assert await made.resume("r").run(app) == Success("declined")

    assert app.world.done == []


async def test_a_step_in_finally_is_not_silently_left_out_after_a_timeout(
    store: MemoryStore,
) -> None:
    """It is executed, or an error says what to use in place of `finally`."""

    @do
    async def holding() -> str:
        try:
            return await hold()
        finally:
            await ship("back")

    made, app = made_of(lambda: in_order(holding().timeout(0.02))), app_on(store)
    try:
        result = await made.start(None, run_id="r").run(app)
    except RuntimeError as error:
        assert "bracket" in str(error)  # noqa: PT017
        assert app.world.done == ["hold"]
    else:
        assert isinstance(result.failure(), TimedOut)
        assert app.world.done == ["hold", "ship back"]


async def test_a_step_in_finally_is_left_to_the_resume_by_a_stop(store: MemoryStore) -> None:
    @workflow
    async def made(_: None) -> str:
        try:
            return await hold()
        finally:
            await ship("back")

    app = app_on(store)

    await cut_off(made.start(None, run_id="r"), app)
    assert app.world.done == ["hold"]

    assert await made.resume("r").run(app) == Success("held")
    assert app.world.done == ["hold", "hold", "ship back"]


async def test_a_step_in_progress_is_executed_again_after_a_stop(store: MemoryStore) -> None:
    made, app = made_of(lambda: in_order(charge(5), hold())), app_on(store)

    await cut_off(made.start(None, run_id="r"), app)

    info = await find_run(store, "r")
    assert info is not None
    assert info.summary.status is RunStatus.INTERRUPTED
    assert await made.resume("r").run(app) == Success(["5 paid", "held"])
    assert app.world.done == ["charge 5", "hold", "hold"]


# Other tasks, and no run at all.


async def in_gather() -> object:
    return await asyncio.gather(charge(1), charge(2))


async def in_asyncio_task() -> object:
    async def charging() -> str:
        return await charge(1)

    return await asyncio.create_task(charging())


async def in_task_group() -> object:
    async def charging() -> None:
        await charge(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(charging)
        tasks.start_soon(charging)
    return None


async def in_nursery() -> object:
    import trio

    async def charging() -> None:
        await charge(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(charging)
    return None


ELSEWHERE = {
    "asyncio.gather": (in_gather, "asyncio"),
    "asyncio.create_task": (in_asyncio_task, "asyncio"),
    "task group on asyncio": (in_task_group, "asyncio"),
    "task group on trio": (in_task_group, "trio"),
    "nursery": (in_nursery, "trio"),
}


@step
async def within_a_step(elsewhere: str) -> object:
    return await ELSEWHERE[elsewhere][0]()


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, or the error."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


@pytest.mark.parametrize("where", ["body", "step", "branch", "memory"])
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
async def test_an_effect_that_is_awaited_in_another_task_is_an_error_that_names_par(
    elsewhere: str, where: str, anyio_backend_name: str, store: MemoryStore
) -> None:
    function, backend = ELSEWHERE[elsewhere]
    if backend != anyio_backend_name:
        return

    @do
    async def wrong() -> object:
        return await function()

    body: Callable[[], Any] = {
        "body": wrong,
        "step": partial(within_a_step, elsewhere),
        "branch": lambda: par(wrong(), sleep(0.001)),
        "memory": wrong,
    }[where]
    app = app_on(store)
    wrongly = body() if where == "memory" else made_of(body).start(None, run_id="r")

    with pytest.raises((Exception, BaseExceptionGroup)) as raised:
        await wrongly.run(app)

    assert all("par(" in str(leaf) or "par " in str(leaf) for leaf in leaves(raised.value))
    assert app.world.done == []


async def test_after_such_an_error_the_corrected_run_continues(store: MemoryStore) -> None:
    body: Callable[[], Any] = in_task_group
    made = made_of(lambda: in_order(ship("cap"), do(body)()))

    async def in_par() -> object:
        return await par(charge(1), charge(2))

    app = app_on(store)
    with pytest.raises((Exception, BaseExceptionGroup)):
        await made.start(None, run_id="r").run(app)
    body = in_par

    assert await made.resume("r").run(app) == Success(["cap is on its way", ("1 paid", "2 paid")])
    assert sorted(app.world.done) == ["charge 1", "charge 2", "ship cap"]


async def test_a_task_of_a_body_may_do_other_work(store: MemoryStore) -> None:
    """Only effects need the task of the body."""
    pinged: list[int] = []

    async def ping() -> None:
        while True:
            pinged.append(1)
            await anyio.sleep(0.001)

    @workflow
    async def made(_: None) -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ping)
            await charge(5)
            await anyio.sleep(0.01)
            await ship("cap")
            tasks.cancel_scope.cancel()
        return await charge(7)

    assert await made.start(None, run_id="r").run(app_on(store)) == Success("7 paid")
    assert pinged


AWAITED: dict[str, Callable[[], Any]] = {
    "step": lambda: charge(5),
    "pure": lambda: pure(1),
    "do": lambda: twice_in_a_coroutine(5),
    "sleep": lambda: sleep(1),
    "ask": lambda: ask(),
    "start": lambda: checkout.start(CART),
}


@pytest.mark.parametrize("made", AWAITED.values(), ids=AWAITED)
async def test_an_effect_that_is_awaited_outside_of_a_run_is_an_error_that_names_run(
    made: Callable[[], Any],
) -> None:
    with pytest.raises(Exception, match=r"\.run\("):
        await made()


async def test_an_effect_that_is_awaited_after_its_run_is_an_error(store: MemoryStore) -> None:
    """A task that the body left behind still has its context."""
    is_over, errors, app = anyio.Event(), list[Exception](), app_on(store)

    async def late() -> None:
        await is_over.wait()
        try:
            await charge(5)
        except Exception as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:

        @workflow
        async def leaving(_: None) -> None:
            tasks.start_soon(late)

        await leaving.start(None, run_id="r").run(app)
        is_over.set()

    assert len(errors) == 1
    assert app.world.done == []


# Bodies that swallow their cancellation.


@do
async def swallows_and_goes_on() -> str:
    try:
        await never()
    except BaseException:
        await noted("swallowed")
    return await charge(5)


@do
async def swallows_and_waits() -> str:
    try:
        await anyio.sleep_forever()
    except BaseException:
        LEFT.append("swallowed")
    return await charge(5)


@do
async def swallows_and_returns() -> str:
    try:
        return await hold()
    except BaseException:
        return "swallowed"


@do
async def swallows_again_and_again() -> str:
    for _ in range(100):
        try:
            await never()
        except BaseException:
            LEFT.append("swallowed")
    return await charge(5)


SWALLOWING = [
    swallows_and_goes_on,
    swallows_and_waits,
    swallows_and_returns,
    swallows_again_and_again,
]
swallowing = pytest.mark.parametrize("body", SWALLOWING, ids=lambda body: body.__name__)


@swallowing
@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
async def test_a_body_that_swallows_its_cancellation_begins_nothing_more(
    body: Callable[[], Any], is_durable: bool, store: MemoryStore
) -> None:
    @do
    async def outer() -> str:
        try:
            return await body().timeout(0.02)
        except TimedOut:
            return await ship("cap")

    app = app_on(store)
    running = made_of(outer).start(None, run_id="r") if is_durable else outer()

    with anyio.fail_after(10):
        try:
            result = await running.run(app)
        except RuntimeError as error:
            assert body is not swallows_and_returns
            assert "bracket" in str(error)  # noqa: PT017
        else:
            # What comes after the decision of the timeout is discarded.
            assert body in (swallows_and_returns, swallows_and_waits)
            assert result.unwrap() == "cap is on its way"

    assert "charge 5" not in app.world.done


@swallowing
async def test_a_body_that_swallows_a_stop_begins_nothing_more(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    made, app = made_of(lambda: in_order(ship("cap"), body(), ship("hat"))), app_on(store)

    await cut_off(made.start(None, run_id="r"), app)

    assert "charge 5" not in app.world.done
    assert "ship hat" not in app.world.done
    info = await find_run(store, "r")
    assert info is not None
    assert info.lease is None
    assert info.summary.status is RunStatus.INTERRUPTED


async def test_a_step_that_swallows_its_cancellation_is_recorded_as_what_it_did(
    store: MemoryStore,
) -> None:
    @step
    async def stubborn() -> str:
        await noted("stubborn")
        try:
            await anyio.sleep_forever()
        except BaseException:
            return "partial"
        return "never"

    @workflow
    async def made(_: None) -> str:
        try:
            return await stubborn().timeout(0.02)
        except TimedOut:
            return await ship("cap")

    result = await made.start(None, run_id="r").run(app_on(store))

    assert result.unwrap() in ["partial", "cap is on its way"]
    assert (await steps_of(store))[0].endswith("stubborn")
    await died_everywhere(made)


# Bodies that never wait.


class Ticker:
    """Counts how often the event loop came to another task."""

    def __init__(self) -> None:
        self.ticks = 0

    async def run(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.ticks += 1


async def beside_a_ticker(
    running: Effect[Any, Any, Any], app: object
) -> tuple[Result[Any, Any], int]:
    """Run an effect. Return its result, and how often another task ran meanwhile."""
    ticker, results = Ticker(), list[Result[Any, Any]]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker.run)
        results.append(await running.run(app))
        tasks.cancel_scope.cancel()
    return results[0], ticker.ticks


@do
async def hot(count: int) -> int:
    """Await effects that need no wait, again and again."""
    total = 0
    for _ in range(count):
        total += await pure(1)
    return total


@step
async def tick(number: int) -> int:
    return number


@do
async def hot_steps(count: int) -> int:
    total = 0
    for number in range(count):
        total += await tick(number) >= 0
    return total


SELDOM = CheckpointPolicy(every_steps=None)


@pytest.mark.parametrize("options", [{}, {"policy": SELDOM}], ids=["each step", "seldom"])
async def test_a_body_that_never_waits_lets_the_event_loop_breathe(options: Any) -> None:
    app = app_on(MemoryStore(), **options)

    result, ticks = await beside_a_ticker(made_of(lambda: hot_steps(1000)).start(None), app)

    assert result == Success(1000)
    assert ticks >= 3


async def test_the_replay_of_a_body_that_never_waits_lets_the_event_loop_breathe(
    store: MemoryStore,
) -> None:
    made, app = made_of(lambda: in_order(hot_steps(1000), hold())), app_on(store)
    await cut_off(made.start(None, run_id="r"), app)

    result, ticks = await beside_a_ticker(made.resume("r"), app)

    assert result == Success([1000, "held"])
    assert ticks >= 3


async def test_a_body_that_never_waits_in_memory_lets_the_event_loop_breathe() -> None:
    result, ticks = await beside_a_ticker(hot(100_000), None)

    assert result == Success(100_000)
    assert ticks > 10


@pytest.mark.parametrize(
    "body", [partial(hot, 3_000_000), partial(hot_steps, 100_000)], ids=["effects", "steps"]
)
async def test_a_timeout_ends_a_body_that_never_waits(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    """The number of rounds only bounds how long this test takes if that does not work."""
    made = made_of(lambda: body().timeout(0.02))

    result = await made.start(None, run_id="r").run(app_on(store))

    assert isinstance(result.failure(), TimedOut)


# Waits, in a worker.


@workflow
async def waiting(_: None) -> list[str]:
    await noted("local")
    found = [await charge(5), await pause.wait()]
    async with room():
        await sleep(0.02)
        found.append(await ship(found[1]))
    return found


async def test_a_run_is_suspended_and_continued() -> None:
    service = Service(MemoryStore())
    async with working(service, waiting) as worker:
        handle = await worker.client.submit(waiting, None, run_id="r")
        await suspended(service, "r", waits_for="signal pause")
    await handle.send(pause, "cap")

    async with working(service, waiting):
        assert await handle.result(timeout=10) == Success(["5 paid", "cap", "cap is on its way"])

    assert service.world.done.count("charge 5") == 1
    assert service.world.done.count("ship cap") == 1


async def test_a_run_that_waits_is_cancelled() -> None:
    @workflow
    async def undoing(_: None) -> str:
        return await saga(booked())

    @do
    async def booked() -> str:
        await compensate(charge(5), lambda _: ship("back"))
        return await pause.wait()

    service = Service(MemoryStore())
    async with working(service, undoing) as worker:
        handle = await worker.client.submit(undoing, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        await handle.result(timeout=10)
        assert await handle.status() is RunStatus.CANCELLED

    assert service.world.done == ["charge 5", "ship back"]


async def test_a_message_that_came_before_the_wait_is_received_at_once(store: MemoryStore) -> None:
    made, app = made_of(lambda: in_order(pause.wait(), pause.wait())), app_on(store)
    client = Client(Checkpoints(store))
    handle = await client.submit(made, None, run_id="r")
    for word in ("one", "two"):
        await handle.send(pause, word)

    assert await made.resume("r").run(app) == Success(["one", "two"])


# Crashes.


@do
async def quoted(item: str) -> str:
    await anyio.lowlevel.checkpoint()
    first = await ship(item)
    return f"{first}, {await charge(len(item))}"


@step
async def handling(item: str) -> list[str]:
    found = [await ship(item)]
    found += await par(charge(1), charge(2))
    return [*found, await ship(f"{item} again")]


@workflow
async def inner(item: str) -> str:
    return await ship(f"inner {item}")


@workflow
async def sequence(_: None) -> list[str]:
    return [await charge(5), await ship("cap"), await pay(7)]


@workflow
async def branches(_: None) -> object:
    pair = await par(quoted("cap"), quoted("glove"))
    return pair, await par_traverse(["a", "b", "c"], quoted, key=str, limit=2)


@workflow
async def steps_in_steps(_: None) -> object:
    return await handling("cap"), await par(handling("hat"), charge(3))


@workflow
async def failures(_: None) -> list[str]:
    found: list[str] = []
    for amount in (5, 999):
        try:
            found.append(await pay(amount))
        except Declined:
            found.append(await ship("apology"))
    try:
        await par(pay(999), hold_forever())
    except Declined:
        found.append("par")
    return [*found, await charge(1)]


@step
async def hold_forever() -> None:
    await anyio.sleep_forever()


@workflow
async def waits(_: None) -> list[str]:
    await sleep(60)
    found = [await charge(5)]
    try:
        await hold_forever().timeout(30)
    except TimedOut:
        found.append(await ship("late"))
    await sleep(60)
    return [*found, await ship("cap")]


@workflow
async def races(_: None) -> object:
    @do
    async def after(seconds: float, item: str) -> str:
        await anyio.sleep(seconds)
        return await ship(item)

    return await race([after(0.05, "slow"), after(0.001, "quick")]), await charge(5)


@workflow
async def sagas(_: None) -> object:
    async def booking() -> str:
        await compensate(charge(1), lambda _: ship("back 1"))
        await par(compensate(charge(2), lambda paid: ship(f"back {paid}")), charge(3))
        return await pay(999)

    try:
        return await saga(do(booking)())
    except Declined:
        return await ship("apology")


@workflow
async def resources(_: None) -> object:
    async with room():
        first = await bracket(charge(1), lambda _: ship("released"), lambda _: quoted("cap"))
        try:
            second = await charge(2)
        finally:
            await ship("finally")
    return first, second


@workflow
async def calls(_: None) -> object:
    return await inner.call("a"), await par(inner.call("b"), charge(5))


@workflow
def mixed(_: None) -> Do[App, Any, object]:
    first = yield from quoted("cap")
    second = yield from par(handling("hat"), inner.call("x"))
    return first, second


@workflow
async def values(_: None) -> list[str]:
    found = [str(await now())]
    found.append(await ship(found[0]))
    return found


CRASHING = [
    sequence,
    branches,
    steps_in_steps,
    failures,
    waits,
    races,
    sagas,
    resources,
    calls,
    mixed,
    values,
]


async def died_everywhere(made: Any) -> None:
    """Let a process die at each write of a run, and go on: it ends like one that did not die."""

    def environment(store: CheckpointStore) -> App:
        return app_on(store)

    assert len(await crash_everywhere(made, None, environment)) >= 4


@pytest.mark.parametrize("made", CRASHING, ids=lambda made: made.name)
async def test_a_run_ends_the_same_wherever_it_crashes(made: Any) -> None:
    await died_everywhere(made)


# Cancel scopes of bodies.


async def moves_on() -> str:
    with anyio.move_on_after(0.01):
        await never()
    return "moved on"


async def moves_on_to_another() -> str:
    with anyio.move_on_after(0.01):
        await par(never(), never())
    return await charge(5)


async def fails_after() -> str:
    try:
        with anyio.fail_after(0.01):
            await never()
        return "in time"
    except TimeoutError:
        return "late"


@pytest.mark.parametrize("body", [moves_on, moves_on_to_another, fails_after])
async def test_a_body_that_limits_an_effect_by_a_scope_of_its_own_is_told_what_to_write(
    body: Callable[[], Any], store: MemoryStore
) -> None:
    app = app_on(store)
    made = workflow(name="made")(body)
    for run in (made.start(run_id="r"), made.resume("r")):
        with pytest.raises(RuntimeError, match=r"use `\.timeout\(\.\.\.\)` or `race"):
            await run.run(app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED


# Failures that an async body declares.


class Refused(Exception):
    """The shop refuses the order."""


@step(errors=Broken)
async def breaks(number: int) -> str:
    raise Broken(number)


@workflow(errors=(Broken, Refused))
async def ordered(number: int) -> str:
    if number == 1:
        raise Refused("one")
    try:
        return await breaks(number)
    except Broken as broken:
        if number == 2:
            await charge(5)
            raise Refused("two") from broken
        raise


@workflow(errors=Refused)
async def orders_in_a_run_of_its_own(number: int) -> str:
    child = await spawn(ordered, number)
    try:
        return await child.result()
    except Broken as broken:
        raise Refused("broken") from broken


DECLARED: list[tuple[int, Exception]] = [(1, Refused("one")), (2, Refused("two")), (3, Broken(3))]


@pytest.mark.parametrize(("number", "error"), DECLARED)
async def test_a_declared_exception_of_an_async_body_is_its_failure(
    number: int, error: Exception
) -> None:
    app = App()
    ended = await ordered.start(number, run_id="r").run(app)
    assert repr(ended.failure()) == repr(error)
    assert repr((await ordered.result("r").run(app)).failure()) == repr(error)
    await crash_everywhere(ordered, number, lambda store: App(Checkpoints(store)))


async def test_the_failure_of_a_spawned_async_body_has_its_class() -> None:
    store = MemoryStore()
    async with working(Service(store, World()), ordered, orders_in_a_run_of_its_own) as worker:
        for number, error in ((1, Refused("one")), (3, Refused("broken"))):
            handle = await worker.client.submit(orders_in_a_run_of_its_own, number)
            assert repr((await handle.result(timeout=10)).failure()) == repr(error)


async def test_an_undeclared_exception_of_an_async_body_stays_a_defect() -> None:
    @do(errors=Broken)
    async def body(number: int) -> str:
        raise (Broken if number else Crash)(number)

    assert repr((await body(1).run(None)).failure()) == "Broken(1)"
    with pytest.raises(Crash):
        await body(0).run(None)


@pytest.mark.parametrize("decorator", [do, workflow])
async def test_errors_are_declared_for_async_functions_only(decorator: Any) -> None:
    def body() -> Do[object, Broken, None]:
        yield from pure(None)

    with pytest.raises(TypeError, match="errors= is for async functions"):
        decorator(errors=Broken)(body)
    with pytest.raises(TypeError, match=r"\(errors=...\) takes a class of exceptions"):
        decorator(errors="Broken")
