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
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects import RetryPolicy
from effectflow.effects.event_loop import new_waiter, running_backend, shielded
from effectflow.stores._base import ReentrantStore, first_summary, lease_lost

logger = logging.getLogger(__name__)

A = TypeVar("A")

_DELAYS = RetryPolicy.exponential(0.05).with_max_delay(1).with_full_jitter()

_NO_FENCE = -1
"""A fencing number that no claim has."""


class Held(NamedTuple):
    """The lease of a run and the time, as the answer of a server."""

    lease: Lease
    now: float


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
    async def _ask_claim(self, wanted: Lease, seconds: float, free: int) -> Held:
        """Claim the lease if nobody has it, or somebody with the fence `free`. Return it as it is then.

        `wanted` has the run, the owner, and the expiry by the uptime of this host.
        """

    @abstractmethod
    def _ask_renewal(self, renewed: Lease, seconds: float) -> float | None:
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
        wanted = Lease(run_id, owner, _NO_FENCE, 0.0).renewed(seconds, now=0.0)

        async def ask(free: int) -> Lease | Held:
            held = await self._ask_claim(wanted, seconds, free)
            return held.lease if held.lease.owner == owner else held

        return await take_over(ask)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self._check_open(in_any_thread=True)
        try:
            renewed = lease.renewed(seconds, now=0.0)
            expires_at = self._ask_renewal(renewed, seconds)
        except (self._driver_error, OSError) as error:
            raise StoreUnavailable(repr(self), f"it did not renew a lease: {error}") from error
        if expires_at is None:
            raise LeaseLost(lease.run_id, "another owner has claimed it, or it was released")
        return replace(renewed, expires_at=expires_at)

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


async def take_over(ask: Callable[[int], Awaitable[A | Held]]) -> A:
    """Return the answer to `ask`, and ask again if the lease in its way is not held any more.

    A server cannot tell whether the process of an owner lives, and its clock may be set. `ask` receives
    the fence of such a lease, which the server then ignores, or at first a number that no claim has.
    Raise RunBusy if a live owner holds the run.
    """
    free = _NO_FENCE
    while True:
        answer = await ask(free)
        if not isinstance(answer, Held):
            return answer
        lease, now = answer
        if lease.fence == free or lease.is_held(now):
            raise RunBusy(lease.run_id, lease.owner, lease.expires_in(now))
        free = lease.fence


_NO_SUMMARY = "no summary"
"""The answer to the first append of a run if it needs a summary."""

_HELD_BY = "held by "
"""The beginning of the answer to an append whose lease is not current. Its owner follows, if any."""


def check_appended(run_id: str, refusal: str | None) -> None:
    """Raise ValueError or LeaseLost if a server refused an append."""
    if refusal == _NO_SUMMARY:
        first_summary(None)
    elif refusal is not None and refusal.startswith(_HELD_BY):
        raise lease_lost(run_id, refusal.removeprefix(_HELD_BY))
    elif refusal is not None:
        raise LeaseLost(run_id, refusal)
