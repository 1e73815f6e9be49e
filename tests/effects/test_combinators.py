"""The combinators of one flow: pairs, checks, recovery, contexts, names."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    EffectError,
    EmptyRace,
    RetryPolicy,
    TimedOut,
    bracket,
    do,
    effect,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
)
from effectflow.checkpoint import CheckpointError, RunBusy
from effectflow.effects import (
    EffectObserver,
    TracedError,
    asks,
    catch,
    die,
    first_success,
    from_async,
    from_fn,
    from_optional,
    partition,
    traverse,
)
from tests.apps import Told

pytestmark = pytest.mark.anyio


def writing(log: list[str], text: str) -> Effect[object, Any, str]:
    def write(_: object) -> str:
        log.append(text)
        return text

    return from_fn(write)


async def test_catch_turns_failures_of_its_classes_into_values_and_lets_the_others_pass() -> None:
    both = catch(KeyError, OSError)
    assert await both(pure(1)).run(None) == Success(Success(1))
    missing = KeyError("cap")
    caught = both(fail(missing).context("loading"))
    assert (await caught.run(None)).unwrap() == Failure(missing)
    assert missing.__notes__ == ["loading"]
    passed = both(fail("closed").context("loading")).traced()
    assert (await passed.run(None)).failure() == TracedError("closed", ("loading",))
    with pytest.raises(KeyError):
        await both(die(missing)).run(None)
    assert repr(both(pure(1))) == "pure(1).map(Success).catch(KeyError, OSError)"


def test_catch_takes_classes() -> None:
    with pytest.raises(TypeError, match="catch takes classes of errors"):
        catch()
    with pytest.raises(TypeError, match="not KeyError"):
        catch(KeyError("cap"))  # type: ignore[call-overload]


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


async def test_zip_runs_any_number_of_effects_one_after_another() -> None:
    log: list[str] = []
    zipped = writing(log, "a").zip(writing(log, "b"), writing(log, "c"))
    assert await zipped.run(None) == Success(("a", "b", "c"))
    assert log == ["a", "b", "c"]

    failing = writing(log, "d").zip(fail("no").context("inner"), writing(log, "e"))
    assert await failing.traced().run(None) == Failure(TracedError("no", ("inner",)))
    assert log == ["a", "b", "c", "d"]


async def test_ensure_with_makes_the_error_from_the_value() -> None:
    checked = pure(1).ensure_with(lambda n: n > 2, lambda n: f"{n} is too small")
    assert await checked.run(None) == Failure("1 is too small")
    assert await pure(3).ensure_with(lambda n: n > 2, lambda n: [n]).run(None) == Success(3)


async def test_recover_handles_several_classes_and_what_a_predicate_selects() -> None:
    def recovering(error: object) -> Effect[object, object, str]:
        some = fail(error).recover(
            (KeyError, ValueError), lambda error: pure(f"class {error.args[0]}")
        )
        return some.recover(lambda error: error == 503, lambda error: pure(f"status {error}"))

    assert await recovering(KeyError("k")).run(None) == Success("class k")
    assert await recovering(ValueError("v")).run(None) == Success("class v")
    assert await recovering(503).run(None) == Success("status 503")
    assert await recovering(404).run(None) == Failure(404)


async def test_a_race_takes_effects_or_one_list_of_them() -> None:
    slow, quick = sleep(60).map(lambda _: "slow"), pure("quick")
    assert await race(slow, quick).run(None) == Success("quick")
    assert await race([slow, quick]).run(None) == Success("quick")
    assert await race(quick).run(None) == Success("quick")
    assert isinstance((await race([]).run(None)).failure(), EmptyRace)


async def test_from_optional_fails_for_none_only() -> None:
    assert await from_optional(None, "missing").run(None) == Failure("missing")
    assert await from_optional(0, "missing").run(None) == Success(0)


async def test_results_and_errors_of_a_parallel_operator_by_item() -> None:
    items = [3, -1, 2, -2]

    def check(n: int) -> Effect[object, str, int]:
        return sleep(0.001 * abs(n)).map(lambda _: n * n) if n > 0 else fail(f"{n} is negative")

    results = (await par_traverse(items, lambda n: check(n).result(), limit=2).run(None)).unwrap()
    assert partition(results) == ([9, 4], ["-1 is negative", "-2 is negative"])
    done, failed = partition(dict(zip(items, results, strict=True)))
    assert (done, failed) == ({3: 9, 2: 4}, {-1: "-1 is negative", -2: "-2 is negative"})
    assert partition([]) == ([], [])


def test_run_sync_or_raise_returns_the_value_or_raises_the_error() -> None:
    assert pure(1).run_sync_or_raise(None) == 1
    assert pure(1).run_sync_or_raise(None, backend="trio") == 1
    with pytest.raises(KeyError):
        fail(KeyError("k")).run_sync_or_raise(None)
    with pytest.raises(EffectError, match="no"):
        fail("no").run_sync_or_raise(None)


@dataclass(frozen=True)
class Shop:
    name: str
    price: int


class HasName(Protocol):
    @property
    def name(self) -> str: ...


class HasPrice(Protocol):
    @property
    def price(self) -> int: ...


def name_of(env: HasName) -> str:
    return env.name


def price_of(env: HasPrice) -> int:
    return env.price


async def test_within_combines_effects_that_need_different_protocols() -> None:
    name, cost = asks(name_of).within(Shop), asks(price_of).within(Shop)

    @do
    def told() -> Do[Shop, object, tuple[object, ...]]:
        both = yield from par(name, cost)
        pair = yield from name.zip(cost)
        first = yield from race(sleep(60).within(Shop).and_then(lambda _: cost), name)
        used = yield from bracket(name, lambda _: pure(None), lambda _: cost)
        return both, pair, first, used

    pair = ("tea", 3)
    assert await told().run(Shop("tea", 3)) == Success((pair, pair, "tea", 3))


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


async def test_the_repr_of_an_effect_shows_how_it_was_written() -> None:
    """So that one that somebody forgot to run is recognised where it is printed."""
    loading = pure(1).named("load").map(str).timeout(3)

    assert repr(loading) == "pure(1).named('load').map(str).timeout(3)"
    assert repr(checkout("c-1")) == "checkout('c-1')"
    assert repr(price("tea").context("pricing")) == "price('tea').context('pricing')"
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


async def test_a_reused_error_gets_new_notes_in_each_run() -> None:
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


async def test_do_rejects_a_function_that_only_returns_an_effect() -> None:
    def plain() -> Any:
        return pure(1)

    with pytest.raises(TypeError, match="a function that returns an effect needs no @do"):
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
