"""What a server keeps of a store, as text: written from one server, and read into another."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from typing import Any

import psycopg
import redis

from effectflow.checkpoint.journal_reader import write_bytes


def of_redis(url: str) -> str:
    """Return the strings and hashes of a server. Its sorted sets follow from them."""
    with redis.Redis.from_url(url) as client:
        keys: Any = client.keys("effectflow:*")
        # What expires has no meaning for long, and `:server` names the server.
        kept = [key for key in sorted(keys) if client.ttl(key) == -1 and b":server" not in key]
        content: dict[str, Any] = {}
        for key in kept:
            kind: Any = client.type(key)
            if kind == b"string":
                value: Any = client.get(key)
                content[key.decode()] = write_bytes(value)
            elif kind == b"hash":
                fields: Any = client.hgetall(key)
                content[key.decode()] = {
                    field.decode(): write_bytes(value) for field, value in sorted(fields.items())
                }
    return json.dumps(content, indent=0)


def into_redis(url: str, dump: str) -> None:
    """Replace the content of a server by a dump."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        for key, value in json.loads(dump).items():
            if value.keys() <= {"text", "base64"}:
                client.set(key, _bytes_of(value))
            else:
                client.hset(key, mapping={field: _bytes_of(one) for field, one in value.items()})


def _bytes_of(written: dict[str, str]) -> bytes:
    return written["text"].encode() if "text" in written else b64decode(written["base64"])


def of_postgres(url: str, *options: str) -> str:
    """Return the schema `effectflow` of a server and its rows, as SQL. `options` are those of pg_dump."""
    # Its own version of the command, since an older one refuses a newer server.
    with psycopg.connect(url) as connection:
        query = "SELECT setting FROM pg_config WHERE name = 'BINDIR'"
        [folder] = connection.execute(query).fetchone() or [""]
    command = [f"{folder}/pg_dump", "--inserts", "--no-owner", "--no-privileges", *options]
    dumped = subprocess.run(
        [*command, "--schema=effectflow", url], capture_output=True, text=True, check=True
    )
    # Without settings, some of which other versions do not know, and the commands of psql.
    lines = [
        line
        for line in dumped.stdout.splitlines()
        if line and not line.startswith(("SET ", "SELECT pg_catalog.set_config", "\\", "--"))
    ]
    return "\n".join(["SET check_function_bodies = false;", *lines, ""])


def into_postgres(url: str, dump: str) -> None:
    """Replace the schema `effectflow` of a server by a dump."""
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS effectflow CASCADE")
        connection.execute(dump.encode())
