"""Sagas: what was done is undone, last first, unless all succeeds, also after crashes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Effect,
    RetryPolicy,
    TimedOut,
    bracket,
    compensate,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    saga,
    sleep,
    step,
    with_checkpointing,
)
from effectflow.checkpoint import (
    CompensationFailed,
    DefinitionChanged,
    Failed,
    RunCancelled,
    RunEnded,
    RunStatus,
    read_checkpoint,
    read_entries,
)
from effectflow.effects import die, from_async, from_fn, never
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, TestClock
from effectflow.testing.crash import crash_points
from tests.apps import App, Broken, Crash, World, app_on, note
from tests.runs.journals import AnyEffect, after_others, cut, in_turn, made_of
from tests.service.conftest import Service, both_stores
from tests.service.lives import (
    all_are,
    info_of,
    killed_everywhere,
    result_of,
    suspended,
    until,
    working,
)
from tests.sweeps import EVERY, visited

pytestmark = pytest.mark.anyio


def later(seconds: float, effect: AnyEffect) -> AnyEffect:
    waiting: AnyEffect = sleep(seconds)
    return waiting.and_then(lambda _: effect)


@step
def book(what: str) -> Effect[App, Broken, str]:
    done = note(f"book {what}").map(lambda _: what)
    return done.map_err(lambda _: Broken(f"no {what}"))


@step
def cancel(what: str) -> Effect[App, Broken, None]:
    return note(f"cancel {what}").map(lambda _: None)


@step
def slowly_cancel(what: str) -> Effect[App, Broken, None]:
    return later(0.05, note(f"cancel {what}")).map(lambda _: None)


@step
def hang() -> Effect[App, Broken, None]:
    return note("hang").and_then(lambda _: never())


@step
def book_after(seconds: float) -> Effect[App, Broken, str]:
    return later(seconds, note(f"book {seconds}")).map(lambda _: str(seconds))


def booked_after(seconds: float) -> AnyEffect:
    """Book something that can be cancelled, and that takes this time."""
    return compensate(book_after(seconds), cancel)


def cancelled(what: str) -> AnyEffect:
    """Cancel something, in a finalizer."""
    return cancel(what)


def booked(what: str) -> AnyEffect:
    """Book something that can be cancelled."""
    return compensate(book(what), cancel)


def undone(world: World) -> list[str]:
    """Return what was cancelled, in order."""
    return [action.removeprefix("cancel ") for action in world.done if action[:7] == "cancel "]


# What is undone, and in which order.


FAILURES: dict[str, AnyEffect] = {
    "failure": fail(Broken("no")),
    "defect": die(Crash("no")),
    "failed step": book("car"),
    "timeout inside": never().timeout(0.01),
    "failed sibling": par(never(), fail(Broken("no"))),
    "raising function": from_fn(lambda _: 1 / 0),
}
each_failure = pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)


@each_failure
@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
async def test_a_failed_body_is_undone_last_first(failure: AnyEffect, is_durable: bool) -> None:
    app = app_on(MemoryStore(), failing=["book car"])
    body = saga(in_turn(booked("flight"), booked("hotel"), failure))
    made = made_of(lambda: body).start(None)

    ended = await _end_of((made if is_durable else body).run(app))
    assert undone(app.world) == ["hotel", "flight"]
    assert ended == (await _end_of(failure.run(app)))


async def _end_of(running: Awaitable[object]) -> str:
    """Return how an effect ends, for comparison."""
    try:
        return repr(await running)
    except Exception as defect:
        return repr(defect)


CANCELLATIONS: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "timeout": lambda effect: effect.timeout(1),
    "lost race": lambda effect: race([effect, sleep(1)]),
    "failed sibling": lambda effect: par(effect, later(1, fail(Broken("no")))),
    "defect of a sibling": lambda effect: par(effect, later(1, die(Crash("no")))),
    "timeout around a failure": lambda effect: par(effect, never()).timeout(1).result(),
}
each_cancellation = pytest.mark.parametrize("cancelled", CANCELLATIONS.values(), ids=CANCELLATIONS)


@each_cancellation
@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
async def test_a_cancelled_body_is_undone_before_its_operator_ends(
    cancelled: Callable[[AnyEffect], AnyEffect], is_durable: bool
) -> None:
    app = app_on(MemoryStore())

    def body() -> AnyEffect:
        stuck = saga(in_turn(booked("flight"), booked("hotel"), never()))
        return cancelled(stuck).result().tap(lambda _: note("after"))

    await _end_of(TestClock().run(made_of(body).start(None) if is_durable else body(), app))

    assert undone(app.world) == ["hotel", "flight"]
    assert "after" not in app.world.done or app.world.done[-1] == "after"


async def test_a_body_that_succeeds_is_not_undone() -> None:
    app = app_on(MemoryStore())
    body = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"))))

    assert await body.start(None).run(app) == Success("hotel")
    assert app.world.done == ["book flight", "book hotel"]


async def test_a_failed_effect_is_not_undone() -> None:
    app = app_on(MemoryStore(), failing=["book hotel"])
    body = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"))))

    assert isinstance(await body.start(None).run(app), Failure)
    assert undone(app.world) == ["flight"]


async def test_a_handled_failure_within_the_body_undoes_nothing() -> None:
    app = app_on(MemoryStore(), failing=["book hotel"])
    body = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel").fallback("none"))))

    assert await body.start(None).run(app) == Success("none")
    assert undone(app.world) == []


@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
async def test_an_effect_that_is_being_done_when_the_body_is_cancelled_ends_and_is_undone(
    is_durable: bool,
) -> None:
    @step
    def slowly_book(what: str) -> Effect[App, Broken, str]:
        return later(3, note(f"book {what}")).map(lambda _: what)

    def body() -> AnyEffect:
        slow = in_turn(compensate(slowly_book("flight"), cancel), booked("hotel"))
        return saga(slow).timeout(1)

    app = app_on(MemoryStore())

    result: Any = await TestClock().run(made_of(body).start(None) if is_durable else body(), app)

    assert isinstance(result.failure(), TimedOut)
    assert app.world.done == ["book flight", "cancel flight"]


async def test_an_effect_does_not_begin_in_a_body_that_was_cancelled() -> None:
    app = app_on(MemoryStore())

    def body() -> AnyEffect:
        late = from_async(lambda _: anyio.sleep(0.1)).and_then(lambda _: booked("flight"))
        return saga(late).timeout(0.01)

    await made_of(body).start(None).run(app)
    assert app.world.done == []


# Nested and parallel.


async def test_an_inner_saga_that_succeeded_is_undone_by_the_outer_one_in_its_place() -> None:
    app = app_on(MemoryStore())
    inner = saga(in_turn(booked("b"), booked("c")))

    def body() -> AnyEffect:
        return saga(in_turn(booked("a"), inner, booked("d"), fail(Broken("no"))))

    await made_of(body).start(None).run(app)
    assert undone(app.world) == ["d", "c", "b", "a"]


async def test_an_inner_saga_that_failed_has_undone_its_own_work_only() -> None:
    app = app_on(MemoryStore())
    inner = saga(in_turn(booked("b"), fail(Broken("no")))).fallback("none")

    def body() -> AnyEffect:
        return saga(in_turn(booked("a"), inner, booked("c"), fail(Broken("no"))))

    await made_of(body).start(None).run(app)
    assert app.world.done == ["book a", "book b", "cancel b", "book c", "cancel c", "cancel a"]


async def test_parallel_branches_are_undone_in_the_reverse_order_of_their_ends() -> None:
    app = app_on(MemoryStore())

    def body() -> AnyEffect:
        return saga(
            in_turn(par_traverse([3, 1, 2], booked_after), booked_after(0.5), fail(Broken("no")))
        )

    await TestClock().run(made_of(body).start(None), app)
    assert undone(app.world) == ["0.5", "3", "2", "1"]


@pytest.mark.parametrize("operator", [par, par_all, race], ids=["par", "par_all", "race"])
async def test_branches_that_a_sibling_cancels_register_with_the_saga_around(
    operator: Callable[..., AnyEffect],
) -> None:
    app = app_on(MemoryStore(), failing=["book car"])

    def body() -> AnyEffect:
        stays = in_turn(booked("flight"), from_async(lambda _: anyio.sleep(0.05)))
        fails = after_others(booked("car"))
        effects = [stays, fails]
        return saga(operator(*effects) if operator is par else operator(effects))

    await made_of(body).start(None).run(app)
    assert undone(app.world) == ["flight"]


# Where it can be used.


async def test_compensate_outside_of_a_saga_is_an_error_that_names_it() -> None:
    app = app_on(MemoryStore())

    with pytest.raises(
        TypeError, match=r"compensate\(step\('book'\), cancel\) is run without a saga"
    ):
        await booked("flight").run(app)
    with pytest.raises(TypeError, match="without a saga around it"):
        await made_of(lambda: booked("flight")).start(None).run(app)
    assert app.world.done == []


def test_an_undo_that_does_not_take_the_value_is_rejected_at_once() -> None:
    @step
    def forget() -> Effect[App, Broken, int]:
        return note("forget")

    wrong: Any = forget
    with pytest.raises(TypeError, match=r"forget\(\) rejects that.*`lambda value: forget\(\)`"):
        compensate(pure(1), wrong)


async def test_compensate_inside_a_step_of_a_saga_is_an_error() -> None:
    @step
    def trip() -> Effect[Any, Any, Any]:
        return booked("flight")

    app = app_on(MemoryStore())
    for effect in (saga(trip()), made_of(lambda: saga(trip())).start(None)):
        with pytest.raises(TypeError, match="is run inside a step without a saga around it"):
            await effect.run(app)
    assert app.world.done == []


async def test_compensate_in_a_workflow_that_is_called_needs_a_saga_there() -> None:
    inner = made_of(lambda: booked("flight"), "inner")
    app = app_on(MemoryStore())

    with pytest.raises(TypeError, match="without a saga around it"):
        await made_of(lambda: saga(inner.call(None))).start(None).run(app)


async def test_a_workflow_that_is_called_is_undone_as_a_whole() -> None:
    inner = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"))), "inner")
    undo = made_of(lambda: cancel("trip"), "undo")
    app = app_on(MemoryStore())

    def body() -> AnyEffect:
        return saga(in_turn(compensate(inner.call(None), lambda _: undo.call(None)), book("car")))

    app.world.failing.add("book car")
    await made_of(body).start(None).run(app)
    assert app.world.done == ["book flight", "book hotel", "book car", "cancel trip"]


async def test_the_environment_of_an_undo_is_that_of_its_effect() -> None:
    def noted(action: str) -> AnyEffect:
        return from_fn(lambda log: log.append(action))

    first: list[str] = []
    second: list[str] = []
    inner = compensate(noted("do"), lambda _: noted("undo")).provide(second)
    result = await saga(inner.and_then(lambda _: fail("no"))).run(first)
    assert (result, first, second) == (Failure("no"), [], ["do", "undo"])


# Killed at any write.


def trip(*, parallel: bool = False) -> AnyEffect:
    parts = par(booked("hotel"), booked("car")) if parallel else booked("hotel")
    return saga(in_turn(booked("flight"), parts, book("dinner")))


def caught(effect: AnyEffect) -> AnyEffect:
    return effect.result().map(repr).tap(book)


def raises() -> AnyEffect:
    return from_fn(lambda _: 1 / 0)


def used(what: str) -> AnyEffect:
    """Book something while something else is held, and fail without an entry in the journal."""
    return bracket(
        book("room"), lambda _: cancel("room"), lambda _: in_turn(booked(what), raises())
    )


KILLED: dict[str, Callable[[], AnyEffect]] = {
    "failed step": trip,
    "handled": lambda: caught(trip()),
    "parallel": lambda: trip(parallel=True),
    "parallel, ended in another order": lambda: saga(
        in_turn(par_traverse([3, 1, 2], booked_after), book("dinner"))
    ),
    "failure": lambda: saga(in_turn(booked("a"), booked("b"), fail(Broken("no")))),
    "failure that is handled": lambda: caught(saga(in_turn(booked("a"), fail(Broken("no"))))),
    "defect": lambda: saga(in_turn(booked("a"), booked("b"), die(Crash("no")))),
    "defect after a step": lambda: saga(in_turn(booked("a"), from_fn(lambda _: 1 / 0))),
    "timeout": lambda: caught(saga(in_turn(booked("a"), booked("b"), sleep(9))).timeout(1)),
    "timeout inside": lambda: caught(saga(in_turn(booked("a"), sleep(9).timeout(1)))),
    "race": lambda: caught(race([saga(in_turn(booked("a"), sleep(9))), sleep(1)])),
    "failed sibling": lambda: caught(
        par(saga(in_turn(booked("a"), sleep(9))), later(1, fail(Broken("no"))))
    ),
    "cancelled branch": lambda: saga(
        par(in_turn(booked("a"), sleep(9)), in_turn(sleep(1), book("dinner")))
    ),
    "cancelled branch, handled": lambda: caught(
        saga(
            in_turn(
                booked("a"),
                par(in_turn(booked("b"), sleep(9)), in_turn(sleep(1), book("dinner"))),
            )
        )
    ),
    "cancelled branch that holds something": lambda: caught(
        saga(
            par(
                bracket(
                    book("room"), lambda _: cancel("room"), lambda _: in_turn(booked("a"), sleep(9))
                ),
                in_turn(sleep(1), book("dinner")),
            )
        )
    ),
    "nested": lambda: caught(
        saga(in_turn(booked("a"), saga(in_turn(booked("b"), booked("c"))), book("dinner")))
    ),
    "nested, handled": lambda: caught(
        saga(in_turn(booked("a"), caught(saga(in_turn(booked("b"), book("dinner")))), raises()))
    ),
    "source of a finalizer": lambda: caught(saga(in_turn(booked("a"), used("b")))),
    "source of a finalizer, handled": lambda: caught(
        saga(in_turn(booked("a"), used("b").on_exit(cancelled("x")), booked("c")))
    ),
    "undo in several steps": lambda: caught(
        saga(
            in_turn(
                compensate(book("a"), lambda _: par(cancel("a1"), cancel("a2"))),
                compensate(book("b"), lambda _: in_turn(cancel("b1"), cancel("b2"))),
                book("dinner"),
            )
        )
    ),
    "undo that is not a step": lambda: caught(
        saga(in_turn(booked("a"), compensate(book("b"), lambda _: pure(None)), book("dinner")))
    ),
}


@EVERY
@pytest.mark.parametrize("is_step", [False, True], ids=["body", "step"])
@pytest.mark.parametrize("body", KILLED.values(), ids=KILLED)
async def test_a_run_that_is_killed_at_any_write_ends_like_one_that_is_not(
    body: Callable[[], AnyEffect], is_step: bool, every: int
) -> None:
    def in_a_step() -> AnyEffect:
        return with_checkpointing("trip", body(), error=Broken | TimedOut)

    trip = made_of(in_a_step if is_step else body)

    async def live(store: FaultyStore, world: World) -> object:
        app = App(Checkpoints(store), world)
        return await _end_of(TestClock().run(trip.start(None, run_id="r"), app))

    whole, world = FaultyStore(MemoryStore()), World(failing={"book dinner"})
    expected = await live(whole, world), held(world)
    assert len(whole.calls) > 3
    for point in visited(crash_points(whole), every):
        store, world = FaultyStore(MemoryStore(), [point]), World(failing={"book dinner"})
        with store.life():
            await live(store, world)
        if store.unmet:
            continue  # entries that the whole run saved one by one were saved together
        assert (await live(store, world), held(world)) == expected, f"killed {point}: {world.done}"


def held(world: World) -> set[str]:
    """Return what is booked in the end."""
    found: set[str] = set()
    for action in world.done:
        verb, _, what = action.partition(" ")
        if verb == "cancel":
            found.discard(what)
        elif action not in world.failing:
            found.add(what)
    return found


async def test_once_an_undo_has_begun_the_failure_stands() -> None:
    app = app_on(MemoryStore(), failing=["book dinner"])
    tripping = made_of(trip)
    await tripping.start(None, run_id="r").run(app)
    app.world.recover()
    app.world.done.clear()

    assert isinstance((await tripping.resume("r").run(app)).failure(), Broken)
    assert app.world.done == []
    plan = (await tripping.plan("r").run(app)).unwrap()
    assert (plan.start, plan.recurs) == ((), ("book#3",))


async def test_a_failure_stands_although_the_process_died_before_the_first_undo() -> None:
    store = MemoryStore()
    app = app_on(store, failing=["book dinner"])
    tripping = made_of(trip)
    await tripping.start(None, run_id="r").run(app)
    failed = next(
        number
        for number, entry in enumerate(await read_entries(store, "r"), 1)
        if isinstance(entry, Failed)
    )
    again = app_on(await cut(store, failed))

    assert repr(await tripping.resume("r").run(again)) == "<Failure: no dinner>"
    assert again.world.done == ["cancel hotel", "cancel flight"]


async def test_a_saga_that_changed_so_that_an_undo_is_not_registered_is_rejected() -> None:
    store = MemoryStore()
    app = app_on(store, failing=["book dinner", "cancel flight"])
    await made_of(trip).start(None, run_id="r").run(app)
    app.world.recover()

    def forgetful() -> AnyEffect:
        return saga(in_turn(book("flight"), book("hotel"), book("dinner")))

    changed = (await made_of(forgetful).resume("r").run(app)).failure()
    assert isinstance(changed, DefinitionChanged)
    assert "'cancel' has begun" in str(changed)


# Undos that fail.


async def test_outside_of_durable_runs_the_error_of_an_undo_is_in_the_trail_and_the_rest_is_undone() -> (
    None
):
    app = app_on(MemoryStore(), failing=["cancel hotel"])
    body = saga(in_turn(booked("flight"), booked("hotel"), booked("car"), fail("no")))

    traced = (await body.traced().run(app)).failure()
    assert undone(app.world) == ["car", "hotel", "flight"]
    assert (traced.error, [repr(error) for error in traced.suppressed]) == (
        "no",
        ["Broken('cancel hotel#1')"],
    )
    with pytest.raises(Crash) as raised:
        await saga(in_turn(booked("hotel"), die(Crash("no")))).run(app)
    assert raised.value.__notes__ == ["and a finalizer failed: Broken('cancel hotel#2')"]


@pytest.mark.parametrize("is_handled", [False, True], ids=["", "handled"])
async def test_after_a_failed_undo_a_resume_continues_with_only_the_rest(
    is_handled: bool,
) -> None:
    app = app_on(MemoryStore(), failing=["book dinner", "cancel hotel"])
    tripping = made_of(lambda: caught(trip(parallel=True)) if is_handled else trip(parallel=True))

    parked = (await tripping.start(None, run_id="r").run(app)).failure()
    assert isinstance(parked, CompensationFailed)
    assert parked.run_id == "r"
    assert parked.left == ("cancel of 'hotel'", "cancel of 'flight'")
    assert "Broken('cancel hotel#1')" in str(parked)
    assert undone(app.world) == ["car", "hotel"]
    checkpoint = await read_checkpoint(app.checkpoints.store, "r")
    assert checkpoint.status is RunStatus.FAILED
    again = (await tripping.result("r").run(app)).failure()
    assert isinstance(again, CompensationFailed)
    assert again.left == parked.left

    plan = (await tripping.plan("r").run(app)).unwrap()
    assert plan.start == plan.retry == ("cancel#2",)
    assert plan.problem is None

    # It is still broken.
    assert isinstance((await tripping.resume("r").run(app)).failure(), CompensationFailed)
    app.world.recover()
    app.world.done.clear()
    resumed = await tripping.resume("r").run(app)
    if is_handled:
        assert "dinner" in repr(resumed.unwrap())
        assert app.world.done == ["cancel hotel", "cancel flight", f"book {resumed.unwrap()}"]
    else:
        assert repr(resumed) == "<Failure: no dinner>"
        assert app.world.done == ["cancel hotel", "cancel flight"]


async def test_an_undo_that_its_step_does_not_retry_is_tried_again_by_a_resume() -> None:
    @step(retryable=lambda _: False)
    def cancel_once(what: str) -> Effect[App, Broken, None]:
        return note(f"cancel {what}").map(lambda _: None)

    app = app_on(MemoryStore(), failing=["cancel flight"])

    def body() -> AnyEffect:
        return saga(in_turn(compensate(book("flight"), cancel_once), fail(Broken("no"))))

    await made_of(body).start(None, run_id="r").run(app)
    app.world.recover()
    assert repr(await made_of(body).resume("r").run(app)) == "<Failure: no>"
    assert app.world.done == ["book flight", "cancel flight", "cancel flight"]


async def test_a_defect_of_an_undo_and_one_that_cannot_be_made_park_the_run() -> None:
    app = app_on(MemoryStore())
    app.world.crashing.add("cancel flight")

    def broken(_: object) -> AnyEffect:
        raise Crash("cannot be made")

    for undo, reason in ((cancel, "Crash('cancel flight#1')"), (broken, "Crash('cannot be made')")):
        failing = saga(in_turn(compensate(book("flight"), undo), fail(Broken("no"))))
        parked = (await made_of(lambda effect=failing: effect).start(None).run(app)).failure()
        assert isinstance(parked, CompensationFailed)
        assert parked.reason == reason


async def test_an_undo_that_returns_no_effect_acts_once_in_each_life() -> None:
    app = app_on(MemoryStore())
    acted: list[object] = []

    def plain(value: object) -> Any:
        acted.append(value)

    body = saga(in_turn(compensate(book("flight"), plain), fail(Broken("no"))))
    parked = (await made_of(lambda: body).start(None, run_id="r").run(app)).failure()
    assert isinstance(parked, CompensationFailed)
    assert (
        "the undo of compensate returns an effect: expected an effect and got None" in parked.reason
    )
    assert "the undo plain of" in str(parked)
    assert len(acted) == 1
    await made_of(lambda: body).resume("r").run(app)
    assert len(acted) == 2


async def test_outside_of_durable_runs_an_undo_that_returns_no_effect_acts_once() -> None:
    acted: list[int] = []

    def plain(value: int) -> Any:
        acted.append(value)

    body = saga(compensate(pure(1), plain).and_then(lambda _: fail("no")))
    traced = (await body.traced().run(None)).failure()
    assert "the undo of compensate returns an effect" in repr(traced.suppressed)
    assert acted == [1]


async def test_an_undo_is_retried_by_the_policy_of_its_step_first() -> None:
    @step(retry=RetryPolicy.constant(60).with_max_retries(5))
    def insist(what: str) -> Effect[App, Broken, None]:
        return note(f"cancel {what}").map(lambda _: None)

    app = app_on(MemoryStore(), failing=["cancel a#1", "cancel a#2"])

    def body() -> AnyEffect:
        return saga(in_turn(compensate(book("a"), insist), fail(Broken("no"))))

    result = await TestClock().run(made_of(body).start(None), app)
    assert repr(result) == "<Failure: no>"
    assert undone(app.world) == ["a", "a", "a"]


async def test_an_undo_of_a_workflow_that_is_called_parks_the_run() -> None:
    inner = made_of(trip, "inner")
    outer = made_of(lambda: in_turn(inner.call(None).result(), book("after")), "outer")
    app = app_on(MemoryStore(), failing=["book dinner", "cancel flight"])

    parked = (await outer.start(None, run_id="o").run(app)).failure()
    assert isinstance(parked, CompensationFailed)
    checkpoint = await read_checkpoint(app.checkpoints.store, "o")
    assert checkpoint.status is RunStatus.FAILED
    app.world.recover()
    app.world.done.clear()

    assert await outer.resume("o").run(app) == Success("after")
    assert app.world.done == ["cancel flight", "book after"]


async def test_the_branches_beside_an_undo_that_fails_are_stopped_and_undo_nothing() -> None:
    app = app_on(MemoryStore(), failing=["cancel a"])

    def body() -> AnyEffect:
        beside = saga(in_turn(booked("b"), hang().on_exit(cancelled("c"))))
        fails = after_others(saga(in_turn(booked("a"), fail(Broken("no")))))
        return par(beside, fails)

    parked = (await made_of(body).start(None, run_id="r").run(app)).failure()
    assert isinstance(parked, CompensationFailed)
    assert sorted(app.world.done) == ["book a", "book b", "cancel a", "hang"]


# In a service.


async def test_a_run_that_is_cancelled_is_undone_and_then_cancelled(service: Service) -> None:
    tripping = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"), sleep(3600))))
    async with working(service, tripping) as worker:
        handle = await worker.client.submit(tripping, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        result = await handle.result(timeout=10)
    assert isinstance(result.failure(), RunCancelled)
    assert service.world.done == ["book flight", "book hotel", "cancel hotel", "cancel flight"]
    assert (await info_of(service, "r")).summary.status is RunStatus.CANCELLED


async def test_a_cancelled_run_whose_undo_fails_is_parked_and_cancelled_after_a_resume(
    service: Service,
) -> None:
    tripping = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"), sleep(3600))))
    service.world.failing.add("cancel hotel")
    async with working(service, tripping) as worker:
        handle = await worker.client.submit(tripping, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        assert isinstance((await handle.result(timeout=10)).failure(), CompensationFailed)
        info = await until(service, "r", RunStatus.FAILED)
        assert (info.summary.details.blocked, info.summary.due_at) == ("", None)
        # Nothing tries again by itself.
        await anyio.sleep(0.05)
        assert undone(service.world) == ["hotel"]

    app = App(service.checkpoints(), service.world)
    plan = (await tripping.plan("r").run(app)).unwrap()
    assert plan.start == ("cancel",)
    service.world.recover()
    assert isinstance((await tripping.resume("r").run(app)).failure(), RunCancelled)
    assert undone(service.world) == ["hotel", "hotel", "flight"]


async def test_a_cancellation_during_the_undoing_lets_it_end(service: Service) -> None:
    def body() -> AnyEffect:
        slow = compensate(book("flight"), slowly_cancel)
        return saga(in_turn(slow, compensate(book("hotel"), slowly_cancel), fail(Broken("no"))))

    tripping = made_of(lambda: caught(body()))
    async with working(service, tripping) as worker:
        handle = await worker.client.submit(tripping, None, run_id="r")
        with anyio.fail_after(10):
            while "cancel hotel" not in service.world.done:
                await anyio.sleep(0.002)
        await handle.cancel()
        assert isinstance((await handle.result(timeout=10)).failure(), RunCancelled)
    assert service.world.done == ["book flight", "book hotel", "cancel hotel", "cancel flight"]


async def test_a_run_is_suspended_while_an_undo_waits_for_its_next_attempt(
    service: Service,
) -> None:
    @step(retry=RetryPolicy.constant(0.3).with_max_retries(5))
    def insist(what: str) -> Effect[App, Broken, None]:
        return note(f"cancel {what}").map(lambda _: None)

    def body() -> AnyEffect:
        both = in_turn(compensate(book("a"), insist), compensate(book("b"), insist))
        return saga(both.zip(fail(Broken("no"))))

    service.world.failing.add("cancel b#1")
    tripping = made_of(body)
    async with working(service, tripping) as worker:
        handle = await worker.client.submit(tripping, None, run_id="r")
        info = await suspended(service, "r", waits_for="a retry")
        assert info.summary.due_at is not None
        assert repr(await handle.result(timeout=10)) == "<Failure: no>"
    assert service.world.done == ["book a", "book b", "cancel b", "cancel b", "cancel a"]


@both_stores
async def test_a_worker_that_stops_undoes_nothing_and_the_next_one_continues(
    service: Service,
) -> None:
    tripping = made_of(lambda: saga(in_turn(booked("flight"), hang(), book("dinner"))))
    async with working(service, tripping, grace=0) as worker:
        await worker.client.submit(tripping, None, run_id="r")
        with anyio.fail_after(10):
            while "hang" not in service.world.done:
                await anyio.sleep(0.002)
    assert (await info_of(service, "r")).summary.status is RunStatus.INTERRUPTED
    assert service.world.done == ["book flight", "hang"]


async def test_a_worker_that_stops_does_not_wait_for_an_effect_that_can_be_undone(
    service: Service,
) -> None:
    tripping = made_of(lambda: saga(compensate(hang(), lambda _: cancel("flight"))))
    async with working(service, tripping, grace=0) as worker:
        await worker.client.submit(tripping, None, run_id="r")
        with anyio.fail_after(10):
            while "hang" not in service.world.done:
                await anyio.sleep(0.002)
    assert (await info_of(service, "r")).summary.status is RunStatus.INTERRUPTED
    assert service.world.done == ["hang"]


@EVERY
async def test_a_service_that_is_killed_anywhere_undoes_a_cancelled_run(every: int) -> None:
    tripping = made_of(lambda: saga(in_turn(booked("flight"), booked("hotel"), sleep(3600))))

    async def live(service: Service) -> object:
        async with working(service, tripping, grace=0) as worker:
            handle = await worker.client.submit(tripping, None, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.CANCELLED)
            with suppress(RunEnded):
                await handle.cancel()
            ended = await result_of(handle)
        return ended, held(service.world)

    await killed_everywhere(live, more_than=10, every=every)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_step_that_failed_after_the_cancellation_is_not_repeated_once_the_undos_have_begun(
    backend: str,
) -> None:
    async def check() -> None:
        made = made_of(lambda: saga(in_turn(booked("flight"), booked_after(3))).timeout(1))
        whole = MemoryStore()
        failing = ["book 3"]
        await TestClock().run(made.start(None, run_id="r"), app_on(whole, failing=failing))
        entries = await read_entries(whole, "r")
        begun = next(
            number
            for number, entry in enumerate(entries, 1)
            if getattr(entry, "step", "") == "cancel"
        )
        for count in range(begun, len(entries)):
            app = app_on(await cut(whole, count))
            result: Any = await TestClock().run(made.resume("r"), app)
            assert isinstance(result.failure(), TimedOut), (count, result)
            assert "book 3" not in app.world.done

    anyio.run(check, backend=backend)
