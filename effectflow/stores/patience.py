"""How long a server that is out of reach is looked for again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.effects import RetryPolicy

__all__ = ["Patience"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_POLICY = RetryPolicy.exponential(0.05).with_max_delay(1).with_full_jitter()


class Patience:
    """Asks a server again while the way to it is lost.

    Parameters:
        store: what is shown in messages.
        seconds: how long it is looked for.
        is_lost: whether an error says that the server is out of reach, for now.
    """

    def __init__(
        self, store: object, *, seconds: float, is_lost: Callable[[Exception], bool]
    ) -> None:
        self._store = store
        self.seconds = seconds
        self._is_lost = is_lost

    async def ask(self, attempt: Callable[[], Awaitable[A]]) -> A:
        """What `attempt` gives, which is called again after each loss.

        Fails with StoreUnavailable if the server is not found again, and with whatever else `attempt`
        fails with.
        """
        deadline = 0.0
        delays: Iterator[float] | None = None
        while True:
            try:
                return await attempt()
            except Exception as error:
                if not self._is_lost(error):
                    raise
                if delays is None:
                    delays, deadline = _POLICY.delays(), time.monotonic() + self.seconds
                delay = next(delays)
                if time.monotonic() + delay > deadline:
                    reason = f"it cannot be reached: {error}"
                    raise StoreUnavailable(repr(self._store), reason) from error
            logger.warning("the connection to %r was lost; it is looked for again", self._store)
            await asyncio.sleep(delay)
