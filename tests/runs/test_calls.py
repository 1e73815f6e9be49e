"""`workflow.call`: another workflow inside a run, in its journal, as one step.

`tests/service/test_spawned_runs.py` has the runs that a run spawns.
"""

from __future__ import annotations

from functools import partial
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
    bracket,
    effect,
    par,
    par_traverse,
    race,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    DefinitionChanged,
    OutcomeUnknown,
    RunStatus,
    SaveFailed,
    StepInputChanged,
    read_checkpoint,
)
from effectflow.effects import die, from_async, never
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, SaveFails, TakenOver, crash_everywhere
from effectflow.testing.crash import crash_points
from tests.apps import App, Broken, Crash, app_on, both_backends, note
from tests.runs.journals import (
    AnyEffect,
    AnyWorkflow,
    act,
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


refund = made_of(lambda: act("refund"), "refund")


@workflow
def outer(_: object) -> Do[App, Broken, list[str]]:
    done = yield from refund.call(None)
    return [done, (yield from act("last"))]


def completed_in(lines: list[str]) -> list[str]:
    """Return the names of the steps that have completed."""
    return [line.removeprefix("C ").rpartition("/")[2] for line in lines if line.startswith("C ")]


async def status_of(store: MemoryStore) -> RunStatus:
    return (await read_checkpoint(store, "r")).status


async def test_a_call_is_one_step_that_contains_the_steps_of_the_workflow(
    store: MemoryStore,
) -> None:
    assert await start(outer, app_on(store)) == Success(["refund", "last"])
    assert await journal(store) == [
        "started",
        "B refund",
        "B refund/refund",
        "C refund/refund",
        "C refund",
        "B last",
        "C last",
        "completed",
    ]
    assert [run.run_id for run in await store.find()] == ["r"]


async def test_outside_a_run_the_body_just_runs(store: MemoryStore) -> None:
    assert await refund.call(None).run(app_on(store)) == Success("refund")
    assert await store.find() == []


async def test_a_call_that_has_ended_is_not_executed_again(store: MemoryStore) -> None:
    await start(outer, app_on(store, failing=["last"]))
    app = app_on(store)
    assert await resume(outer, app) == Success(["refund", "last"])
    assert app.world.done == ["last"]


async def test_a_crash_after_any_entry_repeats_no_completed_step(store: MemoryStore) -> None:
    both = made_of(lambda: in_turn(act("charge"), act("ship")), "both")
    made = made_of(lambda: in_turn(both.call(None), act("last")))
    await start(made, app_on(store))
    lines = await journal(store)
    for count, line in enumerate(lines, 1):
        app = app_on(await cut(store, count))
        assert await resume(made, app) == Success("last")
        assert app.world.done == [
            step for step in ("charge", "ship", "last") if step not in completed_in(lines[:count])
        ], line


async def test_two_calls_of_one_workflow_are_two_steps(store: MemoryStore) -> None:
    @workflow
    def child(name: str) -> Do[App, Broken, str]:
        return (yield from act(name))

    made = made_of(lambda: in_turn(child.call("a"), child.call("b"), act("last")))
    await start(made, app_on(store, failing=["last"]))
    lines = await journal(store)
    assert [line for line in lines if line.startswith("C")] == [
        "C child/a",
        "C child",
        "C child#2/b",
        "C child#2",
    ]
    app = app_on(await cut(store, lines.index("B child#2/b")))
    assert await resume(made, app) == Success("last")
    assert app.world.done == ["b", "last"]


async def test_calls_in_branches_have_their_paths(store: MemoryStore) -> None:
    made = made_of(lambda: par_traverse(["a", "b"], lambda _: refund.call(None), key=str))
    assert await start(made, app_on(store)) == Success(["refund", "refund"])
    lines = await journal(store)
    assert {"C par_traverse[a]/refund", "C par_traverse[b]/refund"} < set(lines)


async def test_a_called_workflow_may_call_another_one(store: MemoryStore) -> None:
    made = made_of(lambda: made_of(lambda: outer.call(None), "between").call(None))
    await start(made, app_on(store, failing=["last"]))
    app = app_on(store)
    assert await resume(made, app) == Success(["refund", "last"])
    assert app.world.done == ["last"]
    assert "C between/outer/refund" in await journal(store)


async def test_a_call_with_another_input_is_rejected(store: MemoryStore) -> None:
    given = 1

    @workflow
    def child(number: int) -> Do[App, Any, str]:
        return (yield from act("child"))

    made = made_of(lambda: in_turn(child.call(given), act("last")))
    await start(made, app_on(store, failing=["last"]))
    given = 2
    assert isinstance((await resume(made, app_on(store))).failure(), StepInputChanged)


async def test_changed_code_of_a_called_workflow_in_progress_is_rejected(
    store: MemoryStore,
) -> None:
    names = ["charge", "ship"]
    innermost = made_of(lambda: in_turn(*map(act, names)), "innermost")
    inner = made_of(lambda: innermost.call(None), "inner")
    made = made_of(lambda: inner.call(None))
    await start(made, app_on(store, failing=["ship"]))
    names[0] = "bill"
    app = app_on(store)
    refused = (await resume(made, app)).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "'inner/innermost/charge' has begun" in str(refused)
    assert "'inner/innermost/bill'" in str(refused)
    assert app.world.done == []


# Failures.


async def test_a_called_workflow_that_failed_continues_with_the_run(store: MemoryStore) -> None:
    both = made_of(lambda: in_turn(act("charge"), act("ship")), "both")
    made = made_of(lambda: both.call(None))
    app = app_on(store, failing=["ship"])
    assert str((await start(made, app)).failure()) == "ship"
    plan = (await made.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry, plan.skip) == (("both",), ("both",), ("both/charge",))
    again = next_life(app)
    assert await resume(made, again) == Success("ship")
    assert again.world.done == ["ship"]


async def test_a_refund_in_a_handler_charges_once(store: MemoryStore) -> None:
    made = made_of(lambda: act("charge").tap_err(lambda _: refund.call(None)))
    app = app_on(store, failing=["charge"])
    assert str((await start(made, app)).failure()) == "charge"
    lines = await journal(store)
    for count in range(lines.index("B refund") + 1, len(lines) + 1):
        again = next_life(app, store=await cut(store, count))
        assert str((await resume(made, again)).failure()) == "charge"
        assert set(again.world.done) <= {"refund"}


async def test_a_failure_of_a_call_that_was_handled_is_not_repeated(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        refunded = yield from refund.call(None).result()
        branch = "ok" if isinstance(refunded, Success) else "manual"
        return [(yield from act(branch)), (yield from act("last"))]

    app = app_on(store, failing=["refund", "last"])
    await start(made, app)
    again = next_life(app)
    assert await resume(made, again) == Success(["manual", "last"])
    assert again.world.done == ["last"]


class Declined(Exception):
    """An error with an attribute."""

    def __init__(self, amount: int) -> None:
        super().__init__(f"declined {amount}")
        self.amount = amount


async def test_the_error_of_a_call_is_of_the_class_that_its_workflow_declares(
    store: MemoryStore,
) -> None:
    @effect(errors=Declined)
    def pay(app: App, amount: int) -> str:
        app.world.note("pay")
        raise Declined(amount)

    @workflow
    def paying(amount: int) -> Do[App, Declined, str]:
        return (yield from step(pay)(amount))

    handled: list[int] = []

    @workflow
    def made(_: object) -> Do[App, Any, str]:
        try:
            return (yield from paying.call(5))
        except Declined as error:
            handled.append(error.amount)
        return (yield from act("apologize"))

    await start(made, app_on(store, failing=["apologize"]))
    app = app_on(store)
    assert await resume(made, app) == Success("apologize")
    assert handled == [5, 5]
    assert app.world.done == ["apologize"]


@pytest.mark.parametrize(
    "body", [lambda: act("crash"), lambda: die(Crash("bug"))], ids=["step", "body"]
)
async def test_a_defect_of_a_called_workflow_is_a_defect_of_the_run(
    store: MemoryStore, body: Any
) -> None:
    child = made_of(body, "child")
    app = app_on(store)
    app.world.crashing.add("crash")
    with pytest.raises(Crash):
        await start(made_of(lambda: child.call(None).fallback("handled")), app)
    lines = await journal(store)
    assert "F child" in lines
    assert lines[-1].startswith("failed")


async def test_each_attempt_of_a_retry_around_a_call_is_another_step(store: MemoryStore) -> None:
    policy = RetryPolicy.constant(0).with_max_retries(2)
    made = made_of(lambda: in_turn(refund.call(None).retry(policy), act("last")))
    app = app_on(store, failing=["refund#1", "refund#2", "last"])
    await start(made, app)
    lines = await journal(store)
    assert [line for line in lines if line[0] in "CF"] == [
        "F refund/refund",
        "F refund",
        "F refund#2/refund",
        "F refund#2",
        "C refund#3/refund",
        "C refund#3",
        "F last",
    ]
    again = next_life(app)
    assert await resume(made, again) == Success("last")
    assert again.world.done == ["last"]


async def test_an_error_of_the_store_halts_and_cannot_be_handled(store: MemoryStore) -> None:
    reached: list[str] = []

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        try:
            yield from refund.call(None).result()
        except Exception:
            reached.append("handled")
        reached.append("went on")
        return (yield from act("after"))

    # The loop ends where the body has gone on.
    halted = 0
    for append in range(2, 8):
        faulty = FaultyStore(MemoryStore(), [SaveFails(append)])
        app = App(Checkpoints(faulty))
        result = await start(made, app)
        if reached == ["went on"]:
            break
        halted += 1
        assert isinstance(result.failure(), SaveFailed), append
        assert reached == [], append
        assert await resume(made, app) == Success("after")
        reached.clear()
    assert halted >= 2


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_unknown_outcome_in_a_called_workflow_halts_the_run_and_force_repeats_it(
    store: MemoryStore, depth: int
) -> None:
    sent = note("send").and_then(lambda _: never())

    def sending() -> AnyEffect:
        return in_turn(act("reserve"), with_checkpointing("send", sent, at_most_once=True))

    made = made_of(sending, "sending")
    for _ in range(depth):
        made = made_of(partial(made.call, None))
    handling = made_of(lambda: made.call(None).fallback("handled"))
    await stopped(handling.start(None, run_id="r"), app_on(store))
    sent = note("send")
    assert isinstance((await resume(handling, app_on(store))).failure(), OutcomeUnknown)
    app = app_on(store)
    assert await resume(handling, app, force=True) == Success(1)
    assert app.world.done == ["send"]


async def test_force_lets_a_called_workflow_leave_steps_behind(store: MemoryStore) -> None:
    def of_steps(*steps: str) -> AnyWorkflow:
        inner = made_of(lambda: in_turn(*map(act, steps)), "inner")
        return made_of(partial(inner.call, None))

    await start(of_steps("reserve", "charge", "last"), app_on(store, failing=["last"]))
    changed = of_steps("reserve", "bill", "last")
    refused = (await resume(changed, app_on(store))).failure()
    assert isinstance(refused, DefinitionChanged)
    app = app_on(store, failing=["last"])
    await resume(changed, app, force=True)
    assert app.world.done == ["bill", "last"]
    # A later resume needs no force.
    assert await resume(changed, app_on(store)) == Success("last")


# Cancellation.


holding = made_of(
    lambda: bracket(act("acquire"), lambda _: act("release"), lambda _: hang("use")), "holding"
)
between = made_of(lambda: holding.call(None), "between")
waiting = made_of(lambda: hang("use"), "waiting")
sleeping = made_of(lambda: sleep(3600), "sleeping")
idle = made_of(never, "idle")


def limited(child: AnyWorkflow) -> AnyWorkflow:
    """Return a workflow that handles the timeout of a call."""
    return made_of(
        lambda: child.call(None).timeout(10).recover(TimedOut, lambda _: act("handle")), "limited"
    )


def in_a_step(child: AnyWorkflow) -> AnyEffect:
    return with_checkpointing("calling", child.call(None), error=Broken)


CANCELLING: dict[str, AnyWorkflow] = {
    "timeout": limited(holding),
    "race": made_of(lambda: in_turn(race([holding.call(None), late("win", 1)]), act("after"))),
    "par": made_of(
        lambda: par(holding.call(None), late("bad", 1)).recover(Broken, lambda _: act("handle"))
    ),
    "timeout, two levels": limited(between),
    "timeout, in a step": made_of(
        lambda: in_a_step(holding).timeout(10).recover(TimedOut, lambda _: act("handle"))
    ),
    "race, in a step": made_of(
        lambda: in_turn(race([in_a_step(holding), late("win", 1)]), act("after"))
    ),
    "race, two levels": made_of(
        lambda: race(
            [between.call(None), made_of(lambda: late("bad", 1), "bad").call(None)]
        ).recover(Broken, lambda _: act("handle"))
    ),
}
cancelling = pytest.mark.parametrize("made", CANCELLING.values(), ids=CANCELLING)


@cancelling
async def test_a_decision_cancels_a_call_whose_finalizers_execute_steps(
    store: MemoryStore, made: AnyWorkflow
) -> None:
    app = app_on(store, failing=["bad"])
    result = await start(made, app)
    assert isinstance(result, Success)
    assert app.world.done.count("release") == 1
    again = next_life(app)
    assert await resume(made, again) == result
    assert again.world.done == []


@cancelling
@pytest.mark.parametrize("at", [0, 100], ids=["at once", "long after"])
async def test_a_call_that_was_being_cancelled_at_a_crash_ends_in_the_resume(
    made: AnyWorkflow, at: float
) -> None:
    whole = FaultyStore(MemoryStore())
    await start(made, app_on(whole, failing=["bad"]))
    for point in crash_points(whole)[1:]:
        store = FaultyStore(MemoryStore(), [point])
        app = app_on(store, failing=["bad"])
        with store.life():
            await start(made, app)
        if store.unmet:
            continue  # what was written one by one was written together this time
        assert isinstance(await resume(made, next_life(app, failing=("bad",)), at=at), Success), (
            point
        )
        # An acquisition whose end is not durable does not count.
        completed = completed_in(await journal(store))
        assert completed.count("acquire") == completed.count("release"), point


@pytest.mark.parametrize("child", [waiting, sleeping, idle], ids=lambda child: child.name)
async def test_a_call_without_finalizers_is_cancelled(
    store: MemoryStore, child: AnyWorkflow
) -> None:
    assert await start(limited(child), app_on(store)) == Success("handle")
    assert f"X {child.name}" in await journal(store)


async def test_a_run_that_ended_by_the_timeout_of_a_call_tries_again(store: MemoryStore) -> None:
    made = made_of(lambda: waiting.call(None).timeout(10))
    app = app_on(store)
    for at in (0, 100):
        life = start if at == 0 else resume
        assert isinstance((await life(made, app, at=at)).failure(), TimedOut)
    assert app.world.done == ["use", "use"]


@pytest.mark.parametrize(
    "made", [outer, *map(limited, (holding, waiting, sleeping, between)), CANCELLING["race"]]
)
async def test_a_crash_at_any_append_leads_to_the_same_end(made: Any) -> None:
    assert await crash_everywhere(made, None, app_on)


@pytest.mark.parametrize("name", ["timeout, two levels", "race, two levels"])
async def test_a_run_that_loses_its_lease_at_any_append_goes_on_in_the_resume(name: str) -> None:
    made = CANCELLING[name]
    for number in range(2, 30):
        store = FaultyStore(MemoryStore(), [TakenOver(number)])
        app = app_on(store, failing=["bad"])
        await start(made, app)
        if store.unmet:
            break
        assert await resume(made, app, at=100) == Success("handle"), number
    else:
        raise AssertionError("it never got to its end")


booking = made_of(
    lambda: bracket(act("book"), lambda _: act("cancel"), lambda _: act("ask", 5)), "booking"
)


def paid() -> AnyEffect:
    return par(booking.call(None), late("pay", 1)).map(list)


async def test_what_a_cancelled_call_released_is_not_used_again(store: MemoryStore) -> None:
    made = made_of(lambda: with_checkpointing("order", paid(), error=Broken))
    app = app_on(store, failing=["pay"])
    assert str((await start(made, app)).failure()) == "pay"
    assert app.world.done == ["book", "ask", "pay", "cancel"]

    again = next_life(app)
    assert str((await resume(made, again, at=100)).failure()) == "pay"
    assert again.world.done == []


async def test_the_next_attempt_of_a_step_calls_anew(store: MemoryStore) -> None:
    @step(retry=RetryPolicy.constant(1).with_max_retries(2))
    def order() -> Effect[App, Broken, list[object]]:
        return paid()

    app = app_on(store, failing=["pay#1"])
    assert await start(made_of(order), app) == Success(["ask", "pay"])
    assert app.world.done == ["book", "ask", "pay", "cancel"] * 2


async def test_the_timeout_of_a_step_cancels_a_call(store: MemoryStore) -> None:
    @step(timeout=5)
    def ask() -> Effect[App, Broken, object]:
        return holding.call(None)

    app = app_on(store)
    assert isinstance((await start(made_of(ask), app)).failure(), TimedOut)
    assert app.world.done == ["acquire", "use", "release"]


async def test_an_outside_stop_interrupts_a_call(store: MemoryStore) -> None:
    made, app = limited(holding), app_on(store)
    await stopped(made.start(None, run_id="r"), app)
    assert app.world.done == ["acquire", "use"]
    assert await status_of(store) is RunStatus.INTERRUPTED
    again = next_life(app)
    assert await resume(made, again, at=5) == Success("handle")
    assert again.world.done == ["use", "release", "handle"]


@pytest.mark.parametrize("is_parallel", [False, True], ids=["in turn", "in branches"])
async def test_an_outside_stop_ends_a_release_after_the_step_of_its_call(
    store: MemoryStore, *, is_parallel: bool
) -> None:
    began = anyio.Event()

    async def close(app: App) -> None:
        app.world.note("close")
        began.set()
        await anyio.sleep(0.05)

    closing: AnyEffect = with_checkpointing("close", from_async(close))
    both = in_turn(closing, act("report"))
    releasing = made_of(lambda: par(both, sleep(0)) if is_parallel else both, "releasing")
    made = made_of(
        lambda: in_turn(
            bracket(act("acquire"), lambda _: releasing.call(None), lambda _: act("use")),
            act("after"),
        )
    )
    app = app_on(store)
    async with anyio.create_task_group() as tasks:
        run = made.start(None, run_id="r").run
        tasks.start_soon(partial(run, app, finalizer_deadline=5))
        await began.wait()
        tasks.cancel_scope.cancel()
    assert app.world.done == ["acquire", "use", "close"]
    assert await status_of(store) is RunStatus.INTERRUPTED
    again = next_life(app)
    assert await resume(made, again) == Success("after")
    assert again.world.done == ["report", "after"]


# A run of its own.


@pytest.mark.parametrize("how", ["start", "resume"])
async def test_a_body_cannot_drive_a_run_between_its_steps(store: MemoryStore, how: str) -> None:
    driving: AnyEffect = (
        refund.start(None, run_id="child") if how == "start" else refund.resume("child")
    )
    with pytest.raises(TypeError, match=rf"refund.{how}\(...\) drives a run of its own.*\.call\("):
        await start(made_of(lambda: driving), app_on(store))
    assert [run.run_id for run in await store.find()] == ["r"]


async def test_a_step_may_drive_a_run_of_its_own(store: MemoryStore) -> None:
    both = made_of(lambda: in_turn(act("charge"), act("ship")), "both")

    @step
    def driving() -> Effect[App, Any, str]:
        return both.start(None, run_id="child")

    made = made_of(driving)
    app = app_on(store, failing=["ship"])
    assert isinstance(await start(made, app), Failure)
    assert sorted(run.run_id for run in await store.find()) == ["child", "r"]
    again = next_life(app)
    assert await resume(made, again) == Success("ship")
    assert again.world.done == ["ship"]
