"""Reach the running event loop, asyncio's or trio's, from another thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from anyio.lowlevel import current_token

__all__ = ["CallSoon", "call_soon_from_threads"]


class CallSoon(Protocol):
    """Calls a function soon in the event loop that it belongs to; safe from any thread."""

    def __call__(self, callback: Callable[..., object], /, *arguments: object) -> None: ...


def call_soon_from_threads() -> CallSoon:
    """The running event loop's own way to be called from other threads.

    Unlike `anyio.from_thread.run_sync`, the calling thread does not wait. Calling it after the loop
    was closed raises RuntimeError.
    """
    loop: Any = current_token().native_token
    # asyncio and trio name it differently; both take a callback and its arguments.
    return cast(CallSoon, getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon)
