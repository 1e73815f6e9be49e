"""Opening and closing, shared by the stores that hold files or connections."""

from __future__ import annotations

import os
from abc import abstractmethod
from types import TracebackType
from typing import Self

import anyio

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.effects.event_loop import CallSoon, call_soon_from_threads, shielded


class ReentrantStore:
    """Opens at the first entry, closes at the last exit, and can then be opened again.

    A task that enters while another one opens or closes the store waits for that. A store belongs to
    the process and the event loop that opened it; used from any other, it raises StoreUnavailable.
    """

    def __init__(self) -> None:
        self._users = 0
        self._is_open = False
        self._home: tuple[int, CallSoon] | None = None
        self._transition: anyio.Lock | None = None

    @abstractmethod
    async def _open(self) -> None:
        """Acquire what the store works with. If this raises or is cancelled, `_close` follows."""

    @abstractmethod
    async def _close(self) -> None:
        """Release what `_open` acquired, which may be only a part. Never cancelled."""

    async def __aenter__(self) -> Self:
        transition = self._lock_of_transitions()
        if self._users == 0:
            async with transition:
                if not self._is_open:
                    await self._open_or_close()
                self._users += 1
        else:
            self._users += 1
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._users > 1:
            self._users -= 1
            return
        transition = self._lock_of_transitions()
        self._users -= 1
        await shielded(self._close_if_unused(transition))

    async def _open_or_close(self) -> None:
        try:
            await self._open()
        except BaseException:
            await shielded(self._close())
            raise
        self._is_open = True

    async def _close_if_unused(self, transition: anyio.Lock) -> None:
        async with transition:
            if self._users == 0 and self._is_open:
                self._is_open = False
                await self._close()

    def _check_open(self, *, in_any_thread: bool = False) -> None:
        """Raise StoreUnavailable unless the store is open, in this event loop or at least process."""
        if not self._is_open or self._home is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        is_home = self._home[0] == os.getpid() if in_any_thread else self._home == _here()
        if not is_home:
            raise self._is_elsewhere()

    def _lock_of_transitions(self) -> anyio.Lock:
        """Return the lock to open and close under, once this event loop has the store for itself."""
        here = _here()
        if self._transition is None or self._home != here:
            if self._is_open or (self._transition is not None and self._transition.locked()):
                raise self._is_elsewhere()
            self._home, self._transition = here, anyio.Lock()
        return self._transition

    def _is_elsewhere(self) -> StoreUnavailable:
        opened_by = os.getpid() if self._home is None else self._home[0]
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


def _here() -> tuple[int, CallSoon]:
    return os.getpid(), call_soon_from_threads()
