"""DBOS, as `compare.py` measures it: async workflows and steps, in one process or on a queue."""

# DBOS is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID
from dbos._error import DBOSAwaitedWorkflowCancelledError

from benchmarks.compared.measuring import (
    LIMIT,
    LIMITED_WORKERS,
    PADDING,
    Meter,
    Service,
    Submit,
    Work,
    is_postgres,
    main,
    measured_values,
    note,
    nothing,
    with_wal,
)

QUEUE = "compare"
POLLING_SECONDS = 0.1
"""How often a worker looks for submitted runs. It is 1 second unless one asks for less."""

value: Any = None
reached, gate = asyncio.Event(), asyncio.Event()
"""Set where a workflow waits, and when it may go on."""


@DBOS.step()
async def increment(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1, "pad": state["pad"]}


@DBOS.workflow()
async def count(to: int) -> int:
    state: dict[str, Any] = {"n": 0, "pad": PADDING}
    for _ in range(to):
        state = await increment(state)
    return state["n"]


async def pass_gate() -> None:
    if not gate.is_set():
        reached.set()
        await gate.wait()


@DBOS.step()
async def end() -> None:
    pass


@DBOS.workflow()
async def count_and_end(to: int) -> int:
    state: dict[str, Any] = {"n": 0, "pad": PADDING}
    for _ in range(to):
        state = await increment(state)
    await pass_gate()
    await end()
    return state["n"]


@DBOS.step()
async def produce() -> Any:
    return value


@DBOS.workflow()
async def produce_and_end() -> None:
    await produce()
    await pass_gate()
    await end()


@DBOS.step()
async def begin(work: Work) -> None:
    note(work)
    if work.seconds:
        await asyncio.sleep(work.seconds)


@DBOS.workflow(name="work")
async def work(file: str, name: str, seconds: float) -> None:
    await begin(Work(file, name, seconds))


@asynccontextmanager
async def launched(url: str, **limits: int) -> AsyncGenerator[None]:
    if not is_postgres(url):
        with_wal(url.removeprefix("sqlite:///")).close()
    # All processes are one executor of one version: each continues what another one has left.
    config: Any = {"name": "compare", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config={**config, "executor_id": "one", "application_version": "1"})
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, polling_interval_sec=POLLING_SECONDS, **limits)
    try:
        yield
    finally:
        DBOS.destroy()


async def steps(meter: Meter, url: str, runs: int, steps: int) -> None:
    async with launched(url):
        await count(2)
        with meter("steps"):
            await asyncio.gather(*(count(steps) for _ in range(runs)))


async def to_gate(run_id: str, workflow: Any, *arguments: Any) -> Any:
    """Run a workflow up to its gate. Return how to cancel it there, and how to resume it.

    DBOS resumes what was cancelled, and not what has failed.
    """
    gate.clear()
    reached.clear()
    with SetWorkflowID(run_id):
        handle = await DBOS.start_workflow_async(workflow, *arguments)
    await reached.wait()

    async def cancel() -> None:
        await DBOS.cancel_workflow_async(run_id)
        gate.set()
        with suppress(DBOSAwaitedWorkflowCancelledError):
            await handle.get_result(polling_interval_sec=0.05)

    async def resume() -> Any:
        handle = await DBOS.resume_workflow_async(run_id, queue_name=QUEUE)
        return await handle.get_result(polling_interval_sec=POLLING_SECONDS)

    return cancel, resume


async def resume(meter: Meter, url: str, steps: int) -> None:
    async with launched(url):
        for to in (2, steps):
            cancel, resume = await to_gate(f"to-{to}", count_and_end, to)
            await cancel()
            with meter("resume"):
                assert await resume() == to


async def values(meter: Meter, url: str, values: Iterable[tuple[str, int]]) -> None:
    async with launched(url):
        run_ids, cancel = iter(range(1_000)), nothing

        async def record(_kind: str, what: Any) -> Any:
            nonlocal cancel
            global value
            value = what
            cancel, resume = await to_gate(str(next(run_ids)), produce_and_end)
            return resume

        await measured_values(meter, record, values, between=lambda: cancel())


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Submit]:
    migrate = [Path(sys.executable).with_name("dbos"), "migrate", "--sys-db-url", url]
    subprocess.run(migrate, check=True, capture_output=True)  # noqa: ASYNC221, nothing runs yet
    client = DBOSClient(system_database_url=url)
    try:

        def submit(work: Work) -> Any:
            options = {"workflow_name": "work", "queue_name": QUEUE}
            if work.key:
                options["queue_partition_key"] = work.key
            return client.enqueue_async(options, work.file, work.name, work.seconds)

        yield submit
    finally:
        client.destroy()


def worker(url: str, *, has_limits: bool = False) -> None:
    # With `global_concurrency`, it takes a transaction for each key.
    in_each = LIMIT // LIMITED_WORKERS
    limits = {"worker_concurrency": in_each, "partition_concurrency": 1} if has_limits else {}

    async def serve() -> None:
        async with launched(url, **limits):
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


SERVICE = Service(
    client,
    worker,
    completed="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
)

if __name__ == "__main__":
    main(SERVICE, steps=steps, resume=resume, values=values)
