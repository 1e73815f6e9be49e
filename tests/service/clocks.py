"""A virtual clock that can be set, and tells whether someone waits for it."""

from __future__ import annotations

from datetime import datetime, timedelta

import anyio

from effectflow.testing import TestClock


class AdjustableClock(TestClock):
    """A virtual clock whose time of day can be set, by its `offset`."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.offset = timedelta(0)
        self._sleepers = 0

    def now(self) -> datetime:
        return super().now() + self.offset

    async def sleep(self, seconds: float) -> None:
        self._sleepers += 1
        try:
            await super().sleep(seconds)
        finally:
            self._sleepers -= 1

    async def until_slept_on(self) -> None:
        """Wait until a task sleeps on this clock: what it does before may take real time."""
        with anyio.fail_after(30):
            while not self._sleepers:
                await anyio.sleep(0.001)
