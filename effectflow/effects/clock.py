"""Time as a service: whatever waits or tells the time asks the clock that the run was given."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

import anyio

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Tells the time and waits. Tests give a virtual one: `effect.run(env, clock=...)`."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from some fixed point; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds. Cancellation ends the wait at once."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
