"""Reading a journal takes work in proportion to its length."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial

import anyio
import pytest

from effectflow.checkpoint import BeforeStep, Completed, Entry, Failed, Signalled, Waiting
from effectflow.checkpoint.entries import ErrorRecord
from effectflow.checkpoint.journal_reader import pass_over
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


@pytest.mark.anyio
async def test_a_pass_over_a_long_journal_lets_other_tasks_run() -> None:
    entries, others_ran = failed_at_once(400), threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, others_ran.set)
        assert await pass_over(entries, partial(others_ran.wait, 30))


async def call(function: Callable[[], object]) -> None:
    function()
