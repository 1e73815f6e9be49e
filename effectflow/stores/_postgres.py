"""Runs in a PostgreSQL database, for many processes on many hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunSummary
from effectflow.checkpoint.store import (
    Batch,
    Changes,
    Claimed,
    DueRuns,
    StoreFacts,
    TransactionStore,
)
from effectflow.effects import RetryPolicy
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.event_loop import shielded
from effectflow.stores import _sql as sql
from effectflow.stores._changes import Announcements
from effectflow.stores._postgres_changes import Listener, Notifier, channel_of, listening, notice_of
from effectflow.stores._postgres_connection import (
    CLOSING_SECONDS,
    Connection,
    Queries,
    Renewals,
    explained,
    is_lost,
    is_refusal,
    location_of,
    parsed,
    settings,
)
from effectflow.stores._postgres_due import DueClaims
from effectflow.stores._postgres_schema import Dialect, adapt, facts_of, migrate
from effectflow.stores._postgres_transaction import (
    LentConnection,
    PostgresTransaction,
    check_caller,
    server,
)
from effectflow.stores._postgres_writer import (
    Save,
    Writer,
    creation,
    plain_append,
    write_appends,
    write_creations,
)
from effectflow.stores._rules import check_first
from effectflow.stores._servers import ServerStore, Slots, repeated
from effectflow.stores._sql import Attempt, Reading
from effectflow.stores._sql_due import ClaimMemory
from effectflow.stores._sql_store import SqlStore

A = TypeVar("A")

_LOCK_SECONDS = 0.1
"""How long a request that waits for a lock keeps a connection from the others."""

_LOCK_DELAYS = RetryPolicy.exponential(0.01).with_max_delay(0.25).with_full_jitter()
"""The seconds after which to check again whether another program has unlocked a run."""


class PostgresStore(SqlStore, ServerStore, TransactionStore):
    """Keeps runs in PostgreSQL. Needs the extra `effectflow[postgres]` (psycopg 3).

    A durable append is one round trip. Appends that are requested while another one is in progress are
    sent together, so that many runs share the cost of a commit, and so are new runs. If the connection
    is lost, an append is sent again, and never written twice. The clock of the server decides, so hosts
    whose clocks differ agree on leases.

    Parameters:
        dsn: a connection string, such as `postgresql://user@host/database`. It is never logged.
        schema: the schema that contains the tables; created and migrated when the store is opened. Any
            name of up to 63 bytes without `%`: it is quoted.
        pool_size: the maximum number of connections, besides the two that write, one that renews leases,
            one that announces changes, and one for each open `changes`; and the maximum number of those
            for `@transaction`, which are opened when they are needed.
        statement_timeout: the seconds after which the server cancels a statement. Also how long a
            request waits for a run that another program has locked; requests for other runs do not wait.
        reconnect_timeout: how long (seconds, or a `timedelta`) to try to reconnect to a lost server.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    Raise ValueError for a connection string that cannot be parsed, or another schema. Opening raises
    StoreUnavailable, or UnsupportedVersion if a newer effectflow migrated the schema, or one from before
    the first release.
    """

    _slots: Slots
    _lent: Slots
    _renewals: Renewals
    _appends: Writer
    _creations: Writer
    _notifier: Notifier

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "effectflow",
        pool_size: int = 4,
        statement_timeout: Duration = 30.0,
        reconnect_timeout: Duration = 15.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__(
            reconnect_timeout=in_seconds(reconnect_timeout),
            driver_error=psycopg.Error,
            is_lost=is_lost,
        )
        self._parameters = parsed(dsn)
        self._schema = schema
        self._pool_size = pool_size
        self._statement_timeout = in_seconds(statement_timeout)
        self._dialect = Dialect(schema)
        self._queries = Queries(self._dialect, self._statement_timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._memory = ClaimMemory()
        self._announcements = Announcements()
        self._requests: set[asyncio.Task[Any]] = set()
        self._idle: list[Connection] = []
        self._idle_to_lend: list[LentConnection] = []

    def __repr__(self) -> str:
        shown = {**location_of(self._parameters), "schema": self._schema}
        return f"PostgresStore({', '.join(f'{name}={part!r}' for name, part in shown.items())})"

    @property
    def durability(self) -> str:
        return "full"

    async def _connect(self) -> None:
        self._renewals = Renewals(self._parameters, self._queries, timeout=self._renew_timeout)
        self._opened.callback(self._renewals.close)
        self._notifier = Notifier(self._new_connection, channel_of(self._schema))
        self._opened.push_async_callback(self._notifier.close)
        self._appends, self._creations = (
            Writer(
                *(self._queries, self._new_connection, self._persist),
                statement=statement,
                written=self._note_written,
            )
            for statement in (write_appends, write_creations)
        )
        self._opened.push_async_callback(self._appends.close)
        self._opened.push_async_callback(self._creations.close)
        await migrate(await self._appends.connection(), self._schema, self._dialect)
        # Connections of a closed event loop may be left.
        self._idle, self._idle_to_lend = [], []
        patience = self._statement_timeout + self._reconnect_timeout
        self._slots = Slots(self, self._pool_size, patience=patience)
        self._lent = Slots(self, self._pool_size, patience=patience)
        self._opened.push_async_callback(self._close_idle)
        self._opened.push_async_callback(self._close_idle_to_lend)
        self._opened.push_async_callback(self._end_requests)

    async def _new_connection(self, *, lock_timeout: float = 0.0) -> Connection:
        connection = await psycopg.AsyncConnection[Any].connect(**self._parameters)
        try:
            adapt(connection.adapters)
            await connection.execute(
                settings(statement_timeout=self._statement_timeout, lock_timeout=lock_timeout)
            )
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _close_idle_to_lend(self) -> None:
        idle, self._idle_to_lend = self._idle_to_lend, []
        for connection in idle:
            await connection.cut()

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        check_first(run_id, bodies)
        self._check_open()

        async def submit() -> tuple[Save, Sequence[Any] | None]:
            save = creation(run_id, bodies, summary, owner, seconds)
            return save, await self._creations.submit(save)

        save, answer = await self._in_asyncio(submit)
        if answer is not None:
            updated_at, *held = answer
            lease = Lease(run_id, owner, *held) if owner else None
            return RunInfo(run_id, summary, updated_at, len(bodies), lease)
        if not save.is_unknown:
            return None
        # It exists, but an attempt whose answer was lost may have created it.
        create = sql.create(run_id, bodies, summary, owner, seconds, is_repeated=True)
        return await self._save(run_id, create, is_unknown=True)

    async def append(self, lease: Lease, batch: Batch) -> None:
        self._check_open()

        async def submit() -> tuple[bool, bool]:
            """Return whether it is written, and whether it may be."""
            save = plain_append(lease, batch)
            if save is None:
                return False, False
            return await self._appends.submit(save) is not None, save.is_unknown

        is_written, is_unknown = await self._in_asyncio(submit)
        if not is_written:
            append = sql.append(lease, batch, is_repeated=is_unknown)
            told = await self._save(lease.run_id, append, is_unknown=is_unknown)
            await self._announce(*told)

    # Transactions of users.

    @property
    def has_async_connections(self) -> bool:
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[PostgresTransaction]:
        self._check_open()
        connection = await shielded(self._ask(self._lend))
        transaction = PostgresTransaction(
            connection, self._queries, look=self._change, in_asyncio=self._in_asyncio
        )
        try:
            yield transaction
        finally:
            await shielded(self._in_asyncio(lambda: self._take_back(connection)))
        await self._announce(*transaction.told)

    async def _lend(self) -> LentConnection:
        await self._lent.take()
        try:
            if self._idle_to_lend:
                connection = self._idle_to_lend.pop()
            else:
                connection = await LentConnection.connect(**self._parameters)
            try:
                await connection.begin(statement_timeout=self._statement_timeout)
            except BaseException:
                await connection.cut()
                raise
        except BaseException:
            self._lent.release(is_answered=False)
            raise
        return connection

    async def _take_back(self, connection: LentConnection) -> None:
        try:
            await connection.take_back()
            if not connection.closed:
                self._idle_to_lend.append(connection)
        finally:
            self._lent.release(is_answered=True)

    async def create_within(
        self, connection: Any, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary
    ) -> bool:
        check_first(run_id, bodies)
        caller = check_caller(connection)
        here = await self._read(server)
        if here != await self._queries.read_of_user(caller, server):
            raise ValueError(
                f"the connection is to another database than {self!r}, and one transaction cannot change "
                "both"
            )
        create = sql.create(run_id, bodies, summary, "", 0.0)
        # The server sends the notice with the commit.
        notice = notice_of(channel_of(self._schema), run_id)
        return await self._queries.within(caller, create, then=[notice]) is not None

    def _note_written(self, save: Save) -> None:
        if save.tells:
            self._tell([save.run_id])

    async def claim_due(self, due: DueRuns) -> Claimed:
        if due.queues or self._memory.has_turns or not due.workflows or not due.owners:
            return await super().claim_due(due)
        claims = DueClaims(self._queries, due, self._memory)
        claimed = await self._do(claims.attempt)
        # The statement leaves runs that wait for their turn.
        is_over = claimed.runs or not self._memory.has_turns
        return claimed if is_over else await super().claim_due(due)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._check_open(in_any_thread=True)
        try:
            return self._renewals.renew(leases, seconds)
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(repr(self), f"it did not renew leases: {error}") from error

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        async with (
            self._announcements.watch() as watcher,
            self._following(self._listen, watcher),
        ):
            yield watcher

    async def _listen(self) -> Listener:
        connection = await self._new_connection()
        await connection.execute(listening(channel_of(self._schema)))
        return Listener(connection, self._notifier.has_sent)

    def _tell(self, run_ids: Sequence[str]) -> None:
        """Announce these runs to this and other processes, in asyncio."""
        self._announcements.announce(*run_ids)
        if run_ids:
            self._notifier.tell(run_ids)

    async def _announce(self, *run_ids: str) -> None:
        async def announce() -> None:
            self._tell(run_ids)

        await self._in_asyncio(announce)

    # Requests to the server.

    async def facts(self) -> StoreFacts:
        layout, size = await self._read(lambda: facts_of(self._schema))
        return StoreFacts(layout, size)

    async def _read(self, reading: Reading[A]) -> A:
        return await self._do(lambda connection: self._queries.read(connection, reading))

    async def _change(self, attempt: Attempt[A]) -> A:
        return await self._do(lambda connection: self._queries.change(connection, attempt))

    async def _save(self, run_id: str, attempt: Attempt[A], *, is_unknown: bool = False) -> A:
        async def change(connection: Connection) -> A:
            nonlocal is_unknown
            try:
                return await self._queries.change(connection, attempt)
            except psycopg.Error as error:
                is_unknown = is_unknown or not is_refusal(error)
                raise

        self._check_open()
        try:
            return await self._do(change)
        except StoreUnavailable as error:
            raise SaveFailed(run_id, str(error), is_unknown=is_unknown) from error

    def _explained(self, error: Exception) -> str:
        return explained(error)

    async def _do(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        """Return the result of `work`, which may be repeated after a lost connection.

        It is also repeated while another program has locked the run. In between it has no connection, so
        that others can use it.
        """

        async def attempt() -> A:
            await self._slots.take()
            # Not in the caller's task, because a cancellation there would close the connection.
            request = asyncio.create_task(self._in_slot(work))
            self._requests.add(request)
            request.add_done_callback(self._forget)
            await asyncio.wait([request])
            return request.result()

        async def attempt_while_locked() -> A:
            return await repeated(
                attempt, _LOCK_DELAYS, is_temporary=_is_locked, seconds=self._statement_timeout
            )

        return await self._ask(attempt_while_locked)

    async def _in_slot(self, work: Callable[[Connection], Awaitable[A]]) -> A:
        is_answered = False
        try:
            connection = (
                self._idle.pop()
                if self._idle
                else await self._new_connection(lock_timeout=_LOCK_SECONDS)
            )
            try:
                answer = await work(connection)
                is_answered = True
                return answer
            finally:
                is_usable = connection.info.transaction_status is TransactionStatus.IDLE
                self._idle.append(connection)
                if not is_usable:
                    # If it was lost, the idle ones probably were, too.
                    await self._close_idle()
        finally:
            self._slots.release(is_answered=is_answered)

    def _forget(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            # Without this, asyncio logs the error of a request whose caller was cancelled.
            request.exception()

    async def _end_requests(self) -> None:
        """Wait for the requests whose callers were cancelled, unless the server does not answer."""
        if self._requests:
            _, late = await asyncio.wait(self._requests, timeout=CLOSING_SECONDS)
            for request in late:
                request.cancel()


def _is_locked(error: Exception) -> bool:
    return isinstance(error, psycopg.errors.LockNotAvailable)
