"""Renew the leases of all runs of this process, in one thread.

It is a thread, because a run must not lose its lease when a step blocks the event loop. A process that
is paused or dead renews nothing, and neither does one whose event loop has been blocked for longer than
`Checkpoints.max_block`.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from effectflow.checkpoint.errors import LeaseLost
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.clock import in_seconds
from effectflow.effects.event_loop import call_soon_from_threads

logger = logging.getLogger(__name__)

_IDLE = 10.0
"""The seconds without leases after which the thread ends."""


class keep_lease:  # noqa: N801, used like a function in `with`
    """Renews the lease of a run while the `with` block runs in the event loop.

    Attributes:
        writer: the writer of the run, which has the lease.
        call_soon: calls into the event loop of the run.
        due: when to renew the lease.
        asked: when the keeper asked the event loop to respond; None once it has responded.
        is_late: whether a warning said that the event loop does not respond.
        is_given_up: whether an error said that the lease is not renewed any more.
    """

    __slots__ = ("asked", "call_soon", "due", "is_given_up", "is_late", "writer")

    def __init__(self, writer: JournalWriter) -> None:
        self.writer = writer
        self.call_soon = call_soon_from_threads()
        self.due = time.monotonic() + writer.checkpoints.lease_length / 3
        self.asked: float | None = None
        self.is_late = self.is_given_up = False

    def __enter__(self) -> None:
        _keeper.add(self)

    def __exit__(self, *_: object) -> None:
        _keeper.remove(self)

    def respond(self) -> None:
        """Note that the event loop responds."""
        self.asked = None
        self.is_late = self.is_given_up = False


class _Keeper:
    """The thread, and the leases that it renews."""

    def __init__(self) -> None:
        # In the order in which they were added.
        self._kept: dict[keep_lease, None] = {}
        self._changing = threading.RLock()
        self._changed = threading.Condition(self._changing)
        self._wakes_at = 0.0
        self._is_running = False

    def add(self, kept: keep_lease) -> None:
        # The lock itself: to enter it through the condition takes several times as long.
        with self._changing:
            self._kept[kept] = None
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="effectflow-leases", daemon=True).start()
            elif kept.due < self._wakes_at:
                self._changed.notify()

    def remove(self, kept: keep_lease) -> None:
        self._kept.pop(kept, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                dues = [kept.due for kept in list(self._kept)]
                now = time.monotonic()
                self._wakes_at = min(dues, default=now + _IDLE)
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                if not self._kept and time.monotonic() >= self._wakes_at:
                    self._is_running = False
                    return
            self._renew_due()

    def _renew_due(self) -> None:
        """Renew the leases that are due."""
        for kept in list(self._kept):
            # Its run may have ended while others were renewed.
            if kept in self._kept and kept.due <= time.monotonic() and not self._renew(kept):
                self._postpone(kept.writer.checkpoints.store)

    def _postpone(self, store: CheckpointStore) -> None:
        """Postpone the renewals of a store that failed, so that other stores need not wait."""
        now = time.monotonic()
        for kept in list(self._kept):
            checkpoints = kept.writer.checkpoints
            if checkpoints.store is store:
                kept.due = max(kept.due, now + checkpoints.lease_length / 10)

    def _renew(self, kept: keep_lease) -> bool:
        """Renew one lease. Return False if the store fails."""
        writer = kept.writer
        seconds = writer.checkpoints.lease_length
        max_block = in_seconds(writer.checkpoints.max_block)
        now = time.monotonic()
        kept.due = now + seconds / 3
        if kept.asked is not None:
            self._warn(kept, now - kept.asked)
        asked = kept.asked = kept.asked or now
        try:
            kept.call_soon(kept.respond)
        except Exception:
            # The event loop was closed, and the run with it. Other processes may claim the run at once.
            self.remove(kept)
            try:
                writer.checkpoints.store.renew(writer.lease, seconds=0)
            except BaseException:
                # The lease expires by itself, and the store may have been closed with its event loop.
                return False
            return True
        if now - asked > max_block:
            if not kept.is_given_up:
                kept.is_given_up = True
                logger.error(
                    "the event loop of run %r has been blocked for %.0f s, more than max_block of "
                    "its Checkpoints: its lease is not renewed, so that another process may take "
                    "over the run",
                    writer.run_id,
                    now - asked,
                )
            return True
        lease = writer.lease
        try:
            renewed = writer.checkpoints.store.renew(lease, seconds=seconds)
        except LeaseLost as error:
            # If this process claimed the run again in the meantime, the lease has another token.
            if writer.lease is lease and not writer.is_claiming and not writer.is_released:
                kept.call_soon(writer.lose_lease, error)
        except BaseException as error:
            # A store may raise anything here. One that simulates the death of its process raises a
            # `BaseException`. The other leases must be kept anyway. If this one is lost, a save fails.
            logger.warning("the lease of run %r was not renewed: %r", writer.run_id, error)
            return False
        else:
            if writer.lease is lease:
                writer.lease = renewed
        return True

    def _warn(self, kept: keep_lease, seconds: float) -> None:
        """Warn, once for each block, that an event loop does not respond."""
        runs = [other for other in list(self._kept) if other.call_soon == kept.call_soon]
        if any(other.is_late for other in runs):
            return
        kept.is_late = True
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        logger.warning(
            "the event loop of run %r%s has not responded for %.1f s: some code blocks it, and until it "
            "returns, no other run continues and no timeout expires. Run such code in a thread, with "
            "from_blocking",
            kept.writer.run_id,
            others,
            seconds,
        )


_keeper = _Keeper()


def _forget_in_child() -> None:
    """Start with an empty keeper, because a forked process has no threads and no leases."""
    global _keeper
    _keeper = _Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
