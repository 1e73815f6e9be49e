"""Runs within runs: recorded in the journal of the run around, and replayed from there."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, ask, die, effect, fail, from_async, par, step, workflow
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointError,
    ChildEnded,
    ChildStarted,
    Lease,
    Record,
    RunBusy,
    RunStatus,
    StepInputChanged,
    read_entries,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, last, note

pytestmark = pytest.mark.anyio


@step
@effect(errors=Broken)
def charge(app: App, amount: int) -> int:
    app.world.note("charge")
    return amount


@workflow
def inner(amount: int) -> Do[App, Broken, int]:
    return (yield from charge(amount))


async def test_a_call_yields_the_output_and_records_the_child(store: MemoryStore) -> None:
    @workflow
    def outer(_: None) -> Do[App, Broken, int]:
        return (yield from inner.call(5))

    assert await outer.start(None, run_id="r").run(app_on(store)) == Success(5)
    assert sorted(info.run_id for info in await store.find()) == ["r", "r/inner"]
    _, started, ended, _ = await read_entries(store, "r")
    assert isinstance(started, ChildStarted)
    assert isinstance(ended, ChildEnded)
    assert (started.path, started.run_id, started.workflow) == ("inner", "r/inner", "inner")
    assert (ended.status, ended.output) == (RunStatus.COMPLETED, 5)


async def test_a_completed_child_is_not_looked_at_again(store: MemoryStore) -> None:
    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        amount = yield from inner.call(5)
        yield from last()
        return amount

    app = app_on(store, failing=["last"])
    assert await outer.start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    await store.delete("r/inner")

    assert await outer.resume("r").run(app) == Success(5)
    assert app.world.done == ["charge"]


async def test_a_failed_child_is_continued_by_a_resume(store: MemoryStore) -> None:
    @workflow
    def outer(_: None) -> Do[App, Broken, int]:
        return (yield from inner.call(5))

    app = app_on(store, failing=["charge"])
    assert isinstance((await outer.start(None, run_id="r").run(app)).failure(), Broken)
    app.world.recover()
    plan = (await outer.plan("r").run(app)).unwrap()
    assert (plan.start, plan.retry) == (("inner",), ("inner",))

    assert await outer.resume("r").run(app) == Success(5)
    entries = await read_entries(store, "r/inner")
    assert [e.attempt for e in entries if isinstance(e, BeforeStep)] == [1, 2]


async def test_a_handled_failure_of_a_child_stands(store: MemoryStore) -> None:
    @workflow
    def outer(_: None) -> Do[App, Any, str]:
        try:
            yield from inner.call(5)
        except Broken as error:
            yield from note("refund").checkpointed("refund")
            yield from last()
            return f"refunded after {error}"
        return "charged"

    app = app_on(store, failing=["charge"])
    assert await outer.start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()

    assert await outer.resume("r").run(app) == Success("refunded after charge#1")
    assert app.world.done == ["charge", "refund"]


async def test_a_child_in_a_handler_settles_the_failure(store: MemoryStore) -> None:
    """A resume must not charge again after the refund."""

    @workflow
    def refund(_: None) -> Do[App, Broken, int]:
        return (yield from note("refund").checkpointed("refund"))

    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        return (yield from charge(5).tap_err(lambda _: refund.start(None)))

    app = app_on(store, failing=["charge"])
    first = await outer.start(None, run_id="r").run(app)
    app.world.recover()

    again = await outer.resume("r").run(app)
    assert str(again.failure()) == str(first.failure()) == "charge#1"
    assert app.world.done == ["charge", "refund"]


async def test_a_defect_of_a_child_is_raised_and_not_recorded_as_a_failure(
    store: MemoryStore,
) -> None:
    @workflow
    def broken(_: None) -> Effect[App, Broken, int]:
        return die(ZeroDivisionError())

    @workflow
    def outer(_: None) -> Do[App, Broken, int]:
        return (yield from broken.call(None))

    with pytest.raises(ZeroDivisionError):
        await outer.start(None, run_id="r").run(app_on(store))
    [ended] = [e for e in await read_entries(store, "r") if isinstance(e, ChildEnded)]
    assert ended.status is RunStatus.FAILED
    assert ended.error is not None
    assert ended.error.is_defect


@pytest.mark.parametrize("way", ["call", "start"])
async def test_no_body_handles_a_checkpoint_error_of_a_child(store: MemoryStore, way: str) -> None:
    """Another process drives the child: the run around ends with it, and a resume continues both."""
    handled: list[object] = []

    def running() -> Effect[App, Any, int]:
        return inner.call(5, run_id="c") if way == "call" else inner.start(5, run_id="c")

    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        try:
            return (yield from running())
        except Exception as error:
            handled.append(error)
            return 0

    app = app_on(store)
    elsewhere = await store.claim("c", owner="another process", seconds=60)
    error = (await outer.start(None, run_id="r").run(app)).failure()
    assert isinstance(error, RunBusy)
    assert handled == []

    await store.release(elsewhere)
    assert await outer.resume("r").run(app) == Success(5)


@pytest.mark.parametrize("method", ["claim", "read", "append"])
async def test_no_body_handles_what_the_store_of_a_child_raises(method: str) -> None:
    class Unreachable(MemoryStore):
        """Raises what a store of one's own may raise, for the child only."""

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
            if (called, run_id) == (method, "c"):
                raise OSError("no route")

    handled: list[object] = []

    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        try:
            return (yield from inner.call(5, run_id="c"))
        except Exception as error:
            handled.append(error)
            return 0

    result = await outer.start(None, run_id="r").run(app_on(Unreachable()))
    assert isinstance(result.failure(), CheckpointError)
    assert "no route" in str(result.failure())
    assert handled == []


async def test_another_input_for_a_recorded_child_is_refused(store: MemoryStore) -> None:
    amounts = iter([5, 6])

    @workflow
    def outer(_: None) -> Do[App, Any, int]:
        return (yield from inner.call(next(amounts)))

    app = app_on(store, failing=["charge"])
    await outer.start(None, run_id="r").run(app)
    app.world.recover()

    assert isinstance((await outer.resume("r").run(app)).failure(), StepInputChanged)
    assert app.world.done == ["charge"]


async def test_a_decision_of_the_parent_cancels_the_child(store: MemoryStore) -> None:
    """Its finalizers run their steps, and it cannot be resumed."""

    release = ask(App).map(lambda app: app.world.note("release"))

    @workflow
    def waiting(_: None) -> Do[App, Any, None]:
        yield from (
            from_async(lambda _: anyio.sleep_forever())
            .checkpointed("wait")
            .on_exit(release.checkpointed("release"))
        )

    @step
    def failing() -> Effect[App, str, None]:
        return from_async(lambda _: until_waiting()).and_then(lambda _: fail("no"))

    async def until_waiting() -> None:
        with anyio.fail_after(10):
            while not await has_begun():
                await anyio.sleep(0)

    async def has_begun() -> bool:
        if await store.info("r/par[0]/waiting") is None:
            return False
        entries = await read_entries(store, "r/par[0]/waiting")
        return any(isinstance(e, BeforeStep) for e in entries)

    @workflow
    def outer(_: None) -> Do[App, Any, object]:
        return (yield from par(waiting.call(None), failing()))

    app = app_on(store)
    assert await outer.start(None, run_id="r").run(app) == Failure("no")
    assert app.world.done == ["release"]
    info = await store.info("r/par[0]/waiting")
    assert info is not None
    assert info.summary.status is RunStatus.CANCELLED
    refused = (await waiting.resume("r/par[0]/waiting").run(app)).failure()
    assert isinstance(refused, CheckpointError)


async def test_call_needs_a_run_around(store: MemoryStore) -> None:
    with pytest.raises(TypeError, match=r"use start\(\)"):
        await inner.call(1).run(app_on(store))
