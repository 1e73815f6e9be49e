"""Runs in plain files that people can read, copy, and keep under version control."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter
from filelock import Timeout

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunConflict,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunSummary
from effectflow.checkpoint.store import Batch, CheckpointStore, Record, Remains, StoreFacts, Taken
from effectflow.effects.arguments import check_count
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.stores._atomic_files import make_folder
from effectflow.stores._base import ReentrantStore, as_unavailable
from effectflow.stores._file_folders import RunFolders
from effectflow.stores._file_format import LAYOUT, RunState
from effectflow.stores._file_run import RunFolder
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_first,
    check_free,
    check_length,
    check_messages,
    is_holder,
)
from effectflow.stores._summaries import select

logger = logging.getLogger(__name__)

A = TypeVar("A")

_THREADS = 20


class FileStore(ReentrantStore, CheckpointStore):
    """Keeps each run in a folder of JSON files. Needs the extra `effectflow[file]` (filelock).

    ::

        directory/sessions/{run id}/checkpoint.json
        directory/sessions/{run id}/history/checkpoint-{time}.json
        directory/sessions/latest -> the run that was started last
        directory/locks/{number}

    It keeps journals only: its runs receive no messages, and workers cannot use it. It is for single
    runs and small programs.

    A save writes a temporary file, syncs it, renames it, and syncs the folder. So a crash at any moment
    leaves either the state before or the state after. A damaged checkpoint is replaced by the newest
    intact copy of its history, with a warning; then `salvage` has the damaged file among the unreadable
    bytes. `find` skips a run that cannot be read at all, with a warning, and folders that are copies of
    others. Several processes on one host may use one directory. If the file system ignores the case of
    letters, run ids must differ in more than case: an id whose folder belongs to another run is rejected
    with RunConflict.

    Parameters:
        directory: where to keep the runs; created if it is missing.
        history: how many copies of earlier checkpoints of each run to keep.
        lock_timeout: how long (seconds, or a `timedelta`) to wait while another program writes to the
            same run.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of leases may wait for other
            writers.
    """

    _threads: CapacityLimiter

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        history: int = 10,
        lock_timeout: Duration = 10.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__()
        check_count("history", history, least=0)
        self.directory: Path = Path(directory)
        self._history = history
        self._lock_timeout = in_seconds(lock_timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._folders = RunFolders(self.directory)
        # The folders of the runs that this store drives, so that an append knows what the last one saved.
        self._driven: dict[str, RunFolder] = {}

    def __repr__(self) -> str:
        return f"FileStore({str(self.directory)!r})"

    @property
    def durability(self) -> str:
        return "full"

    async def _open(self) -> None:
        # Separate threads: those of anyio may all be busy with long blocking steps.
        self._threads = CapacityLimiter(_THREADS)
        try:
            await in_thread(partial(make_folder, self.directory / "sessions"), self._threads)
        except OSError as error:
            reason = f"it cannot be created: {error}. Choose a folder that can be written"
            raise StoreUnavailable(str(self.directory), reason) from error

    async def _close(self) -> None:
        pass

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        def create(folder: RunFolder) -> RunInfo | None:
            try:
                if folder.state() is not None:
                    return None
            except CorruptCheckpoint:
                return None
            now = time.time()
            # From the clock, so that a deleted run leaves nothing behind, and its lease is not valid for
            # a new run with its id.
            fence = int(now * 1e6)
            return folder.create(
                bodies, summary, Lease.of(run_id, owner, fence, seconds=seconds, now=now)
            )

        check_first(run_id, bodies)
        return await self._change(run_id, create)

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        def claim(folder: RunFolder) -> Taken:
            state, now = _state_to_repair(folder), time.time()
            before = folder.info(state)
            check_free(before.lease, now=now, claimant=owner)
            folder.tidy(state)
            fence = folder.lease(state).fence + 1
            lease = Lease.of(run_id, owner, fence, seconds=seconds, now=now)
            folder.write_lease(lease)
            return Taken(lease, before)

        return await self._change(run_id, claim)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._check_open(in_any_thread=True)
        deadline = time.monotonic() + self._renew_timeout
        renewed: list[Lease] = []
        for lease in leases:

            def renew(folder: RunFolder, lease: Lease = lease) -> None:
                held = folder.lease(folder.state_if_readable())
                if is_holder(lease, held.owner, held.fence):
                    renewed.append(lease.renewed(seconds, now=time.time()))
                    folder.write_lease(renewed[-1])

            try:
                with as_unavailable(self):
                    self._locked(lease.run_id, renew, timeout=max(deadline - time.monotonic(), 0))
            except (RunConflict, UnsupportedVersion) as problem:
                logger.warning("the lease of run %r was not renewed: %s", lease.run_id, problem)
        return renewed

    async def release(self, lease: Lease) -> None:
        def release(folder: RunFolder) -> None:
            held = folder.lease(folder.state_if_readable())
            if is_holder(lease, held.owner, held.fence):
                folder.write_lease(replace(lease, owner=""))
                self._driven.pop(lease.run_id, None)

        await self._change(lease.run_id, release)

    async def append(self, lease: Lease, batch: Batch) -> None:
        run_id = lease.run_id

        def append(folder: RunFolder) -> None:
            state = folder.state_of_driver(lease, batch.after)
            if state is None:
                raise LeaseLost(run_id, f"its files in {folder.path} were deleted or moved")
            check_current(lease, folder.lease(state))
            check_length(lease, state.length, after=batch.after)
            check_messages(lease, batch.takes, ())
            summary = batch.summary or state.summary
            folder.save(state, batch.bodies, summary, fence=lease.fence, release=batch.release)
            if batch.release:
                folder.note_release(lease)

        folder = self._driven.setdefault(run_id, self._folder(run_id))
        try:
            await self._change(run_id, append)
        except LeaseLost:
            folder.forget()
            raise
        if batch.release:
            self._driven.pop(run_id, None)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self._read(lambda: self._folder(run_id).records(after))

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        def find() -> list[RunInfo]:
            if query.run_id is not None:
                folder = self._folder(query.run_id)
                state = folder.state()
                infos = [] if state is None else [folder.info(state)]
            else:
                infos, problems = self._folders.look()
                for run_id, problem in problems.items():
                    logger.warning("skipping run %r: %s", run_id, problem)
            return select(infos, query, now=time.time())

        return await self._read(find)

    async def damaged_runs(self) -> list[str]:
        return await self._read(lambda: sorted(self._folders.look()[1]))

    async def facts(self) -> StoreFacts:
        return StoreFacts(LAYOUT)

    async def salvage(self, run_id: str) -> Remains:
        return await self._read(lambda: self._folder(run_id).salvage())

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        def truncate(folder: RunFolder) -> None:
            check_current(lease, folder.lease(folder.state_if_readable()))
            folder.truncate(lease, after, summary)

        await self._change(lease.run_id, truncate)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        def delete(folder: RunFolder) -> None:
            held = folder.lease(_state_to_repair(folder))
            check_deletable(lease, held, now=time.time())
            folder.remove()

        await self._change(run_id, delete)
        self._driven.pop(run_id, None)

    def _folder(self, run_id: str) -> RunFolder:
        return self._driven.get(run_id) or RunFolder(self.directory, run_id, history=self._history)

    async def _read(self, read: Callable[[], A]) -> A:
        """Call this in a thread. It needs no lock, since files are replaced whole."""

        def perform() -> A:
            try:
                return read()
            except OSError as error:
                raise StoreUnavailable(
                    str(self.directory), f"it cannot be read: {error}"
                ) from error

        self._check_open()
        return await in_thread(perform, self._threads)

    async def _change(self, run_id: str, work: Callable[[RunFolder], A]) -> A:
        """Call this in a thread, to its end, under the lock of the run."""
        self._check_open()
        perform = partial(self._locked, run_id, work, timeout=self._lock_timeout)
        # A claim that outlived its cancelled caller could follow the release of the next owner.
        return await shielded(in_thread(perform, self._threads))

    def _locked(self, run_id: str, work: Callable[[RunFolder], A], *, timeout: float) -> A:
        folder = self._folder(run_id)
        try:
            with folder.lock.acquire(timeout=timeout):
                return work(folder)
        except Timeout as error:
            reason = f"another program has locked {folder.lock.lock_file} for {timeout:g} s"
            raise SaveFailed(run_id, reason) from error
        except OSError as error:
            reason = f"{folder.path}: {error.strerror or error}"
            unknown = folder.may_be_saved(error)
            raise SaveFailed(run_id, reason, is_unknown=unknown) from error


def _state_to_repair(folder: RunFolder) -> RunState | None:
    """Return the state of a run; None if it cannot be read. Raise RunNotFound if it does not exist."""
    try:
        state = folder.state()
    except CorruptCheckpoint:
        return None
    if state is None:
        raise RunNotFound(folder.run_id)
    return state
