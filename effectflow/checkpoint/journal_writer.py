"""Write the journal of a run: add entries in order, and make them durable in batches."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.delayed_saves import Delays, delays
from effectflow.checkpoint.entries import Entry, ErrorRecord, Finished, HeadState
from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    NotSerializable,
    RunBusy,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    process_of,
)
from effectflow.checkpoint.integrity import LARGE, LONG, Draft, Seal, off_loop
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.observers import CheckpointSaved, EntryAppended, tell
from effectflow.checkpoint.run_info import RunStatus, RunSummary
from effectflow.checkpoint.shared_parts import SharedParts
from effectflow.checkpoint.store import Batch, Transaction, TransactionUndone, find_run
from effectflow.effects.clock import in_seconds
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import is_cancellation, stray_cancellation

logger = logging.getLogger(__name__)

_SECONDS_OF_LAST_SAVES = 5.0

_LONGEST_ERROR = 200
"""The characters of an error that the summary of a run shows."""

LATER = sys.maxsize
"""The number of the entries that a plan leaves to the resume."""

_DELAYS_AT_THE_END = (0.1, 0.5, 2.0)
"""The seconds between the attempts to save the end of a run."""


def _closed(
    draft: Draft, seal: Seal, digest: bytes, shared: SharedParts, number: int
) -> tuple[bytes, bytes]:
    """Return the entry with this number as bytes, and its digest, given that of the entry before it.

    `shared` has the parts of earlier entries. Those of this one are added.
    """
    if draft.size < LARGE:
        return seal.close(draft, digest)
    return seal.close(draft, digest, shorten=partial(shared.shorten, sequence=number))


def _all_closed(
    drafts: Sequence[Draft], seal: Seal, digest: bytes, shared: SharedParts, first: int
) -> tuple[list[bytes], bytes]:
    """Return entries, the first one with this number, as bytes, and the digest of the last one."""
    bodies: list[bytes] = []
    for number, draft in enumerate(drafts, first):
        body, digest = _closed(draft, seal, digest, shared, number)
        bodies.append(body)
    return bodies, digest


class _Halting:
    """A writer that keeps the first error that ended its run.

    Attributes:
        halted: that error, or None.
        on_halt: ends the fibers of the run, which may wait for something else.
    """

    __slots__ = (
        "halted",
        "on_halt",
    )

    def __init__(self) -> None:
        self.halted: CheckpointError | None = None
        self.on_halt: Callable[[], object] | None = None

    def halt(self, error: CheckpointError) -> Halt:
        """End the run with this error, so that no more steps begin. Return the exception to raise."""
        if self.halted is None:
            self.halted = error
            if self.on_halt is not None:
                self.on_halt()
        return Halt(self.halted)

    def check(self) -> None:
        """Raise `Halt` if the run was halted."""
        if self.halted is not None:
            raise Halt(self.halted)


class NoJournal(_Halting):
    """The writer of a plan, which adds no entries."""

    __slots__ = ()

    is_released = True
    time = 0.0

    def add(self, entry: Entry) -> int:
        """Add nothing. Return a number that no entry has."""
        return LATER

    def take(self, *messages: int) -> None:
        """Leave the messages in the mailbox of the run."""


class JournalWriter(_Halting):
    """Adds entries to a buffer, and makes them durable: `save` waits until all added entries are durable.

    Parallel steps share a batch. If an entry cannot be saved, the run is halted.

    Attributes:
        lease: the lease of the run, which its keeper renews.
        is_claiming: whether the run is being claimed again, so that the lease will be another one.
        is_ending: whether the last append has begun, so that the lease may already be released.
        is_released: whether the lease was released.
        length, durable_length: the number of entries that were added, and of those that are durable.
        time: that of the newest entry of this life, in seconds since the epoch; 0 before.
        summary, durable_summary: the summary of the run, and the last one that was saved, or None.
        completed_since_save: the number of steps that have completed since the last save.
        observers: receive the entries that are added, and learn of saves.
        due, is_watched: as in `Delayed`.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_delays",
        "_digest",
        "_drafts",
        "_is_saving",
        "_is_silent",
        "_is_summary_due",
        "_last_saves",
        "_last_saves_until",
        "_linger",
        "_newest_step",
        "_opening",
        "_saved",
        "_seal",
        "_seen",
        "_shared",
        "_takes",
        "_unsure",
        "_unsure_takes",
        "checkpoints",
        "completed_since_save",
        "due",
        "durable_length",
        "durable_summary",
        "is_claiming",
        "is_ending",
        "is_released",
        "is_watched",
        "lease",
        "length",
        "observers",
        "run_id",
        "summary",
        "time",
    )

    def __init__(
        self,
        run_id: str,
        checkpoints: Checkpoints,
        *,
        lease: Lease,
        length: int,
        digest: bytes,
        summary: RunSummary,
        opening: Entry | None,
        newest_step: str | None,
        shared: SharedParts,
    ) -> None:
        super().__init__()
        self.run_id = run_id
        self.checkpoints = checkpoints
        self.lease = lease
        self.is_claiming = self.is_ending = self.is_released = False
        self.length = self.durable_length = length
        self.summary = summary
        # The first entry of a new run is in the store already, and the summary with it.
        self.durable_summary = None if opening is not None else summary
        self.completed_since_save = 0
        self.due: float | None = None
        self.is_watched = False
        self.observers = checkpoints.observers
        self._seal = checkpoints.seal
        self._digest: bytes = digest
        self.time = 0.0
        self._shared = shared
        self._opening = opening
        self._newest_step = newest_step
        self._buffer: list[bytes] = []
        # The first long entry that was added since, and all after it.
        self._drafts: list[Draft] = []
        self._takes: list[int] = []
        # The contents of a failed append, which may have taken effect.
        self._unsure: list[bytes] = []
        self._unsure_takes: list[int] = []
        self._is_summary_due = opening is not None
        self._seen: int | None = None
        self._is_saving = False
        self._saved: anyio.Event | None = None
        self._linger = checkpoints.policy.longest_wait
        self._delays: Delays | None = None
        self._last_saves = 0
        self._last_saves_until = 0.0
        self._is_silent = False

    def add(self, entry: Entry) -> int:
        """Add an entry. Return its sequence number. It is durable after the next `save`.

        The first entry follows the `opening`, such as `Resumed`.
        """
        if self._opening is not None:
            self.open()
        try:
            # Now, because what it has may change.
            draft = self._seal.draft(entry, before=self.time)
        except NotSerializable as error:
            raise self.halt(error) from error
        self.time = entry.at
        self.length += 1
        if self._drafts or draft.size > LONG:
            self._drafts.append(draft)
        else:
            closed = _closed(draft, self._seal, self._digest, self._shared, self.length)
            body, self._digest = closed
            self._buffer.append(body)
        if self.due is None:
            self._linger_from_now()
        if self.observers:
            if isinstance(entry, HeadState):
                self._newest_step = entry.step
            tell(self.observers, EntryAppended(self.run_id, entry))
        return self.length

    def take(self, *messages: int) -> None:
        """Remove messages, by their numbers, from the mailbox of the run with the next append."""
        self._takes += messages

    def announce(self) -> None:
        """Let the next append notify the watchers of the run."""
        self._is_summary_due = True

    def count_dead_letter(self) -> None:
        """Count one more dead letter in the summary of the run."""
        details = self.summary.details
        details = replace(details, dead_letters=details.dead_letters + 1)
        self.summary = replace(self.summary, details=details)
        self._is_summary_due = True

    def open(self) -> None:
        """Add the opening now."""
        opening, self._opening = self._opening, None
        if opening is not None:
            self.add(opening)

    def begin_again(self, opening: Entry) -> None:
        """Let another opening precede what is added from now on. Messages taken before were not."""
        self._opening = opening
        self._takes.clear()

    def save(
        self, *, required: bool = False, reason: str | None = None
    ) -> Coroutine[Any, Any, object]:
        """Wait until all added entries are durable. Raise `Halt` if that is impossible.

        Once the run is ending, `finish` alone saves.

        Parameters:
            required: whether the run must not continue without them, even with `on_save_error="warn"`.
            reason: why the save was requested, for observers; None for a save by the policy.
        """
        if self._is_saving or self.is_ending or self.durable_length == self.length:
            return self._save_in_turn(required=required, reason=reason)
        self.check()
        # One batch has everything. Another coroutine around it would make each step measurably slower.
        return self._save_batch(required=required, reason=reason)

    async def _save_in_turn(self, *, required: bool, reason: str | None) -> None:
        target = self.length
        # The entry of a transaction that was undone may have been taken back.
        while self.durable_length < min(target, self.length) and not self.is_ending:
            self.check()
            if self._is_saving:
                await self._next_save()
            elif not await self._save_batch(required=required, reason=reason):
                return
        self.check()

    async def finish(
        self,
        entry: Entry | None,
        status: RunStatus,
        *,
        release: bool = True,
        due_at: float | None = None,
        waits_for: str = "",
        seen: int | None = None,
    ) -> bool:
        """Add the last entry, make everything durable, and release the lease in the same commit.

        Return False if that could not be saved, with `on_save_error="warn"`.

        Parameters:
            due_at, waits_for: as in the summary of a run.
            seen: the number of the newest message that the run has read; see `CheckpointStore.append`.
        """
        while self._is_saving:
            await self._next_save()
        self.check()
        # Not earlier, because another waiting save would save the entry without the summary.
        if entry is not None:
            self.add(entry)
        self.summary = self.summary.become(status, due_at=due_at, waits_for=waits_for)
        if isinstance(entry, Finished) and entry.error is not None:
            details = replace(
                self.summary.details, error=self._shown(entry.error), owner=self.lease.owner
            )
            self.summary = replace(self.summary, details=details)
        self._is_summary_due = True
        self._seen = seen
        # From here on, the lease may be released before this process knows it.
        self.is_ending = True
        try:
            return await self._save_end(release=release)
        except Halt:
            raise
        except BaseException:
            # A cancellation interrupted the append. The last entry of a run is worth a second attempt.
            with self.last_saves(), suppress(Exception, Halt):
                if not await self._has_ended():
                    await self._save_batch(release=True)
            raise

    def _shown(self, error: ErrorRecord) -> str:
        """Return an error in words for the summary, which is not encrypted."""
        if self.checkpoints.encryption is not None:
            return error.type
        text = f"{error.type}: {error.message}"
        return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}..."

    async def _has_ended(self) -> bool:
        """Return whether the last append took effect, which released the lease."""
        info = await find_run(self.checkpoints.store, self.run_id)
        has_ended = info is not None and info.lease is None and info.length == self.length
        self.is_released = self.is_released or has_ended
        return has_ended

    async def _save_end(self, *, release: bool) -> bool:
        """Save the last batch. With `on_save_error="warn"`, try again for some seconds."""
        for delay in _DELAYS_AT_THE_END:
            if await self._save_batch(release=release):
                return True
            await anyio.sleep(delay)
        if await self._save_batch(release=release):
            return True
        logger.error(
            "run %r has ended, but that could not be saved: a resume continues it after its last "
            "saved entry",
            self.run_id,
        )
        return False

    @contextmanager
    def last_saves(self) -> Generator[None]:
        """Shield the last saves of a stopped run from the cancellation, for at most five seconds.

        If the store does not answer in that time, later saves do not wait for it. So a run that is
        cancelled while its server is down ends after five seconds in total.
        """
        now = time.monotonic()
        if not self._last_saves:
            self._last_saves_until = now + (0 if self._is_silent else _SECONDS_OF_LAST_SAVES)
        self._last_saves += 1
        try:
            with anyio.move_on_after(self._last_saves_until - now, shield=True) as scope:
                yield
        finally:
            self._last_saves -= 1
        self._is_silent = self._is_silent or scope.cancelled_caught

    async def flush(self) -> None:
        """Save the entries of a halted run, unless the store caused the halt."""
        if (self._buffer or self._drafts) and not isinstance(
            self.halted, LeaseLost | SaveFailed | StoreUnavailable
        ):
            with self.last_saves(), suppress(Exception, Halt):
                while self._is_saving:
                    await self._next_save()
                await self._save_batch(required=True)

    async def release(self) -> bool:
        """Release the lease if this process still holds it. Return False if the store did not answer.

        Errors are only logged, because the lease expires by itself.
        """
        if self.is_released:
            return True
        self.is_released = self.is_ending = True
        try:
            with self.last_saves():
                await self.checkpoints.store.release(self.lease)
                return True
        except Exception as error:
            logger.warning("the lease of run %r was not released: %r", self.run_id, error)
        return False

    async def save_late(self) -> None:
        """Save entries that no step made durable in time. End the run if that fails."""
        self.due = None
        try:
            await self.save()
            # Entries are left only if the save failed with a warning. Try again later.
            if self.length > self.durable_length and self.due is None:
                self._linger_from_now()
        except Halt:
            pass
        except BaseException as raised:
            if is_cancellation(raised) or isinstance(raised, KeyboardInterrupt | SystemExit):
                raise
            # A store simulates the death of the process. The next append of the run raises it again. If
            # this background task raised it, the whole event loop would end on trio.

    def renewed(self, before: Lease, lease: Lease | None) -> None:
        """Note that a lease was renewed. If it could not be, because it is not current, end the run."""
        if self.lease is not before or self.is_claiming:
            # This process has claimed the run again in the meantime.
            return
        if lease is not None:
            self.lease = lease
        elif not (self.is_ending or self.is_released):
            reason = "another process has claimed it, or it was deleted"
            self.halt(LeaseLost(self.run_id, reason))

    def _linger_from_now(self) -> None:
        """Schedule a save of the buffer, in case no step saves it."""
        if self._linger is not None:
            self.due = time.monotonic() + self._linger
            if not self.is_watched:
                if self._delays is None:
                    self._delays = delays.get()
                self._delays.watch(self)

    async def _next_save(self) -> None:
        """Wait for the end of the append that is in progress."""
        if self._saved is None:
            self._saved = anyio.Event()
        await self._saved.wait()

    # Transactions of a step.

    @asynccontextmanager
    async def reserved(self) -> AsyncGenerator[None]:
        """Let nothing but `save_in` append to the journal in this block, which has a transaction."""
        while self._is_saving:
            await self._next_save()
        self.check()
        self._is_saving = True
        try:
            if self._unsure:
                await self._find_out()
            while self._drafts:
                await self._close_drafts()
            yield
        finally:
            self._end_save()

    async def save_in(self, transaction: Transaction, add: Callable[[], object]) -> None:
        """Save the entry that `add()` adds, and all before it, in a transaction, and commit that.

        If this raises TransactionUndone, the entry was not added.
        """
        self.check()
        before = self.length, self.time, self._digest, self._shared.copy()
        add()
        try:
            await self._save_batch(required=True, append=transaction.append)
        except TransactionUndone as undone:
            if self.length > before[0] + 1:
                # Its number has been taken. The next life tries again.
                raise self.halt(SaveFailed(self.run_id, str(undone))) from undone.error
            del self._buffer[-1]
            self.length, self.time, self._digest, self._shared = before
            raise

    def _end_save(self) -> None:
        self._is_saving = False
        if self._saved is not None:
            self._saved.set()
            self._saved = None

    async def _save_batch(
        self,
        *,
        release: bool = False,
        required: bool = False,
        reason: str | None = None,
        append: Callable[[Lease, Batch], Awaitable[None]] | None = None,
    ) -> bool:
        """Append what is buffered. Return False if the save failed and the run continues.

        `append` replaces that of the store.
        """
        self._is_saving = True
        try:
            if self._unsure:
                await self._find_out()
            while self._drafts:
                # Others may be added meanwhile. What is saved with them must not be saved before them.
                await self._close_drafts()
            batch, self._buffer = self._buffer, []
            takes, self._takes = self._takes, []
            step = self._newest_step
            self.due = None
            # It may change again while the append is in progress.
            summary = self.summary if self._is_summary_due else None
            self._is_summary_due = False
            began = time.perf_counter() if self.observers else 0.0
            try:
                await (append or self.checkpoints.store.append)(
                    self.lease,
                    Batch(batch, self.durable_length, summary, release, takes, self._seen),
                )
            except LeaseLost:
                raise
            except TransactionUndone:
                self._buffer[:0], self._takes[:0] = batch, takes
                self._is_summary_due = self._is_summary_due or summary is not None
                raise
            except BaseException as raised:
                if append is not None:
                    # Without its transaction, the batch must never be saved.
                    self.halt(self._save_failed(raised))
                    raise
                # It may have taken effect.
                self._unsure, self._unsure_takes = batch, takes
                self._is_summary_due = self._is_summary_due or summary is not None
                self._linger_from_now()
                if (stray := stray_cancellation(raised)) is not None:
                    raise stray from raised
                raise
            self.durable_length += len(batch)
            self.durable_summary = summary or self.durable_summary
            self._is_silent = False
            self.completed_since_save = 0
            if release:
                self.is_released = True
                if self._delays is not None:
                    self._delays.forget(self)
            if self.observers:
                seconds = time.perf_counter() - began
                saved = CheckpointSaved(self.run_id, self.durable_length, step, reason, seconds)
                tell(self.observers, saved)
        except TransactionUndone:
            raise
        except Exception as raised:
            error = self._save_failed(raised)
            may_warn = self.checkpoints.on_save_error == "warn" and not required
            if may_warn and not isinstance(error, LeaseLost):
                logger.warning("%s The run continues, and tries again with the next entry.", error)
                return False
            raise self.halt(error) from raised
        finally:
            # A transaction has reserved the journal until it has ended.
            if append is None:
                self._end_save()
        self.check()
        return True

    async def _close_drafts(self) -> None:
        """Move what is only drafted into the buffer. If this is cancelled, nothing has changed."""
        drafts, shared = [*self._drafts], self._shared.copy()
        first = self.length - len(drafts) + 1
        close = partial(_all_closed, drafts, self._seal, self._digest, shared, first)
        bodies, digest = await off_loop(close, sum(draft.size for draft in drafts))
        self._buffer += bodies
        self._digest, self._shared = digest, shared
        del self._drafts[: len(drafts)]

    def _save_failed(self, raised: BaseException) -> CheckpointError:
        if isinstance(raised, CheckpointError):
            return raised
        return SaveFailed(self.run_id, f"the store raised {raised!r}")

    async def _find_out(self) -> None:
        """Find out whether an append that failed or was cancelled took effect, and continue from there.

        This claims the run again, for a new fencing token. An append with the old token has happened by
        then, or never will.
        """
        store, seconds = self.checkpoints.store, in_seconds(self.checkpoints.lease_seconds)
        self.is_claiming = True
        try:
            taken = await store.claim(self.run_id, owner=self.lease.owner, seconds=seconds)
            self.lease = taken.lease
        except RunBusy as busy:
            raise LeaseLost(
                self.run_id, f"{process_of(busy.owner)} holds it", owner=busy.owner
            ) from busy
        except RunNotFound as gone:
            raise LeaseLost(self.run_id, "the run was deleted") from gone
        finally:
            self.is_claiming = False
        written = [
            record.body for record in await store.read(self.run_id, after=self.durable_length)
        ]
        if not written:
            self._buffer = self._unsure + self._buffer
            self._takes = self._unsure_takes + self._takes
        elif written == self._unsure:
            self.durable_length += len(written)
        else:
            # The lease had expired. The run is free, but another process may have driven it.
            raise LeaseLost(self.run_id, "another process has driven it since")
        self._unsure, self._unsure_takes = [], []
