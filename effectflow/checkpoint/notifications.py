"""Notify subscribers of changed runs. All subscribers of a store and event loop share one watch."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio

from effectflow.checkpoint.store import CheckpointStore, ServiceStore, service_of
from effectflow.effects.event_loop import PerEventLoop, spawn_background

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 5.0
"""After this time without a change, all subscribers look anyway, because notifications may be lost."""

_SECONDS_AFTER_ERROR = 1.0

_Notify: TypeAlias = Callable[[], object]


class Wakeup:
    """An event that can be awaited repeatedly."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the next wait ends at once."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait until `set` was called since the last wait."""
        await self._event.wait()
        self._event = anyio.Event()


@asynccontextmanager
async def woken_by(store: CheckpointStore, run_id: str) -> AsyncGenerator[Wakeup]:
    """Yield a Wakeup that every change of a run sets."""
    woken = Wakeup()
    async with watching(store, run_id, woken.set):
        yield woken


def listen(store: ServiceStore, run_id: str, notify: Callable[[], object]) -> Callable[[], None]:
    """Call `notify` whenever a change of a run becomes known. Return what ends that.

    Unlike `watching`, this does not wait until the watch has begun, and does not call `notify` from time
    to time without a change: it is for many runs that are rarely told anything.
    """
    watch = _watch_of(store)
    watch.add(run_id, notify, only_changes=True)

    def end() -> None:
        if watch.remove(run_id, notify):
            _forget(store, watch)
            spawn_background(watch.end)

    return end


@asynccontextmanager
async def watching(
    store: CheckpointStore, run_id: str | None, notify: Callable[[], object]
) -> AsyncGenerator[None]:
    """Call `notify` in the event loop whenever a run may have changed; with None, whenever any may have.

    No change is missed after the block begins. Raise StoreUnavailable if the store only keeps journals.
    """
    watch = _watch_of(service_of(store, "a watch for changes"))
    watch.add(run_id, notify)
    try:
        await watch.began.wait()
        yield
    finally:
        if watch.remove(run_id, notify):
            _forget(store, watch)
            await watch.end()


def _watch_of(store: ServiceStore) -> _Watch:
    """Return the watch of a store in this event loop."""
    watches = _watches.get()
    watch = watches.get(id(store))
    if watch is None or watch.is_ending:
        watch = watches[id(store)] = _Watch(store)
    return watch


def _forget(store: CheckpointStore, watch: _Watch) -> None:
    watches = _watches.get()
    if watches.get(id(store)) is watch:
        del watches[id(store)]


class _Watch:
    """The watch of one store in one event loop."""

    def __init__(self, store: ServiceStore) -> None:
        self.began = anyio.Event()
        self.is_ending = False
        self._store = store
        self._asking: dict[str | None, list[_Notify]] = {}
        self._only_changes: set[_Notify] = set()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._is_running = False

    def add(self, run_id: str | None, notify: _Notify, *, only_changes: bool = False) -> None:
        if only_changes:
            self._only_changes.add(notify)
        self._asking.setdefault(run_id, []).append(notify)
        if not self._is_running:
            self._is_running = True
            spawn_background(self._watch)

    def remove(self, run_id: str | None, notify: _Notify) -> bool:
        """Stop notifying a subscriber. Return whether it was the last one."""
        remaining = self._asking[run_id]
        remaining.remove(notify)
        self._only_changes.discard(notify)
        if not remaining:
            del self._asking[run_id]
        self.is_ending = not self._asking
        return self.is_ending

    async def end(self) -> None:
        """Wait until the store is no longer watched."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _watch(self) -> None:
        try:
            with self._scope:
                while True:
                    try:
                        await self._watch_until_error()
                    except Exception as error:
                        logger.warning("%r cannot be watched for changes: %r", self._store, error)
                    # Subscribers continue without notifications, and look from time to time.
                    self.began.set()
                    await anyio.sleep(_SECONDS_AFTER_ERROR)
                    self._tell(None)
        finally:
            self.began.set()
            self._ended.set()

    async def _watch_until_error(self) -> None:
        async with self._store.changes() as changes:
            self.began.set()
            look_at = anyio.current_time() + _SECONDS_BETWEEN_LOOKS
            while True:
                changed = await changes.wait(_SECONDS_BETWEEN_LOOKS)
                has_changed = changed is None or bool(changed)
                if changed is None:
                    changed = await changes.among([one for one in self._asking if one is not None])
                if has_changed:
                    self._tell(changed)
                # Also if other runs change all the time: a notification may be lost.
                if not has_changed or anyio.current_time() >= look_at:
                    self._tell(None, has_changed=False)
                    look_at = anyio.current_time() + _SECONDS_BETWEEN_LOOKS

    def _tell(self, changed: Collection[str] | None, *, has_changed: bool = True) -> None:
        """Notify the subscribers of these runs and of any, or all subscribers with None.

        If nothing `has_changed`, notify those who also look from time to time.
        """
        if changed is None:
            told = [notify for each in self._asking.values() for notify in each]
            if not has_changed:
                told = [notify for notify in told if notify not in self._only_changes]
        else:
            wanted = (None, *changed)
            told = [notify for run_id in wanted for notify in self._asking.get(run_id, ())]
        for notify in told:
            notify()


_watches = PerEventLoop(dict[int, _Watch])
