"""Open an SQLite file as a store: check that it is ours, and make or keep its schema."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from effectflow.checkpoint.errors import StoreUnavailable, UnsupportedVersion
from effectflow.stores.file_writing import make_folder, sync_folder

__all__ = ["BUSY_SECONDS", "LOG_LIMIT", "open_database"]

BUSY_SECONDS = 5.0
"""How long to wait for another program that has locked the file."""

LOG_LIMIT = 4 * 1024 * 1024
"""Bytes that the write-ahead log keeps at most once it was begun anew."""

_APPLICATION_ID = 0x45464657  # "EFFW"
_SCHEMA_VERSION = 1
_LOG_PAGES = 256
"""Pages in the write-ahead log before it is begun anew. A sync costs half when the file need not grow,
so it is to reach its full length soon; a quarter of SQLite's default pays for itself."""


_SCHEMA = """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        workflow TEXT NOT NULL,
        kind TEXT NOT NULL,
        version TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX runs_newest_first ON runs (created_at DESC, run_id);
    -- In order of arrival, so that a commit for many runs writes few pages.
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        written_at REAL NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (run, sequence)
    ) STRICT;
    CREATE TABLE leases (
        run_id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        fence INTEGER NOT NULL,
        expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
"""


def open_database(path: Path, durability: str) -> sqlite3.Connection:
    """A connection to a store's file, which is made if it is missing.

    Raises StoreUnavailable if the file is not a store or cannot be used, and UnsupportedVersion if it
    is from a newer effectflow. A file that is refused is not changed.
    """
    try:
        make_folder(path.parent)
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(str(path), f"it cannot be opened: {error}") from error
    try:
        _prepare(connection, path)
        synchronous = "FULL" if durability == "full" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        # The names of the file and of its log. SQLite does it as well, but takes no notice of a failure.
        sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        connection.close()
        raise StoreUnavailable(str(path), _explain(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            is_new = not _is_ours(connection, path)
            _keep_log(connection, path)
            if is_new:
                _create(connection)
            return
        except sqlite3.OperationalError as error:
            # A change of the journal mode does not wait for locks as other statements do.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is a store already; False if it is empty."""
    # In one transaction: another process may just be making it a store.
    connection.execute("BEGIN")
    try:
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == 0 and tables == 0:
        return False
    if application != _APPLICATION_ID:
        raise StoreUnavailable(
            str(path),
            "it is a database of another program, and was left as it is. Choose another file",
        )
    if version > _SCHEMA_VERSION:
        raise UnsupportedVersion(str(path), version, _SCHEMA_VERSION)
    return True


def _keep_log(connection: sqlite3.Connection, path: Path) -> None:
    """Have it keep a write-ahead log, without which the last commit does not survive power loss.

    SQLite does not fail if it cannot: it says which mode it has instead.
    """
    [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            str(path),
            f"it cannot have a write-ahead log (its journal mode is {mode}). If the disk is sound, "
            "the file may be on a network file system; choose a local one",
        )


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _explain(error: Exception) -> str:
    text = str(error)
    if "not a database" in text:
        return "it is no SQLite database, and was left as it is. Choose another file"
    if "locked" in text:
        return (
            f"another program has locked it for more than {BUSY_SECONDS:.0f} s. "
            "Find out which (an open sqlite3 shell?) and end its transaction"
        )
    if "readonly" in text:
        return "it is read-only. Make the file and its folder writable, or choose another file"
    return f"it cannot be used: {text}"
