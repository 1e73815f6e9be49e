"""Repair a damaged run: truncate it after its last intact entry, and list what runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import uuid4

import orjson

from effectflow.checkpoint.checkpoint import Checkpoint, fold, summary_of
from effectflow.checkpoint.entries import (
    BEGINNINGS,
    BeforeStep,
    CancelRequested,
    Completed,
    Entry,
    Failed,
    Finished,
    Ranges,
    Resumed,
    Signalled,
    Started,
)
from effectflow.checkpoint.errors import CheckpointError, CorruptCheckpoint
from effectflow.checkpoint.integrity import UNSIGNED, Seal, digest_in
from effectflow.checkpoint.journal_reader import claimed, open_records, verify_run, write_bytes
from effectflow.checkpoint.messages import seal_message
from effectflow.checkpoint.order import Order, Spans, read_order
from effectflow.checkpoint.run_info import RunDetails, RunSummary, due_at_once, has_result
from effectflow.checkpoint.store import CANCEL, CheckpointStore, Record, ServiceStore

_BEGINNINGS = (*BEGINNINGS, Started, Resumed)


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair does to a damaged run.

    Attributes:
        run_id: the run.
        problem: the damage; None if there is none, and then nothing is changed.
        kept: the number of entries, from the first one, that the run keeps.
        lost: the number of later entries, as far as the store knows.
        removed: the later entries as they were in the store, if they can be told apart there.
        unreadable: the bytes that cannot be read as entries, by the name of their place.
        runs_again: the steps that a resume executes: those that are no longer known to be complete, and
            those that were interrupted or failed anyway.
        outcome_unknown: those of them that are `at_most_once` and began in an entry that is kept. A
            resume fails with OutcomeUnknown, until it is forced to execute them again.
        executed_twice: those of them that are `at_most_once` and began in an entry that is lost. The run
            no longer shows that, so a worker or a resume executes them a second time.
        waits_again: the waits whose messages are lost with their entries, such as "signal:approval". A
            resume waits for them again: send each again, with a new idempotency key, because the store
            remembers the old one.
        cancels_again: whether a lost entry requested the cancellation of the run. The repair requests it
            again.
        has_unknown_steps: whether lost entries are missing or damaged. Then the steps that only they
            record run again, too.
        is_due: whether a worker continues the run after the repair: it has not failed or ended, and no
            other run drives it.
    """

    run_id: str
    problem: CorruptCheckpoint | None
    kept: int
    lost: int = 0
    removed: tuple[Record, ...] = ()
    unreadable: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    runs_again: tuple[str, ...] = ()
    outcome_unknown: tuple[str, ...] = ()
    executed_twice: tuple[str, ...] = ()
    waits_again: tuple[str, ...] = ()
    cancels_again: bool = False
    has_unknown_steps: bool = False
    is_due: bool = False


async def repair_run(
    store: CheckpointStore,
    run_id: str,
    seal: Seal = UNSIGNED,
    *,
    aside: Callable[[Repair], object] | None = None,
    dry_run: bool = False,
) -> Repair:
    """Truncate a damaged run after its last intact entry, so that it can be resumed.

    Return what was done. Afterwards, `verify_run` finds no problem. Unless the run has failed or ended, a
    worker continues it at once, so use `dry_run` first to see what runs again.

    If this process dies or the call is cancelled, the run is either damaged as before or repaired.

    Parameters:
        store: the store of the run, open.
        seal: the key and the encryption of the run, as for `verify_run`.
        aside: called before anything is changed, to keep what is removed (see `write_removed`). If it
            raises, nothing is changed.
        dry_run: whether to change nothing, and only return what a repair would do.

    Raise RunNotFound, or RunBusy if a process drives the run. Raise CorruptCheckpoint if no entry is
    intact. Raise CorruptCheckpoint or UnsupportedVersion if the run is not damaged, but needs other keys
    or a newer effectflow.

    Example:
        >>> import anyio
        >>> from effectflow.checkpoint import Checkpoints, ExportedRun, export_run, import_run
        >>> from effectflow.effects import Effect, pure
        >>> from effectflow.stores import MemoryStore
        >>> from effectflow import workflow
        >>> @dataclass
        ... class Env:
        ...     checkpoints: Checkpoints
        >>> @workflow
        ... def greeting(name: str) -> Effect[Env, str, str]:
        ...     return pure(f"hello {name}")
        >>> async def main() -> None:
        ...     good, damaged = MemoryStore(), MemoryStore()
        ...     await greeting.start("Ann", run_id="r").run(Env(Checkpoints(good)))
        ...     run = await export_run(good, "r")
        ...     bodies = (*run.bodies[:-1], b"damaged")
        ...     await import_run(damaged, ExportedRun("r", run.summary, bodies))
        ...     repair = await repair_run(damaged, "r")
        ...     print(repair.kept, [record.body for record in repair.removed])
        >>> anyio.run(main)
        1 [b'damaged']
    """
    if dry_run:
        return (await _examined(store, run_id, seal))[0]
    async with claimed(store, run_id) as lease:
        repair, summary = await _examined(store, run_id, seal)
        if summary is not None:
            if aside is not None:
                aside(repair)
            await store.truncate(lease, after=repair.kept, summary=summary)
            if repair.cancels_again and isinstance(store, ServiceStore):
                # The store may remember the key of the lost request.
                key = uuid4().hex
                body = seal_message(seal, run_id, CANCEL, key)
                await store.send(run_id, CANCEL, key=key, body=body)
        return repair


def write_removed(repair: Repair) -> Iterator[bytes]:
    """Yield what a repair removes as lines of JSON: one for the run, and one for each entry or place."""
    head = {"run_id": repair.run_id, "kept": repair.kept, "problem": str(repair.problem)}
    yield orjson.dumps(head) + b"\n"
    for record in repair.removed:
        place = {"sequence": record.sequence, "written_at": record.written_at}
        yield orjson.dumps({**place, **write_bytes(record.body)}) + b"\n"
    for name, data in repair.unreadable.items():
        yield orjson.dumps({"place": name, **write_bytes(data)}) + b"\n"


async def _examined(
    store: CheckpointStore, run_id: str, seal: Seal
) -> tuple[Repair, RunSummary | None]:
    """Return what a repair of a run does, and the summary of the run after it, if the run is damaged."""
    found = await verify_run(store, run_id, seal)
    if found.problem is None:
        return Repair(run_id, None, found.good), None
    damage = _damage(found.problem)
    remains = await store.salvage(run_id)
    journal, problem = await open_records([*remains.records], run_id, seal)
    first_damage = damage if problem is None else _damage(problem)
    kept = len(journal.entries)
    if not kept:
        raise first_damage
    checkpoint = fold(journal.entries, run_id)
    removed = tuple(record for record in remains.records if record.sequence > kept)
    lost = max([found.length, *(record.sequence for record in removed)]) - kept
    read = _read_lost(remains.records, kept, run_id, seal)
    order = read_order(journal.entries)
    has_ended = checkpoint.status.has_ended
    again = () if has_ended else _run_again(order, journal.entries, read.entries)
    once_kept, once_lost = _at_most_once(journal.entries), _at_most_once(read.entries)
    is_incomplete = bool(remains.unreadable) or read.intact < lost
    summary = _summary(journal.started, checkpoint, order)
    repair = Repair(
        run_id,
        damage,
        kept,
        lost=max(lost, 0),
        removed=removed,
        unreadable=remains.unreadable,
        runs_again=again,
        outcome_unknown=tuple(step for step in again if step in once_kept),
        executed_twice=tuple(step for step in again if step in once_lost - once_kept),
        waits_again=() if has_ended else _waits(read.entries),
        cancels_again=not has_ended
        and any(isinstance(one, CancelRequested) for one in read.entries),
        has_unknown_steps=is_incomplete and not has_ended,
        is_due=summary.due_at is not None,
    )
    return repair, summary


def _summary(started: Started, checkpoint: Checkpoint, order: Order) -> RunSummary:
    """Return the summary of a run that stopped after its last kept entry."""
    is_due = not has_result(checkpoint.status)
    details = RunDetails(checkpoint.kind, checkpoint.definition.version, order.dead_letters)
    due_at = due_at_once(checkpoint.updated_at) if is_due else None
    return summary_of(started, checkpoint.status, due_at=due_at, details=details)


def _damage(problem: CheckpointError) -> CorruptCheckpoint:
    """Return a problem that is damage. Raise any other: a repair would remove intact entries."""
    if not isinstance(problem, CorruptCheckpoint) or not problem.is_damaged:
        raise problem
    return problem


@dataclass(frozen=True, slots=True)
class _Lost:
    """The lost entries that can be read, and the number of those that are as they were written."""

    entries: list[Entry]
    intact: int


def _read_lost(records: Sequence[Record], kept: int, run_id: str, seal: Seal) -> _Lost:
    """Read the lost entries, each after the digest with which the record before it ends."""
    entries: list[Entry] = []
    intact = 0
    for before, record in pairwise(records):
        if record.sequence <= kept:
            continue
        previous = digest_in(before)
        try:
            entries.append(seal.open(record, run_id, previous)[0])
            intact += 1
        except CheckpointError:
            with suppress(CheckpointError):
                entries.append(seal.open_unchecked(record, run_id, previous))
    return _Lost(entries, intact)


def _tried_again(kept: Sequence[Entry], lost: Sequence[Entry]) -> Ranges:
    """Return the entries that a resume leaves out because it tries again what failed."""
    ends = [one for one in (*kept[-1:], *lost) if isinstance(one, Finished)]
    if ends:
        return ends[-1].retry
    # The process died before the end, and what has failed since the last beginning is tried again.
    began = max(number for number, one in enumerate(kept, 1) if isinstance(one, _BEGINNINGS))
    return ((began + 1, len(kept)),)


def _run_again(order: Order, kept: Sequence[Entry], lost: Sequence[Entry]) -> tuple[str, ...]:
    """Return the steps that a resume executes, as far as the kept and the lost entries show."""
    retried = Spans(_tried_again(kept, lost))
    failed = [
        one.step
        for number, one in enumerate(kept, 1)
        if isinstance(one, Failed) and number in retried
    ]
    began = [entry.step for entry in lost if isinstance(entry, BeforeStep | Completed)]
    unknown = [path for path in began if path not in order.begun]
    return tuple(dict.fromkeys([*order.open, *failed, *unknown]))


def _waits(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(one.path for one in entries if isinstance(one, Signalled))


def _at_most_once(entries: Iterable[Entry]) -> set[str]:
    return {one.step for one in entries if isinstance(one, BeforeStep) and one.at_most_once}
