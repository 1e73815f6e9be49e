"""A file of exported runs, which `effectflow archive` writes, and a store that reads it."""

from __future__ import annotations

import gzip
import heapq
import os
import threading
import time
import zlib
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, NoReturn, cast

import anyio

from effectflow.checkpoint.errors import CorruptCheckpoint, StoreUnavailable, UnsupportedVersion
from effectflow.checkpoint.journal_reader import ExportedRun, ScannedRun, scan_exported
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunSummary
from effectflow.checkpoint.store import Batch, CheckpointStore, Record, StoreFacts, Taken
from effectflow.stores._atomic_files import sync_folder
from effectflow.stores._base import ReentrantStore


def open_export(path: Path) -> BinaryIO:
    """Open a file of exported runs, compressed or not, to read its lines. Raise OSError."""
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", gzip.open(path)) if is_compressed else path.open("rb")


def lines_of(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a file of exported runs. Raise CorruptCheckpoint if it is damaged."""
    try:
        yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"it is damaged or cut off: {error}"
        raise CorruptCheckpoint("", reason, what=f"the file {path}") from error


def infos_in(path: Path) -> Iterator[RunInfo]:
    """Yield one line about each run in a file. Raise OSError, and CorruptCheckpoint if it is damaged."""
    with open_export(path) as file:
        for found in scan_exported(lines_of(file, path)):
            yield found.info


def superseded_in(path: Path) -> frozenset[int]:
    """Return the places, from 0, of the runs in a file of which it has a newer copy: files can be joined.

    Damage ends the search, and nothing after it is read. Raise OSError.
    """
    newest: dict[str, tuple[float, int]] = {}
    superseded: set[int] = set()
    with suppress(CorruptCheckpoint, UnsupportedVersion):
        for place, info in enumerate(infos_in(path)):
            copy = info.updated_at, place
            known = newest.setdefault(info.run_id, copy)
            if known is not copy:
                newest[info.run_id] = max(known, copy)
                superseded.add(min(known, copy)[1])
    return frozenset(superseded)


def newest_in(file: BinaryIO, path: Path, superseded: Collection[int]) -> Iterator[ScannedRun]:
    """Yield the runs in an open file but those at these places. Raise CorruptCheckpoint for damage."""
    found = enumerate(scan_exported(lines_of(file, path)))
    return (run for place, run in found if place not in superseded)


@contextmanager
def new_archive(path: Path) -> Generator[BinaryIO]:
    """Write a compressed file that is complete and durable, or absent.

    Raise FileExistsError if it exists, and OSError if it cannot be written.
    """
    with NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="") as file:
            yield cast("BinaryIO", file)
        raw.flush()
        os.fsync(raw.fileno())
        # Unlike a rename, this replaces no other file.
        os.link(raw.name, path)
        sync_folder(path.parent)


class ArchiveStore(ReentrantStore, CheckpointStore):
    """The runs in a file of exported runs, to be read: lines of JSON, perhaps compressed by gzip.

    It scans the file. A run that follows the one before, in the order of the file, is found at once; any
    other one after reading the file. Of a run that is there twice, because files were joined, the newer
    copy counts: to find those, the first use reads the file once more, and needs memory for the ids of
    all runs. Changing a run raises StoreUnavailable: import the run into another store first.

    Parameters:
        path: the file, such as `runs.jsonl.gz`. What it contains tells whether it is compressed.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._scan: Iterator[ScannedRun] = iter(())
        self._last: ExportedRun | None = None
        self._superseded: frozenset[int] | None = None
        self._reading = threading.Lock()

    @property
    def durability(self) -> str:
        return "full"

    async def facts(self) -> StoreFacts:
        return StoreFacts(size=self.path.stat().st_size, is_read_only=True)

    def __repr__(self) -> str:
        return f"ArchiveStore({str(self.path)!r})"

    async def _open(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._rewind)
        except OSError as error:
            raise StoreUnavailable(repr(self), f"it cannot be read: {error.strerror}") from error

    async def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._scan, self._last = None, iter(()), None
        self._superseded = None

    def _rewind(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = open_export(self.path)
        self._scan = self._newest(self._file)

    def _newest(self, file: BinaryIO) -> Iterator[ScannedRun]:
        if self._superseded is None:
            self._superseded = superseded_in(self.path)
        yield from newest_in(file, self.path, self._superseded)

    def _run(self, run_id: str) -> ExportedRun | None:
        """Return a run, looked for from the place after the last one on, or None."""
        if self._last is not None and self._last.run_id == run_id:
            return self._last
        for is_second in (False, True):
            if is_second:
                self._rewind()
            for found in self._scan:
                if found.info.run_id == run_id:
                    self._last = found.load()
                    return self._last
        return None

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        self._check_open()

        def read() -> list[Record]:
            with self._reading:
                run = self._run(run_id)
            bodies = () if run is None else run.bodies
            at = 0.0 if run is None else run.updated_at
            return [Record(number, at, body) for number, body in enumerate(bodies, 1)][after:]

        return await anyio.to_thread.run_sync(read)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        self._check_open()

        def find() -> list[RunInfo]:
            with self._reading:
                return self._found(query)

        return await anyio.to_thread.run_sync(find)

    def _found(self, query: RunQuery) -> list[RunInfo]:
        now = time.time()
        if query.run_id is not None:
            run = self._run(query.run_id)
            infos = iter([] if run is None else [_info_of(run)])
        else:
            self._rewind()
            infos = (found.info for found in self._scan)
        matching = (info for info in infos if query.matches(info, now))
        if query.limit is None:
            return sorted(matching, key=_place)
        return heapq.nsmallest(query.limit, matching, key=_place)

    # What changes a run.

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        self._refuse()

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        self._refuse()

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._refuse()

    async def release(self, lease: Lease) -> None:
        self._refuse()

    async def append(self, lease: Lease, batch: Batch) -> None:
        self._refuse()

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        self._refuse()

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreUnavailable(
            repr(self),
            "it is a file of exported runs, which nothing changes. `effectflow import` copies them into "
            "a store",
        )


def _info_of(run: ExportedRun) -> RunInfo:
    return RunInfo(run.run_id, run.summary, run.updated_at, len(run.bodies), None)


def _place(info: RunInfo) -> tuple[float, str]:
    return -info.summary.created_at, info.run_id
