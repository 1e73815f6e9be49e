"""Processes that compete for the runs of a store. Tests may kill them.

Each of their results is a line of JSON, with the number of the process, once it is durable. The first is
its process id, once it has opened the store, and the last is null. They are forked from one process,
because it takes long to import what they need.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

import anyio

from effectflow import stores
from effectflow.checkpoint.errors import RunBusy, RunEnded
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, DueRuns, Queue, ServiceStore

SUMMARY = RunSummary("w", RunStatus.PENDING, 0.0)
QUEUES = {"held": Queue("held", 5), "started": Queue("started", per_second=5)}
DONE = replace(SUMMARY, status=RunStatus.COMPLETED)
GO = "signal:go"


Place: TypeAlias = tuple[str, str, str]
"""Where a store is: the arguments of `opened`."""


def opened(kind: str, place: str, name: str) -> ServiceStore:
    """Return the store of this name at a folder or server."""
    match kind:
        case "sqlite":
            return stores.SqliteStore(Path(place) / f"{name}.db")
        case "postgres":
            return stores.PostgresStore(place, schema=name)
        case "redis":
            return stores.RedisStore(place, prefix=name)
        case _:
            raise ValueError(kind)


own_number = 0
"""The number of this process among its competitors."""


def tell(result: object) -> None:
    os.write(1, json.dumps([own_number, result]).encode() + b"\n")


def due_runs(*workflows: str, most: int = 4) -> DueRuns:
    owners = [str(Owner.new()) for _ in range(most)]
    return DueRuns(frozenset(workflows), owners, 60, time.time(), QUEUES)


async def claim(store: ServiceStore) -> None:
    """Claim runs until nothing is due. Keep them, and tell which they are."""
    while runs := (await store.claim_due(due_runs("w", "held", most=3))).runs:
        tell([one.info.run_id for one in runs])


async def start(store: ServiceStore) -> None:
    """Claim and end runs whose starts are limited, until there are none.

    Tell of each the times before and after it was claimed.
    """
    before = time.time()
    while (claimed := await store.claim_due(due_runs("started"))).runs or await left(store):
        for one in claimed.runs:
            tell([before, time.time()])
            done = replace(one.info.summary, status=RunStatus.COMPLETED, due_at=None)
            await store.append(one.lease, Batch([], 1, done, release=True))
        before = time.time()


async def left(store: ServiceStore) -> bool:
    await anyio.sleep(0.05)
    return any(not info.summary.status.has_ended for info in await store.find())


async def drive(store: ServiceStore) -> None:
    """Drive runs that are due to their ends, of three entries each, forever."""
    while True:
        for one in (await store.claim_due(due_runs("w", most=2))).runs:
            lease, length = one.lease, one.info.length
            while length < 4:
                await store.append(lease, Batch([b"%d" % length], length))
                length += 1
            done = replace(one.info.summary, status=RunStatus.COMPLETED, due_at=None)
            await store.append(lease, Batch([b"end"], length, done, release=True))
            tell(one.info.run_id)
        await anyio.sleep(0.001)


async def send(store: ServiceStore) -> None:
    """Send messages to a run until it has ended. Tell their keys."""
    number, own = 0, Owner.new().claim
    while True:
        key = f"{own} {number}"
        try:
            assert await store.send("r", GO, key=key)
        except RunEnded:
            return
        tell(key)
        number += 1


async def take(store: ServiceStore) -> None:
    """Take the messages to a run, each with an entry that has its key, forever."""
    await take_until(store, None)


async def end(store: ServiceStore) -> None:
    """Take 20 messages to a run. Then end it, with any number of them received."""
    await take_until(store, 20)


async def take_until(store: ServiceStore, length: int | None) -> None:
    lease = await claimed(store)
    after = len(await store.read("r"))
    while length is None or after < length:
        messages = await store.mailbox("r")
        for message in messages:
            await store.append(lease, Batch([message.key.encode()], after, takes=[message.number]))
            after += 1
            tell(message.key)
        await anyio.sleep(0.001)
    await store.append(lease, Batch([], after, DONE, release=True))


async def claimed(store: ServiceStore) -> Lease:
    while True:
        with suppress(RunBusy):
            return (await store.claim("r", owner=str(Owner.new()), seconds=60)).lease
        await anyio.sleep(0.005)


ROLES: dict[str, Callable[[ServiceStore], Awaitable[None]]] = {
    work.__name__: work for work in (claim, start, drive, send, take, end)
}


def compete(role: str, place: Place) -> None:
    async def work() -> None:
        async with opened(*place) as store:
            tell(os.getpid())
            await ROLES[role](store)
            tell(None)
            # It goes on to hold what it has claimed.
            await anyio.sleep_forever()

    anyio.run(work)


def import_all() -> None:
    """Import what each process would import when it opens its store."""
    assert stores.PostgresStore
    assert stores.RedisStore
    import_module("anyio._backends._asyncio")
    gc.freeze()


def main() -> None:
    """Fork a process for each line of the standard input: its number, its role, and its store."""
    global own_number
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import_all()
    for line in sys.stdin:
        own_number, role, place = json.loads(line)
        if os.fork() == 0:
            try:
                compete(role, place)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
