"""Time as a service: everything that waits or reads the time uses the clock of its run."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import CoroutineType
from typing import Any, Protocol, TypeAlias

import anyio

Duration: TypeAlias = float | timedelta
"""Seconds, or a `timedelta`."""


def in_seconds(duration: Duration) -> float:
    """Return a duration in seconds. Raise TypeError if it is neither a number nor a `timedelta`."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    _check_is_number(duration)
    return duration


def in_words(seconds: float) -> str:
    """Return a duration in the largest unit that fits, such as "14s" or "2h"."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(seconds, 0):.0f}s"


def waiting_time(name: str, duration: Duration) -> float:
    """Return a duration in seconds. Raise ValueError, which names the parameter, if it is below 0."""
    seconds = in_seconds(duration)
    if not seconds >= 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {duration!r}")
    return seconds


def finite_time(name: str, duration: Duration) -> float:
    """Return a duration in seconds. Raise ValueError if it is below 0 or infinite."""
    seconds = in_seconds(duration)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds, 0 or more, not {duration!r}")
    return seconds


def _check_is_number(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"a duration is a number of seconds or a timedelta, not {given!r}")


class Clock(Protocol):
    """Tells the time and waits. Tests pass a virtual one: `effect.run(env, clock=...)`."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed point. They never decrease."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds, or one turn of the event loop if they are 0 or less.

        A cancellation ends the wait immediately.
        """
        ...

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the `with` block after this many seconds."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    # The function itself, without a method around it, because each step reads it twice.
    monotonic: staticmethod[[], float] = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> CoroutineType[Any, Any, None]:
        # Trio rejects a negative number, and asyncio does not.
        return anyio.sleep(max(seconds, 0))

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        scope = anyio.move_on_after(seconds)
        if seconds <= 0:
            # Trio would let the block run until it waits.
            scope.cancel()
        return scope
