"""What a Redis server has of a run, as it is written there and read back."""

from __future__ import annotations

import json
from typing import TypeAlias

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunInfo, RunStatus, RunSummary

__all__ = ["Row", "info_of", "summary_json"]

Row: TypeAlias = tuple[dict[bytes, bytes], int, dict[bytes, bytes]]
"""A run, the length of its journal, and its lease."""


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
    run, length, lease = row
    run_id = run[b"id"].decode()
    held = None
    if lease.get(b"owner"):
        expires_at = float(lease[b"expires"])
        held = Lease(run_id, lease[b"owner"].decode(), int(lease[b"fence"]), expires_at)
    return RunInfo(run_id, _summary(run[b"summary"], run_id), float(run[b"updated"]), length, held)


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
