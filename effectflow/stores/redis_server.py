"""What is to be known of a Redis server: its URL, what it keeps, and what its errors mean."""

from __future__ import annotations

import socket
from typing import Any, TypeAlias

from redis.asyncio.connection import parse_url
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

__all__ = ["Client", "checked_url", "durability_of", "evicting_policy_of", "is_lost", "is_refused"]

Client: TypeAlias = Any
"""A `redis.asyncio.Redis`, whose own types are in part unknown to the checkers."""


def checked_url(url: str) -> str:
    """A URL, if it can be used. What is wrong with it is not shown, as it may have a password."""
    try:
        options = parse_url(url)
    except ValueError:
        pass
    else:
        if "decode_responses" in options:
            raise ValueError(
                "the URL of the Redis server has decode_responses, which the store cannot do with: "
                "take it out"
            )
        return url
    raise ValueError(
        "the URL of the Redis server cannot be read. Write redis://USER:PASSWORD@HOST:PORT/NUMBER or "
        "unix:///path/to/socket, with %XX for special characters of the password, such as %2F for /"
    )


async def durability_of(client: Client) -> str:
    """What survives, as far as the server tells."""
    info = await client.info("persistence")
    if not info.get("aof_enabled"):
        return "memory"
    try:
        settings = {
            **await client.config_get("appendfsync"),
            **await client.config_get("no-appendfsync-on-rewrite"),
        }
    except RedisError:
        # Servers of others often keep their configuration to themselves.
        return "process"
    always = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
    return "full" if settings == always else "process"


async def evicting_policy_of(client: Client) -> str | None:
    """How the server chooses keys to remove when its memory is full; None if ours are safe."""
    info = await client.info("memory")
    policy = str(info.get("maxmemory_policy", ""))
    # The other policies remove nothing, or only keys that are to expire anyway.
    return policy if info.get("maxmemory") and policy.startswith("allkeys") else None


def is_lost(error: Exception) -> bool:
    """Whether trying again may be of use."""
    return isinstance(error, LostConnection | NoAnswer | OSError) or _is_busy(error)


def is_refused(error: Exception) -> bool:
    """Whether a command that may be tried again has not been done, for sure."""
    # Nobody was there to send to, when the connection was made.
    nobody = ConnectionRefusedError | FileNotFoundError | socket.gaierror
    is_unsent = isinstance(error.__context__, nobody)
    return is_unsent or isinstance(error, BusyLoadingError) or _is_busy(error)


def _is_busy(error: Exception) -> bool:
    """Whether the server waits for somebody's script to end."""
    return isinstance(error, ResponseError) and str(error).startswith("BUSY")
