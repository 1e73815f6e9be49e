"""The pool of worker processes, with fake workers."""

from __future__ import annotations

import anyio
import pytest

from effectflow.executors.processes import WorkerPool
from tests.apps import both_backends

pytestmark = pytest.mark.anyio


class Worker:
    """A fake worker process. `started` is set just before `start` returns."""

    started: anyio.Event
    is_alive = True

    @classmethod
    async def start(cls, _make_env: bytes, _grace: float) -> Worker:
        await anyio.sleep(0)
        cls.started.set()
        return cls()

    async def ask(self, call: bytes) -> bytes:
        for _ in range(10):
            await anyio.sleep(0)
        return call

    async def end(self) -> str:
        return "ended"


@both_backends
async def test_a_new_worker_answers_the_call_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectflow.executors.processes.WorkerProcess", Worker)
    Worker.started = anyio.Event()
    pool = WorkerPool(b"", limit=2, grace=1)
    replies: list[bytes] = []

    async def ask(call: bytes) -> None:
        reply, _ = await pool.ask(call)
        replies.append(reply)

    async def ask_once_another_has_started() -> None:
        await Worker.started.wait()
        await ask(b"second")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_once_another_has_started)
        tasks.start_soon(ask, b"first")

    assert sorted(replies) == [b"first", b"second"]
