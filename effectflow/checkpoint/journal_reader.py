"""Read the journals of runs from a store, verify them, and move them to stores of any kind."""

from __future__ import annotations

import base64
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson

from effectflow.checkpoint.checkpoint import Checkpoint, fold
from effectflow.checkpoint.entries import Completed, Entry, Started
from effectflow.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    RunConflict,
    RunNotFound,
    UnsupportedVersion,
)
from effectflow.checkpoint.integrity import (
    SHORT,
    UNSIGNED,
    Seal,
    digest_in,
    first_digest,
    open_off_loop,
)
from effectflow.checkpoint.lease import Lease, claim_or_release, end_claim
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.shared_parts import Extent, restored
from effectflow.checkpoint.store import CheckpointStore, Record, Remains, find_run
from effectflow.checkpoint.values import Tree
from effectflow.effects.event_loop import shielded

_LEASE_SECONDS = 60

T = TypeVar("T")

_MANY = 2_000
"""A pass over fewer entries takes about as long as the other tasks may wait, or less."""

_BREATH = 0.02
"""The seconds after which the reader of a long journal lets other tasks run."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The entries of a run, oldest first, and the digest of the newest."""

    entries: tuple[Entry, ...]
    digest: bytes

    @property
    def started(self) -> Started:
        """The first entry of a run that exists."""
        first = self.entries[0]
        assert isinstance(first, Started)
        return first


async def read_journal(
    store: CheckpointStore, run_id: str, seal: Seal, first: Record | None = None
) -> Journal:
    """Return the journal of a run; empty if it does not exist.

    `first` is its only record, if that is known. Raises CorruptCheckpoint for an entry that differs from
    what was written there.
    """
    records = await store.read(run_id) if first is None else [first]
    journal, problem = await open_records(records, run_id, seal)
    if problem is not None:
        raise problem
    return journal


async def open_records(
    records: list[Record], run_id: str, seal: Seal, known: Journal | None = None
) -> tuple[Journal, CheckpointError | None]:
    """Return the intact part of a journal, and the problem of the entry after it.

    This empties `records`, so that a long journal is not in memory twice. Other tasks run in between.

    Parameters:
        known: the entries before these records, which were opened before.
    """
    entries, digest = list[Entry](), first_digest(run_id)
    if known is not None:
        entries, digest = list(known.entries), known.digest
    outputs: dict[int, Tree] = {
        number: entry.output
        for number, entry in enumerate(entries, 1)
        if isinstance(entry, Completed)
    }
    extents: dict[int, Extent] = {}
    problem: CheckpointError | None = None
    before = entries[-1].at if entries else 0.0
    records.reverse()
    breathed_at = time.monotonic()
    while records:
        if time.monotonic() - breathed_at > _BREATH:
            await anyio.lowlevel.checkpoint()
            breathed_at = time.monotonic()
        record = records.pop()
        try:
            if record.sequence != len(entries) + 1:
                reason = f"its entry {len(entries) + 1} is missing before entry {record.sequence}"
                raise CorruptCheckpoint(run_id, reason, intact=len(entries))
            if len(record.body) <= SHORT:
                entry, digest = seal.open(record, run_id, digest, before=before)
            else:
                entry, digest = await open_off_loop(seal, record, run_id, digest, before=before)
            before = entry.at
            if isinstance(entry, Completed):
                if entry.shared is not None:
                    entry = _restored(entry, outputs, extents, run_id, record.sequence)
                outputs[record.sequence] = entry.output
        except CheckpointError as error:
            problem = error
            break
        entries.append(entry)
    return Journal(tuple(entries), digest), problem


async def pass_over(entries: Sequence[Entry], work: Callable[[], T]) -> T:
    """Return the result of a pure pass over entries: in a thread if they are many, so that others run.

    The thread shares the processor with the event loop, which it would block for a second after 100,000
    steps.
    """
    if len(entries) < _MANY:
        return work()
    return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))


def _restored(
    entry: Completed,
    outputs: Mapping[int, Tree],
    extents: dict[int, Extent],
    run_id: str,
    sequence: int,
) -> Completed:
    try:
        return restored(entry, outputs, extents)
    except (LookupError, TypeError, ValueError) as error:
        reason = f"a part of its output refers to an entry that does not have it ({error!r})"
        raise CorruptCheckpoint(run_id, reason, sequence=sequence) from error


async def read_end(
    store: CheckpointStore, run_id: str, seal: Seal, *, length: int, count: int
) -> tuple[Entry, ...]:
    """Return the last `count` entries of a run of this length, or none of them if they are damaged.

    Each entry is checked against the one before it, except the first one. So the entries belong together,
    but only their contents tell to which run.
    """
    after = max(length - count, 0)
    records = await store.read(run_id, after=max(after - 1, 0))
    entries: list[Entry] = []
    digest = digest_in(records[0]) if after and records else first_digest(run_id)
    try:
        for record in records[1:] if after else records:
            entry, digest = await open_off_loop(seal, record, run_id, digest)
            entries.append(entry)
    except CheckpointError:
        return ()
    return tuple(entries)


async def read_entries(store: CheckpointStore, run_id: str, seal: Seal = UNSIGNED) -> list[Entry]:
    """Return the entries of a run, oldest first; empty if the run does not exist.

    Raises CorruptCheckpoint for an entry that differs from what was written there.
    """
    return list((await read_journal(store, run_id, seal)).entries)


async def read_checkpoint(
    store: CheckpointStore, run_id: str, seal: Seal = UNSIGNED, *, at: int | None = None
) -> Checkpoint:
    """Return the checkpoint of a run, or the one after its first `at` entries.

    Raises RunNotFound, CorruptCheckpoint if these entries cannot be read, or ValueError if the run has
    fewer entries than `at`.
    """
    return fold(await read_existing(store, run_id, seal, at=at), run_id)


async def read_existing(
    store: CheckpointStore, run_id: str, seal: Seal, *, at: int | None = None
) -> tuple[Entry, ...]:
    """Return the entries of a run that exists, or its first `at`. Raises as `read_checkpoint` does."""
    records = await store.read(run_id)
    if not records:
        raise await run_not_found(store, run_id)
    if at is not None:
        if not 1 <= at <= len(records):
            raise ValueError(f"run {run_id!r} has the entries 1 to {len(records)}, and no {at}")
        del records[at:]
    journal, problem = await open_records(records, run_id, seal)
    if problem is not None:
        raise problem
    return journal.entries


async def read_consistently(store: CheckpointStore, run_id: str) -> tuple[RunInfo, Remains]:
    """Return the info and the records of a run at the same moment, even while it is being driven."""
    info = await find_run(store, run_id)
    if info is None:
        raise await run_not_found(store, run_id)
    remains = await store.salvage(run_id)
    # A journal grows only at its end, so these are its entries at the moment of `info`.
    return info, replace(remains, records=remains.records[: info.length])


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of checking a run.

    Attributes:
        run_id: the run.
        length: the number of entries in the store.
        good: the number of entries, from the first one, that are intact.
        problem: the problem of the next entry, or of the newest copy of the run if an older one was
            read; None without problems.
    """

    run_id: str
    length: int
    good: int
    problem: CheckpointError | None


async def verify_run(store: CheckpointStore, run_id: str, seal: Seal = UNSIGNED) -> Verification:
    """Check every entry of a run, without running anything. Raises RunNotFound."""
    try:
        info, remains = await read_consistently(store, run_id)
    except (CorruptCheckpoint, RunConflict, UnsupportedVersion) as error:
        return Verification(run_id, 0, 0, error)
    length = len(remains.records)
    journal, problem = await open_records(remains.records, run_id, seal)
    if problem is None:
        try:
            check_against(info, fold(journal.entries, run_id))
        except CheckpointError as error:
            problem = error
    if problem is None and remains.unreadable:
        places = ", ".join(remains.unreadable)
        reason = f"{places} cannot be read, so an older copy was read"
        what = f"the newest copy of run {run_id!r}"
        problem = CorruptCheckpoint(run_id, reason, intact=length, what=what)
    return Verification(run_id, length, len(journal.entries), problem)


def check_against(info: RunInfo, checkpoint: Checkpoint, names: Collection[str] = ()) -> None:
    """Raise CorruptCheckpoint if a journal does not end as the store's summary of the run says.

    Digests cannot show that entries are missing at the end. `names` are other names of its workflow.
    """
    status, found = info.summary.status, checkpoint.status
    if info.summary.workflow not in (checkpoint.workflow, *names):
        raise CorruptCheckpoint(
            checkpoint.run_id,
            f"the store calls it a run of {info.summary.workflow!r}, its journal is of "
            f"{checkpoint.workflow!r}",
        )
    if status is RunStatus.PENDING and checkpoint.metadata.entries == 1:
        return
    if status is not found and status not in (RunStatus.RUNNING, RunStatus.BLOCKED):
        raise CorruptCheckpoint(
            checkpoint.run_id,
            f"the store calls it {status}, and its journal ends as that of a run which is {found}: "
            f"what came after entry {checkpoint.metadata.entries} is missing",
            intact=checkpoint.metadata.entries,
        )


async def all_run_ids(store: CheckpointStore) -> list[str]:
    """Return the ids of all runs of a store, newest first, then those of damaged runs."""
    found = [info.run_id for info in await store.find(RunQuery(limit=None))]
    return found + await store.damaged_runs()


async def run_not_found(store: CheckpointStore, run_id: str) -> RunNotFound:
    """Return the error for an unknown run id, with similar ids."""
    # Imported late: it takes 2 ms, and most programs never need it.
    from difflib import get_close_matches

    known = [info.run_id for info in await store.find(RunQuery(limit=1000))]
    return RunNotFound(run_id, get_close_matches(run_id, known, n=3, cutoff=0.4))


# Runs outside stores. Their entries are copied unread and unchanged.


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run outside a store: its summary, its entries as they were saved, and when it got the newest."""

    run_id: str
    summary: RunSummary
    bodies: tuple[bytes, ...]
    # A store that imports the run gives it another time.
    updated_at: float = field(default=0.0, compare=False)


async def export_run(store: CheckpointStore, run_id: str) -> ExportedRun:
    """Return a copy of a run in a store.

    Raises RunNotFound, or CorruptCheckpoint if the store has lost some of its entries.
    """
    info, remains = await read_consistently(store, run_id)
    records = remains.records
    if [record.sequence for record in records] != list(range(1, info.length + 1)):
        raise CorruptCheckpoint(
            run_id, f"of its {info.length} entries the store has {len(records)}: see `verify`"
        )
    bodies = tuple(record.body for record in records)
    return ExportedRun(run_id, info.summary, bodies, info.updated_at)


@asynccontextmanager
async def claimed(store: CheckpointStore, run_id: str) -> AsyncGenerator[Lease]:
    """Hold the lease of a run. If it cannot be released, its owner is dead."""
    owner, taken = await claim_or_release(store, run_id, seconds=_LEASE_SECONDS)
    is_released = False
    try:
        yield taken.lease
    finally:
        try:
            await shielded(store.release(taken.lease))
            is_released = True
        finally:
            end_claim(owner, is_released=is_released)


async def import_run(store: CheckpointStore, run: ExportedRun) -> bool:
    """Add a run to a store, completely or not at all. Return False if the store has the same run already.

    The store assigns new times of writing, but the entries keep the times in them. No worker takes the
    run before someone resumes it.

    Raise RunConflict if the store has another run with this id.
    """
    summary = replace(run.summary, due_at=None)
    if await store.create(run.run_id, run.bodies, summary=summary) is not None:
        return True
    there = [record.body for record in await store.read(run.run_id)]
    if there != list(run.bodies):
        raise RunConflict(run.run_id, "its entries differ from the imported ones")
    return False


_EXPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class _ExportHeader:
    """The first line of an exported run, with its summary. `entries` lines follow."""

    effectflow_export: int
    run_id: str
    entries: int
    updated_at: float = 0.0


def write_exported(run: ExportedRun) -> Iterator[bytes]:
    """Yield a run as lines of JSON: one for the run, and one for each entry."""
    header = _ExportHeader(_EXPORT_VERSION, run.run_id, len(run.bodies), run.updated_at)
    first = schema_of(_ExportHeader).write(header) | schema_of(RunSummary).write(run.summary)
    yield orjson.dumps(first) + b"\n"
    for body in run.bodies:
        yield orjson.dumps(write_bytes(body)) + b"\n"


def write_bytes(body: bytes) -> dict[str, str]:
    """Return bytes as JSON: as text if they are text."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def read_exported(lines: Iterable[bytes]) -> Iterator[ExportedRun]:
    """Yield the runs in lines of `write_exported`. Raise CorruptCheckpoint for other lines."""
    return (found.load() for found in scan_exported(lines))


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """A run in lines of `write_exported`, whose entries are not read yet.

    Attributes:
        info: one line about the run.
    """

    info: RunInfo
    _rows: Iterator[bytes]

    def load(self) -> ExportedRun:
        """Return the run. Call this before the next run is scanned."""
        info = self.info
        with _as_corrupt(info.run_id):
            bodies = tuple(
                row["text"].encode()
                if "text" in row
                else base64.b64decode(row["base64"], validate=True)
                for row in map(orjson.loads, self._rows)
            )
        _check_is_whole(info, len(bodies))
        return ExportedRun(info.run_id, info.summary, bodies, info.updated_at)


def scan_exported(lines: Iterable[bytes]) -> Iterator[ScannedRun]:
    """Yield the runs in lines of `write_exported`, without reading the entries of those not loaded.

    Raise CorruptCheckpoint for other lines.
    """
    remaining = iter(lines)
    for line in remaining:
        info = _info_in(line)
        left = [info.length]

        def rows(left: list[int] = left) -> Iterator[bytes]:
            for row in islice(remaining, left[0]):
                left[0] -= 1
                yield row

        yield ScannedRun(info, rows())
        for _ in rows():
            pass
        _check_is_whole(info, info.length - left[0])


def _info_in(line: bytes) -> RunInfo:
    run_id = ""
    with _as_corrupt(run_id):
        tree = orjson.loads(line)
        run_id, version = str(tree["run_id"]), tree["effectflow_export"]
    with _as_corrupt(run_id):
        if version > _EXPORT_VERSION:
            raise UnsupportedVersion(f"the export of run {run_id!r}", version, _EXPORT_VERSION)
        header = schema_of(_ExportHeader).read(tree)
        if header.entries < 1:
            raise ValueError(f"{header.entries} entries")
        summary = schema_of(RunSummary).read(tree)
        if not -(2**31) <= summary.priority < 2**31:
            # Databases cannot keep it.
            raise ValueError(f"its priority {summary.priority} is no int of 32 bits")
    return RunInfo(header.run_id, summary, header.updated_at, header.entries, None)


def _check_is_whole(info: RunInfo, found: int) -> None:
    if found < info.length:
        what = f"the export of run {info.run_id!r}"
        raise CorruptCheckpoint(info.run_id, "it is cut off", what=what)


@contextmanager
def _as_corrupt(run_id: str) -> Generator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"the export of run {run_id!r}" if run_id else "the file"
        reason = f"it is not an export of effectflow, or is cut off: {error!r}"
        raise CorruptCheckpoint(run_id, reason, what=what) from error
