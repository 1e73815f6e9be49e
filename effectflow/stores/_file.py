"""Runs in plain files that people can read, copy, and keep under version control."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter
from filelock import Timeout

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    LeaseLost,
    RunConflict,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    CheckpointStore,
    Record,
    Remains,
    RunInfo,
    RunQuery,
    RunSummary,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.stores._atomic_files import make_folder
from effectflow.stores._base import (
    ReentrantStore,
    check_current,
    check_deletable,
    check_free,
    check_length,
    first_summary,
    select,
)
from effectflow.stores._file_format import RunState
from effectflow.stores._file_run import Mark, RunFolder, run_id_of

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

    A save writes a temporary file, syncs it, renames it, and syncs the folder: a crash at any moment
    leaves the state before or the state after. A damaged checkpoint is replaced by the newest intact
    copy of its history, with a warning. `find` skips, with a warning, a run that cannot be read at all;
    it also skips folders that are copies of others. Several processes on one host may use one
    directory. Where the file system ignores the case of letters, run ids must differ in more than
    that: an id whose folder belongs to another run is refused with RunConflict.

    A deleted run leaves only its fence, in one of a fixed number of files. So a stale writer stays
    refused, even if a new run gets the same id.

    Parameters:
        directory: where to keep the runs; created if it is missing.
        lock_timeout: how long (seconds, or a `timedelta`) to wait while another program writes to the
            same run.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may wait for other
            writers.

    `Checkpoints(history=...)` sets how many copies of earlier checkpoints are kept.
    """

    _threads: CapacityLimiter

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        lock_timeout: Duration = 10.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._lock_timeout = in_seconds(lock_timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._sessions = self.directory / "sessions"
        self._found: dict[str, tuple[Mark, RunState]] = {}
        # Of the runs that this store drives, so that each append knows what the last one has saved.
        self._driven: dict[str, RunFolder] = {}

    def __repr__(self) -> str:
        return f"FileStore({str(self.directory)!r})"

    @property
    def durability(self) -> str:
        return "full"

    async def _open(self) -> None:
        # Threads of its own: anyio's may all be busy with blocking steps for long.
        self._threads = CapacityLimiter(_THREADS)
        try:
            await in_thread(partial(make_folder, self._sessions), self._threads)
        except OSError as error:
            raise StoreUnavailable(str(self.directory), f"it cannot be created: {error}") from error

    async def _close(self) -> None:
        pass

    def keep_history(self, run_id: str, copies: int) -> None:
        """Keep this many copies of earlier checkpoints of the run until it is released (default 10)."""
        self._driven[run_id] = RunFolder(self.directory, run_id, history=copies)

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        def claim(folder: RunFolder) -> Lease:
            now = time.time()
            state = folder.state_if_readable()
            held = folder.lease(state)
            check_free(held, now=now, claimant=owner)
            folder.tidy(state)
            fence = max(held.fence, folder.deleted_fence()) + 1
            lease = Lease(run_id, owner, fence, now).renewed(seconds, now=now)
            folder.write_lease(lease)
            return lease

        return await self._change(run_id, claim)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(folder: RunFolder) -> Lease:
            check_current(lease, folder.lease(folder.state_if_readable()))
            renewed = lease.renewed(seconds, now=time.time())
            folder.write_lease(renewed)
            return renewed

        self._check_open(in_any_thread=True)
        try:
            return self._locked(lease.run_id, renew, timeout=self._renew_timeout)
        except SaveFailed as error:
            raise StoreUnavailable(repr(self), error.reason) from error

    async def release(self, lease: Lease) -> None:
        def release(folder: RunFolder) -> bool:
            state = folder.state_if_readable()
            if not folder.is_current(lease, state):
                return False
            if folder.is_claimed_only(state):
                folder.remove(state)
            else:
                folder.write_lease(replace(lease, owner=""))
            return True

        # Otherwise a new owner, maybe of this very store, may have set its own history.
        if await self._change(lease.run_id, release):
            self._driven.pop(lease.run_id, None)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        def append(folder: RunFolder) -> None:
            state = folder.state_of_driver(lease, after)
            if state is None and after:
                reason = f"its files in {folder.path} were deleted or moved"
                raise LeaseLost(lease.run_id, reason)
            check_current(lease, folder.lease(state))
            check_length(lease, 0 if state is None else state.length, after=after)
            if state is None:
                state = folder.create(first_summary(summary))
            folder.save(
                state,
                [bytes(body) for body in bodies],
                summary or state.summary,
                fence=lease.fence,
                release=release,
            )
            if release:
                folder.note_release(lease)

        folder = self._driven.setdefault(lease.run_id, self._folder(lease.run_id))
        try:
            await self._change(lease.run_id, append)
        except LeaseLost:
            folder.forget()
            raise
        if release:
            self._driven.pop(lease.run_id, None)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self._read(lambda: self._folder(run_id).records(after))

    async def info(self, run_id: str) -> RunInfo | None:
        def info() -> RunInfo | None:
            folder = self._folder(run_id)
            state = folder.state()
            return state and folder.info(state)

        return await self._read(info)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        def find() -> list[RunInfo]:
            infos, damaged = self._all()
            for run_id, error in damaged.items():
                logger.warning("skipping run %r: %s", run_id, error)
            return select(infos, query, now=time.time())

        return await self._read(find)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        return await self._read(lambda: sorted(self._all()[1]))

    async def damage(self, run_id: str) -> str | None:
        """Return what is wrong with a run's `checkpoint.json` and which copy is read instead, or None."""

        def look() -> str | None:
            state = self._folder(run_id).state()
            return (state and state.damage) or None

        return await self._read(look)

    async def salvage(self, run_id: str) -> Remains:
        """Return all that is left of a run."""
        return await self._read(lambda: self._folder(run_id).salvage())

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        def truncate(folder: RunFolder) -> None:
            check_current(lease, folder.lease(folder.state_if_readable()))
            folder.truncate(lease, after, summary)

        await self._change(lease.run_id, truncate)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        def delete(folder: RunFolder) -> None:
            try:
                state = folder.state()
                if state is None:
                    raise RunNotFound(run_id)
            except CorruptCheckpoint:
                # A run that cannot be read can still be deleted.
                state = None
            check_deletable(lease, folder.lease(state), now=time.time())
            folder.remove(state)

        await self._change(run_id, delete)
        self._driven.pop(run_id, None)

    def _folder(self, run_id: str) -> RunFolder:
        return self._driven.get(run_id) or RunFolder(self.directory, run_id)

    def _all(self) -> tuple[list[RunInfo], dict[str, CheckpointError]]:
        """Return one line about each run, and what is wrong with those that cannot be read."""
        infos: list[RunInfo] = []
        damaged: dict[str, CheckpointError] = {}
        found: dict[str, tuple[Mark, RunState]] = {}
        for path in self._sessions.iterdir():
            if path.is_symlink() or not path.is_dir():
                continue
            run_id = run_id_of(path)
            if run_id is None:
                continue
            folder = RunFolder(self.directory, run_id)
            try:
                mark = folder.mark()
                known = self._found.get(run_id)
                state = known[1] if known and known[0] == mark else folder.state()
                if state is None:
                    self._remove_abandoned(folder)
                    continue
                if mark is not None and not state.damage:
                    found[run_id] = mark, state.without_records()
                infos.append(folder.info(state))
            except (CorruptCheckpoint, RunConflict, UnsupportedVersion) as error:
                damaged[run_id] = error
        self._found = found
        return infos, damaged

    def _remove_abandoned(self, folder: RunFolder) -> None:
        """Remove a folder that only has the claim of a process that died before it wrote anything."""

        def remove(folder: RunFolder) -> None:
            state = folder.state()
            lease = folder.lease(state)
            if lease.owner and folder.is_claimed_only(state) and lease.is_abandoned(time.time()):
                folder.remove(state)

        lease = folder.lease(None)
        if lease.owner and lease.is_abandoned(time.time()):
            with suppress(SaveFailed):
                self._locked(folder.run_id, remove, timeout=self._renew_timeout)

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
        """Call this in a thread, under the lock of the run."""

        def perform() -> A:
            return self._locked(run_id, work, timeout=self._lock_timeout)

        self._check_open()
        # A claim that goes on after its caller was cancelled could follow the release of the next one.
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
