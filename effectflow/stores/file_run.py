"""One run as files, and how they are read back, also when some are damaged.

::

    checkpoint.json                     the newest entries, with what the run is found by
    history/checkpoint-{time}.json      what `checkpoint.json` was before, the newest few
    entries/{first sequence}.json       older entries, some hundred a file, never written again
    lease.json                          who holds the run

`checkpoint.json` has a bounded number of entries, so what a save costs does not depend on how long the
run is.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Record, RunStatus, RunSummary
from effectflow.stores.file_writing import TEMPORARY, sync_folder, write_whole

__all__ = ["RunFolder", "RunState"]

logger = logging.getLogger(__name__)

_VERSION = 1
_ENTRIES_IN_A_FILE = 100
_BYTES_IN_A_FILE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunState:
    """What `checkpoint.json` says.

    Attributes:
        run_id: the run.
        summary: what it is found by.
        updated_at: when its newest record was written, in seconds since the epoch.
        first: the sequence number of the oldest record here; those before are in `entries`.
        records: the newest records.
    """

    run_id: str
    summary: RunSummary
    updated_at: float
    first: int
    records: tuple[Record, ...]

    @property
    def length(self) -> int:
        """How many records the run has."""
        return self.first - 1 + len(self.records)


class RunFolder:
    """The files of one run. Whoever writes holds its lock, and its lease.

    `history` is how many copies of earlier checkpoints are kept.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id
        self.history = 10
        self._checkpoint = path / "checkpoint.json"
        self._is_damaged = False
        self._read: tuple[tuple[int, int, int], RunState] | None = None

    # The lease.

    def read_lease(self) -> Lease | None:
        """The lease as it was written last; its owner is empty if it was released."""
        try:
            data = orjson.loads((self.path / "lease.json").read_bytes())
            return Lease(self.run_id, data["owner"], data["fence"], data["expires_at"])
        except FileNotFoundError:
            return None
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                self.run_id, f"its lease.json cannot be read: {error!r}"
            ) from error

    def write_lease(self, lease: Lease) -> None:
        data = {
            "run_id": lease.run_id,
            "owner": lease.owner,
            "fence": lease.fence,
            "expires_at": lease.expires_at,
        }
        write_whole(self.path / "lease.json", orjson.dumps(data, option=orjson.OPT_INDENT_2))

    # The journal.

    def state(self) -> RunState | None:
        """Where the run stands; None if it is not there.

        A checkpoint that is damaged is replaced by the newest good one of the history, with a warning
        that says what was lost. Fails with CorruptCheckpoint if there is none.
        """
        try:
            status = self._checkpoint.stat()
        except FileNotFoundError:
            return self._fall_back("it is missing") if self._copies() else None
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._read is not None and self._read[0] == mark:
            return self._read[1]
        try:
            state = _decode(self._checkpoint.read_bytes(), self.run_id)
        except _Damaged as damage:
            return self._fall_back(str(damage))
        self._read = mark, state
        return state

    def records(self, after: int) -> list[Record]:
        """The records after a sequence number."""
        state = self.state()
        if state is None:
            return []
        older: list[Record] = []
        if after + 1 < state.first:
            paths = sorted((self.path / "entries").glob("*.json"))
            firsts = [int(path.stem) for path in paths]
            for path, first, following in zip(
                paths, firsts, [*firsts[1:], state.first], strict=True
            ):
                if first < state.first and following > after + 1:
                    older += self._read_older(path, first)
        return [record for record in (*older, *state.records) if record.sequence > after]

    def _read_older(self, path: Path, first: int) -> list[Record]:
        try:
            return _decode_records(orjson.loads(path.read_bytes()), first)
        except (OSError, orjson.JSONDecodeError, _Damaged) as error:
            reason = f"{path.name} cannot be read: {error}"
            raise CorruptCheckpoint(self.run_id, reason, sequence=first) from error

    def save(self, state: RunState, bodies: list[bytes], summary: RunSummary) -> None:
        """Append records, durably. Raises OSError, and then nothing was appended."""
        now = time.time()
        fresh = (
            Record(sequence, now, body) for sequence, body in enumerate(bodies, state.length + 1)
        )
        records = (*state.records, *fresh)
        updated_at = now if bodies else state.updated_at
        saved = replace(state, summary=summary, updated_at=updated_at, records=records)
        if _is_long(records):
            data = orjson.dumps([_record(one) for one in records], option=orjson.OPT_INDENT_2)
            write_whole(self.path / "entries" / f"{saved.first:09}.json", data)
            saved = replace(saved, first=saved.length + 1, records=())
        self._keep_copy()
        write_whole(self._checkpoint, _encode(saved))
        self._read = None
        self._prune()

    def create(self, summary: RunSummary) -> RunState:
        """The state of a run that has no records yet."""
        (self.path / "history").mkdir(parents=True, exist_ok=True)
        (self.path / "entries").mkdir(exist_ok=True)
        sync_folder(self.path)
        sync_folder(self.path.parent)
        return RunState(self.run_id, summary, summary.created_at, 1, ())

    def delete(self) -> None:
        """Remove the journal. The lease stays: no stale writer is to pass for a new owner."""
        # The copies first: a checkpoint that is missing would be taken from them.
        for folder in ("history", "entries"):
            for path in (self.path / folder).glob("*"):
                path.unlink()
        self._checkpoint.unlink(missing_ok=True)
        sync_folder(self.path)
        self._read = None

    def tidy(self) -> None:
        """Remove what an interrupted write has left. It was never part of the run."""
        for path in self.path.rglob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)

    def _copies(self) -> list[Path]:
        """The history, newest first."""
        return sorted((self.path / "history").glob("checkpoint-*.json"), reverse=True)

    def _keep_copy(self) -> None:
        if not self._checkpoint.exists():
            return
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        if self._is_damaged:
            self._checkpoint.rename(self.path / "history" / f"damaged-{stamp}.json")
            self._is_damaged = False
        elif self.history:
            copy = self.path / "history" / f"checkpoint-{stamp}.json"
            copy.unlink(missing_ok=True)
            copy.hardlink_to(self._checkpoint)

    def _prune(self) -> None:
        for path in self._copies()[self.history :]:
            path.unlink(missing_ok=True)

    def _fall_back(self, problem: str) -> RunState:
        """The newest good copy."""
        for path in self._copies():
            try:
                state = _decode(path.read_bytes(), self.run_id)
            except (OSError, _Damaged):
                continue
            logger.warning(
                "checkpoint.json of run %r is damaged (%s): the run is taken from %s, with %d entries; "
                "what was saved after that is lost",
                self.run_id,
                problem,
                path.name,
                state.length,
            )
            self._is_damaged = True
            return state
        raise CorruptCheckpoint(
            self.run_id, f"its checkpoint.json is damaged ({problem}), and there is no good copy"
        )


def _is_long(records: Sequence[Record]) -> bool:
    """Whether these are too many, or too large, to be written with each save."""
    return (
        len(records) >= _ENTRIES_IN_A_FILE
        or sum(len(record.body) for record in records) >= _BYTES_IN_A_FILE
    )


class _Damaged(Exception):
    """A file is not what was written."""


def _encode(state: RunState) -> bytes:
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
        "first": state.first,
        "entries": [_record(record) for record in state.records],
    }
    content["sha256"] = _digest(content)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _decode(data: bytes, run_id: str) -> RunState:
    try:
        content: dict[str, Any] = orjson.loads(data)
        digest = content.pop("sha256")
        if digest != _digest(content):
            raise _Damaged("its digest is wrong")
        if content["effectflow"] != _VERSION:
            raise _Damaged(f"its version is {content['effectflow']}, not {_VERSION}")
        if content["run_id"] != run_id:
            raise _Damaged(f"it is that of run {content['run_id']!r}")
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
            tuple(_decode_records(content["entries"], content["first"])),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _Damaged(repr(error)) from error


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _record(record: Record) -> dict[str, Any]:
    """A record as JSON: its entry as what it is, if that gives the same bytes again."""
    payload, separator, seal = record.body.rpartition(b"\n")
    try:
        entry = orjson.loads(payload)
        if separator and isinstance(entry, dict) and orjson.dumps(entry) == payload:
            return {"at": record.written_at, "entry": entry, "seal": seal.decode("ascii")}
    except (orjson.JSONDecodeError, UnicodeDecodeError):
        pass
    return {"at": record.written_at, "base64": base64.b64encode(record.body).decode()}


def _decode_records(rows: list[dict[str, Any]], first: int) -> list[Record]:
    try:
        return [Record(sequence, row["at"], _body(row)) for sequence, row in enumerate(rows, first)]
    except (KeyError, TypeError, ValueError) as error:
        raise _Damaged(repr(error)) from error


def _body(row: dict[str, Any]) -> bytes:
    if "entry" in row:
        return orjson.dumps(row["entry"]) + b"\n" + row["seal"].encode()
    return base64.b64decode(row["base64"], validate=True)
