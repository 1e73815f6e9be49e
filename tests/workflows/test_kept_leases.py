"""A process that works keeps the leases of its runs, whatever else it does."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Never

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, effect, step, workflow
from effectflow.checkpoint import CheckpointStore, Lease, RunBusy
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App

pytestmark = pytest.mark.anyio


async def is_held(store: CheckpointStore, run_id: str) -> bool:
    """Return whether another process could not claim the run."""
    try:
        await store.release(await store.claim(run_id, owner="another process", seconds=1))
    except RunBusy:
        return True
    return False


async def test_a_step_that_blocks_the_event_loop_keeps_the_lease_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    held: list[bool] = []

    async def look() -> None:
        async with SqliteStore(path) as store:
            held.append(await is_held(store, "r"))

    @step
    @effect
    async def block(app: App) -> None:
        time.sleep(1.5)
        looking = threading.Thread(target=partial(anyio.run, look))
        looking.start()
        looking.join()

    @workflow
    def blocking(_: None) -> Do[App, Never, None]:
        yield from block()

    async with SqliteStore(path) as store:
        app = App(Checkpoints(store, lease_seconds=0.5))
        assert await blocking.start(None, run_id="r").run(app) == Success(None)
    assert held == [True]


async def test_a_store_that_fails_slowly_costs_the_runs_of_other_stores_no_lease() -> None:
    class Slow(ForwardingStore):
        def renew(self, lease: Lease, *, seconds: float) -> Never:
            time.sleep(0.4)
            raise OSError("no route")

    @step
    @effect
    async def wait(app: App) -> None:
        await anyio.sleep(3)

    @workflow
    def waiting(_: None) -> Do[App, Never, None]:
        yield from wait()

    slow = App(Checkpoints(Slow(MemoryStore()), lease_seconds=6))
    quick = App(Checkpoints(MemoryStore(), lease_seconds=1))
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(waiting.start(None, run_id=f"slow-{number}").run, slow)
        tasks.start_soon(waiting.start(None, run_id="r").run, quick)
        for _ in range(27):
            await anyio.sleep(0.1)
            assert await is_held(quick.checkpoints.store, "r")
