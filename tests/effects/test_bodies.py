"""Failures are exceptions in `@do` bodies: what is raised where, and what leaves a body as what."""

from __future__ import annotations

import contextlib
import gc
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Never, cast

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, EffectError, TimedOut, do, fail, par_all, pure
from effectflow.effects import TracedError, die, from_async, from_fn, par_try_all

pytestmark = pytest.mark.anyio


class Declined(Exception):
    """A failure that bodies declare."""


class DeclinedForNow(Declined):
    """A failure of a class that derives from what bodies declare."""


class Unknown(Exception):
    """An exception that no body declares."""


def declined(error: Exception | None = None) -> Effect[object, Declined, int]:
    return fail(Declined("no") if error is None else error)  # type: ignore[arg-type]


# What a body catches.


@pytest.mark.parametrize(
    ("received", "expected"),
    [(declined(), ["no", "finally"]), (pure(1), ["no failure", "finally"])],
    ids=["failure", "success"],
)
async def test_a_failure_is_raised_where_it_is_received(
    received: Effect[object, Declined, int], expected: list[str]
) -> None:
    seen: list[str] = []

    @do
    def body() -> Do[object, Declined, str]:
        try:
            yield from received
        except Declined as error:
            seen.append(str(error))
        else:
            seen.append("no failure")
        finally:
            seen.append((yield from pure("finally")))
        return (yield from pure("went on"))

    assert await body().run(None) == Success("went on")
    assert seen == expected


@pytest.mark.parametrize("error", ["text", 7, ("a", 1), StopIteration("end")])
async def test_an_error_that_cannot_be_raised_arrives_in_an_effect_error(error: object) -> None:
    @do
    def body() -> Do[object, object, object]:
        try:
            yield from fail(error)
        except EffectError as raised:
            return raised.error
        return None

    assert await body().run(None) == Success(error)


async def test_effects_of_handlers_run() -> None:
    done: list[str] = []

    def act(name: str) -> Effect[object, Never, None]:
        return from_fn(lambda _: done.append(name))

    @do
    def body() -> Do[object, Declined, str]:
        for _ in range(2):
            try:
                yield from act("charge")
                yield from declined()
            except Declined:
                yield from act("compensate")
            finally:
                yield from act("release")
        return "ended"

    assert await body().run(None) == Success("ended")
    assert done == ["charge", "compensate", "release"] * 2


# What leaves a body.


async def test_an_unhandled_failure_fails_the_body() -> None:
    error = Declined("no")

    @do
    def body() -> Do[object, Declined, int]:
        try:
            return (yield from declined(error))
        except KeyError:
            return 1

    ended = await body().run(None)
    assert ended == Failure(error)
    assert ended.failure() is error


async def test_an_error_that_is_not_an_exception_leaves_as_itself() -> None:
    @do
    def body() -> Do[object, str, int]:
        try:
            yield from fail("no")
        except EffectError:
            raise
        return 1

    assert await body().run(None) == Failure("no")


@pytest.mark.parametrize("raised", [Declined("now"), DeclinedForNow("now")])
async def test_raising_what_the_annotation_declares_is_a_failure(raised: Declined) -> None:
    @do
    def body() -> Do[object, Declined | str, int]:
        yield from pure(1)
        raise raised

    assert await body().run(None) == Failure(raised)
    assert await body().result().map(lambda ended: ended.failure()).run(None) == Success(raised)


async def test_a_failure_may_be_raised_as_another() -> None:
    @do
    def body() -> Do[object, Declined | KeyError, int]:
        try:
            return (yield from fail(KeyError("k")))
        except KeyError as error:
            raise Declined("instead") from error

    ended = await body().run(None)
    assert isinstance(ended.failure(), Declined)
    assert isinstance(ended.failure().__cause__, KeyError)


@pytest.mark.parametrize("declared", [Declined, str, Any, object])
async def test_raising_anything_else_is_a_defect(declared: Any) -> None:
    def body() -> Any:
        yield from pure(1)
        raise Unknown

    body.__annotations__["return"] = Do[object, declared, int]
    with pytest.raises(Unknown):
        await do(body)().result().run(None)


async def test_raising_anything_else_in_a_handler_is_a_defect() -> None:
    @do
    def body() -> Do[object, Declined, int]:
        try:
            return (yield from declined())
        except Declined:
            raise Unknown from None

    with pytest.raises(Unknown):
        await body().result().run(None)


async def test_a_declared_exception_is_a_failure_before_the_first_yield() -> None:
    @do
    def body() -> Do[object, Declined, object]:
        if True:
            raise Declined("at once")
        yield from pure(None)

    assert isinstance((await body().run(None)).failure(), Declined)


@pytest.mark.parametrize("is_caught", [False, True])
async def test_a_failure_that_leaves_a_body_keeps_its_trail(is_caught: bool) -> None:
    failing = declined().context("charging")
    caught = (Declined,) if is_caught else ()

    @do
    def body() -> Do[object, Declined, object]:
        try:
            return (yield from failing)
        except caught:
            yield from pure("note")
            raise

    found = await body().context("checkout").traced().run(None)
    assert str(found.failure()) == "checkout: charging: no"


async def test_an_outer_body_catches_what_leaves_an_inner_one() -> None:
    @do
    def inner() -> Do[object, Declined, int]:
        return (yield from declined())

    @do
    def outer() -> Do[object, object, object]:
        try:
            return (yield from inner())
        except Declined as error:
            return f"outer caught {error}"

    assert await outer().run(None) == Success("outer caught no")


async def test_a_body_may_swallow_a_defect() -> None:
    @do
    def body() -> Do[object, str, object]:
        try:
            return (yield from die(Unknown()))
        except Unknown:
            return "survived"

    assert await body().run(None) == Success("survived")


@pytest.mark.parametrize("is_caught", [False, True])
async def test_a_defect_that_crosses_a_body_which_declares_its_class_remains_a_defect(
    is_caught: bool,
) -> None:
    @do
    def inner() -> Do[object, Never, int]:
        yield from pure(1)
        raise KeyError("k")

    caught = (KeyError,) if is_caught else ()

    @do
    def outer() -> Do[object, KeyError, int]:
        try:
            return (yield from inner())
        except caught:
            for _ in range(3):
                yield from pure("cleaning up")
            raise

    with pytest.raises(KeyError):
        await outer().result().run(None)


async def test_a_failure_that_is_raised_later_is_still_that_failure() -> None:
    @do
    def body() -> Do[object, str, int]:
        kept: Exception | None = None
        try:
            yield from fail("no")
        except EffectError as error:
            kept = error
        yield from pure(1)
        assert kept is not None
        raise kept

    assert await body().run(None) == Failure("no")


class Slotted(Declined):
    """A failure that cannot be referred to weakly, as those of Python."""

    __slots__ = ()


OTHERS = 20
"""More failures than a body remembers in any case."""


Ended = Callable[[Exception], Effect[object, Any, object]]


@pytest.mark.parametrize("error", [Unknown("no"), KeyError("no"), Slotted("no")], ids=repr)
@pytest.mark.parametrize(("end", "is_failure"), [(fail, True), (die, False)])
async def test_what_is_raised_after_many_others_keeps_its_kind_and_its_trail(
    error: Exception, end: Ended, is_failure: bool
) -> None:
    @do
    def body() -> Do[object, KeyError | Declined, None]:
        kept: list[Exception] = []
        for number in range(OTHERS):
            try:
                yield from end(Unknown(number) if number else error).context("charging")
            except Exception as caught:
                kept.append(caught)
        raise kept[0]

    with pytest.raises(type(error)) if not is_failure else contextlib.nullcontext():
        result = await body().traced().run(None)
        assert result == Failure(TracedError(error, ("charging",)))


@pytest.mark.parametrize("error", [Declined("no"), Slotted("no")], ids=repr)
@pytest.mark.parametrize("again", ["fail", "raise"])
async def test_a_failure_that_was_received_as_a_result_keeps_its_trail_after_many_others(
    error: Declined, again: str
) -> None:
    @do
    def body() -> Do[object, Declined, None]:
        kept: list[Declined] = []
        for number in range(OTHERS):
            failing = fail(Declined(number) if number else error).context("charging")
            kept.append((yield from failing.result()).failure())
        if again == "raise":
            raise kept[0]
        yield from fail(kept[0])

    assert await body().traced().run(None) == Failure(TracedError(error, ("charging",)))


async def test_one_of_gathered_errors_keeps_its_trail_after_many_others() -> None:
    @do
    def body() -> Do[object, Any, None]:
        errors: list[Any] = []
        for number in range(OTHERS):
            both = par_all([fail(Declined(number)).context("charging"), fail("other")])
            try:
                yield from both
            except EffectError as gathered:
                errors += cast("list[Any]", gathered.error)
        yield from fail(errors[0])

    failed = (await body().traced().run(None)).failure()
    assert (str(failed.error), failed.trail) == ("0", ("charging",))


@pytest.mark.parametrize("kind", [Declined, KeyError, Slotted])
@pytest.mark.parametrize("end", [fail, die])
async def test_a_body_that_handles_failures_forever_does_not_keep_them(
    kind: type[Exception], end: Ended
) -> None:
    class Held:
        """Something that an error holds."""

    held: list[weakref.ref[Held]] = []

    def failing() -> Effect[object, Any, object]:
        error, part = kind("no"), Held()
        error.args = (part,)
        held.append(weakref.ref(part))
        return end(error).context("charging")

    @do
    def body() -> Do[object, Any, int]:
        for _ in range(50):
            with contextlib.suppress(kind):
                yield from failing()
            yield from failing().result() if end is fail else pure(None)
        gc.collect()
        return sum(part() is not None for part in held)

    assert (await body().run(None)).unwrap() <= OTHERS


SAME = """
from effectflow import Do, do, pure

class Declined(Exception): ...

@do
def body() -> Do[object, Declined, None]:
    yield from pure(None)
    raise Declined
"""


async def test_equal_bodies_of_two_modules_declare_each_its_own_class() -> None:
    modules = [ModuleType("first"), ModuleType("second")]
    for module in modules:
        exec(SAME, vars(module))
    for module in modules:
        assert isinstance((await module.body().run(None)).failure(), module.Declined)


async def test_an_annotation_that_cannot_be_resolved_is_named() -> None:
    def function() -> Any:
        yield pure(1)
        raise Unknown

    function.__annotations__["return"] = "Do[object, Missing, int]"

    with pytest.raises(TypeError, match=r"function.*Missing"):
        await do(function)().run(None)


async def test_a_frozen_exception_can_be_thrown_repeatedly() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    error = Frozen(1)

    @do
    def body() -> Do[object, Frozen, int]:
        for _ in range(3):
            with contextlib.suppress(Frozen):
                yield from fail(error)
        return (yield from fail(error))

    assert await body().run(None) == Failure(error)


async def test_an_error_does_not_grow_by_being_thrown() -> None:
    error = Declined("no")

    @do
    def body() -> Do[object, Declined, int]:
        for _ in range(10):
            with contextlib.suppress(Declined):
                yield from declined(error)
        try:
            return (yield from declined(Declined("another")))
        except Declined:
            return (yield from declined(error))

    assert await body().run(None) == Failure(error)
    [place] = traceback.extract_tb(error.__traceback__)
    assert place.line == "return (yield from declined(error))"
    assert error.__context__ is None


async def test_the_traceback_of_a_raised_failure_shows_the_body() -> None:
    @do
    def body() -> Do[object, Declined, int]:
        yield from pure(1)
        raise Declined("here")

    error = (await body().run(None)).failure()
    assert "in body" in "".join(traceback.format_exception(error))


# Interruption.


async def test_an_interruption_runs_finally_and_is_not_caught() -> None:
    seen: list[str] = []

    @do
    def body() -> Do[object, Never, None]:
        try:
            yield from from_async(lambda _: anyio.sleep_forever())
        except BaseException as raised:
            seen.append(type(raised).__name__)
            raise
        finally:
            seen.append("finally")

    assert isinstance((await body().timeout(0.01).run(None)).failure(), TimedOut)
    assert seen == ["GeneratorExit", "finally"]


async def test_an_effect_in_finally_while_an_operator_cancels_is_a_defect() -> None:
    """It would not be run, and the operator would go on as if it had been."""

    @do
    def body() -> Do[object, Never, None]:
        try:
            yield from from_async(lambda _: anyio.sleep_forever())
        finally:
            yield from pure(None)

    with pytest.raises(RuntimeError, match=r"on_exit.*bracket"):
        await body().timeout(0.01).run(None)
    with pytest.raises(RuntimeError, match=r"on_exit.*bracket"):
        await par_try_all([body(), fail("no")]).run(None)


async def test_a_body_is_closed_silently_when_the_run_is_stopped_from_outside() -> None:
    began = anyio.Event()

    @do
    def body() -> Do[object, Never, None]:
        try:
            yield from from_async(lambda _: wait())
        finally:
            yield from pure(None)

    async def wait() -> None:
        began.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(body().run, None)
        await began.wait()
        group.cancel_scope.cancel()


async def test_finally_with_an_effect_runs_after_a_defect() -> None:
    done: list[str] = []

    @do
    def body() -> Do[object, Never, None]:
        try:
            yield from die(Unknown())
        finally:
            yield from from_fn(lambda _: done.append("released"))

    with pytest.raises(Unknown):
        await body().run(None)
    assert done == ["released"]
