"""`@step(retry=, timeout=)`: attempts of one step, over the lives of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    bracket,
    current_step,
    do,
    effect,
    par,
    sleep,
    step,
    uuid,
    workflow,
)
from effectflow.checkpoint import (
    BeforeStep,
    Completed,
    Failed as FailedEntry,
    OutcomeUnknown,
    plan_resume,
    read_checkpoint,
    read_entries,
)
from effectflow.effects import from_async
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, crash_everywhere
from effectflow.testing.crash import crash_points
from tests.apps import App, Broken, app_on, both_backends, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
    after_others,
    clock_at,
    cut,
    in_turn,
    journal,
    made_of,
    next_life,
    resume,
    start,
    stopped,
    stopped_once,
)

pytestmark = [pytest.mark.anyio, both_backends]

TWICE_MORE = RetryPolicy.constant(10).with_max_retries(2)


async def send(app: App) -> str:
    """Note the idempotency key and the number of the attempt."""
    current = current_step()
    app.world.note(f"{current.idempotency_key} {current.attempt}")
    return "sent"


def noting_key(name: str) -> AnyEffect:
    return from_async(send).and_then(lambda _: note(name).map_err(lambda _: Broken(name)))


@step(retry=TWICE_MORE)
def pay() -> Effect[App, Broken, Any]:
    return noting_key("pay")


paying = made_of(lambda: pay(), "paying")


async def test_all_attempts_have_one_path_and_one_idempotency_key(store: MemoryStore) -> None:
    app = app_on(store, failing=["pay#1", "pay#2"])
    assert await start(paying, app) == Success(3)
    assert app.world.done == ["r:pay 1", "pay", "r:pay 2", "pay", "r:pay 3", "pay"]
    assert await journal(store) == [
        "started",
        "B pay",
        "F pay",
        "B2 pay",
        "F pay",
        "B3 pay",
        "C pay",
        "completed",
    ]


async def test_each_failed_attempt_says_when_the_next_one_is(store: MemoryStore) -> None:
    result = await start(paying, app_on(store, failing=["pay"]))
    assert isinstance(result.failure(), Broken)
    entries = await read_entries(store, "r")
    failed = [entry for entry in entries if isinstance(entry, FailedEntry)]
    assert [None if one.retry_at is None else one.retry_at - one.at for one in failed] == [
        10,
        10,
        None,
    ]
    assert [entry.attempt for entry in entries if isinstance(entry, BeforeStep)] == [1, 2, 3]


async def test_a_crash_continues_the_count(store: MemoryStore) -> None:
    await start(paying, app_on(store, failing=["pay"]))
    attempts = {"started": 3, "B pay": 2, "F pay": 2, "B2 pay": 1}
    for count, line in enumerate((await journal(store))[:4], 1):
        app = app_on(await cut(store, count), failing=["pay"])
        assert isinstance(await resume(paying, app), Failure)
        assert app.world.done.count("pay") == attempts[line], line


async def test_attempts_that_were_stopped_from_outside_do_not_count(store: MemoryStore) -> None:
    @step(retry=TWICE_MORE)
    def slow() -> Effect[App, Broken, int]:
        return sleep(5).within(App).and_then(lambda _: note("pay"))

    made = made_of(lambda: slow())
    app = app_on(store, failing=["pay"])
    await stopped(made.start(None, run_id="r"), app)
    for _ in range(3):
        await stopped(made.resume("r"), app)
    assert app.world.done == []
    assert isinstance(await resume(made, app), Failure)
    assert app.world.done == ["pay"] * 3
    begun = [entry for entry in await read_entries(store, "r") if isinstance(entry, BeforeStep)]
    assert [entry.attempt for entry in begun] == [1, 2, 3, 4, 5, 6, 7]


async def test_a_crash_in_the_last_attempt_does_not_grant_another_attempt(
    store: MemoryStore,
) -> None:
    """The outcome of the attempt is unknown, so the resume attempts the step once more, and only once."""
    await start(paying, app_on(store, failing=["pay"]))
    assert (await journal(store))[5] == "B3 pay"
    app = app_on(await cut(store, 6), failing=["pay"])
    assert isinstance(await resume(paying, app), Failure)
    assert app.world.done == ["r:pay 4", "pay"]


async def test_a_run_that_ended_by_the_step_grants_a_new_budget(store: MemoryStore) -> None:
    assert isinstance(await start(paying, app_on(store, failing=["pay"])), Failure)
    app = app_on(store, failing=["pay"])
    assert isinstance(await resume(paying, app), Failure)
    assert app.world.done == ["r:pay 4", "pay", "r:pay 5", "pay", "r:pay 6", "pay"]
    # A crash within the new budget continues it.
    lines = await journal(store)
    app = app_on(await cut(store, lines.index("B5 pay")), failing=["pay"])
    await resume(paying, app)
    assert app.world.done == ["r:pay 5", "pay", "r:pay 6", "pay"]


async def test_a_delay_is_durable(store: MemoryStore) -> None:
    await start(paying, app_on(store, failing=["pay#1"]))
    shorter = await cut(store, 3)
    clock = clock_at(4)
    assert isinstance(await clock.run(paying.resume("r"), app_on(shorter)), Success)
    assert clock.monotonic() == 6
    clock = clock_at(100)
    assert isinstance(await clock.run(paying.resume("r"), app_on(await cut(store, 3))), Success)
    assert clock.monotonic() == 0


async def test_an_interruption_during_a_delay_waits_for_the_rest(store: MemoryStore) -> None:
    app = app_on(store, failing=["pay#1"])
    await stopped(paying.start(None, run_id="r"), app, seconds=7)
    clock = clock_at(8)
    assert await clock.run(paying.resume("r"), app) == Success(2)
    assert clock.monotonic() == 2
    assert app.world.done == ["r:pay 1", "pay", "r:pay 2", "pay"]


async def test_a_stop_during_a_delay_of_an_acquisition_leaves_the_rest_to_the_resume(
    store: MemoryStore,
) -> None:
    made = made_of(lambda: bracket(pay(), lambda _: act("release"), lambda _: act("use")))
    app = app_on(store, failing=["pay#1"])
    await stopped(made.start(None, run_id="r"), app, seconds=7)
    clock = clock_at(8)
    assert await clock.run(made.resume("r"), app) == Success("use")
    assert clock.monotonic() == 2
    assert app.world.done == ["r:pay 1", "pay", "r:pay 2", "pay", "use", "release"]


async def test_a_stop_during_an_attempt_of_a_release_leaves_the_next_one_to_the_resume(
    store: MemoryStore,
) -> None:
    began = anyio.Event()

    async def begin(_: App) -> None:
        began.set()
        await anyio.sleep(0.02)

    @step(retry=RetryPolicy.constant(60).with_max_retries(2))
    def close() -> Effect[App, Broken, int]:
        return from_async(begin).and_then(lambda _: note("close"))

    made = made_of(lambda: bracket(act("open"), lambda _: close(), lambda _: act("use")))
    app = app_on(store, failing=["close#1"])
    await stopped_once(began, made.start(None, run_id="r"), app)
    assert app.world.done == ["open", "use", "close"]
    assert await resume(made, app) == Success("use")
    assert app.world.done == ["open", "use", "close", "close"]


async def test_the_limit_of_elapsed_time_counts_earlier_lives(store: MemoryStore) -> None:
    @step(retry=RetryPolicy.constant(10).with_max_elapsed(25))
    def slow() -> Effect[App, Broken, Any]:
        return noting_key("pay")

    made = made_of(lambda: slow())

    app = app_on(store, failing=["pay"])
    await start(made, app)
    assert app.world.done.count("pay") == 3
    app = app_on(await cut(store, 3), failing=["pay"])
    await resume(made, app, at=10)
    assert app.world.done.count("pay") == 2


@step(retry=TWICE_MORE, timeout=5)
def fetch() -> Effect[App, Broken, str]:
    def work(count: int) -> AnyEffect:
        return sleep(100 if count < 3 else 1)

    return note("fetch").and_then(work).map(lambda _: "fetched")


fetching = made_of(lambda: fetch(), "fetching")


async def test_each_attempt_has_the_whole_time(store: MemoryStore) -> None:
    clock = clock_at()
    assert await clock.run(fetching.start(None, run_id="r"), app_on(store)) == Success("fetched")
    assert clock.monotonic() == 5 + 10 + 5 + 10 + 1
    entries = await read_entries(store, "r")
    failed = [entry.error.type for entry in entries if isinstance(entry, FailedEntry)]
    assert failed == ["effectflow.effects.errors.TimedOut"] * 2


async def test_a_step_without_a_retry_fails_with_the_timeout(store: MemoryStore) -> None:
    @step(timeout=5)
    def hanging() -> Effect[App, Broken, None]:
        return note("hang").and_then(lambda _: sleep(100))

    made = made_of(lambda: hanging().result().and_then(lambda ended: act(repr(ended))))
    first = await start(made, app_on(store))
    assert "longer than 5" in str(first)
    # The failure was handled: a resume has it again.
    lines = await journal(store)
    again = app_on(await cut(store, lines.index("F hanging") + 1))
    assert await resume(made, again) == first
    assert "hang" not in again.world.done


async def test_an_attempt_of_at_most_once_that_timed_out_is_not_retried(store: MemoryStore) -> None:
    @step(retry=TWICE_MORE, timeout=5, at_most_once=True)
    def transfer() -> Effect[App, Broken, None]:
        return note("transfer").and_then(lambda _: sleep(100))

    made = made_of(lambda: transfer())

    app = app_on(store)
    assert isinstance((await start(made, app)).failure(), TimedOut)
    assert isinstance((await resume(made, app)).failure(), TimedOut)
    assert app.world.done == ["transfer"]
    plan = (await made.plan("r").run(app)).unwrap()
    assert plan.recurs == ("transfer",)


async def test_outside_runs_an_attempt_of_at_most_once_that_timed_out_is_not_retried() -> None:
    @step(retry=TWICE_MORE, at_most_once=True, timeout=0.01)
    def transfer() -> Effect[App, Broken, Any]:
        return noting_key("pay").and_then(lambda _: sleep(5))

    app = App()
    result = await transfer().run(app)
    assert isinstance(result.failure(), TimedOut)
    assert app.world.done.count("pay") == 1


async def test_a_typed_failure_of_at_most_once_is_retried(store: MemoryStore) -> None:
    @step(retry=TWICE_MORE, at_most_once=True)
    def transfer() -> Effect[App, Broken, Any]:
        return noting_key("pay")

    made = made_of(lambda: transfer())

    assert await start(made, app_on(store, failing=["pay#1"])) == Success(2)
    # An attempt whose outcome is unknown is not.
    app = app_on(await cut(store, 4))
    assert isinstance((await resume(made, app)).failure(), OutcomeUnknown)
    assert app.world.done == []


async def test_a_failure_that_is_not_retryable_ends_the_attempts(store: MemoryStore) -> None:
    @step(retry=TWICE_MORE, retryable=lambda error: error.args != ("pay",))
    def once() -> Effect[App, Broken, Any]:
        return noting_key("pay")

    made = made_of(lambda: once())

    app = app_on(store, failing=["pay"])
    assert isinstance(await start(made, app), Failure)
    assert isinstance(await resume(made, app), Failure)
    assert app.world.done.count("pay") == 1


async def test_a_defect_is_not_retried_by_the_policy(store: MemoryStore) -> None:
    from tests.apps import Crash

    app = app_on(store)
    app.world.crashing.add("pay")
    with pytest.raises(Crash):
        await start(paying, app)
    assert app.world.done.count("pay") == 1


async def test_a_handled_step_keeps_its_failure(store: MemoryStore) -> None:
    made = made_of(lambda: in_turn(pay().result(), act("after")))
    await start(made, app_on(store, failing=["pay"]))
    lines = await journal(store)
    app = app_on(await cut(store, lines.index("B after") + 1))
    assert await resume(made, app) == Success("after")
    assert app.world.done == ["after"]


async def test_a_crash_at_any_append_leads_to_the_same_end() -> None:
    def environment(store: Any) -> Any:
        return app_on(store, failing=["pay"])

    assert await crash_everywhere(paying, None, environment)


# Steps inside a step with `retry=`. An attempt begins them anew, and a resume continues the attempt.


@step(retry=TWICE_MORE)
def deliver() -> Effect[App, Broken, str]:
    return bracket(act("load"), lambda _: act("unload"), lambda _: act("drive"))


delivering = made_of(lambda: deliver(), "delivering")


async def crashed_everywhere(
    made: AnyWorkflow, *failing: str
) -> AsyncIterator[tuple[CrashPoint, App]]:
    """Crash a run at every write. Yield each point, and the app after the crash."""
    whole = FaultyStore(MemoryStore())
    await start(made, app_on(whole, failing=failing))
    for point in crash_points(whole):
        store = FaultyStore(MemoryStore(), [point])
        app = app_on(store, failing=failing)
        with store.life():
            await start(made, app)
        if store.unmet:
            continue  # what was written one by one was written together this time
        yield point, app


async def test_a_resume_continues_the_attempt_that_a_crash_cut_off(store: MemoryStore) -> None:
    app = app_on(store, failing=["drive#1"])
    assert await start(delivering, app) == Success("drive")
    assert app.world.done == ["load", "drive", "unload"] * 2
    lines = await journal(store)
    failed, again = lines.index("F deliver"), lines.index("B2 deliver")
    rest = {
        lines.index("C deliver/load"): ["drive", "unload"],
        failed: ["load", "drive", "unload"],
        again: ["load", "drive", "unload"],
        lines.index("C deliver/load", again): ["drive", "unload"],
        lines.index("C deliver/drive", again): ["unload"],
        lines.index("C deliver/unload", again): [],
    }
    for at, done in rest.items():
        resumed = app_on(await cut(store, at + 1))
        assert await resume(delivering, resumed) == Success("drive")
        assert resumed.world.done == done, lines[at]


async def test_what_any_attempt_acquired_is_released_once_wherever_a_crash_falls() -> None:
    async for point, app in crashed_everywhere(delivering, "drive"):
        assert str((await start(delivering, app)).failure()) == "drive"
        lines = await journal(app.checkpoints.store)
        assert lines.count("C deliver/load") == lines.count("C deliver/unload"), point


async def test_a_plan_of_an_attempt_to_come_skips_nothing_inside_the_step(
    store: MemoryStore,
) -> None:
    await start(delivering, app_on(store, failing=["drive#1"]))
    lines = await journal(store)
    for line, skip in [("C deliver/load", ("deliver/load",)), ("B2 deliver", ())]:
        app = app_on(await cut(store, lines.index(line) + 1))
        plan = (await delivering.plan("r").run(app)).unwrap()
        assert (plan.start, plan.retry, plan.skip) == (("deliver",), ("deliver",), skip)


async def test_what_the_next_attempt_executes_again_is_not_completed(store: MemoryStore) -> None:
    await start(delivering, app_on(store, failing=["drive#1"]))
    lines = await journal(store)
    ended = lines.index("F deliver")
    for at, done in [
        (ended - 1, ["deliver/load", "deliver/unload"]),
        (ended, []),
        (lines.index("C deliver/load", ended), ["deliver/load"]),
    ]:
        checkpoint = await read_checkpoint(store, "r", at=at + 1)
        assert [step.step for step in checkpoint.completed_steps] == done, lines[at]
        assert list(plan_resume(checkpoint).skip) == done, lines[at]


@workflow
def greeting(name: str) -> Do[App, Broken, str]:
    yield from act("greet")
    return name


@step(retry=TWICE_MORE)
@do
def invite() -> Do[App, Broken, str]:
    name = yield from uuid()
    greeted = yield from greeting.call(str(name))
    yield from act("invite")
    return greeted


async def test_each_attempt_calls_another_workflow_anew(store: MemoryStore) -> None:
    app = app_on(store, failing=["invite#1"])
    name = (await start(made_of(invite), app)).unwrap()
    assert app.world.done == ["greet", "invite"] * 2
    lines = await journal(store)
    assert lines.count("C invite/greeting") == 2
    last = [entry for entry in await read_entries(store, "r") if isinstance(entry, Completed)][-1]
    assert (last.step, last.output) == ("invite", name)


async def test_every_attempt_ends_wherever_a_crash_falls() -> None:
    made = made_of(invite)
    async for point, app in crashed_everywhere(made, "invite#1"):
        assert isinstance(await start(made, next_life(app)), Success), point


@effect(errors=Broken)
def fail_in_the_first_attempt(_: object) -> None:
    if current_step().attempt == 1:
        raise Broken("once")


async def test_an_attempt_calls_a_workflow_anew_that_a_failure_cancelled_wherever_a_crash_falls() -> (
    None
):
    attempt = 0

    async def hold(_: object) -> None:
        if attempt == 1:
            await anyio.sleep_forever()

    @workflow
    def staying(name: str) -> Do[App, Broken, str]:
        yield from act("stay")
        yield from from_async(hold)
        return name

    @step(retry=TWICE_MORE)
    @do
    def gather() -> Do[App, Broken, None]:
        # The same in every life, so that a replay does what was recorded.
        nonlocal attempt
        attempt = current_step().attempt
        yield from par(staying.call("ann"), after_others(fail_in_the_first_attempt()))

    made, whole = made_of(gather), MemoryStore()
    assert await start(made, app_on(whole)) == Success(None)
    for count in range(1, len(await journal(whole))):
        app = app_on(await cut(whole, count))
        assert await resume(made, app) == Success(None), count


async def test_attempts_outside_a_run_also_share_one_key(store: MemoryStore) -> None:
    app = app_on(store, failing=["pay#1"])
    assert await clock_at().run(pay(), app) == Success(2)
    keys = {line.rpartition(" ")[0] for line in app.world.done if " " in line}
    assert len(keys) == 1


async def test_branches_retry_side_by_side(store: MemoryStore) -> None:
    from effectflow import par

    made = made_of(lambda: par(pay(), fetch()))

    result = await start(made, app_on(store, failing=["pay#1", "pay#2"]))
    assert result == Success((3, "fetched"))
    app = next_life(app_on(store))
    assert await resume(made, app) == result
    assert app.world.done == []
