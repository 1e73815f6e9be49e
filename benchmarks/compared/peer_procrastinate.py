"""procrastinate, as `compare.py` measures it: jobs on a queue in PostgreSQL, which have no steps."""

# procrastinate is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.compared.measuring import (
    LIMIT,
    LIMITED_WORKERS,
    Service,
    Submit,
    Work,
    main,
    note,
)

CONCURRENCY = 16
POLLING_SECONDS = 0.1
"""How often a worker looks for jobs whose lock is free now, which nothing tells it. It is 5 seconds
unless one asks for less."""


def registered(url: str) -> tuple[App, Submit]:
    app: Any = App(connector=PsycopgConnector(conninfo=url))

    async def work(file: str, name: str, seconds: float) -> None:
        note(Work(file, name))
        if seconds:
            await asyncio.sleep(seconds)

    task = app.task(work, name="work")

    def submit(each: Work) -> Any:
        one = task.configure(lock=each.key) if each.key else task
        return one.defer_async(file=each.file, name=each.name, seconds=each.seconds)

    return app, submit


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Submit]:
    app, submit = registered(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield submit


def worker(url: str, *, has_limits: bool = False) -> None:
    options: dict[str, Any] = {"concurrency": CONCURRENCY}
    if has_limits:
        # The number of runs is limited for each worker only.
        options = {
            "concurrency": LIMIT // LIMITED_WORKERS,
            "fetch_job_polling_interval": POLLING_SECONDS,
        }

    async def serve() -> None:
        app, _ = registered(url)
        async with app.open_async():
            print("ready", flush=True)
            await app.run_worker_async(install_signal_handlers=False, **options)

    asyncio.run(serve())


SERVICE = Service(
    client,
    worker,
    completed="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
)

if __name__ == "__main__":
    main(SERVICE)
