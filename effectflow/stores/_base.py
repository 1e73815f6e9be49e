"""Open and close a store, in the event loop and the process that it belongs to."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import anyio

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.effects.event_loop import (
    CallSoon,
    call_soon_from_threads,
    is_closed,
    running_loop,
    shielded,
)


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a store was opened."""

    process: int
    loop: object
    call_soon: CallSoon


class ReentrantStore:
    """Opens at the first entry, closes at the last exit, and can then be opened again.

    A task that enters while another one opens or closes the store waits for that. A store belongs to
    the process and the event loop that opened it, and raises StoreUnavailable in any other. After that
    loop was closed, the store can be opened again, even if the loop never left it.
    """

    def __init__(self) -> None:
        self._users = 0
        self._home: _Home | None = None
        self._transition: anyio.Lock | None = None

    @abstractmethod
    async def _open(self) -> None:
        """Acquire the resources of the store. If this raises or is cancelled, `_close` follows.

        Resources of an earlier call may be left, if its event loop was closed.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Release what `_open` acquired, even if that is only a part. Never cancelled."""

    async def __aenter__(self) -> Self:
        transition = self._lock_of_transitions()
        if self._users:
            self._users += 1
            return self
        async with transition:
            if not self._users:
                try:
                    await self._open()
                except BaseException:
                    await shielded(self._close())
                    raise
            self._users += 1
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._users > 1:
            self._users -= 1
        elif self._home is not None and self._home.process != os.getpid():
            # A forked process that ends within the block leaves the store to the process that opened it.
            return
        else:
            await shielded(self._leave(self._lock_of_transitions()))

    async def _leave(self, transition: anyio.Lock) -> None:
        async with transition:
            self._users -= 1
            if not self._users:
                await self._close()

    def _check_open(self, *, in_any_thread: bool = False) -> None:
        """Raise StoreUnavailable unless the store is open in this event loop, or only in this process."""
        home = self._home
        is_home = (
            home is not None
            and home.process == os.getpid()
            and (in_any_thread or home.loop is running_loop())
        )
        if is_home and self._users:
            return
        if not in_any_thread:
            self._leave_closed_loop()
        if not self._users or self._home is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        raise self._is_elsewhere()

    def _lock_of_transitions(self) -> anyio.Lock:
        """Return the lock under which this event loop opens and closes the store.

        Raise StoreUnavailable if the store is open in another event loop.
        """
        here = _Home(os.getpid(), running_loop(), call_soon_from_threads())
        if self._transition is None or self._home != here:
            self._leave_closed_loop()
            if self._users or (self._transition is not None and self._transition.locked()):
                raise self._is_elsewhere()
            self._home, self._transition = here, anyio.Lock()
        return self._transition

    def _leave_closed_loop(self) -> None:
        """Treat the store as closed if the event loop that opened it was closed without leaving it."""
        home = self._home
        if home is not None and home.process == os.getpid() and is_closed(home.call_soon):
            self._users, self._home, self._transition = 0, None, None

    def _is_elsewhere(self) -> StoreUnavailable:
        opened_by = os.getpid() if self._home is None else self._home.process
        if opened_by != os.getpid():
            reason = (
                f"process {opened_by} opened it, and its files and connections cannot be shared "
                "with a forked process. Create a store in each process"
            )
        else:
            reason = (
                "it is open in another event loop. Create a store for each event loop, or close this "
                "one there first"
            )
        return StoreUnavailable(repr(self), reason)


@contextmanager
def as_unavailable(store: object) -> Generator[None]:
    """Raise StoreUnavailable instead of SaveFailed, for changes that save no entries."""
    try:
        yield
    except SaveFailed as error:
        raise StoreUnavailable(repr(store), error.reason) from error
