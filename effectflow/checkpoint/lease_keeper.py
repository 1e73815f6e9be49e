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
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.store import CheckpointStore
from effectflow.effects.clock import in_seconds
from effectflow.effects.event_loop import CallSoon, call_soon_from_threads

logger = logging.getLogger(__name__)

_IDLE = 10.0
"""The seconds without leases after which the thread ends."""

_LISTENS_AFTER = 1.0
"""The seconds after which a run listens for messages: most runs have ended by then."""


class _EventLoop:
    """An event loop with runs, as seen from the thread.

    Attributes:
        call_soon: calls into the event loop.
        asked: when the keeper asked the event loop to respond; None once it has responded.
        is_late: whether a warning said that it does not respond.
        is_given_up: whether an error said that the leases of its runs are not renewed any more.
    """

    def __init__(self, call_soon: CallSoon) -> None:
        self.call_soon = call_soon
        self.asked: float | None = None
        self.is_late = self.is_given_up = False

    def ask(self, now: float) -> bool:
        """Ask it to respond. Return False if it was closed."""
        if self.asked is None:
            self.asked = now
        try:
            self.call_soon(self._respond)
        except Exception:
            return False
        return True

    def _respond(self) -> None:
        self.asked = None
        self.is_late = self.is_given_up = False


class keep_lease:  # noqa: N801, used like a function in `with`
    """Renews the lease of a run while the `with` block runs in the event loop.

    Attributes:
        writer: the writer of the run, which has the lease.
        loop: the event loop of the run.
        seconds: how long the lease is valid after a renewal.
        due: when to renew the lease.
        listen: called in the event loop once, if the block takes longer than a second; None afterwards,
            and if nobody asked for it.
        listens_at: when to call it.
    """

    __slots__ = ("due", "listen", "listens_at", "loop", "seconds", "writer")

    def __init__(self, writer: JournalWriter, listen: Callable[[], object] | None = None) -> None:
        self.writer = writer
        self.listen = listen
        self.loop = _keeper.loop_of(call_soon_from_threads())
        self.seconds = writer.checkpoints.lease_length
        now = time.monotonic()
        self.due = now + self.seconds / 3
        self.listens_at = now + _LISTENS_AFTER

    @property
    def wakes_at(self) -> float:
        """When the thread has something to do for it."""
        return self.due if self.listen is None else min(self.due, self.listens_at)

    def __enter__(self) -> None:
        _keeper.add(self)

    def __exit__(self, *_: object) -> None:
        _keeper.remove(self)


class _Keeper:
    """The thread, and the leases that it renews."""

    def __init__(self) -> None:
        # In the order in which they were added.
        self._kept: dict[keep_lease, None] = {}
        # Each until its last run ends. A program may run every effect in an event loop of its own.
        self._loops: WeakValueDictionary[CallSoon, _EventLoop] = WeakValueDictionary()
        self._changing = threading.RLock()
        self._changed = threading.Condition(self._changing)
        self._wakes_at = 0.0
        self._is_running = False

    def loop_of(self, call_soon: CallSoon) -> _EventLoop:
        loop = self._loops.get(call_soon)
        if loop is None:
            loop = self._loops[call_soon] = _EventLoop(call_soon)
        return loop

    def add(self, kept: keep_lease) -> None:
        # The lock itself: to enter it through the condition takes several times as long.
        with self._changing:
            self._kept[kept] = None
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="effectflow-leases", daemon=True).start()
            elif kept.wakes_at < self._wakes_at:
                self._changed.notify()

    def remove(self, kept: keep_lease) -> None:
        self._kept.pop(kept, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                dues = [kept.wakes_at for kept in list(self._kept)]
                now = time.monotonic()
                self._wakes_at = min(dues, default=now + _IDLE)
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                if not self._kept and time.monotonic() >= self._wakes_at:
                    self._is_running = False
                    return
            self._let_listen()
            self._renew_due()

    def _let_listen(self) -> None:
        """Let the runs listen that take long. What is due soon is done, too, for fewer wake-ups."""
        until = time.monotonic() + _LISTENS_AFTER / 2
        for kept in list(self._kept):
            if kept.listen is not None and kept.listens_at <= until:
                listen, kept.listen = kept.listen, None
                # If the loop was closed in the meantime, nothing runs in it.
                with suppress(RuntimeError):
                    kept.loop.call_soon(listen)

    def _renew_due(self) -> None:
        """Renew the leases that are due, in one request for each store."""
        now = time.monotonic()
        batches: dict[tuple[int, float], list[keep_lease]] = {}
        for kept in list(self._kept):
            # What is due soon shares the request.
            if kept.due <= now + kept.seconds / 10:
                store = kept.writer.checkpoints.store
                batches.setdefault((id(store), kept.seconds), []).append(kept)
        for (_, seconds), batch in batches.items():
            if min(kept.due for kept in batch) > now:
                continue
            store = batch[0].writer.checkpoints.store
            if not self._renew(store, self._responding(batch, now), seconds):
                self._postpone(store)

    def _postpone(self, store: CheckpointStore) -> None:
        """Postpone the renewals of a store that failed, so that other stores need not wait."""
        now = time.monotonic()
        for kept in list(self._kept):
            if kept.writer.checkpoints.store is store:
                kept.due = max(kept.due, now + kept.seconds / 10)

    def _responding(self, batch: list[keep_lease], now: float) -> list[keep_lease]:
        """Return those whose event loops are not closed or stuck, and note when to renew them next."""
        closed = {loop for loop in {kept.loop for kept in batch} if not loop.ask(now)}
        responding: list[keep_lease] = []
        for kept in batch:
            kept.due = now + kept.seconds / 3
            if kept.loop in closed:
                self.remove(kept)
            elif not self._is_stuck(kept, now):
                responding.append(kept)
        if closed:
            # The runs ended with their event loop. Other processes may claim them at once. The leases
            # expire by themselves, too, and the store may have been closed with its event loop.
            gone = [kept.writer.lease for kept in batch if kept.loop in closed]
            with suppress(BaseException):
                batch[0].writer.checkpoints.store.renew(gone, seconds=0)
        return responding

    def _is_stuck(self, kept: keep_lease, now: float) -> bool:
        """Return whether the event loop of a run has been blocked for longer than `max_block`."""
        loop = kept.loop
        blocked = 0.0 if loop.asked is None else now - loop.asked
        if blocked > kept.seconds / 4 and not loop.is_late:
            loop.is_late = True
            self._warn(kept, blocked)
        if blocked <= in_seconds(kept.writer.checkpoints.max_block):
            return False
        if not loop.is_given_up:
            loop.is_given_up = True
            logger.error(
                "the event loop of run %r has been blocked for %.0f s, more than max_block of "
                "its Checkpoints: its lease is not renewed, so that another process may take "
                "over the run",
                kept.writer.run_id,
                blocked,
            )
        return True

    def _renew(self, store: CheckpointStore, batch: list[keep_lease], seconds: float) -> bool:
        """Renew leases. Return False if the store fails."""
        if not batch:
            return True
        leases = [kept.writer.lease for kept in batch]
        try:
            # Runs may have the same fencing token, and a run may have had others in this process.
            renewed = {
                (lease.run_id, lease.fence): lease for lease in store.renew(leases, seconds=seconds)
            }
        except BaseException as error:
            # A store may raise anything here. One that simulates the death of its process raises a
            # `BaseException`. The other leases must be kept anyway. If one of these is lost, a save
            # fails.
            others = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
            run_id = batch[0].writer.run_id
            logger.warning("the lease of run %r%s was not renewed: %r", run_id, others, error)
            return False
        for kept, lease in zip(batch, leases, strict=True):
            found = renewed.get((lease.run_id, lease.fence))
            if found is not None or kept in self._kept:
                # In its event loop, which may be claiming the run again. If the loop was closed in the
                # meantime, nothing runs in it.
                with suppress(RuntimeError):
                    kept.loop.call_soon(kept.writer.renewed, lease, found)
        return True

    def _warn(self, kept: keep_lease, seconds: float) -> None:
        """Warn that an event loop does not respond."""
        others = sum(other.loop is kept.loop for other in list(self._kept)) - 1
        logger.warning(
            "the event loop of run %r%s has not responded for %.1f s: some code blocks it, and until it "
            "returns, no other run continues and no timeout expires. Run such code in a thread, with "
            "from_blocking",
            kept.writer.run_id,
            f" and {others} more" if others > 0 else "",
            seconds,
        )


_keeper = _Keeper()


def _forget_in_child() -> None:
    """Start with an empty keeper, because a forked process has no threads and no leases."""
    global _keeper
    _keeper = _Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
