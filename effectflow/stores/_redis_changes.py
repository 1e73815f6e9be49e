"""Subscribe to the changes of runs in a RedisStore, which its scripts publish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from redis.exceptions import RedisError, TimeoutError as NoAnswer

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.stores._changes import Watcher

logger = logging.getLogger(__name__)

Persist: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Repeats a request while the connection is lost."""


class Subscriber:
    """Subscribes to the changes of the runs, each time on a new connection.

    Parameters:
        timeout: how long (in seconds) to wait for an answer of the server.
    """

    def __init__(self, new_client: Callable[[], Any], channel: str, *, timeout: float) -> None:
        self._new_client = new_client
        self._channel = channel
        self._timeout = timeout

    async def subscribe(self) -> Any:
        """Return a new subscription. Raise RedisError if the server does not answer."""
        subscription = self._new_client().pubsub()
        try:
            await subscription.subscribe(self._channel)
            if await subscription.get_message(timeout=self._timeout) is None:
                raise NoAnswer("it does not answer a subscription")
        except BaseException:
            await _close(subscription)
            raise
        return subscription

    async def follow(self, subscription: Any, watcher: Watcher, persist: Persist) -> None:
        """Pass changes to the watcher until this is cancelled. Subscribe again if needed."""
        while True:
            try:
                await self._relay(subscription, watcher)
            except (RedisError, OSError) as error:
                logger.debug("lost the subscription to %r: %r", self._channel, error)
            finally:
                await _close(subscription)
            subscription = await self._subscribe_again(persist)
            # Changes in between were not received.
            watcher.notice(None)

    async def _subscribe_again(self, persist: Persist) -> Any:
        while True:
            try:
                return await persist(self.subscribe)
            except (RedisError, OSError, StoreUnavailable):
                await asyncio.sleep(1)

    async def _relay(self, subscription: Any, watcher: Watcher) -> None:
        """Pass what a subscription receives to the watcher. Raise if the server does not answer."""
        is_silent = False
        while True:
            message = await subscription.get_message(timeout=self._timeout)
            if message is not None:
                is_silent = False
                if message["type"] == "message":
                    watcher.notice(message["data"].decode())
            elif is_silent:
                raise NoAnswer("it does not answer")
            else:
                is_silent = True
                await subscription.ping()


async def _close(subscription: Any) -> None:
    """Close a subscription and its client."""
    await subscription.aclose()
    await subscription.connection_pool.aclose()
