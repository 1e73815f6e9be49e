"""Runs in plain files that people can read, copy, and keep under version control."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from anyio import to_thread
from filelock import Timeout

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunConflict,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import CheckpointStore, Record, RunInfo, RunQuery, RunSummary
from effectflow.stores.file_format import RunState
from effectflow.stores.file_lock import LOCK_SECONDS, RunLock
from effectflow.stores.file_run import Mark, RunFolder, is_same, run_id_of
from effectflow.stores.file_writing import folder_name, make_folder, remove_link, replace_link

__all__ = ["FileStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")


class _Run(NamedTuple):
    """The files of a run, and the lock of whoever changes them."""

    folder: RunFolder
    lock: RunLock


class FileStore(CheckpointStore):
    """Keeps each run in a folder of JSON files. Needs the extra `effectflow[file]` (filelock).

    ::

        directory/sessions/{run id}/checkpoint.json
        directory/sessions/{run id}/history/checkpoint-{time}.json
        directory/sessions/latest -> the run that was started last
        directory/locks/{number}

    A save writes a temporary file, syncs it, renames it, and syncs the folder: a crash at any moment
    leaves the state before or the state after. A checkpoint that was damaged is replaced by the newest
    good copy of its history, with a warning. A run that cannot be read at all is passed over by `find`,
    with a warning, as are folders that are copies of others. Several processes of one host may use one
    directory. Where the file system does not tell capital letters from small ones, ids of runs have to
    differ in more; an id whose folder has another run is refused with RunConflict.

    A run that is deleted leaves nothing but its fence, in one of a fixed number of files: whoever wrote
    to it stays refused, also when a run of the same name is started.

    Parameters:
        directory: where; made if it is missing.

    How many copies of earlier checkpoints are kept is said by `Checkpoints(history=...)`.
    """

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.directory = Path(directory)
        self._sessions = self.directory / "sessions"
        self._locks = self.directory / "locks"
        self._history: dict[str, int] = {}
        self._found: dict[str, tuple[Mark, RunState]] = {}
        self._driven: dict[str, _Run] = {}
        self._is_open = False

    @property
    def durability(self) -> str:
        return "full"

    async def __aenter__(self) -> Self:
        await to_thread.run_sync(self._open)
        return self

    def _open(self) -> None:
        try:
            make_folder(self._sessions)
        except OSError as error:
            raise StoreUnavailable(str(self.directory), f"it cannot be made: {error}") from error
        self._is_open = True

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False

    def keep_history(self, run_id: str, copies: int) -> None:
        """Keep so many copies of earlier checkpoints of this run until it is given free, and not 10."""
        self._forget(run_id)
        self._history[run_id] = copies

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        def claim(folder: RunFolder) -> Lease:
            now = time.time()
            state = folder.state()
            held = folder.lease(state)
            if held.owner not in ("", owner) and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            folder.tidy(state)
            fence = max(held.fence, self._run(run_id).lock.fence()) + 1
            lease = Lease(run_id, owner, fence, now + seconds)
            folder.write_lease(lease)
            return lease

        return await self._locked(run_id, claim)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(folder: RunFolder) -> Lease:
            _check_held(lease, folder.lease(folder.state()))
            renewed = replace(lease, expires_at=time.time() + seconds)
            folder.write_lease(renewed)
            return renewed

        return await self._locked(lease.run_id, renew)

    async def release(self, lease: Lease) -> None:
        def release(folder: RunFolder) -> bool:
            state = folder.state()
            held = folder.lease(state)
            if not is_same(lease, held):
                return False
            if folder.is_claimed_only(state):
                self._remove(folder, held)
            else:
                folder.write_lease(replace(held, owner=""))
            return True

        was_ours = await self._locked(lease.run_id, release)
        self._driven.pop(lease.run_id, None)
        if was_ours:
            # Or else it is for whoever has taken the run over, maybe with this very store.
            self._history.pop(lease.run_id, None)

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
            _check_held(lease, folder.lease(state))
            length = 0 if state is None else state.length
            if length != after:
                raise LeaseLost(lease.run_id, f"its journal has {length} entries, not {after}")
            if state is None:
                if summary is None:
                    raise ValueError("the first append of a run needs a summary")
                state = folder.create(summary)
                replace_link(self._sessions / "latest", folder.path.name)
            folder.save(
                state,
                [bytes(body) for body in bodies],
                summary or state.summary,
                fence=lease.fence,
                release=release,
            )

        # Remembered, so that it knows at the next append what this one has left.
        self._driven[lease.run_id] = self._run(lease.run_id)
        try:
            await self._locked(lease.run_id, append)
        except LeaseLost:
            self._driven.pop(lease.run_id, None)
            raise
        if release:
            self._forget(lease.run_id)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self._reading(lambda: self._run(run_id).folder.records(after))

    async def info(self, run_id: str) -> RunInfo | None:
        def info() -> RunInfo | None:
            folder = self._run(run_id).folder
            state = folder.state()
            return None if state is None else _info(folder, state)

        return await self._reading(info)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        def find() -> list[RunInfo]:
            now = time.time()
            infos, damaged = self._all()
            for run_id, error in damaged.items():
                logger.warning("run %r is passed over: %s", run_id, error)
            found = [info for info in infos if query.matches(info, now)]
            found.sort(key=lambda info: (-info.summary.created_at, info.run_id))
            return found[query.offset : query.offset + query.limit]

        return await self._reading(find)

    async def damaged_runs(self) -> list[str]:
        """The ids of the runs that `find` passes over, as they cannot be read."""
        return await self._reading(lambda: sorted(self._all()[1]))

    async def damage(self, run_id: str) -> str | None:
        """What is wrong with a run's `checkpoint.json`, and which copy of it is read instead."""

        def look() -> str | None:
            state = self._run(run_id).folder.state()
            return state.damage or None if state is not None else None

        return await self._reading(look)

    async def delete(self, run_id: str) -> None:
        def delete(folder: RunFolder) -> None:
            try:
                state = folder.state()
                if state is None:
                    raise RunNotFound(run_id)
            except CorruptCheckpoint:
                # There is no reading it, and so no other use for it.
                state = None
            held = folder.lease(state)
            now = time.time()
            if held.owner and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            self._remove(folder, held)

        await self._locked(run_id, delete)
        self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        self._history.pop(run_id, None)
        self._driven.pop(run_id, None)

    def _remove(self, folder: RunFolder, held: Lease) -> None:
        self._run(folder.run_id).lock.remember(held.fence)
        folder.remove()
        remove_link(self._sessions / "latest", folder.path.name)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(
                str(self.directory), "it is not open: use `async with store: ...`"
            )

    def _run(self, run_id: str) -> _Run:
        """One that is being driven, or else with nothing known of it."""
        driven = self._driven.get(run_id)
        if driven is not None:
            return driven
        name = folder_name(run_id)
        folder = RunFolder(self._sessions / name, run_id, history=self._history.get(run_id, 10))
        return _Run(folder, RunLock(self._locks, name))

    def _all(self) -> tuple[list[RunInfo], dict[str, CheckpointError]]:
        """The line about each run, and what is wrong with those that cannot be read."""
        infos: list[RunInfo] = []
        damaged: dict[str, CheckpointError] = {}
        found: dict[str, tuple[Mark, RunState]] = {}
        for path in self._sessions.iterdir():
            if path.is_symlink() or not path.is_dir():
                continue
            run_id = run_id_of(path)
            if run_id is None:
                continue
            folder = RunFolder(path, run_id)
            try:
                mark = folder.mark()
                known = self._found.get(run_id)
                state = known[1] if known and known[0] == mark else folder.state()
                if state is None:
                    continue
                if mark is not None and not state.damage:
                    found[run_id] = mark, state.without_records()
                infos.append(_info(folder, state))
            except (CorruptCheckpoint, RunConflict, UnsupportedVersion) as error:
                damaged[run_id] = error
        # Of those that are there, and no others.
        self._found = found
        return infos, damaged

    async def _reading(self, read: Callable[[], A]) -> A:
        """What `read` gives. Files are replaced whole, so it needs no lock."""

        def perform() -> A:
            try:
                return read()
            except OSError as error:
                raise StoreUnavailable(
                    str(self.directory), f"it cannot be read: {error}"
                ) from error

        self._check_open()
        return await to_thread.run_sync(perform)

    async def _locked(self, run_id: str, work: Callable[[RunFolder], A]) -> A:
        """What `work` gives, while nobody else changes the files of the run."""

        def locked() -> A:
            folder, lock = self._run(run_id)
            try:
                with lock.held:
                    return work(folder)
            except Timeout as error:
                reason = f"another program has locked {lock.path} for {LOCK_SECONDS:.0f} s"
                raise SaveFailed(run_id, reason) from error
            except OSError as error:
                reason = f"{folder.path}: {error.strerror or error}"
                unknown = folder.may_be_saved(error)
                raise SaveFailed(run_id, reason, is_unknown=unknown) from error

        self._check_open()
        return await to_thread.run_sync(locked)


def _check_held(lease: Lease, held: Lease) -> None:
    if not is_same(lease, held):
        raise LeaseLost(lease.run_id, f"it is held by {held.owner or 'nobody'}")


def _info(folder: RunFolder, state: RunState) -> RunInfo:
    held = folder.lease(state)
    return RunInfo(
        state.run_id, state.summary, state.updated_at, state.length, held if held.owner else None
    )
