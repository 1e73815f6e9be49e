"""What is sent to a run at any moment of its suspension wakes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Signal, spawn, workflow
from effectflow.checkpoint import Batch, Lease, Message, RunStatus, ServiceStore
from effectflow.checkpoint.notifications import watching
from effectflow.checkpoint.store import service_of
from effectflow.stores import MemoryStore, open_store
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken
from tests.service.conftest import STORES, Service
from tests.service.lives import act, suspended, working

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def seldom_looks_of_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds out without being woken."""
    monkeypatch.setattr("effectflow.checkpoint.notifications._SECONDS_BETWEEN_LOOKS", 3600)


approval: Signal[str] = Signal("approval", str)


@workflow
def approve(_: None) -> Do[App, Broken, str]:
    yield from act("begin")
    return (yield from approval.wait())


MOMENTS = [
    "before the last look into the mailbox",
    "after the last look into the mailbox",
    "before the suspension is saved",
    "after the suspension is saved",
]


class WorstMoment(ForwardingStore):
    """A store in which something happens once, at one moment of the first suspension of a run."""

    def __init__(
        self, store: ServiceStore, moment: str, happen: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(store)
        self.moment = moment
        self.happen = happen
        self.looks = 0
        self.has_happened = False

    async def _reach(self, moment: str) -> None:
        if moment == self.moment and not self.has_happened:
            self.has_happened = True
            # What happens is not cut off with the run.
            with anyio.CancelScope(shield=True):
                await self.happen()

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        # The looks before are at the beginning of the life and of the wait.
        self.looks += run_id == "r"
        is_last = run_id == "r" and self.looks > 2
        if is_last:
            await self._reach(MOMENTS[0])
        found = await super().mailbox(run_id, after=after)
        if is_last:
            await self._reach(MOMENTS[1])
        return found

    async def append(self, lease: Lease, batch: Batch) -> None:
        summary = batch.summary
        is_suspension = lease.run_id == "r" and summary and summary.status is RunStatus.SUSPENDED
        if is_suspension:
            await self._reach(MOMENTS[2])
        await super().append(lease, batch)
        if is_suspension:
            await self._reach(MOMENTS[3])


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("url", STORES.values(), ids=STORES)
async def test_a_message_wakes_a_run_that_is_being_suspended(
    url: str, moment: str, tmp_path: Any
) -> None:
    async with open_store(url.format(folder=tmp_path)) as opened:
        store = service_of(opened, "a test")
        sender = Service(store).client.handle(approve, "r")
        staged = WorstMoment(store, moment, lambda: sender.send(approval, "ann"))
        service = Service(staged)
        async with working(service, approve) as worker:
            handle = await worker.client.submit(approve, None, run_id="r")
            assert await handle.result(timeout=30) == Success("ann")
        assert staged.has_happened
        assert service.world.done == ["begin"]
        assert await store.mailbox("r") == []


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_cancellation_wakes_a_run_that_is_being_suspended(moment: str) -> None:
    async with MemoryStore() as store:
        canceller = Service(store).client.handle(approve, "r")
        staged = WorstMoment(store, moment, canceller.cancel)
        async with working(Service(staged), approve) as worker:
            handle = await worker.client.submit(approve, None, run_id="r")
            assert "cancelled" in str(await handle.result(timeout=30))
        assert staged.has_happened


@workflow
def child(_: None) -> Do[App, Broken, str]:
    return (yield from approval.wait())


@workflow
def parent(_: None) -> Do[App, Any, str]:
    spawned = yield from spawn(child, None, run_id="child")
    return (yield from spawned.result())


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_end_of_a_spawned_run_wakes_its_parent_that_is_being_suspended(
    moment: str,
) -> None:
    async with MemoryStore() as store:
        other = Service(store)

        async def end_child() -> None:
            async with working(other, child) as worker:
                spawned = worker.client.handle(child, "child")
                await spawned.send(approval, "ann")
                await spawned.result(timeout=30)

        staged = WorstMoment(store, moment, end_child)
        # A worker that does not drive the child.
        async with working(Service(staged), parent) as worker:
            handle = await worker.client.submit(parent, None, run_id="r")
            assert await handle.result(timeout=30) == Success("ann")
        assert staged.has_happened


async def test_many_messages_to_a_run_that_falls_asleep_after_each_of_them(
    service: Service,
) -> None:
    @workflow
    def collect(_: None) -> Do[App, Broken, list[str]]:
        found: list[str] = []
        while len(found) < 5:
            found += [(yield from approval.wait())]
        return found

    async with working(service, collect) as worker:
        handle = await worker.client.submit(collect, None, run_id="r")
        info = None
        for number in range(5):
            info = await suspended(service, "r", after=info)
            await handle.send(approval, str(number))
        assert await handle.result(timeout=30) == Success([str(number) for number in range(5)])


class Busy(MemoryStore):
    """A store in which only other runs seem to change, again and again."""

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Any]:
        class Others:
            async def wait(self, seconds: float) -> frozenset[str]:
                await anyio.sleep(0.001)
                return frozenset({"another"})

        yield Others()


async def test_a_lost_notification_is_made_up_for_in_a_busy_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectflow.checkpoint.notifications._SECONDS_BETWEEN_LOOKS", 0.05)
    looked = anyio.Event()
    async with Busy() as store, watching(store, "r", looked.set):
        with anyio.fail_after(30):
            await looked.wait()
