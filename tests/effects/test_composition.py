"""What the constructors and combinators give, on both backends."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    ask,
    bracket,
    do,
    effect,
    now,
    par,
    pure,
    random,
    sleep,
    uuid,
    with_checkpointing,
)
from effectflow.effects import asks, from_async, from_fn, suspend
from tests.sweeps import sample_or_all

pytestmark = pytest.mark.anyio

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True)
class App:
    name: str
    price: int


APP = App("shop", 7)


def name_of(app: App) -> str:
    return app.name


def price_of(app: App) -> int:
    return app.price


async def test_environment_is_asked_for_and_can_be_changed_for_a_part() -> None:
    assert await ask(App).run(APP) == Success(APP)
    assert await asks(name_of).run(APP) == Success("shop")
    part = asks(lambda name: f"<{name}>").local(name_of)
    whole = part.and_then(lambda inner: asks(lambda app: (inner, price_of(app))))
    assert await whole.run(APP) == Success(("<shop>", 7))
    assert await asks(price_of).provide(APP).run(None) == Success(7)


class HasName(Protocol):
    @property
    def name(self) -> str: ...


@runtime_checkable
class HasPrice(Protocol):
    @property
    def price(self) -> int: ...


async def test_an_environment_may_be_of_a_subclass_or_satisfy_a_protocol() -> None:
    class Larger(App):
        pass

    larger = Larger("mall", 8)
    assert await ask(App).run(larger) == Success(larger)
    assert await ask(HasName).run(APP) == Success(APP)
    assert await ask(HasPrice).run(APP) == Success(APP)
    assert await ask(dict[str, int]).run({"hat": 5}) == Success({"hat": 5})
    assert (repr(ask(App)), repr(ask())) == ("ask(App)", "ask()")


async def test_an_environment_of_another_class_is_a_defect_that_names_both() -> None:
    given: Any = "shop"
    with pytest.raises(TypeError, match=r"ask\(App\) found .* of another class, str"):
        await ask(App).run(given)
    with pytest.raises(TypeError, match=r"ask\(HasPrice\) found .* of another class, str"):
        await ask(HasPrice).run(given)


async def test_functions_become_effects() -> None:
    @effect
    def double(env: App, times: int) -> int:
        return env.price * times

    @effect
    async def later(env: App) -> str:
        return env.name

    @effect(errors=(KeyError, ValueError))
    async def parse(env: App, text: str) -> int:
        return int(text)

    assert await double(3).run(APP) == Success(21)
    assert await later().run(APP) == Success("shop")
    assert isinstance(await parse("x").run(APP), Failure)
    assert parse.__name__ == "parse"


async def test_an_effect_is_a_value_that_can_be_run_many_times() -> None:
    runs: list[int] = []
    counted = from_fn(lambda _: runs.append(1)).and_then(lambda _: pure(len(runs)))

    assert [await counted.run(None) for _ in range(3)] == [Success(1), Success(2), Success(3)]


async def test_suspend_makes_a_new_effect_for_each_run() -> None:
    made: list[int] = []

    def make() -> Effect[object, str, int]:
        made.append(1)
        return pure(len(made))

    later = suspend(make)
    assert made == []
    assert await later.run(None) == Success(1)
    assert await later.run(None) == Success(2)


async def test_time_and_chance() -> None:
    before = datetime.now(UTC)
    await sleep(0.01).run(None)
    moment = (await now().run(None)).unwrap()
    assert (moment - before).total_seconds() >= 0.01
    assert moment.tzinfo is UTC
    assert 0 <= (await random().run(None)).unwrap() < 1
    assert isinstance((await uuid().run(None)).unwrap(), UUID)


MILLION = sample_or_all("binds", 20_000, 1_000_000)


@MILLION
async def test_a_million_binds_nested_to_the_left(binds: int) -> None:
    effect: Effect[object, str, int] = pure(0)
    for _ in range(binds):
        effect = effect.and_then(lambda n: pure(n + 1))

    assert await effect.run(None) == Success(binds)


@MILLION
async def test_a_million_binds_nested_to_the_right(binds: int) -> None:
    def count(n: int) -> Effect[object, str, int]:
        return pure(n) if n == binds else pure(n + 1).and_then(count)

    assert await count(0).run(None) == Success(binds)


@MILLION
async def test_a_million_binds_in_generator_notation(binds: int) -> None:
    @do
    def count() -> Do[object, str, int]:
        total = 0
        for _ in range(binds):
            total += yield from pure(1)
        return total

    assert await count().run(None) == Success(binds)


@sample_or_all("depth", 5_000, 1_000_000)
async def test_bodies_that_call_one_another_a_million_deep(depth: int) -> None:
    @do
    def count(n: int) -> Do[object, str, int]:
        if n == 0:
            return 0
        return 1 + (yield from count(n - 1))

    assert await count(depth).run(None) == Success(depth)


WAYS_TO_NEST: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(3600),
    "retry": lambda effect: effect.retry(RetryPolicy.constant(0.1).with_max_retries(1)),
    "collecting": lambda effect: effect.collecting(),
    "acquire": lambda effect: bracket(effect, lambda _: pure(None), pure),
    "finalizer": lambda effect: pure(1).on_exit(lambda _: effect),
    "step": lambda effect: with_checkpointing("s", effect),
}


# The coroutines that the stack has no room for never begin. They are collected within the test.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("nest", WAYS_TO_NEST.values(), ids=WAYS_TO_NEST)
async def test_nesting_too_deep_for_the_stack_is_a_clear_defect(
    nest: Callable[[AnyEffect], AnyEffect],
) -> None:
    nested: AnyEffect = pure(1)
    for _ in range(500):
        nested = nest(nested)
    try:
        # On asyncio, acquisitions and finalizers have a task each, and so a stack.
        ended = repr(await nested.run(None))
    except RecursionError as error:
        ended = str(error)
    gc.collect()
    assert ended == "<Success: 1>" or "nested within each other" in ended


async def test_a_function_that_recurses_forever_keeps_its_own_error() -> None:
    def endless(number: int) -> int:
        return endless(number + 1)

    with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
        await from_fn(lambda _: endless(0)).timeout(5).run(None)


async def test_parallel_operators_may_be_nested_as_deep_as_you_like() -> None:
    nested: AnyEffect = pure(1)
    for _ in range(1000):
        nested = par(nested).map(lambda values: values[0])
    assert await nested.run(None) == Success(1)


def test_run_sync_runs_on_either_backend() -> None:
    async def backend(_: object) -> str:
        import sniffio

        return sniffio.current_async_library()

    assert from_async(backend).run_sync(None) == Success("asyncio")
    assert from_async(backend).run_sync(None, backend="trio") == Success("trio")
