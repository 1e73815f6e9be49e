"""The task that appends to PostgreSQL, and sends all queued appends together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import psycopg

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunSummary
from effectflow.stores._postgres_schema import Queries, escaped, key_of
from effectflow.stores._servers import ServerStore, check_appended

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_APPENDS_PER_BATCH = 500
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several appends. The server refuses a statement of a gibibyte, and closes
the connection."""


@dataclass(slots=True, eq=False)
class Append:
    """An append that is queued or was sent.

    Attributes:
        is_unknown: whether it was sent without an answer, so that it may have been written.
        answer: resolved with why the server refused it, or None once it is written.
    """

    lease: Lease
    bodies: list[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    is_unknown: bool = False
    answer: asyncio.Future[str | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> bytes:
        return key_of(self.lease.run_id)

    def row(self) -> tuple[Any, ...]:
        """Return the parameters of the server's function `append`."""
        summary = None
        if self.summary is not None:
            fields = {"run_id": self.lease.run_id, **asdict(self.summary)}
            for name in ("run_id", "workflow", "version"):
                fields[name] = escaped(fields[name])
            summary = json.dumps(fields)
        return self.key, self.lease.fence, self.after, self.release, summary, self.bodies

    def end(self, refusal: str | None) -> None:
        """Resolve `answer`, unless its waiter was cancelled."""
        if not self.answer.done():
            self.answer.set_result(refusal)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if isinstance(error, StoreUnavailable | psycopg.Error):
            what = "" if isinstance(error, StoreUnavailable) else "the server refused it: "
            reason = f"{what}{error}"
            error = SaveFailed(self.lease.run_id, reason, is_unknown=self.is_unknown)
        if not self.answer.done():
            self.answer.set_exception(error)


class PostgresWriter:
    """Sends appends on its own connection; those that queue up meanwhile are sent together."""

    def __init__(
        self,
        store: ServerStore,
        queries: Queries,
        connect: Callable[[], Awaitable[Connection]],
    ) -> None:
        self._store = store
        self._queries = queries
        self._connect = connect
        self._own: Connection | None = None
        self._waiting: list[Append] = []
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, append: Append) -> None:
        """Send this append with the next batch. Raise SaveFailed, LeaseLost or ValueError."""
        self._waiting.append(append)
        self._has_waiting.set()
        check_appended(append.lease.run_id, await append.answer)

    async def connection(self) -> Connection:
        """Return the writer's own connection, or a new one if it was lost."""
        if self._own is None or self._own.closed:
            self._own = await self._connect()
        return self._own

    async def close(self) -> None:
        """Send all queued appends, and close the connection."""
        self._is_closing = True
        self._has_waiting.set()
        await self._task
        if self._own is not None:
            await self._own.close()

    async def _work(self) -> None:
        while True:
            await self._has_waiting.wait()
            batch = self._next_batch()
            if batch:
                await self._deliver(batch)
            elif self._is_closing:
                return
            else:
                self._has_waiting.clear()

    def _next_batch(self) -> list[Append]:
        """Pop the oldest queued appends, up to the batch limits."""
        count = size = 0
        for append in self._waiting[:_APPENDS_PER_BATCH]:
            size += sum(map(len, append.bodies))
            if count and size > _BYTES_PER_BATCH:
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        return batch

    async def _deliver(self, batch: Sequence[Append]) -> None:
        try:
            await self._store.persist(lambda: self._attempt(batch))
        except Exception as error:
            if isinstance(error, psycopg.Error) and len(batch) > 1:
                # One of them is the cause, such as a run whose lease another program has locked.
                for append in batch:
                    await self._deliver([append])
                return
            # Also a defect: without this, their callers would wait for ever.
            for append in batch:
                append.fail(error)

    async def _attempt(self, batch: Sequence[Append]) -> None:
        """Send the appends that have no answer yet. Called again after a lost connection."""
        connection = await self.connection()
        # All programs lock in the same order, so that they cannot deadlock.
        todo = sorted((one for one in batch if not one.answer.done()), key=lambda one: one.key)
        try:
            refusals = await self._send(connection, todo)
        except psycopg.Error as error:
            # An ERROR says that nothing was written. A FATAL error, or none, does not say so.
            if error.diag.severity_nonlocalized != "ERROR":
                for append in todo:
                    append.is_unknown = True
            raise
        doubtful: list[tuple[Append, str]] = []
        for append, refusal in zip(todo, refusals, strict=True):
            if refusal is not None and append.is_unknown:
                doubtful.append((append, refusal))
            else:
                append.end(refusal)
        for append, refusal in doubtful:
            # An earlier request may have written it, and may have been under way until now.
            append.end(None if await self._is_written(connection, append) else refusal)

    async def _send(self, connection: Connection, todo: Sequence[Append]) -> list[str | None]:
        """Return why each append was refused, or None for each that was written."""
        rows: list[Any] = []
        if len(todo) == 1:
            rows = await self._queries.rows(connection, _APPEND, todo[0].row())
        elif todo:
            *columns, bodies = map(list, zip(*(append.row() for append in todo), strict=True))
            lengths, joined = (
                [len(part) for part in bodies],
                [body for part in bodies for body in part],
            )
            parameters = *columns, lengths, joined
            rows = await self._queries.rows(connection, _APPEND_ALL, parameters)
        return [refusal for (refusal,) in rows]

    async def _is_written(self, connection: Connection, append: Append) -> bool:
        """Return whether an append whose answer was lost was written: only it has used its fence."""
        rows = await self._queries.rows(
            connection,
            "SELECT body FROM {schema}.entries JOIN {schema}.runs ON run = number"
            " WHERE key = %s AND sequence > %s AND sequence <= %s ORDER BY sequence",
            (append.key, append.after, append.after + len(append.bodies)),
        )
        if append.bodies:
            return [bytes(body) for (body,) in rows] == append.bodies
        released = await self._queries.rows(
            connection,
            "SELECT 1 FROM {schema}.leases WHERE key = %s AND fence = %s AND owner = ''",
            (append.key, append.lease.fence),
        )
        return append.release and bool(released)


_APPEND = """
    SELECT {schema}.append(%b::bytea, %s::bigint, %s::bigint, %s::bool, %s::text::jsonb,
                           %b::bytea[])
"""

_APPEND_ALL = """
    SELECT * FROM {schema}.append_all(%b::bytea[], %s::bigint[], %s::bigint[], %s::bool[],
                                      %s::text[]::jsonb[], %s::int[], %b::bytea[])
"""
