"""procrastinate, as `compare.py` measures it: jobs on a queue in PostgreSQL, which have no steps."""

# procrastinate is in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.compared.measuring import Service, Submit, Work, main, note

CONCURRENCY = 16


def registered(url: str) -> tuple[App, Submit]:
    app: Any = App(connector=PsycopgConnector(conninfo=url))

    async def work(file: str, name: str, seconds: float) -> None:
        note(Work(file, name))
        if seconds:
            await asyncio.sleep(seconds)

    task = app.task(work, name="work")

    def submit(each: Work) -> Any:
        return task.defer_async(file=each.file, name=each.name, seconds=each.seconds)

    return app, submit


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[Submit]:
    app, submit = registered(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield submit


def worker(url: str) -> None:
    async def serve() -> None:
        app, _ = registered(url)
        async with app.open_async():
            print("ready", flush=True)
            await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    asyncio.run(serve())


SERVICE = Service(
    client,
    worker,
    completed="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
)

if __name__ == "__main__":
    main(SERVICE)
