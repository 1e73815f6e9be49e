"""A run as it was read from a store, and what its entries tell, each computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from effectflow.checkpoint.checkpoint import Checkpoint, Folding
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry, Published, SetAside
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.integrity import Seal, digest_in
from effectflow.checkpoint.journal_reader import Journal, open_records, read_consistently
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.run_info import RunInfo
from effectflow.checkpoint.store import CheckpointStore, Record, find_run, store_errors
from effectflow.checkpoint.values import Tree
from effectflow.observe.operations import Operation, OperationReader
from effectflow.observe.step_nodes import StepNode, step_tree
from effectflow.runs.reopening import RecordedLetter, dead_letters_of


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as it was after an entry.

    Attributes:
        checkpoint: its entries until then, folded.
        operations: its steps and waits until then.
        published: what it had published, by key.
    """

    checkpoint: Checkpoint
    operations: tuple[Operation, ...]
    published: dict[str, Tree]

    @staticmethod
    def after(entries: Sequence[Entry], run_id: str) -> RunState:
        """Return the state of a run after its first entries."""
        return states_after(entries, run_id, [len(entries)])[len(entries)]

    @property
    def open(self) -> tuple[Operation, ...]:
        """The steps in progress and the waits."""
        return tuple(one for one in self.operations if one.is_open)


def states_after(
    entries: Sequence[Entry], run_id: str, numbers: Iterable[int]
) -> dict[int, RunState]:
    """Return the states of a run after these numbers of entries, by the number, in one pass."""
    states: dict[int, RunState] = {}
    folding, reader = Folding(run_id, entries[:1]), OperationReader(entries[:1])
    published: dict[str, Tree] = {}
    read = 1
    for number in sorted(numbers):
        added = entries[read:number]
        folding.go_on(added)
        reader.go_on(added)
        published |= {one.key: one.value for one in added if isinstance(one, Published)}
        states[number] = RunState(folding.checkpoint(), tuple(reader.operations()), dict(published))
        read = number
    return states


# Without slots, for the cached properties.
@dataclass(frozen=True)
class RecordedRun:
    """A run as it was at one moment, also if its journal is damaged.

    Attributes:
        info: the run, as the store has it.
        journal: its entries; with a `problem`, those before the damage.
        problem: why the rest of the journal cannot be read; None if all of it can.
        size: about the bytes that its entries take, decompressed.
    """

    info: RunInfo
    journal: Journal
    problem: CheckpointError | None = None
    size: int = 0

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.info.run_id

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its intact entries, oldest first."""
        return self.journal.entries

    def states_after(self, numbers: Iterable[int] = ()) -> dict[int, RunState]:
        """Return its states after these numbers of entries and at its end, by the number.

        Its state at the end is kept. If it is not known yet, it comes from the same pass.
        """
        end = len(self.entries)
        wanted = {*numbers, end} - self._at_end.keys()
        found = states_after(self.entries, self.run_id, wanted) if wanted else {}
        if end in found:
            self._at_end[end] = found[end]
        return {**found, **self._at_end}

    @cached_property
    def _at_end(self) -> dict[int, RunState]:
        return {}

    @property
    def state(self) -> RunState:
        """The state after its intact entries."""
        return self.states_after()[len(self.entries)]

    @property
    def checkpoint(self) -> Checkpoint:
        """These entries, folded."""
        return self.state.checkpoint

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Its steps, waits and spawned runs, in the order in which they first began."""
        return self.state.operations

    @property
    def published(self) -> dict[str, Tree]:
        """What it has published, by key."""
        return self.state.published

    @cached_property
    def tree(self) -> tuple[StepNode, ...]:
        """These operations as a tree."""
        return step_tree(self.operations)

    @cached_property
    def dead_letters(self) -> list[RecordedLetter]:
        """The items of its jobs that were set aside, and neither retried nor dropped."""
        # Most runs have none, and the order of a long run takes time.
        if not any(isinstance(one, SetAside) for one in self.entries):
            return []
        return dead_letters_of(read_order(self.entries))


async def read_recorded(
    checkpoints: Checkpoints, run_id: str, known: RecordedRun | None = None
) -> RecordedRun:
    """Read a run. Raise RunNotFound, and CorruptCheckpoint if nothing of it is left.

    Parameters:
        known: the run as it was read before. What was read then is not read and checked again, unless it
            is another run by now.
    """
    async with checkpoints.store as store:
        if known is not None:
            grown = await _grown(store, checkpoints.seal, known)
            if grown is not None:
                return grown
        with store_errors(store, run_id):
            info, remains = await read_consistently(store, run_id)
        bodies = [*_lengths(remains.records)]
        journal, problem = await open_records(remains.records, run_id, checkpoints.seal)
    intact = len(journal.entries)
    if problem is None and intact < info.length:
        reason = f"of its {info.length} entries, the store has only the first {intact}"
        problem = CorruptCheckpoint(run_id, reason, intact=intact)
    if problem is not None and not intact:
        raise problem
    return RecordedRun(info, journal, problem, _size_of(bodies, journal.entries))


async def _grown(store: CheckpointStore, seal: Seal, known: RecordedRun) -> RecordedRun | None:
    """Return a run with what was added since it was read; None if only all of it can tell."""
    length = len(known.entries)
    with store_errors(store, known.run_id):
        info = await find_run(store, known.run_id)
        if info is None or info.length < length or known.problem is not None:
            return None
        if info == known.info:
            return known
        try:
            records = await store.read(known.run_id, after=length - 1)
        except CorruptCheckpoint:
            return None
    # Each digest covers all entries before it.
    newest, added = records[:1], records[1 : info.length - length + 1]
    if not newest or digest_in(newest[0]) != known.journal.digest:
        return None
    bodies = [*_lengths(added)]
    journal, problem = await open_records(added, known.run_id, seal, known.journal)
    if problem is not None or len(journal.entries) < info.length:
        return None
    size = known.size + _size_of(bodies, journal.entries[length:])
    return RecordedRun(info, journal, None, size)


_SHORT = 512
"""Entries with fewer bytes in the store than this take little memory, compressed or not."""


def _lengths(records: Iterable[Record]) -> Iterator[int | None]:
    """Yield the bytes of each entry; None for one that may be compressed."""
    for record in records:
        size = len(record.body)
        yield size if size < _SHORT or record.body[:1] == b"{" else None


def _size_of(lengths: Iterable[int | None], entries: Iterable[Entry]) -> int:
    # Damaged entries are in the store only.
    pairs = zip(lengths, entries, strict=False)
    return sum(_memory_of(entry) if length is None else length for length, entry in pairs)


def _memory_of(entry: Entry) -> int:
    """Return about how many bytes an entry takes in memory."""
    size, rest = 0, [getattr(entry, one.name) for one in fields(entry)]
    while rest:
        part: object = rest.pop()
        size += 16
        if isinstance(part, str | bytes):
            size += len(part)
        elif isinstance(part, dict):
            rest += part.keys()
            rest += part.values()
        elif isinstance(part, list | tuple):
            rest += part
    return size
