"""What workers cost and how soon they act, on PostgreSQL and SQLite. `compare.py` measures their peers.

    pip install -e '.[postgres]' --group dev
    python benchmarks/service.py [--quick] [submit] [throughput] [start] [death] [waiting] [idle]

Workers are processes. Times are medians over rounds, and processor time is that of all processes. Needs
Linux, for /proc.

- submit: from the call of `submit` until the first step of the run begins in a worker. One at a time.
- throughput: runs of one step that one process submits and 1, 2 or 4 workers drive, until all have ended.
- start: a run of one step that `start` drives, one after another.
- death: from SIGKILL of a worker until all its runs begin their step again in another one, which is there
  before.
- waiting: what a worker has in memory for each run that waits for a message.
- idle: memory and processor time of a worker beside 100,000 suspended runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compared.measuring import (
    Meter,
    Work,
    begun,
    is_postgres,
    processor_seconds,
    until,
    workers,
)
from benchmarks.compared.ours import Env, work
from benchmarks.compared.report import OURS
from benchmarks.compared.stage import Stage, figures_of
from benchmarks.compared.systems import SYSTEMS
from benchmarks.due_runs import fill, opened
from benchmarks.servers import postgres_server
from effectflow import App, Checkpoints, Client, Do, Signal, Worker, workflow
from effectflow.stores import open_store

STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
LEASE_SECONDS = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 5
    submits: int = 60
    runs: int = 600
    starts: int = 300
    held: int = 10
    waiting: int = 1_000
    suspended: int = 100_000
    idle_seconds: float = 30.0


QUICK = Size(
    rounds=1, submits=20, runs=200, starts=100, waiting=200, suspended=10_000, idle_seconds=10.0
)


@workflow
def wait(_name: str) -> Do[Env, Never, str]:
    return (yield from Signal("go", str).wait())


async def serve(url: str, host: str) -> None:
    """Work until the process is killed, as a worker of this host or seemingly of another one."""
    if host:
        # Leases name the host of their owner. Those on others cannot tell whether it lives.
        platform.node = lambda: host
    checkpoints = Checkpoints(open_store(url), lease_seconds=LEASE_SECONDS if host else 30.0)
    app = App[Env]([work, wait], environment=Env, checkpoints=checkpoints)
    async with Worker(app, suspend_after=0.1):
        print("ready", flush=True)
        await anyio.sleep_forever()


def client(url: str) -> Client:
    return Client(Checkpoints(open_store(url)))


def of_compare(measure: str, database: str, stage: Stage, **options: int) -> dict[str, float]:
    """Measure as `compare.py` does, on a database of its own."""
    with stage.database(database) as url:
        return figures_of(SYSTEMS[OURS], measure, options, url, stage)


def show_submit(stage: Stage, size: Size) -> None:
    for database, store in STORES.items():
        rounds = [
            of_compare("latency", database, stage, submits=size.submits) for _ in range(size.rounds)
        ]
        times = [seconds for figures in rounds for seconds in figures.values()]
        *_, late = statistics.quantiles(times, n=100)
        print(
            f"submit to first step, {store}: median {statistics.median(times) * 1e3:.0f} ms"
            f" (at most 30 ms), p99 {late * 1e3:.0f} ms ({len(times)} runs)"
        )


def shown(rounds: Iterable[dict[str, float]], runs: int) -> str:
    """Say what runs cost, which are the figures of the same name."""
    walls, cpus = zip(*((one["runs.wall"], one["runs.cpu"]) for one in rounds), strict=True)
    speed, each = runs / statistics.median(walls), statistics.median(cpus) / runs
    return f"{speed:.0f}/s, each with {each * 1e3:.2f} ms of processors"


def show_throughput(stage: Stage, size: Size) -> None:
    for number in (1, 2, 4):
        for database, store in STORES.items():
            work = {"runs": size.runs, "number": number}
            rounds = [of_compare("throughput", database, stage, **work) for _ in range(size.rounds)]
            goal = GOALS[number] if database == "postgres" else ""
            print(f"{number} workers, {store}: {shown(rounds, size.runs)}{goal}")


GOALS = {1: " (at most 5)", 2: "", 4: " (at most 7)"}
"""The milliseconds of processors for a run on PostgreSQL, by the number of workers."""


async def start(stage: Stage, url: str, runs: int) -> dict[str, float]:
    """Start runs of one step in this process, one after another."""
    task = Work(str(stage.folder / "started"), "started")
    meter = Meter(stage.server if is_postgres(url) else None)
    async with open_store(url) as store:
        env = Env(Checkpoints(store))
        for _ in range(runs // 5):
            await work.start(task).run_or_raise(env)
        with meter("runs"):
            for _ in range(runs):
                await work.start(task).run_or_raise(env)
    return meter.figures


def show_start(stage: Stage, size: Size) -> None:
    for (database, store), goal in zip(STORES.items(), (3, 1.5), strict=True):
        rounds: list[dict[str, float]] = []
        for _ in range(size.rounds):
            with stage.database(database) as url:
                rounds.append(anyio.run(start, stage, url, size.starts))
        print(f"started runs, {store}: {shown(rounds, size.starts)} (at most {goal})")


async def death(url: str, file: Path, runs: int, host: str) -> float:
    """Seconds from the death of a worker, on a host, until one on this host continues all its runs."""
    async with client(url) as submits:
        with workers(url, 1, host=host) as [process]:
            for number in range(runs):
                await submits.submit(work, Work(str(file), str(number), 3600))
            await until(lambda: len(begun(file)) == runs)
            with workers(url, 1, host=""):
                await anyio.sleep(1)
                killed_at = time.time()
                process.kill()
                await until(lambda: len(begun(file)) == 2 * runs)
    return max(at for _, at in begun(file)) - killed_at


def show_death(stage: Stage, size: Size) -> None:
    for database, store in STORES.items():
        for where, host, bound in (
            ("same host", "", 1.0),
            ("another host", "elsewhere", LEASE_SECONDS + 1),
        ):
            times: list[float] = []
            for _ in range(size.rounds):
                file = stage.folder / os.urandom(4).hex()
                with stage.database(database) as url:
                    times.append(anyio.run(death, url, file, size.held, host))
            print(
                f"death of a worker with {size.held} runs, {store}, {where}: median "
                f"{statistics.median(times):.2f} s, slowest {max(times):.2f} s (at most {bound:g} s)"
            )


def memory_of(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


async def memory_of_waiting(url: str, runs: int) -> float:
    """Bytes that a worker has more for each run that it took and that waits for a message."""
    async with client(url) as submits:
        with workers(url, 1, host="") as [process]:
            # As many before, so that caches are full and what it needs at once is there.
            for number in range(runs):
                await submits.submit(wait, f"before-{number}")
            await anyio.sleep(10)
            before = memory_of(process.pid)
            for number in range(runs):
                await submits.submit(wait, str(number))
            await anyio.sleep(10)
            return (memory_of(process.pid) - before) / runs


def show_waiting(stage: Stage, size: Size) -> None:
    for database, store in STORES.items():
        with stage.database(database) as url:
            each = anyio.run(memory_of_waiting, url, size.waiting)
        print(
            f"memory of a worker for each of {size.waiting:,} runs that wait, {store}: {each:,.0f} bytes"
        )


async def idle(url: str, seconds: float) -> tuple[int, float]:
    """Bytes of memory of an idle worker, and its processor time per second."""
    with workers(url, 1, host="") as [process]:
        await anyio.sleep(2)
        began = processor_seconds([process.pid], None)
        await anyio.sleep(seconds)
        used = processor_seconds([process.pid], None) - began
        return memory_of(process.pid), used / seconds


async def fill_store(url: str, runs: int) -> None:
    async with opened(url) as store:
        await fill(store, runs)


def show_idle(stage: Stage, size: Size) -> None:
    for database, store in STORES.items():
        with stage.database(database) as url:
            empty, _ = anyio.run(idle, url, 1.0)
            anyio.run(fill_store, url, size.suspended)
            full, processor = anyio.run(idle, url, size.idle_seconds)
        each = (full - empty) / size.suspended
        print(
            f"idle beside {size.suspended:,} suspended runs, {store}: {full / 2**20:.0f} MiB, "
            f"{each:,.0f} bytes for each run (none), {processor:.2%} of a core (at most 1%)"
        )


MEASURES = {
    "submit": show_submit,
    "throughput": show_throughput,
    "start": show_start,
    "death": show_death,
    "waiting": show_waiting,
    "idle": show_idle,
}


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        anyio.run(lambda: serve(**json.loads(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], help="all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, postgres_server(Path(name) / "postgres") as dsn:
        for measure in options.measures or MEASURES:
            MEASURES[measure](Stage(dsn, Path(name)), QUICK if options.quick else Size())


if __name__ == "__main__":
    main()
