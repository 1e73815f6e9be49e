"""A run whose store fails for a while is taken again, and is what it says it is meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Do, step, workflow
from effectflow.checkpoint import (
    Batch,
    Claimed,
    DueRuns,
    Lease,
    LeaseLost,
    Message,
    Record,
    RunInfo,
    RunStatus,
    SaveFailed,
)
from effectflow.checkpoint.entries import Finished
from effectflow.service import Schedule
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, SaveFails, TestClock, Unavailable, after
from effectflow.testing.faulty_store import Fault
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, both_backends
from tests.service.conftest import Service
from tests.service.lives import act, entries_of, info_of, working

pytestmark = pytest.mark.anyio


@workflow
def two_steps(_: None) -> Do[App, Broken, str]:
    yield from act("first")
    return (yield from act("second"))


ERRORS: dict[str, list[Fault]] = {
    "a save": [SaveFails(after("act"))],
    "a save with a lost answer": [SaveFails(after("act"), is_durable=True)],
    "a look": [Unavailable("read", 1)],
    "everything": [
        *(SaveFails(number) for number in range(2, 5)),
        *(Unavailable("release", number) for number in range(1, 4)),
        *(Unavailable("claim_due", number) for number in range(3, 6)),
    ],
}


@pytest.mark.parametrize("errors", ERRORS.values(), ids=ERRORS)
async def test_a_run_continues_as_soon_as_its_store_is_back(
    service: Service, errors: list[Fault]
) -> None:
    store = FaultyStore(service.store, errors)
    service = Service(store, service.world)
    async with working(service, two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        # Much less than the minute after which a run is tried again that does not fit the program.
        assert await handle.result(timeout=20) == Success("second")
    assert errors[0] in store.met
    assert (await info_of(service, "r")).summary.details.blocked == ""


async def test_a_step_in_progress_goes_on_while_messages_cannot_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(MemoryStore(), [Unavailable("mailbox", 2)])
    service, released = Service(store), anyio.Event()

    async def wait(_: object) -> None:
        service.world.done.append("begun")
        await released.wait()

    @workflow
    def slow(_: None) -> Do[App, object, str]:
        yield from step(wait)(None)
        return (yield from act("after"))

    async with working(service, slow) as worker:
        handle = await worker.client.submit(slow, None, run_id="r")
        # The attendant of the run looks as soon as the run has changed.
        with anyio.fail_after(10):
            while "the messages of run 'r' were not read" not in caplog.text:
                await anyio.sleep(0.003)
        released.set()
        assert await handle.result(timeout=10) == Success("after")
    assert service.world.done == ["begun", "after"]
    assert "blocked" not in caplog.text


@both_backends
async def test_a_run_whose_end_was_not_saved_is_not_shown_as_ended() -> None:
    whole = FaultyStore(MemoryStore())
    async with working(Service(whole), two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        await handle.result(timeout=10)
    last = sum(call.operation == "append" for call in whole.calls)

    service = Service(FaultyStore(MemoryStore(), [SaveFails(last)]))
    async with working(service, two_steps) as worker:
        handle = await worker.client.submit(two_steps, None, run_id="r")
        with anyio.fail_after(10):
            while not (info := await info_of(service, "r")).summary.details.blocked:
                await anyio.sleep(0.01)
        assert not any(isinstance(entry, Finished) for entry in await entries_of(service, "r"))
        assert info.summary.status is RunStatus.BLOCKED
        assert await handle.result(timeout=20) == Success("second")


class ReadOnly(ForwardingStore):
    """A store that lets runs be claimed, but refuses what they append, as a full disk may."""

    refused = 0

    async def append(self, lease: Lease, batch: Batch) -> None:
        self.refused += 1
        raise SaveFailed("r", "the disk is full")


@both_backends
async def test_a_run_that_cannot_be_saved_nor_marked_is_not_taken_again_at_once() -> None:
    store = ReadOnly(MemoryStore())
    async with store:
        service = Service(store)
        await service.client.submit(two_steps, None, run_id="r")
        async with working(service, two_steps):
            # The entry of the first life, and the mark.
            with anyio.fail_after(10):
                while store.refused < 2:
                    await anyio.sleep(0.01)
            await anyio.sleep(0.2)
    assert store.refused == 2


class Lost(ForwardingStore):
    """A store in which another process has taken the run."""

    async def append(self, lease: Lease, batch: Batch) -> None:
        raise LeaseLost(lease.run_id, "another process has driven it since")


async def test_a_run_whose_lease_was_lost_is_not_called_blocked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service(Lost(MemoryStore()))
    await service.client.submit(two_steps, None, run_id="r")
    async with working(service, two_steps):
        with anyio.fail_after(10):
            while "run 'r' was left: run 'r' does not belong" not in caplog.text:
                await anyio.sleep(0.003)
    assert "blocked" not in caplog.text


class Cancelling(ForwardingStore):
    """A store whose client library cancels its own future, once, in one operation.

    asyncio ends a task silently that raises such an error, and a task group then cancels itself.
    """

    operation: str | None = None

    async def _cancel(self, operation: str) -> None:
        if self.operation == operation:
            self.operation = None
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel("Cancelled via cancel scope of another task")
            await future

    async def claim_due(self, due: DueRuns) -> Claimed:
        await self._cancel("claim_due")
        return await super().claim_due(due)

    async def read(self, *args: Any, **kwargs: Any) -> list[Record]:
        await self._cancel("read")
        return await super().read(*args, **kwargs)

    async def find(self, *args: Any, **kwargs: Any) -> list[RunInfo]:
        await self._cancel("find")
        return await super().find(*args, **kwargs)

    async def create(self, *args: Any, **kwargs: Any) -> RunInfo | None:
        await self._cancel("create")
        return await super().create(*args, **kwargs)

    async def mailbox(self, *args: Any, **kwargs: Any) -> list[Message]:
        await self._cancel("mailbox")
        return await super().mailbox(*args, **kwargs)

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self._cancel("append")
        await super().append(lease, batch)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("operation", ["claim_due", "read", "mailbox", "append"])
async def test_a_stray_cancellation_does_not_end_a_worker(operation: str) -> None:
    store = Cancelling(MemoryStore())
    async with store:
        service = Service(store)
        async with working(service, two_steps) as worker:
            handle = await worker.client.submit(two_steps, None, run_id="r")
            store.operation = operation
            assert await handle.result(timeout=20) == Success("second")
        assert store.operation is None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("operation", ["find", "create"])
async def test_a_stray_cancellation_does_not_end_a_schedule(operation: str) -> None:
    memory = MemoryStore()
    store = Cancelling(memory)
    store.operation = operation
    clock = TestClock()
    service = Service(store)
    hourly = Schedule(two_steps, "0 * * * *", input=None)
    async with service.worker(two_steps, clock=clock, schedules=[hourly]) as worker:
        with anyio.fail_after(20):
            while not (started := await memory.find()):
                await clock.advance(600)
                await anyio.sleep(0.01)
        handle = worker.client.handle(two_steps, started[0].run_id)
        assert await handle.result(timeout=20) == Success("second")
    assert store.operation is None
