"""A process that competes for the runs of a store with others like it. Its tests may kill it.

It prints each of its results as a line of JSON, once that is durable.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio

from effectflow.checkpoint import (
    CheckpointStore,
    DueRuns,
    Lease,
    Limit,
    Owner,
    RunBusy,
    RunEnded,
    RunStatus,
    RunSummary,
)
from effectflow.stores import FileStore, PostgresStore, RedisStore, SqliteStore

SUMMARY = RunSummary("w", "standard", "1", RunStatus.PENDING, 0.0)
LIMITS = {"held": Limit(at_once=5), "started": Limit(per_second=5)}
DONE = replace(SUMMARY, status=RunStatus.COMPLETED)
GO = "signal:go"


def opened(kind: str, place: str, name: str) -> CheckpointStore:
    """Return the store of this name at a folder or server."""
    match kind:
        case "file":
            return FileStore(Path(place) / name)
        case "sqlite":
            return SqliteStore(Path(place) / f"{name}.db")
        case "postgres":
            return PostgresStore(place, schema=name)
        case "redis":
            return RedisStore(place, prefix=name)
        case _:
            raise ValueError(kind)


def tell(result: object) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def due_runs(*workflows: str, most: int = 4) -> DueRuns:
    owners = [str(Owner.new()) for _ in range(most)]
    return DueRuns(frozenset(workflows), owners, 60, time.time(), LIMITS)


async def claim(store: CheckpointStore) -> None:
    """Claim runs until nothing is due. Keep them, and tell which they are."""
    while runs := (await store.claim_due(due_runs("w", "held", most=3))).runs:
        tell([one.info.run_id for one in runs])


async def start(store: CheckpointStore) -> None:
    """Claim and end runs whose starts are limited, until there are none. Tell when each was claimed."""
    while (claimed := await store.claim_due(due_runs("started"))).runs or await left(store):
        for one in claimed.runs:
            tell(time.time())
            done = replace(one.info.summary, status=RunStatus.COMPLETED, due_at=None)
            await store.append(one.lease, [], after=1, summary=done, release=True)


async def left(store: CheckpointStore) -> bool:
    await anyio.sleep(0.01)
    return any(not info.summary.status.has_ended for info in await store.find())


async def drive(store: CheckpointStore) -> None:
    """Drive runs that are due to their ends, of three entries each, for ever."""
    while True:
        for one in (await store.claim_due(due_runs("w", most=2))).runs:
            lease, length = one.lease, one.info.length
            while length < 4:
                await store.append(lease, [b"%d" % length], after=length)
                length += 1
            done = replace(one.info.summary, status=RunStatus.COMPLETED, due_at=None)
            await store.append(lease, [b"end"], after=length, summary=done, release=True)
            tell(one.info.run_id)
        await anyio.sleep(0.001)


async def send(store: CheckpointStore) -> None:
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


async def take(store: CheckpointStore) -> None:
    """Take the messages to a run, each with an entry that has its key, for ever."""
    await take_until(store, None)


async def end(store: CheckpointStore) -> None:
    """Take 20 messages to a run. Then end it, whatever it has received."""
    await take_until(store, 20)


async def take_until(store: CheckpointStore, length: int | None) -> None:
    lease = await claimed(store)
    after = len(await store.read("r"))
    while length is None or after < length:
        messages = await store.mailbox("r")
        for message in messages:
            await store.append(lease, [message.key.encode()], after=after, takes=[message.number])
            after += 1
            tell(message.key)
        await anyio.sleep(0.001)
    await store.append(lease, [], after=after, summary=DONE, release=True)


async def claimed(store: CheckpointStore) -> Lease:
    while True:
        with suppress(RunBusy):
            return await store.claim("r", owner=str(Owner.new()), seconds=60)
        await anyio.sleep(0.005)


ROLES: dict[str, Callable[[CheckpointStore], Awaitable[None]]] = {
    work.__name__: work for work in (claim, start, drive, send, take, end)
}


def main() -> None:
    role, *place = sys.argv[1:]

    async def work() -> None:
        async with opened(*place) as store:
            tell("ready")
            sys.stdin.readline()
            await ROLES[role](store)

    anyio.run(work)


if __name__ == "__main__":
    main()
