"""Write the runs that pin the format: `python -m tests.format.write FOLDER`.

It was executed once for each version of the format and of the layouts, and its files in `stored` stay as
they are. For a new version, write another folder beside.
"""

from __future__ import annotations

import gzip
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from effectflow import App, Checkpoints, Client, Worker
from effectflow.checkpoint import (
    Batch,
    CheckpointStore,
    Encryption,
    Owner,
    RunQuery,
    RunStatus,
    ServiceStore,
    find_run,
    read_checkpoint,
)
from effectflow.checkpoint.entries import Signalled
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.journal_reader import export_run, write_exported
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore
from tests.format import dumps
from tests.format.workflows import (
    FAILING,
    SERVED,
    STARTED,
    Order,
    Shop,
    approval,
    invoice,
    order,
    parcel,
    parent,
    request,
)
from tests.stores.servers import PostgresServer, RedisServer

KEY = bytes(range(32))
"""Signs the run `sealed`."""

ENCRYPTION = Encryption("2026", {"2026": bytes(range(32, 64))})

SEALS: dict[str, dict[str, Any]] = {
    "binary": {"format": "cbor"},
    "sealed": {"key": KEY, "encryption": ENCRYPTION},
}
"""The options of Checkpoints of single runs."""


def checkpoints_of(store: CheckpointStore, run_id: str) -> Checkpoints:
    return Checkpoints(store, **SEALS.get(run_id, {}))


async def write_runs(store: CheckpointStore) -> None:
    """Write runs of every kind and status, with entries of every kind."""
    checkpoints = Checkpoints(store)
    client = Client(checkpoints, by="ann")
    for run_id in ("shipped", "cancelled", "undone"):
        await client.submit(request, run_id, run_id=run_id)
    async with working(store, failing=FAILING):
        ordered = await client.submit(order, Order("book", ("paper", "glue")), run_id="everything")
        for run_id in ("shipped", "cancelled", "undone", "everything"):
            await until(store, run_id, RunStatus.SUSPENDED, waits_for="approval")
        await ordered.send(approval, True, idempotency_key="yes")
        await client.handle(request, "cancelled").cancel()
        await client.handle(request, "undone").send(approval, True, idempotency_key="yes")
        await until(store, "everything", RunStatus.COMPLETED)
        await until(store, "cancelled", RunStatus.CANCELLED)
        await until(store, "undone", RunStatus.FAILED)
        for run_id in ("suspended", "answered"):
            await client.submit(request, run_id, run_id=run_id)
            await until(store, run_id, RunStatus.SUSPENDED)
    async with working(store):
        await client.handle(request, "shipped").send(approval, True, idempotency_key="yes")
        await until(store, "shipped", RunStatus.COMPLETED)
    async with Worker(app_on(store, parent)):
        await client.submit(parent, 7, run_id="parent")
        await until(store, "spawned", RunStatus.PENDING)
    await write_interrupted(store)
    for run_id, (workflow, start) in STARTED.items():
        await workflow.start(start, run_id=run_id).run(Shop(checkpoints, FAILING))
    for run_id in SEALS:
        sealed = Shop(checkpoints_of(store, run_id), frozenset({"write an invoice"}))
        await invoice.start(3, run_id=run_id).run(sealed)
    await write_killed(store)
    # The last, so that nothing drives them.
    await client.handle(request, "answered").send(approval, False, idempotency_key="no")
    await client.submit(request, "pending", run_id="pending", priority=2, context={"tenant": "a"})
    paused = await client.submit(request, "paused", run_id="paused", delay=3600)
    await paused.pause()


@asynccontextmanager
async def working(
    store: CheckpointStore, failing: frozenset[str] = frozenset()
) -> AsyncIterator[None]:
    async with Worker(app_on(store, *SERVED, failing=failing), suspend_after=0.0):
        yield


def app_on(
    store: CheckpointStore, *workflows: Any, failing: frozenset[str] = frozenset()
) -> App[Shop]:
    def shop(checkpoints: Checkpoints) -> Shop:
        return Shop(checkpoints, failing)

    return App[Shop](workflows, environment=shop, checkpoints=Checkpoints(store))


async def until(
    store: CheckpointStore, run_id: str, status: RunStatus, *, waits_for: str = ""
) -> None:
    """Wait until a run has a status and is not held."""
    with anyio.fail_after(30):
        while True:
            info = await find_run(store, run_id)
            if (
                info is not None
                and info.summary.status is status
                and info.lease is None
                and waits_for in info.summary.details.waits_for
            ):
                return
            await anyio.sleep(0.005)


async def write_interrupted(store: CheckpointStore) -> None:
    """Start a run, and stop it while it waits."""
    shop = Shop(Checkpoints(store))
    with anyio.move_on_after(0.5):
        await request.start("interrupted", run_id="interrupted").run(shop)


async def write_killed(store: CheckpointStore) -> None:
    """Write the beginning of a run whose process died: nothing has released its lease."""
    async with MemoryStore() as whole:
        async with working(whole):
            await Client(Checkpoints(whole)).submit(request, "killed", run_id="killed")
            await until(whole, "killed", RunStatus.SUSPENDED)
        run = await export_run(whole, "killed")
    begun = run.bodies[:4]
    due_at = run.summary.created_at
    summary = run.summary.become(RunStatus.RUNNING, due_at=due_at, waits_for="")
    owner = str(Owner.new())
    assert await store.create("killed", begun, summary=summary, owner=owner, seconds=60)


async def copy_runs(source: ServiceStore, target: CheckpointStore) -> None:
    """Copy all runs: their entries unchanged, and the messages that they have not received."""
    # The oldest first, so that each follows its parent.
    for info in reversed(await source.find(RunQuery(limit=None))):
        run_id, digest = info.run_id, first_digest(info.run_id)
        seal = checkpoints_of(source, run_id).seal
        is_open = replace(info.summary, status=RunStatus.RUNNING, parent="")
        first, *others = await source.read(run_id)
        _, digest = seal.open(first, run_id, digest)
        owner = str(Owner.new())
        created = await target.create(
            run_id, [first.body], summary=is_open, owner=owner, seconds=60
        )
        assert created is not None
        assert created.lease is not None
        for record in others:
            entry, digest = seal.open(record, run_id, digest)
            takes: list[int] = []
            if isinstance(entry, Signalled) and isinstance(target, ServiceStore):
                await target.send(run_id, entry.topic, key=entry.key, body=record.body)
                takes = [message.number for message in await target.mailbox(run_id)]
            batch = Batch([record.body], record.sequence - 1, is_open, takes=takes)
            await target.append(created.lease, batch)
        end = Batch((), info.length, info.summary, release=info.lease is None)
        await target.append(created.lease, end)
        if isinstance(target, ServiceStore):
            for message in await source.mailbox(run_id):
                await target.send(run_id, message.topic, key=message.key, body=message.body)


async def saved_machines() -> list[dict[str, str]]:
    """Return a machine after an attempt, and after a transition, in both forms."""
    shop = Shop(Checkpoints(MemoryStore()))
    attempted = await parcel.step(parcel.begin()).run_or_raise(shop)
    packed = await parcel.step(attempted).run_or_raise(shop)
    return [
        {"json": machine.to_json(), "binary": b64encode(machine.to_binary()).decode()}
        for machine in (attempted, packed)
    ]


async def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    async with MemoryStore() as written:
        await write_runs(written)
        runs = sorted(info.run_id for info in await written.find(RunQuery(limit=None)))
        checkpoints: dict[str, Any] = {}
        lines = list[bytes]()
        for run_id in runs:
            seal = checkpoints_of(written, run_id).seal
            checkpoints[run_id] = json.loads(
                (await read_checkpoint(written, run_id, seal)).to_json()
            )
            lines += write_exported(await export_run(written, run_id))
        rows = [f"{json.dumps(run_id)}: {json.dumps(one)}" for run_id, one in checkpoints.items()]
        (folder / "checkpoints.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
        (folder / "exported.jsonl.gz").write_bytes(gzip.compress(b"".join(lines), mtime=0))
        (folder / "machines.json").write_text(json.dumps(await saved_machines(), indent=1))
        with TemporaryDirectory() as temporary:
            path = Path(temporary) / "runs.db"
            async with SqliteStore(path) as store:
                await copy_runs(written, store)
            (folder / "runs.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        async with FileStore(folder / "files", history=1) as store:
            await copy_runs(written, store)
        # What a store makes anew. Links are not the same on all systems.
        (folder / "files" / "sessions" / "latest").unlink()
        rmtree(folder / "files" / "locks")
        with TemporaryDirectory() as temporary, RedisServer(Path(temporary)) as redis:
            async with RedisStore(redis.url) as store:
                await copy_runs(written, store)
            dump = dumps.of_redis(redis.url)
            (folder / "redis.json.gz").write_bytes(gzip.compress(dump.encode(), mtime=0))
        with PostgresServer.with_own_data() as postgres:
            async with PostgresStore(postgres.url) as store:
                await copy_runs(written, store)
            dump = dumps.of_postgres(postgres.url)
            (folder / "postgres.sql.gz").write_bytes(gzip.compress(dump.encode(), mtime=0))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
