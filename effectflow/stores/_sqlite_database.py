"""Open and check the database file of an SqliteStore."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from effectflow.checkpoint.errors import (
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.store import StoreFacts
from effectflow.stores._atomic_files import make_folder, sync_folder
from effectflow.stores._sql import SCHEMA

LOG_LIMIT = 4 * 1024 * 1024
"""The size in bytes from which the write-ahead log is emptied."""

_LOG_PAGES = 256
"""Pages in the write-ahead log before SQLite begins it again, a quarter of SQLite's default. Syncing a
file costs twice as much while it grows, so the log should reach its full length soon."""

_APPLICATION_ID = 0x45464657  # "EFFW"
SCHEMA_VERSION = 6
"""Those before it were never released."""

_SCHEMA = SCHEMA.replace("@", "").replace("\n    );", "\n    ) STRICT;")


def open_database(path: Path, durability: str, *, lock_timeout: float) -> sqlite3.Connection:
    """Connect to the file of a store, and create it if it is missing.

    `lock_timeout` is how many seconds to wait while another program has locked the file.

    Raise StoreUnavailable if the file is not a store or cannot be used, and UnsupportedVersion if a
    newer effectflow created it, or one from before the first release. A rejected file is not
    changed. A file that this process may not write can be read.
    """
    try:
        make_folder(path.parent)
        with ExitStack() as abandoned:
            address = _read_only_address(path)
            connection = sqlite3.connect(
                address or path,
                uri=bool(address),
                timeout=lock_timeout,
                isolation_level=None,
                check_same_thread=False,
            )
            abandoned.callback(connection.close)
            connection.create_function("now", 0, time.time)
            # A text that is damaged must not make the rows of other runs unreadable.
            connection.text_factory = _decoded
            if address:
                _is_store(connection, path)
            else:
                _prepare(connection, path, lock_timeout)
            synchronous = "FULL" if durability == "full" else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            # SQLite also syncs the names of the file and its log, but ignores a failure.
            sync_folder(path.parent)
            abandoned.pop_all()
            return connection
    except (OSError, *SQLITE_ERRORS) as error:
        is_logged = _read_only_address(path).endswith("mode=ro")
        reason = explain(error, lock_timeout, is_logged=is_logged)
        raise StoreUnavailable(str(path), reason) from error


def _read_only_address(path: Path) -> str:
    """Return the address of a file that this process may only read; "" for any other."""
    real = Path(os.path.realpath(path))
    if not real.exists() or all(os.access(one, os.W_OK) for one in (real, real.parent)):
        return ""
    # Without a log, nobody writes to it now, and SQLite must not try to create one.
    has_log = real.with_name(f"{real.name}-wal").exists()
    return f"{real.as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"


def facts_of(path: Path) -> StoreFacts:
    """Return what is known about the file of an open store. Raise OSError."""
    real = Path(os.path.realpath(path))
    size = real.stat().st_size
    with suppress(FileNotFoundError):
        size += real.with_name(f"{real.name}-wal").stat().st_size
    return StoreFacts(SCHEMA_VERSION, size, bool(_read_only_address(path)))


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _prepare(connection: sqlite3.Connection, path: Path, lock_timeout: float) -> None:
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            is_new = not _is_store(connection, path)
            _use_write_ahead_log(connection, path)
            if is_new:
                _create(connection)
            return
        except sqlite3.OperationalError as error:
            # A change of the journal mode does not wait for locks as other statements do.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _is_store(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is a store, or False if it is empty. Raise if it is something else."""
    # One transaction, since another process may be creating the store right now.
    with connection:
        connection.execute("BEGIN")
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and tables == 0:
        return False
    if application != _APPLICATION_ID:
        raise StoreUnavailable(
            str(path),
            "it is a database of another program and was not changed. Choose another file",
        )
    if version != SCHEMA_VERSION:
        raise UnsupportedVersion(str(path), version, SCHEMA_VERSION)
    return True


def _use_write_ahead_log(connection: sqlite3.Connection, path: Path) -> None:
    # Without the log, the last commit does not survive a power loss. If SQLite cannot have one, it does
    # not raise, but answers with the mode that it uses instead.
    [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            str(path),
            f"SQLite cannot use a write-ahead log for it (its journal mode is {mode}). The file may "
            "be on a network file system: choose a local one",
        )
    # SQLite creates the log with the first access in this mode.
    connection.execute("PRAGMA user_version").fetchone()


def _create(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def begin_transaction(path: Path, durability: str, *, lock_timeout: float) -> sqlite3.Connection:
    """Connect to the file of an open store, begin to write, and return the connection.

    It is for the code of users, which can neither end the transaction nor change the tables of the store.

    Raise StoreUnavailable.
    """
    try:
        with ExitStack() as abandoned:
            connection = sqlite3.connect(
                path, timeout=lock_timeout, isolation_level=None, check_same_thread=False
            )
            abandoned.callback(connection.close)
            connection.create_function("now", 0, time.time)
            synchronous = "FULL" if durability == "full" else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            # By default, SQLite ignores the foreign keys that users declare.
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            connection.set_authorizer(_authorize)
            abandoned.pop_all()
            return connection
    except sqlite3.Error as error:
        raise StoreUnavailable(str(path), explain(error, lock_timeout)) from error


def _authorize(action: int, name: str | None, other: str | None, *_: object) -> int:
    """Say whether the code of users may do this in a transaction."""
    is_change = action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA)
    is_refused = (
        action in _REFUSED
        or (is_change and bool({name, other} & _TABLES))
        or (action == sqlite3.SQLITE_PRAGMA and name in _PRAGMAS and other is not None)
    )
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


_REFUSED = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_TABLES = frozenset[str | None](re.findall(r"CREATE TABLE @(\w+)", SCHEMA))
_PRAGMAS = ("application_id", "user_version")


class DatabaseFiles:
    """The files of an open database: where they are, and which ones they were when it was opened.

    SQLite keeps using a file that was deleted, moved or replaced, and what it commits then is lost or
    ends up somewhere else. Without its log, commits survive neither a crash nor the next opening.
    """

    def __init__(self, path: Path) -> None:
        # SQLite remembers absolute paths, and its other files are beside the target of a symbolic link.
        real = os.path.realpath(path)
        self.path = path
        self.log = f"{real}-wal"
        self._database = os.path.abspath(path)
        self._folder = os.path.dirname(real)
        self._opened = {
            name: self._identity(name) for name in (self._database, self.log, f"{real}-shm")
        }
        self._checked: _FolderState | None = None

    def check(self) -> None:
        """Raise StoreUnavailable unless these are the files that were opened.

        The log is written with each commit. To ask for its state as well would cost a quarter of the
        commit, because the next write would change its times. So the log and its index are looked at
        only when something in their folder was created, deleted or renamed since the last time.
        """
        folder = _FolderState.of(self._folder)
        is_same = folder is not None and folder == self._checked
        if is_same and self._identity(self._database) == self._opened[self._database]:
            return
        changed = [name for name, opened in self._opened.items() if self._identity(name) != opened]
        if changed:
            raise StoreUnavailable(
                str(self.path),
                f"{' and '.join(changed)}: deleted, moved, emptied or replaced while the store had it "
                "open, so nothing is saved here any more, and what was saved shortly before may be "
                "lost. Put the same files back. Or close the store, restore a copy if they are gone, "
                "and resume the runs",
            )
        self._checked = folder if folder is not None and folder.is_settled() else None

    def _identity(self, name: str) -> tuple[int, int] | None:
        """Return what identifies a file, or None if the file is gone."""
        try:
            found = os.stat(name)
        except OSError:
            return None
        # The log is emptied from time to time, but the database never is.
        if not found.st_size and name is self._database:
            return None
        return found.st_dev, found.st_ino


class _FolderState(NamedTuple):
    """What changes when a file in a folder is created, deleted or renamed, or the folder itself is.

    Attributes:
        device, inode: identify the folder.
        modified, changed: times in nanoseconds since the epoch. A program can set the first one.
    """

    device: int
    inode: int
    modified: int
    changed: int

    @staticmethod
    def of(path: str) -> _FolderState | None:
        """Return the state of a folder, or None if it is gone."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return _FolderState(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)

    def is_settled(self) -> bool:
        """Return whether another change from now on would show, however coarse the times are."""
        latest = max(self.modified, self.changed)
        has_whole_seconds = latest % 1_000_000_000 == 0
        # Systems take the times from a clock that ticks every 16 ms or more often.
        return time.time() - latest / 1e9 > (2.0 if has_whole_seconds else 0.02)


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What the driver raises: the second one if the text of an error has bytes of a damaged file."""


def text_of(error: Exception) -> str:
    """Return what an error of SQLite says."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="backslashreplace")
    return str(error)


_MAKE_WRITABLE = "Make the file and its folder writable, or choose another file"


def explain(error: Exception, lock_timeout: float, *, is_logged: bool = False) -> str:
    """Return why a file cannot be used. `is_logged`: it may only be read, and has a log."""
    text = text_of(error)
    if isinstance(error, OSError):
        return f"it cannot be opened: {text}. {_MAKE_WRITABLE}"
    if "not a database" in text:
        return "it is not an SQLite database and was not changed. Choose another file"
    if "locked" in text:
        return (
            f"another program has locked it for more than {lock_timeout:g} s. "
            "Find that program (an open sqlite3 shell?) and end its transaction"
        )
    if "full" in text:
        return f"the disk has no space left for it ({text}). Free some space"
    if "readonly" in text:
        return f"it is read-only. {_MAKE_WRITABLE}"
    if "unable to open" in text and is_logged:
        return (
            "this process may only read it, and SQLite reads a log (the file -wal beside it) only in a "
            "folder that it may change. Copy both files to such a folder"
        )
    if "unable to open" in text:
        return f"it cannot be opened ({text}). {_MAKE_WRITABLE}"
    return f"it cannot be used: {text}"
