"""What the pages cost: the first byte of each, and what a worker loses while browsers watch.

    python benchmarks/pages.py [runs] [watching] [run] [sqlite | postgres] [NUMBER]

- runs: the page of runs on 1,000,000 runs (or NUMBER), without filters and with each: the milliseconds
  until the first byte, the best of four requests to a server in another process. At most 100. A prefix or
  a range of times of many runs has no bound if few of these match the other filters.
- watching: a worker drives runs of ten steps, in rounds without and with 200 browsers that watch the page
  of runs. Its processor time for a run may grow by at most 5 %: the median of the ratios of adjacent
  rounds. Beside it stands the same for adjacent rounds that are both not watched, which is the noise of
  the machine. What no noise touches is counted: the calls of Python functions in all threads of the
  worker for a run, which may grow by at most 5 %, too. The worker, the client and the PostgreSQL server
  have one core, the pages and the browsers another one, because they could be on other machines. Where a
  process cannot be kept on a core, the latter have the lowest priority instead.
- run: the pages about a run of 10,000 steps: for each, the milliseconds until it is complete, for the
  first reader of a server, the median and the worst of five servers, and for the next reader, and its
  bytes. The median has at most 300 ms, and the page at most 1,000,000 bytes.

The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import anyio
import finding
from servers import postgres_server

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Batch, Claimed, DueRuns
from effectflow.service import App, Client, Worker
from effectflow.stores import open_store
from effectflow.stores._sql import CREATED_COLUMNS
from effectflow.testing.forwarding import ForwardingStore

FIRST_BYTE = 100.0
MOST_GROWTH = 1.05
BROWSERS, STEPS = 200, 10
TIMED, COUNTED = (12, 500), (3, 100)
"""How many times rounds are repeated, and the runs of a round. To count calls takes much longer."""
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


# The page of runs.


def queries(runs: int) -> dict[str, str]:
    """Return the query strings of the page of runs, by what they are."""

    def at(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat()

    newest, middle, oldest = finding.NEWEST, finding.NEWEST - runs / 2, finding.NEWEST - runs
    texts: dict[str, dict[str, object]] = {
        "all": {},
        "from the middle": {"after": f"{middle},"},
        "failed": {"status": "failed"},
        "crashed": {"status": "crashed"},
        "running and failed": {"status": ["running", "failed"]},
        "workflow": {"workflow": "w4"},
        "workflow, rare": {"workflow": "rare"},
        "workflow, unknown": {"workflow": "unknown"},
        "workflow and status": {"workflow": "w3", "status": "completed"},
        "tenant": {"tenant": "large"},
        "tenant, rare": {"tenant": "t10"},
        "tenant and workflow": {"tenant": "large", "workflow": "w3"},
        "tenant, another workflow": {"tenant": "large", "workflow": "w4"},
        "prefix": {"prefix": "w9@"},
        "prefix, rare": {"prefix": "old-"},
        "prefix, unknown": {"prefix": "nothing"},
        "since": {"since": at(newest - 1_000)},
        "since, all": {"since": at(oldest)},
        "before": {"before": at(middle)},
        "since, tenant and workflow": {"since": at(middle), "tenant": "large", "workflow": "w3"},
        "queue": {"queue": "w4"},
        "queue, unknown": {"queue": "unknown"},
        "parent": {"parent": "campaign"},
        "parent and prefix": {"parent": "campaign", "prefix": "w3@"},
    }
    return {name: urlencode(query, doseq=True) for name, query in texts.items()}


def measure_runs(kind: str, runs: int) -> bool:
    """Print the time until the first byte of each page. Return whether the bound is kept."""
    print(
        f"{kind}, {runs:,} runs: the first byte of the page of runs, in ms (at most {FIRST_BYTE:g})"
    )
    with store(kind) as (url, insert):
        anyio.run(built, url, insert, runs)
        with served(url) as port:
            kept = [
                first_byte(port, name, query) <= FIRST_BYTE for name, query in queries(runs).items()
            ]
    return all(kept)


async def built(url: str, insert: finding.Insert, runs: int) -> None:
    """Fill a store with the runs of `finding`."""
    async with open_store(url):
        columns = ", ".join(CREATED_COLUMNS)
        await anyio.to_thread.run_sync(insert, columns, finding.rows(runs))


def first_byte(port: int, name: str, query: str) -> float:
    """Print and return the milliseconds until the first byte of a page, the best of four."""
    times: list[float] = []
    length = 0
    for _ in range(4):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        began = time.perf_counter()
        connection.request("GET", f"/?{query}")
        answer = connection.getresponse()
        answer.read(1)
        times.append((time.perf_counter() - began) * 1e3)
        length = len(answer.read())
        assert answer.status == 200, answer.status
        connection.close()
    missed = "   MISSED" if min(times) > FIRST_BYTE else ""
    print(f"  {name:<30}{min(times):8.1f} ms, {length / 1e3:4.0f} kB{missed}", flush=True)
    return min(times)


# Browsers that watch.


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints


@step
def pack(number: int) -> Effect[object, str, int]:
    return pure(number)


@workflow
def ship(count: int) -> Do[Shop, str, int]:
    for number in range(count):
        yield from pack(number)
    return count


def app_of(store: CheckpointStore) -> App[Shop]:
    return App([ship], environment=Shop, checkpoints=Checkpoints(store))


class Counted(ForwardingStore):
    """Counts what a worker asks of its store."""

    appends = looks = 0

    async def append(self, lease: Lease, batch: Batch) -> None:
        self.appends += 1
        await super().append(lease, batch)

    async def claim_due(self, due: DueRuns) -> Claimed:
        self.looks += 1
        return await super().claim_due(due)


async def work(url: str, *, counts_calls: bool = False) -> None:
    """Drive the runs of a store. Tell at each line of the input what that has taken."""
    store, calls = Counted(open_store(url)), itertools.count()

    def note(frame: object, event: str, argument: object) -> None:
        if event == "call":
            next(calls)

    if counts_calls:
        sys.setprofile(note)
        threading.setprofile(note)
    told_on_request(lambda: (time.process_time(), store.appends, store.looks, next(calls)))
    async with Worker(app_of(store)):
        await anyio.sleep_forever()


def told_on_request(told: Callable[[], Sequence[float]]) -> None:
    """Print these numbers at each line of the input."""

    def answer() -> None:
        for _ in sys.stdin:
            print(json.dumps(told()), flush=True)

    threading.Thread(target=answer, daemon=True).start()


def ask(process: subprocess.Popen[str]) -> list[float]:
    """Return what a process tells on request."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


@dataclass(frozen=True)
class Round:
    """What a worker took for a run, and the pages meanwhile.

    Attributes:
        processor, appends, looks: seconds of the processor, appends to journals and looks for due runs.
        calls: the calls of Python functions; 0 if they are not counted.
        rate: the runs in a second.
        pages: the seconds of the processor that the pages took in a second.
        memory: the megabytes of the server of the pages at the end; 0 where that is unknown.
    """

    processor: float
    appends: float
    looks: float
    calls: float
    rate: float
    pages: float
    memory: float


def measure_watching(kind: str) -> bool:
    """Print what a worker takes for a run, watched and not. Return whether the bound is kept."""
    print(f"\n{kind}: a worker, without and with {BROWSERS} browsers that watch the page of runs")
    with ExitStack() as stack:
        stack.enter_context(on_core(0))
        url, _ = stack.enter_context(store(kind))
        with on_core(1):
            pages = stack.enter_context(program("serve for browsers", url))
        assert pages.stdout is not None
        port = int(pages.stdout.readline())
        with program("work", url) as worker:
            timed = anyio.run(rounds, url, port, worker, pages, *TIMED)
        with program("work and count", url) as worker:
            counted = anyio.run(rounds, url, port, worker, pages, *COUNTED)
    names = f"{'processor':>12}{'appends':>10}{'looks':>8}{'calls':>9}{'runs a second':>16}"
    print(f"  {'for a run':<15}{names}")
    calls = list[float]()
    for name, is_watched in (("not watched", False), ("watched", True)):
        one, count = median_of(timed, is_watched), median_of(counted, is_watched).calls
        calls.append(count)
        print(
            f"  {name:<15}{one.processor * 1e3:9.2f} ms{one.appends:10.2f}{one.looks:8.2f}"
            f"{count:9,.0f}{one.rate:16.0f}"
        )
    print(
        f"  the server of the pages: {one.pages:.1%} of a core while it is watched, and {one.memory:.0f} "
        f"MB ({timed[0][1].memory:.0f} MB before)"
    )
    growth, noise = list[float](), list[float]()
    for (was_watched, before), (is_watched, after) in pairwise(timed):
        ratio = after.processor / before.processor
        if was_watched is is_watched:
            noise.append(ratio)
        else:
            growth.append(ratio if is_watched else 1 / ratio)
    print(
        f"  calls, watched / not watched:          {calls[1] / calls[0]:.3f} (at most {MOST_GROWTH:g})"
    )
    print(f"  processor, watched / not watched:      {shown(growth)} (at most {MOST_GROWTH:g})")
    print(f"  processor, not watched / not watched:  {shown(noise)}: the noise")
    return max(calls[1] / calls[0], statistics.median(growth)) <= MOST_GROWTH


def median_of(found: Sequence[tuple[bool, Round]], is_watched: bool) -> Round:
    """Return the medians of the rounds that were watched, or of the others."""
    columns = zip(*(astuple(one) for each, one in found if each is is_watched), strict=True)
    return Round(*map(statistics.median, columns))


def shown(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f}, half of the pairs from {low:.2f} to {high:.2f}"


async def rounds(
    url: str,
    port: int,
    worker: subprocess.Popen[str],
    pages: subprocess.Popen[str],
    times: int,
    runs: int,
) -> list[tuple[bool, Round]]:
    """Return the rounds, and whether each was watched: a third of them, with one before and after."""
    found: list[tuple[bool, Round]] = []
    async with Client(app_of(open_store(url))) as client:
        await one_round(client, worker, pages, runs)
        for number in range(3 * times + 1):
            is_watched = number % 3 == 2
            with browsers(port) if is_watched else nullcontext():
                found.append((is_watched, await one_round(client, worker, pages, runs)))
    return found


async def one_round(
    client: Client, worker: subprocess.Popen[str], pages: subprocess.Popen[str], runs: int
) -> Round:
    before, (processor_before, _), began = ask(worker), ask(pages), time.perf_counter()
    handles = [await client.submit(ship, STEPS) for _ in range(runs)]
    for handle in handles:
        (await handle.result(timeout=120)).unwrap()
    took = time.perf_counter() - began
    after, (processor, memory) = ask(worker), ask(pages)
    spent, appends, looks, calls = (
        (now - then) / runs for now, then in zip(after, before, strict=True)
    )
    share = (processor - processor_before) / took
    return Round(spent, appends, looks, calls, runs / took, share, memory)


@contextmanager
def browsers(port: int) -> Iterator[None]:
    """Let browsers in another process watch the page of runs, from when each has it."""
    with ExitStack() as stack:
        with on_core(1):
            process = stack.enter_context(program("browse", str(port)))
        assert process.stdout is not None
        assert process.stdout.readline() == "all have the page\n"
        yield


async def browse(port: int) -> None:
    """Watch the page of runs as many browsers do."""
    shown: set[int] = set()

    async def watch(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n")
        while line := await reader.readline():
            if line.startswith(b"event: page") and number not in shown:
                shown.add(number)
                if len(shown) == BROWSERS:
                    print("all have the page", flush=True)

    async with asyncio.TaskGroup() as group:
        for number in range(BROWSERS):
            group.create_task(watch(number))


# The pages about a run.

PAGES_OF_A_RUN = (
    "/run?",
    "/run?by=steps&first=5000&",
    "/run?step=pack%235000&",
    "/run/history?",
    "/run/history?at=19000&",
    "/run/data?",
    "/run/drawing?",
)
MOST_TIME, MOST_BYTES, STEPS_OF_A_RUN, SERVERS = 300.0, 1_000_000, 10_000, 5


def measure_run(kind: str) -> bool:
    """Measure the pages about a run of many steps. Return whether all keep the bounds."""
    kept = True
    with store(kind) as (url, _):
        many = ship.start(STEPS_OF_A_RUN, run_id="many")
        anyio.run(many.run_or_raise, Shop(Checkpoints(open_store(url))))
        print(
            f"\nA run of {STEPS_OF_A_RUN:,} steps, {kind}: ms first (median, worst), ms next, bytes"
        )
        for page in PAGES_OF_A_RUN:
            first, following, size = list[float](), list[float](), 0
            for _ in range(SERVERS):
                # Each page is the first one of a server, which has to read all of the run.
                with served(url) as port:
                    # What a server imports and compiles once is not counted.
                    complete(port, f"{page}id=none")
                    took, size = complete(port, f"{page}id=many")
                    first.append(took)
                    following.append(complete(port, f"{page}id=many")[0])
            kept = kept and statistics.median(first) <= MOST_TIME and size <= MOST_BYTES
            times = f"{statistics.median(first):7.0f} {max(first):7.0f} {min(following):7.0f}"
            print(f"  {page:28} {times} {size:9,}", flush=True)
    return kept


def complete(port: int, path: str) -> tuple[float, int]:
    """Return the milliseconds until a page is complete, and its bytes."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return (time.perf_counter() - began) * 1000, len(body)


# Programs and stores.


def serve(url: str) -> None:
    """Serve the pages of a store at a free port, which is printed."""
    from effectflow.ui import create_app
    from effectflow.ui.server import PageServer

    pages = create_app(Checkpoints(open_store(url)))
    told_on_request(lambda: (time.process_time(), megabytes()))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        print(listener.getsockname()[1], flush=True)
        PageServer(pages, pages.state.feeds).run([listener])


def megabytes() -> float:
    """Return the memory of this process, or 0 where the system does not tell it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@contextmanager
def on_core(number: int) -> Iterator[None]:
    """Keep on one core what this thread does in this block, and the programs that it starts."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORES[number % len(CORES)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def give_way() -> None:
    if not hasattr(os, "sched_setaffinity"):
        os.nice(19)


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run this file with these arguments, until the end of the block."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def served(url: str, how: str = "serve") -> Iterator[int]:
    """Serve the pages of a store in another process, and yield the port."""
    with program(how, url) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def store(kind: str) -> Iterator[tuple[str, finding.Insert]]:
    """Make an empty store, and yield its URL and what inserts rows into it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind == "postgres":
            url = stack.enter_context(postgres_server(folder / "data"))
            yield url, finding.insert_into_postgres(url)
        else:
            path = folder / "runs.db"
            yield f"sqlite:///{path}", finding.insert_into_sqlite(path)


def main() -> None:
    match sys.argv[1:]:
        case ["serve", url]:
            serve(url)
        case ["browse", port]:
            give_way()
            asyncio.run(browse(int(port)))
        case ["serve for browsers", url]:
            give_way()
            serve(url)
        case ["work", url]:
            anyio.run(work, url)
        case ["work and count", url]:
            anyio.run(partial(work, url, counts_calls=True))
        case words:
            measure(words)


def measure(words: list[str]) -> None:
    runs = next((int(word) for word in words if word.isdigit()), 1_000_000)
    kinds = [word for word in words if word in ("sqlite", "postgres")] or ["sqlite", "postgres"]
    measures: dict[str, Callable[[str], bool]] = {
        "runs": lambda kind: measure_runs(kind, runs),
        "watching": measure_watching,
        "run": measure_run,
    }
    chosen = [word for word in words if word in measures] or [*measures]
    kept = [measures[name](kind) for name in chosen for kind in kinds]
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
