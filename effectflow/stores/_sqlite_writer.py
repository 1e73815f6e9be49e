"""Write to the database of an SqliteStore in one thread.

The writer uses group commit: the requests that arrive while one commit is synced to disk queue up, and
the next commit includes them all.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from effectflow.checkpoint.errors import CheckpointError, SaveFailed, StoreUnavailable
from effectflow.effects.event_loop import Waiter, call_soon_from_threads, new_waiter, wake
from effectflow.stores._changes import Announcements
from effectflow.stores._sqlite_database import LOG_LIMIT, DatabaseFiles, explain

logger = logging.getLogger(__name__)

A = TypeVar("A")

_LOOK_SECONDS = 0.06
"""How often to look for commits of other processes, while runs are watched."""

_COMMITS_BETWEEN_LOOKS = 100
_REQUESTS_PER_COMMIT = 1000


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
            if os.stat(self._files.log).st_size <= LOG_LIMIT:
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
    return SaveFailed(run_id, f"{path}: {explain(error, lock_timeout)}", is_unknown=unknown)


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
