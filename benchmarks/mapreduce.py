"""What an item of a map-reduce job costs, against worker tasks that draw from a bounded queue.

    python benchmarks/mapreduce.py

Ten thousand trivial items, at most one hundred at once. By hand, one hundred anyio tasks receive
from a memory object stream of one hundred places, and add up what they get: no keys, no groups, nothing
recorded. The job is run without a run around it, and as a run in a MemoryStore, which puts every entry
through the bytes, digests and checks of any other store.

Then the cost of an item on SQLite, which should be the same for jobs of any length, and the peak memory
of such jobs and of their resumption, each in a process of its own. What grows with the length of a job
is the set of its keys; a resume reads the whole journal, and keeps what each step gave.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
from returns.result import Failure

from effectflow import Checkpoints, Effect, SqliteStore, fail, pure
from effectflow.effects import asks
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore

ITEMS = 10_000
LIMIT = 100
ROUNDS = 9


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    breaks_at: int | None = None


def numbers(count: int) -> range:
    return range(count)


def unchanged(number: int) -> Effect[App, str, int]:
    return pure(number)


def total(values: list[int]) -> Effect[App, str, int]:
    return pure(sum(values))


def unless_broken(values: list[int]) -> Effect[App, str, int]:
    """Fails where the whole sum is found, in the first life: at the very end of the job."""
    found = sum(values)

    def breaks(app: App) -> bool:
        return app.breaks_at == found

    return asks(breaks).and_then(lambda now: fail("stop here") if now else pure(found))


job = MapReduce("job", items=numbers, map=unchanged, reduce=total, key=str, limit=LIMIT)


async def by_hand() -> int:
    send, receive = anyio.create_memory_object_stream[int](LIMIT)
    found = 0

    async def work() -> None:
        nonlocal found
        async with receive.clone() as mine:
            async for number in mine:
                found += await trivial(number)

    async with anyio.create_task_group() as tasks, receive, send:
        for _ in range(LIMIT):
            tasks.start_soon(work)
        for number in range(ITEMS):
            await send.send(number)
        await send.aclose()
    return found


async def trivial(number: int) -> int:
    return number


async def without_a_run() -> int:
    return (await job.body(ITEMS).run_or_raise(App(Checkpoints(MemoryStore())))).value


async def in_memory() -> int:
    async with MemoryStore() as store:
        return (await job.start(ITEMS).run_or_raise(App(Checkpoints(store)))).value


WAYS: dict[str, Callable[[], Awaitable[int]]] = {
    "100 anyio tasks and a queue": by_hand,
    "the job's effect, outside a run": without_a_run,
    "a run in a MemoryStore": in_memory,
}


async def compare() -> None:
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        # One after another in each round: a machine changes its mind from one second to the next.
        for name, way in WAYS.items():
            began = time.perf_counter()
            assert await way() == sum(range(ITEMS))
            times[name].append(time.perf_counter() - began)
    floor, *_ = times.values()
    for name, found in times.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(found, floor, strict=True))
        print(f"{min(found) / ITEMS * 1e6:6.1f} us an item  {ratio:4.1f} x  {name} (to reach: 5)")


async def one_life(path: Path, items: int, life: str, what: str) -> float:
    """Run a job that fails at its end, or resume it.

    Gives microseconds for each item, or the megabytes that Python had allocated at most.
    """
    async with SqliteStore(path) as store:
        app = App(Checkpoints(store), sum(range(items)) if life == "run" else None)
        if what == "memory":
            tracemalloc.start()
        began = time.perf_counter()
        ended = await breaking.start(items, run_id="r").run(app)
        seconds = time.perf_counter() - began
        assert isinstance(ended, Failure) is (life == "run")
    return tracemalloc.get_traced_memory()[1] / 1e6 if what == "memory" else seconds / items * 1e6


breaking = MapReduce(
    "breaking", items=numbers, map=unchanged, reduce=unless_broken, key=str, limit=LIMIT
)


def in_a_process(path: Path, items: int, life: str, what: str) -> float:
    command = [sys.executable, __file__, str(path), str(items), life, what]
    return float(subprocess.check_output(command, text=True))


def main() -> None:
    anyio.run(compare)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for items, rounds in ((1_000, 5), (10_000, 3), (100_000, 1)):
            for life in ("run", "resume"):
                cost = min(
                    in_a_process(folder / f"{items}.{number}.db", items, life, "time")
                    for number in range(rounds)
                )
                memory = in_a_process(folder / f"{items}.memory.db", items, life, "memory")
                print(
                    f"{life:>6} of {items:>7,} items on SQLite: {cost:5.1f} us an item, "
                    f"{memory:6.1f} MB at most"
                )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        arguments = (Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
        print(anyio.run(one_life, *arguments))
    else:
        main()
