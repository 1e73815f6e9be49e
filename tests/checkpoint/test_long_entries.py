"""Long entries are encoded, hashed, compressed and encrypted in a thread, and read in one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, step, workflow
from effectflow.checkpoint import (
    Completed,
    Encryption,
    Finished,
    NotSerializable,
    read_entries,
    verify_run,
)
from effectflow.effects import from_async, from_fn, par
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Slow(Encryption):
    """Encrypts a long entry only when it may. Notes in which threads it works."""

    reached: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    threads: set[int] = field(default_factory=set[int])

    def encrypt(self, payload: bytes, *, after: bytes) -> bytes:
        if len(payload) > 100_000:
            self.threads.add(threading.get_ident())
            self.reached.set()
            self.may_go_on.wait(30)
        return Encryption.encrypt(self, payload, after=after)

    def decrypt(self, data: bytes, *, after: bytes) -> bytes:
        if len(data) > 100_000:
            self.threads.add(threading.get_ident())
        return Encryption.decrypt(self, data, after=after)


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    value: Any = None
    calls: list[str] = field(default_factory=list[str])


@step
def give() -> Effect[App, str, Any]:
    return from_fn(lambda app: app.calls.append("give") or app.value)


@step
def end() -> Effect[App, str, None]:
    return from_fn(lambda app: app.calls.append("end"))


@workflow
def giving() -> Do[App, str, int]:
    value = yield from give()
    yield from end()
    return len(value)


BLOB = Random(1).randbytes(400_000)
"""Compression does not make it shorter."""


@pytest.mark.parametrize("value", [BLOB, [BLOB.hex()]], ids=["bytes", "list"])
@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_the_event_loop_neither_writes_nor_reads_a_long_entry(
    value: Any, format: Literal["json", "cbor"]
) -> None:
    slow = Slow("k", {"k": bytes(32)})
    slow.may_go_on.set()
    app = App(Checkpoints(MemoryStore(), format=format, encryption=slow), value)
    assert await giving.start(run_id="r").run(app) == Success(len(value))
    assert await giving.resume("r").run(app) == Success(len(value))
    assert slow.threads
    assert threading.get_ident() not in slow.threads


@pytest.mark.parametrize("has_observer", [False, True])
@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_a_value_is_recorded_as_it_was_when_the_step_returned_it(
    has_observer: bool, format: Literal["json", "cbor"]
) -> None:
    value: list[Any] = [{"words": ["one", "two"], "none": None} for _ in range(10_000)]
    expected = [{"words": ["one", "two"], "none": None} for _ in value]

    async def change(app: App) -> None:
        while "end" not in app.calls:
            if app.calls:
                value[0]["words"].append("more")
                value[5_000]["words"] = []
                value.append("more")
            await anyio.sleep(0)

    @workflow
    def changing() -> Do[App, str, None]:
        yield from par(giving.call(), from_async(change))

    observers = [RecordingObserver()] if has_observer else []
    app = App(Checkpoints(MemoryStore(), format=format, observers=observers), value)
    await changing.start(run_id="r").run(app)
    assert value != expected
    entries = await read_entries(app.checkpoints.store, "r")
    assert next(one.output for one in entries if isinstance(one, Completed)) == expected


@pytest.mark.parametrize("is_native", [False, True])
async def test_a_cancellation_while_a_thread_writes_loses_nothing(is_native: bool) -> None:
    slow = Slow("k", {"k": bytes(32)})
    app = App(Checkpoints(MemoryStore(), encryption=slow), BLOB)

    async def drive() -> None:
        await giving.start(run_id="r").run(app)

    async def cancel(by: Any) -> None:
        await to_thread.run_sync(slow.reached.wait, 30)
        by.cancel()
        slow.may_go_on.set()

    if is_native:
        import asyncio

        task = asyncio.ensure_future(drive())
        await cancel(task)
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drive)
            await cancel(tasks.cancel_scope)
    verification = await verify_run(app.checkpoints.store, "r", app.checkpoints.seal)
    assert verification.problem is None
    assert await giving.resume("r").run(app) == Success(len(BLOB))
    assert app.calls == ["give", "end"]


async def test_what_is_added_while_a_thread_writes_comes_after_it() -> None:
    slow = Slow("k", {"k": bytes(32)})
    app = App(Checkpoints(MemoryStore(), encryption=slow), BLOB)

    async def wait_for_thread(app: App) -> None:
        await to_thread.run_sync(slow.reached.wait, 30)

    @step
    def follow() -> Effect[App, str, None]:
        return from_async(wait_for_thread)

    @workflow
    def following() -> Do[App, str, None]:
        yield from par(giving.call(), following_steps.call())

    @workflow
    def following_steps() -> Do[App, str, None]:
        yield from follow()
        yield from from_fn(lambda _: slow.may_go_on.set())
        yield from end()

    await following.start(run_id="r").run(app)
    entries = await read_entries(app.checkpoints.store, "r", app.checkpoints.seal)
    assert isinstance(entries[-1], Finished)
    assert await following.resume("r").run(app) == Success(None)
    assert app.calls == ["give", "end", "end"]


async def test_bytes_that_are_too_long_for_an_entry_end_the_run_where_they_are_added() -> None:
    app = App(Checkpoints(MemoryStore()), [bytes(30_000_000), bytes(30_000_000)])
    failure = (await giving.start(run_id="r").run(app)).failure()
    assert isinstance(failure, NotSerializable)
    assert "larger than" in str(failure)
    assert app.calls == ["give"]
