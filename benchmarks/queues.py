"""What claims cost with 100,000 queued runs of 1,000 keys, and how long another key waits.

    pip install -e '.[postgres,redis]' --group dev
    python benchmarks/queues.py [RUNS] [KEYS] [STORE ...]

One key has a half of all runs. Each claim takes up to 32 runs, as a worker does, and each run then ends.
The first claim is not among the others: after each start of a Redis server, it completes the sorted sets.
`compare.py` measures queues with workers, beside peers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import anyio
from due_runs import all_stores, opened

from effectflow import Queue, RunStatus
from effectflow.checkpoint import Batch, DueRuns, Owner, RunSummary, ServiceStore
from effectflow.checkpoint.store import Taken

WRITERS = 100
CLAIMS = 100
AT_ONCE = 32
CASES = {
    "without limits": {},
    "with limit=100, per_key=2": {"q": Queue("q", limit=100, per_key=2)},
}


def queued(key: str) -> RunSummary:
    now = time.time()
    return RunSummary("w", RunStatus.PENDING, now, now - 7200, queue="q", key=key)


async def fill(store: ServiceStore, runs: int, keys: int) -> None:
    numbers = iter(range(runs))

    async def create() -> None:
        for number in numbers:
            key = "big" if number < runs // 2 else f"tenant-{number % keys:05}"
            await store.create(f"run-{number:07}", [b"{}\nx"], summary=queued(key))

    async with anyio.create_task_group() as group:
        for _ in range(WRITERS):
            group.start_soon(create)


async def claim(store: ServiceStore, queues: dict[str, Queue], most: int = AT_ONCE) -> list[Taken]:
    owners = [str(Owner.new()) for _ in range(most)]
    due = DueRuns(frozenset(["w"]), owners, 60, time.time(), queues)
    return [*(await store.claim_due(due)).runs]


async def end(store: ServiceStore, taken: list[Taken]) -> None:
    async def end_one(one: Taken) -> None:
        done = replace(one.info.summary, status=RunStatus.COMPLETED, due_at=None)
        await store.append(one.lease, Batch([b"{}\ny"], 1, done, release=True))

    async with anyio.create_task_group() as group:
        for one in taken:
            group.start_soon(end_one, one)


async def claims(store: ServiceStore, queues: dict[str, Queue]) -> str:
    """Measure claims. Then submit a run of each of ten new keys, and count the runs that go before."""
    seconds, keys = 0.0, Counter[str]()
    for _ in range(CLAIMS):
        began = time.perf_counter()
        taken = await claim(store, queues)
        seconds += time.perf_counter() - began
        keys.update(one.info.summary.key for one in taken)
        await end(store, taken)
    new = {f"tenant-{place:05}-{time.time_ns()}" for place in range(0, 1000, 100)}
    for name in new:
        await store.create(name, [b"{}\nx"], summary=queued(name))
    before, began = list[str](), time.perf_counter()
    while not new <= set(before):
        taken = await claim(store, queues)
        before += [one.lease.run_id for one in taken]
        await end(store, taken)
    most = max(before.index(name) for name in new)
    return (
        f"{seconds / CLAIMS * 1e3:.1f} ms for a claim of {keys.total() / CLAIMS:.0f} runs, "
        f"{keys.total() / seconds:,.0f} runs per second; {keys['big'] / keys.total():.1%} of them of the "
        f"key with a half of all; of {len(new)} new keys, each had its first run after at most {most} "
        f"others, {time.perf_counter() - began:.1f} s"
    )


async def measure(name: str, url: str, runs: int, keys: int) -> None:
    async with opened(url) as store:
        began = time.perf_counter()
        await fill(store, runs, keys)
        rate = runs / (time.perf_counter() - began)
        began = time.perf_counter()
        await end(store, await claim(store, {}))
        first = time.perf_counter() - began
        print(
            f"{name}: {runs:,} runs of {keys:,} keys, {rate:,.0f} created per second; the first claim "
            f"after the start of the server took {first:.2f} s",
            flush=True,
        )
        for case, queues in CASES.items():
            print(f"{name}, {case}: {await claims(store, queues)}", flush=True)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    keys = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    with tempfile.TemporaryDirectory() as name, all_stores(Path(name)) as urls:
        for store, url in urls.items():
            if store != "file" and (not sys.argv[3:] or store in sys.argv[3:]):
                anyio.run(measure, store, url, runs, keys)


if __name__ == "__main__":
    main()
