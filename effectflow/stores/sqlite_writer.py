"""The one thread that writes to a store's file, and commits together whatever waits.

Group commit is as old as databases: while one commit is being synced to disk, the requests that
arrive meanwhile queue up, and the next commit takes them all.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import anyio

from effectflow.checkpoint.errors import CheckpointError, SaveFailed
from effectflow.effects.event_loop import CallSoon, call_soon_from_threads
from effectflow.stores.sqlite_file import BUSY_SECONDS

__all__ = ["SqliteWriter"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_LOG_LIMIT = 4 * 1024 * 1024
_COMMITS_BETWEEN_LOOKS = 100


class _Request:
    """Something to do within the next transaction, and who waits for it."""

    __slots__ = ("call_soon", "done", "error", "perform", "result", "run_id")

    def __init__(
        self, run_id: str, perform: Callable[[sqlite3.Connection], Any], call_soon: CallSoon
    ) -> None:
        self.run_id = run_id
        self.perform = perform
        self.call_soon = call_soon
        self.done = anyio.Event()
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
        request = _Request(run_id, perform, call_soon_from_threads())
        self._queue.put(request)
        await request.done.wait()
        if request.error is not None:
            raise request.error
        return cast(A, request.result)

    def close(self) -> None:
        """Finish what waits, and close the connection."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            try:
                while batch[-1] is not None:
                    batch.append(self._queue.get_nowait())
            except Empty:
                pass
            requests = [request for request in batch if request is not None]
            if requests:
                self._commit(requests)
                _wake(requests)
                self._bound_log()
            if None in batch:
                self._connection.close()
                return

    def _commit(self, requests: list[_Request]) -> None:
        database = self._connection
        try:
            database.execute("BEGIN IMMEDIATE")
            for request in requests:
                try:
                    request.result = request.perform(database)
                except (CheckpointError, ValueError) as refused:
                    request.error = refused
            database.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            self._roll_back()
            for request in requests:
                if request.error is None:
                    request.error = SaveFailed(request.run_id, _explain(error, self._path))

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            logger.exception("a transaction in %s could not be rolled back", self._path)

    def _bound_log(self) -> None:
        """Empty the write-ahead log when it has grown: overlapping readers can keep it from ending.

        A reader of another program that stays within one transaction pins the log, and SQLite has no
        way around it; the log is emptied as soon as that reader has gone.
        """
        if self.commits % _COMMITS_BETWEEN_LOOKS:
            return
        try:
            if self._log.stat().st_size <= _LOG_LIMIT:
                self._warned = False
                return
            [pinned, _, _] = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (OSError, sqlite3.Error):
            return
        if pinned and not self._warned:
            self._warned = True
            logger.warning(
                "another program reads %s in one long transaction, so its write-ahead log grows "
                "until that ends",
                self._path,
            )


def _wake(requests: list[_Request]) -> None:
    """Tell everybody who waits: one call for each event loop."""
    by_loop: dict[CallSoon, list[_Request]] = {}
    for request in requests:
        by_loop.setdefault(request.call_soon, []).append(request)
    for call_soon, waiting in by_loop.items():
        # A loop that was closed meanwhile has nobody waiting in it.
        with suppress(RuntimeError):
            call_soon(_set_done, waiting)


def _set_done(requests: list[_Request]) -> None:
    for request in requests:
        request.done.set()


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
