"""What values, checkpoints and stores cost, each against a floor or a bound, in one process.

    pip install -e '.[file,postgres,redis]' --group dev
    python benchmarks/stores.py

PostgreSQL has a page of its own, `postgres.py`, and the steps of SQLite have `durable.py`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import orjson
from servers import postgres_server, redis_server

from effectflow import RunStatus, SqliteStore
from effectflow.checkpoint import (
    Batch,
    BeforeStep,
    Checkpoint,
    CheckpointStore,
    Completed,
    Entry,
    Owner,
    RunSummary,
    Seal,
    Started,
    fold,
    read_checkpoint,
)
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.store import Record
from effectflow.checkpoint.values import KnownTypes, from_tree, to_tree
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore

ROUNDS = 7
SUMMARY = RunSummary("w", RunStatus.RUNNING, 0.0)
NO_TYPES = KnownTypes.of()


def least(count: int, run: Callable[[], object]) -> float:
    """Seconds for each of `count`, of the round that was disturbed least."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - began) / count)
    return min(times)


def one_kilobyte() -> dict[str, object]:
    lines: list[dict[str, object]] = [
        {"item": f"item-{number:04}", "price": number * 1.25, "tags": ["a", "b"], "gift": True}
        for number in range(15)
    ]
    return {"number": 7, "customer": "Ann", "lines": lines}


def values() -> None:
    value = one_kilobyte()
    entry = Completed("step", to_tree(value, types=NO_TYPES), 0.5, 1.0)
    body, _ = Seal().close(entry, first_digest("r"))
    record = Record(1, 0.0, body)

    seal, first = Seal(), first_digest("r")

    def entry_there_and_back() -> None:
        seal.close(entry, first)
        seal.open(record, "r", first)

    def value_there_and_back() -> None:
        from_tree(to_tree(value, types=NO_TYPES), types=NO_TYPES)

    def bare() -> None:
        orjson.loads(orjson.dumps(value))

    floor = least(2000, bare)
    for what, mine in (
        (f"seal and open an entry of {len(body):,} bytes", least(2000, entry_there_and_back)),
        ("its value to plain data and back", least(2000, value_there_and_back)),
    ):
        print(f"{what}: {mine * 1e6:.1f} us (to reach: 15), {mine / floor:.1f} times orjson alone")


def long_run(steps: int) -> list[Entry]:
    entries: list[Entry] = [
        Started("r", "w", "standard", "1", "f", {"n": 1}, {}, journal=1, at=1.0)
    ]
    for number in range(steps):
        entries.append(BeforeStep(f"step#{number}", 1, at=number + 0.25))
        entries.append(Completed(f"step#{number}", {"total": number * 17}, 0.25, number + 0.5))
    return entries


def sizes() -> None:
    checkpoint = fold(long_run(20), "r")
    indented = checkpoint.to_json()
    compact = orjson.dumps(checkpoint.to_tree())
    binary = checkpoint.to_binary()
    assert Checkpoint.from_binary(binary) == checkpoint
    print(
        f"a checkpoint of 20 steps: {len(binary):,} bytes in binary, "
        f"{len(binary) / len(compact):.0%} of compact JSON (to reach: 50%), "
        f"{len(binary) / len(indented):.0%} of indented JSON (to reach: 33%)"
    )


def bare_saves(folder: Path, saves: int) -> float:
    """Seconds for each file that is written, synced, and put in the place of the last one."""
    began = time.perf_counter()
    for _ in range(saves):
        path = folder / "new"
        with path.open("wb") as file:
            file.write(b"x" * 2000)
            file.flush()
            os.fsync(file.fileno())
        path.rename(folder / "checkpoint")
    return (time.perf_counter() - began) / saves


async def saves(folder: Path, count: int) -> float:
    """Seconds for each save of FileStore."""
    async with FileStore(folder) as store:
        owner = str(Owner.new())
        run = await store.create("r", [b"{}\nx"], summary=SUMMARY, owner=owner, seconds=600)
        assert run is not None
        assert run.lease is not None
        began = time.perf_counter()
        for number in range(count):
            await store.append(run.lease, Batch([b'{"entry":"completed"}\nx'], number + 1))
        return (time.perf_counter() - began) / count


def files(folder: Path) -> None:
    ratios: list[float] = []
    for number in range(ROUNDS):
        place = folder / str(number)
        place.mkdir()
        floor = bare_saves(place, 100)
        mine = anyio.run(saves, place, 100)
        ratios.append(mine / floor)
    print(
        f"FileStore: a save is {statistics.median(ratios):.1f} times write, fsync and rename "
        "(to reach: 3)"
    )


async def load_time(make: Callable[[], CheckpointStore]) -> float:
    """Seconds to read, check and fold a run of 1,000 steps."""
    seal, digest = Seal(), first_digest("r")
    bodies: list[bytes] = []
    for entry in long_run(1000):
        body, digest = seal.close(entry, digest)
        bodies.append(body)
    async with make() as store:
        await store.create("r", bodies, summary=SUMMARY)
        return min([await seconds(lambda: read_checkpoint(store, "r")) for _ in range(ROUNDS)])


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def loads(folder: Path) -> None:
    with redis_server(folder) as redis, postgres_server(folder / "postgres") as postgres:
        stores: dict[str, Callable[[], CheckpointStore]] = {
            "memory": MemoryStore,
            "file": lambda: FileStore(folder / "file"),
            "sqlite": lambda: SqliteStore(folder / "runs.db"),
            "postgres": lambda: PostgresStore(postgres),
            "redis": lambda: RedisStore(redis),
        }
        for name, make in stores.items():
            loaded = anyio.run(load_time, make)
            print(f"load a run of 1,000 steps from {name}: {loaded * 1e3:.1f} ms (to reach: 20)")


def main() -> None:
    values()
    sizes()
    with tempfile.TemporaryDirectory() as name:
        files(Path(name))
        loads(Path(name))


if __name__ == "__main__":
    main()
