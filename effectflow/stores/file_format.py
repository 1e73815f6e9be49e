"""The files of a run as bytes, and back; bytes that are not what was written are `Damaged`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from effectflow.checkpoint.errors import RunConflict, UnsupportedVersion
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.shapes import (
    LIST,
    NUMBER,
    TEXT,
    WHOLE,
    YES_OR_NO,
    Shape,
    check_shape,
    check_time,
)
from effectflow.checkpoint.store import Record, RunStatus, RunSummary

__all__ = [
    "Damaged",
    "Row",
    "RunState",
    "decode_lease",
    "decode_records",
    "decode_state",
    "encode_lease",
    "encode_records",
    "encode_state",
    "row_of",
]

_VERSION = 1

Row: TypeAlias = dict[str, Any]
"""A record as it stands in a file."""

_STATE: Shape = {
    "run_id": TEXT,
    "workflow": TEXT,
    "kind": TEXT,
    "version": TEXT,
    "status": TEXT,
    "created_at": NUMBER,
    "updated_at": NUMBER,
    "first": WHOLE,
    "entries": LIST,
}
_LATER_PARTS: Shape = {"effectflow": WHOLE, "fence": WHOLE, "released": YES_OR_NO}
"""Those that early files have not."""


class Damaged(Exception):
    """A file is not what was written."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What `checkpoint.json` says.

    Attributes:
        run_id: the run.
        summary: what it is found by.
        updated_at: when its newest record was written, in seconds since the epoch.
        first: the sequence number of the oldest record here; those before are in `entries`.
        records: the newest records.
        fence: that of the lease under which this was saved.
        is_released: whether that lease was given free with it.
        damage: what is wrong with `checkpoint.json`, if this was not taken from there, and from where
            it was; empty if nothing is.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    first: int
    records: tuple[Record, ...]
    fence: int = 0
    is_released: bool = False
    damage: str = ""

    @property
    def length(self) -> int:
        """How many records the run has."""
        return self.first - 1 + len(self.records)

    def without_records(self) -> RunState:
        """The same, as if all records were in `entries`."""
        return replace(self, first=self.length + 1, records=())


def encode_state(state: RunState, rows: Sequence[Row]) -> bytes:
    """Those of `checkpoint.json`, given the rows of its records."""
    summary = state.summary
    content = {
        "effectflow": _VERSION,
        "run_id": state.run_id,
        "workflow": summary.workflow,
        "kind": summary.kind,
        "version": summary.version,
        "status": str(summary.status),
        "created_at": summary.created_at,
        "updated_at": state.updated_at,
        "fence": state.fence,
        "released": state.is_released,
        "first": state.first,
        "entries": rows,
    }
    content["sha256"] = _digest(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_state(data: bytes, run_id: str) -> RunState:
    """The state of a run.

    Raises Damaged, UnsupportedVersion if a newer effectflow wrote it, or RunConflict if it is whole, and
    that of another run.
    """
    try:
        content = _content(data, run_id)
        digest = content.pop("sha256")
        if digest != _digest(content):
            raise Damaged("its digest is wrong")
        check_shape(content, _STATE, _LATER_PARTS)
        _check_whose(content, run_id)
        check_time(content["created_at"])
        check_time(content["updated_at"])
        return RunState(
            run_id,
            RunSummary(
                content["workflow"],
                content["kind"],
                content["version"],
                RunStatus(content["status"]),
                content["created_at"],
            ),
            content["updated_at"],
            content["first"],
            tuple(_records(content["entries"], content["first"])),
            content.get("fence", 0),
            content.get("released", False),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_lease(lease: Lease) -> bytes:
    """Those of `lease.json`."""
    content = {
        "effectflow": _VERSION,
        "run_id": lease.run_id,
        "owner": lease.owner,
        "fence": lease.fence,
        "expires_at": lease.expires_at,
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def decode_lease(data: bytes, run_id: str) -> Lease:
    """A lease. Raises as `decode_state` does."""
    try:
        match content := _content(data, run_id):
            case {"owner": str(owner), "fence": int(fence), "expires_at": float(expires_at)}:
                _check_whose(content, run_id)
                return Lease(run_id, owner, fence, expires_at)
            case _:
                raise Damaged("it is no lease")
    except (TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def encode_records(records: Iterable[Record]) -> bytes:
    """Those of a file of older records."""
    return orjson.dumps([row_of(one) for one in records], option=orjson.OPT_INDENT_2)


def decode_records(data: bytes, first: int) -> list[Record]:
    """Records from sequence number `first` on. Raises Damaged."""
    try:
        return _records(orjson.loads(data), first)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(repr(error)) from error


def _content(data: bytes, run_id: str) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(data)
    version = content.get("effectflow", _VERSION)
    # Before anything else: a newer version may well have another digest.
    if version > _VERSION:
        raise UnsupportedVersion(f"run {run_id!r}", version, _VERSION)
    return content


def _check_whose(content: dict[str, Any], run_id: str) -> None:
    # One file may be reached by the names of two runs: not every file system tells capitals.
    other = content.get("run_id", run_id)
    if other != run_id:
        raise RunConflict(
            run_id,
            f"its folder has the files of run {other!r}, which were left as they are. Either the folder "
            "was renamed, or the file system takes both names for one, and the ids of runs have to "
            "differ in more than capital letters",
        )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def row_of(record: Record) -> Row:
    """A record as JSON: its entry as what it is, if that gives the same bytes again."""
    payload, separator, seal = record.body.rpartition(b"\n")
    try:
        entry = orjson.loads(payload)
        # As deep as it will stand in `checkpoint.json`: how deep orjson writes has a limit.
        if separator and isinstance(entry, dict) and orjson.dumps([[[entry]]])[3:-3] == payload:
            return {"at": record.written_at, "entry": entry, "seal": seal.decode("ascii")}
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, UnicodeDecodeError):
        pass
    return {"at": record.written_at, "base64": base64.b64encode(record.body).decode()}


def _records(rows: list[dict[str, Any]], first: int) -> list[Record]:
    records: list[Record] = []
    for sequence, row in enumerate(rows, first):
        check_time(row["at"])
        records.append(Record(sequence, float(row["at"]), _body(row)))
    return records


def _body(row: dict[str, Any]) -> bytes:
    if "entry" in row:
        return orjson.dumps(row["entry"]) + b"\n" + row["seal"].encode()
    return base64.b64decode(row["base64"], validate=True)
