"""An error that is used many times does not change, and one that fails again keeps its trail."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from returns.result import Failure, Result

from effectflow import (
    Do,
    Effect,
    EffectError,
    RetryPolicy,
    attempt,
    bracket,
    do,
    fail,
    from_blocking,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
)
from effectflow.effects import TracedError, die, first_success, from_result, traverse

pytestmark = pytest.mark.anyio

AnyEffect = Effect[Any, Any, Any]


class Env:
    """An environment that can be referred to weakly."""


class Refused(Exception):
    """An error that effects share."""


@do
def fails_with(error: Exception) -> Do[object, Exception, None]:
    yield from fail(error)


@do
def dies_of(error: Exception) -> Do[object, str, None]:
    yield from die(error)


@do
def handles(ending: Effect[object, Exception, None]) -> Do[object, Exception, None]:
    try:
        yield from ending
    except Refused:
        yield from pure(None)


MAKES: dict[str, Callable[[Exception], AnyEffect]] = {
    "ensure": lambda error: pure(1).ensure(lambda n: n > 1, error),
    "fail": fail,
    "die": die,
    "fail in a body": fails_with,
    "die in a body": dies_of,
    "handled in a body": lambda error: handles(fail(error)),
    "a body in a body": lambda error: traverse([error], fails_with),
    "tap_err": lambda error: fail(error).tap_err(lambda _: pure(1)),
    "context": lambda error: fail(error).context("once"),
    "result": lambda error: fail(error).result().and_then(from_result),
}
NESTED: dict[str, Callable[[Exception], AnyEffect]] = {
    "a defect that is handled": lambda error: handles(die(error)),
    "timeout": lambda error: die(error).timeout(5),
    "par": lambda error: par(die(error), pure(1)),
    "race": lambda error: race([fail(error), pure(1)]),
    "par_traverse in a body": lambda error: par_traverse([error], dies_of),
    "bracket": lambda error: bracket(fail(error), pure, pure),
}


async def run_once(effect: AnyEffect, *, or_raise: bool) -> weakref.ref[Env]:
    """Run an effect in a new environment, and return a reference to that."""
    env = Env()
    reference = weakref.ref(env)
    try:
        work = effect.run_or_raise(env) if or_raise else effect.run(env)
        del env
        await work
    except Refused:
        pass
    return reference


@pytest.mark.parametrize("or_raise", [True, False])
@pytest.mark.parametrize("make", (MAKES | NESTED).values(), ids=MAKES | NESTED)
async def test_a_shared_error_does_not_grow(make: Any, or_raise: bool) -> None:
    error = Refused("no")
    shared = make(error)
    lengths: list[int] = []
    for number in range(6):
        effect = shared if number % 2 else make(error)
        await run_once(effect, or_raise=or_raise)
        lengths.append(len(traceback.extract_tb(error.__traceback__)))

    assert max(lengths[2:]) == min(lengths[2:]) == max(lengths)
    assert getattr(error, "__notes__", []) in ([], ["once"])
    assert error.__context__ is None


async def kept_environments(makes: Mapping[str, Any], *, or_raise: bool) -> dict[str, list[int]]:
    """Run each effect three times with a shared error. Return which environments are left."""
    shared = {name: make(Refused("no")) for name, make in makes.items()}
    references = {
        name: [await run_once(effect, or_raise=or_raise) for _ in range(3)]
        for name, effect in shared.items()
    }
    gc.collect()  # once, because it takes longer than all effects
    return {
        name: [number for number, reference in enumerate(made) if reference() is not None]
        for name, made in references.items()
    }


@pytest.mark.parametrize("or_raise", [True, False])
async def test_a_shared_error_does_not_keep_environments_alive(or_raise: bool) -> None:
    assert await kept_environments(MAKES, or_raise=or_raise) == {name: [] for name in MAKES}


async def test_a_shared_error_keeps_at_most_the_last_environment() -> None:
    kept = await kept_environments(NESTED, or_raise=True)

    assert {name: numbers for name, numbers in kept.items() if not {0, 1}.isdisjoint(numbers)} == {}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_that_raises_does_not_keep_its_environment_alive(backend: Any) -> None:
    effect = die(Refused("no"))
    references: list[weakref.ref[Env]] = []
    for _ in range(3):
        env = Env()
        references.append(weakref.ref(env))
        with pytest.raises(Refused):
            effect.run_sync(env, backend=backend)
        del env
    gc.collect()

    assert [reference() for reference in references] == [None] * 3


async def test_an_error_keeps_the_traceback_that_it_had() -> None:
    """Only what the runs of effects added is left out."""
    try:
        raise Refused("no")  # raised here
    except Refused as refused:
        error = refused

    for effect in (fail(error), die(error)) * 2:
        with pytest.raises(Refused) as caught:
            await effect.run_or_raise(None)
        assert traceback.extract_tb(caught.value.__traceback__)[-1].line == (
            'raise Refused("no")  # raised here'
        )


# Failing again with the same error.


@do
def caught_and_failed_again(inner: AnyEffect) -> Do[Any, Any, Any]:
    try:
        yield from inner
    except Refused as error:
        yield from pure("something else")
        yield from fail(error)
    except EffectError as error:
        yield from fail(error.error)


@do
def failed_with_the_result(inner: AnyEffect) -> Do[Any, Any, Any]:
    result: Result[Any, Any] = yield from inner.result()
    yield from pure("something else")
    yield from from_result(result)


AGAIN: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "or_else": lambda inner: inner.or_else(fail),
    "or_else later": lambda inner: inner.or_else(lambda e: sleep(0).and_then(lambda _: fail(e))),
    "recover": lambda inner: inner.recover(object, fail),
    "map_err": lambda inner: inner.map_err(lambda error: error),
    "tap_err": lambda inner: inner.tap_err(fail),
    "result": lambda inner: inner.result().and_then(from_result),
    "in a body": caught_and_failed_again,
    "result in a body": failed_with_the_result,
    "twice": lambda inner: inner.or_else(fail).or_else(fail),
    "again and again": lambda inner: inner.or_else(lambda _: inner),
}


@pytest.mark.parametrize("error", [Refused("no"), "no"])
@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
async def test_failing_again_with_the_same_error_keeps_the_trail(again: Any, error: object) -> None:
    inner = fail(error).context("inner")
    for _ in range(2):
        traced = await again(inner).context("outer").traced().run(None)
        assert traced == Failure(TracedError(error, ("inner", "outer")))
        with pytest.raises((Refused, EffectError)) as caught:
            await again(inner).context("outer").run_or_raise(None)
        assert caught.value.__notes__ == ["inner", "outer"]


async def test_a_handler_that_continues_as_a_loop_keeps_no_earlier_errors() -> None:
    errors: list[weakref.ref[Refused]] = []

    def round_of(number: int) -> AnyEffect:
        error = Refused(number)
        errors.append(weakref.ref(error))
        failing = fail(error).context("inner")
        if number % 2:
            return failing.or_else(lambda _: sleep(0).and_then(lambda _: ended(number)))
        return failing.result().and_then(lambda _: ended(number))

    def ended(number: int) -> AnyEffect:
        if number < 50:
            return round_of(number + 1)
        gc.collect()
        return pure(sum(error() is not None for error in errors))

    assert (await round_of(0).run(None)).unwrap() <= 3


async def test_dying_of_a_failure_keeps_its_trail() -> None:
    error = Refused("no")
    error.add_note("of the user")
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await fail(error).context("inner").or_else(die).context("outer").run(None)
        assert caught.value.__notes__ == ["of the user", "inner", "outer"]


@pytest.mark.parametrize("again", [fail, die])
async def test_a_defect_that_is_caught_and_ends_again_keeps_its_notes(again: Any) -> None:
    @do
    def body(inner: AnyEffect) -> Do[Any, Any, None]:
        try:
            yield from inner
        except Refused as error:
            yield from pure("something else")
            yield from again(error)

    error = Refused("no")
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await (
                body(die(error).context("inner").named("load")).context("outer").run_or_raise(None)
            )
        assert caught.value.__notes__ == ["inner", "in 'load'", "outer"]


# The context of an error is what was handled when it was raised, and nothing of the event loop.


def parse(number: int) -> Callable[[object], int]:
    def raising(_: object) -> int:
        try:
            raise KeyError(number)
        except KeyError:
            raise ValueError(number)  # noqa: B904 - the context is what this is about

    return raising


@do
def translated(number: int) -> Do[object, ValueError | Refused, int]:
    try:
        return (yield from attempt(parse(number), ValueError))
    except ValueError:
        raise Refused(number)  # noqa: B904 - the context is what this is about


CONTEXTS: dict[str, tuple[Callable[[int], AnyEffect], list[type[Exception]]]] = {
    "attempt": (lambda n: attempt(parse(n), ValueError), [ValueError, KeyError]),
    "after a wait": (
        lambda n: sleep(0.001).and_then(lambda _: attempt(parse(n), ValueError)),
        [ValueError, KeyError],
    ),
    "body": (translated, [Refused, ValueError, KeyError]),
    "bracket": (
        lambda n: bracket(sleep(0), lambda _: sleep(0), lambda _: translated(n)),
        [Refused, ValueError, KeyError],
    ),
    "acquire": (lambda n: bracket(translated(n), pure, pure), [Refused, ValueError, KeyError]),
    "release": (
        lambda n: bracket(sleep(0), lambda _: translated(n), pure),
        [Refused, ValueError, KeyError],
    ),
    "thread": (
        lambda n: from_blocking(parse(n)).timeout(5),
        [ValueError, KeyError],
    ),
    "retry": (
        lambda n: (
            attempt(parse(n), ValueError)
            .retry(RetryPolicy.constant(0.001).with_max_retries(1))
            .map_err(lambda exhausted: exhausted.error)
        ),
        [ValueError, KeyError],
    ),
    "fail": (lambda n: fail(Refused(n)), [Refused]),
    "die": (lambda n: die(Refused(n)), [Refused]),
    "inner": (lambda n: par_traverse([n], translated), [Refused, ValueError, KeyError]),
}


def chain_of(error: BaseException | None) -> list[type[BaseException]]:
    chain: list[type[BaseException]] = []
    while error is not None:
        chain.append(type(error))
        error = error.__context__
    return chain


@pytest.mark.parametrize("name", CONTEXTS)
async def test_an_error_has_its_own_context(name: str) -> None:
    make, expected = CONTEXTS[name]
    with pytest.raises(expected[0]) as caught:
        await make(1).run_or_raise(None)
    assert chain_of(caught.value) == expected
    with pytest.raises(expected[0]) as caught:
        await race([make(1), sleep(9)]).run_or_raise(None)
    assert chain_of(caught.value) == expected
    with pytest.raises(expected[0]) as caught:
        await par(make(1), sleep(9).on_exit(sleep(0))).timeout(5).run_or_raise(None)
    assert chain_of(caught.value) == expected


@pytest.mark.parametrize("gather", [par_all, first_success])
@pytest.mark.parametrize("name", [name for name in CONTEXTS if name not in ("die", "thread")])
async def test_gathered_errors_have_each_its_own_context(gather: Any, name: str) -> None:
    make, expected = CONTEXTS[name]

    @do
    def body() -> Do[object, Any, Any]:
        try:
            return (yield from gather([make(number) for number in range(3)]))
        except EffectError as failure:
            return failure.error

    with pytest.raises(EffectError) as caught:
        await gather([make(number) for number in range(3)]).run_or_raise(None)
    for errors in (cast("list[Any]", caught.value.error), await body().run_or_raise(None)):
        assert [chain_of(error) for error in errors] == [expected] * 3
        contexts = {id(error.__context__) for error in errors}
        assert len(expected) == 1 or len(contexts) == 3


@pytest.mark.parametrize("gather", [par_all, first_success])
async def test_gathered_errors_show_each_its_own_trail(gather: Any) -> None:
    first, second = KeyError("a"), KeyError("b")
    both = gather([fail(first).context("reading"), fail(second).context("writing")])

    for _ in range(2):
        [a, b] = (await both.run(None)).failure()
        assert (a.__notes__, b.__notes__) == (["reading"], ["writing"])
    assert (await both.traced().run(None)).failure().trail == ("reading", "writing")


@do
def raising_one(gathered: Effect[object, Any, Any]) -> Do[object, Any, Any]:
    try:
        return (yield from gathered)
    except EffectError as failure:
        errors: list[Any] = cast("list[Any]", failure.error)
        yield from fail(errors[1])


@do
def choosing_one(gathered: Effect[object, Any, Any]) -> Do[object, Any, Any]:
    errors = (yield from gathered.result()).failure()
    yield from fail(errors[1])


CHOSEN: dict[str, Callable[[Effect[object, Any, Any]], Effect[object, Any, Any]]] = {
    "or_else": lambda gathered: gathered.or_else(lambda errors: fail(errors[1])),
    "map_err": lambda gathered: gathered.map_err(lambda errors: errors[1]),
    "result": lambda gathered: gathered.result().and_then(lambda it: fail(it.failure()[1])),
    "body that catches": raising_one,
    "body with a result": choosing_one,
    "die": lambda gathered: gathered.or_else(lambda errors: die(errors[1])),
}


@pytest.mark.parametrize("gather", [par_all, first_success])
@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
async def test_one_of_many_gathered_errors_keeps_its_own_trail(gather: Any, chosen: Any) -> None:
    both = gather([fail(KeyError("a")).context("reading"), fail(KeyError("b")).context("writing")])

    for _ in range(2):
        with pytest.raises(KeyError, match="b") as caught:
            await chosen(both.context("copying")).context("saving").run_or_raise(None)
        assert caught.value.__notes__ == ["writing", "copying", "saving"]


@pytest.mark.parametrize("gather", [par_all, first_success])
async def test_an_error_within_gathered_errors_keeps_its_own_trail(gather: Any) -> None:
    inner = gather([fail("a").context("reading"), fail("b").context("writing")])
    outer = gather([inner.context("inside"), fail("c").context("closing")])

    chosen = outer.or_else(lambda errors: fail(errors[0][1])).traced()

    assert (await chosen.run(None)).failure().trail == ("writing", "inside")


@pytest.mark.parametrize("gather", [par_all, first_success])
async def test_a_new_error_that_replaces_gathered_errors_has_the_trail_of_its_handler(
    gather: Any,
) -> None:
    both = gather([fail("a").context("reading"), fail("b").context("writing")])

    replaced = both.or_else(lambda _: fail("c")).traced()
    counted = both.map_err(len).traced()

    assert (await replaced.run(None)).failure().trail == ()
    assert (await counted.run(None)).failure().trail == ("reading", "writing")
