"""The health of a worker: whether it takes runs, reaches its store, and what waits for long."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from effectflow import Do, RunStatus, pure, sleep, workflow
from effectflow.checkpoint import find_run
from effectflow.service import Health
from effectflow.service.health import port_of, serve_health
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.service.conftest import Service

pytestmark = pytest.mark.anyio


@workflow
def quick(_: None) -> Do[App, object, int]:
    return (yield from pure(1))


@workflow
def slow(_: None) -> Do[App, object, None]:
    yield from sleep(3600)


class Unreachable(MemoryStore):
    is_down = False

    async def find(self, query: Any = None) -> Any:
        if self.is_down:
            raise ConnectionError("the server is down")
        return await super().find(query)


async def test_a_worker_is_alive_from_its_beginning_to_its_end(store: MemoryStore) -> None:
    service = Service(store)
    worker = service.worker(slow, limit=7, suspend_after=60)
    assert await worker.health() == Health(False, "", 0, 7, 0)
    async with worker:
        await worker.client.submit(slow, run_id="s1")
        with anyio.fail_after(10):
            while not (health := await worker.health()).driven:
                await anyio.sleep(0.001)
        assert health == Health(True, "", 1, 7, 0)
        assert health.is_healthy
    assert not (await worker.health()).is_healthy


async def test_a_store_that_cannot_be_reached_is_named() -> None:
    async with Unreachable() as store:
        worker = Service(store).worker(quick)
        async with worker:
            store.is_down = True
            health = await worker.health()
    assert health.is_alive
    assert health.store_error == "ConnectionError('the server is down')"
    assert not health.is_healthy


async def test_a_store_that_does_not_answer_in_time_is_named() -> None:
    class Silent(MemoryStore):
        async def find(self, query: Any = None) -> Any:
            await anyio.sleep_forever()

    async with Silent() as store:
        health = await Service(store).worker(quick).health(timeout=0.01)
    assert health.store_error == "no answer within 0.01 s"


async def test_runs_that_nobody_takes_are_overdue(store: MemoryStore) -> None:
    service = Service(store)
    worker = service.worker(quick)
    await worker.client.submit(quick, run_id="due")
    await worker.client.submit(quick, run_id="later", delay=3600)
    # A workflow that this worker does not have.
    await worker.client.submit(slow, run_id="foreign")
    assert (await worker.health(overdue_after=60)).overdue == 0
    assert (await worker.health(overdue_after=0)).overdue == 1
    info = await find_run(store, "due")
    assert info is not None
    assert info.summary.status is RunStatus.PENDING


async def asked(port: int, request: bytes) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(request)
        found = b""
        with anyio.fail_after(10):
            async for part in stream:
                found += part
    return found


async def test_health_is_served_over_http() -> None:
    answers: list[bytes] = []
    async with Unreachable() as store:
        worker = Service(store).worker(quick)
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = port_of(listener)
        async with worker, anyio.create_task_group() as tasks:
            tasks.start_soon(serve_health, listener, worker.health)
            answers.append(await asked(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
            # One who goes away does no harm.
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"GET")
            store.is_down = True
            answers.append(await asked(port, b"GET /health HTTP/1.0\r\n\r\n"))
            # A head that never ends is not read to its end.
            answers.append(await asked(port, b"GET / HTTP/1.1\r\n" + b"x" * 8192))
            tasks.cancel_scope.cancel()
    good, bad, long = answers
    head, body = good.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert json.loads(body) == {
        "is_healthy": True,
        "is_alive": True,
        "store_error": "",
        "driven": 0,
        "limit": 100,
        "overdue": 0,
    }
    assert bad.startswith(b"HTTP/1.1 503 ")
    assert long.startswith(b"HTTP/1.1 503 ")
