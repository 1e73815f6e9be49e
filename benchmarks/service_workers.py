"""The worker processes of `service.py`: of effectflow, and of DBOS on the same server.

Both have the same two workflows. `work` has one step, which notes in a file when it begins, and may then
take long. `wait` waits for a message that is never sent.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Never

import anyio

from effectflow import App, Checkpoints, Do, Signal, Worker, effect, step, workflow
from effectflow.stores import open_store

__all__ = ["QUEUE", "Env", "Task", "wait", "work"]

QUEUE = "bench"
POLLING_SECONDS = 0.1
"""How often DBOS looks for submitted runs. It is 1 second unless one asks for less."""


@dataclass(frozen=True)
class Task:
    """What a run does: note its name in a file, then take some seconds."""

    file: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints


def note(task: Task) -> None:
    line = f"{task.name} {time.time()}\n".encode()
    file = os.open(task.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


@step
@effect
async def begin(_env: object, task: Task) -> None:
    note(task)
    if task.seconds:
        await anyio.sleep(task.seconds)


@workflow
def work(task: Task) -> Do[Env, Never, None]:
    yield from begin(task)


@workflow
def wait(_name: str) -> Do[Env, Never, str]:
    return (yield from Signal("go", str).wait())


async def serve(url: str, lease_seconds: float) -> None:
    async with open_store(url) as store:
        checkpoints = Checkpoints(store, lease_seconds=lease_seconds)
        app = App[Env]([work, wait], environment=Env, checkpoints=checkpoints)
        async with Worker(app, suspend_after=0.1):
            print("ready", flush=True)
            await anyio.sleep_forever()


def serve_dbos(dsn: str, executor: str) -> None:
    dbos: Any = importlib.import_module("dbos")
    config = {"system_database_url": dsn, "executor_id": executor, "application_version": "1"}
    dbos.DBOS(config={"name": "bench", "log_level": "ERROR", **config})

    @dbos.DBOS.step()
    async def begin_in_dbos(task: Task) -> None:
        note(task)
        if task.seconds:
            await anyio.sleep(task.seconds)

    @dbos.DBOS.workflow(name="work")
    async def work_in_dbos(file: str, name: str, seconds: float) -> None:
        await begin_in_dbos(Task(file, name, seconds))

    @dbos.DBOS.workflow(name="wait")
    async def wait_in_dbos(_name: str) -> object:
        return await dbos.DBOS.recv_async("go", timeout_seconds=86400)

    dbos.DBOS.launch()
    dbos.DBOS.register_queue(QUEUE, polling_interval_sec=POLLING_SECONDS)
    print("ready", flush=True)
    threading.Event().wait()


def main() -> None:
    engine, url, *options = sys.argv[1:]
    if engine == "dbos":
        serve_dbos(url, *options)
    else:
        lease_seconds, host = options
        if host == "elsewhere":
            # Leases name the host of their owner. Those on others cannot tell whether it lives.
            platform.node = lambda: host
        anyio.run(serve, url, float(lease_seconds))


if __name__ == "__main__":
    main()
