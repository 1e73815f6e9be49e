"""The rules of all stores, as pure functions: who may write, and what messages change."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from effectflow.checkpoint.errors import LeaseLost, MailboxFull, RunBusy, RunEnded
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunSummary, due_at_once
from effectflow.checkpoint.store import CANCEL, NOTICE, PAUSE, wakes


def check_first(run_id: str, bodies: Sequence[bytes]) -> None:
    """Raise ValueError unless a new run has a record. Nothing could be said about it."""
    if not bodies:
        raise ValueError(f"run {run_id!r} cannot be created without a record")


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


def is_current(lease: Lease, held: Lease | None) -> bool:
    """Return whether this is the current lease of the run, renewed or not."""
    return held is not None and is_holder(lease, held.owner, held.fence)


def check_holder(lease: Lease, owner: str, fence: int) -> None:
    """Raise LeaseLost unless this is the lease of the current owner ("" for none)."""
    if not is_holder(lease, owner, fence):
        raise lease_lost(lease.run_id, owner)


def is_holder(lease: Lease, owner: str, fence: int) -> bool:
    """Return whether this is the lease of the current owner."""
    # FileStore may issue a fencing token twice, if the file with the newest was lost. Then the owners
    # differ.
    return fence == lease.fence and owner == lease.owner


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


def check_messages(lease: Lease, taken: Iterable[int], present: Container[int]) -> None:
    """Raise LeaseLost unless all messages that an append takes are in the mailbox."""
    for number in taken:
        if number not in present:
            raise LeaseLost(lease.run_id, "a message that it takes was taken before")


def check_receives(run_id: str, summary: RunSummary) -> None:
    """Raise RunEnded if a run receives no messages any more."""
    if summary.status.has_ended:
        raise RunEnded(run_id, summary.status)


MAILBOX_BYTES = 16 * 1024 * 1024
"""How many bytes the messages in a mailbox may have, as by `size_in_mailbox`."""


def size_in_mailbox(body_length: int) -> int:
    """Return how many bytes of a mailbox a message takes, so that small ones have a limit, too."""
    return body_length + 1024


def check_room(run_id: str, topic: str, body: bytes, *, unread: int) -> None:
    """Raise MailboxFull if a signal does not fit beside the messages that were not taken.

    Requests and notices always do: they are small, and nothing else would pause or end the run.

    Parameters:
        unread: the sizes of these messages, in bytes.
    """
    is_signal = topic not in (CANCEL, PAUSE, NOTICE)
    if is_signal and unread + size_in_mailbox(len(body)) > MAILBOX_BYTES:
        raise MailboxFull(run_id, MAILBOX_BYTES)


def due_by(now: float, summary: RunSummary) -> RunSummary:
    """Return the summary of a run, due at once if it was not due before."""
    at = due_at_once(now)
    if summary.due_at is not None and summary.due_at <= at:
        return summary
    return replace(summary, due_at=at)


def woken(topic: str, summary: RunSummary, *, now: float) -> RunSummary:
    """Return the summary of a run that has received a message."""
    return due_by(now, summary) if wakes(topic, summary.status) else summary


def due_if_unseen(
    summary: RunSummary, seen: int | None, *, left: Iterable[tuple[int, str]], now: float
) -> RunSummary:
    """Return the summary of an append, due at once if an unseen message wakes the run.

    `seen` is the number of the newest message that the writer has seen; None if it does not say.
    `left` has the number and the topic of each message that was not taken.
    """
    is_woken = seen is not None and any(
        number > seen and wakes(topic, summary.status) for number, topic in left
    )
    return due_by(now, summary) if is_woken else summary
