"""File and SQLite stores after a power loss, which may remove any part of what was not synced.

Each system call by which a process changes its files is recorded. From the record follows every disk
that a power loss may leave behind (see `faults/disk.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import anyio
import pytest

from tests.stores.faults.disk import Contents, Sync, contents, lay_out
from tests.stores.faults.lives import Life, Lived, Lives
from tests.stores.faults.preload import FAILED_SYNC
from tests.stores.faults.survivor import take_up, take_up_repaired
from tests.stores.faults.tale import STORES
from tests.sweeps import EVERY

FULLY_DURABLE = ["file", "sqlite full"]
KEPT = [0, 0.5, 0.5, 0.9]
"""The share of unsynced data that is on disk, in four attempts."""


@pytest.mark.parametrize("store", STORES)
def test_the_record_contains_every_change(lives: Lives, store: str, tmp_path: Path) -> None:
    """Otherwise the disks that are made from it would be impossible."""
    life = Life(store, tmp_path / "life")
    lived = lives.live(life)

    assert contents(lived.operations, keep=1, chance=Random(0)) == found_in(life.data)


@EVERY
@pytest.mark.parametrize("store", FULLY_DURABLE)
def test_a_power_loss_at_any_moment_loses_nothing(
    lives: Lives, store: str, tmp_path: Path, every: int
) -> None:
    lived = lives.live(Life(store, tmp_path / "life"))
    for outage in list(outages(lived))[::-every]:
        for seed, keep in enumerate(KEPT):
            after_power_loss(store, tmp_path, outage, keep=keep, seed=seed)


@EVERY
@pytest.mark.parametrize("store", FULLY_DURABLE)
def test_a_power_loss_after_a_failed_sync_loses_nothing(
    lives: Lives, store: str, tmp_path: Path, every: int
) -> None:
    """Linux reports a failed sync once, and then drops the unsynced data."""

    def check(_: Life, lived: Lived) -> None:
        # Only the last moments, and some before, because there are many combinations.
        for outage in list(outages(lived))[::-6]:
            after_power_loss(store, tmp_path, outage, keep=0)

    lives.at_each_call(Life(store, tmp_path, FAILED_SYNC), check, every=every)


@EVERY
def test_with_durability_process_only_the_newest_entries_are_lost(
    lives: Lives, tmp_path: Path, every: int
) -> None:
    store = "sqlite process"
    lived = lives.live(Life(store, tmp_path / "life"))
    lost = 0
    # Few outages lose an entry, so the sample has them all, with nothing of what was not synced.
    for outage in outages(lived):
        for seed, keep in enumerate(KEPT[::every]):
            found = after_power_loss(
                store, tmp_path, outage, keep=keep, seed=seed, may_be_late=True
            )
            lost += found < len(outage.said("durable"))
    assert lost > 0


@pytest.mark.parametrize("store", FULLY_DURABLE)
def test_a_power_loss_during_a_repair_leaves_the_run_damaged_or_repaired(
    lives: Lives, store: str, tmp_path: Path
) -> None:
    lived = lives.live(Life(store, tmp_path / "life", is_repair=True))
    assert lived.said("repaired")
    for outage in outages(lived):
        if outage.said("entry") != lived.said("entry"):
            continue
        for seed, keep in enumerate(KEPT):
            with TemporaryDirectory(dir=tmp_path) as made:
                life = Life(store, Path(made))
                lay_out(contents(outage.operations, keep, Random(seed)), life.data)
                anyio.run(take_up_repaired, life, outage)


def outages(lived: Lived) -> Iterator[Lived]:
    """Yield the life cut short before each sync, when most is unsynced, and at its end."""
    for moment, operation in enumerate(lived.operations):
        if isinstance(operation, Sync):
            yield replace(lived, operations=lived.operations[:moment])
    yield lived


def after_power_loss(
    store: str,
    folder: Path,
    outage: Lived,
    *,
    keep: float,
    seed: int = 0,
    may_be_late: bool = False,
) -> int:
    """Resume the run from a disk that the outage may leave behind. Return the number of entries found."""
    with TemporaryDirectory(dir=folder) as made:
        life = Life(store, Path(made))
        lay_out(contents(outage.operations, keep, Random(seed)), life.data)
        return anyio.run(partial(take_up, life, outage, may_be_late=may_be_late))


def found_in(folder: Path) -> Contents:
    """Return the contents of a folder and its subfolders."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return None if path.is_dir() else path.read_bytes()

    return {path.relative_to(folder): content(path) for path in folder.rglob("*")}
