"""Once a step has released something of what an operator cancelled, nothing in there is tried again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    Workflow,
    attempt,
    bracket,
    fail,
    par,
    par_traverse,
    pure,
    race,
    step,
    workflow,
)
from effectflow.checkpoint import RunStatus, find_run
from effectflow.effects import from_async, from_fn, par_reduce, par_try_all
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore
from effectflow.testing import crash_everywhere
from tests.apps import both_backends
from tests.runs.journals import made_of
from tests.runs.reservations import (
    AnyEffect,
    AnyWorkflow,
    App,
    acting,
    completed_steps,
    everywhere,
    others_wait,
    reserved,
    run_until,
    somewhere,
    turns,
    use,
    use_nothing,
    wait,
    waiting_forever,
)
from tests.sweeps import in_turn, sample_or_all

pytestmark = pytest.mark.anyio

REPAIRED = "repaired"
"""What `others_fail` finds in the world once its cause is gone, and what waited before then ends."""


@step
def others_fail() -> Effect[App, str, str]:
    """Fails once the others have been waiting, until it is repaired."""

    def look(app: App) -> AnyEffect:
        if REPAIRED in app.world.held:
            return pure("well")
        return from_async(others_wait).and_then(lambda _: fail("no"))

    return from_fn(look).and_then(lambda effect: effect)


@step
def waiting(what: str, *, is_last: bool = False) -> AnyEffect:
    """Waits forever, but not in a world that is repaired. With `is_last`, lets the others begin first."""

    def look(app: App) -> AnyEffect:
        if REPAIRED in app.world.held:
            return acting(f"go on after {what}", lambda _: None)
        first: AnyEffect = from_async(others_wait) if is_last else pure(None)
        return first.and_then(lambda _: waiting_forever(what))

    return from_fn(look).and_then(lambda effect: effect)


def of_item(held: Callable[[], AnyEffect]) -> Callable[[str], AnyEffect]:
    return lambda item: others_fail() if item == "bad" else held()


def joined(texts: list[Any]) -> AnyEffect:
    return pure(" ".join(texts))


def limited() -> AnyEffect:
    return waiting("c", is_last=True).timeout(1)


def in_a_graph(held: Callable[[], AnyEffect]) -> Callable[[str], AnyEffect]:
    graph = StateGraph[App, Any, str]("holding").node("hold", lambda _: held())
    return graph.entry("hold").exit("hold").build().body


ONCE_MORE = RetryPolicy.constant(0.001).with_max_retries(1)

Cancelling = Callable[[Callable[[], AnyEffect]], AnyEffect]
ITEMS = ["good", "bad"]

CANCELLING: dict[str, Cancelling] = {
    "timeout": lambda held: held().timeout(1),
    "race": lambda held: race([held(), others_fail()]),
    "par": lambda held: par(held(), others_fail()),
    "par_try_all": lambda held: par_try_all([held(), others_fail()], limit=2),
    "par_traverse": lambda held: par_traverse(ITEMS, of_item(held)),
    "par_traverse with keys": lambda held: par_traverse(ITEMS, of_item(held), key=str),
    "par_reduce": lambda held: par_reduce(ITEMS, of_item(held), joined, limit=2),
    "par_reduce with keys": lambda held: par_reduce(ITEMS, of_item(held), joined, limit=2, key=str),
    "beside a timeout": lambda held: par(held(), limited()),
    "beside a retry": lambda held: par(held(), others_fail().retry(ONCE_MORE)),
    "deep within": lambda held: par_traverse(["a"], in_a_graph(held)).timeout(600).timeout(1),
    "within another": lambda held: par(use_nothing("x"), par(held(), others_fail())),
}
all_operators = pytest.mark.parametrize("cancelling", CANCELLING.values(), ids=CANCELLING.keys())


def held_by_steps() -> AnyEffect:
    return reserved("a", waiting)


def opened_by_none() -> AnyEffect:
    """The finalizer is not a step, though it is not synchronous either."""
    opened: AnyEffect = pure("a")
    return bracket(opened, lambda _: from_async(others_wait), waiting)


def ending(effect: AnyEffect) -> AnyWorkflow:
    return made_of(lambda: effect, "ending")


def handling(effect: AnyEffect) -> AnyWorkflow:
    @workflow
    def handling(_: str) -> Do[App, Any, Any]:
        failed = yield from effect.result()
        return [repr(failed), (yield from use_nothing("b"))]

    return handling


both_ways = pytest.mark.parametrize("made_of", [ending, handling])


def shown(result: object) -> str:
    """Return a result as text, without the real time that retries took in this run."""
    return re.sub(r"within [0-9.]+ s", "within its time", repr(result))


@both_backends
@all_operators
async def test_a_decision_that_ended_the_run_stands_once_something_was_released(
    store: MemoryStore, cancelling: Cancelling
) -> None:
    app, made = App(Checkpoints(store)), ending(cancelling(held_by_steps))
    ended = await app.run(made.start("a", run_id="r"))
    assert isinstance(ended, Failure)
    steps, done = await completed_steps(store), list(app.world.done)
    assert app.world.held == set()

    app.world.held.add(REPAIRED)
    # Also in the life after the next, which has only the resume's word for it.
    for _ in range(2):
        again = App(Checkpoints(store), app.world)
        assert repr(await again.run(made.resume("r"))) == repr(ended)
        assert await completed_steps(store) == steps
        assert app.world.done == done


@both_backends
@all_operators
async def test_a_decision_that_ended_the_run_is_tried_again_if_no_step_released_anything(
    store: MemoryStore, cancelling: Cancelling
) -> None:
    app, made = App(Checkpoints(store)), ending(cancelling(opened_by_none))
    assert isinstance(await app.run(made.start("a", run_id="r")), Failure)
    app.world.held.add(REPAIRED)
    again = App(Checkpoints(store), app.world)
    assert isinstance(await again.run(made.resume("r")), Success)


@somewhere(cancelling=CANCELLING.values(), made_of=[ending, handling])
async def test_a_run_stopped_during_a_release_keeps_its_decision(
    store: MemoryStore,
    cancelling: Cancelling,
    made_of: Callable[[AnyEffect], Workflow[Any, Any, str, Any]],
    way: str,
) -> None:
    async with MemoryStore() as other:
        made = made_of(cancelling(held_by_steps))
        expected = await App(Checkpoints(other)).run(made.start("a", run_id="r"))
        steps = await completed_steps(other)
    app = App(Checkpoints(store), stop_in="release a")
    await run_until(app.began.wait, made.start("a", run_id="r"), app, way)

    app.world.held.add(REPAIRED)
    for _ in range(2):
        again = App(Checkpoints(store), app.world)
        assert shown(await again.run(made.resume("r"))) == shown(expected)
        assert await completed_steps(store) == steps
        for name in ("reserve a", "wait a", "release a"):
            assert app.world.done.count(name) == 1


@both_backends
@both_ways
@pytest.mark.parametrize("name", ["timeout", "race", "par", "par_traverse", "par_reduce with keys"])
@sample_or_all("every", 17, 1)
async def test_a_run_stopped_at_any_moment_uses_nothing_that_was_released(
    name: str, made_of: Callable[[AnyEffect], Workflow[Any, Any, str, Any]], every: int
) -> None:
    made = made_of(CANCELLING[name](held_by_steps))
    async with MemoryStore() as store:
        expected = shown(await App(Checkpoints(store)).run(made.start("a", run_id="r")))
        steps = await completed_steps(store)
    for count in range(0, 1000, every):
        async with MemoryStore() as store:
            app = App(Checkpoints(store))
            await run_until(lambda: turns(count), made.start("a", run_id="r"), app, "scope")  # noqa: B023
            info = await find_run(store, "r")
            if info is None:
                continue
            waited, is_released = app.world.done.count("wait a"), "release a" in app.world.done
            again = App(Checkpoints(store), app.world)
            assert shown(await again.run(made.resume("r"))) == expected, count
            assert await completed_steps(store) == steps, count
            assert app.world.held == set(), count
            if is_released:
                assert app.world.done.count("wait a") == waited, count
            if info.summary.status in (RunStatus.COMPLETED, RunStatus.FAILED):
                return
    raise AssertionError("it never got to its end")


@in_turn(made_of=[ending, handling], name=CANCELLING)
async def test_a_crash_at_any_append_changes_nothing_of_the_end(
    name: str,
    made_of: Callable[[AnyEffect], Workflow[Any, Any, str, Any]],
) -> None:
    made = made_of(CANCELLING[name](held_by_steps))
    assert await crash_everywhere(made, "a", lambda store: App(Checkpoints(store)))


@both_backends
async def test_a_timeout_around_a_cancelled_operator_is_tried_again(
    store: MemoryStore,
) -> None:
    """The inner failure was handled, and what the outer one cancelled held nothing."""

    @workflow
    def made(_: str) -> Do[App, Any, Any]:
        inner: AnyEffect = par(held_by_steps(), others_fail()).result()
        outer: AnyEffect = inner.and_then(lambda _: waiting("b"))
        return (yield from outer.timeout(1))

    app = App(Checkpoints(store))
    strike = app.clock.strike
    app.clock.strike = lambda: strike() if "wait b" in app.world.done else None
    ended = await app.run(made.start("a", run_id="r"))
    assert isinstance(ended.failure(), TimedOut)
    done = list(app.world.done)

    app.world.held.add(REPAIRED)
    again = App(Checkpoints(store), app.world)
    assert await again.run(made.resume("r")) == Success("go on after b")
    assert app.world.done == [*done, "go on after b"]


# A run that is stopped while an operator cancels, or a finalizer runs.


@everywhere
async def test_a_timeout_that_strikes_while_a_stopped_run_ends_decides_nothing(
    store: MemoryStore, way: str
) -> None:
    """The inner finalizer, which is not a step, takes longer than the time that is left."""

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
        async def run(app: App) -> str:
            if not stops:
                return "yes"
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await turns(60)
                # In answer to the cancellation.
                raise ConnectionError("no")

        return attempt(run, ConnectionError)

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


@both_backends
async def test_what_the_deadline_of_a_finalizer_cuts_off_is_released(store: MemoryStore) -> None:
    @workflow
    def made(what: str) -> Do[App, Any, object]:
        return (yield from pure(what).on_exit(reserved(what, wait)))

    app = App(Checkpoints(store))
    with pytest.raises(TimeoutError):
        await app.run(made.start("a", run_id="r"), finalizer_deadline=0.3)
    assert app.world.done == ["reserve a", "wait a", "release a"]
