"""File and SQLite stores after a loss of power: whatever was not synced may be gone, in any part.

What a process does to its files is recorded, system call by system call. Of that record any disk can be
made that the power may leave behind (see `faults/disk.py`).
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
from tests.stores.faults.survivor import take_up
from tests.stores.faults.tale import STORES

FULLY_DURABLE = ["file", "sqlite full"]
KEPT = [0, 0.5, 0.5, 0.9]
"""How much is on disk of what was not synced, one time after another."""


@pytest.mark.parametrize("store", STORES)
def test_the_record_has_all_that_was_done(lives: Lives, store: str, tmp_path: Path) -> None:
    """If it had not, the disks that are made of it would be none that may be."""
    life = Life(store, tmp_path / "life")
    lived = lives.live(life)

    assert contents(lived.operations, keep=1, chance=Random(0)) == found_in(life.data)


@pytest.mark.parametrize("store", FULLY_DURABLE)
def test_a_loss_of_power_at_any_moment_loses_nothing(
    lives: Lives, store: str, tmp_path: Path
) -> None:
    lived = lives.live(Life(store, tmp_path / "life"))
    for outage in outages(lived):
        for seed, keep in enumerate(KEPT):
            after_power_loss(store, tmp_path, outage, keep=keep, seed=seed)


@pytest.mark.parametrize("store", FULLY_DURABLE)
def test_nor_does_it_after_a_sync_that_failed(lives: Lives, store: str, tmp_path: Path) -> None:
    """Linux reports a failed sync once, and has dropped what was to be synced."""

    def check(_: Life, lived: Lived) -> None:
        # Not after each sync, to save time: the last moments, and some on the way there.
        for outage in list(outages(lived))[::-6]:
            after_power_loss(store, tmp_path, outage, keep=0)

    lives.at_each_call(Life(store, tmp_path, FAILED_SYNC), check)


def test_with_durability_process_it_loses_at_most_the_newest_entries(
    lives: Lives, tmp_path: Path
) -> None:
    store = "sqlite process"
    lived = lives.live(Life(store, tmp_path / "life"))
    lost = 0
    for outage in outages(lived):
        for seed, keep in enumerate(KEPT):
            found = after_power_loss(
                store, tmp_path, outage, keep=keep, seed=seed, may_be_late=True
            )
            lost += found < len(outage.said("durable"))
    assert lost > 0


def outages(lived: Lived) -> Iterator[Lived]:
    """A life cut short by an outage: before each sync, when most is at stake, or after all."""
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
    """What another process finds on a disk that the outage left behind: so many entries."""
    with TemporaryDirectory(dir=folder) as made:
        life = Life(store, Path(made))
        lay_out(contents(outage.operations, keep, Random(seed)), life.data)
        return anyio.run(partial(take_up, life, outage, may_be_late=may_be_late))


def found_in(folder: Path) -> Contents:
    """What is in a folder and the folders in it."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return None if path.is_dir() else path.read_bytes()

    return {path.relative_to(folder): content(path) for path in folder.rglob("*")}
