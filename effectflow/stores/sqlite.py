"""Runs in one SQLite file: no server, and nothing lost when the process or the power goes."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

from anyio import to_thread

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunNotFound,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    CheckpointStore,
    Record,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
)
from effectflow.effects.event_loop import shielded
from effectflow.stores.sqlite_file import open_database
from effectflow.stores.sqlite_writer import SqliteWriter

__all__ = ["SqliteStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_STATUSES = tuple(str(status) for status in RunStatus)

_CHUNK = 500
"""Rows read at a time, so that no read holds the write-ahead log for long."""


class SqliteStore(CheckpointStore):
    """Keeps runs in an SQLite file (in WAL mode), which several processes may use at once.

    One thread writes. It commits together whatever entries wait, so that many runs share the price of
    one commit; a step costs as many rows as it has entries, however long the run is.

    Parameters:
        path: the file; it and its folder are made if they are missing.
        durability: "full" syncs every commit to disk and survives power loss; "process" survives the
            death of the process, and may lose the last commits on power loss.

    The file must be on a local file system, as its write-ahead log is shared through memory.

    Opening fails with StoreUnavailable for a file that is no effectflow database or cannot be used,
    and with UnsupportedVersion for one that a newer effectflow made; neither is changed.

    Example:
        >>> import anyio
        >>> async def main() -> None:
        ...     async with SqliteStore("runs.db") as store:
        ...         print(await store.find())
        >>> anyio.run(main)
        []
    """

    def __init__(
        self, path: str | PathLike[str], *, durability: Literal["full", "process"] = "full"
    ) -> None:
        if durability not in ("full", "process"):
            raise ValueError(f"durability must be 'full' or 'process', not {durability!r}")
        if str(path) == ":memory:":
            raise ValueError(
                "':memory:' is no file, and each connection would have a database of its own. "
                "Use MemoryStore(), or the URL memory:"
            )
        self.path = Path(path)
        self._durability = durability
        self._writer: SqliteWriter | None = None
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()

    @property
    def durability(self) -> str:
        return self._durability

    async def __aenter__(self) -> Self:
        try:
            await shielded(to_thread.run_sync(self._open))
        except BaseException:
            await shielded(to_thread.run_sync(self._close))
            raise
        return self

    def _open(self) -> None:
        connection = open_database(self.path, self._durability)
        try:
            self._reader = open_database(self.path, self._durability)
            self._writer = SqliteWriter(connection, self.path)
        except BaseException:
            connection.close()
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await shielded(to_thread.run_sync(self._close))

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        def claim(database: sqlite3.Connection) -> Lease:
            now = time.time()
            held = _lease(database, run_id)
            if held is not None and held.owner not in ("", owner) and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            lease = Lease(run_id, owner, held.fence + 1 if held else 1, now + seconds)
            database.execute(
                "INSERT OR REPLACE INTO leases (run_id, owner, fence, expires_at)"
                " VALUES (?, ?, ?, ?)",
                (run_id, owner, lease.fence, lease.expires_at),
            )
            return lease

        return await self._open_writer().submit(run_id, claim)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(database: sqlite3.Connection) -> Lease:
            _check_held(lease, _lease(database, lease.run_id))
            renewed = Lease(lease.run_id, lease.owner, lease.fence, time.time() + seconds)
            database.execute(
                "UPDATE leases SET expires_at = ? WHERE run_id = ?",
                (renewed.expires_at, lease.run_id),
            )
            return renewed

        return await self._open_writer().submit(lease.run_id, renew)

    async def release(self, lease: Lease) -> None:
        def release(database: sqlite3.Connection) -> None:
            database.execute(
                "UPDATE leases SET owner = '' WHERE run_id = ? AND fence = ?",
                (lease.run_id, lease.fence),
            )

        await self._open_writer().submit(lease.run_id, release)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        def append(database: sqlite3.Connection) -> None:
            _append(database, lease, bodies, after, summary)
            if release:
                database.execute("UPDATE leases SET owner = '' WHERE run_id = ?", (lease.run_id,))

        await self._open_writer().submit(lease.run_id, append)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self._read(lambda database: _read_records(database, run_id, after))

    async def info(self, run_id: str) -> RunInfo | None:
        def read(database: sqlite3.Connection) -> RunInfo | None:
            row = database.execute(f"{_INFO} WHERE runs.run_id = ?", (run_id,)).fetchone()
            return None if row is None else _info(row)

        return await self._read(read)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        return await self._read(lambda database: _find(database, query))

    async def damaged_runs(self) -> list[str]:
        """The ids of the runs that `find` passes over, as they cannot be read."""

        def read(database: sqlite3.Connection) -> list[str]:
            marks = ", ".join("?" * len(_STATUSES))
            sql = f"SELECT run_id FROM runs WHERE status NOT IN ({marks}) ORDER BY run_id"
            return [run_id for [run_id] in database.execute(sql, _STATUSES)]

        return await self._read(read)

    async def delete(self, run_id: str) -> None:
        def delete(database: sqlite3.Connection) -> None:
            row = database.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                raise RunNotFound(run_id)
            held = _lease(database, run_id)
            now = time.time()
            if held is not None and held.owner and held.is_held(now):
                raise RunBusy(run_id, held.owner, held.expires_at - now)
            database.execute("DELETE FROM entries WHERE run = ?", row)
            database.execute("DELETE FROM runs WHERE number = ?", row)
            # Whoever let it expire must not go on as if it were a new run.
            database.execute("UPDATE leases SET owner = '' WHERE run_id = ?", (run_id,))

        await self._open_writer().submit(run_id, delete)

    def _open_writer(self) -> SqliteWriter:
        if self._writer is None:
            raise StoreUnavailable(str(self.path), "it is not open: use `async with store: ...`")
        return self._writer

    async def _read(self, read: Callable[[sqlite3.Connection], A]) -> A:
        def locked() -> A:
            with self._reading:
                if self._reader is None:
                    raise StoreUnavailable(
                        str(self.path), "it is not open: use `async with store: ...`"
                    )
                try:
                    return read(self._reader)
                except sqlite3.Error as error:
                    raise StoreUnavailable(str(self.path), f"it cannot be read: {error}") from error

        return await to_thread.run_sync(locked)


_INFO = """
    SELECT runs.run_id, workflow, kind, version, status, created_at, newest.written_at,
           newest.sequence, leases.owner, leases.fence, leases.expires_at
    FROM runs
    JOIN entries AS newest ON newest.run = runs.number AND newest.sequence =
         (SELECT max(sequence) FROM entries WHERE entries.run = runs.number)
    LEFT JOIN leases ON leases.run_id = runs.run_id AND leases.owner != ''
"""


def _lease(database: sqlite3.Connection, run_id: str) -> Lease | None:
    row = database.execute(
        "SELECT owner, fence, expires_at FROM leases WHERE run_id = ?", (run_id,)
    ).fetchone()
    return None if row is None else Lease(run_id, *row)


def _check_held(lease: Lease, held: Lease | None) -> None:
    if held is None or held.fence != lease.fence or not held.owner:
        owner = held.owner if held and held.owner else "nobody"
        raise LeaseLost(lease.run_id, f"it is held by {owner}")


def _append(
    database: sqlite3.Connection,
    lease: Lease,
    bodies: Sequence[bytes],
    after: int,
    summary: RunSummary | None,
) -> None:
    """Check everything, then write: a refused append leaves the others of its commit alone."""
    owner, fence, number, length = database.execute(
        "SELECT leases.owner, leases.fence, runs.number,"
        " (SELECT max(sequence) FROM entries WHERE run = runs.number)"
        " FROM (SELECT ? AS run_id) AS wanted"
        " LEFT JOIN leases ON leases.run_id = wanted.run_id"
        " LEFT JOIN runs ON runs.run_id = wanted.run_id",
        (lease.run_id,),
    ).fetchone()
    if fence != lease.fence or not owner:
        raise LeaseLost(lease.run_id, f"it is held by {owner or 'nobody'}")
    if (length or 0) != after:
        raise LeaseLost(lease.run_id, f"its journal has {length or 0} entries, not {after}")
    if summary is not None:
        number = _put_summary(database, lease.run_id, summary)
    elif number is None:
        raise ValueError("the first append of a run needs a summary")
    now = time.time()
    database.executemany(
        "INSERT INTO entries (run, sequence, written_at, body) VALUES (?, ?, ?, ?)",
        [(number, sequence, now, body) for sequence, body in enumerate(bodies, after + 1)],
    )


def _put_summary(database: sqlite3.Connection, run_id: str, summary: RunSummary) -> int:
    [number] = database.execute(
        "INSERT INTO runs (run_id, workflow, kind, version, status, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET workflow = excluded.workflow, kind = excluded.kind,"
        " version = excluded.version, status = excluded.status, created_at = excluded.created_at"
        " RETURNING number",
        (
            run_id,
            summary.workflow,
            summary.kind,
            summary.version,
            str(summary.status),
            summary.created_at,
        ),
    ).fetchone()
    return number


def _read_records(database: sqlite3.Connection, run_id: str, after: int) -> list[Record]:
    row = database.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        return []
    records: list[Record] = []
    while True:
        # A chunk at a time: each ends its snapshot, and a journal only ever grows at its end.
        rows = database.execute(
            "SELECT sequence, written_at, body FROM entries WHERE run = ? AND sequence > ?"
            " ORDER BY sequence LIMIT ?",
            (row[0], after, _CHUNK),
        ).fetchall()
        records += [Record(*columns) for columns in rows]
        if len(rows) < _CHUNK:
            return records
        after = records[-1].sequence


def _find(database: sqlite3.Connection, query: RunQuery) -> list[RunInfo]:
    conditions, parameters = ["1"], list[object]()
    if query.workflow is not None:
        conditions.append("workflow = ?")
        parameters.append(query.workflow)
    if query.statuses:
        conditions.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        parameters += [str(status) for status in query.statuses]
    if query.resumable:
        conditions.append("status != ?")
        parameters.append(str(RunStatus.COMPLETED))
    if query.updated_before is not None:
        conditions.append("newest.written_at < ?")
        parameters.append(query.updated_before)
    sql = f"{_INFO} WHERE {' AND '.join(conditions)} ORDER BY created_at DESC, runs.run_id"
    wanted = query.offset + query.limit
    now = time.time()
    found: list[RunInfo] = []
    with closing(database.execute(sql, parameters)) as cursor:
        # Whether an owner lives is not for SQL to say, so paging is done on what is left.
        for row in cursor:
            if len(found) >= wanted:
                break
            try:
                info = _info(row)
            except CorruptCheckpoint as error:
                logger.warning("run %r is passed over: %s", error.run_id, error)
                continue
            if query.matches(info, now):
                found.append(info)
    return found[query.offset :]


_InfoRow: TypeAlias = tuple[
    str, str, str, str, str, float, float, int, str | None, int | None, float | None
]


def _info(row: _InfoRow) -> RunInfo:
    run_id, workflow, kind, version, status, created_at, updated_at, length = row[:8]
    owner, fence, expires_at = row[8:]
    lease = None
    if owner is not None and fence is not None and expires_at is not None:
        lease = Lease(run_id, owner, fence, expires_at)
    return RunInfo(
        run_id,
        RunSummary(workflow, kind, version, RunStatus.stored(status, run_id), created_at),
        updated_at,
        length,
        lease,
    )
