"""Send messages to a run: values for the signals that it waits for, and requests to cancel it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from effectflow.checkpoint import Checkpoints, RunEnded
from effectflow.checkpoint.entries import Entry, Signalled
from effectflow.checkpoint.journal_reader import read_end, read_journal
from effectflow.checkpoint.messages import cancel_request, seal_message
from effectflow.checkpoint.store import CANCEL, find_run, service_of, store_errors
from effectflow.effects.arguments import check_text, check_type
from effectflow.service.signal import Signal

T = TypeVar("T")

_PAGE = 32
"""How many entries to read first in a search for the newest one."""


async def send_value(
    checkpoints: Checkpoints,
    run_id: str,
    signal: Signal[T],
    value: T,
    *,
    idempotency_key: str | None,
) -> None:
    """Send a value to a run. The parameters and errors are those of `Handle.send`."""
    check_type(signal, Signal, "send takes the Signal that the workflow waits for")
    key = uuid4().hex if idempotency_key is None else idempotency_key
    check_text("an idempotency key", key)
    tree = signal.encode(value, checkpoints)
    body = seal_message(checkpoints.seal, run_id, signal.topic, key, tree)
    async with checkpoints.store as store:
        try:
            with store_errors(checkpoints.store, run_id, saves="message"):
                service = service_of(store, "a signal")
                await service.send(run_id, signal.topic, key=key, body=body)
        except RunEnded:
            if idempotency_key is None or not await _has_received(
                checkpoints, run_id, signal.topic, key
            ):
                raise


async def request_cancel(checkpoints: Checkpoints, run_id: str, *, by: str) -> None:
    """Request the cancellation of a run. `by` says who asks. The errors are those of `Handle.cancel`."""
    async with checkpoints.store as store:
        with store_errors(checkpoints.store, run_id, saves="message"):
            service = service_of(store, "a cancellation")
            key, body = cancel_request(checkpoints.seal, run_id, by)
            await service.send(run_id, CANCEL, key=key, body=body)


async def _has_received(checkpoints: Checkpoints, run_id: str, topic: str, key: str) -> bool:
    def is_of_message(entry: Entry) -> bool:
        return isinstance(entry, Signalled) and (entry.topic, entry.key) == (topic, key)

    return await newest_entry(checkpoints, run_id, is_of_message) is not None


async def newest_entry(
    checkpoints: Checkpoints, run_id: str, is_wanted: Callable[[Entry], bool]
) -> Entry | None:
    """Return the newest wanted entry of a run, or None. Read backwards from the end."""
    store, seal = checkpoints.store, checkpoints.seal
    with store_errors(checkpoints.store, run_id):
        info = await find_run(store, run_id)
        if info is None:
            return None
        count = _PAGE
        while True:
            entries = await read_end(store, run_id, seal, length=info.length, count=count)
            if not entries:
                # The last entries are unreadable, and this raises the reason.
                entries = (await read_journal(store, run_id, seal)).entries
            for entry in reversed(entries):
                if is_wanted(entry):
                    return entry
            if len(entries) >= info.length:
                return None
            count *= _PAGE
