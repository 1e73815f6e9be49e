"""What the core costs: processor time as multiples of one plain `await`, with a floor beside it.

    python benchmarks/core.py

Each round measures the unit, effectflow and the floor one after another in the same process, and the
median of the ratios counts: other work on the machine then slows all three. See `floor.py` for the floor.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import floor

from effectflow import Checkpoints, Do, SqliteStore, effect, step, workflow
from effectflow.stores import MemoryStore

ROUNDS = 21
DEPENDENCIES = "import anyio, returns.result, returns.maybe, orjson"
IMPORTS = {
    "import effectflow": "import effectflow",
    "import of a durable workflow": (
        "from effectflow import Checkpoints, Do, effect, step, workflow"
    ),
}


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@step
@effect
async def increment(app: App, state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1, "pad": state["pad"]}


@workflow
def count(steps: int) -> Do[App, Any, int]:
    state = {"n": 0, "pad": "x" * 200}
    for _ in range(steps):
        state = yield from increment(state)
    return int(state["n"])


async def plain(number: int) -> int:
    return number


async def unit() -> float:
    """Processor seconds of one plain await."""
    began = time.process_time()
    for number in range(50_000):
        await plain(number)
    return (time.process_time() - began) / 50_000


async def multiples(work: Callable[[], Awaitable[object]], steps: int) -> float:
    """How many plain awaits each of the steps costs."""
    one = await unit()
    began = time.process_time()
    await work()
    return (time.process_time() - began) / steps / one


async def repeat(start: Callable[[], Awaitable[object]], times: int) -> None:
    for _ in range(times):
        await start()


async def at_once(starts: Sequence[Callable[[], Awaitable[object]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for start in starts:
            group.create_task(_run(start))


async def _run(start: Callable[[], Awaitable[object]]) -> None:
    await start()


class Table:
    """Ratios by row: ours and the floor's."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[list[float], list[float]]] = {}

    def add(self, row: str, ours: float, floors: float | None = None) -> None:
        mine, theirs = self.rows.setdefault(row, ([], []))
        mine.append(ours)
        if floors is not None:
            theirs.append(floors)

    def print(self, goals: dict[str, str]) -> None:
        for row, (mine, theirs) in self.rows.items():
            floors, times = " " * 8, " " * 8
            if theirs:
                floors = f"{statistics.median(theirs):8,.0f}"
                pairs = zip(mine, theirs, strict=True)
                times = f"{statistics.median(ours / floor for ours, floor in pairs):8.2f}"
            print(f"{row:<42}{statistics.median(mine):8,.0f}{floors}{times}   {goals[row]}")


GOALS = {
    "durable step in memory": "to reach: 250",
    "complete run with one step in memory": "to reach: 1,600; beside it, a step of the floor",
    "step on SQLite, 200 runs of 20 steps": "to reach: 550, or 2.20 times",
    "step on SQLite, one run": "to reach: 1,400, or 1.56 times",
    "steps/s on SQLite, 200 runs of 20 steps": "to reach: 0.50 times",
}
MEMORY, ONE, MANY, ALONE, RATE = GOALS


async def measure_in_memory(table: Table) -> None:
    app = App(Checkpoints(MemoryStore()))
    ours = await multiples(lambda: count.start(1000).run_or_raise(app), 1000)
    theirs = await multiples(lambda: floor.drive(floor.count(1000), floor.MemoryRun()), 1000)
    table.add(MEMORY, ours, theirs)
    start = count.start(1)
    run = await multiples(lambda: repeat(lambda: start.run_or_raise(app), 200), 200)
    table.add(ONE, run, theirs)


async def measure_many(table: Table, app: App, writer: floor.Writer, name: str) -> None:
    began = time.perf_counter()
    ours = await multiples(
        lambda: at_once([partial(count.start(20).run_or_raise, app)] * 200), 4000
    )
    rate = 4000 / (time.perf_counter() - began)
    runs = [floor.SqliteRun(writer, f"{name}-{number}") for number in range(200)]
    began = time.perf_counter()
    drives = [partial(floor.drive, floor.count(20), run) for run in runs]
    theirs = await multiples(lambda: at_once(drives), 4000)
    table.add(MANY, ours, theirs)
    table.add(RATE, rate, 4000 / (time.perf_counter() - began))


async def measure_alone(table: Table, app: App, writer: floor.Writer, name: str) -> None:
    ours = await multiples(lambda: count.start(300).run_or_raise(app), 300)
    run = floor.SqliteRun(writer, f"{name}-alone")
    theirs = await multiples(lambda: floor.drive(floor.count(300), run), 300)
    table.add(ALONE, ours, theirs)


async def measure(folder: str, table: Table) -> None:
    writer = floor.Writer(f"{folder}/floor.db")
    for number in range(ROUNDS):
        await measure_in_memory(table)
        async with SqliteStore(f"{folder}/{number}.db") as store:
            app = App(Checkpoints(store))
            await measure_many(table, app, writer, str(number))
            await measure_alone(table, app, writer, str(number))


def import_time(statement: str) -> float:
    """Milliseconds that a new interpreter takes for this statement, at best of several.

    The first one compiles the byte code, as an installer does, so its time is not the best.
    """
    code = (
        f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=environment
        )
        for _ in range(ROUNDS)
    ]
    return min(float(run.stdout) for run in runs) * 1e3


def main() -> None:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(folder, table))
    print(f"{'in plain awaits':<42}{'ours':>8}{'floor':>8}{'times':>8}")
    table.print(GOALS)
    dependencies = import_time(DEPENDENCIES)
    print(f"import of the dependencies: {dependencies:.0f} ms")
    for what, code in IMPORTS.items():
        ours = import_time(code)
        print(f"{what}: {ours:.0f} ms, {ours / dependencies:.2f} times (to reach: 80, twice)")


if __name__ == "__main__":
    main()
