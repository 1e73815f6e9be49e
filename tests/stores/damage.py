"""Damage the data of a store from outside, as a disk or another program does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from hashlib import sha256
from typing import Any

import psycopg
import redis

from effectflow.checkpoint import CheckpointStore
from effectflow.stores import FileStore, MemoryStore, PostgresStore, RedisStore, SqliteStore

__all__ = ["change_entry", "change_status", "changed", "remove_entry"]


def changed(body: bytes) -> bytes:
    """Return the bytes of an entry with the last digit of its digest changed."""
    return body[:-1] + (b"0" if body[-1:] != b"0" else b"1")


async def change_entry(store: CheckpointStore, number: int, run_id: str = "r") -> None:
    """Change the last byte of an entry, in every file that has it."""
    body = (await store.read(run_id))[number - 1].body
    match store:
        case MemoryStore():
            store._runs[run_id].bodies[number - 1] = changed(body)
        case FileStore():
            seal = body.rpartition(b"\n")[2]
            for path in (store.directory / "sessions" / run_id).rglob("*.json"):
                path.write_bytes(path.read_bytes().replace(seal, changed(seal)))
        case SqliteStore():
            in_database(
                store, "UPDATE entries SET body = ? WHERE sequence = ?", changed(body), number
            )
        case PostgresStore():
            on_server(
                store, "UPDATE entries SET body = %s WHERE sequence = %s", changed(body), number
            )
        case RedisStore():
            client, key = in_redis(store, run_id)
            client.hset(key, str(number), changed(client.hget(key, str(number))))
        case _:
            raise AssertionError(store)


async def remove_entry(store: CheckpointStore, number: int, run_id: str = "r") -> None:
    """Remove an entry, which leaves a gap unless it is the last one."""
    match store:
        case SqliteStore():
            in_database(store, "DELETE FROM entries WHERE sequence = ?", number)
        case PostgresStore():
            on_server(store, "DELETE FROM entries WHERE sequence = %s", number)
        case RedisStore():
            client, key = in_redis(store, run_id)
            client.hdel(key, str(number))
        case _:
            raise AssertionError(store)


async def change_status(store: CheckpointStore, status: str, run_id: str = "r") -> None:
    """Let a store call a run by another status, which it may not know."""
    match store:
        case SqliteStore():
            in_database(store, "UPDATE runs SET status = ?", status)
        case PostgresStore():
            on_server(store, "UPDATE runs SET status = %s", status)
        case RedisStore():
            client, key = in_redis(store, run_id)
            client.hset(
                key, "summary", client.hget(key, "summary").replace(b"completed", status.encode())
            )
        case _:
            raise AssertionError(store)


def in_database(store: SqliteStore, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute(statement, parameters)


def on_server(store: PostgresStore, statement: Any, *parameters: object) -> None:
    with psycopg.connect(**store._parameters) as connection:
        connection.execute(f'SET search_path TO "{store._schema}"')  # type: ignore[arg-type]
        connection.execute(statement, parameters)


def in_redis(store: RedisStore, run_id: str) -> tuple[Any, str]:
    key = f"{store._prefix}:run:{sha256(run_id.encode()).hexdigest()}"
    return redis.Redis.from_url(store._url), key
