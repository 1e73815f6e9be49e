"""The claim of a run while this process drives it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, cast
from weakref import WeakValueDictionary

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.entries import Finished, Resumed, Started
from effectflow.checkpoint.errors import CheckpointError, RunConflict
from effectflow.checkpoint.integrity import first_digest
from effectflow.checkpoint.journal_reader import check_against
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease import Lease, Owner, claim_or_release, end_claim
from effectflow.checkpoint.recording import Recording
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import (
    KeepsHistory,
    RunInfo,
    RunStatus,
    RunSummary,
    Taken,
    at_once,
    store_errors,
)
from effectflow.checkpoint.values import Tree
from effectflow.workflows.lookup import Found, GivenInput, Place, context_of, look, output_of

logger = logging.getLogger(__name__)


class _Overlap:
    """The starts and resumes of one run with `preserve=False` that are under way in this process.

    A start may claim a run that another one has completed and deleted since the first one began. It
    must not execute the run again, and finds the output here.

    Attributes:
        completed: the workflow and the last entry of the run that was deleted.
    """

    def __init__(self) -> None:
        self.completed: tuple[str, Finished] | None = None


_overlaps: WeakValueDictionary[tuple[int, str], _Overlap] = WeakValueDictionary()
"""The overlapping starts, by the identity of the store and the id of the run."""


class Claim:
    """Holds the lease of a run from `begin` on, and releases it however the run ends.

    With `preserve=False`, it deletes a complete run while it holds the lease, so that no other process
    can claim the run in between.

    Attributes:
        run_id: the id of the run.
        finished: the last entry of the run once it is complete.
        input: the input of the run, in its saved form.
    """

    def __init__(self, place: Place, run_id: str) -> None:
        self.place = place
        self.finished: Finished | None = None
        self.input: Tree = None
        self.run_id = run_id
        self._key = (id(place.checkpoints.store), run_id)
        self._overlap: _Overlap | None = None
        if not place.checkpoints.preserve:
            self._overlap = _overlaps.setdefault(self._key, _Overlap())
        self._owner: Owner | None = None
        self._lease: Lease | None = None
        self._info: RunInfo | None = None
        self._run: Run | None = None

    async def begin(self) -> None:
        """Claim the run. Raise RunBusy if another owner holds it."""
        store = self.place.checkpoints.store
        with store_errors(store, self.run_id):
            self._owner, self._lease = await claim_or_release(
                store, self.run_id, seconds=self.place.checkpoints.lease_length
            )

    @staticmethod
    def of(place: Place, taken: Taken, owner: Owner) -> Claim:
        """Return the claim of a run that a worker has taken for this owner."""
        claim = Claim(place, taken.lease.run_id)
        claim._owner, claim._lease, claim._info = owner, taken.lease, taken.info
        return claim

    @property
    def is_preserved(self) -> bool:
        """Whether the run is kept once it is complete. Spawned runs are: their parents may ask."""
        is_spawned = self._run is not None and bool(self._run.writer.summary.parent)
        return self.place.is_preserved or is_spawned

    @property
    def was_left(self) -> bool:
        """Whether the previous owner has died, or let the lease expire."""
        return self._info is not None and self._info.lease is not None

    @property
    def summary(self) -> RunSummary | None:
        """The summary of the run, as this process has written or found it."""
        if self._run is not None:
            return self._run.writer.summary
        return None if self._info is None else self._info.summary

    async def block(self, reason: str, *, seconds: float) -> bool:
        """Release a run that this program cannot continue, and record the reason.

        The stored status does not change. Workers may take the run again after `seconds`. Return False
        if the store rejected that.
        """
        assert self._info is not None
        writer = None if self._run is None else self._run.writer
        lease, length, summary = self.lease, self._info.length, self._info.summary
        if writer is not None:
            lease, length = writer.lease, writer.durable_length
            # Not the summary that could not be saved, which may say that the run has ended.
            summary = writer.durable_summary or summary
        due_at = self.place.scope.clock.now().timestamp() + seconds
        summary = replace(summary, blocked=reason, due_at=due_at)
        with anyio.move_on_after(5, shield=True), self._only_logged("marked as blocked"):
            await self.place.checkpoints.store.append(
                lease, [], after=length, summary=summary, release=True
            )
            if writer is not None:
                writer.is_released = True
            return True
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        is_released = False
        try:
            if self.finished is not None and not self.is_preserved:
                is_released = await self._delete(self.finished)
            if not is_released:
                is_released = await self._release()
        finally:
            if self._owner is not None:
                end_claim(self._owner, is_released=is_released)

    async def _release(self) -> bool:
        if self._run is not None:
            return await self._run.writer.release()
        with anyio.move_on_after(5, shield=True), self._only_logged("released"):
            await self.place.checkpoints.store.release(self.lease)
            return True
        return False

    async def _delete(self, finished: Finished) -> bool:
        """Delete the run. Return False if that failed: the next start or resume of it tries again."""
        writer = None if self._run is None else self._run.writer
        assert self._overlap is not None
        self._overlap.completed = self.place.blueprint.definition.name, finished
        is_deleted = False
        try:
            with anyio.move_on_after(30, shield=True), self._only_logged("deleted"):
                await self.place.checkpoints.store.delete(
                    self.run_id, lease=self.lease if writer is None else writer.lease
                )
                is_deleted = True
        finally:
            # A start that begins from here on executes the run again.
            if _overlaps.get(self._key) is self._overlap:
                del _overlaps[self._key]
        if is_deleted and writer is not None:
            writer.is_released = True
        return is_deleted

    async def deliver(self, completion: Finished, *, force: bool = False) -> Any:
        """Return the output of a complete run, and delete the run if it is not to be preserved."""
        output = output_of(completion, self.place.blueprint, self.run_id, force=force)
        if not self.place.is_preserved:
            try:
                await self.begin()
            except CheckpointError:
                # Its holder deletes it, or the next start or resume does.
                return output
            async with self:
                info = await look(self.place, self.run_id)
                summary = None if info is None else info.summary
                if summary and summary.status is RunStatus.COMPLETED and not summary.parent:
                    self.finished = completion
        return output

    def deleted_meanwhile(self, given: GivenInput | None = None) -> Finished | None:
        """Return the end of a run that this process has completed and deleted since this claim was made.

        Raise RunConflict if it was one of another workflow, or of another input than the given one.
        """
        if self._overlap is None or self._overlap.completed is None:
            return None
        workflow, finished = self._overlap.completed
        if workflow != self.place.blueprint.definition.name:
            raise RunConflict(self.run_id, f"it was a run of workflow {workflow!r}")
        if given is not None and finished.input != given.digest:
            raise RunConflict(self.run_id, "it was started with another input")
        return finished

    @contextmanager
    def _only_logged(self, what: str) -> Generator[None]:
        """Log exceptions of the store here, because they do not change how the run ended."""
        try:
            yield
        except Exception as error:
            logger.warning("run %r was not %s: %r", self.run_id, what, error)

    async def check_is_whole(self, known: Checkpoint) -> None:
        """Raise CorruptCheckpoint if entries are missing at the end of the journal."""
        info = self._info
        if info is None:
            with store_errors(self.place.checkpoints.store, self.run_id):
                info = await self.place.checkpoints.store.info(self.run_id)
        if info is not None:
            check_against(info, known)

    @property
    def lease(self) -> Lease:
        """The lease, while the claim is held."""
        assert self._lease is not None
        return self._lease

    def run(
        self,
        opening: Started | Resumed,
        recording: Recording,
        found: Found | None = None,
        *,
        force: bool = False,
    ) -> Run:
        """Return a run that begins with `opening`, or continues a journal that was found with it."""
        newest = None
        if found is None:
            assert isinstance(opening, Started)
            started, length, digest = opening, 0, first_digest(self.run_id)
            version = started_version = started.version
        else:
            started, journal = found.started, found.journal
            length, digest = len(journal.entries), journal.digest
            version, started_version = found.checkpoint.definition.version, found.started_version
            newest = found.checkpoint.state
        checkpoints, place = self.place.checkpoints, self.place
        self.input = started.input
        # A check of the attribute, because a check of the protocol takes longer than the rest.
        if hasattr(checkpoints.store, "keep_history"):
            cast("KeepsHistory", checkpoints.store).keep_history(self.run_id, checkpoints.history)
        writer = JournalWriter(
            self.run_id,
            checkpoints,
            lease=self.lease,
            length=length,
            digest=digest,
            summary=self._running(started, version, len(recording.open_dead_letters), opening.at),
            opening=opening,
            newest_step=None if newest is None else newest.step,
        )
        self._run = Run(
            self.run_id,
            started.workflow,
            checkpoints,
            writer=writer,
            recording=recording,
            types=place.blueprint.output_types,
            clock=place.scope.clock,
            context=context_of(started),
            started_version=started_version,
            force=force,
            around=place.around,
            outer_operators=place.scope.operators,
        )
        return self._run

    def _running(
        self, started: Started, version: str, dead_letters: int, begins_at: float
    ) -> RunSummary:
        """Return the summary of the run while it is driven by this version of the workflow."""
        around = self.place.around
        is_nested = started.is_nested or around is not None
        return RunSummary(
            started.workflow,
            started.kind,
            version,
            RunStatus.RUNNING,
            started.at,
            dead_letters,
            # Due at once, so that a worker takes it when its lease ends with this process.
            due_at=None if is_nested else at_once(begins_at),
            priority=started.priority,
            parent=started.parent if around is None else around.run.run_id,
            is_nested=is_nested,
        )
