"""Send the appends of a PostgresStore on one connection. Appends that queue up are sent together."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunSummary, notifies_parent
from effectflow.effects import RetryPolicy
from effectflow.stores._postgres_connection import CLOSING_SECONDS, Connection, Queries, explained
from effectflow.stores._postgres_schema import fields_of, key_of, unescaped
from effectflow.stores._servers import check_appended

_APPENDS_PER_BATCH = 500
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several appends. The server rejects a statement of a gibibyte, and closes
the connection."""

LOCK_DELAYS = RetryPolicy.exponential(0.01).with_max_delay(0.25).with_full_jitter()
"""The seconds after which to check again whether another program has unlocked a run."""


@dataclass(slots=True, eq=False)
class Append:
    """An append that is queued or was sent.

    Attributes:
        is_unknown: whether it was sent without an answer, so that it may have been written.
        locked_until: when to give up, if another program has locked the run.
        told: the runs that were notified of its end.
        answer: resolved with why the server rejected it, or None once it is written.
    """

    lease: Lease
    bodies: list[bytes]
    after: int
    summary: RunSummary | None
    release: bool
    takes: Sequence[int] = ()
    seen: int | None = None
    is_unknown: bool = False
    locked_until: float | None = None
    delays: Iterator[float] = field(default_factory=LOCK_DELAYS.delays)
    told: Sequence[str] = ()
    answer: asyncio.Future[str | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> bytes:
        return key_of(self.lease.run_id)

    def row(self) -> tuple[Any, ...]:
        """Return the parameters of the server's function `append`."""
        lease = self.lease
        return (
            *(self.key, lease.owner, lease.fence, self.after, self.release),
            *(self._change(), self.bodies),
        )

    def _change(self) -> str | None:
        """Return what it changes besides the entries, if anything."""
        change: dict[str, Any] = {}
        if self.summary is not None:
            change |= fields_of(self.lease.run_id, self.summary)
            if notifies_parent(self.summary):
                change["notifies"] = True
            if self.seen is not None:
                change["seen"] = self.seen
        if self.takes:
            change["takes"] = [*self.takes]
        return json.dumps(change) if change else None

    def changed(self) -> list[str]:
        """Return the runs to announce to watchers once it is written."""
        return [] if self.summary is None else [self.lease.run_id, *self.told]

    def end(self, refusal: str | None) -> None:
        """Resolve `answer`, unless its waiter was cancelled."""
        if not self.answer.done():
            self.answer.set_result(refusal)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if isinstance(error, StoreUnavailable | psycopg.Error):
            is_refused = isinstance(error, psycopg.Error)
            reason = f"the server rejected it: {explained(error)}" if is_refused else str(error)
            error = SaveFailed(self.lease.run_id, reason, is_unknown=self.is_unknown)
        if not self.answer.done():
            self.answer.set_exception(error)


class Writer:
    """Sends appends on its own connection; those that queue up meanwhile are sent together.

    Parameters:
        announce: called with the runs that an append has changed.
        lock_timeout: how many seconds an append waits for a run that another program has locked.
    """

    def __init__(
        self,
        queries: Queries,
        connect: Callable[[], Awaitable[Connection]],
        persist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        announce: Callable[[Sequence[str]], None],
        *,
        lock_timeout: float,
    ) -> None:
        self._announce = announce
        self._queries = queries
        self._connect = connect
        self._persist = persist
        self._lock_timeout = lock_timeout
        self._own: Connection | None = None
        self._waiting: list[Append] = []
        self._sending: list[Append] = []
        self._locked: set[Append] = set()
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, append: Append) -> None:
        """Send this append with the next batch. Raise SaveFailed, LeaseLost or ValueError."""
        self._queue(append)
        refusal = await append.answer
        check_appended(append.lease, refusal, after=append.after, takes=append.takes)

    def _queue(self, append: Append) -> None:
        self._waiting.append(append)
        self._has_waiting.set()

    async def connection(self) -> Connection:
        """Return the writer's own connection, or a new one if it was lost."""
        if self._own is None or self._own.closed:
            self._own = await self._connect()
        return self._own

    async def close(self) -> None:
        """Send all appends whose callers wait for an answer, and close the connection."""
        self._is_closing = True
        self._has_waiting.set()
        while not self._task.done():
            await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
            pending = (*self._sending, *self._waiting, *self._locked)
            if all(append.answer.done() for append in pending):
                self._task.cancel()
        if self._own is not None:
            await self._own.close()

    async def _work(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._sending = self._next_batch()
            if self._sending:
                await self._deliver(self._sending)
            elif self._is_closing and not self._locked:
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
            await self._persist(lambda: self._attempt(batch))
        except Exception as error:
            is_late = isinstance(error, psycopg.errors.QueryCanceled)
            if isinstance(error, psycopg.Error) and not is_late and len(batch) > 1:
                # One of them is the cause. But none of them alone is late, by waiting for a locked row.
                for append in batch:
                    await self._deliver([append])
                return
            # Even for a defect: without this, their callers would wait forever.
            for append in batch:
                append.fail(error)

    async def _attempt(self, batch: Sequence[Append]) -> None:
        """Send the appends that have no answer yet. Called again after a lost connection."""
        # All programs lock in the same order, so that they cannot deadlock.
        todo = sorted((one for one in batch if not one.answer.done()), key=lambda one: one.key)
        if not todo:
            # Their callers were cancelled.
            return
        connection = await self.connection()
        try:
            answers = await self._send(connection, todo)
        except psycopg.Error as error:
            # An ERROR says that nothing was written. A FATAL error, or none, does not say so.
            if error.diag.severity_nonlocalized != "ERROR":
                for append in todo:
                    append.is_unknown = True
            raise
        doubtful: list[tuple[Append, str]] = []
        for append, (refusal, told) in zip(todo, answers, strict=True):
            append.told = [*map(unescaped, told or ())]
            if refusal == "locked":
                self._send_later(append)
            elif refusal is not None and append.is_unknown:
                doubtful.append((append, refusal))
            else:
                self._end(append, refusal)
        for append, refusal in doubtful:
            # An earlier request may have written it, and may have been in progress until now.
            self._end(append, None if await self._is_written(connection, append) else refusal)

    def _end(self, append: Append, refusal: str | None) -> None:
        append.end(refusal)
        if refusal is None:
            self._announce(append.changed())

    def _send_later(self, append: Append) -> None:
        """Queue an append again after a delay, because another program has locked its run."""
        now = time.monotonic()
        if append.locked_until is None:
            append.locked_until = now + self._lock_timeout
        if now > append.locked_until:
            reason = "another program has locked its row in the table `leases` or `runs`"
            append.fail(SaveFailed(append.lease.run_id, reason, is_unknown=append.is_unknown))
        else:
            self._locked.add(append)
            delay = next(append.delays)
            asyncio.get_running_loop().call_later(delay, self._queue_again, append)

    def _queue_again(self, append: Append) -> None:
        self._locked.discard(append)
        self._queue(append)

    async def _send(
        self, connection: Connection, todo: Sequence[Append]
    ) -> list[tuple[str | None, Sequence[str] | None]]:
        """Return, for each append, why it was rejected, or None and the runs notified of its end."""
        if len(todo) == 1:
            return await self._queries.rows(connection, _APPEND, todo[0].row())
        *columns, bodies = map(list, zip(*(append.row() for append in todo), strict=True))
        columns += [[*map(len, bodies)], [body for part in bodies for body in part]]
        return await self._queries.rows(connection, _APPEND_ALL, columns)

    async def _is_written(self, connection: Connection, append: Append) -> bool:
        """Return whether an append whose answer was lost was written: only it used its fencing token."""
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
    SELECT refusal, told FROM {schema}.append(%b::bytea, %s::text, %s::bigint, %s::bigint, %s::bool,
                                              %s::text::jsonb, %b::bytea[])
"""

_APPEND_ALL = """
    SELECT refusal, told FROM {schema}.append_all(
        %b::bytea[], %s::text[], %s::bigint[], %s::bigint[], %s::bool[], %s::text[]::jsonb[],
        %s::int[], %b::bytea[])
"""
