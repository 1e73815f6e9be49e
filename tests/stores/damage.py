"""Damage the data of a store from outside, as a disk or another program does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import psycopg
import redis

from effectflow.checkpoint import CheckpointStore

__all__ = ["change_entry", "change_status", "changed", "remove_entry"]


def changed(body: bytes) -> bytes:
    """Return the bytes of an entry with the last digit of its digest changed."""
    return body[:-1] + (b"0" if body[-1:] != b"0" else b"1")


async def change_entry(store: CheckpointStore, number: int, run_id: str = "r") -> None:
    """Change the last byte of an entry, in every file that has it."""
    body = (await store.read(run_id))[number - 1].body
    match kind_of(store):
        case "memory":
            in_memory(store)[run_id].bodies[number - 1] = changed(body)
        case "file":
            seal = body.rpartition(b"\n")[2]
            for path in files_of(store, run_id):
                path.write_bytes(path.read_bytes().replace(seal, changed(seal)))
        case "redis":
            client, key = in_redis(store, run_id)
            client.hset(key, str(number), changed(client.hget(key, str(number))))
        case _:
            await spread(store, run_id)
            change = f"UPDATE entries SET body = ? WHERE sequence = ? AND {OF_RUN}"
            in_database(store, change, b"\n" + changed(body), number, run_id)


async def remove_entry(store: CheckpointStore, number: int, run_id: str = "r") -> None:
    """Remove an entry, which leaves a gap unless it is the last one."""
    if kind_of(store) == "redis":
        client, key = in_redis(store, run_id)
        client.hdel(key, str(number))
    else:
        await spread(store, run_id)
        removal = f"DELETE FROM entries WHERE sequence = ? AND {OF_RUN}"
        in_database(store, removal, number, run_id)


async def spread(store: CheckpointStore, run_id: str) -> None:
    """Give each entry of a run a row of its own, so that the others stay as they are."""
    records = await store.read(run_id)
    in_database(store, f"DELETE FROM entries WHERE {OF_RUN}", run_id)
    insertion = (
        "INSERT INTO entries (run, sequence, written_at, body)"
        " SELECT number, ?, ?, ? FROM runs WHERE run_id = ?"
    )
    for one in records:
        in_database(store, insertion, one.sequence, one.written_at, b"\n" + one.body, run_id)


async def change_status(
    store: CheckpointStore, run_id: str = "r", status: str = "unheard of"
) -> None:
    """Let a store call a run by another status, by default one that makes it unreadable."""
    match kind_of(store):
        case "file":
            for path in files_of(store, run_id):
                path.write_bytes(path.read_bytes()[:20])
        case "redis":
            client, key = in_redis(store, run_id)
            summary: bytes = client.hget(key, "state")
            for known in (b"pending", b"running", b"completed"):
                summary = summary.replace(known, status.encode())
            client.hset(key, "state", summary)
        case _:
            in_database(store, "UPDATE runs SET status = ? WHERE run_id = ?", status, run_id)


async def change_time(store: CheckpointStore, run_id: str = "r") -> None:
    """Replace the time at which a run was created by a number that is no time."""
    match kind_of(store):
        case "file":
            for path in files_of(store, run_id):
                path.write_bytes(b"1e999")
        case "redis":
            client, key = in_redis(store, run_id)
            state: bytes = client.hget(key, "state")
            client.hset(key, "state", state.replace(b'"created_at":', b'"created_at":1e300,"was":'))
        case "sqlite":
            in_database(store, "UPDATE runs SET created_at = 9e999 WHERE run_id = ?", run_id)
        case _:
            in_database(store, "UPDATE runs SET created_at = 'NaN' WHERE run_id = ?", run_id)


async def change_details(store: CheckpointStore, run_id: str = "r") -> None:
    """Replace the details of a run by what are none, and damage its fencing token."""
    match kind_of(store):
        case "file":
            for path in files_of(store, run_id):
                path.write_bytes(b"9" * 5000)
        case "redis":
            client, key = in_redis(store, run_id)
            state = orjson.loads(client.hget(key, "state"))
            state["summary"]["details"] = {"dead_letters": "x"}
            client.hset(key, mapping={"state": orjson.dumps(state), "held": b"\xff"})
        case "sqlite":
            damaged = "UPDATE runs SET details = CAST(x'ff' AS TEXT), fence = ? WHERE run_id = ?"
            in_database(store, damaged, 2**63 - 1, run_id)
        case _:
            damaged = "UPDATE runs SET details = 'x', fence = ? WHERE run_id = ?"
            in_database(store, damaged, 2**63 - 1, run_id)


OF_RUN = "run = (SELECT number FROM runs WHERE run_id = ?)"
"""The condition for an entry of a run in a database."""


def kind_of(store: CheckpointStore) -> str:
    return type(store).__name__.removesuffix("Store").lower()


def in_memory(store: Any) -> dict[str, Any]:
    return store._runs


def files_of(store: Any, run_id: str) -> Iterator[Path]:
    return (store.directory / "sessions" / run_id).rglob("*.json")


def in_database(store: Any, statement: str, *parameters: object) -> None:
    """Execute a statement with `?` as placeholder in the database of a store."""
    if kind_of(store) == "sqlite":
        with closing(sqlite3.connect(store.path)) as database, database:
            database.execute(statement, parameters)
        return
    assert kind_of(store) == "postgres"
    with psycopg.connect(**store._parameters) as connection:
        schema, marked = store._schema, statement.replace("?", "%s")
        connection.execute(f'SET search_path TO "{schema}"')  # type: ignore[arg-type]
        connection.execute(marked, parameters)  # type: ignore[arg-type]


def in_redis(store: Any, run_id: str) -> tuple[Any, str]:
    key = f"{store._prefix}:run:{sha256(run_id.encode()).hexdigest()}"
    return redis.Redis.from_url(store._url), key
