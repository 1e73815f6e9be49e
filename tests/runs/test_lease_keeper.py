"""A process that works keeps the leases of its runs, also while its event loop is blocked."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Never
from weakref import ReferenceType, ref

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, effect, sleep, step, workflow
from effectflow.checkpoint import (
    Batch,
    CheckpointStore,
    DefinitionChanged,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunInfo,
    find_run,
)
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import FaultyStore, Unavailable
from effectflow.testing.faulty_store import Crashed
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, cut_off

pytestmark = pytest.mark.anyio


@workflow
def idle(_: None) -> Do[App, Never, None]:
    yield from sleep(3600)


class Renewed(ForwardingStore):
    """Tells of each renewal. With an error, it fails instead, which takes it a while."""

    def __init__(self, store: CheckpointStore, error: BaseException | None = None) -> None:
        super().__init__(store)
        self.renewals = 0
        self._error = error

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self.renewals += 1
        if self._error is not None:
            time.sleep(0.1)
            raise self._error
        return super().renew(leases, seconds=seconds)

    def block_until(self, renewals: int) -> None:
        """Block the calling thread until there were this many renewals."""
        for _ in range(3000):
            if self.renewals >= renewals:
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.renewals} renewals")

    async def wait_until(self, renewals: int) -> None:
        with anyio.fail_after(30):
            while self.renewals < renewals:
                await anyio.sleep(0.01)


async def test_a_step_that_blocks_the_event_loop_keeps_the_lease_of_its_run(tmp_path: Path) -> None:
    @step
    @effect
    async def block(app: App) -> None:
        store.block_until(renewals=3)

    @workflow
    def blocking(_: None) -> Do[App, Never, None]:
        yield from block()

    async with Renewed(SqliteStore(tmp_path / "runs.db")) as store:
        app = App(Checkpoints(store, lease_seconds=0.5))
        assert await blocking.start(None, run_id="r").run(app) == Success(None)


@pytest.mark.parametrize("error", [OSError("no route"), Crashed()], ids=["failing", "dead"])
async def test_a_failing_store_does_not_cost_the_runs_of_other_stores_their_leases(
    error: BaseException,
) -> None:
    # What the working store had renewed when the failing one was asked.
    renewals: list[int] = []

    class Failing(Renewed):
        def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
            renewals.append(working.renewals)
            return super().renew(leases, seconds=seconds)

    failing, working = Failing(MemoryStore(), error), Renewed(MemoryStore())
    slow, quick = Checkpoints(failing, lease_seconds=1.5), Checkpoints(working, lease_seconds=0.3)
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(idle.start(None, run_id=f"failing-{number}").run, App(slow))
        tasks.start_soon(idle.start(None, run_id="r").run, App(quick))
        await failing.wait_until(renewals=6)
        tasks.cancel_scope.cancel()
    # No two requests to the store that fails follow each other: each may take long.
    assert len(set(renewals)) == len(renewals)


async def test_a_stuck_event_loop_does_not_keep_its_runs(caplog: pytest.LogCaptureFixture) -> None:
    store = Renewed(MemoryStore())

    async def claim_elsewhere() -> None:
        while True:
            with suppress(RunBusy):
                await store.claim("r", owner="another process", seconds=60)
                return
            await anyio.sleep(0.05)

    def take_over() -> None:
        store.block_until(renewals=1)
        anyio.run(claim_elsewhere)

    @step
    @effect
    async def block(app: App) -> None:
        other = threading.Thread(target=take_over)
        other.start()
        other.join()

    @workflow
    def blocking(_: None) -> Do[App, Never, None]:
        yield from block()

    app = App(Checkpoints(store, lease_seconds=0.9, max_block=1))
    began = time.monotonic()
    error = (await blocking.start(None, run_id="r").run(app)).failure()
    assert isinstance(error, LeaseLost)
    assert time.monotonic() - began > 1
    assert caplog.text.count("the event loop of run 'r' has been blocked for") == 1


async def test_each_block_of_an_event_loop_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Renewed(MemoryStore())

    @step
    @effect
    def block(app: App) -> None:
        store.block_until(renewals=store.renewals + 6)

    @step
    @effect
    async def respond(app: App) -> None:
        await store.wait_until(renewals=store.renewals + 2)

    @workflow
    def blocking(_: None) -> Do[App, Never, None]:
        for _once_more in range(2):
            yield from respond()
            yield from block()

    app = App(Checkpoints(store, lease_seconds=0.9))
    async with anyio.create_task_group() as tasks:
        # Both runs are in the same event loop.
        tasks.start_soon(idle.start(None, run_id="other").run, app)
        await blocking.start(None, run_id="r").run(app)
        tasks.cancel_scope.cancel()
    warnings = [one for one in caplog.messages if "has not responded for" in one]
    assert len(warnings) == 2
    assert all("and 1 more" in one and "from_blocking" in one for one in warnings)


async def test_an_event_loop_that_responds_is_not_stuck_even_if_it_is_asked_rarely() -> None:
    @step
    @effect
    async def wait(app: App) -> None:
        await store.wait_until(renewals=3)

    @workflow
    def waiting(_: None) -> Do[App, Never, None]:
        yield from wait()

    store = Renewed(MemoryStore())
    app = App(Checkpoints(store, lease_seconds=0.9, max_block=0.01))
    assert await waiting.start(None, run_id="r").run(app) == Success(None)


@pytest.mark.parametrize("max_block", [0, -1, float("nan")])
def test_an_invalid_max_block_is_rejected(max_block: float) -> None:
    with pytest.raises(ValueError, match="max_block must be more than 0"):
        Checkpoints(MemoryStore(), max_block=max_block)


def test_other_processes_get_the_runs_of_a_closed_event_loop_soon() -> None:
    store = MemoryStore()
    loop = asyncio.new_event_loop()
    app = App(Checkpoints(store, lease_seconds=0.9))
    task = loop.create_task(idle.start(None, run_id="r").run(app))
    loop.run_until_complete(anyio.wait_all_tasks_blocked())
    loop.close()

    async def released_before(expires_at: float) -> None:
        with anyio.fail_after(30):
            while (await lease_of(store, "r")).expires_at >= expires_at:
                await anyio.sleep(0.01)

    try:
        lease = anyio.run(lease_of, store, "r")
        anyio.run(released_before, lease.expires_at)
    finally:
        # Otherwise asyncio logs that it was destroyed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_an_event_loop_is_freed_after_its_runs() -> None:
    """A program may run each effect in another event loop."""

    @step
    def short(_: None) -> Do[App, Never, None]:
        yield from sleep(0)

    @workflow
    def one_step(_: None) -> Do[App, Never, None]:
        yield from short(None)

    async def life() -> ReferenceType[asyncio.AbstractEventLoop]:
        await one_step.start(None, run_id="r").run_or_raise(App(Checkpoints(MemoryStore())))
        return ref(asyncio.get_running_loop())

    loop = asyncio.run(life())
    gc.collect()
    assert loop() is None


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
    await cut_off(refused.start(None, run_id="r"), app)
    error = (await changed.resume("r").run(app)).failure()
    assert isinstance(error, DefinitionChanged)
    assert store.met == [Unavailable("release")]
    lease = await lease_of(store, "r")
    owner = Owner.parse(lease.owner)
    assert owner is not None
    assert owner.is_dead()
    assert not Owner(owner.pid, owner.host, owner.born, "another").is_dead()
    # It waits as before.
    await cut_off(refused.resume("r"), app)


async def lease_of(store: CheckpointStore, run_id: str) -> Lease:
    info = await find_run(store, run_id)
    assert info is not None
    assert info.lease is not None
    return info.lease


class OneFence(Renewed):
    """All runs have the same fencing token, as those of stores that take it from the clock may."""

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store)
        self._real: dict[str, Lease] = {}

    def _shown(self, lease: Lease) -> Lease:
        self._real[lease.run_id] = lease
        return replace(lease, fence=1)

    async def create(self, run_id: str, bodies: Sequence[bytes], **options: Any) -> RunInfo | None:
        info = await super().create(run_id, bodies, **options)
        assert info is not None
        assert info.lease is not None
        return replace(info, lease=self._shown(info.lease))

    async def append(self, lease: Lease, batch: Batch) -> None:
        await super().append(self._real[lease.run_id], batch)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        real = [self._real[lease.run_id] for lease in leases]
        return [self._shown(lease) for lease in super().renew(real, seconds=seconds)]

    async def release(self, lease: Lease) -> None:
        await super().release(self._real[lease.run_id])


async def test_each_run_keeps_its_own_lease_although_others_have_the_same_fencing_token() -> None:
    @step
    @effect
    async def wait(app: App, number: int) -> int:
        await store.wait_until(renewals=store.renewals + 2)
        return number

    @workflow
    def waiting(number: int) -> Do[App, Never, int]:
        return (yield from wait(number))

    store = OneFence(MemoryStore())
    app = App(Checkpoints(store, lease_seconds=0.5))
    results: dict[int, object] = {}

    async def run(number: int) -> None:
        results[number] = await waiting.start(number, run_id=f"r{number}").run(app)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(run, number)
    assert results == {number: Success(number) for number in range(5)}
