"""Save entries that no step saves: after they have waited long enough, and on request from outside.

One task per event loop handles all runs in it. It starts with the first entry that waits, and ends when
no entry waits.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakSet

import anyio

from effectflow.effects.event_loop import PerEventLoop, spawn_background


class Delayed(Protocol):
    """A journal that is saved when it is due.

    Attributes:
        due: the time by `time.monotonic()`; None if no entry waits.
        is_watched: whether the task of the event loop handles it.
        is_released: whether the run has ended.
    """

    due: float | None
    is_watched: bool
    is_released: bool

    async def save_late(self) -> None:
        """Save the journal. End the run if that fails."""
        ...


class SaveRequest:
    """Asks the runs in progress to save now."""

    def __init__(self) -> None:
        self._journals: WeakSet[Any] = WeakSet()

    def cover(self, journal: Delayed) -> None:
        """Include this journal from now on."""
        self._journals.add(journal)

    def ask(self) -> None:
        """Save all journals soon. Call it in the event loop."""
        for journal in list(self._journals):
            if not journal.is_released:
                journal.due = 0.0
                delays.get().watch(journal)


save_request: ContextVar[SaveRequest | None] = ContextVar("save_request", default=None)
"""The request that covers the runs of this context, or None."""


class Delays:
    """The journals of one event loop with entries that wait."""

    def __init__(self) -> None:
        self._journals: dict[int, Delayed] = {}
        self._is_running = False
        self._wakes_at = 0.0
        self._woken: anyio.Event | None = None

    def watch(self, journal: Delayed) -> None:
        """Save the journal when it is due."""
        due = journal.due or 0.0
        journal.is_watched = True
        self._journals[id(journal)] = journal
        if not self._is_running:
            self._is_running = True
            self._wakes_at = due
            spawn_background(self._look_after)
        elif due < self._wakes_at:
            self._wakes_at = due
            if self._woken is not None:
                self._woken.set()

    def forget(self, journal: Delayed) -> None:
        """Stop watching a journal whose run has ended, so that it is not kept in memory."""
        journal.is_watched = False
        self._journals.pop(id(journal), None)

    async def _look_after(self) -> None:
        try:
            while True:
                # Also if no journal is left: the next one comes soon, and a task costs more than a timer.
                await self._rest()
                now = time.monotonic()
                for journal in list(self._journals.values()):
                    is_due = journal.due is not None and journal.due <= now
                    if is_due and not journal.is_released:
                        # Each in a separate task, because a slow save must not delay others.
                        spawn_background(journal.save_late)
                    if is_due or journal.due is None or journal.is_released:
                        journal.is_watched = False
                        del self._journals[id(journal)]
                if not self._journals:
                    return
                dues = [each.due for each in self._journals.values() if each.due is not None]
                self._wakes_at = min(dues, default=now)
        finally:
            self._is_running = False

    async def _rest(self) -> None:
        """Wait until the first journal is due.

        Saving that journal earlier does not end the wait. Most journals are saved often, and each save
        would cost two wake-ups.
        """
        while (left := self._wakes_at - time.monotonic()) > 0:
            self._woken = anyio.Event()
            try:
                with anyio.move_on_after(left):
                    await self._woken.wait()
            finally:
                # It knows its event loop, which would never be freed.
                self._woken = None


delays = PerEventLoop(Delays)
"""The entries that wait in each event loop."""
