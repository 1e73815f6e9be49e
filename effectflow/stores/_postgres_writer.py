"""Send the saves of a PostgresStore. Those that queue up are written by one statement, in one commit.

The statements write a save only if no rule has anything to decide about it. For the others, the store
performs the transactions of `_sql`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease, uptime
from effectflow.checkpoint.store import Batch, RunSummary, notifies_parent
from effectflow.stores._postgres_connection import CLOSING_SECONDS, Connection, Queries, explained
from effectflow.stores._sql import CREATED_COLUMNS, SUMMARY_COLUMNS, key_of, summary_columns

_SAVES_PER_BATCH = 500
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several saves. The server rejects a statement of a gibibyte, and closes the
connection."""


@dataclass(slots=True, eq=False)
class Save(ABC):
    """A save that is queued or was sent.

    Attributes:
        run_id: its run.
        bodies: the new records.
        is_unknown: whether it was sent without an answer, so that it may have been written.
        answer: resolved with what the statement returned, or None if it did not write this save.
    """

    STATEMENT: ClassVar[str]

    run_id: str
    bodies: list[bytes]
    is_unknown: bool = field(init=False, default=False)
    answer: asyncio.Future[tuple[Any, ...] | None] = field(
        init=False, default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    @abstractmethod
    def after(self) -> int:
        """The number of the record that the new ones follow."""

    @property
    @abstractmethod
    def changes_summary(self) -> bool:
        """Whether it is announced to watchers."""

    @abstractmethod
    def row(self) -> tuple[Any, ...]:
        """Return its columns in the table `wanted` of the statement."""

    def end(self, answer: tuple[Any, ...] | None) -> None:
        """Resolve `answer`, unless its waiter was cancelled."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        if isinstance(error, StoreUnavailable | psycopg.Error):
            is_refused = isinstance(error, psycopg.Error)
            reason = f"the server rejected it: {explained(error)}" if is_refused else str(error)
            error = SaveFailed(self.run_id, reason, is_unknown=self.is_unknown)
        if not self.answer.done():
            self.answer.set_exception(error)


_TYPES = {"created_at": "float8", "due_at": "float8", "priority": "bigint"}
_SUMMARY_ARRAYS = ", ".join(f"%b::{_TYPES.get(name, 'text')}[]" for name in SUMMARY_COLUMNS)
_SUMMARY = ", ".join(SUMMARY_COLUMNS)

_NEW_ENTRIES = "unnest(%b::int[], %b::bigint[], %b::bytea[]) AS entry (place, sequence, body)"


@dataclass(slots=True, eq=False)
class Append(Save):
    """An append. It is written if the lease is current, the journal has the right length, no other
    program has locked the run, and the run has received no message that matters."""

    lease: Lease
    batch: Batch

    STATEMENT: ClassVar[str] = f"""
        WITH wanted AS MATERIALIZED (
            SELECT * FROM unnest(%b::bytea[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[],
                                 %b::bigint[], %b::bool[], {_SUMMARY_ARRAYS})
                WITH ORDINALITY
                AS wanted (key, owner, fence, after, new_length, seen, releases, {_SUMMARY}, place)
        ), ready AS MATERIALIZED (
            SELECT runs.number, now() AS written_at, wanted.* FROM wanted JOIN @runs USING (key)
            WHERE runs.owner = wanted.owner AND runs.fence = wanted.fence
                AND runs.length = after AND runs.newest_message <= seen
            FOR UPDATE OF runs SKIP LOCKED
        ), changed AS (
            UPDATE @runs SET
                length = new_length,
                updated_at = CASE new_length WHEN after THEN updated_at ELSE written_at END,
                owner = CASE WHEN releases THEN '' ELSE runs.owner END,
                due_at = CASE WHEN ready.status IS NULL THEN runs.due_at ELSE ready.due_at END,
                {
        ", ".join(
            f"{name} = coalesce(ready.{name}, runs.{name})"
            for name in SUMMARY_COLUMNS
            if name != "due_at"
        )
    }
            FROM ready WHERE runs.number = ready.number
            RETURNING runs.number, place, written_at
        ), written AS (
            INSERT INTO @entries (run, sequence, written_at, body)
            SELECT number, sequence, written_at, body FROM changed JOIN {_NEW_ENTRIES} USING (place)
        )
        SELECT place FROM changed
    """

    @property
    def after(self) -> int:
        return self.batch.after

    @property
    def changes_summary(self) -> bool:
        return self.batch.summary is not None

    @property
    def is_plain(self) -> bool:
        """Whether the statement can write it."""
        summary = self.batch.summary
        return not self.batch.takes and (summary is None or not notifies_parent(summary))

    def row(self) -> tuple[Any, ...]:
        lease, batch, summary = self.lease, self.batch, self.batch.summary
        seen = _ALL if batch.seen is None or summary is None else batch.seen
        if summary is not None and summary.status.has_ended:
            # Its messages are to be removed, if it has received any.
            seen = 0
        return (
            *(key_of(lease.run_id), lease.owner, lease.fence, batch.after),
            *(batch.after + len(batch.bodies), seen, batch.release),
            *(_NO_SUMMARY if summary is None else summary_columns(summary)),
        )


_ALL = 2**63 - 1
_NO_SUMMARY = (None,) * len(SUMMARY_COLUMNS)


@dataclass(slots=True, eq=False)
class Creation(Save):
    """A new run. It is written unless the run exists. Returns the time, and its lease."""

    summary: RunSummary
    owner: str
    seconds: float

    STATEMENT: ClassVar[str] = f"""
        WITH wanted AS MATERIALIZED (
            -- In the order of the keys, so that programs that create the same runs do not deadlock.
            SELECT DISTINCT ON (key) *, now() AS written_at
            FROM unnest(%b::bytea[], %b::text[], %b::bigint[], %b::text[], %b::float8[], %b::float8[],
                        {_SUMMARY_ARRAYS})
                WITH ORDINALITY
                AS wanted (key, run_id, length, owner, seconds, until, {_SUMMARY}, place)
            ORDER BY key
        ), created AS (
            INSERT INTO @runs ({", ".join(CREATED_COLUMNS)})
            SELECT key, run_id, {_SUMMARY}, written_at, length, 0, owner,
                CASE owner WHEN '' THEN 0 ELSE (written_at * 1e6)::bigint END,
                written_at + seconds, until
            FROM wanted ON CONFLICT DO NOTHING
            RETURNING number, key, updated_at, fence, expires_at, expires_at_uptime
        ), written AS (
            INSERT INTO @entries (run, sequence, written_at, body)
            SELECT number, sequence, updated_at, body
            FROM created JOIN wanted USING (key) JOIN {_NEW_ENTRIES} USING (place)
        )
        SELECT place, updated_at, fence, expires_at, expires_at_uptime
        FROM created JOIN wanted USING (key)
    """

    @property
    def after(self) -> int:
        return 0

    @property
    def changes_summary(self) -> bool:
        return True

    def row(self) -> tuple[Any, ...]:
        up = uptime()
        until = None if up is None or not self.owner else up + self.seconds
        return (
            *(key_of(self.run_id), self.run_id, len(self.bodies), self.owner, self.seconds, until),
            *summary_columns(self.summary),
        )


class Writer:
    """Sends saves of one kind on its own connection; those that queue up meanwhile are sent together.

    Parameters:
        written: called with each append that was written.
    """

    def __init__(
        self,
        queries: Queries,
        connect: Callable[[], Awaitable[Connection]],
        persist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        written: Callable[[Save], None],
    ) -> None:
        self._queries = queries
        self._connect = connect
        self._persist = persist
        self._written = written
        self._own: Connection | None = None
        self._waiting: list[Save] = []
        self._sending: list[Save] = []
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, save: Save) -> tuple[Any, ...] | None:
        """Send this save with the next batch. Return the answer to it. Raise SaveFailed."""
        self._waiting.append(save)
        self._has_waiting.set()
        return await save.answer

    async def connection(self) -> Connection:
        """Return the writer's own connection, or a new one if it was lost."""
        if self._own is None or self._own.closed:
            self._own = await self._connect()
        return self._own

    async def close(self) -> None:
        """Send all saves whose callers wait for an answer, and close the connection."""
        self._is_closing = True
        self._has_waiting.set()
        while not self._task.done():
            await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
            if all(save.answer.done() for save in (*self._sending, *self._waiting)):
                self._task.cancel()
        if self._own is not None:
            await self._own.close()

    async def _work(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._sending = self._next_batch()
            if self._sending:
                await self._deliver(self._sending)
            elif self._is_closing:
                return
            else:
                self._has_waiting.clear()

    def _next_batch(self) -> list[Save]:
        """Pop the oldest queued saves, up to the batch limits."""
        count = size = 0
        for save in self._waiting[:_SAVES_PER_BATCH]:
            size += sum(map(len, save.bodies))
            if count and size > _BYTES_PER_BATCH:
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        return batch

    async def _deliver(self, batch: Sequence[Save]) -> None:
        try:
            await self._persist(lambda: self._attempt(batch))
        except Exception as error:
            is_late = isinstance(error, psycopg.errors.QueryCanceled)
            if isinstance(error, psycopg.Error) and not is_late and len(batch) > 1:
                # One of them is the cause. But none of them alone is late, by waiting for a lock.
                for save in batch:
                    await self._deliver([save])
                return
            # Even for a defect: without this, their callers would wait forever.
            for save in batch:
                save.fail(error)

    async def _attempt(self, batch: Sequence[Save]) -> None:
        """Send the saves that have no answer yet. Called again after a lost connection."""
        todo = [save for save in batch if not save.answer.done()]
        if not todo:
            # Their callers were cancelled.
            return
        connection = await self.connection()
        columns = map(list, zip(*(save.row() for save in todo), strict=True))
        entries = [
            (place, sequence, body)
            for place, save in enumerate(todo, 1)
            for sequence, body in enumerate(save.bodies, save.after + 1)
        ]
        places, sequences, bodies = (
            map(list, zip(*entries, strict=True)) if entries else ([], [], [])
        )
        parameters = (*columns, places, sequences, bodies)
        try:
            rows = await self._queries.rows(connection, todo[0].STATEMENT, parameters)
        except psycopg.Error as error:
            # An ERROR says that nothing was written. A FATAL error, or none, does not say so.
            if error.diag.severity_nonlocalized != "ERROR":
                for save in todo:
                    save.is_unknown = True
            raise
        written = {place: tuple(answer) for place, *answer in rows}
        for place, save in enumerate(todo, 1):
            answer = written.get(place)
            if answer is not None:
                self._written(save)
            save.end(answer)
