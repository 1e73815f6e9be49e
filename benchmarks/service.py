"""What workers cost and how soon they act, on PostgreSQL and SQLite, beside DBOS on the same server.

    pip install -e '.[postgres]' --group benchmarks
    python benchmarks/service.py [--quick] [submit] [throughput] [start] [death] [waiting] [idle]

Workers are processes. Those of effectflow and DBOS take turns, so that both meet the same machine; times
are medians over rounds, and what counts is the ratio. Needs Linux, for /proc.

- submit: from the call of `submit` until the first step of the run begins in a worker. One at a time.
- throughput: runs of one step that one process submits and 1, 2 or 4 workers drive, until all have ended.
  The processor time is that of all processes, and depends less on what else the machine does. The
  transactions are those of the server, with those of the beginning; each statement is one.
- start: a run of one step that `start` drives, one after another: processor time of all processes.
- death: from SIGKILL of a worker until all its runs begin their step again in another worker. DBOS has no
  worker that takes them over; it continues them when a process of the same executor is started again.
- waiting: what a worker has in memory for each run that waits for a message.
- idle: memory and processor time of a worker beside 100,000 suspended runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import anyio
import psycopg
from due_runs import fill, opened
from servers import postgres_server
from service_workers import QUEUE, Env, Task, wait, work

from effectflow import Checkpoints, Client
from effectflow.stores import open_store

WORKERS = Path(__file__).with_name("service_workers.py")
SUBMITTERS = 16
LEASE_SECONDS = 5.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

Submit: TypeAlias = Callable[[str, Task | str], Awaitable[object]]
"""Submits a run of the workflow of this name."""


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


class Engine(Protocol):
    """What drives runs."""

    @property
    def name(self) -> str: ...

    @property
    def dsn(self) -> str:
        """The database on the server; empty without one."""
        ...

    def worker(self, *options: str) -> list[str]:
        """Return the arguments of a worker process. The options are as in `service_workers.py`."""
        ...

    def client(self) -> Any:
        """Return an async context manager that gives a `Submit`."""
        ...

    def completed(self) -> int:
        """Return how many runs have completed."""
        ...


@dataclass(frozen=True)
class Effectflow:
    name: str
    url: str

    def worker(self, *options: str) -> list[str]:
        return ["effectflow", self.url, *(options or ("30", "here"))]

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Submit]:
        async with Client(Checkpoints(open_store(self.url))) as client:

            async def submit(name: str, input: Task | str) -> None:
                workflow: Any = {"work": work, "wait": wait}[name]
                await client.submit(workflow, input)

            yield submit

    @property
    def dsn(self) -> str:
        return self.url if self.url.startswith("postgresql:") else ""

    def completed(self) -> int:
        if self.dsn:
            return count(
                self.url, "SELECT count(*) FROM effectflow.runs WHERE status = 'completed'"
            )
        with sqlite3.connect(self.url.removeprefix("sqlite:///")) as database:
            query = "SELECT count(*) FROM runs WHERE status = 'completed'"
            return database.execute(query).fetchone()[0]


@dataclass(frozen=True)
class Dbos:
    name: str
    dsn: str

    def worker(self, *options: str) -> list[str]:
        return ["dbos", self.dsn, *(options or (os.urandom(4).hex(),))]

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Submit]:
        client: Any = importlib.import_module("dbos").DBOSClient(system_database_url=self.dsn)

        async def submit(name: str, input: Task | str) -> None:
            inputs = (input.file, input.name, input.seconds) if isinstance(input, Task) else [input]
            await client.enqueue_async({"workflow_name": name, "queue_name": QUEUE}, *inputs)

        try:
            yield submit
        finally:
            client.destroy()

    def completed(self) -> int:
        return count(self.dsn, "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'")


def count(dsn: str, query: Any) -> int:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()[0][0]


@contextmanager
def workers(engine: Engine, number: int, *options: str) -> Generator[list[int]]:
    """Start workers, and yield their process ids. They are killed at the end."""
    with ExitStack() as running:
        processes = [
            subprocess.Popen(
                [sys.executable, WORKERS, *engine.worker(*options)], stdout=subprocess.PIPE
            )
            for _ in range(number)
        ]
        for process in processes:
            running.callback(process.wait)
            running.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"a worker of {engine.name} did not start")
        yield [process.pid for process in processes]


def begun(file: Path) -> Iterator[tuple[str, float]]:
    """Yield which runs have begun their step, and when."""
    for line in file.read_text().splitlines() if file.exists() else []:
        name, at = line.split()
        yield name, float(at)


async def until(is_so: Callable[[], bool], seconds: float = 0.02) -> None:
    with anyio.fail_after(120):
        while not is_so():  # noqa: ASYNC110, another process makes it so
            await anyio.sleep(seconds)


async def submit_times(engine: Engine, folder: Path, size: Size) -> list[float]:
    """Seconds from each call of `submit` to the first step, while a worker has nothing else to do."""
    file, called = folder / f"{engine.name}-submits-{os.urandom(4).hex()}", dict[str, float]()
    with workers(engine, 1):
        async with engine.client() as submit:
            for number in range(size.submits + 5):
                called[str(number)] = time.time()
                await submit("work", Task(str(file), str(number), 0))
                await until(lambda n=number: len([*begun(file)]) > n)
                await anyio.sleep(0.03)
    times = [at - called[name] for name, at in begun(file)]
    # The first ones fill caches and open connections.
    return times[5:]


@dataclass(frozen=True)
class Throughput:
    """Runs a second, and for each of them the processor seconds of all processes, and transactions."""

    speed: float
    processor: float
    transactions: float


async def throughput(
    engine: Engine, folder: Path, server: int, runs: int, number: int
) -> Throughput:
    """Let this process submit runs, and this number of workers drive them."""
    file = str(folder / f"{engine.name}-runs")
    before = await transactions(engine)
    with workers(engine, number) as pids:
        async with engine.client() as submit:
            names = iter(range(runs))

            async def submit_some() -> None:
                for name in names:
                    await submit("work", Task(file, str(name), 0))

            def processor_seconds() -> float:
                return time.process_time() + sum(map(processor_seconds_of, (server, *pids)))

            used, began = processor_seconds(), time.perf_counter()
            async with anyio.create_task_group() as group:
                for _ in range(SUBMITTERS):
                    group.start_soon(submit_some)
            await until(lambda: engine.completed() == runs, 0.1)
            speed = runs / (time.perf_counter() - began)
            processor = (processor_seconds() - used) / runs
    return Throughput(speed, processor, (await transactions(engine) - before) / runs)


async def transactions(engine: Engine) -> int:
    """Return how many transactions were committed in the database of an engine, once it is closed."""
    if not engine.dsn:
        return 0
    # A connection reports its transactions at its end.
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await until(lambda: not count(engine.dsn, others))
    committed = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    return count(engine.dsn, committed)


async def start(engine: Effectflow, folder: Path, server: int, runs: int) -> Throughput:
    """Start runs of one step in this process, one after another."""
    task = Task(str(folder / "started"), "started", 0)
    async with open_store(engine.url) as store:
        env = Env(Checkpoints(store))
        for _ in range(runs // 5):
            await work.start(task).run_or_raise(env)

        def processor_seconds() -> float:
            return time.process_time() + processor_seconds_of(server)

        used, began = processor_seconds(), time.perf_counter()
        for _ in range(runs):
            await work.start(task).run_or_raise(env)
        speed = runs / (time.perf_counter() - began)
        processor = (processor_seconds() - used) / runs
    return Throughput(speed, processor, await transactions(engine) / (runs + runs // 5))


async def death(
    engine: Engine, folder: Path, runs: int, dies: tuple[str, ...], goes_on: tuple[str, ...]
) -> float:
    """Seconds from the death of a worker until all its runs go on. The options are those of workers.

    The second worker of effectflow is there before. That of DBOS is the same executor, started again.
    """
    file = folder / f"{engine.name}-death-{os.urandom(4).hex()}"
    async with engine.client() as submit:
        with workers(engine, 1, *dies) as [pid], ExitStack() as second:
            for number in range(runs):
                await submit("work", Task(str(file), str(number), 3600))
            await until(lambda: len([*begun(file)]) == runs)
            if isinstance(engine, Effectflow):
                second.enter_context(workers(engine, 1, *goes_on))
                await anyio.sleep(1)
            killed_at = time.time()
            os.kill(pid, signal.SIGKILL)
            if isinstance(engine, Dbos):
                second.enter_context(workers(engine, 1, *goes_on))
            await until(lambda: len([*begun(file)]) == 2 * runs)
    return max(at for _, at in begun(file)) - killed_at


def memory_of(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def processor_seconds_of(pid: int) -> float:
    """Of a process and its children, also those that have ended."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended meanwhile.
            continue
        if file.parent.name == str(pid):
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == str(pid):
            ticks += sum(map(int, fields[11:13]))
    return ticks / TICKS


async def memory_of_waiting(engine: Engine, runs: int) -> float:
    """Bytes that a worker has more for each run that it took and that waits for a message."""
    with workers(engine, 1) as [pid]:
        async with engine.client() as submit:
            # As many before, so that caches are full and what it needs at once is there.
            for number in range(runs):
                await submit("wait", f"before-{number}")
            await anyio.sleep(10)
            before = memory_of(pid)
            for number in range(runs):
                await submit("wait", str(number))
            await anyio.sleep(10)
            return (memory_of(pid) - before) / runs


async def idle(engine: Effectflow, seconds: float) -> tuple[int, float]:
    """Bytes of memory of an idle worker, and its processor time per second."""
    with workers(engine, 1) as [pid]:
        await anyio.sleep(2)
        began = processor_seconds_of(pid)
        await anyio.sleep(seconds)
        return memory_of(pid), (processor_seconds_of(pid) - began) / seconds


class Stage:
    """A PostgreSQL server, by its address and process id, and a folder. Each measurement has new
    databases.
    """

    def __init__(self, dsn: str, server: int, folder: Path) -> None:
        self.folder, self.server = folder, server
        self._dsn = dsn

    def engines(self) -> list[Engine]:
        return [self.on_postgres(), Dbos("DBOS", self._new_database()), self.on_sqlite()]

    def on_postgres(self) -> Effectflow:
        return Effectflow("PostgreSQL", self._new_database())

    def on_sqlite(self) -> Effectflow:
        return Effectflow("SQLite", f"sqlite:///{self.folder}/{os.urandom(4).hex()}.db")

    def _new_database(self) -> str:
        name = f"bench_{os.urandom(4).hex()}"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._dsn.replace("/postgres?", f"/{name}?")


def show_submit(stage: Stage, size: Size) -> None:
    times: dict[str, list[float]] = {}
    for _ in range(size.rounds):
        for engine in stage.engines():
            found = anyio.run(submit_times, engine, stage.folder, size)
            times.setdefault(engine.name, []).extend(found)
    for name, found in times.items():
        *_, late = statistics.quantiles(found, n=100)
        print(
            f"submit to first step, {name}: median {statistics.median(found) * 1e3:.0f} ms"
            f"{'' if name == 'DBOS' else ' (at most 30 ms)'}, "
            f"p99 {late * 1e3:.0f} ms ({len(found)} runs)"
        )


def show_throughput(stage: Stage, size: Size) -> None:
    for number in (1, 2, 4):
        found: dict[str, list[Throughput]] = {}
        for _ in range(size.rounds):
            for engine in stage.engines():
                one = anyio.run(throughput, engine, stage.folder, stage.server, size.runs, number)
                found.setdefault(engine.name, []).append(one)
        for name, ours in found.items():
            median = median_of(ours)
            pairs = [*zip(ours, found["DBOS"], strict=True)]
            faster = statistics.median(one.speed / dbos.speed for one, dbos in pairs)
            less = statistics.median(one.processor / dbos.processor for one, dbos in pairs)
            goals = name == "PostgreSQL" and GOALS[number]
            print(
                f"submitted runs with {number} workers, {name}: {median.speed:.0f}/s, each with "
                f"{median.processor * 1e3:.1f} ms of processors{goals or ''} and "
                f"{median.transactions:.1f} transactions; {faster:.1f} times the speed of DBOS (at least "
                f"1.5) and {less:.0%} of its processor time"
            )


GOALS = {1: " (at most 5)", 2: "", 4: " (at most 7)"}
"""The milliseconds of processors for a run on PostgreSQL, by the number of workers."""


def median_of(found: list[Throughput]) -> Throughput:
    return Throughput(
        *(
            statistics.median(getattr(one, of) for one in found)
            for of in ("speed", "processor", "transactions")
        )
    )


def show_start(stage: Stage, size: Size) -> None:
    for make, goal in ((stage.on_postgres, "at most 3 ms, 3"), (stage.on_sqlite, "at most 1.5 ms")):
        engines = [make() for _ in range(size.rounds)]
        median = median_of(
            [
                anyio.run(start, engine, stage.folder, stage.server, size.starts)
                for engine in engines
            ]
        )
        print(
            f"a started run of one step, {engines[0].name}: {median.processor * 1e3:.2f} ms of "
            f"processors and {median.transactions:.1f} transactions ({goal}), {median.speed:.0f}/s"
        )


def show_death(stage: Stage, size: Size) -> None:
    lease = str(LEASE_SECONDS)
    same, elsewhere = (lease, "here"), (lease, "elsewhere")
    cases: list[tuple[str, Callable[[], Engine], tuple[str, ...], tuple[str, ...], float]] = []
    for make in (stage.on_postgres, stage.on_sqlite):
        cases.append(("same host", make, same, same, 1.0))
        cases.append(("another host", make, elsewhere, same, LEASE_SECONDS + 1))
    cases.append(("restarted", lambda: stage.engines()[1], ("one",), ("one",), 0.0))
    for what, make, dies, goes_on, bound in cases:
        times: list[float] = []
        for _ in range(size.rounds):
            engine = make()
            times.append(anyio.run(death, engine, stage.folder, size.held, dies, goes_on))
        target = f" (at most {bound:g} s)" if bound else ""
        print(
            f"death of a worker with {size.held} runs, {make().name}, {what}: "
            f"median {statistics.median(times):.2f} s, slowest {max(times):.2f} s{target}"
        )


def show_waiting(stage: Stage, size: Size) -> None:
    for engine in stage.engines():
        each = anyio.run(memory_of_waiting, engine, size.waiting)
        print(
            f"memory of a worker for each of {size.waiting:,} runs that wait, {engine.name}: ",
            end="",
        )
        print(f"{each:,.0f} bytes")


def show_idle(stage: Stage, size: Size) -> None:
    for engine in (stage.on_postgres(), stage.on_sqlite()):
        empty, _ = anyio.run(idle, engine, 1.0)

        async def fill_store(url: str = engine.url) -> None:
            async with opened(url) as store:
                await fill(store, size.suspended)

        anyio.run(fill_store)
        full, processor = anyio.run(idle, engine, size.idle_seconds)
        each = (full - empty) / size.suspended
        print(
            f"idle beside {size.suspended:,} suspended runs, {engine.name}: {full / 2**20:.0f} MiB, "
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], help="all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, postgres_server(Path(name) / "postgres") as url:
        pid = (Path(name) / "postgres" / "postmaster.pid").read_text().split()[0]
        stage = Stage(url, int(pid), Path(name))
        for measure in options.measures or MEASURES:
            MEASURES[measure](stage, QUICK if options.quick else Size())


if __name__ == "__main__":
    main()
