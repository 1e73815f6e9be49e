"""The format of a run's files: write, read and check them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

import orjson

from effectflow.checkpoint.errors import RunConflict, UnsupportedVersion
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunSummary
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.store import Record

LAYOUT = 3
"""The version of the files of a run. Versions 1 and 2 were never released."""

_MOST = 2**53
"""Numbers of entries and fencing tokens are less."""

Row: TypeAlias = dict[str, Any]
"""A record as JSON."""


class Damaged(Exception):
    """A file does not contain what was written to it."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The content of `checkpoint.json`.

    `rows` are the newest records; `first` is the sequence number of the first of them, and earlier ones
    are in `entries`. `fence` is the fencing token of the lease under which this was saved, and
    `is_released` says whether the same save released the lease. `damage` says how `checkpoint.json` is
    damaged and what was read instead.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    first: int
    rows: tuple[Row, ...]
    fence: int
    is_released: bool = False
    damage: str = ""

    @property
    def length(self) -> int:
        """The number of records that the run has."""
        return self.first - 1 + len(self.rows)

    def records(self) -> list[Record]:
        """Return the newest records."""
        return _records(self.rows, self.first)

    def without_rows(self) -> RunState:
        """Return the same state with all records in `entries`."""
        return replace(self, first=self.length + 1, rows=())


@dataclass(frozen=True, slots=True)
class _Head:
    """The rest of `checkpoint.json`, without the summary and the records. As in `RunState`."""

    updated_at: float
    first: int
    fence: int
    released: bool


def encode_state(state: RunState) -> bytes:
    """Return the bytes of `checkpoint.json`."""
    content = {
        "effectflow": LAYOUT,
        "run_id": state.run_id,
        **schema_of(RunSummary).write(state.summary),
        "updated_at": state.updated_at,
        "fence": state.fence,
        "released": state.is_released,
        "first": state.first,
        "entries": state.rows,
    }
    content["sha256"] = _digest_of(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_state(data: bytes, run_id: str) -> RunState:
    """Return the state of a run.

    Raise Damaged, UnsupportedVersion if another effectflow wrote it, or RunConflict if it is intact but
    belongs to another run.
    """
    try:
        content = _content_of(data, run_id)
        if content.pop("sha256") != _digest_of(content):
            raise Damaged("its digest is wrong")
        _check_run_id(content, run_id)
        head, summary = schema_of(_Head).read(content), schema_of(RunSummary).read(content)
        if not (0 < head.first < _MOST and 0 <= head.fence < _MOST):
            raise Damaged("its numbers are wrong")
        rows = tuple(content["entries"])
        _records(rows, head.first)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error
    return RunState(run_id, summary, head.updated_at, head.first, rows, head.fence, head.released)


def encode_lease(lease: Lease) -> bytes:
    """Return the bytes of `lease.json`."""
    content = {
        "effectflow": LAYOUT,
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
            } if 0 <= fence < _MOST:
                _check_run_id(content, run_id)
                return Lease(run_id, owner, int(fence), expires_at, uptime)
            case _:
                raise Damaged("it does not describe a lease")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Return the bytes of a file in `entries`."""
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2)


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
            records += _records([row], first + len(records))
    return records


_HEAD = re.compile(r'\n  "first": (\d{1,15}),\n  "entries": \[')


def row_of(body: bytes, written_at: float) -> Row:
    """Return a record as JSON, with its entry in readable form if that gives the same bytes again."""
    payload, separator, seal = body.rpartition(b"\n")
    try:
        entry = orjson.loads(payload)
        # Nested as in `checkpoint.json`, because orjson limits the depth that it writes.
        if separator and isinstance(entry, dict) and orjson.dumps([[[entry]]])[3:-3] == payload:
            return {"at": written_at, "entry": entry, "seal": seal.decode("ascii")}
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, UnicodeDecodeError):
        pass
    return {"at": written_at, "base64": base64.b64encode(body).decode()}


def _records(rows: Sequence[Row], first: int) -> list[Record]:
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
    if type(version) is not int:
        raise Damaged(f"its version is {version!r}")
    # First, because another version may compute its digest differently.
    if version != LAYOUT:
        raise UnsupportedVersion(f"run {run_id!r}", version, LAYOUT)
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
