"""Put messages into the mailboxes of runs: the values of signals, and requests to cancel."""

from __future__ import annotations

from typing import TypeVar, cast
from uuid import uuid4

from effectflow.checkpoint import Checkpoints, RunEnded
from effectflow.checkpoint.entries import Entry, Signalled
from effectflow.checkpoint.mailbox import seal_message
from effectflow.checkpoint.store import CANCEL
from effectflow.effects.arguments import check_text
from effectflow.service.journal_tail import newest_entry
from effectflow.service.signal import Signal
from effectflow.workflows.lookup import store_errors

__all__ = ["request_cancel", "send_value"]

T = TypeVar("T")


async def send_value(
    checkpoints: Checkpoints,
    run_id: str,
    signal: Signal[T],
    value: T,
    *,
    idempotency_key: str | None = None,
) -> None:
    """Send a value to a run. The parameters and errors are those of `Handle.send`."""
    if not isinstance(given := cast("object", signal), Signal):
        raise TypeError(f"send takes the Signal that the workflow waits for, not {given!r}")
    key = uuid4().hex if idempotency_key is None else idempotency_key
    check_text("an idempotency key", key)
    tree = signal.encode(value, checkpoints)
    body = seal_message(checkpoints, run_id, signal.topic, key, tree)
    async with checkpoints.store as store:
        try:
            with store_errors(checkpoints, run_id):
                await store.send(run_id, signal.topic, key=key, body=body)
        except RunEnded:
            if idempotency_key is None or not await _has_received(
                checkpoints, run_id, signal.topic, key
            ):
                raise


async def request_cancel(checkpoints: Checkpoints, run_id: str) -> None:
    """Ask for the cancellation of a run. The errors are those of `Handle.cancel`."""
    async with checkpoints.store as store:
        with store_errors(checkpoints, run_id):
            await store.send(run_id, CANCEL, key=CANCEL)


async def _has_received(checkpoints: Checkpoints, run_id: str, topic: str, key: str) -> bool:
    def is_of_message(entry: Entry) -> bool:
        return isinstance(entry, Signalled) and (entry.topic, entry.key) == (topic, key)

    return await newest_entry(checkpoints, run_id, is_of_message) is not None
