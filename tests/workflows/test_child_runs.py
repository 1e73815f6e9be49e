"""Runs within runs: recorded in the run around them, and not repeated."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    TimedOut,
    bracket,
    die,
    from_async,
    never,
    par,
    par_traverse,
    race,
    sleep,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointError,
    ChildEnded,
    ChildStarted,
    DefinitionChanged,
    Lease,
    OutcomeUnknown,
    Record,
    RunBusy,
    RunCancelled,
    RunConflict,
    RunStatus,
    SaveFailed,
    StepInputChanged,
    read_entries,
)
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, SaveFails, TakenOver, crash_everywhere
from effectflow.testing.crash import crash_points
from tests.apps import App, Broken, Crash, app_on, both_backends, note
from tests.workflows.journals import (
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

pytestmark = pytest.mark.anyio


refund = made_of(lambda: act("refund"), "refund")


@workflow
def outer(_: object) -> Do[App, Broken, list[str]]:
    done = yield from refund.call(None)
    return [done, (yield from act("last"))]


async def status_of(store: Any, run_id: str) -> RunStatus:
    info = await store.info(run_id)
    return info.summary.status


async def test_a_call_is_recorded_in_both_journals(store: MemoryStore) -> None:
    assert await start(outer, app_on(store)) == Success(["refund", "last"])
    assert await journal(store) == [
        "started",
        "child refund",
        "child refund completed",
        "B last",
        "C last",
        "completed",
    ]
    assert await journal(store, "r/refund") == ["started", "B refund", "C refund", "completed"]
    _, started, ended, *_ = await read_entries(store, "r")
    assert isinstance(started, ChildStarted)
    assert (started.run_id, started.workflow) == ("r/refund", "refund")
    assert isinstance(ended, ChildEnded)
    assert (ended.status, ended.output) == (RunStatus.COMPLETED, "refund")


async def test_a_resume_replays_it_without_looking_at_the_child(store: MemoryStore) -> None:
    await start(outer, app_on(store, failing=["last"]))
    await store.delete("r/refund")
    app = app_on(store)
    assert await resume(outer, app) == Success(["refund", "last"])
    assert app.world.done == ["last"]
    assert await store.info("r/refund") is None


async def test_a_child_that_failed_continues_with_the_run_around_it(store: MemoryStore) -> None:
    app = app_on(store, failing=["refund"])
    assert str((await start(outer, app)).failure()) == "refund"
    assert await status_of(store, "r/refund") is RunStatus.FAILED
    plan = (await outer.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("refund",), ("refund",))
    assert await resume(outer, next_life(app)) == Success(["refund", "last"])
    assert await status_of(store, "r/refund") is RunStatus.COMPLETED
    assert "B2 refund" in await journal(store, "r/refund")


async def test_a_child_that_a_crash_cut_off_continues(store: MemoryStore) -> None:
    await start(outer, app_on(store))
    shorter = await cut(store, 2)
    app = app_on(shorter)
    assert await resume(outer, app) == Success(["refund", "last"])
    # The child is not in that store, so it runs from its beginning.
    assert app.world.done == ["refund", "last"]


async def test_a_crash_between_the_two_ends_asks_the_child_for_its_output(
    store: MemoryStore,
) -> None:
    await start(outer, app_on(store))
    shorter = await cut(store, 2)
    child = await cut(store, 4, "r/refund")
    info = await child.info("r/refund")
    assert info is not None
    lease = await shorter.claim("r/refund", owner="test", seconds=60)
    bodies = [record.body for record in await child.read("r/refund")]
    await shorter.append(lease, bodies, after=0, summary=info.summary, release=True)
    app = app_on(shorter)
    assert await resume(outer, app) == Success(["refund", "last"])
    assert app.world.done == ["last"]


# Handled failures.


async def test_a_refund_in_a_handler_charges_once(store: MemoryStore) -> None:
    made = made_of(lambda: act("charge").tap_err(lambda _: refund.start(None, run_id="refund-1")))
    app = app_on(store, failing=["charge"])
    assert str((await start(made, app)).failure()) == "charge"
    assert "child refund <- F charge" in await journal(store)
    again = next_life(app)
    assert str((await resume(made, again)).failure()) == "charge"
    assert again.world.done == []


async def test_a_crash_during_the_refund_charges_once(store: MemoryStore) -> None:
    made = made_of(lambda: act("charge").tap_err(lambda _: refund.call(None)))
    await start(made, app_on(store, failing=["charge"]))
    lines = await journal(store)
    app = app_on(await cut(store, lines.index("child refund <- F charge") + 1))
    assert str((await resume(made, app)).failure()) == "charge"
    assert app.world.done == ["refund"]


async def test_a_handled_child_failure_is_not_repeated(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        refunded = yield from refund.call(None).result()
        branch = "ok" if isinstance(refunded, Success) else "manual"
        return [(yield from act(branch)), (yield from act("last"))]

    app = app_on(store, failing=["refund", "last"])
    await start(made, app)
    assert "B manual <- child refund failed" in await journal(store)
    again = next_life(app)
    assert await resume(made, again) == Success(["manual", "last"])
    assert again.world.done == ["last"]


@pytest.mark.parametrize(
    "body", [lambda: act("crash"), lambda: die(Crash("bug"))], ids=["step", "body"]
)
async def test_a_defect_of_a_child_is_a_defect_of_the_run_around_it(
    store: MemoryStore, body: Any
) -> None:
    child = made_of(body, "child")
    app = app_on(store)
    app.world.crashing.add("crash")
    with pytest.raises(Crash):
        await start(made_of(lambda: child.call(None)), app)
    [ended] = [one for one in await read_entries(store, "r") if isinstance(one, ChildEnded)]
    assert ended.status is RunStatus.FAILED
    assert ended.error is not None
    assert ended.error.is_defect


# Checkpoint errors.


@pytest.mark.parametrize("how", ["call", "start"])
async def test_a_checkpoint_error_of_a_child_halts_and_cannot_be_handled(
    store: MemoryStore, how: str
) -> None:
    reached: list[str] = []

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        nested: AnyEffect = (
            refund.call(None) if how == "call" else refund.start(None, run_id="r/refund")
        )
        try:
            yield from nested.result()
        except Exception:
            reached.append("handled")
        reached.append("went on")
        return (yield from act("after"))

    # The first append of the outer run is followed by those of the child. Which append is the last one of
    # the child depends on the delayed saves, so the loop ends where the outer run has gone on.
    halted = 0
    for append in range(3, 8):
        faulty = FaultyStore(MemoryStore(), [SaveFails(append)])
        app = App(Checkpoints(faulty))
        result = await start(made, app)
        if reached == ["went on"]:
            break
        halted += 1
        assert isinstance(result.failure(), SaveFailed), append
        assert reached == [], append
        # The resume continues both.
        assert await resume(made, app) == Success("after")
        reached.clear()
    assert halted >= 2


async def test_a_conflict_of_a_child_halts(store: MemoryStore) -> None:
    made = made_of(lambda: refund.call(None, run_id="taken").result().map(repr))
    other = made_of(lambda: act("other"), "other")
    await clock_at().run(other.start(None, run_id="taken"), app_on(store))
    assert isinstance((await start(made, app_on(store))).failure(), RunConflict)


async def test_a_child_that_another_process_drives_halts(store: MemoryStore) -> None:
    made = made_of(lambda: refund.call(None, run_id="c").fallback("handled"))
    elsewhere = await store.claim("c", owner="another process", seconds=60)
    assert isinstance((await start(made, app_on(store))).failure(), RunBusy)
    await store.release(elsewhere)
    assert await resume(made, app_on(store)) == Success("refund")


class Unreachable(MemoryStore):
    """Raises what a store of one's own may raise, in one method, for the run "c" only."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    async def claim(self, run_id: str, **options: Any) -> Lease:
        self.fail("claim", run_id)
        return await super().claim(run_id, **options)

    async def read(self, run_id: str, **options: Any) -> list[Record]:
        self.fail("read", run_id)
        return await super().read(run_id, **options)

    async def append(self, lease: Lease, *args: Any, **options: Any) -> None:
        self.fail("append", lease.run_id)
        await super().append(lease, *args, **options)

    def fail(self, called: str, run_id: str) -> None:
        if (called, run_id) == (self.method, "c"):
            raise OSError("no route")


@pytest.mark.parametrize("method", ["claim", "read", "append"])
async def test_no_body_can_handle_an_error_of_the_store_of_a_child(method: str) -> None:
    handled: list[object] = []

    @workflow
    def made(_: None) -> Do[App, Any, Any]:
        try:
            return (yield from refund.call(None, run_id="c"))
        except Exception as error:
            handled.append(error)
            return 0

    result = await start(made, app_on(Unreachable(method)))
    assert isinstance(result.failure(), CheckpointError)
    assert "no route" in str(result.failure())
    assert handled == []


async def test_an_unknown_outcome_in_a_child_halts_the_run_around_it(store: MemoryStore) -> None:
    work = hang("pay")
    paying = made_of(lambda: with_checkpointing("pay", work, at_most_once=True), "paying")
    made = made_of(lambda: paying.call(None).fallback("handled"))
    app = app_on(store)
    await stopped(made.start(None, run_id="r"), app)
    work = note("pay")
    assert isinstance((await resume(made, app)).failure(), OutcomeUnknown)


async def test_a_child_with_another_input_is_rejected(store: MemoryStore) -> None:
    given = 1

    @workflow
    def child(number: int) -> Do[App, Any, str]:
        return (yield from act("child"))

    made = made_of(lambda: in_turn(child.call(given), act("last")))
    await start(made, app_on(store, failing=["last"]))
    given = 2
    assert isinstance((await resume(made, app_on(store))).failure(), StepInputChanged)


async def test_call_outside_a_run_is_an_error(store: MemoryStore) -> None:
    with pytest.raises(TypeError, match=r"use start\(\)"):
        await refund.call(None).run(app_on(store))


# Cancellation.


holding = made_of(
    lambda: bracket(act("acquire"), lambda _: act("release"), lambda _: hang("use")), "holding"
)
between = made_of(lambda: holding.call(None), "between")
waiting = made_of(lambda: hang("use"), "waiting")
sleeping = made_of(lambda: sleep(3600), "sleeping")
idle = made_of(never, "idle")


def limited(child: AnyWorkflow) -> AnyWorkflow:
    """Return a workflow that handles the timeout of a child."""
    return made_of(
        lambda: child.call(None).timeout(10).recover(TimedOut, lambda _: act("handle")), "limited"
    )


def in_a_step(child: AnyWorkflow) -> AnyEffect:
    return with_checkpointing("calling", child.call(None), error=Broken)


timed = limited(holding)
timed_in_a_step = made_of(
    lambda: in_a_step(holding).timeout(10).recover(TimedOut, lambda _: act("handle")), "in_a_step"
)
raced_in_a_step = made_of(
    lambda: in_turn(race([in_a_step(holding), late("win", 1)]), act("after")), "raced_in_a_step"
)
timed_without_finalizers = limited(waiting)
timed_between_steps = limited(sleeping)
timed_at_two_levels = limited(between)
raced = made_of(lambda: in_turn(race([holding.call(None), late("win", 1)]), act("after")), "raced")
beside_a_failure = made_of(
    lambda: par(holding.call(None), late("bad", 1)).recover(Broken, lambda _: act("handle")), "par"
)


@pytest.mark.parametrize("made", [timed, raced, beside_a_failure], ids=["timeout", "race", "par"])
async def test_a_decision_cancels_the_child_whose_finalizers_run_steps(
    store: MemoryStore, made: AnyWorkflow
) -> None:
    app = app_on(store, failing=["bad"])
    result = await start(made, app)
    assert isinstance(result, Success)
    assert app.world.done.count("release") == 1
    [child] = [run.run_id for run in await store.find() if run.run_id != "r"]
    assert await status_of(store, child) is RunStatus.CANCELLED
    assert (await journal(store, child))[-4:] == [
        "cancel",
        "B bracket/release (cancelled by cancel)",
        "C bracket/release",
        "cancelled",
    ]
    again = next_life(app)
    assert await resume(made, again) == result
    assert again.world.done == []


@pytest.mark.parametrize("child", [waiting, sleeping, idle], ids=lambda child: child.name)
async def test_a_child_without_finalizers_is_cancelled(
    store: MemoryStore, child: AnyWorkflow
) -> None:
    assert await start(limited(child), app_on(store)) == Success("handle")
    assert await status_of(store, f"r/timeout/{child.name}") is RunStatus.CANCELLED


async def test_a_timeout_that_cancelled_a_child_is_final(store: MemoryStore) -> None:
    made = made_of(lambda: waiting.call(None).timeout(10))
    app = app_on(store)
    assert isinstance((await start(made, app)).failure(), TimedOut)
    assert isinstance((await resume(made, app, at=100)).failure(), TimedOut)
    assert app.world.done == ["use"]


async def test_a_decision_cancels_the_children_of_children(store: MemoryStore) -> None:
    app = app_on(store)
    assert await start(timed_at_two_levels, app) == Success("handle")
    assert app.world.done == ["acquire", "use", "release", "handle"]
    child = "r/timeout/between"
    assert await status_of(store, child) is RunStatus.CANCELLED
    assert await status_of(store, f"{child}/holding") is RunStatus.CANCELLED


@pytest.mark.parametrize(
    "made",
    [outer, timed, raced, timed_without_finalizers, timed_between_steps, timed_at_two_levels],
)
async def test_a_crash_at_any_append_of_both_runs_leads_to_the_same_end(made: Any) -> None:
    assert await crash_everywhere(made, None, app_on)


LONG_AFTER, BEFORE_THE_DEADLINE = 100, 0


@pytest.mark.parametrize(
    ("made", "at"),
    [
        (timed_without_finalizers, LONG_AFTER),
        (timed_between_steps, LONG_AFTER),
        (timed_at_two_levels, LONG_AFTER),
        # A deadline that has passed ends a step that was cut off, instead of attempting it again.
        (timed_in_a_step, BEFORE_THE_DEADLINE),
        (raced_in_a_step, BEFORE_THE_DEADLINE),
    ],
)
async def test_a_child_that_was_being_cancelled_at_a_crash_ends_in_the_resume(
    made: Any, at: float
) -> None:
    """`test_interleavings.py` has the same for a child that each operator cancels directly."""
    whole = FaultyStore(MemoryStore())
    await start(made, app_on(whole))
    for point in crash_points(whole)[1:]:
        store = FaultyStore(MemoryStore(), [point])
        app = app_on(store)
        with store.life():
            await start(made, app)
        if store.unmet:
            continue  # what was written one by one was written together this time
        again = next_life(app)
        assert isinstance(await resume(made, again, at=at), Success), point
        runs = {run.run_id: run.summary.status for run in await store.find()}
        assert all(status.has_ended for status in runs.values()), (point, runs)
        # An acquisition whose end is not durable does not count.
        done = [entry for run_id in runs for entry in await journal(store, run_id)]
        assert ("C bracket/acquire" in done or "C acquire" in done) == (
            "C bracket/release" in done
        ), (point, done)


failing = made_of(lambda: late("bad", 1), "failing")
raced_at_two_levels = made_of(
    lambda: race([between.call(None), failing.call(None)]).recover(Broken, lambda _: act("handle")),
    "raced_at_two_levels",
)


@pytest.mark.parametrize("made", [timed_at_two_levels, raced_at_two_levels])
async def test_a_run_that_loses_its_lease_at_any_append_keeps_the_children_that_it_needs(
    made: AnyWorkflow,
) -> None:
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


def paid_in_a_step() -> AnyEffect:
    both = par(booking.call(None), late("pay", 1)).map(list)
    return with_checkpointing("order", both, error=Broken)


async def test_a_step_that_cancelled_a_child_starts_another_one_in_its_next_attempt(
    store: MemoryStore,
) -> None:
    made = made_of(paid_in_a_step)
    app = app_on(store, failing=["pay"])
    assert str((await start(made, app)).failure()) == "pay"
    assert app.world.done == ["book", "ask", "pay", "cancel"]
    assert await status_of(store, "r/order/par[0]/booking") is RunStatus.CANCELLED

    again = next_life(app)
    assert await resume(made, again, at=100) == Success(["ask", "pay"])
    assert again.world.done == ["book", "ask", "pay", "cancel"]
    another = "r/order/par[0]/booking after retry 1"
    assert await status_of(store, another) is RunStatus.COMPLETED


async def test_a_child_that_a_step_was_cancelling_at_a_crash_ends_in_its_next_attempt() -> None:
    made = made_of(paid_in_a_step)
    whole = FaultyStore(MemoryStore())
    await start(made, app_on(whole, failing=["pay"]))
    for point in crash_points(whole)[1:]:
        store = FaultyStore(MemoryStore(), [point])
        app = app_on(store, failing=["pay"])
        with store.life():
            await start(made, app)
        if store.unmet:
            continue  # what was written one by one was written together this time
        assert await resume(made, next_life(app), at=100) == Success(["ask", "pay"]), point
        for run in await store.find():
            entries = await journal(store, run.run_id)
            assert run.summary.status.has_ended, (point, entries)
            assert ("C book" in entries) == ("C bracket/cancel" in entries), (point, entries)


async def test_a_retry_of_a_step_that_cancelled_a_child_starts_another_one(
    store: MemoryStore,
) -> None:
    endless = made_of(lambda: hang("endless"), "endless")

    @step(retry=RetryPolicy.constant(1).with_max_retries(2))
    def ask() -> Effect[App, TimedOut, str]:
        return endless.call(None).timeout(5)

    assert isinstance((await start(made_of(ask), app_on(store))).failure(), TimedOut)
    runs = [run.run_id for run in await store.find()]
    ids = ["r/ask/timeout/endless" + suffix for suffix in ("", " after retry 1", " after retry 2")]
    assert sorted(runs) == ["r", *ids]


async def test_the_timeout_of_a_step_cancels_its_child(store: MemoryStore) -> None:
    held = made_of(lambda: bracket(act("acquire"), lambda _: act("release"), lambda _: hang("use")))

    @step(timeout=5)
    def ask() -> Effect[App, Broken, object]:
        return held.call(None)

    app = app_on(store)
    assert isinstance((await start(made_of(ask), app)).failure(), TimedOut)
    assert app.world.done == ["acquire", "use", "release"]
    assert await status_of(store, "r/ask/made") is RunStatus.CANCELLED


async def test_an_outside_stop_interrupts_the_child(store: MemoryStore) -> None:
    app = app_on(store)
    await stopped(timed.start(None, run_id="r"), app)
    assert app.world.done == ["acquire", "use"]
    for run_id in ("r", "r/timeout/holding"):
        assert await status_of(store, run_id) is RunStatus.INTERRUPTED
    again = next_life(app)
    assert await resume(timed, again, at=5) == Success("handle")
    assert again.world.done == ["use", "release", "handle"]


@both_backends
@pytest.mark.parametrize("is_parallel", [False, True], ids=["in turn", "in branches"])
async def test_an_outside_stop_ends_a_release_after_the_step_of_its_child(
    store: MemoryStore, *, is_parallel: bool
) -> None:
    """No cancellation reaches the child, so it has to end by itself."""
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
    for run_id in ("r", "r/bracket/releasing"):
        assert await status_of(store, run_id) is RunStatus.INTERRUPTED
    again = next_life(app)
    assert await resume(made, again) == Success("after")
    assert again.world.done == ["report", "after"]


async def test_a_cancelled_run_cannot_be_resumed(store: MemoryStore) -> None:
    await start(timed, app_on(store))
    found = await holding.resume("r/timeout/holding").run(app_on(store))
    assert isinstance(found.failure(), RunCancelled)
    plan = (await holding.plan("r/timeout/holding").run(app_on(store))).unwrap()
    assert isinstance(plan.problem, RunCancelled)


async def test_children_in_branches_have_ids_of_their_paths(store: MemoryStore) -> None:
    made = made_of(lambda: par_traverse(["a", "b"], lambda _: refund.call(None), key=str))
    assert await start(made, app_on(store)) == Success(["refund", "refund"])
    runs = {run.run_id for run in await store.find()}
    assert runs == {"r", "r/par_traverse[a]/refund", "r/par_traverse[b]/refund"}


@pytest.mark.parametrize("depth", [1, 2])
async def test_force_holds_for_the_runs_within_the_run(store: MemoryStore, depth: int) -> None:
    def within(steps: AnyEffect, version: str) -> AnyWorkflow:
        @workflow(name="inner", version=version)
        def inner(_: object) -> Do[App, Broken, Any]:
            return (yield from steps)

        made = inner
        for _ in range(depth):
            made = made_of(partial(made.call, None))
        return made

    def sending(work: AnyEffect) -> AnyEffect:
        return in_turn(act("reserve"), with_checkpointing("send", work, at_most_once=True))

    running = within(sending(note("send").and_then(lambda _: never())), "1")
    await stopped(running.start(None, run_id="r"), app_on(store))
    changed = within(sending(note("send")), "2")
    assert isinstance((await resume(changed, app_on(store))).failure(), DefinitionChanged)
    app = app_on(store)
    assert await resume(changed, app, force=True) == Success(1)
    assert app.world.done == ["send"]


async def test_force_lets_a_run_within_the_run_leave_steps_behind(store: MemoryStore) -> None:
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
