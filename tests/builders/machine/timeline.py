"""A clock that advances with each reading, and by the whole delay of a sleep."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import anyio


class Timeline:
    """The clock. `slept` has the delays of all sleeps, in seconds.

    Parameters:
        at: the time at the beginning.
        tick: the milliseconds by which each reading advances it. With 0, stepping a machine and running
            it, which reads the clock more often, have the same times.
    """

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, tick: int = 1) -> None:
        self.at = at
        self.tick = timedelta(milliseconds=tick)
        self.slept: list[float] = []

    def now(self) -> datetime:
        self.at += self.tick
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.at += timedelta(seconds=seconds)

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds)
