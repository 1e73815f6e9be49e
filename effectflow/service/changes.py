"""The changes of a run, as others follow them until it has ended, or until they stop looking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from effectflow.checkpoint import Checkpoints, RunInfo, RunStatus
from effectflow.checkpoint.entries import Entry, Published
from effectflow.checkpoint.integrity import digest_in, first_digest, open_off_loop
from effectflow.checkpoint.journal_reader import run_not_found
from effectflow.checkpoint.notifications import Wakeup, woken_by
from effectflow.checkpoint.run_info import has_result
from effectflow.checkpoint.store import store_errors
from effectflow.effects.event_loop import PerEventLoop
from effectflow.runs.stored_run import Place, decode_as, run_info


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a run: it has a new status, or it published a value.

    Attributes:
        status: the status of the run after the change. A run is running when it publishes a value, so
            the status of a value is `RUNNING`, even for one who reads it after the end of the run. Only
            the last change says how the run has ended.
        key: the key of the published value; None for a new status.
        value: the published value.
        sequence: the number of the entry up to which the run has been followed, for
            `Handle.changes(after=)`.
    """

    status: RunStatus
    key: str | None = None
    value: object = None
    sequence: int = 0


async def changes_of(
    place: Place, run_id: str, *, after: int, owner: object
) -> AsyncGenerator[Change]:
    """Yield the changes of a run after entry `after`, until the run or the `owner` has ended."""
    store = place.checkpoints.store
    async with store, woken_by(store, run_id) as change:
        with _following(change, (owner, store)) as is_over:
            tail = _JournalTail(place.checkpoints, run_id)
            known: RunStatus | None = None
            info = await existing_run(place, run_id)
            if skipped := min(after, info.length):
                has_published = await tail.skip_to(skipped)
                if has_published:
                    known = RunStatus.RUNNING
                # No entry tells that a run is blocked.
                elif info.length == skipped and info.summary.status is not RunStatus.BLOCKED:
                    known = info.summary.status
            while not is_over():
                info = await existing_run(place, run_id)
                status = info.summary.status
                # Entries that were appended since then may have led to a later status, which comes later.
                for sequence, entry in await tail.read_new(until=info.length):
                    if isinstance(entry, Published):
                        known = RunStatus.RUNNING
                        value = published_value(place, run_id, entry)
                        yield Change(known, entry.key, value, sequence)
                if status is not known:
                    known = status
                    yield Change(status, sequence=tail.length)
                if has_result(status):
                    return
                await change.wait()


async def existing_run(place: Place, run_id: str) -> RunInfo:
    """Return one line about a run. Raise RunNotFound."""
    info = await run_info(place, run_id)
    if info is None:
        raise await run_not_found(place.checkpoints.store, run_id)
    return info


def published_value(place: Place, run_id: str, published: Published) -> object:
    """Return a value that a run has published."""
    types = place.blueprint.output_types
    return decode_as(published.value, types, run_id, f"published {published.key!r}")


_ends = PerEventLoop(dict[Callable[[], object], tuple[object, object]])
"""What ends those who follow a run, with what they follow it by: a client and a store."""


def end_following(by: object) -> None:
    """End all who follow a run by this client, or by any client of this store, in this event loop."""
    for end, owners in list(_ends.get().items()):
        if any(owner is by for owner in owners):
            end()


@contextmanager
def _following(change: Wakeup, owners: tuple[object, object]) -> Generator[Callable[[], bool]]:
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True
        change.set()

    ends = _ends.get()
    ends[end] = owners
    try:
        yield lambda: is_over
    finally:
        del ends[end]


class _JournalTail:
    """Reads the entries of a run as they are appended.

    Attributes:
        length: the number of the last entry that was read.
    """

    def __init__(self, checkpoints: Checkpoints, run_id: str) -> None:
        self._checkpoints = checkpoints
        self._run_id = run_id
        self._digest = first_digest(run_id)
        self.length = 0

    async def skip_to(self, last: int) -> bool:
        """Skip all entries up to `last`. Return whether that one has published a value."""
        store = self._checkpoints.store
        if last > 1:
            # Its digest shows whether the next one belongs there.
            with store_errors(store, self._run_id):
                records = await store.read(self._run_id, after=last - 2)
            self._digest, self.length = digest_in(records[0]), last - 1
        [(_, entry), *_] = await self.read_new(until=last)
        return isinstance(entry, Published)

    async def read_new(self, *, until: int | None = None) -> list[tuple[int, Entry]]:
        """Return the entries that were appended since the last call, with their numbers."""
        store, seal = self._checkpoints.store, self._checkpoints.seal
        with store_errors(store, self._run_id):
            records = await store.read(self._run_id, after=self.length)
        entries: list[tuple[int, Entry]] = []
        for record in records if until is None else records[: until - self.length]:
            opened = await open_off_loop(seal, record, self._run_id, self._digest)
            entry, self._digest = opened
            entries.append((record.sequence, entry))
            self.length = record.sequence
        return entries
