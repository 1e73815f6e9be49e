"""File and SQLite stores when the process or the disk fails, at every system call of a run.

Real processes, real files: a library preloaded into the process strikes the n-th call that changes
something (see `faults/faults.c`).
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.stores.faults.lives import Life, Lived, Lives
from tests.stores.faults.preload import (
    FAILED_CHANGE,
    FAILED_SYNC,
    FULL_DISK,
    KILL,
    TORN_WRITE,
    Fault,
)
from tests.stores.faults.survivor import take_up
from tests.stores.faults.tale import STORES, WORDS

SIGKILL = -9


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("fault", [KILL, TORN_WRITE], ids=["before it", "halfway through it"])
def test_a_process_killed_at_any_call_loses_nothing(
    lives: Lives, store: str, fault: Fault, tmp_path: Path
) -> None:
    def check(life: Life, lived: Lived) -> None:
        assert lived.status == SIGKILL or (lived.status == 0 and lived.calls < life.at)
        anyio.run(take_up, life, lived)

    lives.at_each_call(Life(store, tmp_path, fault), check)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("fault", "every"),
    [(FAILED_SYNC, 1), (FAILED_CHANGE, 2), (FULL_DISK, 4)],
    ids=["sync", "change", "disk full"],
)
def test_a_call_that_fails_is_told_and_loses_nothing(
    lives: Lives, store: str, fault: Fault, every: int, tmp_path: Path
) -> None:
    """And the same process goes on with the run once the cause is mended.

    What is said not to be saved is not; of what was written and not synced nobody knows that.
    `every` passes over some of the calls, to save time; they are much alike.
    """
    failures = set[str]()
    is_unknown = False

    def check(life: Life, lived: Lived) -> None:
        nonlocal is_unknown
        assert lived.status == 0
        assert lived.said("told") == ["/".join(WORDS)], lived.said("failed")
        assert not lived.said("untrue")
        failures.update(failure.split()[0] for failure in lived.said("failed"))
        is_unknown = is_unknown or "may or may not" in "".join(lived.said("failed"))
        anyio.run(take_up, life, lived)

    lives.at_each_call(Life(store, tmp_path, fault), check, every=every)
    assert failures == {"SaveFailed", "StoreUnavailable"}
    if fault == FAILED_SYNC and store != "sqlite process":
        assert is_unknown
