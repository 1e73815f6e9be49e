"""The combinators of one flow: pairs, checks, recovery, contexts, names."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    EffectError,
    RetryPolicy,
    TimedOut,
    bracket,
    die,
    do,
    effect,
    fail,
    first_success,
    from_async,
    from_fn,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
    traverse,
)
from effectflow.checkpoint import CheckpointError, RunBusy
from effectflow.effects import EffectObserver, TracedError
from tests.apps import Told

pytestmark = pytest.mark.anyio


def writing(log: list[str], text: str) -> Effect[object, Any, str]:
    def write(_: object) -> str:
        log.append(text)
        return text

    return from_fn(write)


async def test_zip_with_combines_both_values() -> None:
    joined = pure("a").zip(pure("b")).zip_with(pure("c"), lambda ab, c: "".join([*ab, c]))
    assert await joined.run(None) == Success("abc")


async def test_ensure_checks_the_value() -> None:
    assert await pure(3).ensure(lambda n: n > 2, "too small").run(None) == Success(3)
    assert await pure(1).ensure(lambda n: n > 2, "too small").run(None) == Failure("too small")


async def test_recover_handles_one_class_of_errors() -> None:
    def failing(error: Exception) -> Effect[object, Exception, str]:
        return fail(error)

    recovered = failing(RunBusy("r", "pid 1", 2.0)).recover(
        CheckpointError, lambda error: pure(type(error).__name__)
    )
    assert await recovered.run(None) == Success("RunBusy")
    other = KeyError("k")
    assert await failing(other).recover(CheckpointError, lambda _: pure("")).run(None) == Failure(
        other
    )
    again = failing(RunBusy("r", "pid 1", 2.0)).recover(CheckpointError, lambda _: fail("still"))
    assert await again.run(None) == Failure("still")


async def test_traverse_goes_one_after_another_and_stops_at_a_failure() -> None:
    log: list[str] = []
    read: list[str] = []

    def items() -> Any:
        for item in "abxc":
            read.append(item)
            yield item

    one_by_one = traverse(items(), lambda item: fail(item) if item == "x" else writing(log, item))
    assert await one_by_one.run(None) == Failure("x")
    assert (log, read) == (["a", "b"], ["a", "b", "x"])
    assert await traverse([1, 2], lambda n: pure(-n)).run(None) == Success([-1, -2])


# Contexts.


async def test_a_trail_reads_inner_to_outer_and_never_nests() -> None:
    failing = fail("no route").context("connecting").context("loading").context("starting")

    assert await failing.run(None) == Failure("no route")
    traced = TracedError("no route", ("connecting", "loading", "starting"))
    assert await failing.traced().run(None) == Failure(traced)
    assert str(traced) == "starting: loading: connecting: no route"


async def test_a_trail_survives_map_err_parallel_operators_and_generators() -> None:
    inner = fail("no").context("inner").map_err(str.upper)
    side_by_side = par_traverse([1], lambda _: inner).context("outer")
    assert await side_by_side.traced().run(None) == Failure(TracedError("NO", ("inner", "outer")))

    everything = par_all([fail("a").context("in a"), fail("b").context("in b")])
    assert await everything.traced().run(None) == Failure(TracedError(["a", "b"], ("in a", "in b")))
    one_by_one = traverse([1], lambda _: inner).context("outer")
    assert await one_by_one.traced().run(None) == Failure(TracedError("NO", ("inner", "outer")))


async def test_a_handled_failure_leaves_no_trail() -> None:
    handled = fail("first").context("inner").or_else(lambda _: fail("second")).context("outer")

    assert await handled.traced().run(None) == Failure(TracedError("second", ("outer",)))


async def test_a_trail_shows_as_notes_each_once() -> None:
    error = OSError("no route")
    failing = fail(error).context("connecting").context("loading")
    await failing.run(None)
    await failing.run(None)
    assert error.__notes__ == ["connecting", "loading"]

    with pytest.raises(EffectError) as caught:
        await fail("no").context("connecting").run_or_raise(None)
    assert caught.value.__notes__ == ["connecting"]


async def test_defects_bear_contexts_and_names() -> None:
    bug = ValueError("bug")
    buggy = die(bug).context("connecting").named("load").context("starting")

    with pytest.raises(ValueError, match="bug"):
        await buggy.run(None)
    assert bug.__notes__ == ["connecting", "in 'load'", "starting"]


async def test_an_observer_is_told_of_named_effects_however_they_end() -> None:
    told = Told()
    observer: EffectObserver = told

    inner = pure(1).named("inner").and_then(lambda _: fail("no").named("failing"))
    await inner.named("outer").run(None, observer=observer)
    with pytest.raises(ValueError, match="bug"):
        await die(ValueError("bug")).named("buggy").run(None, observer=observer)
    with anyio.move_on_after(0.01):
        await from_async(lambda _: anyio.sleep_forever()).named("slow").run(None, observer=observer)

    assert told.log == [
        "outer began",
        "inner began",
        "inner ended: Success",
        "failing began",
        "failing ended: Failure",
        "outer ended: Failure",
        "buggy began",
        "buggy ended: Defect",
        "slow began",
        "slow ended: Interruption",
    ]


@do
def checkout(cart: str) -> Do[object, str, int]:
    return (yield from pure(len(cart)))


@effect(errors=KeyError)
def price(env: dict[str, int], item: str) -> int:
    return env[item]


async def test_an_effect_shows_what_it_is() -> None:
    """So that one that somebody forgot to run is recognised where it is printed."""
    loading = pure(1).named("load").map(str).timeout(3)

    assert repr(loading) == "pure(1).named('load').map(str).timeout(3)"
    assert repr(checkout("c-1")) == "checkout('c-1')"
    assert (
        repr(price("tea").context("pricing"))
        == "attempt(price('tea'), KeyError).context('pricing')"
    )
    assert repr(race([fail("no"), sleep(1)])) == "race([fail('no'), sleep(1)])"
    assert len(repr(par_all([pure("x" * 1000)]))) < 100


async def test_a_deep_effect_shows_its_end() -> None:
    deep: Effect[object, Any, Any] = pure(1)
    for _ in range(100_000):
        deep = deep.map(str)

    assert repr(deep).startswith("....map(str)")


# Context variables.


async def test_context_variables_behave_as_in_plain_async_code() -> None:
    """What an effect sets is there for the next one; what a parallel child sets stays with it."""
    variable: ContextVar[str] = ContextVar("variable", default="outer")

    def setting(value: str) -> Effect[object, Any, object]:
        return from_fn(lambda _: variable.set(value))

    reading: Effect[object, Any, str] = from_fn(lambda _: variable.get())

    assert await setting("here").and_then(lambda _: reading).run(None) == Success("here")
    assert variable.get() == "here"

    def child(value: str) -> Effect[object, Any, str]:
        return setting(value).and_then(lambda _: reading)

    assert await par_traverse("ab", child).run(None) == Success(["a", "b"])
    assert variable.get() == "here"


async def test_a_trail_survives_recover_tap_err_and_first_success() -> None:
    inner = fail("no").context("inner")

    passed_by = inner.recover(KeyError, lambda _: pure(1)).context("outer")
    assert await passed_by.traced().run(None) == Failure(TracedError("no", ("inner", "outer")))
    tapped = inner.tap_err(lambda _: pure(1)).context("outer")
    assert await tapped.traced().run(None) == Failure(TracedError("no", ("inner", "outer")))
    joined = first_success([inner, fail("neither").context("other")]).traced()
    assert await joined.run(None) == Failure(TracedError(["no", "neither"], ("inner", "other")))


async def test_a_mapped_error_bears_the_trail_as_notes() -> None:
    error = OSError("mapped")
    await fail("no").context("inner").map_err(lambda _: error).context("outer").run(None)
    assert error.__notes__ == ["inner", "outer"]


async def test_an_error_that_is_used_again_is_told_anew() -> None:
    error, bug = OSError("no route"), ValueError("bug")
    base = fail(error)
    await base.context("first use").run(None)
    await base.context("second use").run(None)
    assert error.__notes__ == ["second use"]

    for _ in range(3):
        with pytest.raises(ValueError, match="bug"):
            await die(bug).context("dying").run(None)
    assert bug.__notes__ == ["dying"]


async def test_items_that_can_be_read_once_are_not_read_twice_in_silence() -> None:
    policy = RetryPolicy.constant(0).with_max_retries(2)
    once: list[Effect[object, Any, Any]] = [
        par_all(fail("no") for _ in range(2)),
        traverse(iter([1]), lambda _: fail("no")),
    ]
    for failing in once:
        with pytest.raises(TypeError, match="only once"):
            await failing.retry(policy).run(None)


async def test_context_variables_do_not_pass_between_siblings() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def read_and_set(_: object) -> str:
        before = variable.get()
        variable.set("set by a sibling")
        await anyio.lowlevel.checkpoint()
        return before

    for limit in (None, 1):
        children = par_traverse([1, 2, 3], lambda _: from_async(read_and_set), limit=limit)
        assert await children.run(None) == Success(["unset"] * 3)
    assert variable.get() == "unset"


async def test_do_refuses_what_is_no_generator_function() -> None:
    def plain() -> Any:
        return pure(1)

    with pytest.raises(TypeError, match="yield from"):
        do(plain)


async def test_children_that_never_wait_do_not_keep_a_timeout_waiting() -> None:
    def endless() -> Any:
        while True:
            yield pure(1)

    with anyio.fail_after(10):
        result = await par_all(endless(), limit=2).timeout(0.01).run(None)
    assert isinstance(result.failure(), TimedOut)


async def test_an_interruption_is_not_hidden_by_what_a_body_raises() -> None:
    @do
    def body() -> Do[object, Any, None]:
        try:
            yield from sleep(60)
        finally:
            raise ValueError("bug in a finally")

    with anyio.move_on_after(0.01) as scope:
        await body().run(None)
    assert scope.cancelled_caught


async def test_a_release_that_raises_at_once_does_not_replace_the_error() -> None:
    def broken(_: object) -> Effect[object, Any, None]:
        raise RuntimeError("bug in release")

    used = bracket(pure(1), broken, lambda _: fail("use")).traced()
    [note] = (await used.run(None)).failure().trail
    assert "bug in release" in note
