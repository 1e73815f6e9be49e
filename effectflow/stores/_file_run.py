"""Write and read the folder of one run, even if some of its files are damaged.

::

    checkpoint.json                     the newest entries and the summary of the run
    history/checkpoint-{time}.json      earlier versions of `checkpoint.json`, the newest few
    history/damaged-{time}.json         a damaged version of `checkpoint.json`
    entries/{first sequence}.json       older entries, about a hundred in each file, never rewritten
    lease.json                          the newest lease
    mailbox.json                        the messages to the run, if it has received any

`checkpoint.json` has a bounded number of entries, so the cost of a save does not depend on the length
of the run. It also has the fencing token of the lease under which it was saved, and whether that
lease was then released.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from filelock import FileLock

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Record, Remains, RunInfo, RunStatus, RunSummary
from effectflow.stores._atomic_files import (
    TEMPORARY,
    Unsynced,
    folder_name,
    keep_copy,
    make_folder,
    remove_link,
    replace_link,
    sync_folder,
    write_whole,
)
from effectflow.stores._file_format import (
    Damaged,
    Row,
    RunState,
    StoredMailbox,
    decode_lease,
    decode_mailbox,
    decode_records,
    decode_state,
    encode_lease,
    encode_mailbox,
    encode_records,
    encode_state,
    readable_records,
    row_of,
)
from effectflow.stores._rules import check_kept

logger = logging.getLogger(__name__)

Mark: TypeAlias = tuple[int, int, int]
"""A mark that changes whenever a file is replaced: its inode, time and size."""

_LOCKS = 1024
"""The number of locks. Two runs rarely share one while both are written."""

_ENTRIES_PER_FILE = 100
_BYTES_PER_FILE = 1024 * 1024

_OLDER = re.compile(r"\d{9,18}\.json")
_COPY = re.compile(r"checkpoint-\d{8}T\d{6}\.\d{6}Z\.json")
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state after a save. It is valid as long as the checkpoint has this mark."""

    mark: Mark
    state: RunState
    rows: list[Row]


def run_id_of(path: Path) -> str | None:
    """Return the run in a folder. Return None if it has none, or is a copy of another folder."""
    is_copy = False
    for file in _files_with_run_id(path):
        try:
            run_id: Any = orjson.loads(file.read_bytes())["run_id"]
            if folder_name(run_id) == path.name:
                return run_id
            is_copy = True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None if is_copy or folder_name(path.name) != path.name else path.name


def _files_with_run_id(path: Path) -> Iterator[Path]:
    yield path / "lease.json"
    yield path / "checkpoint.json"
    yield from _History(path).copies()


class RunFolder:
    """The files of one run. A writer holds the lock of the run and its lease.

    There is a fixed number of locks, so that a run leaves none behind. Beside each lock is the highest
    fencing token of the deleted runs that shared it. `history` is the number of copies of earlier
    checkpoints to keep.
    """

    def __init__(self, directory: Path, run_id: str, *, history: int = 10) -> None:
        name = folder_name(run_id)
        self.path = directory / "sessions" / name
        self.run_id = run_id
        self._lock = directory / "locks" / f"{zlib.crc32(name.encode()) % _LOCKS:03x}"
        self._checkpoint = self.path / "checkpoint.json"
        self._mailbox = self.path / "mailbox.json"
        self._history = _History(self.path, history)
        self._last: _Saved | None = None

    @cached_property
    def lock(self) -> FileLock:
        """The lock of the run. Acquire it before any change."""
        return FileLock(self._lock, poll_interval=0.01)

    def deleted_fence(self) -> int:
        """Return the fencing token that a claim of a new run must exceed, to reject stale writers."""
        try:
            return int(self._lock.with_suffix(".fence").read_bytes())
        except (FileNotFoundError, ValueError):
            # If the file was damaged, stale writers are still recognised by their owner.
            return 0

    def forget(self) -> None:
        """Forget the state after the last save."""
        self._last = None

    # The lease.

    def lease(self, state: RunState | None) -> Lease:
        """Return the newest lease, given the state of the run. Its owner is empty if it is free.

        It is free if its file is missing or damaged. The fencing token then comes from the checkpoint.
        """
        fence = 0 if state is None else state.fence
        free = Lease(self.run_id, "", fence, 0.0)
        try:
            lease = decode_lease((self.path / "lease.json").read_bytes(), self.run_id)
        except FileNotFoundError:
            return free
        except Damaged as damage:
            logger.warning(
                "lease.json of run %r is damaged (%s): the run can be claimed, and its current owner, "
                "if any, can no longer write",
                self.run_id,
                damage,
            )
            return free
        if lease.fence < fence:
            return free
        if state is not None and state.is_released and lease.fence == fence:
            return replace(lease, owner="")
        return lease

    def is_current(self, lease: Lease, state: RunState | None) -> bool:
        """Return whether this is the lease that holds the run, given its state."""
        held = self.lease(state)
        return (lease.fence, lease.owner) == (held.fence, held.owner)

    def write_lease(self, lease: Lease) -> None:
        self.path.mkdir(exist_ok=True)
        write_whole(self.path / "lease.json", encode_lease(lease))

    def note_release(self, lease: Lease) -> None:
        """Note in `lease.json` that the last save released it, in case the checkpoint gets damaged.

        An older copy does not say so, and with it the run would count as held until the lease expires. If
        this fails, or a power loss undoes it, nothing else is lost.
        """
        with suppress(OSError):
            data = encode_lease(replace(lease, owner=""))
            write_whole(self.path / "lease.json", data, is_durable=False)

    def is_claimed_only(self, state: RunState | None) -> bool:
        """Return whether the run never had an entry, given its state."""
        # An existing folder is no proof: it is empty at first, and copying programs may omit it.
        return state is None and not (self._checkpoint.exists() or (self.path / "entries").exists())

    # Read the journal.

    def mark(self) -> Mark | None:
        """Return a mark that changes with every save, or None if `checkpoint.json` is missing."""
        return _mark_of(self._checkpoint)

    def marks(self) -> tuple[Mark | None, Mark | None]:
        """Return a mark that changes with every save, and one that changes with every message."""
        return _mark_of(self._checkpoint), _mark_of(self._mailbox)

    def state(self) -> RunState | None:
        """Return the state of the run, or None if it does not exist.

        If the checkpoint is damaged, read the newest intact copy instead, and log what was lost. Raise
        CorruptCheckpoint if there is no such copy, and UnsupportedVersion if a newer effectflow wrote
        it.
        """
        last = self._last
        if last is not None and last.mark == self.mark():
            return last.state
        try:
            return decode_state(self._checkpoint.read_bytes(), self.run_id)
        except FileNotFoundError:
            return self._restored("it is missing") if self._history.copies() else None
        except Damaged as damage:
            return self._restored(str(damage))

    def state_if_readable(self) -> RunState | None:
        """Return the state of the run; None if it does not exist or cannot be read."""
        with suppress(CorruptCheckpoint):
            return self.state()
        return None

    def state_of_driver(self, lease: Lease, after: int) -> RunState | None:
        """Return the state of the run for the holder of its lease.

        If the checkpoint was damaged since the last save under this lease, that save is known here, so
        nothing is lost: the next save writes it again.
        """
        last = self._last
        if (
            last is None
            or last.mark == self.mark()
            or (last.state.fence, last.state.length) != (lease.fence, after)
            or not self.is_current(lease, last.state)
        ):
            return self.state()
        try:
            return decode_state(self._checkpoint.read_bytes(), self.run_id)
        except (FileNotFoundError, Damaged) as damage:
            logger.warning(
                "checkpoint.json of run %r was damaged (%s) while the run was driven: the next save "
                "writes it again, and nothing is lost",
                self.run_id,
                damage,
            )
            return replace(last.state, damage=str(damage))

    def info(self, state: RunState, summary: RunSummary | None = None) -> RunInfo:
        """Return one line about the run, given its state, and its summary if that is known."""
        lease = self.lease(state)
        held = lease if lease.owner else None
        known = self.summary(state) if summary is None else summary
        return RunInfo(self.run_id, known, state.updated_at, state.length, held)

    # The mailbox.

    def mailbox(self, state: RunState) -> StoredMailbox:
        """Return the mailbox, given the state of the run. Raise CorruptCheckpoint if it is damaged."""
        try:
            stored = decode_mailbox(self._mailbox.read_bytes(), self.run_id)
        except FileNotFoundError:
            return StoredMailbox(state.heard)
        except Damaged as damage:
            reason = (
                f"its mailbox.json is damaged ({damage}). Remove that file, and the run has received no "
                "messages"
            )
            raise CorruptCheckpoint(self.run_id, reason) from damage
        return replace(stored.without(state.taken), newest=max(stored.newest, state.heard))

    def summary(self, state: RunState) -> RunSummary:
        """Return the summary of the run, woken by the messages that came after it."""
        if state.summary.status.has_ended:
            return state.summary
        return self.mailbox(state).wake(state.summary, heard=state.heard)

    def write_mailbox(self, mailbox: StoredMailbox) -> None:
        """Write the messages durably. Raise OSError if nothing was changed, or see `may_be_saved`."""
        write_whole(self._mailbox, encode_mailbox(mailbox, self.run_id))

    def remove_mailbox(self) -> None:
        """Remove all messages."""
        self._mailbox.unlink(missing_ok=True)

    def records(self, after: int) -> list[Record]:
        """Return the records after a sequence number."""
        state = self.state()
        if state is None:
            return []
        older: list[Record] = []
        if after + 1 < state.first:
            files = [(first, path) for first, path in self._older() if first < state.first]
            ends = [*(first for first, _ in files), state.first][1:]
            for (first, path), end in zip(files, ends, strict=True):
                if end > after + 1:
                    older += self._read_older(path, first)
        found = [record for record in (*older, *state.records) if record.sequence > after]
        if after < state.length and (not found or found[-1].sequence < state.length):
            # Without this check the run would seem shorter.
            reason, last = "its file is missing", found[-1].sequence if found else after
            raise CorruptCheckpoint(self.run_id, reason, sequence=last + 1)
        return found

    def salvage(self) -> Remains:
        """Return everything that is left of the run, in intact and damaged files."""
        state = self.state_if_readable()
        unreadable: dict[str, bytes] = {}
        found: dict[int, Record] = {}
        for first, path in self._older():
            data = path.read_bytes()
            if state is None or first < state.first:
                try:
                    records = decode_records(data, first)
                except Damaged:
                    unreadable[f"entries/{path.name}"] = data
                    records = readable_records(data, first)
                found |= {record.sequence: record for record in records}
            elif state.damage:
                # It follows what was lost.
                unreadable[f"entries/{path.name}"] = data
        if state is not None:
            found |= {record.sequence: record for record in state.records}
        if (state is None or state.damage) and self._checkpoint.exists():
            unreadable["checkpoint.json"] = data = self._checkpoint.read_bytes()
            found = {record.sequence: record for record in readable_records(data)} | found
        return Remains([found[sequence] for sequence in sorted(found)], unreadable)

    def _older(self) -> list[tuple[int, Path]]:
        """Return the files of older records, each with the sequence number of its first record."""
        paths = (self.path / "entries").glob("*.json")
        return sorted((int(path.stem), path) for path in paths if _OLDER.fullmatch(path.name))

    def _read_older(self, path: Path, first: int) -> list[Record]:
        try:
            return decode_records(path.read_bytes(), first)
        except (FileNotFoundError, Damaged) as error:
            reason = f"{path.name} cannot be read: {error}"
            raise CorruptCheckpoint(self.run_id, reason, sequence=first) from error

    def _restored(self, problem: str) -> RunState:
        """Return the newest intact copy, continued by the records in `entries` that follow it."""
        for path in self._history.copies():
            try:
                copy = decode_state(path.read_bytes(), self.run_id)
            except (OSError, Damaged):
                continue
            state = self._continued(copy)
            damage = (
                f"{problem}: the run is read from {path.name}, with {state.length} entries; "
                "what was saved after that is lost"
            )
            logger.warning("checkpoint.json of run %r is damaged: %s", self.run_id, damage)
            return replace(state, damage=damage)
        reason = f"its checkpoint.json is damaged ({problem}), and it has no intact copy"
        raise CorruptCheckpoint(self.run_id, reason, intact=0)

    def _continued(self, state: RunState) -> RunState:
        """Return the state of a copy, continued by the older records that were written after it.

        Then the status is unknown. `running` is assumed, because a running run may have any journal.
        """
        for first, path in self._older():
            if first == state.first:
                with suppress(OSError, Damaged):
                    records = tuple(decode_records(path.read_bytes(), first))
                    known = state.records
                    if len(records) > len(known) and records[: len(known)] == known:
                        state = replace(
                            state,
                            summary=replace(state.summary, status=RunStatus.RUNNING),
                            updated_at=records[-1].written_at,
                            first=first + len(records),
                            records=(),
                        )
        return state

    # Write the journal.

    def create(self, summary: RunSummary) -> RunState:
        """Create the folders of a new run, and return its state."""
        self._make_folders()
        # Left by an interrupted removal.
        self.remove_mailbox()
        sync_folder(self.path)
        sync_folder(self.path.parent)
        replace_link(self.path.with_name("latest"), self.path.name)
        return RunState(self.run_id, summary, summary.created_at, 1, ())

    def _make_folders(self) -> None:
        self.path.mkdir(exist_ok=True)
        self._history.make()
        (self.path / "entries").mkdir(exist_ok=True)

    def save(
        self,
        state: RunState,
        bodies: Sequence[bytes],
        summary: RunSummary,
        *,
        fence: int,
        release: bool,
        mailbox: StoredMailbox,
    ) -> None:
        """Append records durably. `mailbox` is what the driver has left in it.

        Raise OSError if nothing was appended; `may_be_saved` names the exception.
        """
        # If anything fails from here on, the next save reads the files.
        last, self._last = self._last, None
        now = time.time()
        fresh = [
            Record(sequence, now, body) for sequence, body in enumerate(bodies, state.length + 1)
        ]
        known = last if last is not None and last.state is state else None
        if known is None:
            # Empty folders get lost when other programs copy a run.
            self._make_folders()
        rows = [*map(row_of, state.records)] if known is None else known.rows
        rows = [*rows, *map(row_of, fresh)]
        saved = replace(
            state,
            summary=summary,
            updated_at=now if bodies else state.updated_at,
            records=(*state.records, *fresh),
            fence=fence,
            is_released=release,
            taken=mailbox.taken,
            heard=mailbox.newest,
            damage="",
        )
        if _is_long(saved.records):
            write_whole(
                self.path / "entries" / f"{saved.first:09}.json", encode_records(saved.records)
            )
            saved, rows = saved.without_records(), list[Row]()
        copies = self._history.keep(self._checkpoint, is_damaged=bool(state.damage))
        write_whole(self._checkpoint, encode_state(saved, rows))
        # The save is done: a problem from here on must not be reported as a failed save.
        with suppress(OSError):
            if summary.status.has_ended:
                # Nothing reads it any more.
                self.remove_mailbox()
            self._history.remove_old(self.run_id, copies)
            mark = self.mark()
            if mark is not None:
                self._last = _Saved(mark, saved, rows)

    def truncate(self, lease: Lease, after: int, summary: RunSummary) -> None:
        """Remove the records after a sequence number durably, all or none."""
        kept = [record for record in self.salvage().records if record.sequence <= after]
        check_kept(lease, len(kept), after=after)
        first = self._first_to_rewrite(after)
        newest = kept[first - 1 :]
        saved = RunState(
            self.run_id, summary, kept[-1].written_at, first, tuple(newest), lease.fence
        )
        if (state := self.state_if_readable()) is not None:
            saved = replace(saved, taken=state.taken, heard=self.mailbox(state).newest)
        self._last = None
        self._make_folders()
        self._history.keep(self._checkpoint, is_damaged=True)
        write_whole(self._checkpoint, encode_state(saved, [*map(row_of, newest)]))
        # If this is interrupted, the next claim completes it.
        self.tidy(saved)

    def _first_to_rewrite(self, after: int) -> int:
        """Return the number after the last record in an intact file that has no record beyond `after`."""
        first = 1
        for start, path in self._older():
            try:
                end = start + len(decode_records(path.read_bytes(), start))
            except Damaged:
                break
            if start != first or end > after + 1:
                break
            first = end
        return first

    def may_be_saved(self, error: OSError) -> bool:
        """Return whether a `save` that raised this may have appended the records anyway."""
        places = {str(self._checkpoint), str(self._mailbox)}
        return isinstance(error, Unsynced) and error.filename in places

    def remove(self, state: RunState | None) -> None:
        """Remove the run durably, except its fencing token. An interruption leaves all of it or none."""
        fence = self.lease(state).fence
        if fence > self.deleted_fence():
            make_folder(self._lock.parent)
            write_whole(self._lock.with_suffix(".fence"), b"%d" % fence)
        # The copies first, because without a checkpoint the run would be read from them.
        self._history.empty()
        self._checkpoint.unlink(missing_ok=True)
        if self.path.is_dir():
            sync_folder(self.path)
        # Without the checkpoint, nothing reads the rest.
        with suppress(OSError):
            for path in (self.path / "entries").glob("*"):
                path.unlink()
            for name in ("history", "entries"):
                with suppress(FileNotFoundError):
                    (self.path / name).rmdir()
            (self.path / "lease.json").unlink(missing_ok=True)
            self.remove_mailbox()
            self.path.rmdir()
        remove_link(self.path.with_name("latest"), self.path.name)

    def tidy(self, state: RunState | None) -> None:
        """Remove what an interrupted save left behind. It was never part of the run."""
        for path in self.path.rglob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        if state is not None and not state.damage:
            for first, path in self._older():
                if first >= state.first:
                    path.unlink(missing_ok=True)


class _History:
    """The copies of earlier checkpoints of a run, in its folder `history`. `most` is how many to keep."""

    def __init__(self, run: Path, most: int = 0) -> None:
        self._path = run / "history"
        self._most = most

    def copies(self) -> list[Path]:
        """Return the copies of earlier checkpoints, newest first."""
        try:
            names = [name for name in os.listdir(self._path) if _COPY.fullmatch(name)]
        except FileNotFoundError:
            return []
        return [self._path / name for name in sorted(names, reverse=True)]

    def make(self) -> None:
        """Create the folder unless it exists."""
        self._path.mkdir(exist_ok=True)

    def keep(self, checkpoint: Path, *, is_damaged: bool) -> list[Path]:
        """Keep a copy of a checkpoint that is about to be replaced. Return all copies, newest first."""
        copies = self.copies()
        if not checkpoint.exists() or not (self._most or is_damaged):
            return copies
        # The last save may have failed after it had made the copy.
        if is_damaged or not copies or not copies[0].samefile(checkpoint):
            kind = "damaged" if is_damaged else "checkpoint"
            copy = self._path / f"{kind}-{_new_stamp(copies)}.json"
            keep_copy(checkpoint, copy)
            if not is_damaged:
                copies.insert(0, copy)
        return copies

    def remove_old(self, run_id: str, copies: list[Path]) -> None:
        """Remove the oldest of these copies if there are too many."""
        for path in copies[self._most :]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning(
                    "cannot remove %s of run %r, which is no longer needed (%s); "
                    "the next save tries again",
                    path.name,
                    run_id,
                    error,
                )

    def empty(self) -> None:
        """Remove everything in the folder."""
        for path in self._path.glob("*"):
            path.unlink()


def _new_stamp(copies: list[Path]) -> str:
    """Return the time, or a time just after the newest copy if the clock was set back."""
    now = datetime.now(UTC)
    # The name may look like a time that `datetime` does not have.
    with suppress(IndexError, ValueError):
        newest = datetime.strptime(copies[0].name, f"checkpoint-{_STAMP}.json").replace(tzinfo=UTC)
        now = max(now, newest + timedelta(microseconds=1))
    return now.strftime(_STAMP)


def _mark_of(path: Path) -> Mark | None:
    """Return a mark that changes whenever the file is replaced, or None if it is missing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_long(records: Sequence[Record]) -> bool:
    """Return whether there are too many of these records, or too large ones, to write with every save."""
    return (
        len(records) >= _ENTRIES_PER_FILE
        or sum(len(record.body) for record in records) >= _BYTES_PER_FILE
    )
