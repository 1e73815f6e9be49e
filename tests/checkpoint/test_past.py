"""What a journal says about failures: which of them the workflow handled, however many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from effectflow.checkpoint.past import read_past

from effectflow.checkpoint import BeforeStep, Completed, Entry, ErrorRecord, Failed, Recorded

ERROR = ErrorRecord("str", "broken")


def handled_side_by_side(count: int) -> list[Entry]:
    """Each child of a `par_traverse` has a step that fails, which the workflow handles in the end."""
    paths = [f"par_traverse[{key}]/work" for key in range(count)]
    begun: list[Entry] = [BeforeStep(path, 1) for path in paths]
    failed: list[Entry] = [Failed(path, ERROR, retryable=True) for path in paths]
    return [*begun, *failed, BeforeStep("after", 1)]


def handled_within(count: int) -> list[Entry]:
    """Each child handles its own, while those of the others wait."""
    entries = handled_side_by_side(count)[:-1]
    return entries + [Completed(f"par_traverse[{key}]/instead", None, 0.0) for key in range(count)]


def calls_of(work: Callable[[], object]) -> int:
    """How many functions were called, Python's own among them: what takes time, without a clock."""
    calls = 0

    def count(_frame: Any, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("journal", [handled_side_by_side, handled_within])
def test_reading_takes_as_long_for_each_failure_however_many_there_are(
    journal: Callable[[int], list[Entry]],
) -> None:
    few, many = journal(100), journal(400)

    assert calls_of(lambda: read_past(many)) < 4.5 * calls_of(lambda: read_past(few))
    assert all(step.was_handled for step in read_past(many).steps.values() if step.error)


@pytest.mark.parametrize("outer", ["", "outer/", "par[0]/", "a/" * 20])
def test_a_failure_is_handled_once_a_flow_around_it_goes_on(outer: str) -> None:
    def is_handled(failed: str, *after: str) -> bool:
        entries: list[Entry] = [BeforeStep(outer + failed, 1)]
        entries.append(Failed(outer + failed, ERROR, retryable=True))
        entries += [Recorded(outer + path, 1) for path in after]
        return read_past(entries).steps[outer + failed].was_handled

    assert is_handled("work", "after")
    assert is_handled("work", "work#2")
    assert is_handled("par[1]/work", "after")
    assert is_handled("par[1]/work", "par[1]/after")
    assert is_handled("par[a/b]/par[0]/work", "par[a/b]/after")
    assert not is_handled("work")
    assert not is_handled("work", "work")
    assert not is_handled("par[1]/work", "par[2]/after")
    assert not is_handled("par[1]/work", "par")
    assert not is_handled("nested/work", "nested")
    assert not is_handled("par[1]/act", "par[1]/act/within")
    assert not is_handled("par[1]/work", "par[11]/after")
