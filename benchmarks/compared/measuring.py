"""What the programs beside this file share: each measures one system of `compare.py`.

A program is started with the name of a measure and its options as JSON, and prints its figures as JSON.
It needs only the standard library, and psycopg for measures on PostgreSQL. Needs Linux, for /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

__all__ = [
    "LIMIT",
    "LIMITED_WORKERS",
    "PADDING",
    "Item",
    "Meter",
    "Service",
    "Submit",
    "Work",
    "begun",
    "is_postgres",
    "main",
    "measured_values",
    "note",
    "nothing",
    "processor_seconds",
    "until",
    "value_of",
    "with_wal",
    "workers",
]

TICKS = os.sysconf("SC_CLK_TCK")
PADDING = "x" * 186
"""Makes the state of a counting run, `{"n": ..., "pad": PADDING}`, 200 bytes of JSON."""
SUBMITTERS = 16
HELD = 10
"""Runs that a process has when it is killed."""
LIMITED_WORKERS = 2
"""Workers of a queue with limits."""
LIMIT = 32
"""Runs of such a queue at the same time."""
BEGUN = 5
"""Runs of a tenant with many that have begun when others submit theirs."""


@dataclass(frozen=True)
class Item:
    name: str
    price: float
    count: int


def value_of(kind: str, size: int) -> Any:
    """A large value that a step returns."""
    match kind:
        case "bytes":
            return os.urandom(size)
        case "items":
            return [Item(f"item {number}", number / 3, number) for number in range(size)]
        case "ints":
            return [*range(size)]
        case _:
            raise ValueError(kind)


def processor_seconds(workers: Collection[int], server: int | None) -> float:
    """Of processes and their children, also those that have ended.

    Of a database server in nanoseconds, as its processes have one thread, and of workers in clock ticks.
    """
    ticks = nanoseconds = 0
    for folder in Path("/proc").glob("[0-9]*") if workers or server else ():
        try:
            fields = [*map(int, (folder / "stat").read_text().rpartition(")")[2].split()[1:15])]
            pid, parent = int(folder.name), fields[0]
            if server in (pid, parent):
                nanoseconds += int((folder / "schedstat").read_text().split()[0])
        except OSError:
            # It has ended meanwhile.
            continue
        if pid in workers or parent in workers:
            ticks += sum(fields[10:12])
        if pid in workers or pid == server:
            ticks += sum(fields[12:14])
    return ticks / TICKS + nanoseconds / 1e9


@dataclass
class Meter:
    """Collects figures. Processor time is that of this process, of the server and of given others."""

    server: int | None = None
    url: str | None = None
    """Where to count the bytes that are stored, if they are to be counted."""
    bytes_before: int = 0
    figures: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def __call__(self, name: str, *, pids: Collection[int] = ()) -> Generator[None]:
        """Add the seconds that the block takes, as `NAME.wall` and `NAME.cpu`."""
        self.bytes_before = stored_bytes(self.url) if self.url else 0
        others = processor_seconds(pids, self.server)
        own, began = time.process_time(), time.perf_counter()
        yield
        self.figures[f"{name}.wall"] = time.perf_counter() - began
        own = time.process_time() - own
        self.figures[f"{name}.cpu"] = own + processor_seconds(pids, self.server) - others


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql:")


def with_wal(path: str) -> sqlite3.Connection:
    """Open a database of SQLite whose file is in WAL mode, for a peer that leaves the mode to its user.

    The file keeps the mode. `synchronous` is FULL where nothing else is said.
    """
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def stored_bytes(url: str, *, compact: bool = False) -> int:
    """Bytes of all tables and indexes. What a later VACUUM gives back does not count if `compact`."""
    if not is_postgres(url):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            if compact:
                database.execute("VACUUM")
            [[pages]] = database.execute("PRAGMA page_count").fetchall()
            [[size]] = database.execute("PRAGMA page_size").fetchall()
            return pages * size
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        if compact:
            connection.execute("VACUUM FULL")
        [[size]] = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm')"
            " AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        return size


# Runs that a client submits and workers drive


@dataclass(frozen=True)
class Work:
    """What a submitted run does in its step: note its name in a file, then take some seconds.

    A run with a key is submitted to a queue with limits, one of which is for each key.
    """

    file: str
    name: str
    seconds: float = 0
    key: str = ""


def note(work: Work) -> None:
    """Note in the file that the run begins its step, and when."""
    file = os.open(work.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{work.name} {time.time()}\n".encode())
    os.close(file)


def begun(file: Path) -> list[tuple[str, float]]:
    """Which runs have begun their step, and when."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], float(line.split()[1])) for line in lines]


Submit: TypeAlias = Callable[[Work], Awaitable[object]]


@dataclass(frozen=True)
class Service:
    """How a system takes runs of one step."""

    client: Callable[[str], AbstractAsyncContextManager[Submit]]
    """Submits to the database of a URL, which it prepares."""
    worker: Callable[..., None]
    """Works at a URL until it is killed, and prints "ready" as soon as it takes runs. With `has_limits`,
    its queue has limits: `LIMIT` runs, or that part of it for each worker, and one of each key at a time.
    """
    completed: LiteralString
    """The query of how many runs have completed. A file of SQLite is attached as `effectflow`."""


@contextmanager
def workers(url: str, number: int, **options: object) -> Generator[list[subprocess.Popen[bytes]]]:
    """Start workers of this program, and kill them at the end."""
    command = [sys.executable, sys.argv[0], "worker", json.dumps({"url": url, **options})]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("a worker did not start")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def until(is_so: Callable[[], bool], seconds: float = 0.01) -> None:
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110, another process makes it so
            await asyncio.sleep(seconds)


@contextmanager
def counting(url: str, query: LiteralString) -> Generator[Callable[[], int]]:
    """Yield what returns the number that a query asks for."""
    if is_postgres(url):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            yield lambda: connection.execute(query).fetchall()[0][0]
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("ATTACH ? AS effectflow", (url.removeprefix("sqlite:///"),))
        yield lambda: database.execute(query).fetchall()[0][0]


async def submit_all(submit: Submit, all_work: Iterable[Work]) -> None:
    """Submit runs, some of them at the same time."""
    left = iter(all_work)

    async def submit_some() -> None:
        for work in left:
            await submit(work)

    await asyncio.gather(*(submit_some() for _ in range(SUBMITTERS)))


async def throughput(
    service: Service,
    meter: Meter,
    url: str,
    folder: str,
    runs: int,
    number: int,
    keys: int = 0,
) -> None:
    """Submit runs from this process, and wait until workers have completed them.

    With keys, the runs are those of a queue with limits.
    """
    file = str(Path(folder) / os.urandom(4).hex())

    def work(name: int) -> Work:
        return Work(file, str(name), key=f"tenant-{name % keys}" if keys else "")

    async with service.client(url) as submit:
        with (
            workers(url, number, has_limits=keys > 0) as processes,
            counting(url, service.completed) as completed,
        ):
            # The first ones fill caches and open connections.
            await submit_all(submit, map(work, range(2 * number)))
            await until(lambda: completed() == 2 * number)
            with meter("runs", pids=[process.pid for process in processes]):
                await submit_all(submit, map(work, range(runs)))
                await until(lambda: completed() == runs + 2 * number, 0.05)


async def latency(service: Service, meter: Meter, url: str, folder: str, submits: int) -> None:
    """Submit one run at a time, while a worker has nothing else to do."""
    file, called = Path(folder) / os.urandom(4).hex(), dict[str, float]()
    async with service.client(url) as submit:
        with workers(url, 1):
            for number in range(submits + 3):
                called[str(number)] = time.time()
                await submit(Work(str(file), str(number)))
                await until(lambda n=number: len(begun(file)) > n, 0.002)
                # Not in step with a worker that polls.
                await asyncio.sleep(0.03 + 0.01 * (number * 7 % 10))
    for name, at in begun(file)[3:]:
        meter.figures[f"submit-{name}"] = at - called[name]


async def fairness(
    service: Service, meter: Meter, url: str, folder: str, queued: int, others: int
) -> None:
    """Submit the first run of other tenants, while one has many runs in the queue."""
    file, called = Path(folder) / os.urandom(4).hex(), dict[str, float]()
    async with service.client(url) as submit:
        await submit_all(submit, (Work(str(file), "big", key="big") for _ in range(queued)))
        with workers(url, LIMITED_WORKERS, has_limits=True):
            await until(lambda: len(begun(file)) >= BEGUN)
            for other in range(others):
                name = f"other-{other}"
                called[name] = time.time()
                await submit(Work(str(file), name, key=name))
                await until(lambda name=name: name in dict(begun(file)), 0.002)
                await asyncio.sleep(0.03 + 0.01 * (other * 7 % 10))
    if len(begun(file)) == queued + others:
        raise RuntimeError("all runs of the first tenant had begun: there was nothing to wait for")
    at = dict(begun(file))
    meter.figures.update({f"first-{name}": at[name] - called[name] for name in called})


async def death(service: Service, meter: Meter, url: str, folder: str) -> None:
    """Kill a worker with some runs, start it again, and wait until all of them go on."""
    file = Path(folder) / os.urandom(4).hex()
    async with service.client(url) as submit:
        with workers(url, 1) as [process]:
            for number in range(HELD):
                await submit(Work(str(file), str(number), 3600))
            await until(lambda: len(begun(file)) == HELD)
            killed_at = time.time()
            process.kill()
            process.wait()
        with workers(url, 1):
            await until(lambda: len(begun(file)) == 2 * HELD)
    meter.figures["death.wall"] = max(at for _, at in begun(file)) - killed_at


# Measures


async def nothing() -> None:
    pass


Record: TypeAlias = Callable[[str, Any], Awaitable[Callable[[], Awaitable[object]]]]
"""Records a value of a kind as the output of a step of a run that then fails; gives how to resume it."""


async def measured_values(
    meter: Meter,
    record: Record,
    values: Iterable[tuple[str, int]],
    between: Callable[[], Awaitable[object]] = nothing,
) -> None:
    """Record and resume a run for each value. One of each kind before, so that everything is imported.

    What a system does between the two, which is not measured, depends on how it lets a run fail.
    """
    for kind, size in values:
        resume = await record(kind, value_of(kind, 10))
        await between()
        await resume()
        value = value_of(kind, size)
        with meter(f"record-{kind}-{size}"):
            resume = await record(kind, value)
        await between()
        with meter(f"resume-{kind}-{size}"):
            await resume()


Measure: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


def main(service: Service | None = None, **measures: Measure) -> None:
    """Measure what the command line says. `steps` also measures the bytes of a step."""
    name, options = sys.argv[1], json.loads(sys.argv[2])
    if name == "worker":
        assert service is not None
        service.worker(**options)
        return
    meter = Meter(options.pop("server", None), options["url"] if name == "steps" else None)
    if service is not None:
        for measure in (throughput, fairness, latency, death):
            measures[measure.__name__] = lambda meter, measure=measure, **options: measure(
                service, meter, **options
            )
    asyncio.run(measures[name](meter, **options))
    if meter.url:
        stored = stored_bytes(meter.url, compact=True) - meter.bytes_before
        meter.figures["bytes"] = stored
    print(json.dumps(meter.figures))
