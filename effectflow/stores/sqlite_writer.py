"""The one thread that writes to a store's file, and commits together whatever waits.

Group commit is as old as databases: while one commit is being synced to disk, the requests that
arrive meanwhile queue up, and the next commit takes them all.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from effectflow.checkpoint.errors import CheckpointError, SaveFailed
from effectflow.effects.event_loop import CallSoon, new_waiter
from effectflow.stores.sqlite_file import BUSY_SECONDS, LOG_LIMIT

__all__ = ["SqliteWriter"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_LOG_START = 1280 * 1024
"""Bytes that the log has from the beginning: somewhat more than it reaches before it is begun anew."""

_COMMITS_BETWEEN_LOOKS = 100
_REQUESTS_IN_A_COMMIT = 1000


class _Request:
    """Something to do within the next transaction, and who waits for it."""

    __slots__ = ("done", "error", "perform", "result", "run_id")

    def __init__(self, run_id: str, perform: Callable[[sqlite3.Connection], Any]) -> None:
        self.run_id = run_id
        self.perform = perform
        self.done = new_waiter()
        self.result: Any = None
        self.error: Exception | None = None


class SqliteWriter:
    """A thread with a connection of its own. `commits` counts the transactions that it committed."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.commits = 0
        self._connection = connection
        self._path = path
        self._log = Path(f"{path}-wal")
        self._warned = False
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"writer of {path}", daemon=True)
        self._thread.start()

    async def submit(self, run_id: str, perform: Callable[[sqlite3.Connection], A]) -> A:
        """Do this within a transaction, and give its result once that is committed.

        `perform` raises a CheckpointError to refuse, before it has written anything. Cancellation
        ends the wait; what was asked for is done all the same.
        """
        request = _Request(run_id, perform)
        self._queue.put(request)
        await request.done
        if request.error is not None:
            raise request.error
        return cast(A, request.result)

    def close(self) -> None:
        """Finish what waits, and close the connection."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (request := self._queue.get()) is not None:
            requests = self._commit(request)
            _wake(requests)
            self._bound_log()
        self._connection.close()

    def _commit(self, request: _Request) -> list[_Request]:
        """Do this, and whatever else waits until all is done, in one transaction."""
        database = self._connection
        requests = [request]
        is_committing = False
        try:
            database.execute("BEGIN IMMEDIATE")
            if self.commits == 0:
                self._lengthen_log()
            for request in self._and_all_that_wait(requests):
                try:
                    request.result = request.perform(database)
                except (CheckpointError, ValueError) as refused:
                    request.error = refused
            is_committing = True
            database.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            self._roll_back()
            reason = _explain(error, self._path)
            is_unknown = is_committing and _may_be_in_the_log(error)
            for request in requests:
                if request.error is None:
                    request.error = SaveFailed(request.run_id, reason, is_unknown=is_unknown)
        return requests

    def _and_all_that_wait(self, requests: list[_Request]) -> Iterator[_Request]:
        """These requests, to which those are added that wait, or come meanwhile."""
        yield from requests
        with suppress(Empty):
            while len(requests) < _REQUESTS_IN_A_COMMIT:
                request = self._queue.get_nowait()
                if request is None:
                    self._queue.put(None)
                    return
                requests.append(request)
                yield request

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            logger.exception("a transaction in %s could not be rolled back", self._path)

    def _lengthen_log(self) -> None:
        """Give the write-ahead log its length at once: syncing a file that grows costs twice as much.

        SQLite takes no notice of what follows its last frame, and zeros never are one. Nobody else
        writes to the log while this connection has the write lock.
        """
        with suppress(OSError):
            missing = _LOG_START - self._log.stat().st_size
            if missing > 0:
                with self._log.open("ab") as log:
                    log.write(bytes(missing))
                    log.flush()
                    os.fsync(log.fileno())

    def _bound_log(self) -> None:
        """Empty the write-ahead log when it has grown: overlapping readers can keep it from ending.

        A reader of another program that stays within one transaction pins the log, and SQLite has no
        way around it; the log is emptied as soon as that reader has gone.
        """
        if self.commits % _COMMITS_BETWEEN_LOOKS:
            return
        try:
            if self._log.stat().st_size <= LOG_LIMIT:
                self._warned = False
                return
            [pinned, _, _] = self._truncate_log()
        except (OSError, sqlite3.Error):
            return
        if pinned and not self._warned:
            self._warned = True
            logger.warning(
                "another program reads %s in one long transaction, so its write-ahead log grows "
                "until that ends",
                self._path,
            )

    def _truncate_log(self) -> tuple[int, int, int]:
        # Whoever pins the log may do so for hours: nothing waits for that.
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            return self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")


def _wake(requests: list[_Request]) -> None:
    """Tell everybody who waits: one call for each event loop."""
    by_loop: dict[CallSoon, list[_Request]] = {}
    for request in requests:
        by_loop.setdefault(request.done.call_soon, []).append(request)
    for call_soon, waiting in by_loop.items():
        # A loop that was closed meanwhile has nobody waiting in it.
        with suppress(RuntimeError):
            call_soon(_set_done, waiting)


def _set_done(requests: list[_Request]) -> None:
    for request in requests:
        request.done.wake()


def _may_be_in_the_log(error: Exception) -> bool:
    """Whether a commit that failed so may be found in the log, whole, after a crash.

    It was written there, and only then synced. The next commit is written over it.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    return code & 0xFF == sqlite3.SQLITE_IOERR


def _explain(error: Exception, path: Path) -> str:
    text = str(error)
    if "locked" in text:
        return (
            f"another program has locked {path} for more than {BUSY_SECONDS:.0f} s; "
            "find out which (an open sqlite3 shell?) and end its transaction"
        )
    if "full" in text:
        return f"there is no room left for {path} ({text}); make room"
    if "readonly" in text:
        return f"{path} is read-only; make the file and its folder writable"
    return f"{path}: {text}"
