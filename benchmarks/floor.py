"""The least code that does the essential work of a durable step, as a floor for what one costs.

Each step encodes BeforeStep and Completed as JSON, digests its arguments, chains the entries by
SHA-256, and waits until they are durable before it runs: in memory, or on SQLite through one writer
thread with group commit (WAL, synchronous=FULL; fence and sequence checked in the same transaction). It
has no errors, cancellation, scopes, observers or types. `core.py` measures it beside effectflow.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ["MemoryRun", "SqliteRun", "Writer", "count", "drive"]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    function: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]

    def __iter__(self) -> Generator[Step, Any, Any]:
        return (yield self)


class MemoryRun:
    """A journal that is kept in memory."""

    def __init__(self) -> None:
        self.buffer: list[bytes] = []
        self.stored: list[bytes] = []
        self.digest = bytes(32)
        self.occurrences: dict[str, int] = {}

    def add(self, entry: dict[str, Any]) -> None:
        body = orjson.dumps(entry)
        self.digest = hashlib.sha256(self.digest + body).digest()
        self.buffer.append(body + self.digest)

    async def save(self) -> None:
        self.stored += self.buffer
        self.buffer.clear()

    async def execute(self, step: Step) -> Any:
        occurrence = self.occurrences[step.name] = self.occurrences.get(step.name, 0) + 1
        path = step.name if occurrence == 1 else f"{step.name}#{occurrence}"
        arguments = orjson.dumps(step.arguments, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(arguments).hexdigest()[:16]
        self.add({"entry": "before_step", "step": path, "arguments": digest, "at": time.time()})
        await self.save()
        began = time.monotonic()
        value = await step.function(None, *step.arguments)
        output = orjson.loads(orjson.dumps(value))
        duration = time.monotonic() - began
        self.add(
            {
                "entry": "completed",
                "step": path,
                "output": output,
                "duration": duration,
                "at": time.time(),
            }
        )
        return value


class Writer:
    """One thread that commits together all appends that are waiting."""

    def __init__(self, path: str) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(path,), daemon=True).start()

    def _work(self, path: str) -> None:
        database = sqlite3.connect(path, isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE runs (run TEXT PRIMARY KEY, fence INT, length INT) WITHOUT ROWID",
            (
                "CREATE TABLE entries (run TEXT, sequence INT, at REAL, body BLOB,"
                " PRIMARY KEY (run, sequence)) WITHOUT ROWID"
            ),
        ):
            database.execute(statement)
        while True:
            batch = [self.queue.get()]
            database.execute("BEGIN IMMEDIATE")
            done = 0
            while done < len(batch):
                self._append(database, *batch[done][:3])
                done += 1
                if done == len(batch):
                    try:
                        while len(batch) < 1000:
                            batch.append(self.queue.get_nowait())
                    except queue.Empty:
                        pass
            database.execute("COMMIT")
            loop = batch[0][4]
            loop.call_soon_threadsafe(
                lambda waiting=batch: [one[3].set_result(None) for one in waiting]
            )

    def _append(
        self, database: sqlite3.Connection, run: str, after: int, bodies: list[bytes]
    ) -> None:
        row = database.execute("SELECT fence, length FROM runs WHERE run = ?", (run,)).fetchone()
        assert row in (None, (1, after))
        database.execute("INSERT OR REPLACE INTO runs VALUES (?, 1, ?)", (run, after + len(bodies)))
        now = time.time()
        rows = [(run, sequence, now, body) for sequence, body in enumerate(bodies, after + 1)]
        database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)


class SqliteRun(MemoryRun):
    """A journal that a `Writer` keeps."""

    def __init__(self, writer: Writer, run: str) -> None:
        super().__init__()
        self.writer, self.run, self.durable = writer, run, 0

    async def save(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        bodies, self.buffer = self.buffer, []
        self.writer.queue.put((self.run, self.durable, bodies, waiter, loop))
        await waiter
        self.durable += len(bodies)


async def drive(body: Generator[Step, Any, Any], run: MemoryRun) -> Any:
    value = None
    while True:
        try:
            step = body.send(value)
        except StopIteration as end:
            return end.value
        value = await run.execute(step)


async def _increment(_env: object, state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1, "pad": state["pad"]}


def count(steps: int) -> Generator[Step, Any, int]:
    state = {"n": 0, "pad": "x" * 200}
    for _ in range(steps):
        state = yield from Step("increment", _increment, (state,))
    return int(state["n"])
