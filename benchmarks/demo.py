"""What the second core gains for `effectflow demo`, which measures files in a pool of processes.

    python benchmarks/demo.py [FOLDER]

One worker and two take a census of the same files, one after the other in each round, because a machine
changes its mind from one second to the next. Of each, the best of several rounds counts. The process that
writes the journal takes its share of the cores as well.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from effectflow import Checkpoints, SqliteStore
from effectflow.cli.census import CensusEnvironment, CensusJob, census
from effectflow.executors import ProcessExecutor

ROUNDS = 2


async def seconds(folder: str, workers: int) -> float:
    """Return the seconds of one census of the folder."""
    began = time.perf_counter()
    with TemporaryDirectory() as place:
        store = SqliteStore(Path(place) / "runs.db")
        async with store, ProcessExecutor(limit=workers) as executor:
            job = CensusJob(folder, f"{place}/report", limit=4)
            await census.start(job).run_or_raise(CensusEnvironment(Checkpoints(store), executor))
    return time.perf_counter() - began


async def main(folder: str) -> None:
    one: list[float] = []
    two: list[float] = []
    for _ in range(ROUNDS):
        one.append(await seconds(folder, 1))
        two.append(await seconds(folder, 2))
    print(
        f"a census of {folder}: {min(one):.1f} s on one worker, {min(two):.1f} s on two: "
        f"{min(two) / min(one):.2f} of the time (to reach: 0.6)"
    )


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else str(Path(dataclasses.__file__).parent))
