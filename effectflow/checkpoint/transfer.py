"""Move runs between stores of any kind. Entries are copied unread and unchanged."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from effectflow.checkpoint.errors import CorruptCheckpoint, RunConflict, UnsupportedVersion
from effectflow.checkpoint.journal_reader import read_consistently
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.store import CheckpointStore, RunStatus, RunSummary

__all__ = ["ExportedRun", "export_run", "import_run", "read_exported", "write_exported"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of an exported run. `entries` is the number of lines that follow."""

    effectflow_export: int
    run_id: str
    workflow: str
    kind: str
    version: str
    status: RunStatus
    created_at: float
    entries: int


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run outside of stores: its summary, and its entries as they were saved."""

    run_id: str
    summary: RunSummary
    bodies: tuple[bytes, ...]


async def export_run(store: CheckpointStore, run_id: str) -> ExportedRun:
    """Return a copy of a run in a store.

    Raises RunNotFound, or CorruptCheckpoint if the store has lost some of its entries.
    """
    info, records = await read_consistently(store, run_id)
    if [record.sequence for record in records] != list(range(1, info.length + 1)):
        raise CorruptCheckpoint(
            run_id, f"of its {info.length} entries the store has {len(records)}: see `verify`"
        )
    return ExportedRun(run_id, info.summary, tuple(record.body for record in records))


async def import_run(store: CheckpointStore, run: ExportedRun) -> bool:
    """Add a run to a store, completely or not at all. Return False if the store has the same run already.

    The store assigns new times of writing; the entries keep the times at which they happened.

    Raises RunConflict if the store has another run with this id, and RunBusy if that is being driven.
    """
    lease = await store.claim(run.run_id, owner=str(Owner.new()), seconds=60)
    try:
        there = [record.body for record in await store.read(run.run_id)]
        if there == list(run.bodies):
            return False
        if there:
            raise RunConflict(run.run_id, "its entries differ from the imported ones")
        await store.append(lease, run.bodies, after=0, summary=run.summary)
        return True
    finally:
        await store.release(lease)


def write_exported(run: ExportedRun) -> Iterator[bytes]:
    """Yield a run as lines of JSON: one for the run, and one for each entry."""
    summary = run.summary
    head = _Head(
        _VERSION,
        run.run_id,
        summary.workflow,
        summary.kind,
        summary.version,
        summary.status,
        summary.created_at,
        len(run.bodies),
    )
    yield _line(schema_of(_Head).write(head))
    for body in run.bodies:
        yield _line(_as_text(body))


def read_exported(lines: Iterable[bytes]) -> Iterator[ExportedRun]:
    """Yield the runs in lines of `write_exported`. Raise CorruptCheckpoint for other lines."""
    remaining = iter(lines)
    for line in remaining:
        run_id = "to be imported"
        try:
            tree = orjson.loads(line)
            run_id = _text(tree["run_id"])
            if tree["effectflow_export"] > _VERSION:
                found = tree["effectflow_export"]
                raise UnsupportedVersion(f"the export of run {run_id!r}", found, _VERSION)
            head = schema_of(_Head).read(tree)
            bodies = [_as_bytes(orjson.loads(row)) for row in islice(remaining, head.entries)]
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            reason = f"the file is not an export of effectflow, or is cut off: {error!r}"
            raise CorruptCheckpoint(run_id, reason) from error
        if len(bodies) < head.entries:
            raise CorruptCheckpoint(run_id, "the exported file is cut off")
        summary = RunSummary(head.workflow, head.kind, head.version, head.status, head.created_at)
        yield ExportedRun(run_id, summary, tuple(bodies))


def _line(content: object) -> bytes:
    return orjson.dumps(content) + b"\n"


def _as_text(body: bytes) -> dict[str, Any]:
    try:
        return {"text": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _as_bytes(row: dict[str, Any]) -> bytes:
    if "text" in row:
        return _text(row["text"]).encode()
    return base64.b64decode(row["base64"], validate=True)


def _text(part: Any) -> str:
    if not isinstance(part, str):
        raise TypeError(f"{part!r} is not text")
    return part
