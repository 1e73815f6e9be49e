"""The commands open and close the environment of a workflow that needs it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SQUARES = textwrap.dedent("""
    import os
    from contextlib import asynccontextmanager
    from dataclasses import dataclass
    from pathlib import Path
    from effectflow import Checkpoints, MapReduce, effect, pure
    from effectflow.executors import ProcessExecutor

    COORDINATOR = os.getpid()

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints

    @effect(errors=OSError)
    def square(_, coordinator_and_number):
        coordinator, number = coordinator_and_number
        assert os.getpid() != coordinator
        if number == 3:
            Path("ready").read_text()
        return number * number

    executor = ProcessExecutor(workers=1)
    squares = MapReduce(
        "squares",
        items=lambda count: [(COORDINATOR, number) for number in range(count)],
        map=square,
        reduce=lambda values: pure(sum(values)),
        key=lambda item: item[1],
        max_parallel=1,
        executor=executor,
    )

    @asynccontextmanager
    async def environment(checkpoints):
        with open("log", "a") as log:
            log.write("opened\\n")
            async with executor:
                yield App(checkpoints)
            log.write("closed\\n")
""")


@pytest.fixture(autouse=True)
def squares(folder: Path) -> None:
    (folder / "numbers_.py").write_text(SQUARES)


def test_a_job_on_a_pool_of_processes_is_run_planned_and_resumed(
    effectflow: Command, folder: Path
) -> None:
    failed = effectflow("run", "numbers_:squares", "--input", "5", "--run-id", "s")
    assert failed.code == 1
    assert "FileNotFoundError" in failed.out
    assert (folder / "log").read_text() == "opened\nclosed\n"

    # A plan runs no items, so it opens nothing.
    plan = effectflow("plan", "s", "--app", "numbers_", "--json")
    assert len(plan.json["skip"]) == 3
    assert (folder / "log").read_text() == "opened\nclosed\n"

    (folder / "ready").touch()
    resumed = effectflow("resume", "s", "--app", "numbers_", "--json")
    assert resumed.code == 0, resumed.err
    assert "30" in resumed.out
    assert (folder / "log").read_text() == "opened\nclosed\n" * 2
