"""`kill -9` at random moments of the demo: no durable step is lost, and none is repeated."""

from __future__ import annotations

import random
import signal
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.cli.conftest import ENVIRONMENT, Command
from tests.programs import Program, ran
from tests.sweeps import sample_or_all

FILES = 80

COUNTED = textwrap.dedent("""
    import os, time
    from contextlib import asynccontextmanager
    from effectflow.effects import from_fn
    from effectflow.cli import census
    from effectflow.cli.commands import main

    COORDINATOR = os.getpid()

    def log(name):
        with open("measured.log", "a") as log:
            log.write(name + "\\n")
            log.flush()
            os.fsync(log.fileno())
            is_enough = log.tell() >= int(os.environ.get("ENOUGH_BYTES", 10**9))
        if is_enough:
            time.sleep(60)

    class Logged:
        '''Logs each file after measuring it. Waits to be killed once enough files are logged.'''

        def __init__(self, executor):
            self.executor = executor

        def apply(self, function, item):
            coordinator = COORDINATOR

            def logged(item):
                assert os.getpid() != coordinator
                return function(item).tap(lambda _: from_fn(lambda _: log(item[1])))

            return self.executor.apply(logged, item)

    opened = census.environment

    @asynccontextmanager
    async def environment(checkpoints):
        async with opened(checkpoints) as env:
            yield census.CensusEnvironment(checkpoints, Logged(env.executor))

    census.environment = environment
    main()
""")
"""The command line, with an environment that logs what it measures."""


def write_source_files(folder: Path) -> None:
    """Write Python files that all differ, one of which cannot be parsed."""
    folder.mkdir()
    for number in range(FILES):
        lines = [f"def f{number}_{i}(x):\n    return x if x else {i}\n" for i in range(number % 40)]
        (folder / f"m{number:04}.py").write_text(f"import os, sys\n# {number}\n" + "".join(lines))
    (folder / "broken.py").write_text("def (:\n")


@sample_or_all("kills", 2, 6)
def test_a_demo_killed_many_times_reports_the_same_and_repeats_no_durable_step(
    folder: Path, effectflow: Command, kills: int
) -> None:
    write_source_files(folder / "code")
    whole = effectflow("demo", "code", "--report", "whole", "--run-id", "whole")
    assert whole.code == 0, whole
    assert "\n  effectflow resume whole\n" in whole.out
    chance = random.Random(20251126)
    log = folder / "measured.log"

    arguments = ["demo", "code", "--report", "killed", "--run-id", "killed", "--limit", "4"]
    completed_before: dict[str, int] = {}
    for kill in range(kills):
        # The first process dies somewhere in its first files, each later one further on.
        lines = kill * FILES // (kills + 2) + chance.randrange(10)
        enough = {"ENOUGH_BYTES": str((lines + 20) * len("m0000.py\n"))}
        process = Program(["-c", COUNTED, *arguments], env=ENVIRONMENT | enough)
        wait_for_lines(log, process, lines)
        time.sleep(chance.random() * 0.02)
        process.kill()
        assert process.wait() == -9, "the demo ended before it was killed"
        found = durable_steps(effectflow)
        assert completed_before.items() <= found.items(), "a durable step was lost or run again"
        completed_before = found
        if found:
            arguments = ["resume", "killed"]

    final = ran(
        ["-c", COUNTED, *arguments],
        env=ENVIRONMENT,
        check=True,
    )
    assert f"{len(completed_before)} skipped" in final.stdout
    assert (folder / "killed.json").read_bytes() == (folder / "whole.json").read_bytes()
    measured = Counter(log.read_text().split())
    attempts = effectflow("show", "killed", "--json").json["metadata"]["attempts"]
    assert set(measured) == {path.name for path in (folder / "code").iterdir()}
    for name, times in measured.items():
        # A file may be measured again only if its step was begun and not durably completed.
        assert times <= attempts[f"par_traverse[{name}]/measure_file"]
    assert sum(measured.values()) <= FILES + 1 + kills * 4


def test_ctrl_c_stops_the_demo_and_its_processes_and_a_resume_completes_it(
    folder: Path, effectflow: Command
) -> None:
    write_source_files(folder / "code")
    assert effectflow("demo", "code", "--report", "whole", "--run-id", "whole").code == 0

    arguments = ["demo", "code", "--report", "stopped", "--run-id", "stopped"]
    process = Program(
        ["-c", COUNTED, *arguments],
        env=ENVIRONMENT | {"ENOUGH_BYTES": str(40 * len("m0000.py\n"))},
    )
    wait_for_lines(folder / "measured.log", process, 40)
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 3
    assert psutil.wait_procs(workers, timeout=10)[1] == []

    resumed = effectflow("resume", "stopped", "--json").json
    assert resumed["status"] == "completed"
    assert resumed["steps_skipped"] > 30
    assert (folder / "stopped.json").read_bytes() == (folder / "whole.json").read_bytes()


def wait_for_lines(log: Path, process: Program, count: int) -> None:
    """Wait until the log has more than `count` lines, or the process has ended."""
    deadline = time.monotonic() + 30
    while process.poll() is None:
        assert time.monotonic() < deadline, "the demo makes no progress"
        if log.exists() and log.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.005)


def durable_steps(effectflow: Command) -> dict[str, int]:
    """Return each completed step and the attempt that completed it."""
    shown = effectflow("show", "killed", "--json")
    if shown.code == 2:
        return {}
    assert shown.code == 0, shown.err
    assert effectflow("history", "killed").code == 0
    return {step["step"]: step["attempt"] for step in shown.json["completed_steps"]}
