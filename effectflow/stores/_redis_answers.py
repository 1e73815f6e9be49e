"""Read what the scripts of a RedisStore wrote about a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Message, Record, RunInfo, RunStatus, RunSummary
from effectflow.stores._servers import Held


def record_of(number: int, entry: bytes) -> Record | None:
    """Return the record of an entry; None if its time cannot be read."""
    at, _, body = entry.partition(b" ")
    try:
        return Record(number, float(at), body)
    except ValueError:
        return None


class Row(NamedTuple):
    """The fields of a run, besides its entries, as the server returns them; None if one is missing."""

    id: bytes
    length: bytes
    summary: bytes
    updated: bytes
    owner: bytes | None
    fence: bytes | None
    expires: bytes | None
    uptime: bytes | None
    due: bytes | None


def info_of(row: Row) -> RunInfo:
    """Return one line about a run. Raise CorruptCheckpoint if it cannot be read."""
    run_id = row.id.decode()
    try:
        fields = json.loads(row.summary)
        status = RunStatus.stored(fields.pop("status"), run_id)
        summary = RunSummary(**fields, status=status, due_at=number_of(row.due))
        lease = None
        if row.owner:
            owner, expires, uptime = (
                row.owner.decode(),
                float(row.expires or 0),
                number_of(row.uptime),
            )
            lease = Lease(run_id, owner, int(row.fence or 0), expires, uptime)
        return RunInfo(run_id, summary, float(row.updated), int(row.length), lease)
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(run_id, f"its summary is damaged: {error}") from error


def held_of(run_id: str, answer: Sequence[bytes]) -> Held:
    """Return the lease and the time in the answer of a script."""
    owner, fence, expires, uptime, now = answer
    lease = Lease(run_id, owner.decode(), int(fence), float(expires), number_of(uptime))
    return Held(lease, float(now))


def message_of(run_id: str, number: int, stored: bytes) -> Message:
    """Return a message as scripts write it: the id of its request, time, lengths, and the texts."""
    head, _, texts = stored[16:].partition(b"\n")
    try:
        sent_at, topic, key = head.split(b" ")
        middle, end = int(topic), int(topic) + int(key)
        names = texts[:middle].decode(), texts[middle:end].decode()
        return Message(number, *names, float(sent_at), texts[end:])
    except ValueError as error:
        raise CorruptCheckpoint(run_id, f"its message {number} is damaged: {error}") from error


def text_of(number: float | None) -> str:
    return "" if number is None else str(number)


def number_of(text: bytes | None) -> float | None:
    return float(text) if text else None
