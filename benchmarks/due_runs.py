"""What a store costs beside 100,000 suspended runs, and how soon another process notices a message.

    pip install -e '.[file,postgres,redis]' --group dev
    python benchmarks/due_runs.py [RUNS] [STORE ...]

FileStore reads all runs to find those that are due, so it has a hundredth of the runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from servers import postgres_server, redis_server

from effectflow import RunQuery, RunStatus
from effectflow.checkpoint import DueRuns, Owner, RunSummary, ServiceStore
from effectflow.checkpoint.store import service_of
from effectflow.stores import MemoryStore, RedisStore, open_store

ROUNDS = 7
WRITERS = 100
MESSAGES = 40
FAR = time.time() + 10 * 86400


def opened(url: str) -> ServiceStore:
    store = RedisStore(url) if url.startswith("unix:") else open_store(url)
    return service_of(store, "a worker")


async def fill(store: ServiceStore, runs: int) -> None:
    """Create suspended runs of two workflows: half wait for a time, half only for a message."""
    numbers = iter(range(runs))

    async def create() -> None:
        for number in numbers:
            due_at = FAR + number if number % 2 else None
            workflow = f"w{number % 4 // 2}"
            summary = RunSummary(workflow, RunStatus.SUSPENDED, number, due_at)
            await store.create(f"run-{number:06}", [b"{}\nx"], summary=summary)

    async with anyio.create_task_group() as group:
        for _ in range(WRITERS):
            group.start_soon(create)


async def milliseconds(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds for the round that was disturbed least."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await work()
        times.append((time.perf_counter() - began) * 1e3)
    return min(times)


async def claims(store: ServiceStore) -> tuple[float, float]:
    """Milliseconds to claim what is due: nothing, and ten of two workflows."""

    def due() -> DueRuns:
        owners = [str(Owner.new()) for _ in range(10)]
        return DueRuns(frozenset(["w0", "w1"]), owners, 60, time.time())

    nothing = await milliseconds(lambda: store.claim_due(due()))
    times: list[float] = []
    for round_number in range(ROUNDS):
        for number in range(10):
            summary = RunSummary(
                f"w{number % 2}", RunStatus.PENDING, 0.0, 1.0 + number, priority=number % 3
            )
            await store.create(f"due-{round_number}-{number}", [b"{}\nx"], summary=summary)
        began = time.perf_counter()
        claimed = await store.claim_due(due())
        times.append((time.perf_counter() - began) * 1e3)
        assert len(claimed.runs) == 10
        for one in claimed.runs:
            await store.delete(one.lease.run_id, lease=one.lease)
    return nothing, min(times)


async def beside_suspended_runs(url: str, runs: int) -> str:
    async with opened(url) as store:
        await fill(store, runs)
        nothing, ten = await claims(store)
        query = RunQuery(prefix="run-0001", statuses=frozenset([RunStatus.SUSPENDED]))
        found = await milliseconds(lambda: store.find(query))
        return (
            f"beside {runs:,} suspended runs: claim_due {nothing:.1f} ms with nothing due, "
            f"{ten:.1f} ms with 10 due; find 100 of a status and prefix {found:.1f} ms"
        )


async def watch(url: str) -> None:
    """Print when a change is noticed. Then the processor time of an idle watcher, per second."""
    async with opened(url) as store, store.changes() as changes:
        await changes.wait(0.5)
        print("ready", flush=True)
        for _ in range(MESSAGES):
            while (changed := await changes.wait(60)) is not None and not changed:
                pass
            print(time.time(), flush=True)
        await changes.wait(1)
        began = time.process_time()
        for _ in range(2):
            await changes.wait(5)
        print((time.process_time() - began) / 10, flush=True)


async def waking(url: str) -> str:
    """How long after `send` returns another process knows of it, and what it costs to wait."""
    times: list[float] = []
    async with opened(url) as store:
        summary = RunSummary("w", RunStatus.SUSPENDED, 0.0)
        await store.create("told", [b"{}\nx"], summary=summary)
        watcher = subprocess.Popen(  # noqa: ASYNC220, it takes only milliseconds
            [sys.executable, __file__, "--watch", url], stdout=subprocess.PIPE, text=True
        )
        assert watcher.stdout is not None
        output = watcher.stdout
        # In a thread, because PostgresStore tells other processes of a change from the event loop.
        read = partial(anyio.to_thread.run_sync, lambda: output.readline())
        await read()
        for number in range(MESSAGES):
            await anyio.sleep(0.137)
            began = time.time()
            await store.send("told", "signal:go", key=str(number))
            times.append((float(await read()) - began) * 1e3)
        idle = float(await read())
    watcher.wait()
    return (
        f"from `send` to the watcher in another process: median {statistics.median(times):.1f} ms, "
        f"slowest of {MESSAGES} {max(times):.1f} ms; an idle watcher uses {idle:.2%} of a core"
    )


async def waking_in_memory() -> str:
    store = MemoryStore()
    summary = RunSummary("w", RunStatus.SUSPENDED, 0.0)
    await store.create("told", [b"{}\nx"], summary=summary)
    times: list[float] = []
    async with store.changes() as changes, anyio.create_task_group() as group:
        for number in range(MESSAGES):
            await changes.wait(0)
            began = time.perf_counter()
            group.start_soon(lambda n=number: store.send("told", "signal:go", key=str(n)))
            await changes.wait(60)
            times.append((time.perf_counter() - began) * 1e3)
    return f"from `send` to the watcher in this process: median {statistics.median(times):.2f} ms"


@contextmanager
def all_stores(folder: Path) -> Iterator[dict[str, str]]:
    """Start the servers, and yield the URLs of all stores."""
    with redis_server(folder) as redis, postgres_server(folder / "postgres") as postgres:
        yield {
            "memory": "memory:",
            "file": f"file:{folder}/files",
            "sqlite": f"{folder}/runs.db",
            "postgres": postgres,
            "redis": redis,
        }


def main() -> None:
    if sys.argv[1:2] == ["--watch"]:
        anyio.run(watch, sys.argv[2])
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as name, all_stores(Path(name)) as urls:
        for store, url in urls.items():
            if sys.argv[2:] and store not in sys.argv[2:]:
                continue
            told = anyio.run(waking_in_memory) if store == "memory" else anyio.run(waking, url)
            print(f"{store}: {told}", flush=True)
            count = runs // 100 if store == "file" else runs
            print(f"{store}: {anyio.run(beside_suspended_runs, url, count)}", flush=True)


if __name__ == "__main__":
    main()
