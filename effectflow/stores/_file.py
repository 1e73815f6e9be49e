"""Runs in plain files that people can read, copy, and keep under version control."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

import orjson
from anyio import CapacityLimiter
from filelock import FileLock, Timeout

from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    LeaseLost,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    NOTICE,
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    Message,
    Record,
    Remains,
    RunInfo,
    RunQuery,
    RunSummary,
    Taken,
    notifies_parent,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.stores._atomic_files import make_folder, write_whole
from effectflow.stores._base import ReentrantStore, as_unavailable
from effectflow.stores._due import is_due
from effectflow.stores._file_changes import ChangesFile, OwedNotice, owe, owed_notices
from effectflow.stores._file_due import RunFolders, choose_runs, infos_of, usage_of
from effectflow.stores._file_format import RunState, StoredMailbox
from effectflow.stores._file_run import RunFolder
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_free,
    check_length,
    check_messages,
    check_receives,
    due_if_unseen,
    first_summary,
    receivers,
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
        directory/notices/{digest}-{fence}-{length}.json
        directory/starts.json
        directory/changes

    A save writes a temporary file, syncs it, renames it, and syncs the folder. So a crash at any moment
    leaves either the state before or the state after. A damaged checkpoint is replaced by the newest
    intact copy of its history, with a warning. `find` skips a run that cannot be read at all, with a
    warning, and folders that are copies of others. Several processes on one host may use one directory.
    If the file system ignores the case of letters, run ids must differ in more than case: an id whose
    folder belongs to another run is rejected with RunConflict.

    A deleted run leaves only its fencing token, in one of a fixed number of files, and for a while its
    id in `changes`. So a stale writer stays rejected, even if a new run gets the same id.

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
        self.directory: Path = Path(directory)
        self._lock_timeout = in_seconds(lock_timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._sessions = self.directory / "sessions"
        self._notices = self.directory / "notices"
        self._changes = ChangesFile(self.directory / "changes")
        self._folders = RunFolders(self.directory, self._remove_abandoned)
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
            return self._claim(folder, state, owner, seconds, now)

        return await self._change(run_id, claim)

    def _claim(
        self, folder: RunFolder, state: RunState | None, owner: str, seconds: float, now: float
    ) -> Lease:
        folder.tidy(state)
        fence = max(folder.lease(state).fence, folder.deleted_fence()) + 1
        lease = Lease.of(folder.run_id, owner, fence, seconds=seconds, now=now)
        folder.write_lease(lease)
        return lease

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(folder: RunFolder) -> Lease:
            check_current(lease, folder.lease(folder.state_if_readable()))
            renewed = lease.renewed(seconds, now=time.time())
            folder.write_lease(renewed)
            return renewed

        self._check_open(in_any_thread=True)
        with as_unavailable(self):
            return self._locked(lease.run_id, renew, timeout=self._renew_timeout)

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

        # Otherwise a new owner, perhaps in this process, may have set its own history.
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
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        run_id = lease.run_id

        def append(folder: RunFolder) -> OwedNotice | None:
            state = folder.state_of_driver(lease, after)
            if state is None and after:
                raise LeaseLost(run_id, f"its files in {folder.path} were deleted or moved")
            check_current(lease, folder.lease(state))
            check_length(lease, 0 if state is None else state.length, after=after)
            if state is None:
                state = folder.create(first_summary(summary))
            mailbox = folder.mailbox(state)
            check_messages(lease, takes, mailbox.numbers)
            saved, left = _after_append(state, mailbox, summary, takes=takes, seen=seen)
            owed = None
            if summary is not None and notifies_parent(summary):
                owed = owe(self._notices, run_id, summary.parent, fence=lease.fence, length=after)
            entries = [bytes(body) for body in bodies]
            folder.save(state, entries, saved, fence=lease.fence, release=release, mailbox=left)
            if release:
                folder.note_release(lease)
            return owed

        def append_and_notify() -> None:
            owed = self._locked(run_id, append, timeout=self._lock_timeout)
            if summary is not None:
                self._changes.announce(run_id)
            if owed is not None:
                self._settle(owed)

        folder = self._driven.setdefault(run_id, self._folder(run_id))
        try:
            await self._perform(append_and_notify)
        except LeaseLost:
            folder.forget()
            raise
        if release:
            self._driven.pop(run_id, None)

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        def create(folder: RunFolder) -> bool:
            if folder.state() is not None:
                return False
            held = folder.lease(None)
            check_free(held, now=time.time())
            fence = max(held.fence, folder.deleted_fence()) + 1
            folder.tidy(None)
            state = folder.create(summary)
            entries = [bytes(body) for body in bodies]
            folder.save(state, entries, summary, fence=fence, release=True, mailbox=StoredMailbox())
            return True

        is_new = await self._change(run_id, create)
        if is_new:
            self._changes.announce(run_id)
        return is_new

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        def put(folder: RunFolder) -> bool:
            state = folder.state()
            if state is None:
                raise RunNotFound(run_id)
            check_receives(run_id, state.summary)
            mailbox = folder.mailbox(state)
            if mailbox.has_received(topic, key):
                return False
            folder.write_mailbox(mailbox.with_message(topic, key, bytes(body), now=time.time()))
            return True

        def send() -> bool:
            folder = self._folder(run_id)
            state = folder.state()
            if (
                state is not None
                and state.summary.is_nested
                and not state.summary.status.has_ended
                and not folder.mailbox(state).has_received(topic, key)
            ):
                # First, so that a crash cannot leave a message that the outer runs never hear of.
                self._notify(state.summary.parent, run_id)
            return self._locked(run_id, put, timeout=self._lock_timeout)

        is_new = await self._perform(send)
        if is_new:
            self._changes.announce(run_id)
        return is_new

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        def read() -> list[Message]:
            folder = self._folder(run_id)
            state = folder.state()
            if state is None or state.summary.status.has_ended:
                return []
            messages = folder.mailbox(state).messages
            return [message for message in messages if message.number > after]

        return await self._read(read)

    async def claim_due(self, due: DueRuns) -> Claimed:
        def claim() -> Claimed:
            for owed in owed_notices(self._notices):
                self._settle(owed)
            lock = FileLock(self.directory / "locks" / "due", poll_interval=0.01)
            with lock.acquire(timeout=self._lock_timeout):
                runs, _ = self._folders.look()
                usage = usage_of(runs, self._starts(), due, time.time())
                choice = choose_runs(runs, due, usage)
                claimed = [
                    taken
                    for info, owner in zip(choice.runs, due.owners, strict=False)
                    for taken in self._take(info.run_id, owner, due)
                ]
                starts = usage.after([taken.info for taken in claimed], due).starts
                if starts != usage.starts:
                    path = self.directory / "starts.json"
                    write_whole(path, orjson.dumps(starts), is_durable=False)
            return Claimed(tuple(claimed), choice.next_due_at)

        def perform() -> Claimed:
            try:
                return claim()
            except (OSError, SaveFailed) as error:
                reason = f"no run was claimed: {error}"
                raise StoreUnavailable(str(self.directory), reason) from error

        return await self._perform(perform)

    def _take(self, run_id: str, owner: str, due: DueRuns) -> list[Taken]:
        """Claim a run if it is still due and free."""

        def take(folder: RunFolder) -> list[Taken]:
            state, now = folder.state_if_readable(), time.time()
            if state is None:
                return []
            info = folder.info(state)
            if not is_due(info.summary, due) or info.is_held(now):
                return []
            return [Taken(self._claim(folder, state, owner, due.seconds, now), info)]

        return self._locked(run_id, take, timeout=self._lock_timeout)

    def _starts(self) -> dict[str, list[float]]:
        """Return when runs of each workflow with a limit were started last."""
        try:
            return orjson.loads((self.directory / "starts.json").read_bytes())
        except (OSError, ValueError):
            return {}

    def _settle(self, owed: OwedNotice) -> None:
        """Notify the parent of a run that has ended. If that fails, the next search repeats it."""

        def is_needed(folder: RunFolder) -> bool:
            # Under the lock of the run, so no driver is writing its end.
            state = folder.state_if_readable()
            return state is None or notifies_parent(state.summary)

        try:
            if self._locked(owed.run_id, is_needed, timeout=self._lock_timeout):
                self._notify(owed.parent, owed.run_id)
            owed.settle()
        except (CheckpointError, OSError) as error:
            logger.warning(
                "the end of run %r was saved, but its parent %r was not notified (%s): the next worker "
                "that looks for due runs notifies it",
                owed.run_id,
                owed.parent,
                error,
            )

    def _notify(self, parent: str, run_id: str) -> None:
        """Notify the parent of a run, and the runs that the parent is nested in."""
        found = receivers(parent, run_id, lambda receiver: self._folder(receiver).state())
        # The outermost first, so that a crash cannot leave a notice that the outer runs never hear of.
        for receiver, _, key in reversed([*found]):

            def put(folder: RunFolder, key: str = key) -> None:
                state = folder.state()
                if state is not None and not state.summary.status.has_ended:
                    mailbox = folder.mailbox(state)
                    folder.write_mailbox(mailbox.with_message(NOTICE, key, b"", now=time.time()))

            self._locked(receiver, put, timeout=self._lock_timeout)
            self._changes.announce(receiver)

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        self._check_open()
        return self._changes.watch()

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
            runs, damaged = self._folders.look()
            named = [run for run in runs if run.state.run_id.startswith(query.prefix)]
            infos, unreadable = infos_of(named)
            for run_id, error in {**damaged, **unreadable}.items():
                logger.warning("skipping run %r: %s", run_id, error)
            return select(infos, query, now=time.time())

        return await self._read(find)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""

        def look() -> list[str]:
            runs, damaged = self._folders.look()
            return sorted({**damaged, **infos_of(runs)[1]})

        return await self._read(look)

    async def damage(self, run_id: str) -> str | None:
        """Return how a run's `checkpoint.json` is damaged and which copy is read instead, or None."""

        def look() -> str | None:
            state = self._folder(run_id).state()
            return (state and state.damage) or None

        return await self._read(look)

    async def salvage(self, run_id: str) -> Remains:
        """Return everything that is left of a run."""
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
        self._changes.announce(run_id)
        self._driven.pop(run_id, None)

    def _folder(self, run_id: str) -> RunFolder:
        return self._driven.get(run_id) or RunFolder(self.directory, run_id)

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

        return await self._perform(lambda: self._locked(run_id, work, timeout=self._lock_timeout))

    async def _perform(self, perform: Callable[[], A]) -> A:
        """Call this in a thread, to its end."""
        self._check_open()
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


def _after_append(
    state: RunState,
    mailbox: StoredMailbox,
    summary: RunSummary | None,
    *,
    takes: Sequence[int],
    seen: int | None,
) -> tuple[RunSummary, StoredMailbox]:
    """Return the summary and the mailbox of a run after an append with these arguments."""
    has_ended = (summary or state.summary).status.has_ended
    left = mailbox.without(mailbox.numbers if has_ended else takes)
    if summary is None:
        return mailbox.wake(state.summary, heard=state.heard), left
    newest = max(left.numbers, default=0)
    return due_if_unseen(summary, seen, newest=newest, now=time.time()), left
