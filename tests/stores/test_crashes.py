"""File and SQLite stores when the process or the disk fails, at any system call of a run.

Real processes and files: a library preloaded into the process strikes the n-th call that changes
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
from tests.stores.faults.survivor import take_up, take_up_repaired
from tests.stores.faults.tale import STORES, WORDS
from tests.sweeps import in_turn, sample_or_all

SIGKILL = -9


# It differs from "sqlite full" in what a power loss leaves, which `test_power_loss.py` shows.
ON_EACH_STORE = pytest.mark.parametrize(
    "store",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name == "sqlite process" else ())
        for name in STORES
    ],
)

EVERY = sample_or_all("every", 25, 1)
"""Whether to strike each call, or each 25th."""

REPORTED = {"SaveFailed", "StoreUnavailable"}
"""The errors with which a run reports a call that failed."""


@EVERY
@ON_EACH_STORE
@pytest.mark.parametrize("fault", [KILL, TORN_WRITE], ids=["before it", "halfway through it"])
def test_a_process_killed_at_any_call_loses_nothing(
    lives: Lives, store: str, fault: Fault, tmp_path: Path, every: int
) -> None:
    def check(life: Life, lived: Lived) -> None:
        assert lived.status == SIGKILL or (lived.status == 0 and lived.calls < life.at)
        anyio.run(take_up, life, lived)

    lives.at_each_call(Life(store, tmp_path, fault), check, every=every)


@EVERY
@ON_EACH_STORE
@pytest.mark.parametrize(
    "fault", [FAILED_SYNC, FAILED_CHANGE, FULL_DISK], ids=["sync", "change", "disk full"]
)
def test_a_failed_call_is_reported_and_loses_nothing(
    lives: Lives, store: str, fault: Fault, every: int, tmp_path: Path
) -> None:
    """And the same process continues the run once the cause is gone.

    Entries that are reported as not saved are not there. Entries that were written and could not be
    synced may be there.
    """
    failures = dict[str, str]()
    is_unknown = False

    def check(life: Life, lived: Lived) -> None:
        nonlocal is_unknown
        assert lived.status == 0
        assert lived.said("told") == ["/".join(WORDS)], lived.said("failed")
        assert not lived.said("untrue")
        failures.update((failure.split()[0], failure) for failure in lived.said("failed"))
        is_unknown = is_unknown or "may or may not" in "".join(lived.said("failed"))
        anyio.run(take_up, life, lived)

    # There are few syncs, and only some of them leave the outcome unknown. Only some changes, of which
    # there are few with files, belong to a save.
    most = {FAILED_SYNC: 3, FAILED_CHANGE: 4 if store == "file" else 12}.get(fault, every)
    lives.at_each_call(Life(store, tmp_path, fault), check, every=min(every, most))
    unexpected = {kind: text for kind, text in failures.items() if kind not in REPORTED}
    assert not unexpected, "\n".join(unexpected.values())
    assert failures.keys() == REPORTED
    if fault == FAILED_SYNC and store != "sqlite process":
        assert is_unknown


@EVERY
@in_turn(store=STORES, fault=[KILL, TORN_WRITE, FAILED_CHANGE, FULL_DISK])
def test_a_fault_at_any_call_leaves_the_run_either_damaged_or_repaired(
    lives: Lives, store: str, fault: Fault, tmp_path: Path, every: int
) -> None:
    def check(life: Life, lived: Lived) -> None:
        if fault.error or lived.status == 0:
            assert lived.status == 0
            assert lived.said("repaired") == [""], lived.said("failed")
        else:
            assert lived.status == SIGKILL
        anyio.run(take_up_repaired, life, lived)

    # There are few calls, and one of them commits.
    life, every = Life(store, tmp_path, fault, is_repair=True), min(every, 3)
    lives.at_each_call(life, check, every=every, more_than=2)
