"""What the stores on servers share: a loop for asyncio-only drivers, and reconnecting."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

from anyio import CapacityLimiter

from effectflow.checkpoint.errors import LeaseLost, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import ServiceStore
from effectflow.effects import RetryPolicy
from effectflow.effects.event_loop import (
    call_soon_from_threads,
    new_waiter,
    running_backend,
    shielded,
    wake,
)
from effectflow.effects.threads import in_thread
from effectflow.stores._base import ReentrantStore
from effectflow.stores._changes import Watcher

logger = logging.getLogger(__name__)

A = TypeVar("A")

RECONNECT_DELAYS = RetryPolicy.exponential(0.05).with_max_delay(1).with_full_jitter()
"""The seconds after which to try again to reach a lost server."""


class Subscription(Protocol):
    """A connection on which a server reports which runs changed."""

    async def relay(self, watcher: Watcher) -> None:
        """Pass the changes to the watcher. Raise an error of the driver or OSError once it is lost."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class ServerStore(ReentrantStore, ServiceStore):
    """A store on a server. Its driver runs in asyncio, and its connections may be lost.

    The driver runs in the caller's event loop. For a caller on trio, it runs in an event loop of its
    own, in a separate thread.

    Parameters:
        reconnect_timeout: how many seconds to try to reconnect to a lost server.
        driver_error: the base class of what the driver raises.
        is_lost: returns whether the same request may succeed later.
    """

    def __init__(
        self,
        *,
        reconnect_timeout: float,
        driver_error: type[Exception],
        is_lost: Callable[[Exception], bool],
    ) -> None:
        super().__init__()
        self._driver_error = driver_error
        self._is_lost = is_lost
        self._reconnect_timeout = reconnect_timeout
        self._opened = AsyncExitStack()
        self._followers: set[asyncio.Task[None]] = set()
        self._thread: _AsyncioThread | None = None
        self._warned_at = -math.inf

    @abstractmethod
    async def _connect(self) -> None:
        """Connect to the server, in asyncio. `_opened` closes what this opened."""

    def _explained(self, error: Exception) -> str:
        """Return why the server rejected a request, and what to do, if known."""
        return str(error)

    # Opening and closing.

    async def _open(self) -> None:
        # One event loop cannot close the connections that another, closed one has left.
        self._opened = AsyncExitStack()
        self._followers = set()
        self._opened.push_async_callback(lambda: _cancel(*self._followers))
        if running_backend() != "asyncio":
            self._thread = _AsyncioThread()
        try:
            await self._in_asyncio(self._connect)
        except (self._driver_error, OSError) as error:
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error

    async def _close(self) -> None:
        try:
            await self._in_asyncio(self._opened.aclose)
        finally:
            if self._thread is not None:
                thread, self._thread = self._thread, None
                await thread.end()

    # Requests.

    async def _ask(self, request: Callable[[], Awaitable[A]]) -> A:
        """Return the answer to a request, which is repeated after a lost connection."""
        self._check_open()
        try:
            return await self._in_asyncio(lambda: self._persist(request))
        except self._driver_error as error:
            reason = f"it rejected a request: {self._explained(error)}"
            raise StoreUnavailable(repr(self), reason) from error

    async def _persist(self, request: Callable[[], Awaitable[A]]) -> A:
        """Return the answer to a request, in asyncio. Repeat it while the connection is lost.

        Raise StoreUnavailable if the server stays out of reach, and every other error of the request.
        """
        try:
            return await repeated(
                request,
                RECONNECT_DELAYS,
                is_temporary=self._is_lost,
                seconds=self._reconnect_timeout,
                before_delay=self._warn_of_loss,
            )
        except Exception as error:
            if not self._is_lost(error):
                raise
            raise StoreUnavailable(repr(self), f"it cannot be reached: {error}") from error

    def _warn_of_loss(self) -> None:
        if time.monotonic() > self._warned_at + 1:
            # Logged once for all runs that wait for it.
            self._warned_at = time.monotonic()
            logger.warning("lost the connection to %r; reconnecting", self)

    async def _in_asyncio(self, f: Callable[[], Awaitable[A]]) -> A:
        """Return the result of `f()`, called in asyncio. Cancelling the caller cancels it."""
        if self._thread is None:
            return await f()
        future = self._thread.start(f)
        waiter, call_soon = new_waiter(), call_soon_from_threads()
        future.add_done_callback(lambda _: call_soon(wake, waiter))
        try:
            await waiter
        except BaseException:
            future.cancel()
            raise
        return future.result()

    # Changes.

    @asynccontextmanager
    async def _following(
        self, subscribe: Callable[[], Awaitable[Subscription]], watcher: Watcher
    ) -> AsyncGenerator[None]:
        """Pass the changes that a server reports to the watcher while the context is open."""
        subscription = await self._ask(subscribe)

        async def start() -> asyncio.Task[None]:
            task = asyncio.create_task(self._follow(subscription, subscribe, watcher))
            self._followers.add(task)
            task.add_done_callback(self._followers.discard)
            return task

        task = await self._in_asyncio(start)
        try:
            yield
        finally:
            # Closing the store has ended it already.
            if not task.done():
                await shielded(self._in_asyncio(lambda: _cancel(task)))

    async def _follow(
        self,
        subscription: Subscription,
        subscribe: Callable[[], Awaitable[Subscription]],
        watcher: Watcher,
    ) -> None:
        """Relay changes until this is cancelled. Subscribe again after a lost connection."""
        while True:
            try:
                await subscription.relay(watcher)
            except (self._driver_error, OSError) as error:
                logger.debug("lost the subscription to the changes of %r: %r", self, error)
            finally:
                await subscription.close()
            subscription = await self._subscribe_again(subscribe)
            # Changes in between were not received.
            watcher.notice(None)

    async def _subscribe_again(
        self, subscribe: Callable[[], Awaitable[Subscription]]
    ) -> Subscription:
        while True:
            try:
                return await self._persist(subscribe)
            except (self._driver_error, OSError, StoreUnavailable):
                await asyncio.sleep(1)


class Slots:
    """Lets a number of requests to a server proceed at the same time. The others wait.

    Parameters:
        store: the store, for errors.
        patience: how many seconds a request waits while the server answers none of the others.
    """

    def __init__(self, store: object, count: int, *, patience: float) -> None:
        self._store = store
        self._free = asyncio.Semaphore(count)
        self._patience = patience
        self._answered_at = time.monotonic()

    async def take(self) -> None:
        """Wait for a free slot. Raise StoreUnavailable if the server answers none of the others."""
        while self._free.locked():
            try:
                async with asyncio.timeout(self._patience):
                    await self._free.acquire()
                return
            except TimeoutError:
                if time.monotonic() > self._answered_at + self._patience:
                    reason = f"it has not answered for {self._patience:g} s"
                    raise StoreUnavailable(repr(self._store), reason) from None
        await self._free.acquire()

    def release(self, *, is_answered: bool) -> None:
        """Free a slot, after the server has answered the request or not."""
        if is_answered:
            self._answered_at = time.monotonic()
        self._free.release()


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class _AsyncioThread:
    """Runs asyncio in a separate thread, for a caller on trio.

    It is a daemon thread, and not one of anyio's threads. Those may all be busy with the steps of runs,
    and a process whose event loop did not end in order could not exit.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._has_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="effectflow-asyncio", daemon=True)
        self._thread.start()

    def start(self, f: Callable[[], Awaitable[A]]) -> Future[A]:
        """Call `f()` in the thread, and return its future. Cancelling the future cancels the call."""

        async def call() -> A:
            return await f()

        return asyncio.run_coroutine_threadsafe(call(), self._loop)

    async def end(self) -> None:
        """End the thread, and wait until it has ended."""
        self._loop.call_soon_threadsafe(self._has_ended.set)
        await in_thread(self._thread.join, CapacityLimiter(1))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._has_ended.wait())


async def repeated(
    request: Callable[[], Awaitable[A]],
    policy: RetryPolicy,
    *,
    is_temporary: Callable[[Exception], bool],
    seconds: float,
    before_delay: Callable[[], object] = bool,
) -> A:
    """Return the answer to a request, in asyncio. Repeat it after temporary errors.

    Raise the error of the last request if these seconds after the first error are not enough.
    """
    deadline = 0.0
    delays = None
    while True:
        try:
            return await request()
        except Exception as error:
            if not is_temporary(error):
                raise
            if delays is None:
                delays = policy.delays()
                deadline = time.monotonic() + seconds
            delay = next(delays)
            if time.monotonic() + delay > deadline:
                raise
        before_delay()
        await asyncio.sleep(delay)


def check_nothing_lost(lease: Lease, length: int, *, after: int) -> None:
    """Raise LeaseLost unless the journal on a server has the length that is expected."""
    if length != after:
        raise LeaseLost(lease.run_id, _other_length(length, after))


def gone(lease: Lease) -> LeaseLost:
    """Return the error for a run that a server does not have any more."""
    return LeaseLost(lease.run_id, _GONE)


_GONE = (
    "the store has no entry of it any more (the run was deleted, or the store has lost data). Restore "
    "the data, or start the run again, which executes all of its steps again"
)


def _other_length(length: int, after: int) -> str:
    if length > after:
        return f"another process has driven it, and its journal has {length} entries, not {after}"
    return (
        f"the store has lost data. Of {after} entries it has only {length}, and a resume executes the "
        "steps of the others again"
    )
