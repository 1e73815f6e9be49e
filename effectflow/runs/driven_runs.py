"""Which runs a worker drives side by side, and which it drives alone, as they may kill the process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from effectflow.checkpoint.entries import (
    CancelRequested,
    ChildEnded,
    Completed,
    Entry,
    Failed,
    Finished,
    Interrupted,
    Paused,
    Signalled,
    Suspended,
    TimerFired,
)
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.notifications import Wakeup
from effectflow.checkpoint.observers import CheckpointEvent, CheckpointSaved, EntryAppended
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.stopping import Drain

logger = logging.getLogger(__name__)

_SECONDS_ALONE = 60.0
"""After this time, others are let in beside a run that is driven alone: it may wait for one of them."""

_PROGRESS = (
    Completed,
    Failed,
    ChildEnded,
    Signalled,
    TimerFired,
    CancelRequested,
    Interrupted,
    Suspended,
    Paused,
    Finished,
)


def shows_progress(entry: Entry) -> bool:
    """Return whether an entry shows that a run got further, or the orderly end of a life."""
    return isinstance(entry, _PROGRESS)


class DrivenRuns:
    """The runs that a worker drives side by side.

    A run that may have killed its process is driven alone until it gets further, for at most a minute.
    The others stop after their steps in progress, and none begins. Steps that take longer than `grace`
    are not waited for.

    `start_soon` starts a task that ends with the worker.

    Attributes:
        is_closed: whether no more runs may be taken, because one is driven alone.
        members: the number of runs that are driven.
    """

    def __init__(
        self, grace: float, on_open: Callable[[], object], start_soon: Callable[..., object]
    ) -> None:
        self.is_closed = False
        self._grace, self._on_open, self._start_soon = grace, on_open, start_soon
        self._drain = Drain()
        self._is_ending = False
        self.members = 0
        self._left = Wakeup()
        # Not a lock: any task of a run may open the door when the run gets further.
        self._door = anyio.Semaphore(1, fast_acquire=True)

    def look(self) -> None:
        """Let all runs look for messages."""
        for attendant in self._drain.attendants:
            attendant.note_change()

    @property
    def turns(self) -> int:
        """The number of turns that the runs have taken, which shows whether any went on."""
        return sum(one.turns for one in self._drain.attendants)

    @property
    def is_resting(self) -> bool:
        """Whether no run has anything to do before time passes or something arrives."""
        return self.members == sum(one.is_resting for one in self._drain.attendants)

    def end(self) -> None:
        """Ask all runs to stop, and those that join later to begin nothing."""
        self._is_ending = True
        self._drain.begin()

    @asynccontextmanager
    async def joined(self, run: Run, *, alone: bool) -> AsyncGenerator[None]:
        """Wait until a run may be driven; with `alone`, until no other is. The block drives it."""
        await self._door.acquire()
        opened = anyio.Event()

        def open_door() -> None:
            if not opened.is_set():
                opened.set()
                self._door.release()
                if alone:
                    self.is_closed = False
                    self._on_open()

        try:
            if alone:
                self.is_closed = True
                await self._empty()
                progress = _Progress(run.writer, open_door)
                run.writer.observers = (*run.writer.observers, progress)
                self._start_soon(_open_in_time, run.run_id, opened, open_door)
            else:
                open_door()
            run.drain = self._drain
            self.members += 1
            try:
                yield
            finally:
                self.members -= 1
                self._left.set()
        finally:
            open_door()

    async def _empty(self) -> None:
        """Stop the other runs after their steps in progress, and wait for that."""
        if not self._is_ending:
            self._drain.begin("another run is driven alone")
            self._drain = Drain()
        with anyio.move_on_after(self._grace):
            while self.members:
                await self._left.wait()


async def _open_in_time(run_id: str, opened: anyio.Event, open_door: Callable[[], object]) -> None:
    with anyio.move_on_after(_SECONDS_ALONE):
        await opened.wait()
    if not opened.is_set():
        logger.warning(
            "run %r did not get further in %g s alone: others are driven beside it, as it may wait for "
            "one of them",
            *(run_id, _SECONDS_ALONE),
        )
        open_door()


class _Progress:
    """An observer that calls `on_progress` once it is durable that a run got further."""

    def __init__(self, writer: JournalWriter, on_progress: Callable[[], object]) -> None:
        self._writer, self._on_progress = writer, on_progress
        self._shown_by: int | None = None

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case EntryAppended(entry=entry) if self._shown_by is None and shows_progress(entry):
                self._shown_by = self._writer.length
            case CheckpointSaved(entries=saved) if self._shown_by and saved >= self._shown_by:
                self._on_progress()
            case _:
                pass
