"""A clock that goes on by a millisecond when it is asked, and by the whole delay when told to sleep."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import anyio


class Timeline:
    """The clock. `slept` has the delays that were asked for, in seconds."""

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.at = at
        self.slept: list[float] = []

    def now(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.at += timedelta(seconds=seconds)

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds)
