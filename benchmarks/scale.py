"""What a step costs in a run of 100,000, and a run among 5,000 at once, on SQLite with full syncs.

    python benchmarks/scale.py

Each measurement has a process of its own, because a process never returns the memory of an earlier one.
The floor of `floor.py` does the same work in the same number of steps and runs, and is measured in
turns with effectflow. Memory is what the process has more at its peak than before the first step. Disk
is what the database and its log have grown to. A step must not cost more because many came before it.

The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import floor
from core import App, at_once, count

from effectflow import Checkpoints
from effectflow.stores import SqliteStore

FEW, MANY = 1_000, 100_000
RUNS, STEPS_OF_EACH = 5_000, 2
ROUNDS = 3
"""Of the longest measurement. Shorter ones are repeated more often."""


@dataclass(frozen=True)
class Cost:
    """What each of many steps or runs cost: seconds, seconds of the processor, and bytes."""

    wall: float
    processor: float
    memory: float
    disk: float


def peak_memory() -> int:
    """Bytes. Of the process since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


async def cost(folder: Path, number: int, work: Callable[[], Awaitable[object]]) -> Cost:
    """What each of this number of steps or runs costs."""
    memory, disk = peak_memory(), disk_use(folder)
    began, processor = time.perf_counter(), time.process_time()
    await work()
    return Cost(
        (time.perf_counter() - began) / number,
        (time.process_time() - processor) / number,
        (peak_memory() - memory) / number,
        (disk_use(folder) - disk) / number,
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
    return await cost(folder, steps, lambda: floor.drive(floor.count(steps), run))


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
    few, few_floor = compared("steps", FEW, 2 * ROUNDS + 1)
    many, many_floor = compared("steps", MANY, ROUNDS)
    runs, runs_floor = compared("runs", RUNS, ROUNDS)
    bounds.show_cost(f"step of {MANY:,}", many, many_floor, Cost(2, 2.5, 100, 1_200))
    bounds.show_cost(f"run of {RUNS:,}", runs, runs_floor, Cost(20, 15, 25_000, 4_000))
    # The floor and the disk change from one minute to the next, also for few steps.
    growth = (many.processor / many_floor.processor) / (few.processor / few_floor.processor)
    bounds.show(f"step of {MANY:,}: growth", growth, 1.25, f"x one of {FEW:,}")
    sys.exit(not bounds.are_kept)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        with tempfile.TemporaryDirectory() as name:
            found = asyncio.run(MEASURES[sys.argv[1]](Path(name), int(sys.argv[2])))
            print(json.dumps(found.__dict__))
