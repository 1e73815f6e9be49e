"""Between other threads and the running event loop, asyncio's or trio's.

`anyio.from_thread` with an `anyio.Event` would do; this costs a third, and the other thread does not
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Protocol, cast

import anyio.lowlevel

__all__ = ["CallSoon", "Waiter", "call_soon_from_threads", "new_waiter"]


class CallSoon(Protocol):
    """Calls a function soon in the event loop that it belongs to; safe from any thread."""

    def __call__(self, callback: Callable[..., object], /, *arguments: object) -> object: ...


def call_soon_from_threads() -> CallSoon:
    """The running event loop's own way to be called from other threads.

    Calling it after the loop was closed raises RuntimeError.
    """
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        token: Any = anyio.lowlevel.current_token().native_token
        return cast(CallSoon, token.run_sync_soon)


class Waiter(Protocol):
    """Awaiting it ends once `wake` was called; a cancellation ends the wait as well.

    Attributes:
        call_soon: the way into its event loop from other threads.
    """

    call_soon: CallSoon

    def wake(self) -> None:
        """End the wait. To be called within the event loop."""
        ...

    def __await__(self) -> Generator[Any, Any, object]: ...


def new_waiter() -> Waiter:
    """A `Waiter` for the running task."""
    try:
        return _AsyncioWaiter(asyncio.get_running_loop())
    except RuntimeError:
        return _TrioWaiter()


class _AsyncioWaiter:
    __slots__ = ("_future", "call_soon")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_soon: CallSoon = loop.call_soon_threadsafe
        self._future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        # A cancelled wait has cancelled its future.
        if not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, Any, object]:
        return self._future.__await__()


class _TrioWaiter:
    __slots__ = ("_event", "call_soon")

    def __init__(self) -> None:
        self.call_soon = call_soon_from_threads()
        self._event = anyio.Event()

    def wake(self) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, Any, object]:
        return self._event.wait().__await__()
