"""A run in Redis: its hash, and the sorted sets that have it.

The hash has these fields:

- `state`: the `State` as JSON; empty for a run that was deleted.
- `held`: the fencing token, a space, and the owner of the lease, or nothing if it is free.
- `until`: when the lease expires, by the clock of the server and by the uptime of the host of its owner.
- `updated`: when the newest entry was written.
- `1`, `2`, ...: the entries, each with its time and a space before the body. Those beyond the length do
  not count.
- `message N`: a message: its time, the lengths of its topic and its key, a newline, and the texts.
- `received H`: the number N of the message whose topic and key have the digest H.
- `sent N`: H and the request that sent message N. A message counts as received if both fields agree, and
  N is not beyond the newest number.
- `append F`: the last append with fencing token F.

The sorted sets have names that follow from the run (`places`). A run is in all sets that it belongs to.
If a server was killed while it wrote, it may be in others, too, so readers check it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.schema import frozen, schema_of
from effectflow.checkpoint.store import NOTICE, Message, Record
from effectflow.stores._due import Lane
from effectflow.stores._redis_scripts import NOW
from effectflow.stores._rules import size_in_mailbox, woken
from effectflow.stores._summaries import UNREADABLE

A = TypeVar("A")

Write: TypeAlias = tuple[Any, ...]
"""A command of Redis that changes data, with its arguments."""

Guard: TypeAlias = tuple[str, str, bytes]
"""A key, a field of its hash, and the value that it must have; empty if it must be missing."""

FIELDS_PER_COMMAND = 500
"""Lua cannot pass more than a few thousand arguments."""

_MOST_MESSAGES = 1_000_000
"""No mailbox has more, because a sender is refused long before, and a run spawns fewer others."""

LOOK_SECONDS = 30.0
"""How often workers look whether a run that is held still is."""


@frozen
class State:
    """All that counts of a run, besides its lease. Each change replaces all of it.

    Attributes:
        run_id: the run.
        summary: the summary of the run.
        length: the number of entries.
        born: the request that created the run, which tells it from a later one with its id.
        newest: the number of the newest message that the run has received.
        mailbox: the numbers of the messages that were not taken, as ranges, each with its last number.
        taken: the messages that the last append has taken, which the next one removes.
        unread: the sizes of the messages that were not taken, in bytes.
    """

    run_id: str
    summary: RunSummary
    length: int
    born: str
    newest: int = 0
    mailbox: tuple[tuple[int, int], ...] = ()
    taken: tuple[int, ...] = ()
    unread: int = 0

    @property
    def messages(self) -> list[int]:
        """The numbers of the messages that were not taken."""
        return [number for first, last in self.mailbox for number in range(first, last + 1)]

    def is_mailbox_plausible(self) -> bool:
        """Return whether the ranges may be those of a mailbox. Damaged ones may need all memory."""
        bounds = [bound for first, last in self.mailbox for bound in (first, last + 1)]
        count = sum(last + 1 - first for first, last in self.mailbox)
        return bounds == sorted(bounds) and count <= _MOST_MESSAGES

    def with_messages(self, numbers: Iterable[int]) -> State:
        """Return the state with these messages in the mailbox."""
        ranges: list[tuple[int, int]] = []
        for number in numbers:
            is_next = bool(ranges) and ranges[-1][1] + 1 == number
            ranges[-1:] = [(ranges[-1][0], number)] if is_next else [*ranges[-1:], (number, number)]
        return replace(self, mailbox=tuple(ranges))


_schema = schema_of(State)


class Row(NamedTuple):
    """The fields of a run, besides entries and messages; empty if they are missing."""

    state: bytes = b""
    held: bytes = b""
    until: bytes = b""
    updated: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """A run on the server: its fields, and what they say."""

    row: Row
    state: State
    lease: Lease | None
    fence: int

    @staticmethod
    def read(run_id: str, row: Row) -> Run | None:
        """Return the run, or None if it does not exist. Raise CorruptCheckpoint if it is damaged."""
        if not row.state:
            return None
        fence, lease = lease_in(run_id, row)
        try:
            state = _schema.read(orjson.loads(row.state))
            if state.run_id != run_id or state.length < 1 or not state.is_mailbox_plausible():
                raise ValueError("its numbers are wrong, or those of another run")
            run = Run(row, state, lease, fence)
            _ = run.updated_at
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpoint(run_id, f"its fields are damaged: {error!r}") from error
        return run

    @staticmethod
    def to_repair(run_id: str, row: Row) -> Run | None:
        """As `read`, but return a run of which only the summary is damaged with another one."""
        try:
            return Run.read(run_id, row)
        except CorruptCheckpoint as damage:
            try:
                tree = orjson.loads(row.state) | {
                    "summary": schema_of(RunSummary).write(UNREADABLE)
                }
            except (ValueError, TypeError):
                raise damage from None
            run = Run.read(run_id, row._replace(state=orjson.dumps(tree)))
            return run and replace(run, row=row)

    @staticmethod
    def of(state: State, lease: Lease | None) -> Run:
        """Return a new run."""
        run = Run(Row(orjson.dumps(_schema.write(state)), held_by(0)), state, None, 0)
        return run if lease is None else run.leased(lease)

    def updated(self, now: float) -> Run:
        """Return the run with an entry that was written at this time."""
        return replace(self, row=self.row._replace(updated=b"%.6f" % now))

    def become(self, state: State) -> Run:
        """Return the run with another state."""
        row = self.row._replace(state=orjson.dumps(_schema.write(state)))
        return Run(row, state, self.lease, self.fence)

    def leased(self, lease: Lease) -> Run:
        """Return the run with this lease."""
        until = f"{lease.expires_at!r} {lease.expires_at_uptime or ''}".encode()
        row = self.row._replace(held=held_by(lease.fence, lease.owner), until=until)
        return Run(row, self.state, lease, lease.fence)

    def released(self) -> Run:
        """Return the run without a lease."""
        # `until` stays: if the release is undone after all, the lease is valid.
        row = self.row._replace(held=held_by(self.fence))
        return Run(row, self.state, None, self.fence)

    def is_elsewhere(self, other: Run) -> bool:
        """Return whether the run may be in other sorted sets than the same run at another time."""
        return self.lease is not other.lease or self.state.summary is not other.state.summary

    @property
    def updated_at(self) -> float:
        """When its newest entry was written."""
        return _number(self.row.updated)

    @property
    def info(self) -> RunInfo:
        """One line about the run."""
        state = self.state
        return RunInfo(state.run_id, state.summary, self.updated_at, state.length, self.lease)


def held_by(fence: int, owner: str = "") -> bytes:
    """Return the field `held` of a run with this lease."""
    return f"{fence} {owner}".encode()


def lease_in(run_id: str, row: Row) -> tuple[int, Lease | None]:
    """Return the newest fencing token of a run and its lease. If it is damaged, it has expired."""
    fence, _, owner = row.held.decode(errors="backslashreplace").partition(" ")
    try:
        if not owner:
            return int(fence), None
        expires_at, _, uptime = row.until.partition(b" ")
        up = _number(uptime) if uptime else None
        return int(fence), Lease(run_id, owner, int(fence), _number(expires_at), up)
    except ValueError:
        # The tokens of claims come from one counter, so the next one is greater all the same.
        return 0, Lease(run_id, owner or "unknown", 0, 0.0)


def _number(text: bytes) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a time")
    return number


# Entries and messages.


def record_of(run_id: str, number: int, entry: bytes | None) -> Record:
    """Return an entry as a record. Raise CorruptCheckpoint if it is missing or damaged."""
    if entry is None:
        raise CorruptCheckpoint(run_id, "it is missing", sequence=number)
    at, _, body = entry.partition(b" ")
    try:
        return Record(number, _number(at), body)
    except ValueError:
        raise CorruptCheckpoint(run_id, "its time is damaged", sequence=number) from None


def message_of(run_id: str, number: int, stored: bytes) -> Message:
    """Return a message. Raise CorruptCheckpoint if it is damaged."""
    head, _, texts = stored.partition(b"\n")
    try:
        sent_at, topic, key = head.split(b" ")
        middle, end = int(topic), int(topic) + int(key)
        names = texts[:middle].decode(), texts[middle:end].decode()
        return Message(number, *names, _number(sent_at), texts[end:])
    except ValueError as error:
        raise CorruptCheckpoint(run_id, f"its message {number} is damaged: {error}") from error


def digest_of(topic: str, key: str) -> bytes:
    """Return what identifies a message in the fields of a run."""
    text = f"{len(topic.encode())} {topic}{key}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


def put(
    run: Run, topic: str, key: str, body: bytes, request: bytes, now: float
) -> tuple[Run, list[Any]]:
    """Return the run with one more message, and the fields and values of that."""
    state, number = run.state, run.state.newest + 1
    state = state.with_messages([*state.messages, number])
    summary = woken(topic, state.summary, now=now)
    texts = topic.encode(), key.encode()
    stored = NOW + b" %d %d\n" % (len(texts[0]), len(texts[1])) + b"".join((*texts, body))
    fields: list[Any] = [f"message {number}", stored]
    if topic == NOTICE:
        # In the place of one that a killed server may still write.
        fields += [f"sent {number}", b""]
    else:
        digest = digest_of(topic, key)
        fields += [f"sent {number}", digest + request, b"received " + digest, number]
    unread = state.unread + size_in_mailbox(len(body))
    return run.become(replace(state, newest=number, summary=summary, unread=unread)), fields


# The sorted sets.


def lane_of(summary: RunSummary) -> Lane:
    """Return the lane in which a run with this summary waits for a worker."""
    lane = Lane.of(summary)
    return lane if lane.is_pending else lane._replace(status="due")


def lane_text(lane: Lane) -> str:
    """Return a lane without its workflow and its turn as text."""
    return f"{lane.status}:{lane.priority}:{lane.queue}"


def set_of(lane: Lane) -> str:
    """Return the name of the set of a lane."""
    lengths = f"{len(lane.workflow)}:{len(lane.queue)}"
    return f"due:{lane.status}:{lane.priority}:{lengths}:{lane.workflow}{lane.queue}{lane.turn}"


def turns_of(lane: Lane) -> str:
    """Return the name of the set of the turns of a lane."""
    return f"turns:{set_of(lane._replace(turn=''))}"


def place_of(created_at: float, run_id: str) -> str:
    """Return the member of a run in the sets that are sorted by creation, newest first."""
    [bits] = struct.unpack(">Q", struct.pack(">d", created_at))
    # The numbers that sort as the times do, backwards.
    newest_first = bits if bits >> 63 else bits ^ (2**63 - 1)
    return f"{newest_first:016x}:{run_id}"


def places(run: Run) -> dict[str, tuple[float, str]]:
    """Return the sorted sets that a run is in, with its score and its name there."""
    summary, run_id = run.state.summary, run.state.run_id
    place = 0.0, place_of(summary.created_at, run_id)
    found = dict.fromkeys(("runs", f"status:{summary.status}"), place)
    for kind in ("workflow", "parent", "tenant"):
        if value := getattr(summary, kind):
            found[f"{kind}:{value}"] = place
    if run.lease is not None:
        # Workers look at it then.
        found[f"held:{summary.queue_name}"] = 0.0, run_id
    elif summary.due_at is not None:
        found[set_of(lane_of(summary))] = summary.due_at, run_id
    return found


def sets_with(query: RunQuery) -> list[str]:
    """Return the names of the sets that have all runs that a query asks for, as few as possible."""
    if query.parent or query.tenant:
        return [f"parent:{query.parent}" if query.parent else f"tenant:{query.tenant}"]
    statuses = query.statuses or frozenset(RunStatus)
    if query.crashed:
        statuses &= {RunStatus.RUNNING}
    elif query.resumable:
        statuses = frozenset(status for status in statuses if not status.has_ended)
    # Most runs have ended.
    if query.workflow and any(status.has_ended for status in statuses):
        return [f"workflow:{query.workflow}"]
    return ["runs"] if len(statuses) == len(RunStatus) else [f"status:{one}" for one in statuses]


class Keys:
    """The keys of a store."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, name: str) -> str:
        """Return the key of a set or a counter."""
        return f"{self._prefix}:{name}"

    def run(self, run_id: str) -> str:
        """Return the key of a run. A run id may be any text, and people read keys."""
        return f"{self._prefix}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"

    def guards(self, run_id: str, row: Row) -> list[Guard]:
        """Return the guards that a run is as this row says, except for renewals of its lease."""
        key = self.run(run_id)
        return [(key, "state", row.state), (key, "held", row.held)]

    def writes(
        self,
        before: Run | None,
        after: Run,
        fields: Sequence[Any] = (),
        *,
        process: str = "",
        now: float = 0.0,
    ) -> Iterator[Write]:
        """Yield what changes a run.

        Parameters:
            fields: further fields and values, which have no effect before the change.
            process, now: the process that claims the run, and when.
        """
        run_id, summary = after.state.run_id, after.state.summary
        key = self.run(run_id)
        for part in parts(fields or ["updated", after.row.updated]):
            yield ("HSET", key, *part)
        old, new = dict[str, tuple[float, str]](), dict[str, tuple[float, str]]()
        if before is None or before.is_elsewhere(after):
            old, new = {} if before is None else places(before), places(after)
        for name, (score, member) in new.items():
            if now and after.lease is not None and name.startswith("held:"):
                score = min(after.lease.expires_at, now + LOOK_SECONDS)
            elif old.get(name) == (score, member):
                continue
            elif name.startswith("due:"):
                yield from self.lane_writes(lane_of(summary))
            yield "ZADD", self(name), repr(score), member
        if process and after.lease is not None:
            yield "ZADD", self("processes"), repr(after.lease.expires_at), process
        if before is None:
            yield "HSET", self("ids"), run_id, ""
            if summary.queue:
                yield "SADD", self(f"queues:{summary.workflow}"), summary.queue
        until = () if before and before.row.until == after.row.until else ("until", after.row.until)
        yield ("HSET", key, *until, "held", after.row.held, "state", after.row.state)
        for name, (_, member) in old.items():
            if new.get(name, (0.0, ""))[1] != member:
                yield "ZREM", self(name), member

    def lane_writes(self, lane: Lane) -> Iterator[Write]:
        """Yield what lets workers find a lane."""
        yield "SADD", self(f"lanes:{lane.workflow}"), lane_text(lane)
        if lane.turn:
            yield "ZADD", self(turns_of(lane)), "0", lane.turn

    def announcement(self, run_id: str) -> Write:
        """Return what tells watchers that a run changed."""
        return "PUBLISH", self("changes"), run_id


def parts(items: Sequence[A]) -> Iterator[Sequence[A]]:
    """Yield parts of a sequence, each small enough for one command."""
    for start in range(0, len(items), FIELDS_PER_COMMAND):
        yield items[start : start + FIELDS_PER_COMMAND]


def texts(members: Iterable[bytes]) -> list[str]:
    """Return members of a set as texts. Skip what only another program can have written."""
    found: list[str] = []
    for member in members:
        with suppress(UnicodeDecodeError):
            found.append(member.decode())
    return found


def process_of(owner: str) -> str:
    """Return the part of an owner that names its process: all but the claim; empty for other texts."""
    process, separator, _ = owner.rpartition(", ")
    return process if separator and owner.startswith("pid ") else ""
