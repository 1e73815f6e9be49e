"""Write and read the folder of one run, even if some of its files are damaged.

::

    checkpoint.json                     the newest entries and the summary of the run
    history/checkpoint-{time}.json      earlier versions of `checkpoint.json`, the newest few
    history/damaged-{time}.json         a damaged version of `checkpoint.json`
    entries/{first sequence}.json       older entries, about a hundred in each file, never rewritten
    lease.json                          the newest lease

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.store import Record, Remains
from effectflow.stores._atomic_files import (
    TEMPORARY,
    Unsynced,
    folder_name,
    remove_link,
    replace_link,
    sync_folder,
    write_whole,
)
from effectflow.stores._file_format import (
    Damaged,
    RunState,
    decode_lease,
    decode_records,
    decode_state,
    encode_lease,
    encode_rows,
    encode_state,
    readable_records,
    row_of,
)
from effectflow.stores._file_history import History
from effectflow.stores._rules import check_kept, is_holder
from effectflow.stores._summaries import UNREADABLE

logger = logging.getLogger(__name__)

Mark: TypeAlias = tuple[int, int, int]
"""A mark that changes whenever a file is replaced: its inode, time and size."""

_LOCKS = 1024
"""The number of locks. Two runs rarely share one while both are written."""

_ENTRIES_PER_FILE = 100
_BYTES_PER_FILE = 1024 * 1024

_OLDER = re.compile(r"\d{9,15}\.json")


class RunFolder:
    """The files of one run. A writer holds the lock of the run and its lease.

    There is a fixed number of locks, so that a run leaves none behind. `history` is the number of copies
    of earlier checkpoints to keep.
    """

    def __init__(self, directory: Path, run_id: str, *, history: int) -> None:
        name = folder_name(run_id)
        self.path = directory / "sessions" / name
        self.run_id = run_id
        self._lock = directory / "locks" / f"{zlib.crc32(name.encode()) % _LOCKS:03x}"
        self._checkpoint = self.path / "checkpoint.json"
        self._lease = self.path / "lease.json"
        self._history = History(self.path, history)
        # The state after the last save; valid as long as the checkpoint has this mark.
        self._last: tuple[Mark | None, RunState] | None = None

    @cached_property
    def lock(self) -> FileLock:
        """The lock of the run. Acquire it before any change."""
        return FileLock(self._lock, poll_interval=0.01)

    def marks(self) -> tuple[Mark | None, Mark | None]:
        """Return marks that change with every save and every lease."""
        return _mark_of(self._checkpoint), _mark_of(self._lease)

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
            lease = decode_lease(self._lease.read_bytes(), self.run_id)
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

    def write_lease(self, lease: Lease, *, is_durable: bool = True) -> None:
        """Replace the lease."""
        write_whole(self._lease, encode_lease(lease), is_durable=is_durable)

    def note_release(self, lease: Lease) -> None:
        """Note in `lease.json` that the last save released it, in case the checkpoint gets damaged.

        An older copy does not say so, and with it the run would count as held until the lease expires. If
        this fails, or a power loss undoes it, nothing else is lost.
        """
        with suppress(OSError):
            self.write_lease(replace(lease, owner=""), is_durable=False)

    # Read the journal.

    def state(self) -> RunState | None:
        """Return the state of the run, or None if it does not exist.

        If the checkpoint is damaged, read the newest intact copy instead, and log what was lost. Raise
        CorruptCheckpoint if there is no such copy, and UnsupportedVersion if another effectflow wrote
        it.
        """
        # Read once: a save in another thread clears it.
        mark, last = self._last or (None, None)
        if last is not None and mark == _mark_of(self._checkpoint):
            return last
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
        mark, last = self._last or (None, None)
        if (
            last is None
            or mark == _mark_of(self._checkpoint)
            or (last.fence, last.length) != (lease.fence, after)
        ):
            return self.state()
        held = self.lease(last)
        if not is_holder(lease, held.owner, held.fence):
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
            return replace(last, damage=str(damage))

    def info(self, state: RunState | None) -> RunInfo:
        """Return one line about the run, given its state; None if that cannot be read.

        Then only records can be repaired. Raise CorruptCheckpoint if there are none.
        """
        lease = self.lease(state)
        held = lease if lease.owner else None
        if state is None:
            records = self.salvage().records
            if not records:
                raise CorruptCheckpoint(self.run_id, "none of its files can be read", intact=0)
            return RunInfo(self.run_id, UNREADABLE, records[-1].written_at, len(records), held)
        return RunInfo(self.run_id, state.summary, state.updated_at, state.length, held)

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
        found = [record for record in (*older, *state.records()) if record.sequence > after]
        # Without this check, the run would seem shorter.
        for number, record in zip_longest(range(after + 1, state.length + 1), found):
            if record is None or record.sequence != number:
                raise CorruptCheckpoint(self.run_id, "its file is missing", sequence=number)
        return found

    def salvage(self) -> Remains:
        """Return everything that is left of the run, in intact and damaged files.

        A `checkpoint.json` that cannot be read is among the unreadable bytes, which are empty if it is
        missing.
        """
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
            found |= {record.sequence: record for record in state.records()}
        if state is None or state.damage:
            data = self._checkpoint.read_bytes() if self._checkpoint.exists() else b""
            unreadable["checkpoint.json"] = data
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
                    records = decode_records(path.read_bytes(), first)
                    known = state.records()
                    if len(records) > len(known) and records[: len(known)] == known:
                        state = replace(
                            state,
                            summary=replace(state.summary, status=RunStatus.RUNNING),
                            updated_at=records[-1].written_at,
                            first=first + len(records),
                            rows=(),
                        )
        return state

    # Write the journal.

    def create(self, bodies: Sequence[bytes], summary: RunSummary, lease: Lease) -> RunInfo:
        """Write the first records of a new run durably, with its lease. Return one line about the run.

        An owner that is empty means no lease. Raise OSError as `save` does, and RunConflict if another
        run has the folder.
        """
        self.lease(None)
        self._make_folders()
        new = RunState(self.run_id, summary, summary.created_at, 1, (), lease.fence)
        # Left by a removal or a creation that was interrupted.
        self.tidy(new)
        # First, because the checkpoint makes it a run. Until then, it is not one.
        self.write_lease(lease)
        sync_folder(self.path.parent)
        state = self.save(new, bodies, summary, fence=lease.fence, release=not lease.owner)
        replace_link(self.path.with_name("latest"), self.path.name)
        held = lease if lease.owner else None
        return RunInfo(self.run_id, summary, state.updated_at, state.length, held)

    def _make_folders(self) -> None:
        for folder in (self.path, self._history.path, self.path / "entries"):
            folder.mkdir(exist_ok=True)

    def save(
        self,
        state: RunState,
        bodies: Sequence[bytes],
        summary: RunSummary,
        *,
        fence: int,
        release: bool,
    ) -> RunState:
        """Append records durably. Return the state after that.

        Raise OSError if nothing was appended; `may_be_saved` names the exception.
        """
        # If anything fails from here on, the next save reads the files.
        last, self._last = self._last, None
        if last is None or last[1] is not state:
            # Empty folders get lost when other programs copy a run.
            self._make_folders()
        now = time.time()
        saved = replace(
            state,
            summary=summary,
            updated_at=now if bodies else state.updated_at,
            rows=(*state.rows, *(row_of(bytes(body), now) for body in bodies)),
            fence=fence,
            is_released=release,
            damage="",
        )
        data = encode_state(saved)
        if len(saved.rows) >= _ENTRIES_PER_FILE or len(data) >= _BYTES_PER_FILE:
            write_whole(self.path / "entries" / f"{saved.first:09}.json", encode_rows(saved.rows))
            saved = saved.without_rows()
            data = encode_state(saved)
        copies = self._history.keep(self._checkpoint, is_damaged=bool(state.damage))
        write_whole(self._checkpoint, data)
        # The save is done: a problem from here on must not be reported as a failed save.
        with suppress(OSError):
            self._history.remove_old(self.run_id, copies)
            self._last = _mark_of(self._checkpoint), saved
        return saved

    def truncate(self, lease: Lease, after: int, summary: RunSummary) -> None:
        """Remove the records after a sequence number durably, all or none."""
        kept = [record for record in self.salvage().records if record.sequence <= after]
        check_kept(lease, len(kept), after=after)
        first = self._first_to_rewrite(after)
        rows = tuple(row_of(record.body, record.written_at) for record in kept[first - 1 :])
        saved = RunState(self.run_id, summary, kept[-1].written_at, first, rows, lease.fence)
        self.forget()
        self._make_folders()
        self._history.keep(self._checkpoint, is_damaged=True)
        write_whole(self._checkpoint, encode_state(saved))
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
        return isinstance(error, Unsynced) and error.filename == str(self._checkpoint)

    def remove(self) -> None:
        """Remove the run durably. An interruption leaves all of it or none."""
        self.forget()
        # The copies first, because without a checkpoint the run would be read from them.
        self._history.empty()
        self._checkpoint.unlink(missing_ok=True)
        sync_folder(self.path)
        # Without the checkpoint, nothing reads the rest.
        with suppress(OSError):
            for path in (self.path / "entries").glob("*"):
                path.unlink()
            for name in ("history", "entries"):
                with suppress(FileNotFoundError):
                    (self.path / name).rmdir()
            self._lease.unlink(missing_ok=True)
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


def _mark_of(path: Path) -> Mark | None:
    """Return a mark that changes whenever the file is replaced, or None if it is missing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
