"""Wrong arguments are rejected when the effect is made, each with the way out in the message."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial, wraps
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from returns.result import Success

from effectflow import (
    Effect,
    RetryExhausted,
    RetryPolicy,
    bracket,
    do,
    effect,
    fail,
    from_blocking,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.effects import (
    acquiring,
    asks,
    first_success,
    from_fn,
    par_reduce,
    par_try_all,
    suspend,
    traverse,
)

pytestmark = pytest.mark.anyio

POLICY = RetryPolicy.constant(0.001).with_max_retries(1)


async def asynchronous(*_: object) -> Any:
    """Stands for a function that must not be async."""


class Asynchronous:
    async def __call__(self, *_: object) -> Any: ...

    async def method(self, *_: object) -> Any: ...


ASYNC_FUNCTIONS: dict[str, Any] = {
    "function": asynchronous,
    "lambda-like": partial(partial(asynchronous, 1), 2),
    "object": Asynchronous(),
    "partial of an object": partial(Asynchronous(), 1),
    "method": Asynchronous().method,
}

one: Effect[object, Any, int] = pure(1)

OPERATORS: dict[str, Callable[[Any], object]] = {
    "map": one.map,
    "map_err": one.map_err,
    "and_then": one.and_then,
    "or_else": one.or_else,
    "tap": one.tap,
    "tap_err": one.tap_err,
    "zip_with": lambda f: one.zip_with(one, f),
    "ensure": lambda f: one.ensure(f, "error"),
    "ensure_with predicate": lambda f: one.ensure_with(f, str),
    "ensure_with error": lambda f: one.ensure_with(bool, f),
    "recover predicate": lambda f: one.recover(f, lambda _: one),
    "recover handler": lambda f: one.recover(KeyError, f),
    "local": one.local,
    "on_exit": one.on_exit,
    "retryable": lambda f: one.retry(POLICY, retryable=f),
    "on_retry": lambda f: one.retry(POLICY, on_retry=f),
    "from_fn": from_fn,
    "from_blocking": from_blocking,
    "asks": asks,
    "suspend": suspend,
    "traverse": lambda f: traverse([1], f),
    "par_traverse": lambda f: par_traverse([1], f),
    "par_traverse key": lambda f: par_traverse([1], pure, key=f),
    "par_reduce": lambda f: par_reduce([1], f, pure, limit=1),
    "par_reduce reduce": lambda f: par_reduce([1], pure, f, limit=1),
    "par_reduce key": lambda f: par_reduce([1], pure, pure, limit=1, key=f),
    "bracket release": lambda f: bracket(one, f, pure),
    "bracket use": lambda f: bracket(one, pure, f),
    "acquiring release": lambda f: acquiring(one, f),
    "and_ release": lambda f: acquiring(one, pure).and_(one, f),
    "use": lambda f: acquiring(one, pure).use(f),
    "retryable of with_checkpointing": lambda f: with_checkpointing("s", one, retryable=f),
    "retryable of step": lambda f: step(retryable=f)(lambda: one),
    "retryable of checkpointed": lambda f: one.checkpointed("s", retryable=f),
}
DECORATORS: dict[str, Callable[[Any], object]] = {"step": step, "workflow": workflow}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("function", ASYNC_FUNCTIONS.values(), ids=ASYNC_FUNCTIONS)
def test_async_functions_are_rejected_where_plain_ones_are_expected(
    operator: Callable[[Any], object], function: Any
) -> None:
    with pytest.raises(TypeError, match=r"takes a .*(is|not an) async.*: \S"):
        operator(function)


@pytest.mark.parametrize(
    "operator", [*OPERATORS.values(), *DECORATORS.values()], ids=[*OPERATORS, *DECORATORS]
)
def test_objects_that_are_not_callable_are_rejected(operator: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="takes"):
        operator(2)


def test_an_effect_in_place_of_a_function_is_told_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"use `lambda _: pure\(2\)`"):
        one.and_then(pure(2))  # pyright: ignore[reportArgumentType]


class Doubling:
    """A class, whose instances are async functions. A call of the class itself is not async."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def __call__(self) -> int:
        return 2 * self.number

    def method(self, number: int) -> int:
        return number + self.number


async def test_every_other_callable_is_accepted() -> None:
    assert isinstance((await pure(1).map(Doubling).run(None)).unwrap(), Doubling)
    assert await pure(1).map(Doubling(2).method).run(None) == Success(3)
    assert await pure(1).map(str).run(None) == Success("1")
    assert await pure("ab").map(len).run(None) == Success(2)
    assert await pure(1).map(partial(int.__add__, 1)).run(None) == Success(2)


async def is_fine(_: object) -> bool:
    return False


PREDICATES: dict[str, Effect[object, Any, Any]] = {
    "ensure": pure(1).ensure(lambda n: is_fine(n), "no"),  # pyright: ignore[reportArgumentType]
    "ensure_with": pure(1).ensure_with(lambda n: is_fine(n), str),  # pyright: ignore[reportArgumentType]
    "recover": fail(1).recover(lambda n: is_fine(n), pure),  # pyright: ignore[reportArgumentType,reportCallIssue]
    "retry": fail(1).retry(POLICY, retryable=lambda n: is_fine(n)),  # pyright: ignore[reportArgumentType, reportCallIssue]
    "ensure an effect": pure(1).ensure(lambda _: pure(False), "no"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("checked", PREDICATES.values(), ids=PREDICATES)
async def test_a_predicate_whose_result_must_be_awaited_does_not_count_as_true(
    checked: Effect[object, Any, Any],
) -> None:
    with pytest.raises(TypeError, match="would count as true"):
        await checked.run(None)


@wraps(is_fine)
def wrapping(given: object) -> Any:
    return is_fine(given)


COROUTINES: dict[str, Effect[object, Any, Any]] = {
    "lambda": pure(1).map(lambda n: is_fine(n)),
    "partial": pure(1).map(partial(lambda n: is_fine(n))),
    "wrapper": pure(1).map(wrapping),
    "cached": pure(1).map(cache(wrapping)),
    "map after map": pure(1).map(str).map(wrapping),
    "map after another effect": from_fn(str).map(wrapping),
    "asks": asks(wrapping),
    "from_fn": from_fn(wrapping),
    "effect": effect(wrapping)(),
    "a branch": par(pure(1), pure(1).map(wrapping)),
    "an item": par_traverse([1], lambda n: pure(n).map(wrapping)),
    "a step": step(lambda: pure(1).map(wrapping))(),
}


@pytest.mark.parametrize("effect", COROUTINES.values(), ids=COROUTINES)
async def test_an_effect_that_yields_a_coroutine_says_where_to_await_it(
    effect: Effect[object, Any, Any],
) -> None:
    with pytest.raises(TypeError, match=r"yields the coroutine .*is_fine.*: await it in an effect"):
        await effect.run(None)


LISTS: dict[str, Callable[[], object]] = {
    "par": lambda: par([one]),  # pyright: ignore[reportArgumentType, reportCallIssue]
    "race": lambda: race([[one]]),  # pyright: ignore[reportArgumentType, reportCallIssue]
    "first_success": lambda: first_success([[one]]),  # pyright: ignore[reportArgumentType]
    "zip": lambda: one.zip([one]),  # pyright: ignore[reportArgumentType, reportCallIssue]
    "zip_with": lambda: one.zip_with([one], max),  # pyright: ignore[reportArgumentType]
    "fallback_to": lambda: one.fallback_to([one]),  # pyright: ignore[reportArgumentType]
    "bracket": lambda: bracket([one], pure, pure),  # pyright: ignore[reportArgumentType]
    "acquiring": lambda: acquiring([one], pure),  # pyright: ignore[reportArgumentType]
    "and_": lambda: acquiring(one, pure).and_([one], pure),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_a_list_where_effects_are_expected_is_rejected(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"expected an effect and got \[pure\(1\)\]: .*par_try_all"):
        make()


@pytest.mark.parametrize("operator", [par_all, par_try_all, first_success])
def test_an_effect_where_a_list_is_expected_is_rejected(operator: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"write \w+\(\[effect\]\)"):
        operator(one)


COUNTS: dict[str, Callable[[Any], object]] = {
    "with_max_retries": RetryPolicy.constant(1).with_max_retries,
    "par_all": lambda n: par_all([one], limit=n),
    "par_try_all": lambda n: par_try_all([one], limit=n),
    "par_traverse": lambda n: par_traverse([1], pure, limit=n),
    "par_reduce limit": lambda n: par_reduce([1], pure, pure, limit=n),
    "par_reduce fan_in": lambda n: par_reduce([1], pure, pure, limit=1, fan_in=n),
}


def doubled(number: int) -> int:
    return number * 2


@pytest.mark.parametrize("kind", [Mock, MagicMock])
async def test_mocks_of_plain_functions_are_taken_as_functions(kind: Any) -> None:
    assert await pure(2).map(kind(spec=doubled, return_value=4)).run(None) == Success(4)
    assert await from_fn(kind(spec=doubled, return_value=4)).run(2) == Success(4)
    assert await pure(2).ensure(kind(return_value=True), "no").run(None) == Success(2)


@pytest.mark.parametrize(
    "mock", [AsyncMock(), Mock(spec=asynchronous), MagicMock(spec=asynchronous)]
)
def test_mocks_of_async_functions_are_rejected(mock: Any) -> None:
    with pytest.raises(TypeError, match="is async"):
        from_fn(mock)


class Size(IntEnum):
    SMALL = 2


@pytest.mark.parametrize("operator", COUNTS.values(), ids=COUNTS)
def test_members_of_an_int_enum_are_counts(operator: Callable[[Any], object]) -> None:
    operator(Size.SMALL)


@pytest.mark.parametrize("operator", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("count", [2.5, True, "2", -1])
def test_wrong_counts_are_rejected(operator: Callable[[Any], object], count: Any) -> None:
    with pytest.raises(ValueError, match=f"must be an int >= [012], not {count!r}"):
        operator(count)


def test_recover_rejects_a_class_with_type_arguments() -> None:
    with pytest.raises(TypeError, match="use RetryExhausted without type arguments"):
        fail(RetryExhausted("no", 1, 0.0)).recover(RetryExhausted[str], lambda _: one)


def an_effect(*_: object) -> Effect[object, Any, int]:
    return one


def a_body(*_: object) -> Any:
    return (yield one)


# Type checkers reject some of these.
loose_do: Any = do

WRONG_ORDERS: dict[str, tuple[Callable[[], object], str]] = {
    "effect over step": (lambda: effect(step(an_effect)), "@step above @effect"),
    "effect over step with options": (
        lambda: effect(errors=KeyError)(step(name="s")(an_effect)),
        "@step above @effect",
    ),
    "effect over do": (lambda: effect(do(a_body)), "without @effect"),
    "effect over effect": (lambda: effect(effect(an_effect)), "without @effect"),
    "effect over a generator function": (lambda: effect(a_body), "@do"),
    "do over step": (lambda: loose_do(step(a_body)), "@step above @do"),
    "do over do": (lambda: loose_do(do(a_body)), "needs no @do"),
    "do over effect": (lambda: loose_do(effect(an_effect)), "needs no @do"),
}


@pytest.mark.parametrize(("decorate", "way_out"), WRONG_ORDERS.values(), ids=WRONG_ORDERS)
def test_decorators_in_the_wrong_order_are_rejected(
    decorate: Callable[[], object], way_out: str
) -> None:
    with pytest.raises(TypeError, match=way_out):
        decorate()


def test_effect_on_a_method_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"environment first.*'self'.*from_async"):

        class Repository:
            @effect
            async def load(self, env: object, key: str) -> str:
                return key


def test_effect_on_a_function_without_an_environment_is_rejected() -> None:
    with pytest.raises(TypeError, match="environment first"):

        @effect  # pyright: ignore[reportArgumentType, reportCallIssue]
        def load() -> int:
            return 1


async def test_effect_awaits_every_kind_of_async_function() -> None:
    class Loading:
        async def __call__(self, env: str, times: int) -> str:
            return env * times

    assert await effect(Loading())(2).run("ab") == Success("abab")


def test_race_rejects_anything_but_effects() -> None:
    with pytest.raises(TypeError, match=r"race: expected an effect and got 1: wrap .* in pure"):
        race(1)  # pyright: ignore[reportArgumentType, reportCallIssue]
