"""Runs within runs: recorded in the run around them, and not repeated."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    TimedOut,
    bracket,
    do,
    par_traverse,
    race,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import (
    ChildEnded,
    OutcomeUnknown,
    RunCancelled,
    RunConflict,
    RunStatus,
    StepInputChanged,
    read_entries,
)
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, SaveFails, crash_everywhere
from tests.apps import App, Broken, Crash, app_on, note
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

pytestmark = pytest.mark.anyio


@workflow
def refund(_: object) -> Do[App, Broken, str]:
    return (yield from act("refund"))


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
    assert await resume(outer, next_life(app)) == Success(["refund", "last"])
    assert await status_of(store, "r/refund") is RunStatus.COMPLETED


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
    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from act("charge").tap_err(lambda _: refund.start(None, run_id="refund-1")))

    app = app_on(store, failing=["charge"])
    first = await start(made, app)
    assert str(first.failure()) == "charge"
    assert "child refund <- F charge" in await journal(store)
    again = next_life(app)
    assert str((await resume(made, again)).failure()) == "charge"
    assert again.world.done == []


async def test_a_crash_during_the_refund_charges_once(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from act("charge").tap_err(lambda _: refund.call(None)))

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


async def test_a_defect_of_a_child_is_a_defect_of_the_run_around_it(store: MemoryStore) -> None:
    app = app_on(store)
    app.world.crashing.add("refund")
    with pytest.raises(Crash):
        await start(outer, app)
    entries = await read_entries(store, "r")
    [ended] = [entry for entry in entries if isinstance(entry, ChildEnded)]
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

    # The appends of the child and the run around it, in order: the second one of the child fails.
    for append in range(2, 7):
        faulty = FaultyStore(MemoryStore(), [SaveFails(append)])
        app = App(Checkpoints(faulty))
        result = await start(made, app)
        if faulty.unmet or reached == ["went on"]:
            # This append was one of the outer run, behind the child.
            break
        assert isinstance(result, Failure), append
        assert reached == [], append
        # The resume continues both.
        assert await resume(made, app) == Success("after")
        reached.clear()
    assert append > 3


async def test_a_conflict_of_a_child_halts(store: MemoryStore) -> None:
    @workflow
    def other(_: object) -> Do[App, Any, str]:
        return (yield from act("other"))

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        handled = yield from refund.call(None, run_id="taken").result()
        return repr(handled)

    await clock_at().run(other.start(None, run_id="taken"), app_on(store))
    assert isinstance((await start(made, app_on(store))).failure(), RunConflict)


async def test_an_unknown_outcome_in_a_child_halts_the_run_around_it(store: MemoryStore) -> None:
    is_cut_off = True

    @workflow
    def paying(_: object) -> Do[App, Any, Any]:
        work = hang("pay") if is_cut_off else note("pay")
        return (yield from with_checkpointing("pay", work, at_most_once=True))

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from paying.call(None).fallback("handled"))

    app, clock = app_on(store), clock_at()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await made.start(None, run_id="r").run(app, clock=clock)

        tasks.start_soon(run)
        await clock.advance(1)
        tasks.cancel_scope.cancel()
    is_cut_off = False
    assert isinstance((await resume(made, app)).failure(), OutcomeUnknown)


async def test_a_child_with_another_input_is_refused(store: MemoryStore) -> None:
    given = 1

    @workflow
    def child(number: int) -> Do[App, Any, str]:
        return (yield from act("child"))

    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        yield from child.call(given)
        return (yield from act("last"))

    await start(made, app_on(store, failing=["last"]))
    given = 2
    assert isinstance((await resume(made, app_on(store))).failure(), StepInputChanged)


async def test_call_outside_a_run_is_an_error(store: MemoryStore) -> None:
    with pytest.raises(TypeError, match=r"use start\(\)"):
        await refund.call(None).run(app_on(store))


# Cancellation.


@workflow
def holding(_: object) -> Do[App, Any, Any]:
    return (yield from bracket(act("acquire"), lambda _: act("release"), lambda _: hang("use")))


@workflow
def timed(_: object) -> Do[App, Any, Any]:
    return (yield from holding.call(None).timeout(10).recover(TimedOut, lambda _: act("handle")))


@workflow
def raced(_: object) -> Do[App, Any, Any]:
    won = yield from race([holding.call(None), late("win", 1)])
    return won, (yield from act("after"))


@pytest.mark.parametrize("made", [timed, raced], ids=["timeout", "race"])
async def test_a_decision_cancels_the_child_whose_finalizers_run_steps(
    store: MemoryStore, made: Any
) -> None:
    app = app_on(store)
    result = await start(made, app)
    assert isinstance(result, Success)
    assert app.world.done.count("release") == 1
    [child] = [run.run_id for run in await store.find() if run.run_id != "r"]
    assert await status_of(store, child) is RunStatus.CANCELLED
    lines = await journal(store, child)
    assert lines[-4:] == ["cancel", "B bracket/release (cancelled by cancel)"] + lines[-2:]
    assert lines[-1] == "cancelled"
    again = next_life(app)
    assert await resume(made, again) == result
    assert again.world.done == []


@workflow
def waiting(_: object) -> Do[App, Any, Any]:
    return (yield from hang("use"))


@workflow
def timed_without_finalizers(_: object) -> Do[App, Any, Any]:
    return (yield from waiting.call(None).timeout(10).recover(TimedOut, lambda _: act("handle")))


@workflow
def between(_: object) -> Do[App, Any, Any]:
    return (yield from holding.call(None))


@workflow
def timed_at_two_levels(_: object) -> Do[App, Any, Any]:
    return (yield from between.call(None).timeout(10).recover(TimedOut, lambda _: act("handle")))


async def test_a_child_without_finalizers_is_cancelled(store: MemoryStore) -> None:
    assert await start(timed_without_finalizers, app_on(store)) == Success("handle")
    assert await status_of(store, "r/timeout/waiting") is RunStatus.CANCELLED


async def test_a_timeout_that_cancelled_a_child_is_final(store: MemoryStore) -> None:
    @workflow
    def made(_: object) -> Do[App, Any, Any]:
        return (yield from waiting.call(None).timeout(10))

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
    "made", [outer, timed, raced, timed_without_finalizers, timed_at_two_levels]
)
async def test_a_crash_at_any_append_of_both_runs_leads_to_the_same_end(made: Any) -> None:
    assert await crash_everywhere(made, None, app_on)


async def test_an_outside_stop_interrupts_the_child(store: MemoryStore) -> None:
    app, clock = app_on(store), clock_at()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await timed.start(None, run_id="r").run(app, clock=clock)

        tasks.start_soon(run)
        await clock.advance(1)
        tasks.cancel_scope.cancel()
    assert app.world.done == ["acquire", "use"]
    assert await status_of(store, "r") is RunStatus.INTERRUPTED
    assert await status_of(store, "r/timeout/holding") is RunStatus.INTERRUPTED
    again = next_life(app)
    assert await resume(timed, again, at=5) == Success("handle")
    assert again.world.done == ["use", "release", "handle"]


async def test_a_cancelled_run_cannot_be_resumed(store: MemoryStore) -> None:
    await start(timed, app_on(store))
    found = await holding.resume("r/timeout/holding").run(app_on(store))
    assert isinstance(found.failure(), RunCancelled)
    plan = (await holding.plan("r/timeout/holding").run(app_on(store))).unwrap()
    assert isinstance(plan.problem, RunCancelled)


async def test_children_in_branches_have_ids_of_their_paths(store: MemoryStore) -> None:
    @do
    def one(_: str) -> Do[App, Any, str]:
        return (yield from refund.call(None))

    @workflow
    def made(_: object) -> Do[App, Any, list[str]]:
        return (yield from par_traverse(["a", "b"], one, key=str))

    assert await start(made, app_on(store)) == Success(["refund", "refund"])
    runs = {run.run_id for run in await store.find()}
    assert runs == {"r", "r/par_traverse[a]/refund", "r/par_traverse[b]/refund"}
