"""SIGUSR1 makes the progress of a run durable: real processes are killed after it."""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import Checkpoint, RunNotFound, read_checkpoint
from effectflow.stores import SqliteStore
from tests.programs import PIPE, Program

JOB = textwrap.dedent("""
    import os, sys
    from dataclasses import dataclass
    import anyio
    from effectflow import Checkpoints, effect, pure
    from effectflow.checkpoint import CheckpointPolicy
    from effectflow.mapreduce import MapReduce
    from effectflow.service import run_until_signal
    from effectflow.stores import SqliteStore

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    @effect
    async def double(app, number: int) -> int:
        with open("mapped.log", "a") as log:
            log.write(f"{number}\\n")
        if number >= HANGS_AT:
            await anyio.sleep_forever()
        print(number, flush=True)
        return 2 * number

    job = MapReduce(
        "doubling",
        items=lambda count: range(count),
        map=double,
        reduce=lambda values: pure(sum(values)),
        key=str,
        limit=4,
        fan_in=5,
    )
    HANGS_AT = int(sys.argv[1])

    async def main():
        async with SqliteStore("runs.db") as store:
            seldom = CheckpointPolicy(every_steps=10**6)
            app = App(Checkpoints(store, policy=seldom))
            work = job.start(30, run_id="r").run_or_raise
            print(await run_until_signal(lambda: work(app)), flush=True)

    anyio.run(main, backend=sys.argv[2])
""")


class Life:
    """One life of the process that runs the job."""

    def __init__(self, folder: Path, backend: str, *, hangs_at: int) -> None:
        self.process = Program(["-c", JOB, str(hangs_at), backend], cwd=folder, stdout=PIPE)

    def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().strip() for _ in range(count)]

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        assert self.process.stdout is not None
        self.process.stdout.close()


async def checkpoint_in(folder: Path) -> Checkpoint | None:
    async with SqliteStore(folder / "runs.db") as store:
        try:
            return await read_checkpoint(store, "r")
        except RunNotFound:
            return None


def durable_items(folder: Path) -> set[str]:
    checkpoint = anyio.run(checkpoint_in, folder)
    steps = [] if checkpoint is None else checkpoint.completed_steps
    return {done.step.split("[")[1].split("]")[0] for done in steps if done.step.startswith("map")}


def wait_until_durable(folder: Path, items: set[str]) -> None:
    deadline = time.monotonic() + 30
    while not items <= durable_items(folder):
        assert time.monotonic() < deadline, "SIGUSR1 saved nothing"
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def test_progress_before_the_signal_survives_a_kill_after_it(tmp_path: Path, backend: str) -> None:
    life = Life(tmp_path, backend, hangs_at=12)
    done = set(life.lines(12))
    assert durable_items(tmp_path) == set()

    life.process.send_signal(signal.SIGUSR1)
    wait_until_durable(tmp_path, done)
    # The run continues, and a second signal is allowed.
    assert life.process.poll() is None
    life.process.send_signal(signal.SIGUSR1)
    life.kill()

    mapped = tmp_path / "mapped.log"
    assert set(mapped.read_text().split()) == {*done, "12", "13", "14", "15"}
    mapped.unlink()
    again = Life(tmp_path, backend, hangs_at=30)
    out, _ = again.process.communicate(timeout=60)
    assert again.process.returncode == 0
    assert (
        out.splitlines()[-1] == f"JobResult(value={2 * sum(range(30))}, items=30, dead_letters=())"
    )
    assert set(mapped.read_text().split()) == {str(number) for number in range(12, 30)}
