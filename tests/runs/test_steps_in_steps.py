"""Steps inside a step: what a resume of the outer one does with what they acquired, undid and decided.

`test_interleavings.py` runs each body of its table inside a step as well, and cancels a step that holds
a resource by each operator.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Effect,
    TimedOut,
    bracket,
    compensate,
    fail,
    par,
    publish,
    pure,
    race,
    saga,
    sleep,
    step,
    with_checkpointing,
)
from effectflow.checkpoint import CheckpointStore, Completed, DefinitionChanged, read_entries
from effectflow.effects import die, from_async, from_fn, never, suspend
from effectflow.service import Client
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, Crash, app_on, both_backends, cut_off
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    after_others,
    clock_at,
    cut,
    hang,
    in_turn,
    journal,
    made_of,
    resume,
    start,
)

pytestmark = pytest.mark.anyio


def in_a_step(effect: AnyEffect) -> AnyEffect:
    return with_checkpointing("step", effect, error=Broken | TimedOut)


def held(use: AnyEffect) -> AnyEffect:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


async def done_in_all_lives(store: CheckpointStore) -> list[str]:
    """Return the steps that have completed, without their flows."""
    entries = await read_entries(store, "r")
    return [entry.step.rpartition("/")[2] for entry in entries if isinstance(entry, Completed)]


# What an obstacle had undone is not used again, also if the obstacle is gone.


def while_broken(bad: AnyEffect) -> AnyEffect:
    """Return an effect that does this while the world is broken."""

    def look(app: App) -> AnyEffect:
        return bad if app.world.is_broken else pure(None)

    return from_fn(lambda app: app).and_then(look)


OBSTACLES: dict[str, AnyEffect] = {
    "failure": while_broken(fail(Broken("no"))),
    "defect": while_broken(suspend(lambda: die(Crash("no")))),
    "timeout": while_broken(never()).timeout(1),
    "lost race": race([while_broken(never()), while_broken(after_others(fail(Broken("no"))))]),
    "failed sibling": par(while_broken(never()), while_broken(after_others(fail(Broken("no"))))),
    "failed step": with_checkpointing("bad", while_broken(fail(Broken("no"))), error=Broken),
}

every_obstacle = pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)


async def end_of(life: Any, app: App) -> str:
    try:
        result = await life(app=app)
    except Exception as defect:
        return f"failed: {defect}"
    if isinstance(result, Success):
        return "done"
    return "refused" if isinstance(result.failure(), DefinitionChanged) else "failed"


@both_backends
@every_obstacle
async def test_a_resource_that_a_step_has_released_is_not_used_again(
    store: MemoryStore, obstacle: AnyEffect
) -> None:
    made = made_of(lambda: in_a_step(held(in_turn(act("use"), obstacle, act("use more")))))
    await check_that_it_is_not_used_again(made, store)


@both_backends
async def test_a_resource_that_was_released_because_the_step_timed_out_is_not_used_again(
    store: MemoryStore,
) -> None:
    @step(timeout=5)
    def limited() -> Effect[App, Broken, object]:
        return held(in_turn(act("use"), while_broken(never()), act("use more")))

    await check_that_it_is_not_used_again(made_of(limited), store)


async def check_that_it_is_not_used_again(made: AnyWorkflow, store: MemoryStore) -> None:
    await end_of(partial(start, made), app_on(store, failing=["anything"]))
    lines = await journal(store)
    released = next(number for number, line in enumerate(lines, 1) if "release" in line)
    for count in range(released, len(lines) + 1):
        app = app_on(await cut(store, count), failing=["anything"])
        assert (await end_of(partial(resume, made), app)).startswith("failed"), lines[count - 1]
        assert app.world.done == (["release"] if count == released else []), lines[count - 1]
        # Between the steps, the code of the step does something else if the obstacle is gone.
        app = app_on(await cut(store, count))
        assert await end_of(partial(resume, made), app) != "done", lines[count - 1]
        assert set(app.world.done) <= {"release"}, lines[count - 1]


@both_backends
@every_obstacle
async def test_a_saga_in_a_step_keeps_all_of_its_work_or_nothing(
    store: MemoryStore, obstacle: AnyEffect
) -> None:
    def booked(what: str) -> AnyEffect:
        return compensate(act(f"book {what}"), lambda _: act(f"cancel {what}"))

    trip = in_turn(booked("flight"), booked("hotel"), obstacle, booked("car"))
    made = made_of(lambda: in_a_step(saga(trip)))
    await end_of(partial(start, made), app_on(store, failing=["anything"]))
    lines = await journal(store)
    for count, line in enumerate(lines, 1):
        for failing in (["anything"], []):
            app = app_on(await cut(store, count), failing=failing)
            end = await end_of(partial(resume, made), app)
            if end == "refused":
                # Its undos had begun, and now the code goes on without the obstacle.
                assert (failing, app.world.done) == ([], []), line
                continue
            done = await done_in_all_lives(app.checkpoints.store)
            kept = {
                what
                for what in ("flight", "hotel", "car")
                if done.count(f"book {what}") > done.count(f"cancel {what}")
            }
            assert kept == ({"flight", "hotel", "car"} if end == "done" else set()), line


# A step that is cancelled.


@both_backends
async def test_what_a_step_acquired_is_released_when_its_run_is_cancelled(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: in_a_step(held(hang("use"))))
    await cut_off(made.start(None, run_id="r"), app_on(store))
    lines = await journal(store)
    for count in range(lines.index("C step/acquire") + 1, len(lines) + 1):
        app = app_on(await cut(store, count))
        await Client(app.checkpoints).handle(made, "r").cancel()
        await resume(made, app)
        assert app.world.done == ["release"], lines[count - 1]


@both_backends
async def test_a_step_that_timed_out_completes_its_release_when_its_run_is_cancelled(
    store: MemoryStore,
) -> None:
    @step(timeout=5)
    def limited() -> Effect[App, Broken, object]:
        return held(in_turn(act("use"), never()))

    made = made_of(limited)
    await start(made, app_on(store))
    lines = await journal(store)
    for count in range(lines.index("C limited/acquire") + 1, lines.index("F limited") + 1):
        app = app_on(await cut(store, count))
        await Client(app.checkpoints).handle(made, "r").cancel()
        with anyio.fail_after(10):
            await resume(made, app)
        done = await done_in_all_lives(app.checkpoints.store)
        assert done.count("release") == 1, lines[count - 1]


@both_backends
async def test_a_completed_step_in_a_cancelled_branch_does_not_run_again(
    store: MemoryStore,
) -> None:
    """It completed after the decision, because it was in a finalizer when that was made."""
    finishing = in_turn(note_plainly("begin"), pure(None).on_exit(act("finish", 5)))
    bad = sleep(2).and_then(lambda _: fail(Broken("sibling")))
    made = made_of(lambda: par(in_a_step(finishing), bad))
    await start(made, app_on(store))
    lines = await journal(store)
    assert lines.index("T par[1]/sleep") < lines.index("C par[0]/step")
    app = app_on(await cut(store, lines.index("C par[0]/step") + 1))
    await resume(made, app, at=100)
    assert app.world.done == []


def note_plainly(name: str) -> AnyEffect:
    """Return an effect that notes its name, and is not a step."""
    return from_fn(lambda app: app.world.note(name))


@both_backends
async def test_a_plan_runs_no_code_of_a_cancelled_step(store: MemoryStore) -> None:
    inside = in_turn(note_plainly("outside world"), held(hang("use")))
    made = made_of(lambda: in_a_step(inside).timeout(10).result().map(repr))
    await start(made, app_on(store))
    lines = await journal(store)
    app = app_on(await cut(store, lines.index("T timeout") + 1))
    plan = (await clock_at(100).run(made.plan("r"), app)).unwrap()
    assert (plan.start, plan.retry, plan.skip) == (("step",), ("step",), ("step/acquire",))
    assert app.world.done == []


@both_backends
async def test_a_plan_says_that_a_step_fails_again_with_a_failure_that_stands(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: in_a_step(act("charge").tap_err(lambda _: act("apologize"))))
    first = await start(made, app_on(store, failing=["charge"]))
    plan = (await made.plan("r").run(app_on(store))).unwrap()
    assert (plan.start, plan.recurs) == ((), ("step",))
    app = app_on(store)
    assert str(await resume(made, app)) == str(first)
    assert app.world.done == []


@both_backends
async def test_a_step_that_has_timed_out_times_out_again_once_its_resources_are_released(
    store: MemoryStore,
) -> None:
    @step(timeout=10)
    def limited() -> Effect[App, Broken, object]:
        return held(never())

    made = made_of(limited)
    await start(made, app_on(store))
    lines = await journal(store)
    plan = (await made.plan("r").run(app_on(store))).unwrap()
    assert (plan.start, plan.retry) == (("limited",), ("limited",))
    for count in range(lines.index("C limited/release") + 1, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert isinstance((await resume(made, app)).failure(), TimedOut)
        assert app.world.done == []


@both_backends
async def test_a_plan_says_that_a_step_begins_again_if_it_can_succeed(store: MemoryStore) -> None:
    made = made_of(lambda: in_a_step(in_turn(act("charge"), act("ship"))))
    await start(made, app_on(store, failing=["ship"]))
    plan = (await made.plan("r").run(app_on(store))).unwrap()
    assert (plan.start, plan.skip, plan.recurs) == (("step",), ("step/charge",), ())


# Decisions before the first step inside.


def waiting_at_first(value: object) -> AnyEffect:
    """Return async code that never ends while the world is broken, and then yields a value at once."""

    async def wait(app: App) -> object:
        if app.world.is_broken:
            await anyio.sleep_forever()
        return value

    return from_async(wait)


DECIDED: dict[str, AnyEffect] = {
    "won race": race([after_others(pure("a")), waiting_at_first("b")]),
    "expired timeout": waiting_at_first("b").timeout(1).fallback("a"),
}


@both_backends
@pytest.mark.parametrize("decided", DECIDED.values(), ids=DECIDED)
async def test_what_a_step_decided_before_its_first_step_is_not_decided_again(
    store: MemoryStore, decided: AnyEffect
) -> None:
    @step
    def pay(to: object) -> Effect[App, Broken, str]:
        return act(f"pay {to}")

    made = made_of(lambda: in_a_step(decided.and_then(lambda name: in_turn(pay(name), act("end")))))
    await start(made, app_on(store, failing=["anything"]))
    lines = await journal(store)
    assert "C step/pay/pay a" in lines
    begun = lines.index("B step/pay")
    for count in range(begun + 1, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await resume(made, app) == Success("end"), lines[count - 1]


@both_backends
@pytest.mark.parametrize("way", ["timeout", "race", "sibling"])
async def test_a_use_that_a_decision_cut_off_does_not_run_after_the_first_release(
    store: MemoryStore, way: str
) -> None:
    """The release is the first step inside, so the decision before it is recorded with it."""
    using = note_plainly("use").and_then(lambda _: waiting_at_first("well"))
    resource = bracket(pure("lock"), lambda _: act("unlock"), lambda _: using)
    late: AnyEffect = sleep(10).and_then(lambda _: pure("late"))
    ways: dict[str, AnyEffect] = {
        "timeout": resource.timeout(10).fallback("late"),
        "race": race([resource, late]),
        "sibling": par(resource, late.and_then(lambda _: fail(Broken("no")))).fallback("late"),
    }
    made = made_of(lambda: in_a_step(ways[way].tap(lambda _: act("end"))))
    expected = await start(made, app_on(store, failing=["anything"]))
    assert expected == Success("late")
    lines = await journal(store)
    begun = next(number for number, line in enumerate(lines, 1) if line.startswith("B step/"))
    for count in range(begun, len(lines) + 1):
        app = app_on(await cut(store, count))
        assert await resume(made, app, at=100) == expected, lines[count - 1]


# Values that a step publishes.


@both_backends
async def test_an_attempt_that_continues_publishes_everything_again(store: MemoryStore) -> None:
    inside = in_turn(publish("a", 1), act("first"), publish("b", 2), act("second"), publish("c", 3))
    made = made_of(lambda: in_a_step(inside))
    await start(made, app_on(store))
    lines = await journal(store)
    app = app_on(await cut(store, lines.index("C step/second") + 1))
    await resume(made, app)
    again = (await journal(app.checkpoints.store))[lines.index("C step/second") + 1 :]
    assert [line for line in again if line.startswith("P ")] == ["P a", "P b", "P c"]
