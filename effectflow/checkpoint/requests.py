"""What people ask of a whole run while a process drives it: to cancel itself, or to pause."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.endings import CarriedOn, PausedBy
from effectflow.checkpoint.entries import CancelRequested
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.notifications import listen
from effectflow.checkpoint.store import CANCEL, PAUSE, Message, ServiceStore
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import spawn_background
from effectflow.effects.paths import is_within
from effectflow.effects.scope import Operator

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

logger = logging.getLogger(__name__)

_SECONDS_AFTER_OUTAGE = 1.0
"""The seconds after which to look again for messages that could not be read."""


class Requests:
    """Finds the requests among the messages of a run, and lets its life follow them.

    Attributes:
        first_seen: the number of the newest message that came before this life; -1 until that is known.
        cancellation: the operator around the body that decides when a message requests a cancellation.
    """

    __slots__ = (
        "_has_ended",
        "_is_asked_to_cancel",
        "_is_looking",
        "_run",
        "_stop_listening",
        "cancellation",
        "first_seen",
    )

    def __init__(self, run: Run) -> None:
        self.first_seen = -1
        self.cancellation: Operator | None = None
        self._run = run
        self._is_asked_to_cancel = False
        self._is_looking = self._has_ended = False
        self._stop_listening: Callable[[], None] | None = None

    # Messages.

    async def look(self) -> None:
        """Read the new messages. One of them may cancel the run. Halt the run if the store fails."""
        await self._run.mailbox.refresh()
        self._take()

    async def look_patiently(self) -> None:
        """Read the new messages while the fibers go on. If the store fails, read them a second later."""
        while not self._has_ended:
            try:
                await self._run.mailbox.refresh(halts=False)
            except CheckpointError as error:
                # The fibers may not need any.
                logger.warning("the messages of run %r were not read: %s", self._run.run_id, error)
                await anyio.sleep(_SECONDS_AFTER_OUTAGE)
            else:
                self._take()
                return

    def listen(self) -> None:
        """From now on, look for messages as soon as they arrive. No worker attends to the run."""
        spawn_background(self._listen)

    async def _listen(self) -> None:
        store = self._run.checkpoints.store
        if not self._has_ended and isinstance(store, ServiceStore):
            self._stop_listening = listen(store, self._run.run_id, self._note_change)
            await self._look()

    def end(self) -> None:
        """Look for no more messages, because the body has ended."""
        self._has_ended = True
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _note_change(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            spawn_background(self._look)

    async def _look(self) -> None:
        self._is_looking = False
        with suppress(Halt):
            await self.look_patiently()

    def came_before(self, message: Message) -> float | None:
        """Return when a message came, if that was before this life, in seconds since the epoch.

        The clock of its sender may be ahead.
        """
        is_older = message.number <= self.first_seen
        return min(message.sent_at, self._run.opened_at) if is_older else None

    def _take(self) -> None:
        """Act on the messages that ask for something of the whole run."""
        run = self._run
        if self.first_seen < 0:
            self.first_seen = run.mailbox.seen
        # The next life finds the requests, too.
        if self._has_ended or run.turns.is_over or run.writer.halted is not None:
            return
        request = run.mailbox.first(CANCEL)
        if request is None:
            self._take_pause()
        elif self.cancellation is None:
            # What a cancellation would not interrupt ends in this life.
            run.end_at_rest(CarriedOn(), at_once=not run.stopping.has_shields)
        elif not self._is_asked_to_cancel:
            self._is_asked_to_cancel = True
            run.turns.announce(self._record_cancellation, since=self.came_before(request))

    def _take_pause(self) -> None:
        """Begin nothing more once someone has asked to pause the run. Steps in progress end."""
        run = self._run
        request = run.mailbox.first(PAUSE)
        if request is None or run.planning is not None or self.is_being_cancelled:
            return
        if run.drain is None and run.known_entries and request.number <= self.first_seen:
            # Someone has resumed the run since.
            run.mailbox.take(request)
            return
        # It is taken with the entry that says so: if this process dies before, the next one pauses.
        by = run.mailbox.value(request)
        run.end_at_rest(PausedBy(by if isinstance(by, str) else ""))

    # The cancellation.

    def _record_cancellation(self) -> None:
        run = self._run
        request = run.mailbox.first(CANCEL)
        # A body that has ended is not cancelled any more.
        if request is None or self.cancellation is None or self._has_ended:
            return
        by = run.mailbox.value(request)
        # In one append with the entry, so that a crash loses neither.
        run.mailbox.take(request)
        if not self.cancellation.is_decided:
            # The place where it came may be behind them.
            run.release_all_held()
            by = by if isinstance(by, str) else ""
            run.add(CancelRequested(run.now(), run.root.place, run.turns.turn, by), "")
            self.cancel_body()

    @property
    def is_being_cancelled(self) -> bool:
        """Whether a message has cancelled the body, so that the run ends as cancelled."""
        return self.cancellation is not None and self.cancellation.is_decided

    def cancel_body(self) -> None:
        """Cancel the body of the run."""
        operator = self.cancellation
        assert operator is not None
        assert operator.cut is not None
        operator.is_decided = True
        operator.cut.cancel()
        self._run.turns.wake_cancelled(self._run.root)

    def has_reached(self, place: str) -> bool:
        """Return whether the body has reached the place where the run was cancelled."""
        reached = self._run.root.place
        return reached == place or is_within(reached, place) or is_within(place, reached)

    def cancel_failed(self) -> None:
        """Let the cancellation count that someone has asked for before the body failed."""
        run = self._run
        is_over = run.turns.is_over or run.writer.halted is not None
        if self._is_asked_to_cancel and not is_over and run.turns.replay.next_entry is None:
            self._record_cancellation()
