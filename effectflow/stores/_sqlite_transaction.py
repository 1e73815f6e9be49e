"""Transactions of an SqliteStore that also change tables of users."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from os import path
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter

from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Batch, Transaction, TransactionUndone
from effectflow.effects.event_loop import shielded
from effectflow.effects.threads import in_thread
from effectflow.effects.trails import add_note
from effectflow.stores._sqlite_database import DatabaseFiles, begin_transaction
from effectflow.stores._sqlite_writer import SqliteWriter, save_failed

A = TypeVar("A")

Append = Callable[[sqlite3.Connection, Lease, Batch], list[str]]
"""Appends to a journal with a connection. Returns the ids of the runs to announce."""


class SqliteTransaction(Transaction):
    """A transaction on its own connection, while the writer of the store waits.

    So the code of users is executed once, whatever happens to the appends of other runs, and the
    connection is closed when it has ended.
    """

    def __init__(
        self,
        writer: SqliteWriter,
        files: DatabaseFiles,
        append: Append,
        *,
        durability: str,
        lock_timeout: float,
    ) -> None:
        self.told: Sequence[str] = ()
        self._writer = writer
        self._files = files
        self._append = append
        self._durability = durability
        self._lock_timeout = lock_timeout
        self._connection: sqlite3.Connection | None = None
        self._is_writing = False
        # A thread of its own: those of others may all wait for it.
        self._thread = CapacityLimiter(1)

    async def perform(self, body: Callable[[Any], Any]) -> Any:
        return await self._in_thread(partial(self._perform, body))

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self._in_thread(partial(self._commit, lease, batch))

    def end(self) -> None:
        """Roll it back, unless it was committed."""
        # In the event loop, because nothing may cut this off. It takes no time worth a thread.
        if self._connection is not None:
            self._connection.close()
        if self._is_writing:
            self._is_writing = False
            self._writer.writing.release()

    async def _in_thread(self, f: Callable[[], A]) -> A:
        return await shielded(in_thread(f, self._thread))

    def _perform(self, body: Callable[[Any], Any]) -> Any:
        # Only now, because each change of the thread takes longer than many a transaction.
        self._writer.writing.acquire()
        self._is_writing = True
        self._files.check()
        self._connection = begin_transaction(
            self._files.path, self._durability, lock_timeout=self._lock_timeout
        )
        try:
            value = body(self._connection)
        except sqlite3.DatabaseError as error:
            if "not authorized" in str(error) or "prohibited" in str(error):
                add_note(error, _REFUSED)
            raise
        if not self._connection.in_transaction:
            raise RuntimeError(_ENDED)
        return value

    def _commit(self, lease: Lease, batch: Batch) -> None:
        connection = self._connection
        assert connection is not None
        connection.set_authorizer(None)
        connection.row_factory, connection.text_factory = None, str
        try:
            told = self._append(connection, lease, batch)
            self._files.check()
            connection.execute("COMMIT")
        except CheckpointError:
            raise
        except sqlite3.IntegrityError as error:
            # Of a table of the user: foreign keys may be checked at the commit.
            raise TransactionUndone(error, is_final=True) from error
        except Exception as error:
            raise save_failed(lease.run_id, self._files.path, error, self._lock_timeout) from error
        self._writer.commits += 1
        self.told = told


_REFUSED = (
    "the step is committed with the entry that it has completed: its code must not commit, roll back, "
    "use `with connection:` or `executescript`, or change the tables of the store"
)

_ENDED = (
    "the code of the transaction has ended it, so that what it changed may be committed without the step."
    " Use no statement that rolls back (such as INSERT OR ROLLBACK)"
)


def check_caller(connection: object, location: Path) -> sqlite3.Connection:
    """Return the connection of a caller whose transaction may create a run in this file.

    Raise TypeError for another kind of connection, and ValueError for one that is to another file, or
    would commit at once.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError(
            f"the connection for an SqliteStore is a sqlite3.Connection, not {connection!r}"
        )
    begins = (
        connection.isolation_level is not None and getattr(connection, "autocommit", -1) is not True
    )
    if not (connection.in_transaction or begins):
        raise ValueError(
            "the connection would commit the run at once: begin a transaction first, with BEGIN IMMEDIATE"
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    # The first one is the main database. Texts are what the connection makes of them, such as bytes.
    _, _, file = next(cursor.execute("PRAGMA database_list"))
    if not (file and path.samefile(file, location)):
        raise ValueError(
            f"the connection is to {file!r}, and the store is {str(location)!r}: one transaction "
            "cannot change both. Connect to the file of the store"
        )
    return connection
