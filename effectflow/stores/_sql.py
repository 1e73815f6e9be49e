"""The changes and questions of the SQL stores, without input and output.

Each operation is a generator. It yields queries, which may go to the database together, and receives the
rows of each. The rules run in between. It returns a `Commit`: its result, and the queries that change the
database in the same transaction. A generator may be run again in another transaction, so it is passed as
an `Attempt`, a function that makes it.

The SQL is what SQLite and PostgreSQL both have. `@` is before the name of each table, `?` is a parameter,
and `now()` is the time of the store in seconds since the epoch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from effectflow.checkpoint.errors import CorruptCheckpoint, LeaseLost, RunNotFound
from effectflow.checkpoint.lease import Lease, deaths_seen_once
from effectflow.checkpoint.run_info import (
    RunDetails,
    RunInfo,
    RunStatus,
    RunSummary,
    notifies_parent,
)
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.store import NOTICE, Batch, Message, Record, Taken
from effectflow.stores._packed import packed, records_in
from effectflow.stores._rules import (
    check_deletable,
    check_free,
    check_holder,
    check_kept,
    check_length,
    check_messages,
    check_receives,
    check_room,
    due_if_unseen,
    size_in_mailbox,
    woken,
)
from effectflow.stores._summaries import UNREADABLE, readable

logger = logging.getLogger(__name__)

A = TypeVar("A")

SCHEMA = """
    CREATE TABLE @runs (
        number INTEGER PRIMARY KEY,
        -- A digest of the id, which may be too long for an index.
        key BLOB NOT NULL UNIQUE,
        run_id TEXT NOT NULL,
        workflow TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at REAL NOT NULL,
        due_at REAL,
        priority INTEGER NOT NULL,
        parent TEXT NOT NULL,
        tenant TEXT NOT NULL,
        queue TEXT NOT NULL,
        queue_key TEXT NOT NULL,
        details TEXT NOT NULL,
        -- As `RunSummary.turn`.
        turn TEXT GENERATED ALWAYS AS (
            CASE WHEN status = 'pending' AND due_at <= created_at THEN queue_key ELSE '' END
        ) STORED,
        updated_at REAL NOT NULL,
        -- Of a run that is not running, so that no step of a run changes it or its index.
        settled_at REAL
            GENERATED ALWAYS AS (CASE WHEN status <> 'running' THEN updated_at END) STORED,
        length INTEGER NOT NULL,
        -- The number of its newest message, taken or not.
        newest_message INTEGER NOT NULL,
        -- The bytes of its unread messages, and 1,024 for each.
        unread INTEGER NOT NULL,
        -- Its lease. Without one, the owner is empty.
        owner TEXT NOT NULL,
        fence INTEGER NOT NULL,
        expires_at REAL NOT NULL,
        expires_at_uptime REAL
    );
    -- The lanes of `_sql_find`.
    CREATE INDEX runs_of_status ON @runs (status, created_at DESC);
    CREATE INDEX runs_of_workflow ON @runs ((workflow || ':' || status), created_at DESC);
    CREATE INDEX runs_of_parent
        ON @runs ((substr(parent, 1, 64) || ':' || status), created_at DESC, workflow)
        WHERE parent <> '';
    CREATE INDEX runs_of_tenant
        ON @runs ((substr(tenant, 1, 64) || ':' || status), created_at DESC, workflow)
        WHERE tenant <> '';
    CREATE INDEX runs_settled ON @runs (status, settled_at) WHERE settled_at IS NOT NULL;
    CREATE INDEX runs_by_id ON @runs (substr(run_id, 1, 64));
    -- The runs that are free. Without those that are held, a claim finds one at once.
    CREATE INDEX runs_due ON @runs (workflow, status, queue, priority, turn, due_at)
        WHERE due_at IS NOT NULL AND owner = '';
    CREATE INDEX runs_held ON @runs (workflow) WHERE owner <> '';
    -- The records of an append are one row, see `_packed`: the number of the last one, and all of them.
    CREATE TABLE @entries (
        run INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        written_at REAL NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, sequence)
    );
    -- Those that were not taken. The numbers of a run are never used again.
    CREATE TABLE @messages (
        run INTEGER NOT NULL,
        number INTEGER NOT NULL,
        topic TEXT NOT NULL,
        key TEXT NOT NULL,
        sent_at REAL NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, number)
    );
    -- All messages of runs that have not ended, taken or not, except notices: a digest of the topic and
    -- the key, and the request that sent the message.
    CREATE TABLE @received (
        run INTEGER NOT NULL,
        message BLOB NOT NULL,
        request BLOB NOT NULL,
        PRIMARY KEY (run, message)
    );
    -- When runs of queues with limits were started: the latest, as many as the limit needs.
    CREATE TABLE @limits (
        queue TEXT PRIMARY KEY,
        starts TEXT NOT NULL
    );
    CREATE TABLE @settings (
        name TEXT PRIMARY KEY,
        value BLOB NOT NULL
    );
"""

IN_ORDER = " ORDER BY created_at DESC, run_id OFFSET 0"
"""What the parts of a UNION ALL need so that PostgreSQL merges them. SQLite does so without it."""

LARGEST = 2**63 - 1
"""The largest number that databases keep."""

_ROWS_PER_READ = 500
"""A read is done in pieces, so that none keeps the database busy for long."""


class Query(NamedTuple):
    """A statement and its parameters."""

    text: str
    parameters: Sequence[object] = ()


Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Commit(Generic[A]):
    """How a transaction ends: with its result, and with changes that return nothing."""

    result: A
    changes: Sequence[Query] = ()


Steps: TypeAlias = Generator[Sequence[Query], Sequence[Rows], A]
"""Yields queries, and receives the rows of each."""

Attempt: TypeAlias = Callable[[], Steps[Commit[A]]]
"""Begins a transaction, perhaps again."""

Reading: TypeAlias = Callable[[], Steps[A]]
"""Begins to read, perhaps again. Each of its queries may see a newer state of the database."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[A]):
    """The end of a generator of queries, with what it returned."""

    result: A


def advance(steps: Steps[A], answers: Sequence[Rows] | None) -> Sequence[Query] | Ended[A]:
    """Return the next queries, given the rows of the last ones. At first, there are None."""
    try:
        return next(steps) if answers is None else steps.send(answers)
    except StopIteration as end:
        return Ended(end.value)


@lru_cache(1024)
def key_of(run_id: str) -> bytes:
    """Return the key of a run."""
    return hashlib.sha256(run_id.encode()).digest()


def marks(values: Sequence[object]) -> str:
    """Return the parameters of a list in SQL."""
    return ", ".join("?" * len(values))


# Rows.

COLUMNS = (
    "number, run_id, workflow, status, created_at, due_at, priority, parent, tenant, queue, queue_key, "
    "details, updated_at, length, owner, fence, expires_at, expires_at_uptime, now()"
)
"""The columns of `info_of`."""

_FENCE = COLUMNS.split(", ").index("fence")

SUMMARY_COLUMNS = (
    *("workflow", "status", "created_at", "due_at", "priority", "parent", "tenant"),
    *("queue", "queue_key", "details"),
)

_text_of = lru_cache(256)(RunDetails.to_json)
_details_of = lru_cache(256)(RunDetails.from_json)


def summary_columns(summary: RunSummary) -> tuple[Any, ...]:
    """Return the values of `SUMMARY_COLUMNS`."""
    return (
        *(summary.workflow, summary.status.value, summary.created_at, summary.due_at),
        *(summary.priority, summary.parent, summary.tenant, summary.queue, summary.key),
        _text_of(summary.details),
    )


def info_of(row: Row) -> RunInfo:
    """Return one line about a run, from `COLUMNS`. Raise CorruptCheckpoint if it is damaged."""
    _, run_id, workflow, status, created_at, due_at, *others, details = row[:12]
    updated_at, length, *lease, _ = row[12:]
    times = created_at, updated_at, due_at or 0.0
    if length < 1 or not all(abs(at) <= LATEST for at in times):
        raise CorruptCheckpoint(run_id, "its length or one of its times is damaged")
    summary = RunSummary(
        *(workflow, RunStatus.stored(status, run_id), created_at, due_at, *others),
        details=_details_of(details, run_id),
    )
    return RunInfo(run_id, summary, updated_at, length, lease_of(run_id, *lease))


def lease_of(
    run_id: str, owner: str, fence: int, expires_at: float, expires_at_uptime: float | None
) -> Lease | None:
    """Return a lease from its columns. It is None without an owner. If it is damaged, it has expired."""
    if not owner:
        return None
    if not math.isfinite(expires_at + (expires_at_uptime or 0.0)):
        expires_at, expires_at_uptime = 0.0, None
    return Lease(run_id, owner, fence, expires_at, expires_at_uptime)


def claimable_info(row: Row) -> RunInfo:
    """Return one line about a run, from `COLUMNS`, even if its summary is damaged."""
    try:
        return info_of(row)
    except CorruptCheckpoint:
        run_id, updated_at, length, *lease, _ = row[1], *row[12:]
        return RunInfo(run_id, UNREADABLE, updated_at, length, lease_of(run_id, *lease))


def readable_runs(rows: Iterable[Row]) -> Iterator[tuple[Row, RunInfo]]:
    """Yield each row with what it says about a run. Skip damaged runs with a warning."""
    return readable(rows, lambda row: (row, info_of(row)))


# Journals and leases.


def create(
    run_id: str,
    bodies: Sequence[bytes],
    summary: RunSummary,
    owner: str,
    seconds: float,
    *,
    is_repeated: bool = False,
) -> Attempt[RunInfo | None]:
    """Create a run, as `CheckpointStore.create`.

    `is_repeated` says whether the answer to an earlier attempt was lost, which may have created it.
    """
    key = key_of(run_id)

    def attempt() -> Steps[Commit[RunInfo | None]]:
        nonlocal is_repeated
        [[(number, now)]] = yield [
            Query("SELECT (SELECT number FROM @runs WHERE key = ?), now()", (key,))
        ]
        if number is not None:
            if not is_repeated or not (yield from _has_written(number, 0, bodies)):
                return Commit(None)
            [[row]] = yield [Query(f"SELECT {COLUMNS} FROM @runs WHERE number = ?", (number,))]
            return Commit(info_of(row))
        is_repeated, lease, held = True, None, _FREE
        if owner:
            lease = Lease.of(run_id, owner, next_fence(0, now), seconds=seconds, now=now)
            held = (owner, lease.fence, lease.expires_at, lease.expires_at_uptime)
        row = (key, run_id, *summary_columns(summary), now, len(bodies), 0, 0, *held)
        entries = [
            Query(
                "INSERT INTO @entries (run, sequence, written_at, body)"
                " SELECT number, ?, ?, ? FROM @runs WHERE key = ?",
                (sequence, now, body, key),
            )
            for sequence, body in packed(bodies, 0)
        ]
        info = RunInfo(run_id, summary, now, len(bodies), lease)
        return Commit(info, [Query(_CREATE, row), *entries])

    return attempt


def _has_written(number: int, after: int, bodies: Sequence[bytes]) -> Steps[bool]:
    """Return whether a run has these records."""
    wanted = packed(bodies, after)
    [rows] = yield [
        Query(
            "SELECT sequence, body FROM @entries"
            " WHERE run = ? AND sequence > ? ORDER BY sequence LIMIT ?",
            (number, after, len(wanted)),
        )
    ]
    return [(sequence, bytes(body)) for sequence, body in rows] == wanted


_FREE: tuple[str, int, float, float | None] = ("", 0, 0.0, None)

CREATED_COLUMNS = (
    *("key", "run_id", *SUMMARY_COLUMNS, "updated_at", "length", "newest_message", "unread"),
    *("owner", "fence", "expires_at", "expires_at_uptime"),
)

_CREATE = f"INSERT INTO @runs ({', '.join(CREATED_COLUMNS)}) VALUES ({marks(CREATED_COLUMNS)})"


def next_fence(fence: int, now: float) -> int:
    """Return the fencing token after this one.

    It is at least the time, so that a run does not use the tokens of a deleted one with the same id. A
    damaged one may be the largest number; then the owners of leases tell them apart.
    """
    return min(max(fence + 1, int(now * 1e6)), LARGEST)


def claim(run_id: str, owner: str, seconds: float) -> Attempt[Taken]:
    """Claim a run, as `CheckpointStore.claim`."""
    before: RunInfo | None = None

    def attempt() -> Steps[Commit[Taken]]:
        nonlocal before
        [rows] = yield [
            Query(f"SELECT {COLUMNS} FROM @runs WHERE key = ? FOR UPDATE", (key_of(run_id),))
        ]
        if not rows:
            raise RunNotFound(run_id)
        info = claimable_info(rows[0])
        check_free(info.lease, now=rows[0][-1], claimant=owner)
        if before is None or info.lease is None or info.lease.owner != owner:
            # Otherwise, an earlier attempt has claimed it.
            before = info
        lease, change = take(rows[0], owner, seconds)
        return Commit(Taken(lease, before), [change])

    return attempt


def take(row: Row, owner: str, seconds: float) -> tuple[Lease, Query]:
    """Return a new lease of a run, given its `COLUMNS`, and the change that gives it to the owner."""
    number, run_id, fence, now = row[0], row[1], next_fence(row[_FENCE], row[-1]), row[-1]
    lease = Lease.of(run_id, owner, fence, seconds=seconds, now=now)
    until = lease.expires_at, lease.expires_at_uptime
    return lease, _update(
        number, owner=owner, fence=fence, expires_at=until[0], expires_at_uptime=until[1]
    )


def renew(leases: Sequence[Lease], seconds: float) -> Steps[Commit[list[Lease]]]:
    """Renew leases, as `CheckpointStore.renew`."""
    [[(now,)]] = yield [Query("SELECT now()")]
    wanted = [lease.renewed(seconds, now=now) for lease in leases]
    renewed = yield [
        Query(
            "UPDATE @runs SET expires_at = ?, expires_at_uptime = ?"
            f" WHERE {_IS_CURRENT} RETURNING 1",
            (lease.expires_at, lease.expires_at_uptime, *_current(lease)),
        )
        for lease in wanted
    ]
    return Commit([lease for lease, rows in zip(wanted, renewed, strict=True) if rows])


def release(lease: Lease) -> Steps[Commit[None]]:
    """Release a lease, as `CheckpointStore.release`."""
    yield from ()
    change = Query(f"UPDATE @runs SET owner = '' WHERE {_IS_CURRENT}", _current(lease))
    return Commit(None, [change])


_IS_CURRENT = "key = ? AND owner = ? AND fence = ?"


def _current(lease: Lease) -> tuple[bytes, str, int]:
    return key_of(lease.run_id), lease.owner, lease.fence


def append(lease: Lease, batch: Batch, *, is_repeated: bool = False) -> Attempt[list[str]]:
    """Append to a journal, as `CheckpointStore.append`. Return the ids of the runs to announce.

    `is_repeated` says whether the answer to an earlier attempt was lost, which may have appended it.
    """
    run_id, takes = lease.run_id, batch.takes
    key = key_of(run_id)

    def attempt() -> Steps[Commit[list[str]]]:
        nonlocal is_repeated
        summary = batch.summary
        queries = [Query(_STATE, (key,))]
        if takes:
            queries.append(Query(f"{_MESSAGES} AND number IN ({marks(takes)})", (key, *takes)))
        parent = summary.parent if summary is not None and notifies_parent(summary) else None
        if parent is not None:
            queries.append(Query(_STATE, (key_of(parent),)))
        # Everything is checked before something is written, so that a rejected append writes nothing.
        rows, *others = yield queries
        state = _State(*rows[0]) if rows else _NO_RUN
        number, now = state.number, state.now
        try:
            check_holder(lease, state.owner, state.fence)
            check_length(lease, state.length, after=batch.after)
            if takes:
                check_messages(lease, takes, {message for message, _ in others[0]})
        except LeaseLost:
            if is_repeated and (yield from _has_appended(state, lease, batch)):
                return Commit([] if summary is None else [run_id])
            raise
        is_repeated = True
        changed: dict[str, object] = {"length": batch.after + len(batch.bodies), "updated_at": now}
        if not batch.bodies:
            changed.clear()
        changes = [
            _entry(number, sequence, now, body)
            for sequence, body in packed(batch.bodies, batch.after)
        ]
        if takes:
            here = f"run = ? AND number IN ({marks(takes)})"
            changes.append(Query(f"DELETE FROM @messages WHERE {here}", (number, *takes)))
            taken = sum(size_in_mailbox(length) for _, length in others[0])
            changed["unread"] = max(state.unread - taken, 0)
        if summary is not None:
            rows: Rows = []
            if batch.seen is not None and state.newest_message > batch.seen:
                others_than = f" AND number NOT IN ({marks(takes)})" if takes else ""
                text = f"SELECT number, topic FROM @messages WHERE run = ?{others_than}"
                [rows] = yield [Query(text, (number, *takes))]
            left = ((message, topic) for message, topic in rows)
            summary = due_if_unseen(summary, batch.seen, left=left, now=now)
            changed.update(zip(SUMMARY_COLUMNS, summary_columns(summary), strict=True))
            if summary.status.has_ended and state.newest_message:
                changes += _empty_mailbox(number)
                changed["unread"] = 0
        if batch.release:
            changed["owner"] = ""
        if changed:
            changes.append(_update(number, **changed))
        told = [] if summary is None else [run_id]
        if parent is not None and (notice := _notice(parent, run_id, others[-1])):
            changes += notice
            told.append(parent)
        return Commit(told, changes)

    return attempt


def has_appended(lease: Lease, batch: Batch) -> Attempt[bool]:
    """Return whether an append has taken effect whose answer was lost."""

    def attempt() -> Steps[Commit[bool]]:
        [rows] = yield [Query(_STATE, (key_of(lease.run_id),))]
        state = _State(*rows[0]) if rows else _NO_RUN
        return Commit((yield from _has_appended(state, lease, batch)))

    return attempt


def _has_appended(state: _State, lease: Lease, batch: Batch) -> Steps[bool]:
    """Return whether an earlier attempt has appended this: only it used its fencing token."""
    if batch.bodies:
        return (yield from _has_written(state.number, batch.after, batch.bodies))
    return batch.release and not state.owner and state.fence == lease.fence


class _State(NamedTuple):
    """What the rules need to know about a run."""

    number: int
    status: str
    due_at: float | None
    length: int
    newest_message: int
    unread: int
    owner: str
    fence: int
    now: float

    def summary(self, run_id: str) -> RunSummary:
        """Return the part of its summary that messages change. Raise CorruptCheckpoint if unreadable."""
        return RunSummary("", RunStatus.stored(self.status, run_id), 0.0, self.due_at)


_NO_RUN = _State(0, "", None, 0, 0, 0, "", 0, 0.0)

_STATE = f"SELECT {', '.join(_State._fields[:-1])}, now() FROM @runs WHERE key = ? FOR UPDATE"

_MESSAGES = (
    "SELECT number, length(body) FROM @messages"
    " WHERE run = (SELECT number FROM @runs WHERE key = ?)"
)


def _entry(number: int, sequence: int, now: float, body: bytes) -> Query:
    return Query(
        "INSERT INTO @entries (run, sequence, written_at, body) VALUES (?, ?, ?, ?)",
        (number, sequence, now, body),
    )


def _update(number: int, **columns: object) -> Query:
    return Query(_update_of(tuple(columns)), (*columns.values(), number))


@lru_cache(64)
def _update_of(columns: tuple[str, ...]) -> str:
    return f"UPDATE @runs SET {', '.join(f'{name} = ?' for name in columns)} WHERE number = ?"


def truncate(lease: Lease, after: int, summary: RunSummary) -> Steps[Commit[None]]:
    """Remove the records after number `after`, as `CheckpointStore.truncate`."""
    [rows] = yield [Query(_STATE, (key_of(lease.run_id),))]
    state = _State(*rows[0]) if rows else _NO_RUN
    check_holder(lease, state.owner, state.fence)
    number = state.number
    [[(length,)], rows] = yield [
        Query(
            "SELECT coalesce(max(sequence), 0) FROM @entries WHERE run = ? AND sequence <= ?",
            (number, after),
        ),
        Query(f"{_RECORDS} run = ? {_NEXT_RECORDS}", (number, after - 1, 1)),
    ]
    kept = [one for one in records_in(row[1:] for row in rows) if one.sequence <= after]
    check_kept(lease, kept[-1].sequence if kept else length, after=after)
    at, [(_, last, *_)] = kept[-1].written_at, rows
    changed = dict(zip(SUMMARY_COLUMNS, summary_columns(summary), strict=True))
    changes = [Query("DELETE FROM @entries WHERE run = ? AND sequence > ?", (number, after))]
    if last > after:
        bodies = [one.body for one in kept]
        for sequence, body in packed(bodies, after - len(bodies)):
            changes.append(_entry(number, sequence, at, body))
    return Commit(None, [*changes, _update(number, length=after, updated_at=at, **changed)])


def delete(run_id: str, lease: Lease | None) -> Attempt[None]:
    """Delete a run, as `CheckpointStore.delete`."""
    deleted: int | None = None

    def attempt() -> Steps[Commit[None]]:
        nonlocal deleted
        [rows] = yield [
            Query(f"SELECT {COLUMNS} FROM @runs WHERE key = ? FOR UPDATE", (key_of(run_id),))
        ]
        if deleted is not None and (not rows or rows[0][0] != deleted):
            # An earlier attempt has deleted the run, and its answer was lost.
            return Commit(None)
        if not rows:
            raise RunNotFound(run_id)
        number, *_, owner, fence, expires_at, expires_at_uptime, now = rows[0]
        held = lease_of(run_id, owner, fence, expires_at, expires_at_uptime)
        check_deletable(lease, held, now=now)
        deleted = number
        return Commit(
            None,
            [
                Query("DELETE FROM @runs WHERE number = ?", (number,)),
                Query("DELETE FROM @entries WHERE run = ?", (number,)),
                *_empty_mailbox(number),
            ],
        )

    return attempt


def delete_unchanged(runs: Sequence[RunInfo]) -> Attempt[list[str]]:
    """Delete runs that are as given, as `CheckpointStore.delete_unchanged`."""
    known = {one.run_id: one for one in runs}
    keys = [key_of(run_id) for run_id in known]
    chosen: dict[str, int] = {}

    def attempt() -> Steps[Commit[list[str]]]:
        nonlocal chosen
        text = f"SELECT {COLUMNS} FROM @runs WHERE key IN ({marks(keys)}) FOR UPDATE SKIP LOCKED"
        [rows] = yield [Query(text, keys)]
        found = {row[1] for row in rows}
        # An earlier attempt has deleted these, and its answer was lost.
        deleted = [run_id for run_id in chosen if run_id not in found]
        is_dead = deaths_seen_once()
        chosen = {
            info.run_id: row[0]
            for row, info in readable_runs(rows)
            if info.is_unchanged(known[info.run_id])
            and not (info.lease and info.lease.is_held(row[-1], is_dead))
        }
        numbers = [*chosen.values()]
        changes = [
            Query(f"DELETE FROM {table} IN ({marks(numbers)})", numbers)
            for table in (
                *("@runs WHERE number", "@entries WHERE run", "@messages WHERE run"),
                "@received WHERE run",
            )
        ]
        return Commit([*deleted, *chosen], changes if numbers else [])

    return attempt


# Messages.


def send(run_id: str, topic: str, key: str, body: bytes) -> Attempt[bool]:
    """Put a message into a mailbox, as `ServiceStore.send`."""
    message = hashlib.sha256(json.dumps([topic, key]).encode()).digest()
    request = uuid.uuid4().bytes

    def attempt() -> Steps[Commit[bool]]:
        run_key = key_of(run_id)
        rows, received = yield [
            Query(_STATE, (run_key,)),
            Query(
                "SELECT request FROM @received WHERE message = ?"
                " AND run = (SELECT number FROM @runs WHERE key = ?)",
                (message, run_key),
            ),
        ]
        if not rows:
            raise RunNotFound(run_id)
        state = _State(*rows[0])
        check_receives(run_id, state.summary(run_id))
        if topic == NOTICE:
            return Commit(True, _put(run_id, state, topic, key, body))
        if received:
            # Its own if the answer to an earlier attempt was lost.
            return Commit(bytes(received[0][0]) == request)
        check_room(run_id, topic, body, unread=state.unread)
        note = Query("INSERT INTO @received VALUES (?, ?, ?)", (state.number, message, request))
        return Commit(True, [note, *_put(run_id, state, topic, key, body)])

    return attempt


def _put(run_id: str, state: _State, topic: str, key: str, body: bytes) -> list[Query]:
    """Return the changes that put a message into the mailbox of a run."""
    number, message = state.number, state.newest_message + 1
    if message > LARGEST:
        raise CorruptCheckpoint(run_id, "the number of its newest message is damaged")
    unread = state.unread + size_in_mailbox(len(body))
    changed: dict[str, object] = {"newest_message": message, "unread": unread}
    due_at = woken(topic, state.summary(run_id), now=state.now).due_at
    if due_at != state.due_at:
        changed["due_at"] = due_at
    return [
        Query(
            "INSERT INTO @messages (run, number, topic, key, sent_at, body) VALUES (?, ?, ?, ?, ?, ?)",
            (number, message, topic, key, state.now, body),
        ),
        _update(number, **changed),
    ]


def _notice(parent: str, run_id: str, rows: Rows) -> list[Query]:
    """Return the changes that tell the parent of a run that it has ended, given its state."""
    if not rows:
        return []
    state = _State(*rows[0])
    try:
        has_ended = state.summary(parent).status.has_ended
    except CorruptCheckpoint as error:
        logger.warning("run %r is not notified about run %r: %s", parent, run_id, error)
        return []
    return [] if has_ended else _put(parent, state, NOTICE, run_id, b"")


def _empty_mailbox(number: int) -> list[Query]:
    """Return the changes that remove all messages of a run, and the record of those that it took."""
    return [
        Query("DELETE FROM @messages WHERE run = ?", (number,)),
        Query("DELETE FROM @received WHERE run = ?", (number,)),
    ]


def mailbox(run_id: str, after: int) -> Steps[list[Message]]:
    """Return messages, as `ServiceStore.mailbox`."""
    [rows] = yield [
        Query(
            "SELECT number, topic, key, sent_at, body FROM @messages WHERE run ="
            " (SELECT number FROM @runs WHERE key = ?) AND number > ? ORDER BY number",
            (key_of(run_id), after),
        )
    ]
    return [Message(number, topic, key, at, bytes(body)) for number, topic, key, at, body in rows]


# Reading.


def read(run_id: str, after: int) -> Steps[list[Record]]:
    """Return the records of a run, as `CheckpointStore.read`."""
    run, last = key_of(run_id), after
    text = f"{_RECORDS} run = (SELECT number FROM @runs WHERE key = ?) {_NEXT_RECORDS}"
    records: list[Record] = []
    while True:
        # Each query has its own snapshot. That is safe, because a journal only grows at its end.
        [rows] = yield [Query(text, (run, last, _ROWS_PER_READ))]
        records += records_in((row[1:] for row in rows), after=after)
        if len(rows) < _ROWS_PER_READ:
            return records
        # By its number, which a new run with the same id does not have.
        run, last, text = rows[-1][0], rows[-1][1], f"{_RECORDS} run = ? {_NEXT_RECORDS}"


_RECORDS = "SELECT run, sequence, written_at, body FROM @entries WHERE"
_NEXT_RECORDS = "AND sequence > ? ORDER BY sequence LIMIT ?"


# Settings.


def save_setting(kind: str, name: str, value: bytes | None) -> Steps[Commit[None]]:
    """Keep or remove a setting, as `ServiceStore.save_setting`."""
    yield from ()
    key = f"{kind}:{name}"
    if value is None:
        return Commit(None, [Query("DELETE FROM @settings WHERE name = ?", (key,))])
    change = "INSERT INTO @settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    return Commit(None, [Query(change, (key, value))])


def settings(kind: str) -> Steps[dict[str, bytes]]:
    """Return the settings of a kind, as `ServiceStore.settings`."""
    prefix = f"{kind}:"
    # The names are not in the order of their bytes in PostgreSQL, so no index has those of a kind.
    select = f"SELECT name, value FROM @settings WHERE substr(name, 1, {len(prefix)}) = ?"
    [rows] = yield [Query(select, (prefix,))]
    return {name.removeprefix(prefix): bytes(value) for name, value in rows}
