"""Runs in plain files that people can read, copy, and keep under version control."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import orjson
from anyio import to_thread
from filelock import FileLock, Timeout

from effectflow.checkpoint.errors import (
    LeaseLost,
    RunBusy,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Record, RunInfo, RunQuery, RunSummary
from effectflow.stores.file_run import RunFolder
from effectflow.stores.file_writing import folder_name, make_folder, replace_link

__all__ = ["FileStore"]

A = TypeVar("A")

_LOCK_SECONDS = 10.0
"""How long to wait for another program that writes to the same run."""


class FileStore:
    """Keeps each run in a folder of JSON files. Needs the extra `effectflow[file]` (filelock).

    ::

        directory/sessions/{run id}/checkpoint.json
        directory/sessions/{run id}/history/checkpoint-{time}.json
        directory/sessions/latest -> the run that was started last

    A save writes a temporary file, syncs it, renames it, and syncs the folder: a crash at any moment
    leaves the state before or the state after. A checkpoint that was damaged is replaced by the newest
    good copy of its history, with a warning. Several processes of one host may use one directory.

    Parameters:
        directory: where; made if it is missing.

    How many copies of earlier checkpoints are kept is said by `Checkpoints(history=...)`.
    """

    durability = "full"

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.directory = Path(directory)
        self._sessions = self.directory / "sessions"
        self._folders: dict[str, RunFolder] = {}
        self._is_open = False

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
        """Keep so many copies of earlier checkpoints of this run; 10 if nothing is said."""
        self._folder(run_id).history = copies

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        def claim(folder: RunFolder) -> Lease:
            now = time.time()
            held = folder.read_lease()
            if held is not None and held.owner not in ("", owner) and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            folder.tidy()
            lease = Lease(run_id, owner, held.fence + 1 if held else 1, now + seconds)
            folder.write_lease(lease)
            return lease

        return await self._locked(run_id, claim)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(folder: RunFolder) -> Lease:
            _check_held(lease, folder)
            renewed = Lease(lease.run_id, lease.owner, lease.fence, time.time() + seconds)
            folder.write_lease(renewed)
            return renewed

        return await self._locked(lease.run_id, renew)

    async def release(self, lease: Lease) -> None:
        def release(folder: RunFolder) -> None:
            held = folder.read_lease()
            if held is not None and held.fence == lease.fence and held.owner:
                _release(folder, held)

        await self._locked(lease.run_id, release)

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
            held = _check_held(lease, folder)
            state = folder.state()
            length = 0 if state is None else state.length
            if length != after:
                raise LeaseLost(lease.run_id, f"its journal has {length} entries, not {after}")
            if state is None:
                if summary is None:
                    raise ValueError("the first append of a run needs a summary")
                state = folder.create(summary)
                replace_link(self._sessions / "latest", folder.path.name)
            folder.save(state, [bytes(body) for body in bodies], summary or state.summary)
            if release:
                _release(folder, held)

        await self._locked(lease.run_id, append)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        folder = self._folder(run_id)
        return await self._reading(lambda: folder.records(after))

    async def info(self, run_id: str) -> RunInfo | None:
        folder = self._folder(run_id)
        return await self._reading(lambda: _info(folder))

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        def find() -> list[RunInfo]:
            now = time.time()
            infos = [_info(folder) for folder in self._all_folders()]
            found = [info for info in infos if info is not None and query.matches(info, now)]
            found.sort(key=lambda info: (-info.summary.created_at, info.run_id))
            return found[query.offset : query.offset + query.limit]

        return await self._reading(find)

    async def delete(self, run_id: str) -> None:
        def delete(folder: RunFolder) -> None:
            if folder.state() is None:
                raise RunNotFound(run_id)
            held = folder.read_lease()
            now = time.time()
            if held is not None and held.owner and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            folder.delete()

        await self._locked(run_id, delete)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(
                str(self.directory), "it is not open: use `async with store: ...`"
            )

    def _folder(self, run_id: str) -> RunFolder:
        # Kept, since it remembers what it has read.
        if run_id not in self._folders:
            path = self._sessions / folder_name(run_id)
            self._folders[run_id] = RunFolder(path, run_id)
        return self._folders[run_id]

    def _all_folders(self) -> list[RunFolder]:
        found: list[RunFolder] = []
        for path in self._sessions.iterdir():
            try:
                run_id = orjson.loads((path / "lease.json").read_bytes())["run_id"]
            except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
                continue
            if not path.is_symlink():
                found.append(self._folder(run_id))
        return found

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
            folder = self._folder(run_id)
            try:
                folder.path.mkdir(exist_ok=True)
                with FileLock(folder.path / "lock", timeout=_LOCK_SECONDS):
                    return work(folder)
            except Timeout as error:
                reason = f"another program has locked {folder.path} for {_LOCK_SECONDS:.0f} s"
                raise SaveFailed(run_id, reason) from error
            except OSError as error:
                raise SaveFailed(run_id, f"{folder.path}: {error.strerror or error}") from error

        self._check_open()
        return await to_thread.run_sync(locked)


def _check_held(lease: Lease, folder: RunFolder) -> Lease:
    held = folder.read_lease()
    if held is None or held.fence != lease.fence or not held.owner:
        owner = held.owner if held and held.owner else "nobody"
        raise LeaseLost(lease.run_id, f"it is held by {owner}")
    return held


def _release(folder: RunFolder, held: Lease) -> None:
    # What could not be given free expires by itself.
    with suppress(OSError):
        folder.write_lease(Lease(held.run_id, "", held.fence, held.expires_at))


def _info(folder: RunFolder) -> RunInfo | None:
    state = folder.state()
    if state is None or not state.length:
        return None
    held = folder.read_lease()
    if held is not None and not held.owner:
        held = None
    return RunInfo(state.run_id, state.summary, state.updated_at, state.length, held)
