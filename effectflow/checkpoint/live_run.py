"""A run that this process drives: its lease, its journal, and what is not yet durable of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import anyio
from returns.maybe import Maybe, Nothing, Some

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import (
    BeforeStep,
    Completed,
    Entry,
    Failed,
    Interrupted,
    Recorded,
)
from effectflow.checkpoint.errors import (
    CheckpointError,
    LeaseLost,
    NotSerializable,
    RunBusy,
    SaveFailed,
)
from effectflow.checkpoint.events import CheckpointEvent, CheckpointSaved, EntryAppended, tell
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.past import Past, Unsettled
from effectflow.checkpoint.save_request import save_request
from effectflow.checkpoint.store import RunStatus, RunSummary
from effectflow.checkpoint.values import KnownTypes, Tree, from_tree, to_tree
from effectflow.effects.clock import Clock
from effectflow.effects.errors import Halt

__all__ = ["REOPENED", "LiveRun"]

logger = logging.getLogger(__name__)

REOPENED = "reopened"
"""Where it is recorded how often a complete run was made to go on."""

_NO_TYPES = KnownTypes.of()


class LiveRun:
    """The one writer of a run's journal in this process.

    Entries are added to a buffer, in order, and made durable in batches: `save` waits until
    everything added so far is. Steps that run side by side share a batch.
    """

    def __init__(
        self,
        run_id: str,
        checkpoints: Checkpoints,
        *,
        lease: Lease,
        past: Past,
        length: int,
        digest: bytes,
        summary: RunSummary,
        clock: Clock,
        context: Mapping[str, object] = MappingProxyType({}),
        force: bool = False,
    ) -> None:
        self.run_id = run_id
        self.checkpoints = checkpoints
        self.lease = lease
        self.past = past
        self.summary = summary
        self.context = MappingProxyType(dict(context))
        self.force = force
        self.clock = clock
        self.halted: CheckpointError | None = None
        self.is_complete = False
        self.last_completed: str | None = None
        self._cut_off: dict[str, None] = {}
        self._ends_interrupted = False
        self._renewing = anyio.Lock()
        self._unsettled = Unsettled()
        self._seal = checkpoints.seal
        self._digest = digest
        self._durable = length
        self._added = length
        self._buffer: list[bytes] = []
        self._completed_since_save = 0
        self._is_saving = False
        self._saved: anyio.Event | None = None
        self._unsure: list[bytes] = []
        self._is_summary_due = True
        self._is_released = False
        self._resting: anyio.Event | None = None
        self._due: float | None = None
        self._linger = checkpoints.policy.longest_wait

    # What steps say.

    def now(self) -> float:
        """What entries say of when they were written, in seconds since the epoch."""
        return self.clock.now().timestamp()

    def add(self, entry: Entry) -> None:
        """Add an entry to the journal. It is durable after the next `save`."""
        try:
            body, self._digest = self._seal.close(entry, self._digest)
        except NotSerializable as error:
            raise self.halt(error) from error
        self._buffer.append(body)
        self._added += 1
        if self._due is None:
            self._linger_from_now()
        self.notify(EntryAppended(self.run_id, entry))

    async def before_step(self, entry: BeforeStep, *, at_once: bool) -> None:
        """Add the entry and make it durable before the step runs, if the policy says so."""
        self._unsettled.go_on(entry.step)
        self._ends_interrupted = False
        self.add(entry)
        if at_once or self.checkpoints.policy.is_due(self._completed_since_save):
            try:
                await self.save()
            except BaseException:
                # Whoever cancels this cuts the step off, though it never ran.
                self._cut_off_at(entry.step)
                raise

    def completed(self, entry: Completed) -> None:
        """Add the entry. It becomes durable with the next step's, or shortly, or at the end."""
        self._unsettled.go_on(entry.step)
        self._ends_interrupted = False
        self._completed_since_save += 1
        self.last_completed = entry.step
        self.add(entry)

    async def failed(self, entry: Failed, unreadable: NotSerializable | None = None) -> None:
        """Add the entry, and make it durable if the policy says so.

        `unreadable` says why a resume could not rebuild the error. It ends the run if the workflow
        handles the failure and goes on, as a resume would have to know what it handled.
        """
        if unreadable is not None:
            self._unsettled.add(entry.step, partial(self._refuse, unreadable))
        self._ends_interrupted = False
        self.add(entry)
        if self.checkpoints.policy.on_error:
            await self.save()

    async def interrupted(self, step: str, reason: str) -> None:
        """Say that the step was cut off, durably, within a bounded time: somebody wants us to stop."""
        self._cut_off_at(step)
        self._ends_interrupted = True
        self.add(Interrupted(step, in_progress=True, reason=reason, at=self.now()))
        with anyio.move_on_after(5, shield=True):
            await self.save()

    def interruption(self, reason: str) -> Interrupted | None:
        """What is to be said of an interruption last; None if a step has said it already.

        Steps beside the one that was cut off may have ended after it, and the journal with them.
        """
        if self._ends_interrupted:
            return None
        step, in_progress = self.last_completed, False
        if self._cut_off:
            step, in_progress = next(reversed(self._cut_off)), True
        return Interrupted(step, in_progress=in_progress, reason=reason, at=self.now())

    def _cut_off_at(self, step: str) -> None:
        """The run stands at this step, unless its flow goes on: as a timeout was handled, say."""
        self._cut_off[step] = None
        self._unsettled.add(step, partial(self._cut_off.pop, step, None))

    def recall(self, path: str) -> Maybe[Any]:
        """What was recorded at this place of the run, if anything was."""
        self.check()
        if path not in self.past.recorded:
            return Nothing
        return Some(from_tree(self.past.recorded[path], path=path, types=_NO_TYPES))

    def record(self, path: str, value: object, *, is_failure: bool = False) -> None:
        """Add the value to the journal, for the next time that the run comes by."""
        self._unsettled.go_on(path)
        tree = to_tree(value, path=path, types=_NO_TYPES)
        self.add(Recorded(path, tree, self.now(), is_failure))

    def reopen(self) -> None:
        """Record that a complete run goes on. How often that was is recalled as `REOPENED`."""
        past = self.past.recorded
        before = past.get(REOPENED, 0)
        assert isinstance(before, int)
        past[REOPENED] = before + 1
        self.record(REOPENED, before + 1)

    def _refuse(self, error: CheckpointError) -> None:
        raise self.halt(error)

    def encode(self, value: object, path: str, types: KnownTypes) -> Tree:
        """A value as it is saved. One that cannot be saved ends the run."""
        try:
            return to_tree(value, path=f"{path}: $", types=types)
        except NotSerializable as error:
            raise self.halt(error) from error

    # What becomes durable, and when.

    async def save(self) -> None:
        """Wait until every entry that was added is durable.

        Ends the run (`Halt`) when that cannot be had.
        """
        target = self._added
        while self._durable < target:
            self.check()
            if self._is_saving:
                await self._next_save()
            elif not await self._save_batch(RunStatus.RUNNING):
                return
        self.check()

    async def finish(self, entry: Entry | None, status: RunStatus) -> None:
        """Add the last entry, make everything durable, and give the lease free with it."""
        if entry is not None:
            self.add(entry)
        while self._is_saving:
            await self._next_save()
        self.check()
        try:
            await self._save_batch(status, release=True)
        except Halt:
            raise
        except BaseException:
            # Cut off by a cancellation; the last word of a run is worth a second attempt.
            with anyio.move_on_after(5, shield=True), suppress(Halt):
                await self._save_batch(status, release=True)
            raise

    async def _next_save(self) -> None:
        """Wait for the end of the append that is under way."""
        if self._saved is None:
            self._saved = anyio.Event()
        await self._saved.wait()

    async def _save_batch(self, status: RunStatus, *, release: bool = False) -> bool:
        """Append what is buffered. Gives False if that failed and the run is to go on without."""
        self._is_saving = True
        try:
            if self._unsure:
                await self._settle()
            if status is not self.summary.status:
                self.summary = replace(self.summary, status=status)
                self._is_summary_due = True
            await self._append(release=release)
        except Exception as raised:
            error = self._save_failed(raised)
            if self.checkpoints.on_save_error == "warn" and not isinstance(error, LeaseLost):
                logger.warning("%s The run goes on, and tries again with the next entry.", error)
                return False
            raise self.halt(error) from raised
        finally:
            self._is_saving = False
            if self._saved is not None:
                self._saved.set()
                self._saved = None
        return True

    def _save_failed(self, raised: Exception) -> CheckpointError:
        if isinstance(raised, CheckpointError):
            return raised
        return SaveFailed(self.run_id, f"the store raised {raised!r}")

    async def _append(self, *, release: bool) -> None:
        batch, self._buffer = self._buffer, []
        self._due = None
        try:
            await self.checkpoints.store.append(
                self.lease,
                batch,
                after=self._durable,
                summary=self.summary if self._is_summary_due else None,
                release=release,
            )
        except LeaseLost:
            raise
        except BaseException:
            # It may have taken effect all the same.
            self._unsure = batch
            self._linger_from_now()
            raise
        self._durable += len(batch)
        self._completed_since_save = 0
        self._is_summary_due = False
        self._is_released = release
        self.is_complete = self.summary.status is RunStatus.COMPLETED
        self.notify(CheckpointSaved(self.run_id, self._durable))

    async def _settle(self) -> None:
        """Find out what became of an append that failed or was cancelled, and go on from there.

        The run is claimed once more, for its new fence: an append under the old one has happened by
        then, or never will.
        """
        store, seconds = self.checkpoints.store, self.checkpoints.lease_seconds
        async with self._renewing:
            try:
                self.lease = await store.claim(self.run_id, owner=self.lease.owner, seconds=seconds)
            except RunBusy as busy:
                raise LeaseLost(self.run_id, f"it is held by {busy.owner}") from busy
        written = [record.body for record in await store.read(self.run_id, after=self._durable)]
        if not written:
            self._buffer = self._unsure + self._buffer
        elif written == self._unsure:
            self._durable += len(written)
        else:
            # Our lease had expired. It has given the run free again, but we do not know what it did.
            raise LeaseLost(self.run_id, "another process has driven it since")
        self._unsure = []

    async def release(self) -> None:
        """Give the lease free, if it is still ours. Never fails: it would expire by itself."""
        if self._is_released:
            return
        try:
            with anyio.move_on_after(5, shield=True):
                await self.checkpoints.store.release(self.lease)
        except Exception as error:
            logger.warning("the lease of run %r was not released: %r", self.run_id, error)

    async def keep_lease(self) -> None:
        """Renew the lease in time, for ever. Ends the run when another process holds it."""
        store, seconds = self.checkpoints.store, self.checkpoints.lease_seconds
        while True:
            await anyio.sleep(seconds / 3)
            try:
                async with self._renewing:
                    self.lease = await anyio.to_thread.run_sync(
                        partial(store.renew, self.lease, seconds=seconds)
                    )
            except LeaseLost as error:
                raise self.halt(error) from error
            except Exception as error:
                # What a store may raise is not known here. Should the lease be lost, a save will say so.
                logger.warning("the lease of run %r was not renewed: %r", self.run_id, error)

    def _linger_from_now(self) -> None:
        """What is buffered is to be durable a certain time from now, whether or not a step asks."""
        if self._linger is None:
            return
        self._due = time.monotonic() + self._linger
        if self._resting is not None:
            self._resting.set()

    async def save_what_lingers(self) -> None:
        """Make durable in time what no later step makes durable, for ever."""
        while True:
            if self._due is None:
                self._resting = anyio.Event()
                await self._resting.wait()
                self._resting = None
            elif (left := self._due - time.monotonic()) > 0:
                # Steps that follow one another make entries durable without our help.
                await anyio.sleep(left)
            else:
                # Should that fail with a warning only, it is tried again then.
                self._linger_from_now()
                await self.save()

    async def save_when_asked(self) -> None:
        """Make everything durable whenever somebody asks for that, for ever."""
        request = save_request.get()
        if request is None:
            return
        number = request.number
        while True:
            number = await request.later_than(number)
            await self.save()

    # How it ends early.

    def halt(self, error: CheckpointError) -> Halt:
        """End the run with this error: no step starts any more. Gives what is to be raised."""
        if self.halted is None:
            self.halted = error
        return Halt(self.halted)

    def check(self) -> None:
        """Raise `Halt` if the run was ended."""
        if self.halted is not None:
            raise Halt(self.halted)

    def notify(self, event: CheckpointEvent) -> None:
        """Tell the observers."""
        tell(self.checkpoints.observers, event)
