"""The claim of a run while this process drives it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self
from weakref import WeakValueDictionary

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.entries import Finished
from effectflow.checkpoint.errors import (
    CheckpointError,
    CompensationFailed,
    CorruptCheckpoint,
    LeaseLost,
    NotSerializable,
    RunConflict,
    SaveFailed,
    StoreUnavailable,
    printable,
)
from effectflow.checkpoint.journal_reader import check_against
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease import (
    Lease,
    Owner,
    claim_or_release,
    create_or_delete,
    end_claim,
)
from effectflow.checkpoint.observers import RunBlocked, tell
from effectflow.checkpoint.run_info import DUE_SINCE, RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, Taken, store_errors
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.exceptions import text_of
from effectflow.runs.stored_run import GivenInput, Place, output_of, run_info

logger = logging.getLogger(__name__)

_SECONDS_BLOCKED = 60.0
"""The seconds after which a run that does not fit the program is tried again."""

_SECONDS_LEFT = 1.0
"""The seconds after which a run that was left to workers of its version is tried again."""

SECONDS_AFTER_OUTAGE = 1.0
"""The seconds after which a run is tried again after its store has failed."""


def without_text(error: object) -> str:
    """Return what may be shown of an error of a run with encrypted entries."""
    return f"{type(error).__name__} (its entries are encrypted, so its text is only in its journal)"


def _may_quote_values(error: BaseException) -> bool:
    """Return whether the text of an error may have values of its run."""
    if isinstance(error, CorruptCheckpoint):
        # Without a number, it is about a value that was read.
        return error.sequence is None
    is_known = isinstance(error, CheckpointError)
    return not is_known or isinstance(error, NotSerializable | CompensationFailed)


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
        input: the input of the run, in its saved form, once the run is driven.
        writer: the writer of the run once it is driven, which also releases the lease.
        has_no_message: whether a worker has taken the run, and found that it has received no message.
        is_blocked: whether the run was released as blocked.
    """

    __slots__ = (
        "_info",
        "_key",
        "_lease",
        "_overlap",
        "_owner",
        "finished",
        "has_no_message",
        "input",
        "is_blocked",
        "place",
        "run_id",
        "writer",
    )

    def __init__(self, place: Place, run_id: str) -> None:
        self.place = place
        self.finished: Finished | None = None
        self.input: Tree = None
        self.writer: JournalWriter | None = None
        self.run_id = run_id
        self.has_no_message = False
        self.is_blocked = False
        self._key = (id(place.checkpoints.store), run_id)
        self._overlap: _Overlap | None = None
        if not place.checkpoints.preserve:
            self._overlap = _overlaps.setdefault(self._key, _Overlap())
        self._owner: Owner | None = None
        self._lease: Lease | None = None
        self._info: RunInfo | None = None

    async def begin(self) -> None:
        """Claim the run. Raise RunNotFound if it does not exist, RunBusy if another owner holds it."""
        store = self.place.checkpoints.store
        with store_errors(store, self.run_id):
            self._owner, taken = await claim_or_release(
                store, self.run_id, seconds=self.place.checkpoints.lease_length
            )
        self._lease, self._info = taken.lease, taken.info

    async def create(self, body: bytes, summary: RunSummary) -> bool:
        """Create the run with its first entry, and hold it. Return False if it exists."""
        checkpoints = self.place.checkpoints
        with store_errors(checkpoints.store, self.run_id, saves="run"):
            created = await create_or_delete(
                *(checkpoints.store, self.run_id, [body]),
                summary=summary,
                seconds=checkpoints.lease_length,
            )
        if created is None:
            return False
        self._owner, self._info = created
        self._lease = self._info.lease
        return True

    @staticmethod
    def of(place: Place, taken: Taken, owner: Owner) -> Claim:
        """Return the claim of a run that a worker has taken for this owner."""
        claim = Claim(place, taken.lease.run_id)
        claim._owner, claim._lease, claim._info = owner, taken.lease, taken.info
        claim.has_no_message = taken.first is not None
        return claim

    @property
    def is_preserved(self) -> bool:
        """Whether the run is kept once it is complete. Spawned runs are: their parents may ask."""
        is_spawned = self.writer is not None and bool(self.writer.summary.parent)
        return self.place.checkpoints.preserve or is_spawned

    @property
    def was_left(self) -> bool:
        """Whether the previous owner has died, or let the lease expire."""
        return self._info is not None and self._info.lease is not None

    @property
    def summary(self) -> RunSummary | None:
        """The summary of the run, as this process has written or found it."""
        if self.writer is not None:
            return self.writer.summary
        return None if self._info is None else self._info.summary

    @property
    def is_secret(self) -> bool:
        """Whether logs and summaries, which are not encrypted, must show no values of the run."""
        return self.place.checkpoints.encryption is not None

    def waited(self, now: float) -> float | None:
        """Return the seconds since the run was due; None if the previous owner has left it."""
        due_at = None if self._info is None else self._info.summary.due_at
        if self.was_left or due_at is None:
            return None
        waited = max(0.0, now - due_at)
        # It was due at once: see `due_at_once`.
        return waited - DUE_SINCE if waited >= DUE_SINCE else waited

    @property
    def log_fields(self) -> dict[str, object]:
        """The run, its workflow and the worker, for `extra` of log records outside of its code."""
        workflow = self.place.blueprint.definition.name
        return {"run_id": self.run_id, "workflow": workflow, "worker": self.lease.owner}

    def reason_of(self, error: BaseException) -> str:
        """Return why the run is blocked, in words."""
        if self.is_secret and _may_quote_values(error):
            return without_text(error)
        if isinstance(error, CheckpointError):
            return str(error)
        said = f"it raised {type(error).__name__}: {text_of(error)}"
        return printable("; ".join([said, *map(str, getattr(error, "__notes__", ()))]))

    async def leave(self, error: CheckpointError) -> bool:
        """Release a run as blocked because other workers are meant to take it, soon if there are some.

        The first time, they may take it after a second; after that, once as much time has passed as since
        the run got further, at most a minute.
        """
        info = self._info
        assert info is not None
        seconds = _SECONDS_LEFT
        if info.summary.status is RunStatus.BLOCKED:
            standing = self.place.scope.clock.now().timestamp() - info.updated_at
            seconds = min(max(standing, _SECONDS_LEFT), _SECONDS_BLOCKED)
        return await self.block(error, seconds=seconds)

    async def block(self, error: BaseException, *, seconds: float | None = None) -> bool:
        """Release a run that this process cannot continue because of this error, as blocked.

        Workers may take the run again after these seconds: by default after a minute, and after a second
        if only the store failed. Return False if the store rejected that.
        """
        assert self._info is not None
        is_outage = isinstance(error, SaveFailed | StoreUnavailable)
        if seconds is None:
            seconds = SECONDS_AFTER_OUTAGE if is_outage else _SECONDS_BLOCKED
        writer, length, summary = self.writer, self._info.length, self._info.summary
        if writer is not None:
            length = writer.durable_length
            # Not the summary that could not be saved, which may say that the run has ended.
            summary = writer.durable_summary or summary
        due_at = self.place.scope.clock.now().timestamp() + seconds
        details = replace(summary.details, blocked=self.reason_of(error))
        summary = replace(summary, status=RunStatus.BLOCKED, due_at=due_at, details=details)
        with anyio.move_on_after(5, shield=True), self._only_logged("marked as blocked"):
            batch = Batch((), length, summary, release=True)
            await self.place.checkpoints.store.append(self.lease, batch)
            if writer is not None:
                writer.is_released = True
            self.is_blocked = True
            workflow = self.place.blueprint.definition.name
            tell(self.place.checkpoints.observers, RunBlocked(self.run_id, workflow))
            return True
        return False

    async def put_back(self, summary: RunSummary, *, seen: int) -> None:
        """Release a run that was not driven, with this summary. `seen` is as in `Batch`."""
        assert self._info is not None
        batch = Batch((), self._info.length, summary, release=True, seen=seen)
        with store_errors(self.place.checkpoints.store, self.run_id):
            await self.place.checkpoints.store.append(self.lease, batch)

    async def block_if_running(self, error: CheckpointError) -> None:
        """Block a run whose life was halted, and that would otherwise look like that of a dead process.

        The error of a store is left: the store has the run as it is.
        """
        durable = None if self.writer is None else self.writer.durable_summary
        is_running = durable is not None and durable.status is RunStatus.RUNNING
        if is_running and not isinstance(error, LeaseLost | SaveFailed | StoreUnavailable):
            await self.block(error)

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
        if self.writer is not None:
            return await self.writer.release()
        with anyio.move_on_after(5, shield=True), self._only_logged("released"):
            await self.place.checkpoints.store.release(self.lease)
            return True
        return False

    async def _delete(self, finished: Finished) -> bool:
        """Delete the run. Return False if that failed: the next start or resume of it tries again."""
        writer = self.writer
        assert self._overlap is not None
        self._overlap.completed = self.place.blueprint.definition.name, finished
        is_deleted = False
        try:
            with anyio.move_on_after(30, shield=True), self._only_logged("deleted"):
                await self.place.checkpoints.store.delete(self.run_id, lease=self.lease)
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
        if not self.place.checkpoints.preserve:
            try:
                await self.begin()
            except CheckpointError:
                # Its holder deletes it, or the next start or resume does.
                return output
            async with self:
                info = await run_info(self.place, self.run_id)
                summary = None if info is None else info.summary
                if summary and summary.status is RunStatus.COMPLETED and not summary.parent:
                    self.finished = completion
        return output

    @property
    def is_too_late(self) -> bool:
        """Whether this process has completed and deleted the run since this claim was made."""
        return self._overlap is not None and self._overlap.completed is not None

    async def discard(self) -> None:
        """Delete a run that this claim has created, and that has not begun."""
        store = self.place.checkpoints.store
        with store_errors(store, self.run_id):
            await store.delete(self.run_id, lease=self.lease)

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
            logger.warning("run %r was not %s: %r", self.run_id, what, error, extra=self.log_fields)

    def check_is_whole(self, known: Checkpoint) -> None:
        """Raise CorruptCheckpoint if entries are missing at the end of the journal."""
        assert self._info is not None
        check_against(self._info, known, self.place.blueprint.aliases)

    @property
    def lease(self) -> Lease:
        """The lease, while the claim is held. A writer may have claimed it again."""
        if self.writer is not None:
            return self.writer.lease
        assert self._lease is not None
        return self._lease
