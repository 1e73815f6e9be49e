"""What cancels within a run lets the run go on, so that finalizers run their steps."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    StateGraph,
    TimedOut,
    fail,
    from_async,
    from_fn,
    par,
    par_traverse,
    pure,
    race,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.workflows.reservations import (
    AnyEffect,
    AnyWorkflow,
    App,
    everywhere,
    others_wait,
    reserved,
    run_until,
    turns,
    use,
    use_nothing,
    wait,
)

pytestmark = pytest.mark.anyio


@workflow
def timing_out(what: str) -> Do[App, Any, object]:
    timed = yield from reserved(what, wait).timeout(1).result()
    assert isinstance(timed.failure(), TimedOut)
    return (yield from use_nothing(what))


@workflow
def losing(what: str) -> Do[App, Any, object]:
    winning = from_async(others_wait).and_then(lambda _: use_nothing("winner"))
    won = yield from race([reserved(what, wait), winning])
    return [won, (yield from use_nothing(what))]


@workflow
def beside_a_failure(what: str) -> Do[App, Any, object]:
    failing = from_async(others_wait).and_then(lambda _: failing_step("no"))
    items: list[AnyEffect] = [failing, reserved(what, wait)]
    failed = yield from par_traverse(items, lambda each: each).result()
    return [failed.failure(), (yield from use_nothing(what))]


@step
def failing_step(what: str) -> Effect[App, str, str]:
    return fail(what)


@workflow
def deep_within(what: str) -> Do[App, Any, object]:
    """What cancels is far outside of the finalizer, and the finalizers are within nodes and operators."""
    inside = par_traverse([what], lambda what: flow_of(what))
    timed = yield from inside.timeout(60).timeout(1).result()
    assert not isinstance(timed, Success)
    return (yield from use_nothing(what))


def flow_of(what: str) -> AnyEffect:
    holding = StateGraph[App, Any, str]("holding").node("hold", lambda what: reserved(what, wait))
    return holding.entry("hold").exit("hold").build().body(what)


CANCELLING: list[AnyWorkflow] = [timing_out, losing, beside_a_failure, deep_within]
all_that_cancel = pytest.mark.parametrize("made", CANCELLING, ids=lambda made: made.name)


@everywhere
@all_that_cancel
async def test_what_an_operator_cancels_is_released_at_once_and_by_no_resume(
    store: MemoryStore, made: AnyWorkflow, way: str
) -> None:
    app = App(Checkpoints(store), stop_in="go on after a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done.count("release a") == 1
    assert app.world.held == set()

    again = App(Checkpoints(store), app.world)
    assert isinstance(await again.run(made.resume("r")), Success)
    for name in ("reserve a", "wait a", "release a"):
        assert app.world.done.count(name) == 1


@everywhere
@pytest.mark.parametrize("made", [timing_out, losing], ids=lambda made: made.name)
async def test_a_run_stopped_while_an_operator_cancels_keeps_to_what_was_decided(
    store: MemoryStore, made: AnyWorkflow, way: str
) -> None:
    app = App(Checkpoints(store), stop_in="release a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    again = App(Checkpoints(store), app.world)
    assert isinstance(await again.run(made.resume("r")), Success)
    for name in ("reserve a", "wait a", "release a"):
        assert app.world.done.count(name) == 1


@everywhere
async def test_a_timeout_that_strikes_while_a_stopped_run_ends_decides_nothing(
    store: MemoryStore, way: str
) -> None:
    """The inner finalizer, which is no step, takes longer than the time that is left."""

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        lingering = use(what).on_exit(from_fn(late))
        return (yield from reserved(what, lambda _: lingering).timeout(1).result())

    def late(app: App) -> None:
        if app.stop_in is not None:
            app.clock.strike()

    app = App(Checkpoints(store), stop_in="use a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done == ["reserve a", "use a"]
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success(Success("use a"))
    assert app.world.problems == []
    assert app.world.done.count("release a") == 1


@everywhere
async def test_a_sibling_that_fails_while_the_run_is_stopped_decides_nothing(
    store: MemoryStore, way: str
) -> None:
    @step
    def stubborn() -> Effect[App, Any, str]:
        async def run(app: App) -> None:
            with anyio.CancelScope(shield=True):
                await turns(60)

        return from_async(run).and_then(lambda _: fail("no") if stops else pure("yes"))

    def lingering(_: object) -> AnyEffect:
        async def run(app: App) -> None:
            app.began.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await turns(90)

        return from_async(run) if stops else use("a")

    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from par(stubborn(), reserved(what, lingering)))

    stops = True
    app = App(Checkpoints(store))
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)
    assert app.world.done == ["reserve a"]
    stops = False
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success(("yes", "use a"))
    assert app.world.problems == []


async def test_what_the_deadline_of_a_finalizer_cuts_off_is_released(store: MemoryStore) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from pure(what).on_exit(reserved(what, wait)))

    app = App(Checkpoints(store))
    with pytest.raises(TimeoutError):
        await app.run(made.start("a", run_id="r"), finalizer_deadline=1)
    assert app.world.done == ["reserve a", "wait a", "release a"]
