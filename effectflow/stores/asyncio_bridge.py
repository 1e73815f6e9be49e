"""Asyncio-only drivers for callers on either backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from effectflow.effects.event_loop import new_waiter, shielded

__all__ = ["AsyncioBridge"]

A = TypeVar("A")


class AsyncioBridge:
    """Calls coroutine functions in an asyncio event loop: the caller's own where it has one.

    A caller on trio gets a loop in a thread of its own, which ends with `close`.
    """

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._running: AbstractContextManager[BlockingPortal] | None = None

    async def open(self) -> None:
        """Make the loop, if the caller has none."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            running = start_blocking_portal("asyncio")
            self._portal = await shielded(to_thread.run_sync(running.__enter__))
            self._running = running

    async def close(self) -> None:
        """End the loop, if one was made."""
        if self._running is not None:
            running, self._running, self._portal = self._running, None, None
            await shielded(to_thread.run_sync(running.__exit__, None, None, None))

    async def call(self, f: Callable[[], Awaitable[A]]) -> A:
        """The result of `f()`, which a cancellation of the caller cancels too."""
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
