"""A store that only keeps journals refuses what needs messages and due times, at once and clearly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, Effect, Signal, spawn, step, workflow
from effectflow.checkpoint import Checkpoints, StoreUnavailable
from effectflow.service import App as Service, Client, Worker
from effectflow.stores import FileStore
from tests.apps import App, Broken, note

pytestmark = pytest.mark.anyio

approval = Signal("approval", str)


@step
def act() -> Effect[App, Broken, int]:
    return note("act")


@workflow
def plain(_: None) -> Do[App, Broken, int]:
    return (yield from act())


@workflow
def waiting(_: None) -> Do[App, Any, str]:
    yield from act()
    return (yield from approval.wait())


@workflow
def parent(_: None) -> Do[App, Any, int]:
    yield from act()
    child = yield from spawn(plain, None)
    return (yield from child.result())


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with FileStore(tmp_path) as store:
        yield App(Checkpoints(store))


async def test_a_run_without_them_is_driven_and_resumed(app: App) -> None:
    assert await plain.start(None, run_id="r").run(app) == Success(1)
    assert await plain.resume("r").run(app) == Success(1)


@pytest.mark.parametrize(
    ("needing", "purpose"), [(waiting, "a wait for signal approval"), (parent, "a spawned run")]
)
async def test_a_run_that_needs_them_ends_with_the_reason(
    needing: Any, purpose: str, app: App
) -> None:
    error = (await needing.start(None, run_id="r").run(app)).failure()

    assert isinstance(error, StoreUnavailable)
    assert f"keeps journals only, and {purpose} needs messages" in str(error)
    assert app.world.done == ["act"]


async def test_workers_and_clients_refuse_such_a_store(app: App) -> None:
    service = Service([plain], environment=lambda _: app, checkpoints=app.checkpoints)
    with pytest.raises(StoreUnavailable, match="keeps journals only, and a worker needs"):
        Worker(service)
    client = Client(app.checkpoints)
    with pytest.raises(StoreUnavailable, match="keeps journals only, and a submitted run needs"):
        await client.submit(plain, None)
    assert await client.find() == []
