"""What a Redis server has of a run, as it is written there and read back."""

from __future__ import annotations

import json
from typing import NamedTuple

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunInfo, RunStatus, RunSummary

__all__ = ["Row", "info_of", "summary_json"]


class Row(NamedTuple):
    """The fields of a run that say what it is, as the server gives them: None if there is none."""

    id: bytes
    length: bytes
    summary: bytes
    updated: bytes
    owner: bytes | None
    fence: bytes | None
    expires: bytes | None


def summary_json(summary: RunSummary) -> str:
    """What a run is found by."""
    return json.dumps(
        {
            "workflow": summary.workflow,
            "kind": summary.kind,
            "version": summary.version,
            "status": str(summary.status),
            "created_at": summary.created_at,
        }
    )


def info_of(row: Row) -> RunInfo:
    """The line about a run. Raises CorruptCheckpoint if it cannot be read."""
    run_id = row.id.decode()
    held = None
    if row.owner:
        held = Lease(run_id, row.owner.decode(), int(row.fence or 0), float(row.expires or 0))
    summary = _summary(row.summary, run_id)
    return RunInfo(run_id, summary, float(row.updated), int(row.length), held)


def _summary(stored: bytes, run_id: str) -> RunSummary:
    try:
        summary = json.loads(stored)
        return RunSummary(
            summary["workflow"],
            summary["kind"],
            summary["version"],
            RunStatus.stored(summary["status"], run_id),
            summary["created_at"],
        )
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(run_id, f"its summary is damaged: {error}") from error
