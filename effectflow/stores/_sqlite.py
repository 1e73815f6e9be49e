"""Runs in one SQLite file: no server, and nothing lost when the process or the power fails."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from anyio import CapacityLimiter, Lock

from effectflow.checkpoint.errors import StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunSummary
from effectflow.checkpoint.store import Batch, Changes, StoreFacts, TransactionStore
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.stores import _sql as sql
from effectflow.stores._base import as_unavailable
from effectflow.stores._changes import Announcements
from effectflow.stores._packed import packed
from effectflow.stores._rules import check_first
from effectflow.stores._sql import Attempt, Ended, Query, Reading, Rows, Steps, advance
from effectflow.stores._sql_due import ClaimMemory
from effectflow.stores._sql_store import SqlStore
from effectflow.stores._sqlite_changes import SqliteChanges
from effectflow.stores._sqlite_database import (
    SQLITE_ERRORS,
    DatabaseFiles,
    facts_of,
    open_database,
    text_of,
)
from effectflow.stores._sqlite_transaction import SqliteTransaction, check_caller
from effectflow.stores._sqlite_writer import SqliteWriter

A = TypeVar("A")

_READERS = 4
"""How many reads may be in progress at the same time, so that a long one does not delay the others."""


class SqliteStore(SqlStore, TransactionStore):
    """Keeps runs in an SQLite file (in WAL mode), which several processes may use at once.

    One thread writes, and commits all waiting entries together, so that many runs share the price of
    one commit. A step costs one row, however long the run is.

    Parameters:
        path: the file; it and its folder are created if they are missing.
        durability: "full" syncs every commit to disk and survives power loss; "process" survives the
            death of the process, and may lose the last commits on power loss.
        lock_timeout: how long (seconds, or a `timedelta`) to wait while another program has locked the
            file.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    The file must be on a local file system, since its write-ahead log is shared through memory. If the
    file, or its `-wal` or `-shm`, is deleted, moved or replaced while the store is open, every request
    raises StoreUnavailable.

    Opening raises StoreUnavailable for a file that is not an effectflow database or cannot be used,
    and UnsupportedVersion for one that a newer effectflow created, or one from before the first release.
    None is changed.

    Example:
        >>> import anyio
        >>> async def main() -> None:
        ...     async with SqliteStore("runs.db") as store:
        ...         print(await store.find())
        >>> anyio.run(main)
        []
    """

    _reading: CapacityLimiter
    _transacting: Lock
    _files: DatabaseFiles
    _writer: SqliteWriter

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        durability: Literal["full", "process"] = "full",
        lock_timeout: Duration = 5.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__()
        if durability not in ("full", "process"):
            raise ValueError(f"durability must be 'full' or 'process', not {durability!r}")
        if str(path) == ":memory:":
            raise ValueError(
                "':memory:' is not a file, and each connection would have its own database. "
                "Use MemoryStore(), or the URL memory:"
            )
        self.path: Path = Path(path)
        self._durability = durability
        self._lock_timeout = in_seconds(lock_timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._memory = ClaimMemory()
        self._announcements = Announcements()
        self._opened = ExitStack()
        self._idle_readers: list[sqlite3.Connection] = []

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    @property
    def durability(self) -> str:
        return self._durability

    async def _open(self) -> None:
        # Reads have separate threads: the shared ones may be busy for a long time.
        self._reading = CapacityLimiter(_READERS)
        self._transacting = Lock()

        def open_both() -> sqlite3.Connection:
            # Threads of an event loop that was closed before it could end them.
            self._opened.close()
            self._idle_readers = [self._connect()]
            self._files = DatabaseFiles(self.path)
            connection = self._connect()
            self._files.check()
            return connection

        connection = await shielded(in_thread(open_both, self._reading))
        self._writer = SqliteWriter(
            connection,
            self._files,
            lock_timeout=self._lock_timeout,
            announcements=self._announcements,
        )
        self._opened.callback(self._writer.close)

    def _connect(self) -> sqlite3.Connection:
        connection = open_database(self.path, self._durability, lock_timeout=self._lock_timeout)
        self._opened.callback(connection.close)
        return connection

    async def _close(self) -> None:
        await in_thread(self._opened.close, CapacityLimiter(1))

    async def _read(self, reading: Reading[A]) -> A:
        def perform() -> A:
            try:
                reader = self._idle_readers.pop()
            except IndexError:
                reader = self._connect()
            try:
                self._files.check()
                return _performed(reader, reading())
            except SQLITE_ERRORS as error:
                reason = f"it cannot be read: {text_of(error)}"
                raise StoreUnavailable(str(self.path), reason) from error
            finally:
                self._idle_readers.append(reader)

        self._check_open()
        return await in_thread(perform, self._reading)

    async def _change(self, attempt: Attempt[A]) -> A:
        with as_unavailable(self):
            return await self._save("", attempt)

    async def _save(self, run_id: str, attempt: Attempt[A]) -> A:
        self._check_open()
        return await self._writer.submit(run_id, _transaction(attempt))

    async def append(self, lease: Lease, batch: Batch) -> None:
        if batch.summary is not None or batch.takes or batch.release or not batch.bodies:
            await super().append(lease, batch)
            return
        self._check_open()
        await self._writer.submit(lease.run_id, _plain_append(lease, batch))

    async def facts(self) -> StoreFacts:
        self._check_open()
        try:
            return await in_thread(lambda: facts_of(self.path), self._reading)
        except OSError as error:
            # That the file is gone is told as by every other request.
            self._files.check()
            raise StoreUnavailable(str(self.path), f"it cannot be read: {error}") from error

    @property
    def has_async_connections(self) -> bool:
        return False

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SqliteTransaction]:
        self._check_open()
        async with self._transacting:
            transaction = SqliteTransaction(
                self._writer,
                self._files,
                lambda database, lease, batch: _transaction(sql.append(lease, batch))(database),
                durability=self._durability,
                lock_timeout=self._lock_timeout,
            )
            try:
                yield transaction
            finally:
                transaction.end()
        await self._announce(*transaction.told)

    async def create_within(
        self, connection: Any, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary
    ) -> bool:
        check_first(run_id, bodies)
        cursor = check_caller(connection, self.path).cursor()
        cursor.row_factory = None
        commit = _performed(cursor, sql.create(run_id, bodies, summary, "", 0.0)())
        for change in commit.changes:
            _execute(cursor, change)
        return commit.result is not None

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._check_open(in_any_thread=True)
        renew = _transaction(lambda: sql.renew(leases, seconds))
        # Another connection would wait for the same lock, and could not share the writer's commit.
        with as_unavailable(self):
            return self._writer.submit_and_block("", renew, timeout=self._renew_timeout)

    async def _announce(self, *run_ids: str) -> None:
        self._announcements.announce(*run_ids)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        self._check_open()
        async with self._announcements.watch() as watcher:
            await self._writer.watch()
            yield SqliteChanges(watcher, self._read)


Database: TypeAlias = sqlite3.Connection | sqlite3.Cursor
"""A connection of the store, or a cursor of one that a caller has."""


def _plain_append(lease: Lease, batch: Batch) -> Callable[[sqlite3.Connection], None]:
    """Return the transaction of an append that only adds records, in two statements.

    Most appends do, and the transaction of `_sql.append` costs a step half as much again.
    """

    def perform(database: sqlite3.Connection) -> None:
        after, bodies = batch.after, batch.bodies
        now = time.time()
        current = (sql.key_of(lease.run_id), lease.owner, lease.fence, after)
        rows = database.execute(_EXTEND, (after + len(bodies), now, *current)).fetchall()
        if not rows:
            # The lease is lost. This says why.
            _transaction(sql.append(lease, batch))(database)
            return
        [(number,)] = rows
        for last, body in packed(bodies, after):
            database.execute(_ADD, (number, last, now, body))

    return perform


_EXTEND = """
    UPDATE runs SET length = ?, updated_at = ?
    WHERE key = ? AND owner = ? AND fence = ? AND length = ? RETURNING number
"""

_ADD = "INSERT INTO entries (run, sequence, written_at, body) VALUES (?, ?, ?, ?)"


def _transaction(attempt: Attempt[A]) -> Callable[[sqlite3.Connection], A]:
    def perform(database: sqlite3.Connection) -> A:
        commit = _performed(database, attempt())
        for change in commit.changes:
            _execute(database, change)
        return commit.result

    return perform


def _performed(database: Database, steps: Steps[A]) -> A:
    """Return what the steps return, after their queries were executed."""
    answers: list[Rows] | None = None
    while not isinstance(step := advance(steps, answers), Ended):
        answers = [_execute(database, query).fetchall() for query in step]
    return step.result


def _execute(database: Database, query: Query) -> sqlite3.Cursor:
    text = _in_sqlite(query.text)
    if isinstance(database, sqlite3.Cursor):
        # The connection of a caller does not know this function.
        text = text.replace("now()", repr(time.time()))
    return database.execute(text, query.parameters)


@lru_cache(512)
def _in_sqlite(text: str) -> str:
    """Return a statement of `_sql` for SQLite, in which a transaction locks the whole file."""
    unlocked = text.replace(" FOR UPDATE SKIP LOCKED", "").replace(" FOR UPDATE", "")
    return unlocked.replace(sql.IN_ORDER, "").replace("@", "")
