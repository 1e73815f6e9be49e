"""Saves that no step asks for: entries that have waited long enough, and saves asked for from outside.

One task per event loop looks after all runs in it. It starts with the first entry that waits, and ends
when nothing waits.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakSet

import anyio
from anyio.lowlevel import RunVar

from effectflow.effects.event_loop import spawn_background

__all__ = ["Delayed", "SaveRequest", "save_request", "watch_for_delays"]


class Delayed(Protocol):
    """A journal that is to be saved when its time has come.

    Attributes:
        due: when, by `time.monotonic()`; None if nothing waits.
        is_watched: whether the event loop looks after it.
        is_released: whether the run has ended.
    """

    due: float | None
    is_watched: bool
    is_released: bool

    async def save_late(self) -> None:
        """Save; end the run if that is impossible."""
        ...


class SaveRequest:
    """Asks the runs that are in progress to make durable now what they have done so far."""

    def __init__(self) -> None:
        self._journals: WeakSet[Any] = WeakSet()

    def cover(self, journal: Delayed) -> None:
        """Ask this journal, too, from now on."""
        self._journals.add(journal)

    def ask(self) -> None:
        """Save every journal soon. Call it in the event loop."""
        for journal in list(self._journals):
            if not journal.is_released:
                journal.due = 0.0
                watch_for_delays(journal)


save_request: ContextVar[SaveRequest | None] = ContextVar("save_request", default=None)
"""The request that covers the runs of this context, if there is one."""


def watch_for_delays(journal: Delayed) -> None:
    """Save a journal once it is due, in the running event loop."""
    watch = _watch.get(None)
    if watch is None:
        watch = _Watch()
        _watch.set(watch)
    watch.add(journal)


class _Watch:
    """The journals of one event loop that have entries which wait."""

    def __init__(self) -> None:
        self._journals: dict[int, Delayed] = {}
        self._is_running = False
        self._wakes_at = 0.0
        self._woken: anyio.Event | None = None

    def add(self, journal: Delayed) -> None:
        journal.is_watched = True
        self._journals[id(journal)] = journal
        if not self._is_running:
            self._is_running = True
            spawn_background(self._look_after)
        elif journal.due is not None and journal.due < self._wakes_at and self._woken is not None:
            self._woken.set()

    async def _look_after(self) -> None:
        try:
            while self._journals:
                await self._rest()
                now = time.monotonic()
                for journal in list(self._journals.values()):
                    is_due = journal.due is not None and journal.due <= now
                    if is_due and not journal.is_released:
                        # Each in a task of its own: a slow save must not keep others waiting.
                        spawn_background(journal.save_late)
                    if is_due or journal.due is None or journal.is_released:
                        journal.is_watched = False
                        del self._journals[id(journal)]
        finally:
            self._is_running = False

    async def _rest(self) -> None:
        """Wait until the first journal is due."""
        dues = [each.due for each in self._journals.values() if each.due is not None]
        now = time.monotonic()
        self._wakes_at = min(dues, default=now)
        if self._wakes_at > now:
            self._woken = anyio.Event()
            with anyio.move_on_after(self._wakes_at - now):
                await self._woken.wait()
            self._woken = None


_watch: RunVar[_Watch | None] = RunVar("_watch", None)
