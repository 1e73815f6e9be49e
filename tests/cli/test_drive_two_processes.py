"""Two processes and one run: only one drives it, and no completed step runs twice."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, Command
from tests.programs import PIPE, Program

SCRIPT = textwrap.dedent("""
    import os, sys, time
    from dataclasses import dataclass
    from pathlib import Path
    import anyio
    from effectflow import Checkpoints, Do, Effect, step, workflow
    from effectflow.effects import from_async
    from effectflow.stores import SqliteStore

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    def is_held(number):
        try:
            return number >= int(Path("held_from").read_text())
        except FileNotFoundError:
            return False

    @step
    def work(number: int) -> Effect[App, str, int]:
        async def perform(_):
            with open("done.log", "a") as log:
                print(os.getpid(), number, file=log, flush=True)
            await anyio.sleep(0.02)
            while is_held(number):
                await anyio.sleep(0.01)
            return number
        return from_async(perform)

    @workflow
    def twenty(_: None) -> Do[App, str, int]:
        total = 0
        for number in range(20):
            total += yield from work(number)
        return total

    async def main(command, lease_seconds):
        async with SqliteStore("runs.db") as store:
            app = App(Checkpoints(store, lease_seconds=float(lease_seconds)))
            print("ready", flush=True)
            effect = twenty.start(None, run_id="r") if command == "start" else twenty.resume("r")
            result = await effect.run(app)
            if result == type(result)(190):
                print("190", flush=True)
            else:
                print(type(result.failure()).__name__, flush=True)

    anyio.run(main, *sys.argv[1:])
""")

Launch = Callable[..., Program]


@pytest.fixture
def launch(folder: Path) -> Iterator[Launch]:
    """Start the script as a process; kill the processes that are left after the test."""
    processes: list[Program] = []

    def start(command: str, lease_seconds: float = 30) -> Program:
        process = Program(
            ["-c", SCRIPT, command, str(lease_seconds)],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def work_done(folder: Path) -> list[tuple[int, int]]:
    """Return the process and the number of each step that began, in order."""
    log = folder / "done.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), int(number)) for pid, number in (line.split() for line in lines)]


def until(condition: Callable[[], bool]) -> None:
    """Wait until another process has done something."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def outcome(process: Program) -> str:
    return process.communicate(timeout=60)[0].split()[-1]


def hold(folder: Path, *, step: int) -> None:
    """Make every process wait at this step, until `let_go`."""
    (folder / "held_from").write_text(str(step))


def let_go(folder: Path) -> None:
    (folder / "held_from").unlink()


def crashed_half_way(folder: Path, launch: Launch) -> None:
    hold(folder, step=8)
    process = launch("start")
    until(lambda: len(work_done(folder)) == 9)
    process.kill()
    process.wait()
    let_go(folder)


def test_of_two_processes_that_resume_at_once_one_drives_and_the_other_fails(
    folder: Path, launch: Launch
) -> None:
    crashed_half_way(folder, launch)
    begun_before = len(work_done(folder))

    hold(folder, step=15)
    pair = [launch("resume"), launch("resume")]
    until(lambda: any(process.poll() is not None for process in pair))
    let_go(folder)
    outcomes = [outcome(process) for process in pair]

    assert sorted(outcomes) == ["190", "RunBusy"]
    times = Counter(number for _, number in work_done(folder))
    # Only the step that the crash cut off began again.
    assert sum(times.values()) <= 21
    assert set(times) == set(range(20))
    drivers = {pid for pid, _ in work_done(folder)[begun_before:]}
    assert len(drivers) == 1


def test_a_process_that_starts_a_live_run_again_changes_nothing(
    folder: Path, launch: Launch, effectflow: Command
) -> None:
    hold(folder, step=0)
    first = launch("start")
    until(lambda: len(work_done(folder)) == 1)
    before = effectflow("history", "r", "--store", "sqlite:///runs.db").out

    assert outcome(launch("start")) == "RunBusy"
    assert effectflow("list", "--store", "sqlite:///runs.db", "--resumable", "--json").json == []
    assert effectflow("history", "r", "--store", "sqlite:///runs.db").out == before

    let_go(folder)
    assert outcome(first) == "190"
    assert Counter(number for _, number in work_done(folder)) == Counter(range(20))


def test_list_tells_a_run_that_is_held_from_one_that_has_crashed(
    folder: Path, launch: Launch, effectflow: Command
) -> None:
    def found(*options: str) -> list[tuple[str, str]]:
        runs = effectflow("list", *options, "--store", "runs.db", "--json").json
        return [(run["run_id"], run["status"]) for run in runs]

    hold(folder, step=3)
    process = launch("start", lease_seconds=3600)
    until(lambda: len(work_done(folder)) == 4)
    assert found("--status", "running") == [("r", "running")]
    assert found("--status", "crashed") == []

    process.kill()
    process.wait()
    assert found("--status", "running") == []
    assert found("--status", "crashed") == [("r", "crashed")]
    assert found("--status", "crashed", "--status", "running", "--limit", "1") == [("r", "crashed")]
    assert found("--status", "failed") == []
    assert effectflow("list", "--store", "runs.db").out.splitlines()[1].split()[2] == "crashed"


def test_a_paused_process_writes_nothing_after_another_took_over_its_run(
    folder: Path, launch: Launch, effectflow: Command
) -> None:
    hold(folder, step=0)
    paused = launch("start", lease_seconds=1)
    until(lambda: len(work_done(folder)) == 1)
    os.kill(paused.pid, signal.SIGSTOP)
    taker = ""
    # Until the lease of the paused process expires, the other process fails.
    deadline = time.monotonic() + 30
    let_go(folder)
    while taker != "190":
        assert time.monotonic() < deadline
        taker = outcome(launch("resume"))
        assert taker in ("190", "RunBusy")
    journal = effectflow("history", "r", "--store", "sqlite:///runs.db").out
    done = work_done(folder)

    os.kill(paused.pid, signal.SIGCONT)

    assert outcome(paused) == "LeaseLost"
    assert effectflow("history", "r", "--store", "sqlite:///runs.db").out == journal
    assert work_done(folder) == done
