"""What the stores on servers share: a loop for asyncio-only drivers, and reconnecting."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.effects import RetryPolicy
from effectflow.effects.event_loop import new_waiter, shielded

logger = logging.getLogger(__name__)

A = TypeVar("A")

_DELAYS = RetryPolicy.exponential(0.05).with_max_delay(1).with_full_jitter()


class AsyncioBridge:
    """Calls coroutine functions in an asyncio event loop: the caller's own, if it runs on asyncio.

    For a caller on trio, it runs a loop in a thread of its own until `close`.
    """

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._running: AbstractContextManager[BlockingPortal] | None = None

    async def open(self) -> None:
        """Start the loop, if the caller has none."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            running = start_blocking_portal("asyncio")
            self._portal = await shielded(to_thread.run_sync(running.__enter__))
            self._running = running

    async def close(self) -> None:
        """Stop the loop, if one was started."""
        if self._running is not None:
            running, self._running, self._portal = self._running, None, None
            await shielded(to_thread.run_sync(running.__exit__, None, None, None))

    async def call(self, f: Callable[[], Awaitable[A]]) -> A:
        """Return the result of `f()`. Cancelling the caller cancels it."""
        if self._portal is None:
            return await f()
        future: Future[A] = self._portal.start_task_soon(f)
        waiter = new_waiter()
        future.add_done_callback(lambda _: waiter.call_soon(waiter.wake))
        try:
            await waiter
        except BaseException:
            future.cancel()
            raise
        return future.result()


class Reconnect:
    """Repeats a request while the connection to a server is lost.

    Parameters:
        store: shown in messages.
        seconds: how long to try.
        is_lost: returns whether an error means that the server cannot be reached at present.
    """

    def __init__(
        self, store: object, *, seconds: float, is_lost: Callable[[Exception], bool]
    ) -> None:
        self._store = store
        self.seconds = seconds
        self._is_lost = is_lost

    async def ask(self, attempt: Callable[[], Awaitable[A]]) -> A:
        """Return the result of `attempt()`, which is called again after each loss.

        Raise StoreUnavailable if the server stays out of reach, and every other error of `attempt`.
        """
        deadline = 0.0
        delays: Iterator[float] | None = None
        while True:
            try:
                return await attempt()
            except Exception as error:
                if not self._is_lost(error):
                    raise
                if delays is None:
                    delays, deadline = _DELAYS.delays(), time.monotonic() + self.seconds
                delay = next(delays)
                if time.monotonic() + delay > deadline:
                    reason = f"it cannot be reached: {error}"
                    raise StoreUnavailable(repr(self._store), reason) from error
            logger.warning("lost the connection to %r; reconnecting", self._store)
            await asyncio.sleep(delay)
