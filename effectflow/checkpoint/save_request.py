"""A wish from outside that runs make durable now what they have done so far."""

from __future__ import annotations

from contextvars import ContextVar

import anyio

__all__ = ["SaveRequest", "save_request"]


class SaveRequest:
    """A save that somebody may ask for, again and again, while runs go on."""

    def __init__(self) -> None:
        self._number = 0
        self._asked: anyio.Event | None = None

    @property
    def number(self) -> int:
        """How often it was asked for."""
        return self._number

    def ask(self) -> None:
        """Wake every run that waits for this. To be called in the event loop."""
        self._number += 1
        if self._asked is not None:
            self._asked.set()
            self._asked = None

    async def later_than(self, number: int) -> int:
        """Wait until it has been asked for more often than that; give how often."""
        while self._number <= number:
            if self._asked is None:
                self._asked = anyio.Event()
            await self._asked.wait()
        return self._number


save_request: ContextVar[SaveRequest | None] = ContextVar("save_request", default=None)
"""The request that covers the runs of this context, if anything can ask them to save."""
