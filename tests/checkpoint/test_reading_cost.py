"""Reading a journal takes work in proportion to its length."""

from __future__ import annotations

import sys

from effectflow.checkpoint import BeforeStep, Completed, Entry, Failed, Signalled, Waiting
from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.order import read_order


def failed_at_once(count: int) -> list[Entry]:
    """Return entries of items that received a message and executed a step, and all wait for a retry."""
    items = [f"map[{number}]/price" for number in range(count)]
    entries: list[Entry] = []
    for item in items:
        entries += [BeforeStep(item, 1), Waiting(f"{item}/offer", None, 0.0, topic="offer")]
        entries.append(Signalled(f"{item}/offer", "offer", "", 5, 0.0))
        entries += [BeforeStep(f"{item}/ask", 1), Completed(f"{item}/ask", None, 0.0)]
    error = ErrorRecord("Broken", "no answer")
    entries += [Failed(item, error, True, retry_at=10.0) for item in items]
    return entries


def calls_to_read(count: int) -> int:
    """Return how many functions are called while this many items are read."""
    entries, calls = failed_at_once(count), 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        read_order(entries)
    finally:
        sys.setprofile(None)
    return calls


def test_items_that_fail_at_the_same_time_are_not_compared_with_each_other() -> None:
    assert calls_to_read(400) < 4.1 * calls_to_read(100)
