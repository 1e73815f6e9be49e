"""Open and check the database file of an SqliteStore, and write to it in one thread.

The writer uses group commit: the requests that arrive while one commit is synced to disk queue up, and
the next commit includes them all.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from effectflow.checkpoint.errors import (
    CheckpointError,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.store import StoreFacts
from effectflow.effects.event_loop import Waiter, call_soon_from_threads, new_waiter, wake
from effectflow.stores._atomic_files import make_folder, sync_folder
from effectflow.stores._changes import Announcements
from effectflow.stores._sql import SCHEMA

logger = logging.getLogger(__name__)

A = TypeVar("A")

_LOG_LIMIT = 4 * 1024 * 1024
"""The size in bytes from which the write-ahead log is emptied."""

_LOG_PAGES = 256
"""Pages in the write-ahead log before SQLite begins it again, a quarter of SQLite's default. Syncing a
file costs twice as much while it grows, so the log should reach its full length soon."""

_LOOK_SECONDS = 0.06
"""How often to look for commits of other processes, while runs are watched."""

_COMMITS_BETWEEN_LOOKS = 100
_REQUESTS_PER_COMMIT = 1000

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
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            # SQLite also syncs the names of the file and its log, but ignores a failure.
            sync_folder(path.parent)
            abandoned.pop_all()
            return connection
    except (OSError, sqlite3.Error) as error:
        is_logged = _read_only_address(path).endswith("mode=ro")
        reason = _explain(error, lock_timeout, is_logged=is_logged)
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
        raise StoreUnavailable(str(path), _explain(error, lock_timeout)) from error


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


@dataclass(slots=True, eq=False)
class _Request(Generic[A]):
    """Work for the next transaction of an `SqliteWriter`, with its outcome once that has ended.

    Attributes:
        run_id: the run that it belongs to, for errors.
        perform: does the work. It may raise a CheckpointError or ValueError, before it has written
            anything.
        done: what its caller waits for.
        asked_at: when it was created, by `time.monotonic`.
    """

    run_id: str
    perform: Callable[[sqlite3.Connection], A]
    done: Waiter | threading.Event
    asked_at: float = field(init=False, default_factory=time.monotonic)
    result: A = field(init=False)
    error: Exception | None = field(init=False, default=None)

    def outcome(self) -> A:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class SqliteWriter:
    """A thread with its own connection, for the event loop that creates it.

    Attributes:
        commits: the number of transactions that it committed.
        writing: held by what writes. SQLite would make the others wait, too, but not for long.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        files: DatabaseFiles,
        *,
        lock_timeout: float,
        announcements: Announcements,
    ) -> None:
        self.commits = 0
        self.writing = threading.Lock()
        self._announcements = announcements
        self._call_soon = call_soon_from_threads()
        self._others: int | None = None
        self._looked_at = 0.0
        self._connection = connection
        self._files = files
        self._path = files.path
        self._lock_timeout = lock_timeout
        self._is_locked = False
        self._has_warned = False
        self._queue: SimpleQueue[_Request[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name=f"writer of {self._path}", daemon=True
        )
        self._thread.start()

    async def submit(self, run_id: str, perform: Callable[[sqlite3.Connection], A]) -> A:
        """Perform this in the next transaction, and return its result once that is committed.

        Cancellation ends only the wait.
        """
        waiter = new_waiter()
        request = _Request(run_id, perform, waiter)
        self._queue.put(request)
        await waiter
        return request.outcome()

    def submit_and_block(
        self, run_id: str, perform: Callable[[sqlite3.Connection], A], *, timeout: float
    ) -> A:
        """Do the same from any thread. Raise StoreUnavailable after `timeout` seconds."""
        done = threading.Event()
        request = _Request(run_id, perform, done)
        self._queue.put(request)
        if not done.wait(timeout):
            reason = f"it did not commit within {timeout:.1f} s, and may still do so"
            raise StoreUnavailable(str(self._path), reason)
        return request.outcome()

    async def watch(self) -> None:
        """Begin to announce commits of others, for as long as there are watchers."""
        # If another program has locked the file, the first look comes a little later.
        with suppress(CheckpointError):
            await self.submit("", self._look)

    def close(self) -> None:
        """Perform all queued requests, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (request := self._next_request()) is not None:
            requests = [request]
            with self.writing:
                self._perform(requests, self._with_queued(requests))
            self._wake(requests)
            self._bound_log()

    def _perform(
        self,
        requests: list[_Request[Any]],
        incoming: Iterable[_Request[Any]] | None = None,
        *,
        is_unknown: bool = False,
    ) -> None:
        """Perform these requests, and all that queue up meanwhile, in one transaction.

        If that fails, perform them in halves, so that an entry that does not fit on the disk, or a run
        whose part of the file is damaged, fails alone.
        """
        is_committing = False
        try:
            self._begin(requests[0])
            for request in requests if incoming is None else incoming:
                request.error = None
                try:
                    request.result = request.perform(self._connection)
                except (CheckpointError, ValueError) as refused:
                    request.error = refused
            self._files.check()
            is_committing = True
            self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            self._roll_back()
            is_unknown = is_unknown or (is_committing and _may_be_in_log(error))
            if len(requests) > 1 and _is_of_a_request(error):
                middle = len(requests) // 2
                # A failed commit may stay in the log until the next commit overwrites it.
                self._perform(requests[:middle], is_unknown=is_unknown)
                self._perform(requests[middle:], is_unknown=is_unknown)
                return
            for request in requests:
                if request.error is None:
                    request.error = self._failed(request.run_id, error, is_unknown=is_unknown)

    def _failed(self, run_id: str, error: Exception, *, is_unknown: bool) -> CheckpointError:
        if isinstance(error, StoreUnavailable):
            # Unlike SaveFailed, it does not promise that earlier entries are safe.
            return StoreUnavailable(error.location, error.reason)
        return save_failed(run_id, self._path, error, self._lock_timeout, is_unknown=is_unknown)

    def _begin(self, request: _Request[Any]) -> None:
        """Begin a transaction. All requests wait together for a program that has a lock."""
        if self._is_locked:
            waited = time.monotonic() - request.asked_at
            self._wait_for_locks(max(self._lock_timeout - waited, 0.0))
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._is_locked = True
            raise
        if self._is_locked:
            self._is_locked = False
            self._wait_for_locks(self._lock_timeout)

    def _with_queued(self, requests: list[_Request[Any]]) -> Iterator[_Request[Any]]:
        """Yield these requests, then add and yield queued ones until the queue is empty."""
        yield from requests
        with suppress(Empty):
            while len(requests) < _REQUESTS_PER_COMMIT:
                request = self._queue.get_nowait()
                if request is None:
                    self._queue.put(None)
                    return
                requests.append(request)
                yield request

    def _wake(self, requests: list[_Request[Any]]) -> None:
        """Wake all callers, those in the event loop with one call."""
        waiters: list[Waiter] = []
        for request in requests:
            if isinstance(request.done, threading.Event):
                request.done.set()
            else:
                waiters.append(request.done)
        if waiters:
            # If the loop was closed in the meantime, nothing waits in it.
            with suppress(RuntimeError):
                self._call_soon(wake, *waiters)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            logger.exception("could not roll back a transaction in %s", self._path)

    def _next_request(self) -> _Request[Any] | None:
        while self._announcements.is_watched:
            seconds = self._looked_at + _LOOK_SECONDS - time.monotonic()
            if seconds > 0:
                with suppress(Empty):
                    return self._queue.get(timeout=seconds)
            self._look(self._connection)
        self._others = None
        return self._queue.get()

    def _look(self, connection: sqlite3.Connection) -> None:
        """Announce commits of others since the last look.

        Only the writing connection can distinguish its own commits from those of others.
        """
        self._looked_at = time.monotonic()
        # If the failure lasts, the requests of the store report it.
        with suppress(sqlite3.Error):
            [others] = connection.execute("PRAGMA data_version").fetchone()
            before, self._others = self._others, others
            if before not in (None, others):
                self._announcements.announce(None)

    def _bound_log(self) -> None:
        """Empty the write-ahead log when it is large: overlapping readers can keep it growing.

        A reader of another program that stays in one transaction pins the log, and SQLite cannot prevent
        that. The log is emptied once the reader has gone.
        """
        if self.commits % _COMMITS_BETWEEN_LOOKS:
            return
        try:
            if os.stat(self._files.log).st_size <= _LOG_LIMIT:
                self._has_warned = False
                return
            [is_pinned, _, _] = self._truncate_log()
        except (OSError, sqlite3.Error):
            return
        if is_pinned and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "another program reads %s in one long transaction, so its write-ahead log grows "
                "until that transaction ends",
                self._path,
            )

    def _truncate_log(self) -> tuple[int, int, int]:
        # A reader may pin the log for hours, so do not wait for it.
        self._wait_for_locks(0)
        try:
            return self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._wait_for_locks(self._lock_timeout)

    def _wait_for_locks(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")


def save_failed(
    run_id: str,
    path: Path,
    error: Exception,
    lock_timeout: float,
    *,
    is_unknown: bool | None = None,
) -> SaveFailed:
    """Return the error for a failed commit. By default, `is_unknown` is whether it may be in the log."""
    unknown = _may_be_in_log(error) if is_unknown is None else is_unknown
    return SaveFailed(run_id, f"{path}: {_explain(error, lock_timeout)}", is_unknown=unknown)


def _may_be_in_log(error: Exception) -> bool:
    """Return whether the log may contain a commit that failed with this error, after a crash.

    It does if it was written there but could not be synced. The next commit overwrites it.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    return code & 0xFF == sqlite3.SQLITE_IOERR


def _is_of_a_request(error: Exception) -> bool:
    """Return whether a transaction may have failed because of one of its requests.

    After a failed sync, the disk may have lost data, and another sync would not report that.
    """
    if isinstance(error, StoreUnavailable):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF != sqlite3.SQLITE_IOERR or code == sqlite3.SQLITE_IOERR_WRITE


_MAKE_WRITABLE = "Make the file and its folder writable, or choose another file"


def _explain(error: Exception, lock_timeout: float, *, is_logged: bool = False) -> str:
    """Return why a file cannot be used. `is_logged`: it may only be read, and has a log."""
    text = str(error)
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
