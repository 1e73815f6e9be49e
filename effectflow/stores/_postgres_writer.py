"""Send the saves of a PostgresStore. Those that queue up are written by one statement, in one commit.

The statements write a save only if no rule has anything to decide about it. For the others, the store
performs the transactions of `_sql`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any

import psycopg

from effectflow.checkpoint.errors import SaveFailed, StoreUnavailable
from effectflow.checkpoint.lease import Lease, uptime
from effectflow.checkpoint.run_info import RunSummary, notifies_parent
from effectflow.checkpoint.store import Batch
from effectflow.stores._packed import packed
from effectflow.stores._postgres_arrays import ARRAYS, Array
from effectflow.stores._postgres_connection import (
    CLOSING_SECONDS,
    Connection,
    Queries,
    explained,
    is_refusal,
)
from effectflow.stores._sql import CREATED_COLUMNS, SUMMARY_COLUMNS, key_of, summary_columns

_SAVES_PER_BATCH = 200
_BYTES_PER_BATCH = 16 * 1024 * 1024
"""The limit for a batch of several saves. The server rejects a statement of a gibibyte, and closes the
connection."""


@dataclass(slots=True, eq=False)
class Save:
    """A save that is queued or was sent.

    Attributes:
        run_id: its run.
        row: its columns in the table `wanted` of the statement, perhaps without the last ones.
        records: the rows of the new records.
        tells: whether watchers are told about it.
        is_unknown: whether it was sent without an answer, so that it may have been written.
        answer: resolved with what the statement returned, or None if it did not write this save.
    """

    run_id: str
    row: Sequence[object]
    records: Sequence[tuple[int, bytes]]
    tells: bool
    is_unknown: bool = False
    answer: asyncio.Future[Sequence[Any] | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self, answer: Sequence[Any] | None) -> None:
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


def creation(
    run_id: str, bodies: Sequence[bytes], summary: RunSummary, owner: str, seconds: float
) -> Save:
    """Return the save of a new run, for `write_creations`."""
    up = uptime()
    until = None if up is None or not owner else up + seconds
    row = (key_of(run_id), run_id, len(bodies), owner, seconds, until, *summary_columns(summary))
    return Save(run_id, row, packed(bodies, 0), tells=True)


def plain_append(lease: Lease, batch: Batch) -> Save | None:
    """Return the save of an append, for `write_appends`. Return None if other rows depend on it."""
    summary, run_id = batch.summary, lease.run_id
    if batch.takes or (summary is not None and notifies_parent(summary)):
        return None
    # The messages of a run that has ended are removed, if it has received any.
    has_ended = summary is not None and summary.status.has_ended
    seen = 0 if has_ended else _ANY if summary is None or batch.seen is None else batch.seen
    length = batch.after + len(batch.bodies)
    row = (key_of(run_id), lease.owner, lease.fence, batch.after, length, seen, batch.release)
    columns = () if summary is None else summary_columns(summary)
    records = packed(batch.bodies, batch.after)
    return Save(run_id, (*row, *columns), records, tells=summary is not None)


_ANY = 2**63 - 1

_SUMMARY = ", ".join(SUMMARY_COLUMNS)
_TYPES = {"created_at": "float8", "due_at": "float8", "priority": "bigint"}
_SUMMARIES = ", ".join(f"%b::{_TYPES.get(name, 'text')}[]" for name in SUMMARY_COLUMNS)
_RECORDS = (
    "unnest(%b::bigint[], %b::bigint[], %b::bytea[])"
    " AS records (place, sequence, body) USING (place)"
)
"""The rows of the records of all saves. `place` is that of the save."""


def write_creations(_width: int) -> str:
    """Return the statement that creates the runs that do not exist. It returns the time and the lease."""
    return _CREATE


_CREATE = f"""
    WITH wanted AS MATERIALIZED (
        -- In the order of the keys, so that programs that create the same runs do not deadlock.
        SELECT DISTINCT ON (key) *, now() AS written_at
        FROM unnest(%b::bytea[], %b::text[], %b::bigint[], %b::text[], %b::float8[], %b::float8[],
                    {_SUMMARIES})
            WITH ORDINALITY AS wanted (key, run_id, length, owner, seconds, until, {_SUMMARY}, place)
        ORDER BY key
    ), created AS (
        INSERT INTO @runs ({", ".join(CREATED_COLUMNS)})
        SELECT key, run_id, {_SUMMARY}, written_at, length, 0, 0, owner,
            CASE owner WHEN '' THEN 0 ELSE (written_at * 1e6)::bigint END, written_at + seconds, until
        FROM wanted ON CONFLICT DO NOTHING
        RETURNING number, key, updated_at, fence, expires_at, expires_at_uptime
    ), written AS (
        INSERT INTO @entries (run, sequence, written_at, body)
        SELECT number, sequence, updated_at, body
        FROM created JOIN wanted USING (key) JOIN {_RECORDS}
    )
    SELECT place, updated_at, fence, expires_at, expires_at_uptime
    FROM created JOIN wanted USING (key)
"""


@cache
def write_appends(width: int) -> str:
    """Return the statement that writes the appends of current leases to journals of the right length,
    unless another program has locked the run, or the run has received a message that matters.

    `width` is the number of columns of an append: fewer if none replaces a summary.
    """
    has_summaries = width > 7
    changes = [
        f"{name} = CASE WHEN ready.status IS NULL THEN runs.{name} ELSE ready.{name} END"
        for name in (SUMMARY_COLUMNS if has_summaries else ())
    ]
    return f"""
        WITH wanted AS MATERIALIZED (
            SELECT * FROM unnest(
                %b::bytea[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],
                %b::bool[]{", " + _SUMMARIES if has_summaries else ""})
                WITH ORDINALITY AS wanted (key, owner, fence, after, new_length, seen, releases,
                                           {_SUMMARY + "," if has_summaries else ""} place)
        ), ready AS MATERIALIZED (
            SELECT runs.number, now() AS written_at, wanted.* FROM wanted JOIN @runs USING (key)
            WHERE runs.owner = wanted.owner AND runs.fence = wanted.fence
                AND runs.length = after AND runs.newest_message <= seen
            FOR UPDATE OF runs SKIP LOCKED
        ), changed AS (
            UPDATE @runs SET {"".join(f"{change}, " for change in changes)}
                length = new_length,
                updated_at = CASE new_length WHEN after THEN updated_at ELSE written_at END,
                owner = CASE WHEN releases THEN '' ELSE runs.owner END
            FROM ready WHERE runs.number = ready.number
            RETURNING runs.number, place, written_at
        ), written AS (
            INSERT INTO @entries (run, sequence, written_at, body)
            SELECT number, sequence, written_at, body FROM changed JOIN {_RECORDS}
        )
        SELECT place FROM changed
    """


@cache
def _arrays(statement: str) -> list[type[Array]]:
    """Return the classes of the parameters of a statement, which declares their types."""
    return [ARRAYS[name] for name in re.findall(r"%b::(\w+)\[\]", statement)]


class Writer:
    """Sends saves of one kind on its own connection; those that queue up meanwhile are sent together.

    Parameters:
        statement: returns the statement, given the number of columns of the longest row.
        written: called with each save that was written.
    """

    def __init__(
        self,
        queries: Queries,
        connect: Callable[[], Awaitable[Connection]],
        persist: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        statement: Callable[[int], str],
        written: Callable[[Save], None],
    ) -> None:
        self._queries = queries
        self._connect = connect
        self._persist = persist
        self._statement = statement
        self._written = written
        self._own: Connection | None = None
        self._waiting: list[Save] = []
        self._sending: list[Save] = []
        self._has_waiting = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._work())

    async def submit(self, save: Save) -> Sequence[Any] | None:
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
            size += sum(len(body) for _, body in save.records)
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
        columns = [[*column] for column in zip_longest(*(save.row for save in todo))]
        records = [(place, *row) for place, save in enumerate(todo, 1) for row in save.records]
        columns += [[row[part] for row in records] for part in range(3)]
        statement = self._statement(len(columns) - 3)
        arrays = [kind(items) for kind, items in zip(_arrays(statement), columns, strict=True)]
        try:
            rows = await self._queries.rows(connection, statement, arrays)
        except psycopg.Error as error:
            if not is_refusal(error):
                for save in todo:
                    save.is_unknown = True
            raise
        written = {place: answer for place, *answer in rows}
        for place, save in enumerate(todo, 1):
            answer = written.get(place)
            if answer is not None:
                self._written(save)
            save.end(answer)
