"""What a step costs in a run of 100,000, and a run among 5,000 at once, on SQLite with full syncs.

    python benchmarks/scale.py

Each measurement has a process of its own, because a process never returns the memory of an earlier one.
The floor of `floor.py` does the same work in the same number of steps and runs, and is measured in
turns with effectflow. Memory is what the process has more at its peak than before the first step. Disk
is what the database and its log have grown to. A step must not cost more because many came before it:
the last steps of a run are compared with the first ones.

The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import floor
from core import App, at_once, increment

from effectflow import Checkpoints, Do, SqliteStore, workflow

STEPS = 100_000
RUNS, STEPS_OF_EACH = 5_000, 2
ROUNDS = 3
WINDOWS = 10
"""Into how many parts the steps of a long run are divided, to compare the last with the first."""

times: list[float] = []
"""The processor time at the beginning of each window of the long run of this process."""


@dataclass(frozen=True)
class Cost:
    """What each of many steps or runs cost: seconds, seconds of the processor, and bytes.

    `growth` is the processor time of the last windows of steps, as a multiple of the first ones'.
    """

    wall: float
    processor: float
    memory: float
    disk: float
    growth: float


def note_time(number: int, steps: int) -> None:
    if steps >= WINDOWS and number % (steps // WINDOWS) == 0:
        times.append(time.process_time())


@workflow
def count(steps: int) -> Do[App, Any, int]:
    state = {"n": 0, "pad": "x" * 200}
    for number in range(steps):
        note_time(number, steps)
        state = yield from increment(state)
    return int(state["n"])


def timed(body: Generator[Any, Any, int], steps: int) -> Generator[Any, Any, int]:
    """The same for the floor."""
    value: Any = None
    for number in itertools.count():
        note_time(number, steps)
        try:
            value = yield body.send(value)
        except StopIteration as end:
            return end.value
    raise AssertionError


def peak_memory() -> int:
    """Bytes. Of the process since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def median_of(windows: list[float]) -> float:
    return statistics.median(windows or [1.0])


async def cost(folder: Path, number: int, work: Callable[[], Awaitable[object]]) -> Cost:
    """What each of this number of steps or runs costs."""
    memory, disk = peak_memory(), disk_use(folder)
    times.clear()
    began, processor = time.perf_counter(), time.process_time()
    await work()
    windows = [after - before for before, after in itertools.pairwise(times)]
    return Cost(
        (time.perf_counter() - began) / number,
        (time.process_time() - processor) / number,
        (peak_memory() - memory) / number,
        (disk_use(folder) - disk) / number,
        median_of(windows[-3:]) / median_of(windows[:3]),
    )


async def steps_of_ours(folder: Path, steps: int) -> Cost:
    async with SqliteStore(folder / "runs.db") as store:
        app = App(Checkpoints(store))
        await count.start(100).run_or_raise(app)
        return await cost(folder, steps, lambda: count.start(steps).run_or_raise(app))


async def steps_of_floor(folder: Path, steps: int) -> Cost:
    writer = floor.Writer(str(folder / "floor.db"))
    await floor.drive(floor.count(100), floor.SqliteRun(writer, "warm"))
    run = floor.SqliteRun(writer, "r")
    return await cost(folder, steps, lambda: floor.drive(timed(floor.count(steps), steps), run))


async def runs_of_ours(folder: Path, runs: int) -> Cost:
    async with SqliteStore(folder / "runs.db") as store:
        app = App(Checkpoints(store))
        await count.start(100).run_or_raise(app)
        starts = [partial(count.start(STEPS_OF_EACH).run_or_raise, app)] * runs
        return await cost(folder, runs, lambda: at_once(starts))


async def runs_of_floor(folder: Path, runs: int) -> Cost:
    writer = floor.Writer(str(folder / "floor.db"))
    await floor.drive(floor.count(100), floor.SqliteRun(writer, "warm"))
    drives = [
        partial(floor.drive, floor.count(STEPS_OF_EACH), floor.SqliteRun(writer, str(number)))
        for number in range(runs)
    ]
    return await cost(folder, runs, lambda: at_once(drives))


MEASURES = {
    work.__name__: work for work in (steps_of_ours, steps_of_floor, runs_of_ours, runs_of_floor)
}


def measured(name: str, number: int) -> Cost:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, name, str(number)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def median(costs: list[Cost]) -> Cost:
    columns = [[getattr(one, name) for one in costs] for name in Cost.__annotations__]
    return Cost(*map(statistics.median, columns))


def compared(what: str, number: int, rounds: int) -> tuple[Cost, Cost]:
    """Measure ours and the floor in turns."""
    ours: list[Cost] = []
    floors: list[Cost] = []
    for _ in range(rounds):
        ours.append(measured(f"{what}_of_ours", number))
        floors.append(measured(f"{what}_of_floor", number))
    return median(ours), median(floors)


class Bounds:
    """Prints what was measured beside its bound."""

    def __init__(self) -> None:
        self.are_kept = True

    def show(self, what: str, found: float, bound: float, unit: str, beside: str = "") -> None:
        is_kept = found <= bound
        self.are_kept = self.are_kept and is_kept
        verdict = "" if is_kept else "   MISSED"
        print(f"{what:<44}{found:9,.1f} {unit:<14}(at most {bound:,g}){beside}{verdict}")

    def show_cost(self, what: str, ours: Cost, floors: Cost, bounds: Cost) -> None:
        """`wall` and `processor` are bounds of the multiples of the floor, the others are bytes."""
        for name, unit, scale in (("wall", "us", 1e6), ("processor", "us", 1e6)):
            mine, theirs = getattr(ours, name) * scale, getattr(floors, name) * scale
            beside = f"   {mine:,.0f} {unit}, floor {theirs:,.0f} {unit}"
            self.show(
                f"{what}: {name}", mine / theirs, getattr(bounds, name), "x the floor", beside
            )
        for name in ("memory", "disk"):
            beside = f"   floor {getattr(floors, name):,.0f} bytes"
            self.show(
                f"{what}: {name}", getattr(ours, name), getattr(bounds, name), "bytes", beside
            )


def main() -> None:
    bounds = Bounds()
    ours, floors = compared("steps", STEPS, ROUNDS)
    bounds.show_cost(f"step of {STEPS:,}", ours, floors, Cost(2, 2.5, 100, 1_200, 1.2))
    beside = f"   floor {floors.growth:.1f}"
    bounds.show(f"step of {STEPS:,}: the last", ours.growth, 1.2, "x the first", beside)
    ours, floors = compared("runs", RUNS, ROUNDS)
    bounds.show_cost(f"run of {RUNS:,}", ours, floors, Cost(20, 15, 25_000, 4_000, 0))
    sys.exit(not bounds.are_kept)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        with tempfile.TemporaryDirectory() as name:
            found = asyncio.run(MEASURES[sys.argv[1]](Path(name), int(sys.argv[2])))
            print(json.dumps(found.__dict__))
