"""Kill processes that drive runs on one store, at random moments.

    python -m tests.stores.soak "sqlite full" --seconds 180

Two workers resume any run that is free. One or both are killed (SIGKILL), again and again, and each time
another process checks every run: no entry that was reported durable may be missing, all must be readable,
and no completed step may have run again. In the end every run must be complete.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random, randrange
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio
from returns.result import Failure, Success

from effectflow import Checkpoints
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointStore,
    Completed,
    RunBusy,
    RunQuery,
    RunStatus,
    find_run,
    read_entries,
    verify_run,
)
from tests.stores.faults.forking import ending_of, forked, get_ready
from tests.stores.faults.tale import STORES, App, TellingStore, digest, tale_on

WORKERS = 2
LONGEST_LIFE = 0.15
"""Seconds. A worker needs some milliseconds to start."""

STEPS = 40
"""Enough steps in a run to outlive several workers."""


@dataclass(frozen=True)
class Place:
    """The folder of a soak test."""

    store: str
    folder: Path

    def open(self) -> CheckpointStore:
        return STORES[self.store](self.folder / "data")

    @property
    def told(self) -> Path:
        """A folder with a file for each run, which lists its durable entries."""
        return self.folder / "told"

    @property
    def completed(self) -> Path:
        """A file with a line for each completed run: its number of entries."""
        return self.folder / "completed"

    def tell(self, line: str) -> None:
        _, run_id, entry = line.split(" ", 2)
        with (self.told / run_id).open("a") as told:
            print(entry, file=told)


async def work(place: Place, *, until_done: bool = False) -> None:
    """Resume unfinished runs. If there are none, start another, or end if `until_done`."""
    async with place.open() as store:
        app = App(Checkpoints(TellingStore(store, place.tell)), len)
        while True:
            free = await store.find(RunQuery(resumable=True, limit=1))
            if until_done and not free:
                return
            run_id = free[0].run_id if free else uuid4().hex
            match await tale_on(store).start(words_of(run_id), run_id=run_id).run(app):
                case Success(words):
                    assert words == words_of(run_id)
                case Failure(RunBusy()):
                    pass
                case result:
                    raise AssertionError(result)


def words_of(run_id: str) -> list[str]:
    """Return words of a few bytes or some pages, always the same for a run."""
    chance = Random(run_id)
    return [f"{number} " + "x" * chance.choice([1, 100, 9000]) for number in range(STEPS)]


async def check(place: Place, *, is_alone: bool) -> None:
    """Check every run. Delete completed ones if no worker is running."""
    # Read the reports first, because a worker may write meanwhile.
    told = {path.name: path.read_text().splitlines() for path in place.told.iterdir()}
    async with place.open() as store:
        for run_id, lines in told.items():
            records = await store.read(run_id)
            missing = set(lines) - {f"{r.sequence} {digest(r.body)}" for r in records}
            assert not missing, f"run {run_id} has lost {sorted(missing)}"
            problem = (await verify_run(store, run_id)).problem
            assert problem is None, f"run {run_id} is not as it was written: {problem}"
            await check_steps(store, run_id)
            info = await find_run(store, run_id)
            assert info is not None
            if info.summary.status is RunStatus.COMPLETED and is_alone:
                await store.delete(run_id)
                (place.told / run_id).unlink()
                with place.completed.open("a") as completed:
                    print(len(records), file=completed)


async def check_steps(store: CheckpointStore, run_id: str) -> None:
    """Check that no completed step began again."""
    completed = set[str]()
    for entry in await read_entries(store, run_id):
        match entry:
            case BeforeStep(step):
                assert step not in completed, f"{step} of run {run_id} ran again"
            case Completed(step):
                completed.add(step)
            case _:
                pass


def soak(place: Place, *, seconds: float, chance: Random) -> int:
    """Kill workers for this time, then finish all runs. Return the number of kills."""
    kills = 0
    workers: list[int] = []
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            while len(workers) < WORKERS:
                workers.append(forked(lambda: anyio.run(work, place)))
            time.sleep(chance.uniform(0, LONGEST_LIFE))
            for victim in chance.choice([workers[:1], workers[1:], workers[:]]):
                workers.remove(victim)
                kill(victim)
                kills += 1
            wait_for(partial(check, place, is_alone=not workers))
    finally:
        for worker in workers:
            kill(worker)
    wait_for(partial(work, place, until_done=True))
    wait_for(partial(check, place, is_alone=True))
    unfinished = [path.name for path in place.told.iterdir()]
    if unfinished:
        raise SystemExit(f"these runs were not completed: {unfinished}")
    return kills + len(workers)


def kill(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    if ending_of(worker) != -signal.SIGKILL:
        raise SystemExit("a worker has failed; its traceback is above")


def wait_for(work: Callable[[], Awaitable[None]]) -> None:
    """Call this in another process, so that this one has no threads and can fork."""
    if ending_of(forked(lambda: anyio.run(work))) != 0:
        raise SystemExit("a check has failed; its traceback is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=randrange(10**6))
    arguments = parser.parse_args()
    print(f"{arguments.store}, seed {arguments.seed}:", end=" ", flush=True)
    get_ready()
    with TemporaryDirectory() as folder:
        place = Place(arguments.store, Path(folder))
        (place.folder / "data").mkdir()
        place.told.mkdir()
        kills = soak(place, seconds=arguments.seconds, chance=Random(arguments.seed))
        lengths = [int(line) for line in place.completed.read_text().split()]
    print(f"{kills} kills, {len(lengths)} runs, {sum(lengths)} entries, nothing lost")


if __name__ == "__main__":
    main()
