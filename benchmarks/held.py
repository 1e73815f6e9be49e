"""What 10,000 runs cost that wait in a process, on SQLite, against bare asyncio tasks that wait.

    python benchmarks/held.py [RUNS]

Each run sleeps for ten hours, as runs do that `start` drives; a worker would suspend it. Memory is what
Python has allocated. Then nothing happens but renewals of the leases, and the processor time of the
process is measured, which is that of the one heartbeat. Each measurement has a process of its own.

The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from effectflow import Checkpoints, SqliteStore, sleep, workflow

RUNS = 10_000
FEW = 1_000
HOURS = 36_000
LEASE = 30.0

MOST_BYTES, MOST_OF_A_CORE = 12_000, 0.05


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@workflow
async def waiting(_: int) -> None:
    await sleep(HOURS)


def start_in(app: App, number: int) -> Coroutine[Any, Any, object]:
    return waiting.start(number, run_id=f"r{number}").run(app)


async def held(start: Callable[[int], Coroutine[Any, Any, object]], runs: int, what: str) -> float:
    """Return the bytes for each of this many, or the part of a core that all of them take."""
    warm = [asyncio.create_task(start(-number)) for number in range(1, 100)]
    await asyncio.sleep(1)
    gc.collect()
    if what == "bytes":
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tasks = [asyncio.create_task(start(number)) for number in range(runs)]
    # They have begun once nothing is to be done.
    used = -1.0
    while time.process_time() - used > 0.1:
        used = time.process_time()
        await asyncio.sleep(2)
    gc.collect()
    found = (tracemalloc.get_traced_memory()[0] - before) / runs
    tracemalloc.stop()
    if what == "core":
        used = time.process_time()
        await asyncio.sleep(2 * LEASE / 3)
        found = (time.process_time() - used) / (2 * LEASE / 3)
    for task in (*warm, *tasks):
        task.cancel()
    await asyncio.gather(*warm, *tasks, return_exceptions=True)
    return found


async def ours(runs: int, what: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "runs.db", durability="process") as store:
            app = App(Checkpoints(store, lease_seconds=LEASE))
            return await held(partial(start_in, app), runs, what)


async def floor(runs: int, what: str) -> float:
    return await held(lambda _: asyncio.sleep(HOURS), runs, what)


def measured(whose: str, runs: int, what: str) -> float:
    command = [sys.executable, __file__, whose, str(runs), what]
    return float(json.loads(subprocess.check_output(command, text=True)))


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    mine, bare = (measured(whose, min(runs, FEW), "bytes") for whose in ("ours", "floor"))
    beside = f"{mine / bare:.1f} times a bare task (to reach: {MOST_BYTES:,})"
    print(f"a run that waits: {mine:,.0f} bytes, {beside}")
    core, idle = (measured(whose, runs, "core") for whose in ("ours", "floor"))
    beside = f"bare tasks {idle:.1%} (to reach: {MOST_OF_A_CORE:.0%})"
    print(f"{runs:,} of them: {core:.1%} of a core, {beside}")
    sys.exit(mine > MOST_BYTES or core > MOST_OF_A_CORE)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        main()
    else:
        work = {"ours": ours, "floor": floor}[sys.argv[1]]
        print(json.dumps(asyncio.run(work(int(sys.argv[2]), sys.argv[3]))))
