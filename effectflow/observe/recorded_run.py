"""A run as it was read from a store, and what its entries tell, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from effectflow.checkpoint.checkpoint import Checkpoint, fold
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.journal_reader import Journal, open_records, read_consistently
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.store import RunInfo, store_errors
from effectflow.observe.operations import Operation, operations_of
from effectflow.runs.reopening import RecordedLetter, dead_letters_of


# Without slots, for the cached properties.
@dataclass(frozen=True)
class RecordedRun:
    """A run as it was at one moment, also if its journal is damaged.

    Attributes:
        info: the run, as the store has it.
        journal: its entries; with a `problem`, those before the damage.
        problem: why the rest of the journal cannot be read; None if all of it can.
    """

    info: RunInfo
    journal: Journal
    problem: CheckpointError | None = None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.info.run_id

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its intact entries, oldest first."""
        return self.journal.entries

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The state after its intact entries."""
        return fold(self.entries, self.run_id)

    @cached_property
    def operations(self) -> list[Operation]:
        """Its steps, waits and spawned runs, in the order in which they first began."""
        return operations_of(self.entries)

    @cached_property
    def dead_letters(self) -> list[RecordedLetter]:
        """The items of its jobs that were set aside, and neither retried nor dropped."""
        return dead_letters_of(read_order(self.entries))


async def read_recorded(checkpoints: Checkpoints, run_id: str) -> RecordedRun:
    """Read a run. Raise RunNotFound, and CorruptCheckpoint if nothing of it is left."""
    async with checkpoints.store as store:
        with store_errors(store, run_id):
            info, remains = await read_consistently(store, run_id)
        journal, problem = await open_records(remains.records, run_id, checkpoints.seal)
    intact = len(journal.entries)
    if problem is None and intact < info.length:
        reason = f"of its {info.length} entries, the store has only the first {intact}"
        problem = CorruptCheckpoint(run_id, reason, intact=intact)
    if problem is not None and not intact:
        raise problem
    return RecordedRun(info, journal, problem)
