"""Failures, defects and interruptions in `@do` bodies: what a body catches, and what leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    EffectError,
    die,
    do,
    fail,
    from_async,
    from_fn,
    par,
    pure,
    race,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on
from tests.workflows.journals import (
    AnyEffect,
    act,
    clock_at,
    cut,
    hang,
    journal,
    late,
    next_life,
    resume,
    start,
)

if TYPE_CHECKING:
    from decimal import Decimal as Missing

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Declined:
    """A failure that is not an exception."""

    reason: str


class Refused(Exception):
    """A declared failure."""


async def ended(effect: AnyEffect) -> Any:
    return await effect.run(None)


# What a body catches.


async def test_a_failure_is_raised_where_the_body_yields() -> None:
    @do
    def body() -> Do[object, Broken, list[str]]:
        trace: list[str] = []
        try:
            yield from fail(Broken("card"))
            trace += ["not reached"]
        except Broken as error:
            trace += [f"caught {error}"]
            trace += [(yield from pure("handled"))]
        else:
            trace += ["else"]
        finally:
            trace += [(yield from pure("finally"))]
        return trace

    assert await ended(body()) == Success(["caught card", "handled", "finally"])


async def test_else_runs_on_success_alone() -> None:
    @do
    def body() -> Do[object, Broken, list[str]]:
        trace: list[str] = []
        try:
            yield from pure(None)
        except Broken:
            trace += ["except"]
        else:
            trace += ["else"]
        finally:
            trace += ["finally"]
        return trace

    assert await ended(body()) == Success(["else", "finally"])


@pytest.mark.parametrize("error", [Declined("limit"), "text", 7, StopIteration(3)])
async def test_an_error_that_cannot_be_raised_arrives_in_an_effect_error(error: object) -> None:
    @do
    def body() -> Do[object, object, object]:
        try:
            return (yield from fail(error))
        except EffectError as wrapped:
            return wrapped.error

    assert await ended(body()) == Success(error)


async def test_an_effect_error_that_leaves_is_the_error_again() -> None:
    @do
    def body() -> Do[object, Declined, object]:
        try:
            return (yield from fail(Declined("limit")))
        finally:
            yield from pure(None)

    assert await ended(body()) == Failure(Declined("limit"))


async def test_a_failure_that_is_not_caught_keeps_its_trail() -> None:
    @do
    def body() -> Do[object, Broken, object]:
        return (yield from fail(Broken("card")).context("charging"))

    found = await ended(body().context("checkout").traced())
    assert str(found.failure()) == "checkout: charging: card"


async def test_a_bare_raise_keeps_the_kind_and_the_trail() -> None:
    @do
    def body() -> Do[object, Broken, object]:
        try:
            return (yield from fail(Broken("card")).context("charging"))
        except Broken:
            yield from pure("note")
            raise

    assert str((await ended(body().traced())).failure()) == "charging: card"


async def test_an_outer_body_catches_what_leaves_an_inner_one() -> None:
    @do
    def inner() -> Do[object, Broken, object]:
        return (yield from fail(Broken("card")))

    @do
    def outer() -> Do[object, object, object]:
        try:
            return (yield from inner())
        except Broken as error:
            return f"outer caught {error}"

    assert await ended(outer()) == Success("outer caught card")


# What a body raises.


async def test_a_declared_exception_that_a_body_raises_is_a_failure() -> None:
    @do
    def body() -> Do[object, Broken | Refused, object]:
        yield from pure(None)
        raise Refused("no stock")

    assert isinstance((await ended(body())).failure(), Refused)


async def test_a_declared_exception_is_a_failure_before_the_first_yield() -> None:
    @do
    def body() -> Do[object, Refused, object]:
        if True:
            raise Refused("at once")
        yield from pure(None)

    assert isinstance((await ended(body())).failure(), Refused)


@pytest.mark.parametrize("declared", [Broken, Any, object, str])
async def test_any_other_exception_is_a_defect(declared: Any) -> None:
    def body() -> Any:
        yield from pure(None)
        raise Refused("no stock")

    body.__annotations__["return"] = Do[object, declared, object]
    with pytest.raises(Refused):
        await ended(do(body)())


async def test_a_declared_exception_raised_instead_of_another_is_a_failure() -> None:
    @do
    def body() -> Do[object, Broken | Refused, object]:
        try:
            return (yield from fail(Broken("card")))
        except Broken as error:
            raise Refused("card") from error

    found = (await ended(body())).failure()
    assert isinstance(found, Refused)
    assert isinstance(found.__cause__, Broken)


async def test_annotations_that_cannot_be_resolved_are_named() -> None:
    @do
    def body() -> Do[object, Missing, object]:
        yield from pure(None)
        raise Refused("no stock")

    with pytest.raises(TypeError, match="body"):
        await ended(body())


async def test_a_defect_does_not_become_a_failure_by_crossing_a_body_that_declares_it() -> None:
    @do
    def body() -> Do[object, KeyError, object]:
        yield from pure(None)
        return (yield from die(KeyError("bug")))

    with pytest.raises(KeyError, match="bug"):
        await ended(body().fallback("handled"))


async def test_nor_by_crossing_it_after_other_effects() -> None:
    @do
    def body() -> Do[object, KeyError, object]:
        try:
            return (yield from die(KeyError("bug")))
        except KeyError:
            for _ in range(3):
                yield from pure("cleaning up")
            raise

    with pytest.raises(KeyError, match="bug"):
        await ended(body().fallback("handled"))


async def test_a_defect_of_a_step_stays_a_defect_over_the_lives(store: MemoryStore) -> None:
    @step
    def look_up() -> Effect[App, str, int]:
        return die(KeyError("bug"))

    @workflow
    def made(_: object) -> Do[App, str | KeyError, object]:
        return (yield from look_up())

    for life in (start, resume):
        with pytest.raises(KeyError, match="bug"):
            await life(made, app_on(store))


async def test_the_same_error_can_be_raised_again_and_again() -> None:
    error = Broken("card")

    @do
    def body() -> Do[object, Broken, object]:
        return (yield from fail(error))

    for _ in range(5):
        assert await ended(body()) == Failure(error)
    assert error.__traceback__ is None
    assert error.__context__ is None


async def test_context_is_restored_after_a_throw_inside_a_handler() -> None:
    error = Broken("second")

    @do
    def body() -> Do[object, Broken, object]:
        try:
            return (yield from fail(Broken("first")))
        except Broken:
            return (yield from fail(error))

    assert await ended(body()) == Failure(error)
    assert error.__context__ is None


async def test_a_body_may_swallow_a_defect() -> None:
    @do
    def body() -> Do[object, str, object]:
        try:
            return (yield from die(Crash("bug")))
        except Crash:
            return "survived"

    assert await ended(body()) == Success("survived")


# `finally: yield` in a durable run.


def holding(using: AnyEffect) -> Any:
    """Return a workflow that releases in a `finally` block."""

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        yield from act("acquire")
        try:
            return (yield from using)
        finally:
            yield from act("release")

    return made


async def test_finally_runs_on_success(store: MemoryStore) -> None:
    app = app_on(store)
    assert await start(holding(act("use")), app) == Success("use")
    assert app.world.done == ["acquire", "use", "release"]


async def test_finally_runs_on_failure_and_settles_it(store: MemoryStore) -> None:
    made = holding(act("use"))
    app = app_on(store, failing=["use"])
    assert str((await start(made, app)).failure()) == "use"
    assert "B release <- F use" in await journal(store)
    # What was released is not used again.
    again = next_life(app)
    assert str((await resume(made, again)).failure()) == "use"
    assert again.world.done == []


async def test_finally_runs_on_a_defect_of_a_step(store: MemoryStore) -> None:
    made = holding(act("use"))
    app = app_on(store)
    app.world.crashing.add("use")
    with pytest.raises(Crash):
        await start(made, app)
    assert app.world.done == ["acquire", "use", "release"]
    again = next_life(app)
    with pytest.raises(Exception, match="Crash: use#1"):
        await resume(made, again)
    assert again.world.done == []


async def test_finally_that_yields_in_what_a_timeout_cancels_is_a_defect(
    store: MemoryStore,
) -> None:
    @do
    def held() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            yield from act("release")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from held().timeout(1).result())

    app = app_on(store)
    with pytest.raises(RuntimeError, match="on_exit"):
        await start(made, app)
    assert app.world.done == ["use"]


async def test_finally_that_yields_in_the_loser_of_a_race_is_a_defect(store: MemoryStore) -> None:
    @do
    def held() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            yield from act("release")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from race([held(), late("win", 1)]))

    app = app_on(store)
    for life in (start, resume):
        with pytest.raises(RuntimeError, match="on_exit"):
            await life(made, app)
    assert app.world.done == ["use", "win"]


async def test_corrected_code_releases_what_the_loser_of_a_race_held(store: MemoryStore) -> None:
    @do
    def held() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            yield from act("release")

    using = held()

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from race([using, late("win", 1)]))

    app = app_on(store)
    with pytest.raises(RuntimeError, match="on_exit"):
        await start(made, app)
    using = hang("use").on_exit(act("release"))
    assert await resume(made, app) == Success("win")
    assert app.world.done == ["use", "win", "release"]


async def test_finally_that_yields_beside_a_failure_is_a_defect(store: MemoryStore) -> None:
    @do
    def held() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            yield from act("release")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from par(held(), late("b", 1)).result())

    app = app_on(store, failing=["b"])
    with pytest.raises(RuntimeError, match="on_exit"):
        await start(made, app)


async def test_finally_without_a_yield_runs_when_a_decision_cancels(store: MemoryStore) -> None:
    closed: list[str] = []

    @do
    def held() -> Do[App, Any, Any]:
        try:
            return (yield from hang("use"))
        finally:
            closed.append("closed")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from held().timeout(1).fallback("late"))

    assert await start(made, app_on(store)) == Success("late")
    assert closed == ["closed"]


async def test_an_outside_stop_leaves_finally_to_the_resume(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    made = holding(hang("use"))
    app, clock = app_on(store), clock_at()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await made.start(None, run_id="r").run(app, clock=clock)

        tasks.start_soon(run)
        await clock.advance(1)
        tasks.cancel_scope.cancel()
    assert app.world.done == ["acquire", "use"]
    assert (await journal(store))[-1] == "I use"
    assert caplog.records == []
    # The resume comes to it.
    finished = holding(act("use"))
    again = next_life(app)
    assert await resume(finished, again) == Success("use")
    assert again.world.done == ["use", "release"]


async def test_a_body_cannot_swallow_an_interruption() -> None:
    reached: list[str] = []

    async def wait(_: object) -> None:
        await anyio.sleep_forever()

    @do
    def body() -> Do[object, str, object]:
        try:
            yield from from_async(wait)
        except BaseException:
            reached.append("caught")
        yield from from_fn(lambda _: reached.append("went on"))
        return None

    with anyio.move_on_after(0.01):
        await ended(body())
    assert "went on" not in reached


async def test_a_handled_failure_is_handled_again_by_a_resume(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        try:
            first = yield from act("charge")
        except Broken as error:
            first = f"handled {error}"
            yield from act("apologize")
        return [first, (yield from act("last"))]

    await start(made, app_on(store, failing=["charge", "last"]))
    app = app_on(store)
    assert await resume(made, app) == Success(["handled charge", "last"])
    assert app.world.done == ["last"]


async def test_a_crash_after_any_entry_leads_through_the_same_handlers(store: MemoryStore) -> None:
    @do
    def charging() -> Do[App, Any, Any]:
        try:
            return (yield from act("charge"))
        except Broken:
            return (yield from act("other-card"))
        finally:
            yield from act("log")

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from charging())

    failing = ["charge"]
    expected = await start(made, app_on(store, failing=failing))
    assert expected == Success("other-card")
    for count in range(1, len(await journal(store)) + 1):
        app = app_on(await cut(store, count), failing=failing)
        assert await resume(made, app) == expected
