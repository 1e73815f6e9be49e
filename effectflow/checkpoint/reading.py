"""Read runs from a store: their entries, their checkpoints, and the nearest name of one not found."""

from __future__ import annotations

from difflib import get_close_matches

from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.entry_format import decode_entry
from effectflow.checkpoint.errors import CorruptCheckpoint, RunNotFound
from effectflow.checkpoint.journal import Checkpoint, fold
from effectflow.checkpoint.store import CheckpointStore, RunQuery

__all__ = ["read_checkpoint", "read_entries", "run_not_found"]


async def read_entries(store: CheckpointStore, run_id: str, *, after: int = 0) -> list[Entry]:
    """The journal of a run after so many entries, oldest first; empty if there is no such run.

    Raises CorruptCheckpoint for an entry that cannot be read or is missing.
    """
    records = await store.read(run_id, after=after)
    for expected, record in enumerate(records, start=after + 1):
        if record.sequence != expected:
            raise CorruptCheckpoint(
                run_id, "an entry is missing before it", sequence=record.sequence
            )
    return [decode_entry(record, run_id) for record in records]


async def read_checkpoint(store: CheckpointStore, run_id: str) -> Checkpoint:
    """Where a run stands.

    Raises RunNotFound, or CorruptCheckpoint if its journal cannot be read.
    """
    entries = await read_entries(store, run_id)
    if not entries:
        raise await run_not_found(store, run_id)
    return fold(entries, run_id)


async def run_not_found(store: CheckpointStore, run_id: str) -> RunNotFound:
    """The error for an unknown run id, with the ids that look like it."""
    known = [info.run_id for info in await store.find(RunQuery(limit=1000))]
    return RunNotFound(run_id, get_close_matches(run_id, known, n=3, cutoff=0.4))
