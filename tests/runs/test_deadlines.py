"""Timeouts, and races against `sleep`, keep their deadlines over the lives of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    RetryPolicy,
    TimedOut,
    bracket,
    compensate,
    par,
    par_traverse,
    race,
    saga,
    sleep,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import TimerFired, Value, Waiting, read_entries
from effectflow.effects import from_async
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, both_backends, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    clock_at,
    cut,
    hang,
    in_turn,
    journal,
    late,
    made_of,
    next_life,
    resume,
    start,
    stopped,
)

pytestmark = [pytest.mark.anyio, both_backends]

DAY = 24 * 3600.0


async def interrupted_after(
    made: AnyWorkflow, app: App, *, at: float, seconds: float, is_new: bool = False
) -> None:
    """Run a life that is stopped from outside after some time."""
    effect = made.start(None, run_id="r") if is_new else made.resume("r")
    await stopped(effect, app, at=at, seconds=seconds)


@workflow
def limited(_: object) -> Do[App, Any, str]:
    approved = yield from hang("approve").timeout(3 * DAY).result()
    return (yield from act("late" if isinstance(approved, Failure) else "in-time"))


@workflow
def raced(_: object) -> Do[App, Any, str]:
    waited: AnyEffect = sleep(3 * DAY).map(lambda _: "late")
    first: AnyEffect = race([hang("approve"), waited])
    return (yield from first.and_then(act))


both_kinds = pytest.mark.parametrize("made", [limited, raced], ids=["timeout", "race"])


@both_kinds
async def test_a_run_that_is_interrupted_daily_times_out(
    store: MemoryStore, made: AnyWorkflow
) -> None:
    app = app_on(store)
    await interrupted_after(made, app, at=0, seconds=DAY / 2, is_new=True)
    for day in (1, 2):
        await interrupted_after(made, app, at=day * DAY, seconds=DAY / 2)
    assert app.world.done == ["approve"] * 3
    clock = clock_at(2.75 * DAY)
    assert await clock.run(made.resume("r"), app) == Success("late")
    assert clock.monotonic() == pytest.approx(DAY / 4)


@both_kinds
async def test_a_deadline_that_passed_between_the_lives_has_passed(
    store: MemoryStore, made: AnyWorkflow
) -> None:
    app = app_on(store)
    await interrupted_after(made, app, at=0, seconds=DAY, is_new=True)
    clock = clock_at(10 * DAY)
    assert await clock.run(made.resume("r"), app) == Success("late")
    assert clock.monotonic() == 0
    assert app.world.done == ["approve", "late"]


async def test_nothing_begins_after_a_deadline_that_passed_between_the_lives(
    store: MemoryStore,
) -> None:
    await start(limited, app_on(store))
    lines = await journal(store)
    for count in range(lines.index("V timeout") + 1, lines.index("T timeout") + 1):
        app = app_on(await cut(store, count))
        assert await resume(limited, app, at=10 * DAY) == Success("late")
        assert app.world.done == ["late"], lines[:count]


@both_kinds
async def test_a_crash_keeps_the_deadline(store: MemoryStore, made: AnyWorkflow) -> None:
    await start(made, app_on(store))
    count = (await journal(store)).index("T timeout") if made is limited else 3
    clock = clock_at(DAY)
    assert await clock.run(made.resume("r"), app_on(await cut(store, count))) == Success("late")
    assert clock.monotonic() == pytest.approx(2 * DAY)


failing = made_of(lambda: hang("approve").timeout(60), "failing")


async def test_a_run_that_failed_by_its_deadline_gets_a_new_one(store: MemoryStore) -> None:
    app = app_on(store)
    assert isinstance((await start(failing, app)).failure(), TimedOut)
    # The failure ended the run, so a resume tries again, with the whole time.
    clock = clock_at(1000)
    assert isinstance((await clock.run(failing.resume("r"), app)).failure(), TimedOut)
    assert clock.monotonic() == 60
    assert app.world.done == ["approve", "approve"]
    # The new deadline is kept, in turn, over an interruption.
    await interrupted_after(failing, app, at=2000, seconds=45)
    clock = clock_at(2050)
    assert isinstance((await clock.run(failing.resume("r"), app)).failure(), TimedOut)
    assert clock.monotonic() == 10


async def test_a_crash_between_the_timeout_and_the_end_sets_a_new_deadline(
    store: MemoryStore,
) -> None:
    """The resume ends the run by the old deadline, and then tries again at once."""
    await start(failing, app_on(store))
    shorter = await cut(store, (await journal(store)).index("X approve") + 1)
    app, clock = app_on(shorter), clock_at(60)
    assert isinstance((await clock.run(failing.resume("r"), app)).failure(), TimedOut)
    assert clock.monotonic() == 60
    assert app.world.done == ["approve"]


async def test_no_deadline_strikes_while_recorded_entries_are_ahead(store: MemoryStore) -> None:
    """The work ended in time. Its resume takes longer, between recorded steps."""
    work = in_turn(act("a"), late("b", 30)).timeout(60).result()
    made = made_of(lambda: in_turn(work.map(repr).and_then(act), act("last")))
    await start(made, app_on(store, failing=["last"]))
    app = app_on(store)
    assert await resume(made, app, at=1000) == Success("last")
    assert app.world.done == ["last"]
    assert "C <Success: b>" in await journal(store)


def in_time(*before: AnyEffect) -> AnyEffect:
    """Return effects with a time limit, of which the last one waits and records nothing."""
    look: AnyEffect = from_async(lambda _: anyio.lowlevel.checkpoint())
    return in_turn(*before, look.map(lambda _: "in time")).timeout(60)


ENDED: dict[str, Callable[[], AnyEffect]] = {
    "branch": lambda: par(in_time(), act("b")),
    "branch after a step": lambda: par(in_time(act("a")), act("b")),
    "item": lambda: par_traverse([1, 2], lambda n: in_time(act(str(n))), key=str),
    "branch of a branch": lambda: par(par(in_time(act("a")), act("b")), act("c")),
    "winner": lambda: race([in_time(act("a")), sleep(30)]),
    "within a timeout": lambda: in_time(act("a")).timeout(90),
    "saga": lambda: saga(compensate(in_time(act("a")), lambda _: act("undo"))),
    "release": lambda: bracket(act("a"), lambda _: in_time(act("b")), lambda _: act("c")),
    "acquisition": lambda: bracket(in_time(act("a")), lambda _: act("b"), lambda _: act("c")),
}


@pytest.mark.parametrize("ended", ENDED.values(), ids=ENDED.keys())
async def test_no_deadline_strikes_in_what_had_ended_before_the_run_continued(
    store: MemoryStore, ended: Callable[[], AnyEffect]
) -> None:
    """Nothing recorded follows within the branch, but it does in the flow around it."""
    made = made_of(lambda: in_turn(ended(), act("after")))
    assert await start(made, app_on(store)) == Success("after")
    shorter = await cut(store, (await journal(store)).index("B after") + 1)
    app = app_on(shorter)
    assert await resume(made, app, at=DAY) == Success("after")
    assert app.world.done == ["after"]


async def test_no_deadline_strikes_in_the_winner_of_a_race(store: MemoryStore) -> None:
    made = made_of(lambda: race([in_time(act("a")), sleep(30)]))
    assert await start(made, app_on(store)) == Success("in time")
    shorter = await cut(store, (await journal(store)).index("L race[0]/local") + 1)
    assert await resume(made, app_on(shorter), at=DAY) == Success("in time")


async def test_a_deadline_does_not_cut_the_replay_of_its_own_branch(store: MemoryStore) -> None:
    work = in_turn(act("a"), act("b"), hang("c")).timeout(60).result()
    made = made_of(lambda: in_turn(work, act("last")))
    await start(made, app_on(store))
    shorter = await cut(store, (await journal(store)).index("T timeout"))
    app = app_on(shorter)
    assert await resume(made, app, at=1000) == Success("last")
    assert {"a", "b"}.isdisjoint(app.world.done)
    assert (await journal(shorter)).count("C b") == 1


async def test_the_shorter_of_two_deadlines_strikes(store: MemoryStore) -> None:
    made = made_of(lambda: hang("work").timeout(100).timeout(200))
    app = app_on(store)
    await interrupted_after(made, app, at=0, seconds=50, is_new=True)
    assert (await resume(made, app, at=60)).failure().seconds == 100


async def test_a_sleep_waits_for_the_remaining_time(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(sleep(100), act("after")))

    app = app_on(store)
    await interrupted_after(made, app, at=0, seconds=30, is_new=True)
    clock = clock_at(70)
    assert await clock.run(made.resume("r"), app) == Success("after")
    assert clock.monotonic() == 30
    waits = [one for one in await read_entries(store, "r") if isinstance(one, Waiting)]
    assert len(waits) == 1


@workflow
def slept_until_the_past(_: object) -> Do[App, Any, str]:
    yield from sleep(-1)
    return (yield from sleep(-DAY).and_then(lambda _: act("woken")))


async def test_a_sleep_until_the_past_ends_at_once(store: MemoryStore) -> None:
    assert await slept_until_the_past.start(None, run_id="real").run(app_on(store)) == Success(
        "woken"
    )
    assert await start(slept_until_the_past, app_on(store), at=0) == Success("woken")


async def test_a_clock_set_back_does_not_make_waits_longer(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(sleep(100), hang("work").timeout(50).fallback("late")))

    app = app_on(store)
    await interrupted_after(made, app, at=10_000, seconds=30, is_new=True)
    clock = clock_at(0)
    assert await clock.run(made.resume("r"), app) == Success("late")
    assert clock.monotonic() == 150


HOURLY = RetryPolicy.constant(3600).with_max_retries(1)


@pytest.mark.parametrize(
    "waiting",
    [
        lambda: sleep(3600),
        lambda: par(act("b"), act("a").and_then(lambda _: sleep(3600))),
        lambda: act("failing").retry(HOURLY),
        lambda: race([hang("loser"), sleep(3600)]),
    ],
    ids=["sleep", "in a branch", "retry", "race"],
)
async def test_a_wait_that_recorded_steps_follow_is_over_although_the_clock_was_set_back(
    store: MemoryStore, waiting: Callable[[], AnyEffect]
) -> None:
    made = made_of(lambda: in_turn(waiting(), act("after")))
    await start(made, app_on(store, failing=["failing#1"]), at=10_000)
    lines = await journal(store)
    begins = [line.startswith("W ") for line in lines].index(True) + 1
    for length in range(begins, len(lines)):
        shorter = await cut(store, length)
        is_over = any(line.startswith("T ") for line in lines[:length])
        plan = (await clock_at(0).run(made.plan("r"), app_on(shorter))).unwrap()
        assert (plan.waiting == ()) is is_over
        clock = clock_at(0)
        assert await clock.run(made.resume("r"), app_on(shorter)) == Success("after")
        assert clock.monotonic() == (0 if is_over else 3600)


async def test_a_wait_in_which_a_race_was_lost_does_not_end(store: MemoryStore) -> None:
    made = made_of(
        lambda: in_turn(
            race([in_turn(sleep(7200).on_exit(act("clean up")), note("bad")), sleep(3600)]),
            act("after"),
        )
    )
    await start(made, app_on(store), at=10_000)
    lines = await journal(store)
    for length in range(lines.index("T race[1]/sleep"), len(lines)):
        app = app_on(await cut(store, length))
        assert await resume(made, app, at=0) == Success("after")
        assert "bad" not in app.world.done


async def test_a_timeout_inside_a_step_is_not_durable(store: MemoryStore) -> None:
    fetch = note("fetch").and_then(lambda _: sleep(100)).timeout(60).map_err(str)
    made, app = made_of(lambda: with_checkpointing("fetch", fetch)), app_on(store)
    await interrupted_after(made, app, at=0, seconds=50, is_new=True)
    clock = clock_at(500)
    assert isinstance(await clock.run(made.resume("r"), app), Failure)
    assert clock.monotonic() == 60
    assert not [
        one for one in await read_entries(store, "r") if isinstance(one, Value | TimerFired)
    ]


@pytest.mark.parametrize("is_step", [True, False], ids=["step", "plain"])
async def test_a_value_that_comes_after_the_deadline_decides_nothing(
    store: MemoryStore, *, is_step: bool
) -> None:
    """The effect is shielded, so it completes after the timeout has decided."""

    async def stubborn(_: object) -> str:
        with anyio.CancelScope(shield=True):
            for _ in range(400):
                await anyio.lowlevel.checkpoint()
        return "done"

    shielded: AnyEffect = from_async(stubborn)
    first = with_checkpointing("stubborn", shielded) if is_step else shielded
    beside = race([first, hang("other")])
    made = made_of(lambda: beside.timeout(1).map_err(str).result().map(str))
    app = app_on(store)
    expected = await start(made, app)
    lines = await journal(store)
    assert ("C race[0]/stubborn" in lines) is is_step
    for length in range(lines.index("T timeout") + 1, len(lines)):
        again = next_life(app, store=await cut(store, length))
        assert await resume(made, again) == expected, lines[:length]
        assert again.world.done == []


@pytest.mark.parametrize("limit", [math.inf, timedelta.max, 1e300], ids=str)
async def test_a_limit_that_never_expires_survives_a_resume(
    store: MemoryStore, limit: float | timedelta
) -> None:
    made = made_of(lambda: in_turn(act("before"), act("work").timeout(limit)))
    app = app_on(store, failing=["work"])
    assert isinstance((await start(made, app)).failure(), Broken)
    app.world.recover()
    assert await resume(made, app, at=DAY) == Success("work")
    assert app.world.done == ["before", "work", "work"]
    assert ("V timeout" in await journal(store)) == (limit != math.inf)
