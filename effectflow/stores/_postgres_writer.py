"""The task that appends to PostgreSQL, and sends all queued appends together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool

from effectflow.checkpoint.errors import LeaseLost, SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunSummary
from effectflow.stores._postgres_schema import Queries, escaped, key_of
from effectflow.stores._servers import Reconnect

Connection: TypeAlias = psycopg.AsyncConnection[Any]

_APPENDS_PER_BATCH = 500
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several appends. The server refuses a statement of a gibibyte, and closes
the connection."""


@dataclass(slots=True, eq=False)
class Append:
    """An append that is queued or was sent.

    Attributes:
        unanswered: how often it was sent without an answer; each time it may have been written.
        done: resolved with its outcome.
    """

    lease: Lease
    bodies: list[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    unanswered: int = 0
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> bytes:
        return key_of(self.lease.run_id)

    def end(self, error: Exception | None = None) -> None:
        """Resolve `done`, unless its waiter was cancelled."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def fail(self, reason: str) -> None:
        """Resolve `done` with SaveFailed."""
        self.end(SaveFailed(self.lease.run_id, reason, is_unknown=self.unanswered > 0))


class PostgresWriter:
    """Sends appends on its own connection; those that queue up meanwhile are sent together."""

    def __init__(
        self, pool: AsyncConnectionPool[Connection], queries: Queries, reconnect: Reconnect
    ) -> None:
        self._pool = pool
        self._queries = queries
        self._reconnect = reconnect
        self._own: Connection | None = None
        self._waiting: list[Append] = []
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, append: Append) -> None:
        """Send this append with the next batch. Raise SaveFailed, LeaseLost or ValueError."""
        self._waiting.append(append)
        self._has_waiting.set()
        await append.done

    async def close(self) -> None:
        """Send all queued appends, and return the connection to the pool."""
        self._is_closing = True
        self._has_waiting.set()
        await self._task
        if self._own is not None:
            await self._pool.putconn(self._own)

    async def _work(self) -> None:
        while True:
            await self._has_waiting.wait()
            batch = self._next_batch()
            if batch:
                await self._send(batch)
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

    async def _send(self, batch: Sequence[Append]) -> None:
        try:
            await self._deliver(batch)
        except StoreUnavailable as error:
            for append in batch:
                append.fail(str(error))
        except Exception as defect:
            # Without this, their callers would wait for ever.
            for append in batch:
                append.end(defect)

    async def _deliver(self, batch: Sequence[Append]) -> None:
        try:
            await self._reconnect.ask(lambda: self._attempt(batch))
        except psycopg.Error as refusal:
            if len(batch) == 1:
                batch[0].fail(f"the server refused it: {refusal}")
                return
            # One of them is the cause, such as a run whose lease another program has locked.
            for append in batch:
                await self._deliver([append])

    async def _attempt(self, batch: Sequence[Append]) -> None:
        """Send the appends that have no answer yet. Called again after a lost connection."""
        connection = await self._connection()
        # All programs lock in the same order, so that they cannot deadlock.
        todo = sorted((one for one in batch if not one.done.done()), key=lambda one: one.key)
        problems = await self._ask(connection, todo)
        for append, problem in zip(todo, problems, strict=True):
            if problem is None:
                append.end()
            elif append.unanswered and await self._is_written(connection, append):
                # An earlier request wrote it, and may have been under way until now.
                append.end()
            else:
                append.end(_refusal(append, problem))

    async def _ask(self, connection: Connection, todo: Sequence[Append]) -> list[str | None]:
        """Return why each append was refused, or None for each that was written."""
        for append in todo:
            append.unanswered += 1
        rows: list[Any] = []
        try:
            if len(todo) == 1:
                rows = await self._queries.rows(connection, _APPEND, _row(todo[0]))
            elif todo:
                rows = await self._queries.rows(connection, _APPEND_ALL, _columns(todo))
        except psycopg.Error as error:
            if not _is_answer(error):
                raise
            for append in todo:
                append.unanswered -= 1
            raise
        for append in todo:
            append.unanswered -= 1
        return [problem for (problem,) in rows]

    async def _connection(self) -> Connection:
        """Return the writer's own connection, or a new one if it was lost."""
        if self._own is not None:
            if not self._own.closed:
                return self._own
            lost, self._own = self._own, None
            await self._pool.putconn(lost)
        self._own = await self._pool.getconn()
        return self._own

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


def _row(append: Append) -> tuple[Any, ...]:
    summary, bodies = _summary_json(append), append.bodies
    return append.key, append.lease.fence, append.after, append.release, summary, bodies


def _columns(batch: Sequence[Append]) -> tuple[Any, ...]:
    *columns, bodies = (list(column) for column in zip(*map(_row, batch), strict=True))
    return *columns, [len(part) for part in bodies], [body for part in bodies for body in part]


def _summary_json(append: Append) -> str | None:
    summary = append.summary
    if summary is None:
        return None
    return json.dumps(
        {
            "run_id": escaped(append.lease.run_id),
            "workflow": escaped(summary.workflow),
            "kind": summary.kind,
            "version": escaped(summary.version),
            "status": str(summary.status),
            "created_at": summary.created_at,
        }
    )


def _is_answer(error: psycopg.Error) -> bool:
    """Return whether the server says that nothing was written. A FATAL error does not say so."""
    return error.diag.severity_nonlocalized == "ERROR"


def _refusal(append: Append, problem: str) -> Exception:
    if problem == "no summary":
        return ValueError("the first append of a run needs a summary")
    return LeaseLost(append.lease.run_id, problem)
