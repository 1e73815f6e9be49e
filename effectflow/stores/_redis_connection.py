"""The connections of a RedisStore: URLs, what the server keeps, errors, and subscriptions."""

from __future__ import annotations

import inspect
import logging
import socket
from typing import Any

from redis.asyncio.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    Connection,
    SSLConnection,
    parse_url,
)
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError as LostConnection,
    RedisError,
    ResponseError,
    TimeoutError as NoAnswer,
)

from effectflow.stores._changes import Watcher
from effectflow.stores._servers import Subscription
from effectflow.stores._url_options import unknown_option

logger = logging.getLogger(__name__)


_OPTIONS = {
    *("path", "connection_class"),
    *URL_QUERY_ARGUMENT_PARSERS,
    *(
        name
        for kind in (*Connection.__mro__, *SSLConnection.__mro__)
        for name in inspect.signature(kind.__init__).parameters
    ),
}
"""What redis-py reads in a URL. It would fail late, and say nothing about the URL, with anything else."""


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
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise ValueError(unknown_option("redis", min(unknown)))
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


async def warn_of_losses(client: Any, store: object, durability: str) -> None:
    """Log a warning if the server does not keep all runs."""
    if durability == "memory":
        logger.warning(
            "the server of %r keeps nothing on disk, so its runs are lost when it ends; "
            "set `appendonly yes` in its configuration",
            store,
        )
    memory = await client.info("memory")
    policy = str(memory.get("maxmemory_policy", ""))
    # The other policies remove nothing, or only keys that expire.
    if memory.get("maxmemory") and policy.startswith("allkeys"):
        logger.warning(
            "the server of %r removes runs when its memory is full (maxmemory-policy %s); "
            "set `maxmemory-policy noeviction` in its configuration",
            store,
            policy,
        )


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


class Subscriber(Subscription):
    """Receives the changes that scripts publish.

    Parameters:
        client: a client that only this uses. It is closed with the subscription.
        timeout: how long (in seconds) to wait for an answer of the server.
    """

    def __init__(self, client: Any, channel: str, *, timeout: float) -> None:
        self._client = client
        self._channel = channel
        self._timeout = timeout
        self._messages = client.pubsub()

    async def begin(self) -> None:
        """Subscribe to the channel. Raise RedisError if the server does not answer."""
        try:
            await self._messages.subscribe(self._channel)
            if await self._messages.get_message(timeout=self._timeout) is None:
                raise NoAnswer("it does not answer a subscription")
        except BaseException:
            await self.close()
            raise

    async def relay(self, watcher: Watcher) -> None:
        is_silent = False
        while True:
            message = await self._messages.get_message(timeout=self._timeout)
            if message is not None:
                is_silent = False
                if message["type"] == "message":
                    watcher.notice(message["data"].decode())
            elif is_silent:
                raise NoAnswer("it does not answer")
            else:
                is_silent = True
                await self._messages.ping()

    async def close(self) -> None:
        await self._messages.aclose()
        await self._client.aclose()
