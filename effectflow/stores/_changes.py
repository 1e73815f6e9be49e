"""Tell the watchers within this process which runs changed."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio

from effectflow.checkpoint.store import Changes
from effectflow.effects.event_loop import call_soon_from_threads

_MOST_NAMES = 1000
"""The most ids that a watcher remembers. After more, it reports that any run may have changed."""


class Announcements:
    """Announces changes of runs to the watchers of this process. Any thread may announce."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._changing = threading.Lock()

    @property
    def is_watched(self) -> bool:
        """Whether there are watchers."""
        return bool(self._watchers)

    def announce(self, *run_ids: str | None) -> None:
        """Tell all watchers that these runs changed; None means that any run may have changed."""
        if not self._watchers:
            return
        with self._changing:
            watchers = list(self._watchers)
        for watcher in watchers:
            for run_id in run_ids:
                watcher.notice(run_id)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[Watcher]:
        """Watch while the context is open."""
        watcher = Watcher()
        with self._changing:
            self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            with self._changing:
                self._watchers.discard(watcher)


class Watcher(Changes):
    """Gathers changes, also from other threads, until the event loop that created it asks for them."""

    def __init__(self) -> None:
        self._call_soon = call_soon_from_threads()
        self._changed: set[str] | None = set()
        self._gathering = threading.Lock()
        self._is_waking = False
        self._woken = anyio.Event()

    def notice(self, run_id: str | None) -> None:
        """Note that a run changed; with None, any run. Any thread may call this."""
        with self._gathering:
            if run_id is None or (self._changed is not None and len(self._changed) >= _MOST_NAMES):
                self._changed = None
            elif self._changed is not None:
                self._changed.add(run_id)
            if self._is_waking:
                return
            self._is_waking = True
        # If the loop was closed in the meantime, nothing waits in it.
        with suppress(RuntimeError):
            self._call_soon(self._wake)

    def _wake(self) -> None:
        self._woken.set()

    async def wait(self, seconds: float) -> frozenset[str] | None:
        with anyio.move_on_after(max(seconds, 0)):
            await self._woken.wait()
        with self._gathering:
            changed, self._changed = self._changed, set()
            self._is_waking = False
            self._woken = anyio.Event()
        return None if changed is None else frozenset(changed)
