"""An App for the tests of commands: a module `mall`, and clients of its runs in this process."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from effectflow.checkpoint import RunInfo, RunStatus, find_run
from effectflow.service import Client, Handle, Worker

MALL = textwrap.dedent("""
    import os
    from dataclasses import dataclass
    from pathlib import Path

    import anyio

    from effectflow import (
        App,
        Checkpoints,
        Do,
        Effect,
        Signal,
        fail,
        publish,
        sleep,
        spawn,
        step,
        workflow,
    )
    from effectflow.effects import from_async, from_fn
    from effectflow.stores import SqliteStore


    @dataclass(frozen=True)
    class Shop:
        checkpoints: Checkpoints
        name: str = "corner"


    @dataclass(frozen=True)
    class Approval:
        by: str
        is_given: bool = True


    approval = Signal("approval", Approval)


    @step
    def note(text: str) -> Effect[object, str, str]:
        def append(_):
            with open("notes", "a") as notes:
                notes.write(text + "\\n")
            return text
        return from_fn(append)


    @step
    def packed(name: str) -> Effect[object, str, str]:
        async def wait(_):
            with open("begun", "a") as begun:
                begun.write(f"{os.getpid()}\\n")
            while not Path(name).exists():
                await anyio.sleep(0.01)
            return "packed"
        return from_async(wait)


    @workflow
    def order(amount: int) -> Do[Shop, str, str]:
        yield from publish("progress", {"reserved": amount})
        yield from note("reserved")
        given = yield from approval.wait()
        if not given.is_given:
            yield from fail(f"{given.by} declined")
        return f"approved by {given.by}"


    @workflow
    def pack(name: str) -> Do[Shop, str, str]:
        yield from note("picked")
        how = yield from packed(name)
        yield from note("sent")
        return how


    @workflow
    def remind(days: float) -> Do[Shop, str, None]:
        yield from sleep(days * 86400)


    @workflow
    def deliver(amount: int) -> Do[Shop, str, str]:
        child = yield from spawn(order, amount)
        return (yield from child.result())


    @workflow
    def named(_: None) -> Do[Shop, str, str]:
        return (yield from from_fn(lambda mall: mall.name))


    app = App[Shop](
        [order, pack, remind, deliver, named],
        environment=Shop,
        checkpoints=Checkpoints(SqliteStore("mall.db")),
    )
    empty = App[Shop]([], environment=Shop, checkpoints=Checkpoints(SqliteStore("mall.db")))
""")


def write_mall(folder: Path) -> Any:
    """Write the module into a folder on the path, and return it."""
    (folder / "mall.py").write_text(MALL)
    return import_module("mall")


def submitted(mall: Any, workflow: str, input: object, run_id: str, **options: Any) -> None:
    """Submit a run."""

    async def submit() -> None:
        client = Client(mall.app.checkpoints)
        await client.submit(mall.app.workflows[workflow], input, run_id=run_id, **options)

    anyio.run(submit)


def with_handle(
    mall: Any, workflow: str, run_id: str, use: Callable[[Handle[Any, Any]], Awaitable[Any]]
) -> Any:
    """Return `await use(handle)` of a run."""

    async def main() -> Any:
        return await use(Client(mall.app.checkpoints).handle(mall.app.workflows[workflow], run_id))

    return anyio.run(main)


def until(mall: Any, run_id: str, status: RunStatus, *, within: float = 30.0) -> RunInfo:
    """Wait until a run has this status and is not held."""

    async def look() -> RunInfo:
        with anyio.fail_after(within):
            async with mall.app.checkpoints.store as store:
                while True:
                    info = await find_run(store, run_id)
                    if info is not None and info.summary.status is status and info.lease is None:
                        return info
                    await anyio.sleep(0.02)

    return anyio.run(look)


def driven(mall: Any, *run_ids: str) -> None:
    """Let a worker of this process drive runs until each has ended or waits."""

    async def drive() -> None:
        async with Worker(mall.app) as worker:
            with anyio.fail_after(30):
                for run_id in run_ids:
                    await _rest(worker.client, run_id)

    anyio.run(drive)


async def _rest(client: Client, run_id: str) -> None:
    resting = {RunStatus.SUSPENDED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}
    async with client.checkpoints.store as store:
        while True:
            info = await find_run(store, run_id)
            if info is not None and info.summary.status in resting and info.lease is None:
                return
            await anyio.sleep(0.01)
