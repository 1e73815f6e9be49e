"""Reading a journal takes time in proportion to its length."""

from __future__ import annotations

import time

from effectflow.checkpoint import BeforeStep, Completed, Entry, Failed
from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.replay import read_recording


def failed_at_once(count: int) -> list[Entry]:
    """Return entries of items whose steps contain a step, and which all wait for their next attempt."""
    items = [f"map[{number}]/price" for number in range(count)]
    entries: list[Entry] = []
    for item in items:
        entries += [BeforeStep(item, 1), BeforeStep(f"{item}/ask", 1)]
        entries.append(Completed(f"{item}/ask", None, 0.0))
    error = ErrorRecord("Broken", "no answer")
    entries += [Failed(item, error, True, retry_at=10.0) for item in items]
    return entries


def seconds_to_read(count: int) -> float:
    entries = failed_at_once(count)
    began = time.process_time()
    read_recording(entries)
    return time.process_time() - began


def test_items_that_fail_at_the_same_time_are_not_compared_with_each_other() -> None:
    # Four times as long, and sixteen times if each one looked at all others.
    assert seconds_to_read(8000) < 9 * min(seconds_to_read(2000) for _ in range(3))
