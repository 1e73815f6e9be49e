"""A clock that goes on when it is asked, and by the whole delay when told to sleep."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import anyio


class Timeline:
    """The clock. `slept` has the delays that were asked for, in seconds.

    Parameters:
        at: what it says at first.
        tick: by how many milliseconds it goes on when it is asked. With 0 it says the same to a machine
            that is stepped by hand and to a run, whose journal asks as well.
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
