"""A process that works keeps the leases of its runs, no matter what else it does."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path
from typing import Never

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, effect, sleep, step, workflow
from effectflow.checkpoint import (
    CheckpointStore,
    DefinitionChanged,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import FaultyStore, Unavailable
from effectflow.testing.faulty_store import Crashed
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


@pytest.mark.parametrize("error", [OSError("no route"), Crashed()], ids=["slow", "dead"])
async def test_a_store_that_fails_costs_the_runs_of_other_stores_no_lease(
    error: BaseException,
) -> None:
    class Failing(ForwardingStore):
        def renew(self, lease: Lease, *, seconds: float) -> Never:
            if isinstance(error, OSError):
                time.sleep(0.4)
            raise error

    is_over = anyio.Event()

    @step
    @effect
    async def wait(app: App) -> None:
        await is_over.wait()

    @workflow
    def waiting(_: None) -> Do[App, Never, None]:
        yield from wait()

    failing = App(Checkpoints(Failing(MemoryStore()), lease_seconds=6))
    quick = App(Checkpoints(MemoryStore(), lease_seconds=1))
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(waiting.start(None, run_id=f"failing-{number}").run, failing)
        tasks.start_soon(waiting.start(None, run_id="r").run, quick)
        while await quick.checkpoints.store.info("r") is None:
            await anyio.sleep(0.01)
        for _ in range(27):
            await anyio.sleep(0.1)
            assert await is_held(quick.checkpoints.store, "r")
        is_over.set()


async def test_a_stuck_event_loop_does_not_keep_its_runs(caplog: pytest.LogCaptureFixture) -> None:
    renewals = 0

    class Renewed(ForwardingStore):
        def renew(self, lease: Lease, *, seconds: float) -> Lease:
            nonlocal renewals
            renewals += 1
            return super().renew(lease, seconds=seconds)

    memory = MemoryStore()

    def take_over() -> None:
        while anyio.run(is_held, memory, "r"):
            time.sleep(0.1)

    @step
    @effect
    async def block(app: App) -> None:
        other = threading.Thread(target=take_over)
        other.start()
        other.join()

    @workflow
    def blocking(_: None) -> Do[App, Never, None]:
        yield from block()

    app = App(Checkpoints(Renewed(memory), lease_seconds=0.9, max_block=1))
    began = time.monotonic()
    error = (await blocking.start(None, run_id="r").run(app)).failure()
    assert isinstance(error, LeaseLost)
    assert renewals > 0
    assert time.monotonic() - began > 1
    assert "the event loop of run 'r' has been blocked for" in caplog.text


async def test_an_event_loop_that_responds_is_not_stuck_however_seldom_it_is_asked() -> None:
    @step
    @effect
    async def wait(app: App) -> None:
        for _ in range(15):
            await anyio.sleep(0.1)
            assert await is_held(app.checkpoints.store, "r")

    @workflow
    def waiting(_: None) -> Do[App, Never, None]:
        yield from wait()

    app = App(Checkpoints(MemoryStore(), lease_seconds=0.9, max_block=0.01))
    assert await waiting.start(None, run_id="r").run(app) == Success(None)


@pytest.mark.parametrize("max_block", [0, -1, float("nan")])
def test_a_max_block_that_means_nothing_is_refused(max_block: float) -> None:
    with pytest.raises(ValueError, match="max_block must be more than 0"):
        Checkpoints(MemoryStore(), max_block=max_block)


@workflow
def idle(_: None) -> Do[App, Never, None]:
    yield from sleep(3600)


def test_other_processes_get_the_runs_of_a_closed_event_loop_soon() -> None:
    store = MemoryStore()
    loop = asyncio.new_event_loop()
    app = App(Checkpoints(store, lease_seconds=3))
    task = loop.create_task(idle.start(None, run_id="r").run(app))
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    try:
        lease = anyio.run(lease_of, store, "r")
        assert lease.expires_in(time.time()) > 2
        time.sleep(1.2)
        assert anyio.run(lease_of, store, "r").expires_in(time.time()) <= 0
    finally:
        # Otherwise asyncio logs that it was destroyed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_run_that_was_not_released_can_be_started_again_by_its_process() -> None:
    """Other processes wait until the lease expires."""
    store = FaultyStore(MemoryStore(), [Unavailable("release")])

    @workflow
    def refused(_: None) -> Do[App, Never, None]:
        yield from idle.call(None)

    @workflow(name="refused", version="2")
    def changed(_: None) -> Do[App, Never, None]:
        yield from sleep(0)

    app = App(Checkpoints(store))
    with anyio.move_on_after(0.1):
        await refused.start(None, run_id="r").run(app)
    error = (await changed.resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert store.met == [Unavailable("release")]
    lease = await lease_of(store, "r")
    owner = Owner.parse(lease.owner)
    assert owner is not None
    assert owner.is_dead()
    assert not Owner(owner.pid, owner.host, owner.born, "another").is_dead()
    with anyio.move_on_after(0.1) as scope:
        await refused.resume("r").run(app)
    assert scope.cancelled_caught


async def lease_of(store: CheckpointStore, run_id: str) -> Lease:
    info = await store.info(run_id)
    assert info is not None
    assert info.lease is not None
    return info.lease
