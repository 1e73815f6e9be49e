"""Flows of one run that wait side by side share the reads of its mailbox, and each is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import Do, Signal, par, par_try_all, sleep, spawn, workflow
from effectflow.checkpoint import CheckpointError, Message, Record
from effectflow.checkpoint.store import Changes
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio

approval = Signal("approval", str)
review = Signal("review", str)
votes = [Signal(f"vote {number}", int) for number in range(50)]


class OnlyOuterHints(Changes):
    """Loses the hints about all runs but one."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def wait(self, seconds: float) -> frozenset[str] | None:
        changed = await self._changes.wait(seconds)
        return changed and changed & {"r"}


class FlowsLookFirst(ForwardingStore):
    """Answers the first of the looks that are made at the same time last, and loses hints."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.looking = 0

    def changes(self) -> Any:
        @asynccontextmanager
        async def only_outer() -> AsyncGenerator[OnlyOuterHints]:
            async with self.store.changes() as changes:
                yield OnlyOuterHints(changes)

        return only_outer()

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        is_first = run_id == "r" and not self.looking
        self.looking += run_id == "r"
        found = await super().mailbox(run_id, after=after)
        try:
            if is_first:
                await anyio.sleep(0.005)
                found = await super().mailbox(run_id, after=after)
            return found
        finally:
            self.looking -= run_id == "r"


@workflow
def reviewed(_: None) -> Do[App, Broken, str]:
    return (yield from review.wait())


@workflow
def decide(_: None) -> Do[App, Broken | CheckpointError, object]:
    # The sleep keeps the run from being suspended at once.
    inner = reviewed.start(None, run_id="inner")
    return (yield from par(approval.wait(), inner, sleep(0.5)))


async def test_a_nested_run_is_told_of_its_message_whichever_flow_read_the_notice() -> None:
    service = Service(FlowsLookFirst())
    async with service.worker(decide) as worker:
        handle = await worker.client.submit(decide, None, run_id="r")
        inner = worker.client.handle(reviewed, "inner")
        with anyio.fail_after(10):
            while await service.store.info("inner") is None:
                await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        await inner.send(review, "good")
        assert await inner.result(timeout=10) == Success("good")
        await handle.send(approval, "yes")
        assert await handle.result(timeout=10) == Success(("yes", "good", None))


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


async def test_the_looks_do_not_grow_with_the_flows_that_wait() -> None:
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
    # Each flow would look after each message.
    assert store.mailboxes < 6 * len(votes)


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
            while await store.info("child") is None:
                await anyio.sleep(0.01)
        for _ in range(count):
            await child.send(votes[0], 1)
            await anyio.sleep(0.005)
        assert await handle.result(timeout=10) == Success(count)
    # To claim it, to see how it ended, and for other looks that come in between.
    assert store.reads_of_child < 6
