"""The connection of a RedisStore to its server: URLs, durability, and errors."""

from __future__ import annotations

import socket
from typing import Any

from redis.asyncio.connection import parse_url
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError as LostConnection,
    RedisError,
    ResponseError,
    TimeoutError as NoAnswer,
)


def checked(url: str) -> str:
    """Return the URL if it is usable. The error never shows it, because it may have a password."""
    try:
        options = parse_url(url)
    except ValueError:
        pass
    else:
        if "decode_responses" in options:
            raise ValueError(
                "the URL of the Redis server contains decode_responses, which the store does not "
                "support: remove it"
            )
        return url
    raise ValueError(
        "the URL of the Redis server cannot be parsed. Write redis://USER:PASSWORD@HOST:PORT/NUMBER or "
        "unix:///path/to/socket, with %XX for special characters in the password, such as %2F for /"
    )


async def durability_of(client: Any) -> str:
    """Return what survives a failure, as far as the server reveals its configuration."""
    info = await client.info("persistence")
    if not info.get("aof_enabled"):
        return "memory"
    try:
        settings = {
            **await client.config_get("appendfsync"),
            **await client.config_get("no-appendfsync-on-rewrite"),
        }
    except RedisError:
        # Hosted servers often do not reveal their configuration.
        return "process"
    always = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
    return "full" if settings == always else "process"


def is_lost(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, LostConnection | NoAnswer | OSError) or _is_busy(error)


def is_refused(error: Exception) -> bool:
    """Return whether a lost request was certainly not executed."""
    # The connection could not be made, so nothing was sent.
    unsent = ConnectionRefusedError | FileNotFoundError | socket.gaierror
    is_unsent = isinstance(error.__context__, unsent)
    return is_unsent or isinstance(error, BusyLoadingError) or _is_busy(error)


def _is_busy(error: Exception) -> bool:
    """Return whether the server is busy with another script."""
    return isinstance(error, ResponseError) and str(error).startswith("BUSY")
