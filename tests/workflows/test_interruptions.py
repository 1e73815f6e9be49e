"""A run that is stopped at any moment can be resumed, no matter what its parallel steps do then."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Workflow,
    fail,
    from_async,
    from_fn,
    par,
    pure,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Completed,
    Interrupted,
    RunStatus,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.stores import MemoryStore
from tests.apps import App, both_backends
from tests.workflows.journals import in_turn, made_of

pytestmark = [pytest.mark.anyio, both_backends]


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@step
def yielding(name: str) -> Effect[App, str, str]:
    """Stops at once when it is told to."""
    return from_async(lambda _: turns(10)).map(lambda _: name)


async def unstoppable(_: App) -> None:
    """As what runs in a thread: it goes on for longer than others take to stop."""
    with anyio.CancelScope(shield=True):
        await turns(60)


@step
def stubborn(name: str) -> Effect[App, str, str]:
    return from_async(unstoppable).map(lambda _: name)


@step
def stubborn_and_failing(name: str) -> Effect[App, str, str]:
    return from_async(unstoppable).and_then(lambda _: fail(name))


@step
def endless() -> Effect[App, str, None]:
    return from_async(lambda _: anyio.sleep_forever())


@workflow
def completing(name: str) -> Do[App, str, object]:
    first = yield from yielding(name)
    beside = yield from par(yielding("b"), stubborn("c"))
    return [first, beside, (yield from yielding("d"))]


@workflow
def handling(_: str) -> Do[App, str, object]:
    failing = stubborn_and_failing("no").or_else(pure)
    beside = yield from par(yielding("b"), failing, stubborn("c"))
    return [beside, (yield from yielding("d"))]


@pytest.mark.parametrize("made", [completing, handling])
async def test_an_interruption_at_any_moment_can_be_resumed(
    store: MemoryStore, made: Workflow[App, str, str, object]
) -> None:
    app = App(Checkpoints(store))
    whole = await made.start("a").run(app)
    stopped = 0
    for count in range(1000):
        run_id = f"r{count}"
        async with anyio.create_task_group() as group:
            group.start_soon(made.start("a", run_id=run_id).run, app)
            await turns(count)
            group.cancel_scope.cancel()
        info = await store.info(run_id)
        if info is None:
            continue
        assert (await verify_run(store, run_id)).problem is None, count
        checkpoint = await read_checkpoint(store, run_id)
        assert checkpoint.status is info.summary.status
        assert repr(await made.resume(run_id).run(app)) == repr(whole), count
        if info.summary.status is RunStatus.COMPLETED:
            break
        stopped += 1
    else:
        raise AssertionError("it never got to its end")
    assert stopped > 20


async def test_a_step_that_ends_while_the_run_is_stopped_does_not_hide_which_was_cut_off(
    store: MemoryStore,
) -> None:
    app = App(Checkpoints(store))
    began = anyio.Event()

    @step
    def waiting() -> Effect[App, str, None]:
        return from_fn(lambda _: began.set()).and_then(
            lambda _: from_async(lambda _: anyio.sleep_forever())
        )

    made = made_of(lambda: par(stubborn("c"), waiting()))

    await stop_when(began, made.start(None, run_id="r"), app)

    *_, completed, interrupted = await read_entries(store, "r")
    assert isinstance(completed, Completed)
    assert isinstance(interrupted, Interrupted)
    plan = (await made.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("par[1]/waiting",), ("par[1]/waiting",))


@pytest.mark.parametrize(("after", "step"), [(yielding("b"), "yielding"), (pure("b"), None)])
async def test_a_step_that_timed_out_before_the_run_was_stopped_is_not_said_to_be_cut_off(
    store: MemoryStore, after: Effect[App, Any, str], step: str | None
) -> None:
    app = App(Checkpoints(store))
    began = anyio.Event()

    made = made_of(
        lambda: in_turn(
            endless().timeout(0.01).result(),
            after,
            from_fn(lambda _: began.set()),
            from_async(lambda _: anyio.sleep_forever()),
        )
    )

    await stop_when(began, made.start(None, run_id="r"), app)

    state = (await read_checkpoint(store, "r")).state
    assert isinstance(state, Interrupted)
    assert (state.step, state.in_progress) == (step, False)


async def stop_when(began: anyio.Event, effect: Effect[App, Any, Any], app: App) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(effect.run, app)
        await began.wait()
        await turns(5)
        group.cancel_scope.cancel()
