"""Fibers of one run that wait side by side share the reads of its mailbox."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import Do, Signal, spawn, workflow
from effectflow.checkpoint import Message, Record, find_run
from effectflow.effects import par_try_all
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio

votes = [Signal(f"vote {number}", int) for number in range(50)]


class Counting(ForwardingStore):
    """Counts looks."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.mailboxes = 0
        self.reads_of_child = 0

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        self.mailboxes += 1
        await anyio.lowlevel.checkpoint()
        return await super().mailbox(run_id, after=after)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        self.reads_of_child += run_id == "child"
        return await super().read(run_id, after=after)


@workflow
def gather(_: None) -> Do[App, Broken, int]:
    return sum((yield from par_try_all([vote.wait() for vote in votes])))


async def test_the_looks_do_not_grow_with_the_fibers_that_wait() -> None:
    store = Counting()
    service = Service(store)
    async with service.worker(gather) as worker:
        handle = await worker.client.submit(gather, None, run_id="r")
        with anyio.fail_after(10):
            while store.mailboxes < 2:
                await anyio.sleep(0.01)
        for vote in votes:
            await handle.send(vote, 1)
            await anyio.sleep(0.005)
        assert await handle.result(timeout=10) == Success(len(votes))
    # A few looks for each message. If each fiber looked after each message, there would be 1,275 or more.
    assert store.mailboxes < 12 * len(votes)


@workflow
def tally(count: int) -> Do[App, Broken, int]:
    total = 0
    for _ in range(count):
        total += yield from votes[0].wait()
    return total


@workflow
def wait_for_tally(count: int) -> Do[App, Any, int]:
    spawned = yield from spawn(tally, count, run_id="child")
    return (yield from spawned.result())


async def test_a_parent_reads_the_run_that_it_waits_for_only_once_that_has_ended() -> None:
    store = Counting()
    service = Service(store)
    count = 30
    async with service.worker(tally, wait_for_tally) as worker:
        handle = await worker.client.submit(wait_for_tally, count, run_id="r")
        child = worker.client.handle(tally, "child")
        with anyio.fail_after(10):
            while not await worker.client.find():
                await anyio.sleep(0.01)
            while await find_run(store, "child") is None:
                await anyio.sleep(0.01)
        for _ in range(count):
            await child.send(votes[0], 1)
            await anyio.sleep(0.005)
        assert await handle.result(timeout=10) == Success(count)
    # To claim it, to see how it ended, and for other looks that come in between.
    assert store.reads_of_child < 6
