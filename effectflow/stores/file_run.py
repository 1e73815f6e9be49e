"""One run as files, and how they are read back, also when some are damaged.

::

    checkpoint.json                     the newest entries, with what the run is found by
    history/checkpoint-{time}.json      what `checkpoint.json` was before, the newest few
    history/damaged-{time}.json         what it was when it was found damaged
    entries/{first sequence}.json       older entries, some hundred a file, never written again
    lease.json                          who holds the run

`checkpoint.json` has a bounded number of entries, so what a save costs does not depend on how long the
run is. It also has the fence of whoever saved it, and whether the lease was given free with it.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Record, RunStatus, RunSummary
from effectflow.stores.file_format import (
    Damaged,
    Row,
    RunState,
    decode_lease,
    decode_records,
    decode_state,
    encode_lease,
    encode_records,
    encode_state,
    row_of,
)
from effectflow.stores.file_history import copies_of, new_stamp, without_old
from effectflow.stores.file_writing import (
    TEMPORARY,
    Unsynced,
    folder_name,
    keep_copy,
    sync_folder,
    write_whole,
)

__all__ = ["Mark", "RunFolder", "is_same", "run_id_of"]

logger = logging.getLogger(__name__)

Mark: TypeAlias = tuple[int, int, int]
"""What a file is told by: its inode, time and size."""

_ENTRIES_IN_A_FILE = 100
_BYTES_IN_A_FILE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a save has left, as long as the checkpoint has this mark."""

    mark: Mark
    state: RunState
    copies: list[Path]
    rows: list[Row]


_OLDER = re.compile(r"\d{9,18}\.json")


def is_same(lease: Lease, held: Lease) -> bool:
    """Whether a lease is the one that is held."""
    # Also by the owner: a fence is given out twice if the newest lease was lost with its file.
    return (lease.fence, lease.owner) == (held.fence, held.owner)


def run_id_of(path: Path) -> str | None:
    """The run that a folder is of; None if it is of none, or was copied from another folder."""
    is_copy = False
    for file in _files_that_name_it(path):
        try:
            run_id: Any = orjson.loads(file.read_bytes())["run_id"]
            if folder_name(run_id) == path.name:
                return run_id
            is_copy = True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None if is_copy or folder_name(path.name) != path.name else path.name


def _files_that_name_it(path: Path) -> Iterator[Path]:
    yield path / "lease.json"
    yield path / "checkpoint.json"
    yield from copies_of(path)


class RunFolder:
    """The files of one run. Whoever writes holds its lock, and its lease.

    `history` is how many copies of earlier checkpoints are kept.
    """

    def __init__(self, path: Path, run_id: str, *, history: int = 10) -> None:
        self.path = path
        self.run_id = run_id
        self.history = history
        self._checkpoint = path / "checkpoint.json"
        self._last: _Saved | None = None

    # The lease.

    def lease(self, state: RunState | None) -> Lease:
        """The newest lease, given where the run stands; its owner is empty if nobody holds it.

        One that is missing or damaged is free. Its fence is known from the checkpoint.
        """
        fence = 0 if state is None else state.fence
        lease = self._written_lease()
        if lease is None or lease.fence < fence:
            return Lease(self.run_id, "", fence, 0.0)
        if state is not None and state.is_released and lease.fence == fence:
            return replace(lease, owner="")
        return lease

    def _written_lease(self) -> Lease | None:
        try:
            return decode_lease((self.path / "lease.json").read_bytes(), self.run_id)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            logger.warning(
                "lease.json of run %r is damaged (%s): the run counts as free, and whoever drives it "
                "now will be refused",
                self.run_id,
                damage,
            )
            return None

    def write_lease(self, lease: Lease) -> None:
        self.path.mkdir(exist_ok=True)
        write_whole(self.path / "lease.json", encode_lease(lease))

    def is_claimed_only(self, state: RunState | None) -> bool:
        """Whether nothing was ever appended, given where the run stands."""
        # Not by the folder alone, which is empty at first: programs that copy files may leave it out.
        return state is None and not (self.path / "entries").exists()

    # The journal as it is read.

    def mark(self) -> Mark | None:
        """What changes whenever the run is saved; None if there is no `checkpoint.json`."""
        try:
            status = os.stat(self._checkpoint)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def state(self) -> RunState | None:
        """Where the run stands; None if it is not there.

        A checkpoint that is damaged is replaced by the newest good one of the history, with a warning
        that says what was lost. Fails with CorruptCheckpoint if there is none, and with
        UnsupportedVersion if a newer effectflow wrote it.
        """
        last = self._last
        if last is not None and last.mark == self.mark():
            return last.state
        try:
            return decode_state(self._checkpoint.read_bytes(), self.run_id)
        except FileNotFoundError:
            return self._restored("it is missing") if copies_of(self.path) else None
        except Damaged as damage:
            return self._restored(str(damage))

    def state_of_driver(self, lease: Lease, after: int) -> RunState | None:
        """Where the run stands for one who appends to it.

        If the checkpoint was damaged since its last save, that save is known here, and nothing is lost:
        nobody else can have saved under its lease, and the next save writes it again.
        """
        last = self._last
        if (
            last is None
            or last.mark == self.mark()
            or (last.state.fence, last.state.length) != (lease.fence, after)
            or not is_same(lease, self.lease(last.state))
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

    def records(self, after: int) -> list[Record]:
        """The records after a sequence number."""
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
            # Without this it would be taken for a shorter run, or for none.
            reason = "the file that had it is missing"
            raise CorruptCheckpoint(self.run_id, reason, sequence=state.length)
        return found

    def _older(self) -> list[tuple[int, Path]]:
        """The files of older records, with the sequence number of the first in each."""
        paths = (self.path / "entries").glob("*.json")
        return sorted((int(path.stem), path) for path in paths if _OLDER.fullmatch(path.name))

    def _read_older(self, path: Path, first: int) -> list[Record]:
        try:
            return decode_records(path.read_bytes(), first)
        except (FileNotFoundError, Damaged) as error:
            reason = f"{path.name} cannot be read: {error}"
            raise CorruptCheckpoint(self.run_id, reason, sequence=first) from error

    def _restored(self, problem: str) -> RunState:
        """The newest good copy, and what `entries` has after it."""
        for path in copies_of(self.path):
            try:
                copy = decode_state(path.read_bytes(), self.run_id)
            except (OSError, Damaged):
                continue
            state = self._continued(copy)
            damage = (
                f"{problem}: the run is taken from {path.name}, with {state.length} entries; "
                "what was saved after that is lost"
            )
            logger.warning("checkpoint.json of run %r is damaged: %s", self.run_id, damage)
            return replace(state, damage=damage)
        raise CorruptCheckpoint(
            self.run_id, f"its checkpoint.json is damaged ({problem}), and there is no good copy"
        )

    def _continued(self, state: RunState) -> RunState:
        """A copy, with the files of older records that were written after it.

        Its status is not known then, and running is what may be so with any journal.
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

    # The journal as it is written.

    def create(self, summary: RunSummary) -> RunState:
        """The state of a run that has no records yet."""
        self._make_folders()
        sync_folder(self.path)
        sync_folder(self.path.parent)
        return RunState(self.run_id, summary, summary.created_at, 1, ())

    def _make_folders(self) -> None:
        (self.path / "history").mkdir(exist_ok=True)
        (self.path / "entries").mkdir(exist_ok=True)

    def save(
        self,
        state: RunState,
        bodies: Sequence[bytes],
        summary: RunSummary,
        *,
        fence: int,
        release: bool = False,
    ) -> None:
        """Append records, durably.

        Raises OSError, and then nothing was appended, unless `may_be_saved` says otherwise.
        """
        # Whatever goes wrong from here on, the next save reads the files.
        last, self._last = self._last, None
        now = time.time()
        fresh = [
            Record(sequence, now, body) for sequence, body in enumerate(bodies, state.length + 1)
        ]
        known = last if last is not None and last.state is state else None
        if known is None:
            # They may have been empty, and a copy of the run made by another program have gone without.
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
            damage="",
        )
        if _is_long(saved.records):
            write_whole(
                self.path / "entries" / f"{saved.first:09}.json", encode_records(saved.records)
            )
            saved, rows = saved.without_records(), list[Row]()
        if known is None:
            copies = self._kept(is_damaged=bool(state.damage))
        else:
            copies = self._with_a_copy(known.copies)
        write_whole(self._checkpoint, encode_state(saved, rows))
        # It stands: nothing that goes wrong from here on may be told as a failure to save.
        copies = without_old(copies, self.history, self.run_id)
        with suppress(OSError):
            mark = self.mark()
            if mark is not None:
                self._last = _Saved(mark, saved, copies, rows)

    def may_be_saved(self, error: OSError) -> bool:
        """Whether a `save` that raised this may have appended all the same."""
        return isinstance(error, Unsynced) and error.filename == str(self._checkpoint)

    def _kept(self, *, is_damaged: bool) -> list[Path]:
        """The copies, with one of what is about to be replaced, which stays in its place until then."""
        copies = copies_of(self.path)
        if not self._checkpoint.exists():
            return copies
        if is_damaged:
            damaged = self.path / "history" / f"damaged-{new_stamp(copies)}.json"
            keep_copy(self._checkpoint, damaged)
            return copies
        if copies and copies[0].samefile(self._checkpoint):
            # The last save failed after this.
            return copies
        return self._with_a_copy(copies)

    def _with_a_copy(self, copies: list[Path]) -> list[Path]:
        if not self.history:
            return copies
        copy = self.path / "history" / f"checkpoint-{new_stamp(copies)}.json"
        keep_copy(self._checkpoint, copy)
        return [copy, *copies]

    def remove(self) -> None:
        """Remove the run, durably. A removal that was cut off leaves a run, or else no run."""
        # The copies first: a checkpoint that is missing would be taken from them.
        for path in (self.path / "history").glob("*"):
            path.unlink()
        self._checkpoint.unlink(missing_ok=True)
        if self.path.is_dir():
            sync_folder(self.path)
        # The rest is nothing without it.
        with suppress(OSError):
            for path in (self.path / "entries").glob("*"):
                path.unlink()
            for name in ("history", "entries"):
                with suppress(FileNotFoundError):
                    (self.path / name).rmdir()
            (self.path / "lease.json").unlink(missing_ok=True)
            self.path.rmdir()

    def tidy(self, state: RunState | None) -> None:
        """Remove what an interrupted save has left. It was never part of the run."""
        for path in self.path.rglob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        if state is not None and not state.damage:
            for first, path in self._older():
                if first >= state.first:
                    path.unlink(missing_ok=True)


def _is_long(records: Sequence[Record]) -> bool:
    """Whether these are too many, or too large, to be written with each save."""
    return (
        len(records) >= _ENTRIES_IN_A_FILE
        or sum(len(record.body) for record in records) >= _BYTES_IN_A_FILE
    )
