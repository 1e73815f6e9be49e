"""Transactions of a PostgresStore that also change tables of users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Never, TypeVar, cast

import psycopg
from psycopg import AsyncCursor, AsyncServerCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from effectflow.checkpoint.errors import SaveFailed
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Batch, Transaction, TransactionUndone
from effectflow.stores import _sql as sql
from effectflow.stores._postgres_connection import (
    COMMIT,
    Connection,
    Queries,
    explained,
    is_refusal,
)
from effectflow.stores._sql import Attempt, Query, Steps

A = TypeVar("A")


_LAST = [COMMIT, Query("RESET ROLE"), Query("RESET ALL")]
"""How a transaction ends, and the settings of the session that the code of a user has changed."""


class LentConnection(psycopg.AsyncConnection[Any]):
    """A connection that the code of a user may use during a transaction, which it cannot end.

    Attributes:
        is_lent: whether the code of a user may use it.
        has_ended: whether that code has ended the transaction by a statement.
    """

    is_lent = False
    has_ended = False

    async def wait(self, *args: Any, **options: Any) -> Any:
        if not self.is_lent:
            raise psycopg.ProgrammingError("the transaction of this connection has ended")
        try:
            return await super().wait(*args, **options)
        finally:
            if self.info.transaction_status is TransactionStatus.IDLE:
                self.has_ended = True

    @property
    def is_busy(self) -> bool:
        """Whether a statement is in progress: what follows would wait for its end, perhaps forever."""
        is_active = self.info.transaction_status is TransactionStatus.ACTIVE
        return is_active or self.lock.locked()

    async def commit(self) -> Never:
        raise psycopg.ProgrammingError(_REFUSED)

    async def rollback(self) -> Never:
        raise psycopg.ProgrammingError(_REFUSED)

    async def close(self) -> Never:
        raise psycopg.ProgrammingError(_REFUSED)

    async def begin(self, *, statement_timeout: float) -> None:
        """Begin a transaction, and let the code of a user use the connection."""
        self.is_lent = True
        milliseconds = round(statement_timeout * 1000)
        await self.execute(f"BEGIN; SET LOCAL statement_timeout = {milliseconds}".encode())
        self.has_ended = False

    async def take_back(self) -> None:
        """Roll the transaction back, unless it has ended, and take the connection from the user."""
        if not self.is_busy:
            with suppress(psycopg.Error):
                await super().rollback()
        if self.info.transaction_status is not TransactionStatus.IDLE:
            await self.cut()
        self.is_lent = False
        # What the user may have set.
        self.row_factory, self.cursor_factory = tuple_row, AsyncCursor
        self.server_cursor_factory = AsyncServerCursor

    async def cut(self) -> None:
        """Close the connection."""
        await super().close()


class PostgresTransaction(Transaction):
    """A transaction on a connection that is lent to the code of a user.

    Parameters:
        connection: the connection, with a transaction that has begun.
        look: performs a transaction on another connection.
        in_asyncio: calls a function in the event loop of the connection.
    """

    def __init__(
        self,
        connection: LentConnection,
        queries: Queries,
        *,
        look: Callable[[Attempt[bool]], Awaitable[bool]],
        in_asyncio: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
    ) -> None:
        self.told: Sequence[str] = ()
        self._connection = connection
        self._queries = queries
        self._look = look
        self._in_asyncio = in_asyncio

    async def perform(self, body: Callable[[Any], Any]) -> Any:
        return await self._in_asyncio(partial(self._perform, body))

    async def append(self, lease: Lease, batch: Batch) -> None:
        try:
            append = partial(
                self._queries.within,
                *(self._connection, sql.append(lease, batch)),
                then=_LAST,
                prepare=None,
            )
            self.told = await self._in_asyncio(append)
        except psycopg.Error as error:
            await self._in_asyncio(self._connection.cut)
            if _is_conflict(error):
                raise TransactionUndone(error) from error
            if (error.sqlstate or "").startswith(_OF_CONSTRAINTS):
                _make_plain(error)
                raise TransactionUndone(error, is_final=True) from error
            if is_refusal(error):
                reason = f"the server rejected it: {explained(error)}"
                raise SaveFailed(lease.run_id, reason) from error
            # The answer to the commit was lost. This waits for the end of the transaction.
            if not await self._look(sql.has_appended(lease, batch)):
                raise TransactionUndone(error) from error

    async def _perform(self, body: Callable[[Any], Any]) -> Any:
        connection = self._connection
        try:
            value = await body(connection)
        except Exception as error:
            _make_plain(error)
            if connection.closed or _is_conflict(error):
                raise TransactionUndone(error) from error
            raise
        if connection.is_busy:
            raise RuntimeError(_UNFINISHED)
        if (
            connection.has_ended
            or connection.info.transaction_status is not TransactionStatus.INTRANS
        ):
            raise RuntimeError(_ENDED)
        return value


def _is_conflict(error: Exception) -> bool:
    """Return whether the server has undone a transaction because of another one."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("40")


def _make_plain(error: Exception) -> None:
    """Let an error of the driver have what the server said as plain data, so that it can be recorded."""
    if isinstance(error, psycopg.Error):
        # As pickle has it. There, the fields have names in an enumeration.
        state = dict(cast("Any", error.__reduce__())[2])
        if said := state["_info"]:
            state["_info"] = {int(field): text for field, text in said.items() if text is not None}
        vars(error).update(state)


_OF_CONSTRAINTS = ("23", "P0")
"""The errors of what PostgreSQL checks at the commit: constraints and triggers of the user's tables."""

_REFUSED = (
    "the step is committed with the entry that it has completed: its code must neither commit, roll back "
    "nor close the connection. Savepoints are fine: `async with connection.transaction()`"
)

_ENDED = (
    "the code of the transaction has ended it by a statement, so that what it changed may be committed"
    " without the step; or it went on after an error of the server, which undoes the transaction. Run "
    "what may fail in a savepoint: `async with connection.transaction()`"
)


_UNFINISHED = (
    "the code of the transaction has left a statement unfinished: a stream, a COPY, or one in another "
    "task. Wait for its end, and read streams to their ends"
)


def check_caller(connection: object) -> Connection:
    """Return the connection of a caller, whose transaction may create a run.

    Raise TypeError for another kind of connection, and ValueError for one that would commit at once.
    """
    if not isinstance(connection, psycopg.AsyncConnection):
        raise TypeError(
            f"the connection for a PostgresStore is a psycopg.AsyncConnection, not {connection!r}"
        )
    is_idle = connection.info.transaction_status is TransactionStatus.IDLE
    if connection.autocommit and is_idle:
        raise ValueError(
            "the connection would commit the run at once: begin a transaction first, with "
            "`async with connection.transaction()`"
        )
    return cast("Connection", connection)


def server() -> Steps[tuple[float, str]]:
    """Return what tells the databases of all servers apart."""
    started = "extract(epoch FROM pg_postmaster_start_time())::float8"
    [[(at, name)]] = yield [Query(f"SELECT {started}, current_database()::text")]
    return at, name
