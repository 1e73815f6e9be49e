"""Runs in one SQLite file: no server, and nothing lost when the process or the power fails."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from anyio import CapacityLimiter

from effectflow.checkpoint.errors import CorruptCheckpoint, RunNotFound, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    NOTICE,
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    Message,
    Record,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    Taken,
    notifies_parent,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.stores._base import ReentrantStore, as_unavailable
from effectflow.stores._changes import Announcements
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_free,
    check_holder,
    check_kept,
    check_length,
    check_messages,
    check_receives,
    due_if_unseen,
    first_summary,
    receivers,
    woken,
)
from effectflow.stores._sqlite_database import DatabaseFiles, Request, SqliteWriter, open_database
from effectflow.stores._sqlite_due import INFO, choose_runs, note_starts
from effectflow.stores._summaries import (
    SUMMARY_FIELDS,
    page,
    readable,
    run_info,
    sql_conditions,
    summary_fields,
    summary_of,
)

logger = logging.getLogger(__name__)

A = TypeVar("A")

_ROWS_PER_READ = 500
"""A read is done in pieces, so that none pins the write-ahead log for long."""


class SqliteStore(ReentrantStore, CheckpointStore):
    """Keeps runs in an SQLite file (in WAL mode), which several processes may use at once.

    One thread writes, and commits all waiting entries together, so that many runs share the price of
    one commit. A step costs one row for each of its entries, however long the run is.

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
    _reader: sqlite3.Connection
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
        self._announcements = Announcements()
        self._opened = ExitStack()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    @property
    def durability(self) -> str:
        return self._durability

    async def _open(self) -> None:
        # One read at a time, in a separate thread: the shared ones may be busy for a long time.
        self._reading = CapacityLimiter(1)

        def open_both() -> sqlite3.Connection:
            # Threads of an event loop that was closed before it could end them.
            self._opened.close()
            self._reader = self._connect()
            self._files = DatabaseFiles(self.path)
            connection = self._connect()
            self._files.check()
            _remove_abandoned(connection)
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
        await in_thread(self._opened.close, self._reading)

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        def claim(database: sqlite3.Connection) -> Lease:
            now = time.time()
            check_free(_lease(database, run_id), now=now, claimant=owner)
            return _take(database, run_id, owner, seconds, now)

        return await self._submit(run_id, claim)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        def renew(database: sqlite3.Connection) -> Lease:
            check_current(lease, _lease(database, lease.run_id))
            renewed = lease.renewed(seconds, now=time.time())
            database.execute(
                "UPDATE leases SET expires_at = ?, expires_at_uptime = ? WHERE run_id = ?",
                (renewed.expires_at, renewed.expires_at_uptime, lease.run_id),
            )
            return renewed

        self._check_open(in_any_thread=True)
        # Another connection would wait for the same lock, and could not share the writer's commit.
        with as_unavailable(self):
            return self._writer.submit_and_block(lease.run_id, renew, timeout=self._renew_timeout)

    async def release(self, lease: Lease) -> None:
        def release(database: sqlite3.Connection) -> None:
            database.execute(
                "DELETE FROM leases WHERE run_id = ? AND fence = ?", (lease.run_id, lease.fence)
            )

        await self._submit(lease.run_id, release)

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
        self._check_open()
        append = _Append(lease.run_id, lease, bodies, after, summary, release, takes, seen)
        await self._writer.put(append)
        self._announcements.announce(*append.outcome())

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        def create(database: sqlite3.Connection) -> bool:
            if _number(database, run_id) is not None:
                return False
            now = time.time()
            check_free(_lease(database, run_id), now=now)
            database.execute("DELETE FROM leases WHERE run_id = ?", (run_id,))
            _write_entries(database, _write_summary(database, run_id, summary), 0, bodies, now)
            return True

        is_new = await self._submit(run_id, create)
        if is_new:
            self._announcements.announce(run_id)
        return is_new

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        def send(database: sqlite3.Connection) -> tuple[bool, list[str]]:
            found = _look_up(database, run_id)
            if found is None:
                raise RunNotFound(run_id)
            check_receives(run_id, found.summary)
            now = time.time()
            is_new = _put(database, found, topic, key, body, now)
            told = [run_id]
            if is_new and found.summary.is_nested:
                told += _notify(database, found.summary.parent, run_id, now)
            return is_new, told

        is_new, told = await self._submit(run_id, send)
        self._announcements.announce(*told)
        return is_new

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        def read(database: sqlite3.Connection) -> list[Message]:
            rows = database.execute(
                "SELECT messages.number, topic, key, sent_at, body FROM runs"
                " JOIN messages ON messages.run = runs.number"
                " WHERE run_id = ? AND messages.number > ? ORDER BY messages.number",
                (run_id, after),
            )
            return [Message(*row) for row in rows]

        return await self._read(read)

    async def claim_due(self, due: DueRuns) -> Claimed:
        def claim(database: sqlite3.Connection) -> Claimed:
            now = time.time()
            chosen, next_due_at = choose_runs(database, due, now)
            note_starts(database, chosen, due, now)
            taken = [
                Taken(_take(database, info.run_id, owner, due.seconds, now), info)
                for info, owner in zip(chosen, due.owners, strict=False)
            ]
            return Claimed((*taken,), next_due_at)

        # Idle workers ask all the time, and must not prevent others from writing.
        choice = await self._read(lambda database: choose_runs(database, due, time.time()))
        if not choice.runs:
            return Claimed((), choice.next_due_at)
        with as_unavailable(self):
            return await self._submit("", claim)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        self._check_open()
        async with self._announcements.watch() as changes:
            await self._writer.watch()
            yield changes

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        def read(database: sqlite3.Connection) -> list[Record]:
            number = _number(database, run_id)
            records: list[Record] = []
            last = after
            while True:
                # Each query has its own snapshot. That is safe, because a journal only grows at its end.
                rows = database.execute(
                    "SELECT sequence, written_at, body FROM entries WHERE run = ? AND sequence > ?"
                    " ORDER BY sequence LIMIT ?",
                    (number, last, _ROWS_PER_READ),
                ).fetchall()
                records += [Record(*columns) for columns in rows]
                if len(rows) < _ROWS_PER_READ:
                    return records
                last = records[-1].sequence

        return await self._read(read)

    async def info(self, run_id: str) -> RunInfo | None:
        def read(database: sqlite3.Connection) -> RunInfo | None:
            row = database.execute(f"{INFO} WHERE runs.run_id = ?", (run_id,)).fetchone()
            return None if row is None else run_info(*row)

        return await self._read(read)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        def read(database: sqlite3.Connection) -> list[RunInfo]:
            conditions, parameters = sql_conditions(query, "?", "runs.run_id")
            sql = f"{INFO} WHERE {conditions} ORDER BY created_at DESC, runs.run_id"
            now = time.time()
            with closing(database.execute(sql, parameters)) as cursor:
                # SQL cannot check whether an owner is alive, so the paging happens here.
                infos = readable(cursor, lambda row: run_info(*row))
                found = (info for info in infos if query.matches(info, now))
                return page(found, query)

        return await self._read(read)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""

        def read(database: sqlite3.Connection) -> list[str]:
            marks = ", ".join("?" * len(RunStatus))
            sql = f"SELECT run_id FROM runs WHERE status NOT IN ({marks}) ORDER BY run_id"
            return [run_id for [run_id] in database.execute(sql, [*map(str, RunStatus)])]

        return await self._read(read)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        def delete(database: sqlite3.Connection) -> None:
            number = _number(database, run_id)
            if number is None:
                raise RunNotFound(run_id)
            check_deletable(lease, _lease(database, run_id), now=time.time())
            database.execute("DELETE FROM entries WHERE run = ?", (number,))
            _empty_mailbox(database, number)
            database.execute("DELETE FROM runs WHERE number = ?", (number,))
            database.execute("DELETE FROM leases WHERE run_id = ?", (run_id,))

        await self._submit(run_id, delete)
        self._announcements.announce(run_id)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        def truncate(database: sqlite3.Connection) -> None:
            check_current(lease, _lease(database, lease.run_id))
            row = database.execute(
                "SELECT number, (SELECT max(sequence) FROM entries WHERE run = runs.number)"
                " FROM runs WHERE run_id = ?",
                (lease.run_id,),
            ).fetchone()
            number, length = row or (None, None)
            check_kept(lease, length or 0, after=after)
            database.execute("DELETE FROM entries WHERE run = ? AND sequence > ?", (number, after))
            _write_summary(database, lease.run_id, summary)

        await self._submit(lease.run_id, truncate)

    def _submit(
        self, run_id: str, perform: Callable[[sqlite3.Connection], A]
    ) -> Coroutine[Any, Any, A]:
        self._check_open()
        return self._writer.submit(run_id, perform)

    async def _read(self, read: Callable[[sqlite3.Connection], A]) -> A:
        def perform() -> A:
            self._files.check()
            try:
                return read(self._reader)
            except sqlite3.Error as error:
                raise StoreUnavailable(str(self.path), f"it cannot be read: {error}") from error

        self._check_open()
        return await in_thread(perform, self._reading)


def _remove_abandoned(database: sqlite3.Connection) -> None:
    """Remove the claims of processes that died before they wrote anything."""
    # If that fails, because another program has locked the file, the next opening does it.
    with suppress(sqlite3.Error):
        rows = database.execute(
            "SELECT run_id, owner, fence, expires_at, expires_at_uptime FROM leases"
            " WHERE run_id NOT IN (SELECT run_id FROM runs)"
        ).fetchall()
        for row in rows:
            if Lease(*row).is_abandoned(time.time()):
                statement = "DELETE FROM leases WHERE run_id = ? AND fence = ?"
                database.execute(statement, (row[0], row[2]))


@dataclass(slots=True, eq=False)
class _Append(Request[list[str]]):
    """Appends records as in `CheckpointStore.append`. Its result is the ids of the runs to announce."""

    lease: Lease
    bodies: Sequence[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    takes: Sequence[int]
    seen: int | None

    def perform(self, database: sqlite3.Connection) -> list[str]:
        run_id, lease, takes, summary = self.run_id, self.lease, self.takes, self.summary
        # Check everything before writing, so that a rejected append does not affect its commit.
        owner, fence, number, length = database.execute(
            "SELECT leases.owner, leases.fence, runs.number,"
            " (SELECT max(sequence) FROM entries WHERE run = runs.number)"
            " FROM (SELECT ? AS run_id) AS wanted"
            " LEFT JOIN leases ON leases.run_id = wanted.run_id"
            " LEFT JOIN runs ON runs.run_id = wanted.run_id",
            (run_id,),
        ).fetchone()
        check_holder(lease, owner or "", fence)
        check_length(lease, length or 0, after=self.after)
        if not length:
            first_summary(summary)
        if takes:
            check_messages(lease, takes, _present(database, number, takes))
            database.executemany(
                "DELETE FROM messages WHERE run = ? AND number = ?",
                [(number, message) for message in takes],
            )
        now = time.time()
        announced: list[str] = []
        if summary is not None:
            newest = 0 if self.seen is None else _newest_message(database, number)
            saved = due_if_unseen(summary, self.seen, newest=newest, now=now)
            number = _write_summary(database, run_id, saved)
            if summary.status.has_ended:
                _empty_mailbox(database, number)
            announced = [run_id]
            if notifies_parent(summary):
                announced += _notify(database, summary.parent, run_id, now)
        _write_entries(database, number, self.after, self.bodies, now)
        if self.release:
            database.execute("DELETE FROM leases WHERE run_id = ?", (run_id,))
        return announced


def _number(database: sqlite3.Connection, run_id: str) -> int | None:
    """Return the number of a run, or None if it is unknown."""
    row = database.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    return None if row is None else row[0]


def _lease(database: sqlite3.Connection, run_id: str) -> Lease | None:
    row = database.execute(
        "SELECT owner, fence, expires_at, expires_at_uptime FROM leases WHERE run_id = ?", (run_id,)
    ).fetchone()
    return None if row is None else Lease(run_id, *row)


def _take(
    database: sqlite3.Connection, run_id: str, owner: str, seconds: float, now: float
) -> Lease:
    """Give a free lease to this owner."""
    [fence] = database.execute("UPDATE fences SET last = last + 1 RETURNING last").fetchone()
    lease = Lease.of(run_id, owner, fence, seconds=seconds, now=now)
    database.execute(
        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)",
        (run_id, owner, fence, lease.expires_at, lease.expires_at_uptime),
    )
    return lease


def _write_summary(database: sqlite3.Connection, run_id: str, summary: RunSummary) -> int:
    """Write the summary of a run, new or not, and return the number of the run."""
    [number] = database.execute(_SUMMARIZE, (run_id, *summary_fields(summary).values())).fetchone()
    return number


_COLUMNS = ", ".join(SUMMARY_FIELDS)

_SUMMARIZE = f"""
    INSERT INTO runs (run_id, {_COLUMNS}) VALUES (?{", ?" * len(SUMMARY_FIELDS)})
    ON CONFLICT (run_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in SUMMARY_FIELDS)} RETURNING number
"""


def _write_entries(
    database: sqlite3.Connection, number: int, after: int, bodies: Sequence[bytes], now: float
) -> None:
    database.executemany(
        "INSERT INTO entries (run, sequence, written_at, body) VALUES (?, ?, ?, ?)",
        [(number, sequence, now, body) for sequence, body in enumerate(bodies, after + 1)],
    )


# The mailbox of a run, which its number names. A taken message is removed from `messages`, but stays in
# `received` until the run ends.


class _Run(NamedTuple):
    """The number and the summary of a run."""

    number: int
    summary: RunSummary


def _look_up(database: sqlite3.Connection, run_id: str) -> _Run | None:
    """Return a run, or None if it is unknown. Raise CorruptCheckpoint if its status is unknown."""
    row = database.execute(
        f"SELECT number, {_COLUMNS} FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return None if row is None else _Run(row[0], summary_of(run_id, row[1:]))


def _put(
    database: sqlite3.Connection, run: _Run, topic: str, key: str, body: bytes, now: float
) -> bool:
    """Put a message into the mailbox of a run, unless the run has received it before."""
    if topic != NOTICE:
        received = database.execute(
            "INSERT INTO received (run, topic, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (run.number, topic, key),
        )
        if not received.rowcount:
            return False
    database.execute(
        "INSERT INTO messages (run, topic, key, sent_at, body) VALUES (?, ?, ?, ?, ?)",
        (run.number, topic, key, now, body),
    )
    due_at = woken(topic, run.summary, now=now).due_at
    if due_at != run.summary.due_at:
        database.execute("UPDATE runs SET due_at = ? WHERE number = ?", (due_at, run.number))
    return True


def _notify(database: sqlite3.Connection, parent: str, run_id: str, now: float) -> list[str]:
    """Notify the parent of a run, and the runs that the parent is nested in. Return their ids."""

    def find(receiver: str) -> _Run | None:
        try:
            return _look_up(database, receiver)
        except CorruptCheckpoint as error:
            logger.warning("run %r is not notified about run %r: %s", receiver, run_id, error)
            return None

    told: list[str] = []
    for receiver, run, key in receivers(parent, run_id, find):
        _put(database, run, NOTICE, key, b"", now)
        told.append(receiver)
    return told


def _present(database: sqlite3.Connection, number: int | None, messages: Sequence[int]) -> set[int]:
    """Return which of these messages are in the mailbox of a run."""
    statement = "SELECT 1 FROM messages WHERE run = ? AND number = ?"
    return {one for one in messages if database.execute(statement, (number, one)).fetchone()}


def _newest_message(database: sqlite3.Connection, number: int | None) -> int:
    """Return the number of the newest message in the mailbox of a run, or 0."""
    statement = "SELECT ifnull(max(number), 0) FROM messages WHERE run = ?"
    [newest] = database.execute(statement, (number,)).fetchone()
    return newest


def _empty_mailbox(database: sqlite3.Connection, number: int) -> None:
    """Remove all messages of a run, and the record of those that it took."""
    database.execute("DELETE FROM messages WHERE run = ?", (number,))
    database.execute("DELETE FROM received WHERE run = ?", (number,))
