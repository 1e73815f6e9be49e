"""Exchange notices between processes about which runs of a PostgresStore changed.

NOTIFY within the transaction of an append would make all commits of the database wait for each other,
because a commit that notifies holds a lock on the whole server. So the store gathers committed changes
and announces them later, on a separate connection. They are hints, which a crash may lose.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import cast

import psycopg
from psycopg import sql

from effectflow.stores._changes import Watcher
from effectflow.stores._postgres_connection import CLOSING_SECONDS, Connection
from effectflow.stores._servers import RECONNECT_DELAYS, Subscription
from effectflow.stores._sql import Query

_ANY = "*"
"""The payload that says that any run may have changed."""

_LONGEST_PAYLOAD = 7999
"""The length of a payload in bytes. The server rejects longer ones."""

_PAUSE_SECONDS = 0.02
"""How long to gather changes after an announcement."""

_SECONDS_BETWEEN_TESTS = 30.0
_TEST_SECONDS = 10.0


def channel_of(schema: str) -> str:
    """Return the channel of a schema. The name of a channel has a limited length."""
    return f"effectflow_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def listening(channel: str) -> sql.Composed:
    """Return the statement after which a connection receives the notices of a channel."""
    return sql.SQL("LISTEN {}").format(sql.Identifier(channel))


def notice_of(channel: str, run_id: str) -> Query:
    """Return the statement that announces one run."""
    return Query("SELECT pg_notify(?, ?)", (channel, _payload([run_id])))


def _payload(run_ids: Iterable[str]) -> str:
    payload = json.dumps(sorted(run_ids))
    return _ANY if len(payload) > _LONGEST_PAYLOAD else payload


class Notifier:
    """Notifies other processes of changed runs. Connects when there is something to announce."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._changed: set[str] = set()
        self._sending = asyncio.Lock()
        self._connection: Connection | None = None
        self._backend: int | None = None
        self._task: asyncio.Task[None] | None = None

    def tell(self, run_ids: Iterable[str]) -> None:
        """Announce these runs soon."""
        self._changed.update(run_ids)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def has_sent(self, backend: int) -> bool:
        """Return whether a notice comes from here, by the number of the backend that sent it."""
        return backend == self._backend

    async def close(self) -> None:
        """Announce the last changes, unless the server does not answer, and close the connection."""
        if self._task is not None:
            task, self._task = self._task, None
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self._send()
            # Not earlier: what is cut off while it connects leaves its connection open.
            task.cancel()
            await asyncio.wait([task])
        if self._connection is not None:
            await self._connection.close()

    async def _work(self) -> None:
        delays = RECONNECT_DELAYS.delays()
        while self._changed:
            try:
                await self._send()
            except (psycopg.Error, OSError):
                await asyncio.sleep(next(delays))
            else:
                delays = RECONNECT_DELAYS.delays()
                await asyncio.sleep(_PAUSE_SECONDS)
        self._task = None

    async def _send(self) -> None:
        async with self._sending:
            if not self._changed:
                return
            # A run that changes again in the meantime is announced again.
            changed, self._changed = self._changed, set[str]()
            try:
                await self._notify(_payload(changed))
            except BaseException:
                self._changed |= changed
                raise

    async def _notify(self, payload: str) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect()
            self._backend = self._connection.info.backend_pid
            # A notice need not survive a crash, so its commit need not wait for the disk.
            await self._connection.execute("SET synchronous_commit = off")
        await self._connection.execute("SELECT pg_notify(%s, %s)", (self._channel, payload))


class Listener(Subscription):
    """Receives the changes that other processes report.

    Parameters:
        connection: a connection with the setting `listening`.
        is_own: whether a notice comes from this store, by the number of its backend.
    """

    def __init__(self, connection: Connection, is_own: Callable[[int], bool]) -> None:
        self._connection = connection
        self._is_own = is_own

    async def relay(self, watcher: Watcher) -> None:
        while True:
            async for notice in self._connection.notifies(timeout=_SECONDS_BETWEEN_TESTS):
                if not self._is_own(notice.pid):
                    _pass_on(notice.payload, watcher)
            # A connection that is lost silently never raises by itself.
            async with asyncio.timeout(_TEST_SECONDS):
                await self._connection.execute("SELECT 1")

    async def close(self) -> None:
        await self._connection.close()


def _pass_on(payload: str, watcher: Watcher) -> None:
    """Tell a watcher about the runs in a notice."""
    try:
        run_ids = [None] if payload == _ANY else cast("list[str]", json.loads(payload))
    except ValueError:
        # Another program sent this notice.
        return
    for run_id in run_ids:
        watcher.notice(run_id)
