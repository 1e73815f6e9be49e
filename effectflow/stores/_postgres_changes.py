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

from effectflow.stores._changes import Announcements
from effectflow.stores._postgres_connection import CLOSING_SECONDS, Connection
from effectflow.stores._servers import RECONNECT_DELAYS

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


class Notifier:
    """Notifies other processes of changed runs. Connects when there is something to announce.

    Attributes:
        backend: the number of the server process of its connection. It identifies the sender of a notice.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], channel: str) -> None:
        self.backend: int | None = None
        self._connect = connect
        self._channel = channel
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._sending = asyncio.Lock()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def tell(self, run_ids: Iterable[str]) -> None:
        """Announce these runs soon."""
        self._changed.update(run_ids)
        self._has_changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work())

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
        while True:
            await self._has_changed.wait()
            try:
                await self._send()
            except (psycopg.Error, OSError):
                await asyncio.sleep(next(delays))
            else:
                delays = RECONNECT_DELAYS.delays()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _send(self) -> None:
        async with self._sending:
            if not self._changed:
                return
            # A run that changes again in the meantime is announced again.
            changed, self._changed = self._changed, set[str]()
            self._has_changed.clear()
            try:
                await self._notify(json.dumps(sorted(changed)))
            except BaseException:
                self._changed |= changed
                self._has_changed.set()
                raise

    async def _notify(self, payload: str) -> None:
        if len(payload) > _LONGEST_PAYLOAD:
            payload = _ANY
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect()
            self.backend = self._connection.info.backend_pid
            # A notice need not survive a crash, so its commit need not wait for the disk.
            await self._connection.execute("SET synchronous_commit = off")
        await self._connection.execute("SELECT pg_notify(%s, %s)", (self._channel, payload))


class Listener:
    """Announces the changes that other processes report, while there are users.

    Parameters:
        is_own: whether a notice comes from this store, by the number of its backend.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        channel: str,
        announcements: Announcements,
        is_own: Callable[[int], bool],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._announcements = announcements
        self._is_own = is_own
        self._users = 0
        self._has_tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Add a user. Return once notices arrive, or if the server cannot be reached for now."""
        self._users += 1
        if self._task is None:
            self._has_tried.clear()
            self._task = asyncio.create_task(self._work())
        await self._has_tried.wait()

    async def end(self) -> None:
        """Remove a user."""
        self._users -= 1
        if not self._users:
            await self.close()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])

    async def _work(self) -> None:
        delays = RECONNECT_DELAYS.delays()
        while True:
            try:
                connection = await self._connect()
                try:
                    await connection.execute(
                        sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
                    )
                    if self._has_tried.is_set():
                        # Notifications in between are lost.
                        self._announcements.announce(None)
                    self._has_tried.set()
                    delays = RECONNECT_DELAYS.delays()
                    await self._hear(connection)
                finally:
                    await connection.close()
            except (psycopg.Error, OSError):
                self._has_tried.set()
            await asyncio.sleep(next(delays))

    async def _hear(self, connection: Connection) -> None:
        """Announce the changes that other processes report, until the connection is lost."""
        while True:
            async for notice in connection.notifies(timeout=_SECONDS_BETWEEN_TESTS):
                if not self._is_own(notice.pid):
                    self._announce(notice.payload)
            # A connection that is lost silently never raises by itself.
            async with asyncio.timeout(_TEST_SECONDS):
                await connection.execute("SELECT 1")

    def _announce(self, payload: str) -> None:
        if payload == _ANY:
            self._announcements.announce(None)
            return
        try:
            run_ids = cast("list[str]", json.loads(payload))
        except ValueError:
            # Another program sent this notice.
            return
        self._announcements.announce(*run_ids)
