"""A run receives only messages that were sent with its keys, and the others harm nothing."""

from __future__ import annotations

import logging
from typing import Never

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Client, Do, Signal, Worker, workflow
from effectflow.checkpoint import Encryption, RunCancelled
from effectflow.checkpoint.store import CANCEL, ServiceStore
from effectflow.service import App
from effectflow.stores import MemoryStore
from tests.apps import App as Env

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)
KEY = b"s" * 32
FORGERS = {
    "no key": Checkpoints(MemoryStore()),
    "another key": Checkpoints(MemoryStore(), key=b"x" * 32),
    "no encryption": Checkpoints(MemoryStore(), key=KEY),
}


@workflow
def approved(_: None) -> Do[Env, Never, str]:
    return (yield from approval.wait())


@pytest.fixture
def checkpoints() -> Checkpoints:
    keys = Encryption("2026", {"2026": b"k" * 32})
    return Checkpoints(MemoryStore(), key=KEY, encryption=keys)


def working(checkpoints: Checkpoints) -> Worker[Env]:
    return Worker(App[Env]([approved], environment=Env, checkpoints=checkpoints))


async def warned(caplog: pytest.LogCaptureFixture) -> None:
    """Wait until a message was not received."""
    with anyio.fail_after(10):
        while not any("a message is not received" in text for text in caplog.messages):
            await anyio.sleep(0.01)
    assert {one.levelno for one in caplog.records} <= {logging.INFO, logging.WARNING}


@pytest.mark.parametrize("forger", FORGERS)
async def test_a_forged_signal_is_left_and_the_next_one_received(
    checkpoints: Checkpoints, forger: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(checkpoints)
    handle = await client.submit(approved, None, run_id="r")
    other = FORGERS[forger]
    forged = Client(Checkpoints(checkpoints.store, key=other.key))
    await forged.handle(approved, "r").send(approval, "mallory")

    async with working(checkpoints):
        await warned(caplog)
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("ann")


async def test_an_altered_or_misplaced_signal_is_left(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    client, store = Client(checkpoints), checkpoints.store
    assert isinstance(store, ServiceStore)
    handle = await client.submit(approved, None, run_id="r")
    await (await client.submit(approved, None, run_id="other")).send(approval, "bob")
    [message] = await store.mailbox("other")
    await store.send("r", message.topic, key="stolen", body=message.body)
    await store.send("r", message.topic, key="altered", body=b"{}" + message.body[2:])
    await store.send("r", message.topic, key="empty", body=b"")

    async with working(checkpoints):
        await warned(caplog)
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("ann")


async def test_a_forged_request_to_cancel_is_left_and_a_genuine_one_is_received(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    client, store = Client(checkpoints), checkpoints.store
    assert isinstance(store, ServiceStore)
    handle = await client.submit(approved, None, run_id="r")
    await Client(Checkpoints(store, key=b"x" * 32)).handle(approved, "r").cancel()
    await store.send("r", CANCEL, key=CANCEL)

    async with working(checkpoints):
        await warned(caplog)
        await handle.cancel()
        result = await handle.result(timeout=10)
        assert isinstance(result.failure(), RunCancelled)
