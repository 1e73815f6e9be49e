"""The format of a run's files: write, read and check them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

import orjson

from effectflow.checkpoint.errors import RunConflict, UnsupportedVersion
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.store import NOTICE, Message, Record, RunSummary
from effectflow.stores._rules import woken
from effectflow.stores._summaries import summary_fields

_VERSION = 2
"""The version of the files of a run. Version 1 was never released."""

Row: TypeAlias = dict[str, Any]
"""A record as JSON."""


class Damaged(Exception):
    """A file does not contain what was written to it."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The content of `checkpoint.json`.

    `records` are the newest; `first` is the sequence number of the first of them, and earlier ones are
    in `entries`. `fence` is the fencing token of the lease under which this was saved, and `is_released`
    says whether the same save released the lease. `taken` are the messages that were taken, which
    `mailbox.json` may still have. `heard` is the newest message that it had: later ones may have woken
    the run. `damage` says how `checkpoint.json` is damaged and what was read instead.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    first: int
    records: tuple[Record, ...]
    fence: int = 0
    is_released: bool = False
    taken: frozenset[int] = frozenset()
    heard: int = 0
    damage: str = ""

    @property
    def length(self) -> int:
        """The number of records that the run has."""
        return self.first - 1 + len(self.records)

    def without_records(self) -> RunState:
        """Return the same state with all records in `entries`."""
        return replace(self, first=self.length + 1, records=())


@dataclass(frozen=True, slots=True)
class _Head:
    """The rest of `checkpoint.json`, without the summary and the records. As in `RunState`."""

    updated_at: float
    first: int
    fence: int
    released: bool
    taken: tuple[int, ...]
    heard: int


@dataclass(frozen=True, slots=True)
class StoredMailbox:
    """The messages to a run.

    Senders write `mailbox.json`, and drivers do not: `checkpoint.json` has the numbers of the messages
    that were taken, so that they are taken in the same write that records them. The next sender removes
    them from `mailbox.json`.

    Attributes:
        newest: the number of the newest message, which may be gone.
        messages: those that were not taken.
        received: the topics and keys of all messages except notices.
        taken: the numbers of those that were taken and are still in `mailbox.json`.
    """

    newest: int = 0
    messages: tuple[Message, ...] = ()
    received: frozenset[tuple[str, str]] = frozenset()
    taken: frozenset[int] = frozenset()

    def has_received(self, topic: str, key: str) -> bool:
        """Return whether a message with this topic and key is rejected."""
        return topic != NOTICE and (topic, key) in self.received

    def with_message(self, topic: str, key: str, body: bytes, *, now: float) -> StoredMailbox:
        """Return the mailbox to write with one more message, and without those that were taken."""
        message = Message(self.newest + 1, topic, key, now, body)
        received = self.received if topic == NOTICE else self.received | {(topic, key)}
        return StoredMailbox(message.number, (*self.messages, message), received)

    def without(self, taken: Container[int]) -> StoredMailbox:
        """Return the mailbox after these messages were taken."""
        left = tuple(message for message in self.messages if message.number not in taken)
        gone = {message.number for message in self.messages if message.number in taken}
        return replace(self, messages=left, taken=self.taken | gone)

    @property
    def numbers(self) -> list[int]:
        """The numbers of its messages, oldest first."""
        return [message.number for message in self.messages]

    def wake(self, summary: RunSummary, *, heard: int) -> RunSummary:
        """Return a summary that includes the effect of the messages after number `heard`."""
        for message in self.messages:
            if message.number > heard:
                summary = woken(message.topic, summary, now=message.sent_at)
        return summary


def encode_state(state: RunState, rows: Sequence[Row]) -> bytes:
    """Return the bytes of `checkpoint.json`, given the rows of its records."""
    content = {
        "effectflow": _VERSION,
        "run_id": state.run_id,
        **summary_fields(state.summary),
        "updated_at": state.updated_at,
        "fence": state.fence,
        "released": state.is_released,
        "taken": sorted(state.taken),
        "heard": state.heard,
        "first": state.first,
        "entries": rows,
    }
    content["sha256"] = _digest_of(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_state(data: bytes, run_id: str) -> RunState:
    """Return the state of a run.

    Raise Damaged, UnsupportedVersion if a newer effectflow wrote it, or RunConflict if it is intact
    but belongs to another run.
    """
    try:
        content = _content_of(data, run_id)
        if content.pop("sha256") != _digest_of(content):
            raise Damaged("its digest is wrong")
        _check_run_id(content, run_id)
        head = schema_of(_Head).read(content)
        return RunState(
            run_id,
            schema_of(RunSummary).read(content),
            head.updated_at,
            head.first,
            tuple(_records(content["entries"], head.first)),
            head.fence,
            head.released,
            frozenset(head.taken),
            head.heard,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_lease(lease: Lease) -> bytes:
    """Return the bytes of `lease.json`."""
    content = {
        "effectflow": _VERSION,
        "run_id": lease.run_id,
        "owner": lease.owner,
        "fence": lease.fence,
        "expires_at": lease.expires_at,
        "expires_at_uptime": lease.expires_at_uptime,
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_lease(data: bytes, run_id: str) -> Lease:
    """Return a lease. Raise as `decode_state` does."""
    try:
        match content := _content_of(data, run_id):
            # Not by the schema of the class, because a lease may end after the year 9999.
            case {
                "owner": str(owner),
                "fence": int(fence),
                "expires_at": float(expires_at),
                "expires_at_uptime": float() | None as uptime,
            }:
                _check_run_id(content, run_id)
                return Lease(run_id, owner, fence, expires_at, uptime)
            case _:
                raise Damaged("it does not describe a lease")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_mailbox(mailbox: StoredMailbox, run_id: str) -> bytes:
    """Return the bytes of `mailbox.json`."""
    rows = [
        {
            "number": message.number,
            "topic": message.topic,
            "key": message.key,
            "sent_at": message.sent_at,
            "base64": base64.b64encode(message.body).decode(),
        }
        for message in mailbox.messages
    ]
    content: dict[str, Any] = {
        "effectflow": _VERSION,
        "run_id": run_id,
        "newest": mailbox.newest,
        "received": sorted(mailbox.received),
        "messages": rows,
    }
    content["sha256"] = _digest_of(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_mailbox(data: bytes, run_id: str) -> StoredMailbox:
    """Return all messages in the bytes of `mailbox.json`, even those that were taken.

    Raise as `decode_state` does.
    """
    try:
        content = _content_of(data, run_id)
        if content.pop("sha256") != _digest_of(content):
            raise Damaged("its digest is wrong")
        _check_run_id(content, run_id)
        messages = tuple(
            Message(
                row["number"],
                row["topic"],
                row["key"],
                row["sent_at"],
                base64.b64decode(row["base64"], validate=True),
            )
            for row in content["messages"]
        )
        received = frozenset((topic, key) for topic, key in content["received"])
        return StoredMailbox(content["newest"], messages, received)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_records(records: Iterable[Record]) -> bytes:
    """Return the bytes of a file in `entries`."""
    return orjson.dumps([row_of(one) for one in records], option=orjson.OPT_INDENT_2)


def decode_records(data: bytes, first: int) -> list[Record]:
    """Return the records of a file in `entries`, which starts at a sequence number. Raise Damaged."""
    try:
        return _records(orjson.loads(data), first)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def readable_records(data: bytes, first: int = 1) -> list[Record]:
    """Return the records before the damage in a file of `entries`, or in `checkpoint.json`.

    `first` is the sequence number of the first one, unless the file says otherwise.
    """
    text = data.decode(errors="replace")
    if head := _HEAD.search(text):
        first = int(head[1])
    position = head.end() if head else 1
    records: list[Record] = []
    read = json.JSONDecoder().raw_decode
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        while True:
            while text[position : position + 1] in {",", " ", "\n"}:
                position += 1
            row, position = read(text, position)
            records.append(Record(first + len(records), _time(row["at"]), _body(row)))
    return records


_HEAD = re.compile(r'\n  "first": (\d{1,18}),\n  "entries": \[')


def row_of(record: Record) -> Row:
    """Return a record as JSON, with its entry in readable form if that gives the same bytes again."""
    payload, separator, seal = record.body.rpartition(b"\n")
    try:
        entry = orjson.loads(payload)
        # Nested as in `checkpoint.json`, because orjson limits the depth that it writes.
        if separator and isinstance(entry, dict) and orjson.dumps([[[entry]]])[3:-3] == payload:
            return {"at": record.written_at, "entry": entry, "seal": seal.decode("ascii")}
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, UnicodeDecodeError):
        pass
    return {"at": record.written_at, "base64": base64.b64encode(record.body).decode()}


def _records(rows: list[Row], first: int) -> list[Record]:
    return [
        Record(sequence, _time(row["at"]), _body(row)) for sequence, row in enumerate(rows, first)
    ]


def _body(row: Row) -> bytes:
    if "entry" in row:
        return orjson.dumps(row["entry"]) + b"\n" + row["seal"].encode()
    return base64.b64decode(row["base64"], validate=True)


def _content_of(data: bytes, run_id: str) -> dict[str, Any]:
    """Return the content of a file. Raise UnsupportedVersion if it has another version."""
    content: dict[str, Any] = orjson.loads(data)
    version = content["effectflow"]
    # First, because another version may compute its digest differently.
    if version != _VERSION:
        raise UnsupportedVersion(f"run {run_id!r}", version, _VERSION)
    return content


def _time(seconds: Any) -> float:
    """Return seconds since the epoch. Raise TypeError or ValueError if `datetime` has no such time."""
    if type(seconds) not in (int, float):
        raise TypeError(f"{seconds!r} is not a time")
    try:
        datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{seconds!r} is not a time") from error
    return float(seconds)


def _check_run_id(content: dict[str, Any], run_id: str) -> None:
    """Raise RunConflict if the content of a file belongs to another run."""
    # Two runs may share a file, because some file systems ignore the case of letters.
    other = content["run_id"]
    if other != run_id:
        raise RunConflict(
            run_id,
            f"its folder has the files of run {other!r}, which were not changed. Either the folder was "
            "renamed, or the file system ignores the case of letters, and run ids must differ in more "
            "than that",
        )


def _digest_of(content: dict[str, Any]) -> str:
    """Return the digest of the content of a file, without its digest."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
