"""What the stores on servers share: a loop for asyncio-only drivers, reconnecting, and leases."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import NamedTuple, TypeVar

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from effectflow.checkpoint.errors import LeaseLost, RunBusy, StoreUnavailable
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects import RetryPolicy
from effectflow.effects.event_loop import new_waiter, running_backend, shielded
from effectflow.stores._base import ReentrantStore, first_summary

logger = logging.getLogger(__name__)

A = TypeVar("A")

_DELAYS = RetryPolicy.exponential(0.05).with_max_delay(1).with_full_jitter()

_NO_FENCE = -1
"""A fencing number that no claim has."""


class Holder(NamedTuple):
    """The holder of a run, as the answer of a server. `expires_in` is in seconds."""

    owner: str
    fence: int
    expires_in: float


class ServerStore(ReentrantStore, CheckpointStore):
    """A store on a server. Its driver runs in asyncio, and its connections may be lost.

    The driver runs in the caller's event loop or, for a caller on trio, in one in a thread of its own.

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
        self._portal: BlockingPortal | None = None
        self._threads = ExitStack()

    @abstractmethod
    async def _connect(self) -> None:
        """Connect to the server, in asyncio. `_opened` closes what this opened."""

    @abstractmethod
    async def _ask_claim(
        self, run_id: str, owner: str, seconds: float, dead: int
    ) -> tuple[str, int, float, float]:
        """Claim the lease if it is free, or held with the fence `dead`.

        Return its owner, fence and expiry as they are then, and the time.
        """

    @abstractmethod
    def _ask_renewal(self, lease: Lease, seconds: float) -> float | None:
        """Return when the renewed lease expires, or None if it is no longer current."""

    # Opening and closing.

    async def _open(self) -> None:
        # What an event loop that was closed has left there cannot be closed in another one.
        self._opened = AsyncExitStack()
        if running_backend() != "asyncio":
            portal = start_blocking_portal("asyncio")
            self._portal = await shielded(to_thread.run_sync(self._threads.enter_context, portal))
        try:
            await self._in_asyncio(self._connect)
        except (self._driver_error, OSError) as error:
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error

    async def _close(self) -> None:
        try:
            await self._in_asyncio(self._opened.aclose)
        finally:
            if self._portal is not None:
                self._portal = None
                await to_thread.run_sync(self._threads.close)

    # Leases.

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        async def ask(dead: int) -> Lease | Holder:
            holder, fence, expires_at, now = await self._ask_claim(run_id, owner, seconds, dead)
            if holder == owner:
                return Lease(run_id, owner, fence, expires_at)
            return Holder(holder, fence, expires_at - now)

        return await take_over_from_dead(run_id, ask)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self._check_open(in_any_thread=True)
        try:
            expires_at = self._ask_renewal(lease, seconds)
        except (self._driver_error, OSError) as error:
            raise StoreUnavailable(repr(self), f"it did not renew a lease: {error}") from error
        if expires_at is None:
            raise LeaseLost(lease.run_id, "another owner has claimed it, or it was released")
        return replace(lease, expires_at=expires_at)

    # Requests.

    async def _ask(self, request: Callable[[], Awaitable[A]]) -> A:
        """Return the answer to a request, which is repeated after a lost connection."""
        self._check_open()
        try:
            return await self._in_asyncio(lambda: self._persist(request))
        except self._driver_error as error:
            raise StoreUnavailable(repr(self), f"it refused a request: {error}") from error

    async def _persist(self, request: Callable[[], Awaitable[A]]) -> A:
        """Return the answer to a request, in asyncio. Repeat it while the connection is lost.

        Raise StoreUnavailable if the server stays out of reach, and every other error of the request.
        """
        deadline = 0.0
        delays = None
        while True:
            try:
                return await request()
            except Exception as error:
                if not self._is_lost(error):
                    raise
                if delays is None:
                    delays = _DELAYS.delays()
                    deadline = time.monotonic() + self._reconnect_timeout
                delay = next(delays)
                if time.monotonic() + delay > deadline:
                    reason = f"it cannot be reached: {error}"
                    raise StoreUnavailable(repr(self), reason) from error
            logger.warning("lost the connection to %r; reconnecting", self)
            await asyncio.sleep(delay)

    async def _in_asyncio(self, f: Callable[[], Awaitable[A]]) -> A:
        """Return the result of `f()`, called in asyncio. Cancelling the caller cancels it."""
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


async def take_over_from_dead(run_id: str, ask: Callable[[int], Awaitable[A | Holder]]) -> A:
    """Return the answer to `ask`, and ask again if the holder of the run is dead.

    A server cannot tell whether the process of an owner lives. `ask` receives the fence of the dead
    holder, which the server then ignores, or at first a number that no claim has. Raise RunBusy if a
    live owner holds the run.
    """
    dead = _NO_FENCE
    while True:
        answer = await ask(dead)
        if not isinstance(answer, Holder):
            return answer
        owner = Owner.parse(answer.owner)
        if answer.fence == dead or owner is None or not owner.is_dead():
            raise RunBusy(run_id, answer.owner, answer.expires_in)
        dead = answer.fence


_NO_SUMMARY = "no summary"
"""The answer to the first append of a run if it needs a summary."""


def check_appended(run_id: str, refusal: str | None) -> None:
    """Raise ValueError or LeaseLost if a server refused an append."""
    if refusal == _NO_SUMMARY:
        first_summary(None)
    elif refusal is not None:
        raise LeaseLost(run_id, refusal)
