"""What the stores share: how they open and close, reject a writer, and select runs."""

from __future__ import annotations

import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Self, TypeVar

import anyio

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunBusy,
    RunEnded,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.effects.event_loop import (
    CallSoon,
    call_soon_from_threads,
    is_closed,
    running_loop,
    shielded,
)

logger = logging.getLogger(__name__)

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a store was opened."""

    process: int
    loop: object
    call_soon: CallSoon


class ReentrantStore:
    """Opens at the first entry, closes at the last exit, and can then be opened again.

    A task that enters while another one opens or closes the store waits for that. A store belongs to
    the process and the event loop that opened it, and raises StoreUnavailable in any other. After that
    loop was closed, the store can be opened again, even if the loop never left it.
    """

    def __init__(self) -> None:
        self._users = 0
        self._home: _Home | None = None
        self._transition: anyio.Lock | None = None

    @abstractmethod
    async def _open(self) -> None:
        """Acquire the resources of the store. If this raises or is cancelled, `_close` follows.

        Resources of an earlier call may be left, if its event loop was closed.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Release what `_open` acquired, even if that is only a part. Never cancelled."""

    async def __aenter__(self) -> Self:
        transition = self._lock_of_transitions()
        if self._users:
            self._users += 1
            return self
        async with transition:
            if not self._users:
                try:
                    await self._open()
                except BaseException:
                    await shielded(self._close())
                    raise
            self._users += 1
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._users > 1:
            self._users -= 1
        elif self._home is not None and self._home.process != os.getpid():
            # A forked process that ends within the block leaves the store to the process that opened it.
            return
        else:
            await shielded(self._leave(self._lock_of_transitions()))

    async def _leave(self, transition: anyio.Lock) -> None:
        async with transition:
            self._users -= 1
            if not self._users:
                await self._close()

    def _check_open(self, *, in_any_thread: bool = False) -> None:
        """Raise StoreUnavailable unless the store is open in this event loop, or only in this process."""
        home = self._home
        is_home = (
            home is not None
            and home.process == os.getpid()
            and (in_any_thread or home.loop is running_loop())
        )
        if is_home and self._users:
            return
        if not in_any_thread:
            self._leave_closed_loop()
        if not self._users or self._home is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        raise self._is_elsewhere()

    def _lock_of_transitions(self) -> anyio.Lock:
        """Return the lock under which this event loop opens and closes the store.

        Raise StoreUnavailable if the store is open in another event loop.
        """
        here = _Home(os.getpid(), running_loop(), call_soon_from_threads())
        if self._transition is None or self._home != here:
            self._leave_closed_loop()
            if self._users or (self._transition is not None and self._transition.locked()):
                raise self._is_elsewhere()
            self._home, self._transition = here, anyio.Lock()
        return self._transition

    def _leave_closed_loop(self) -> None:
        """Treat the store as closed if the event loop that opened it was closed without leaving it."""
        home = self._home
        if home is not None and home.process == os.getpid() and is_closed(home.call_soon):
            self._users, self._home, self._transition = 0, None, None

    def _is_elsewhere(self) -> StoreUnavailable:
        opened_by = os.getpid() if self._home is None else self._home.process
        if opened_by != os.getpid():
            reason = (
                f"process {opened_by} opened it, and its files and connections cannot be shared "
                "with a forked process. Create a store in each process"
            )
        else:
            reason = (
                "it is open in another event loop. Create a store for each event loop, or close this "
                "one there first"
            )
        return StoreUnavailable(repr(self), reason)


def check_free(held: Lease | None, *, now: float, claimant: str = "") -> None:
    """Raise RunBusy if a live owner other than the claimant holds the lease at `now`."""
    if held is not None and held.owner not in ("", claimant) and held.is_held(now):
        raise RunBusy(held.run_id, held.owner, held.expires_in(now))


def check_deletable(lease: Lease | None, held: Lease | None, *, now: float) -> None:
    """Raise RunBusy or LeaseLost unless the run may be deleted, by the holder of `lease` if given."""
    if lease is None:
        check_free(held, now=now)
    else:
        check_current(lease, held)


def check_current(lease: Lease, held: Lease | None) -> None:
    """Raise LeaseLost unless this is the current lease of the run."""
    check_holder(lease, *((held.owner, held.fence) if held is not None else ("", 0)))


def check_holder(lease: Lease, owner: str, fence: int) -> None:
    """Raise LeaseLost unless this is the lease of the current owner ("" for none)."""
    # FileStore may issue a fencing token twice, if the file with the newest was lost. Then the owners
    # differ.
    if fence != lease.fence or owner != lease.owner:
        raise lease_lost(lease.run_id, owner)


def lease_lost(run_id: str, holder: str) -> LeaseLost:
    """Return the error for a lease that is not current, given who holds the run now, or ""."""
    if holder:
        return LeaseLost(run_id, f"{holder} holds it", owner=holder)
    return LeaseLost(
        run_id,
        "the store has no lease for it any more (it was released, the run was deleted, or the store has "
        "lost data)",
    )


def check_length(lease: Lease, length: int, *, after: int) -> None:
    """Raise LeaseLost unless the journal has the length that the holder of the lease expects."""
    if length != after:
        raise LeaseLost(lease.run_id, f"its journal has {length} entries, not {after}")


def check_kept(lease: Lease, length: int, *, after: int) -> None:
    """Raise LeaseLost unless a journal of this length can be truncated after record number `after`."""
    if after < 1:
        raise ValueError(
            f"a run keeps at least one record, so it cannot be truncated after {after}"
        )
    if length < after:
        raise LeaseLost(lease.run_id, f"its journal has only {length} entries, not {after}")


def first_summary(summary: RunSummary | None) -> RunSummary:
    """Return the summary that the first append of a run needs. Raise ValueError if it is missing."""
    if summary is None:
        raise ValueError("the first append of a run needs a summary")
    return summary


def check_messages(lease: Lease, taken: Iterable[int], present: Container[int]) -> None:
    """Raise LeaseLost unless all messages that an append takes are in the mailbox."""
    for number in taken:
        if number not in present:
            raise LeaseLost(lease.run_id, "a message that it takes was taken before")


def check_receives(run_id: str, summary: RunSummary) -> None:
    """Raise RunEnded if a run receives no messages any more."""
    if summary.status.has_ended:
        raise RunEnded(run_id, summary.status)


SUMMARY_FIELDS = tuple(field.name for field in fields(RunSummary))


def summary_fields(summary: RunSummary) -> dict[str, Any]:
    """Return the fields of a summary by name. `asdict` is slower, since it copies them."""
    return {name: getattr(summary, name) for name in SUMMARY_FIELDS}


def run_info(run_id: str, *columns: Any) -> RunInfo:
    """Return one line about a run, from its columns in a database.

    `columns` are the fields of the summary, the time and the number of the newest record, and the owner
    (empty or None without a lease), fencing token and both expiries of the lease.

    Raise CorruptCheckpoint for an unknown status.
    """
    fields = dict(zip(SUMMARY_FIELDS, columns, strict=False))
    updated_at, length, owner, *rest = columns[len(SUMMARY_FIELDS) :]
    fields["status"] = RunStatus.stored(fields["status"], run_id)
    fields["is_nested"] = bool(fields["is_nested"])
    lease = Lease(run_id, owner, *rest) if owner else None
    return RunInfo(run_id, RunSummary(**fields), updated_at, length, lease)


def readable(rows: Iterable[A], info: Callable[[A], RunInfo]) -> Iterator[RunInfo]:
    """Yield the `info` of each row. Skip damaged runs with a warning."""
    for row in rows:
        try:
            yield info(row)
        except CorruptCheckpoint as error:
            logger.warning("skipping run %r: %s", error.run_id, error)


def select(infos: Iterable[RunInfo], query: RunQuery, *, now: float) -> list[RunInfo]:
    """Return the runs that the query asks for at `now`, in its order."""
    found = [info for info in infos if query.matches(info, now)]
    found.sort(key=lambda info: (-info.summary.created_at, info.run_id))
    return page(found, query)


def page(found: Iterable[RunInfo], query: RunQuery) -> list[RunInfo]:
    """Return the part of sorted runs that the query asks for."""
    end = None if query.limit is None else query.offset + query.limit
    return list(islice(found, query.offset, end))


def sql_conditions(query: RunQuery, mark: str, run_id: str) -> tuple[str, list[object]]:
    """Return the condition of a query in SQL, with `mark` as placeholder, and its parameters.

    `run_id` is the column of the id, sorted by code points. `newest` is the newest entry of a run. The
    condition does not check whether a live owner holds the run: `matches` does.
    """
    conditions, parameters = ["1 = 1"], list[object]()
    if query.prefix:
        conditions.append(f"{run_id} >= {mark}")
        parameters.append(query.prefix)
        if (behind := _behind(query.prefix)) is not None:
            conditions.append(f"{run_id} < {mark}")
            parameters.append(behind)
    if query.workflow is not None:
        conditions.append(f"workflow = {mark}")
        parameters.append(query.workflow)
    if query.statuses:
        conditions.append(f"status IN ({', '.join([mark] * len(query.statuses))})")
        parameters += map(str, query.statuses)
    if query.resumable:
        conditions.append("status NOT IN ('completed', 'cancelled')")
    if query.updated_before is not None:
        conditions.append(f"newest.written_at < {mark}")
        parameters.append(query.updated_before)
    return " AND ".join(conditions), parameters


def _behind(prefix: str) -> str | None:
    """Return the smallest text that sorts after all texts with this prefix; None if none does."""
    rest = prefix.rstrip(chr(sys.maxunicode))
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    # Surrogates are not characters.
    return rest[:-1] + chr(0xE000 if following == 0xD800 else following)
