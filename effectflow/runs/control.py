"""Change a run that no process drives: claim it, append entries, and release it in the same commit."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import anyio

from effectflow.checkpoint.checkpoint import Checkpoint, fold
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry, Interrupted, Paused, Resumed, Started
from effectflow.checkpoint.errors import ChangeRejected, RunBusy, RunEnded, SaveFailed
from effectflow.checkpoint.journal_reader import (
    Journal,
    check_against,
    read_journal,
    run_not_found,
)
from effectflow.checkpoint.journal_writer import JournalWriter
from effectflow.checkpoint.lease import claim_or_release, end_claim
from effectflow.checkpoint.lease_keeper import keep_lease
from effectflow.checkpoint.messages import seal_message
from effectflow.checkpoint.order import read_order
from effectflow.checkpoint.run_info import RunStatus, due_at_once
from effectflow.checkpoint.shared_parts import SharedParts
from effectflow.checkpoint.store import PAUSE, find_run, is_service, service_of, store_errors
from effectflow.effects.clock import Clock
from effectflow.effects.errors import Halt
from effectflow.runs.reopening import Reopening
from effectflow.runs.run_ids import check_run_id


def asker() -> str:
    """Return who asks by default: the user of this process and its host, such as "ann@host"."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run a user without a name.
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run while it is changed.

    Attributes:
        run_id: its id.
        journal: its journal as it is in the store.
        checkpoint: the fold of the journal.
        status: its status according to the store, which knows of a block.
        due_at: when it is due, in seconds since the epoch; None if it never is by itself.
        owner: the owner of the lease.
        now: the time, in seconds since the epoch.
    """

    run_id: str
    journal: Journal
    checkpoint: Checkpoint
    status: RunStatus
    due_at: float | None
    owner: str
    now: float

    @property
    def has_begun(self) -> bool:
        """Whether its body has begun anything."""
        before = (Started, Resumed, Interrupted, Paused)
        return any(not isinstance(entry, before) for entry in self.journal.entries)


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to a run.

    Attributes:
        entries: what is appended, at least one entry.
        status: the status of the run from then on.
        due_at: when a worker may take it, in seconds since the epoch; None if none may.
    """

    entries: Sequence[Entry]
    status: RunStatus
    due_at: float | None


def goes_on(held: HeldRun, resumed: Resumed, *entries: Entry, reason: str) -> Change:
    """Return the change after which the next worker continues the run. A paused run stays paused."""
    if held.status is RunStatus.PAUSED and held.checkpoint.paused is not None:
        last = replace(held.checkpoint.paused, at=held.now)
        return Change([resumed, *entries, last], RunStatus.PAUSED, None)
    return _interrupted(held, resumed, *entries, reason=reason)


def _interrupted(held: HeldRun, *entries: Entry, reason: str) -> Change:
    """Return the change after which the run is interrupted, and due at once."""
    state = held.checkpoint.state
    step = None if state is None else state.step
    last = Interrupted(step, in_progress=False, reason=reason, at=held.now)
    return Change([*entries, last], RunStatus.INTERRUPTED, due_at_once(held.now))


async def change_run(
    checkpoints: Checkpoints,
    run_id: str,
    change: Callable[[HeldRun], Awaitable[Change]],
    *,
    clock: Clock,
    reopens: bool = False,
) -> None:
    """Change a run while its lease is held, or leave it as it is if `change` raises.

    `reopens` says whether a complete run may be changed, too.

    Raise RunNotFound, RunBusy while a process drives the run, RunEnded if it is completed or cancelled,
    CorruptCheckpoint, SaveFailed, and what `change` raises.
    """
    check_run_id(run_id)
    # A change that cannot be saved was not made.
    checkpoints = replace(checkpoints, on_save_error="fail")
    store = checkpoints.store
    with store_errors(store, run_id):
        info = await find_run(store, run_id)
        if info is None:
            raise await run_not_found(store, run_id)
        _check_has_not_ended(run_id, info.summary.status, reopens=reopens)
        owner, taken = await claim_or_release(store, run_id, seconds=checkpoints.lease_length)
    writer: JournalWriter | None = None
    is_released = False
    try:
        with store_errors(store, run_id):
            journal = await read_journal(store, run_id, checkpoints.seal)
            messages = await store.mailbox(run_id) if is_service(store) else []
        checkpoint, summary = fold(journal.entries, run_id), taken.info.summary
        check_against(taken.info, checkpoint)
        _check_has_not_ended(run_id, summary.status, reopens=reopens)
        state = checkpoint.state
        writer = JournalWriter(
            run_id,
            checkpoints,
            lease=taken.lease,
            length=len(journal.entries),
            digest=journal.digest,
            summary=summary,
            opening=None,
            newest_step=None if state is None else state.step,
            shared=SharedParts(journal.entries),
        )
        now = clock.now().timestamp()
        owner_text = taken.lease.owner
        held = HeldRun(run_id, journal, checkpoint, summary.status, summary.due_at, owner_text, now)
        # This change answers what was asked before, and a process that drove the run has not carried out.
        writer.take(*(one.number for one in messages if one.topic == PAUSE))
        with keep_lease(writer):
            await _append(writer, await change(held))
    finally:
        if writer is not None:
            is_released = await writer.release()
        else:
            with anyio.move_on_after(5, shield=True):
                await store.release(taken.lease)
                is_released = True
        end_claim(owner, is_released=is_released)


async def _append(writer: JournalWriter, change: Change) -> None:
    *entries, last = change.entries
    try:
        for entry in entries:
            if isinstance(entry, Resumed) and entry.version is not None:
                details = replace(writer.summary.details, version=entry.version)
                writer.summary = replace(writer.summary, details=details)
            writer.add(entry)
        if not await writer.finish(last, change.status, due_at=change.due_at, seen=0):
            raise SaveFailed(writer.run_id, "the store rejected the change")
    except Halt as halt:
        raise halt.reason from None


def _check_has_not_ended(run_id: str, status: RunStatus, *, reopens: bool) -> None:
    if status.has_ended and not (reopens and status is RunStatus.COMPLETED):
        raise RunEnded(run_id, status)


async def pause_run(checkpoints: Checkpoints, run_id: str, *, by: str, clock: Clock) -> None:
    """Pause a run, or ask the process that drives it to do so. The errors are those of `Handle.pause`."""

    async def change(held: HeldRun) -> Change:
        if held.status in (RunStatus.PAUSED, RunStatus.FAILED):
            raise ChangeRejected(
                run_id,
                f"it is {held.status} already, so no worker continues it",
                "To let workers continue it, unpause it, or retry it if it has failed.",
            )
        # A run that has begun is due at once afterwards: it looks what has happened, and waits again.
        due_at = None if held.has_begun else held.due_at
        return Change([Paused(held.now, by, due_at)], RunStatus.PAUSED, None)

    try:
        await change_run(checkpoints, run_id, change, clock=clock)
    except RunBusy:
        await _request_pause(checkpoints, run_id, by)


async def _request_pause(checkpoints: Checkpoints, run_id: str, by: str) -> None:
    store, key = checkpoints.store, uuid4().hex
    with store_errors(store, run_id, saves="message"):
        body = seal_message(checkpoints.seal, run_id, PAUSE, key, by)
        service = service_of(store, "a request to a run that a process drives")
        await service.send(run_id, PAUSE, key=key, body=body)


async def unpause_run(checkpoints: Checkpoints, run_id: str, *, by: str, clock: Clock) -> None:
    """Let workers continue a paused run. The errors are those of `Handle.unpause`."""

    async def change(held: HeldRun) -> Change:
        paused = held.checkpoint.paused
        if held.status is not RunStatus.PAUSED or paused is None:
            raise ChangeRejected(run_id, f"it is {held.status}, not paused", "")
        resumed = Resumed(held.owner, held.now, by=by)
        made = _interrupted(held, resumed, reason=f"unpaused by {by}")
        return made if paused.due_at is None else replace(made, due_at=paused.due_at)

    await change_run(checkpoints, run_id, change, clock=clock)


def can_be_retried(status: RunStatus) -> bool:
    """Return whether a run with this status, which no process drives, can be tried again."""
    waits = (RunStatus.PENDING, RunStatus.SUSPENDED, RunStatus.PAUSED)
    return not (status.has_ended or status in waits)


async def retry_run(checkpoints: Checkpoints, run_id: str, *, by: str, clock: Clock) -> None:
    """Let the next worker try a run again that has failed, is blocked, or was interrupted.

    The errors are those of `Handle.retry`.
    """

    async def change(held: HeldRun) -> Change:
        if not can_be_retried(held.status):
            way_on = "A worker continues it when it is due."
            if held.status is RunStatus.PAUSED:
                way_on = "Unpause it."
            elif held.status is RunStatus.PENDING and held.due_at is None:
                way_on = "It was imported, so no worker continues it before someone resumes it."
            problem = f"it is {held.status}, so there is nothing to try again"
            raise ChangeRejected(run_id, problem, way_on)
        finished = held.checkpoint.finished
        void = () if finished is None else finished.retry
        resumed = Resumed(held.owner, held.now, void=void, by=by)
        return goes_on(held, resumed, reason=f"retried by {by}")

    await change_run(checkpoints, run_id, change, clock=clock)


async def reopen_run(
    checkpoints: Checkpoints, run_id: str, reopening: Reopening, *, by: str, clock: Clock
) -> None:
    """Let the next worker retry or drop dead letters of a run, and continue it to its new result.

    Raise ChangeRejected if there are none of them, OutcomeUnknown if an at-most-once step that may have
    happened would run again, ValueError for a key that none has had, and the errors of `change_run`.
    """

    async def change(held: HeldRun) -> Change:
        finished, entries = held.checkpoint.finished, held.journal.entries
        resumed = Resumed(
            held.owner, held.now, void=() if finished is None else finished.retry, by=by
        )
        reopened = reopening.reopened(entries, read_order(entries), resumed)
        if reopened is None:
            raise ChangeRejected(run_id, "it has no such dead letters left", "")
        verb = "dropped" if reopening.drops else "retried"
        return goes_on(held, reopened, reason=f"dead letters {verb} by {by}")

    await change_run(checkpoints, run_id, change, clock=clock, reopens=True)
