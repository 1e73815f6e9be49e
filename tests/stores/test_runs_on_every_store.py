"""Runs on every store: deleted once they are complete, and started again after their process or loop."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Effect, step, workflow
from effectflow.checkpoint import CheckpointStore, RunBusy, RunNotFound, RunStatus, find_run
from effectflow.effects import from_async, traverse
from effectflow.testing.store_conformance import MakeStore
from tests.apps import App, app_on, note

pytestmark = pytest.mark.anyio


@workflow
def delivery(items: list[str]) -> Do[App, Any, list[int]]:
    return (yield from traverse(items, step(note)))


async def test_a_completed_run_is_deleted_unless_it_is_preserved(make_store: MakeStore) -> None:
    """A failed run stays and can be resumed. A deleted run can be started again."""
    async with make_store() as store:
        for _ in range(2):
            app = app_on(store, preserve=False, failing={"b"})
            await delivery.start(["a", "b"], run_id="r").run(app)
            info = await find_run(store, "r")
            assert info is not None
            assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)

            await delivery.resume("r").run_or_raise(app_on(store, preserve=False))
            assert await store.find() == []
            assert await store.read("r") == []
            with pytest.raises(RunNotFound):
                await store.delete("r")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_can_be_started_again_after_its_event_loop_was_closed(
    backend: str, two_stores: tuple[CheckpointStore, CheckpointStore]
) -> None:
    """Also if nothing of it was left to end orderly."""
    first, second = two_stores
    has_begun = False

    @step
    def wait() -> Effect[App, Any, int]:
        async def wait(_: object) -> int:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                await asyncio.sleep(3600)
            return 1

        return from_async(wait)

    @workflow
    def waiting(_: None) -> Do[App, Any, int]:
        return (yield from wait())

    async def until_begun() -> None:
        while not has_begun:
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    task = loop.create_task(waiting.start(None, run_id="r").run(app_on(first)))
    loop.run_until_complete(until_begun())
    loop.close()
    try:
        again = waiting.start(None, run_id="r").run
        assert anyio.run(again, app_on(second), backend=backend) == Success(1)
    finally:
        # Otherwise asyncio logs that it was destroyed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_run_that_is_not_preserved_is_executed_once_by_starts_at_once(
    make_store: MakeStore,
) -> None:
    @workflow
    def made(_: None) -> Do[App, Any, int]:
        return (yield from step(note)("made"))

    async with make_store() as store:
        for number in range(5):
            app = app_on(store, preserve=False)
            run_id = f"r{number}"
            starts = [made.start(None, run_id=run_id).run(app) for _ in range(5)]
            outcomes = await asyncio.gather(*starts)
            assert app.world.done == ["made"]
            assert await find_run(store, run_id) is None
            for outcome in outcomes:
                if outcome != Success(1):
                    assert isinstance(outcome.failure(), RunBusy)
