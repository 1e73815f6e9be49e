"""The commands open and close the environment of a workflow that needs it."""

from __future__ import annotations

import sys
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


ENVIRONMENTS = textwrap.dedent("""
    from contextlib import asynccontextmanager
    from dataclasses import dataclass
    import anyio
    from effectflow import (
        Checkpoints, Do, Effect, HasCheckpoints, Workflow, from_fn, pure, step, workflow,
    )

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints
        limit: int

        def bank(self) -> str:
            return "bank"

    @step
    def charge(amount: int) -> Effect[App, str, int]:
        return from_fn(lambda env: env.limit + amount)

    @workflow
    def pay(amount: int) -> Do[App, str, int]:
        return (yield from charge(amount))

    @workflow
    def plain(amount: int) -> Do[HasCheckpoints, str, int]:
        return (yield from pure(amount))

    steps = Workflow.of_steps("steps", [charge])
""")

FAILING = {
    "raises": "def environment(checkpoints):\n    raise KeyError('DB_URL')",
    "cannot be entered": """
        @asynccontextmanager
        async def environment(checkpoints):
            async with anyio.create_task_group():
                raise ConnectionError("no database")
            yield
    """,
    "takes nothing": "def environment():\n    return App(None, 1)",
    "has no checkpoints": "def environment(checkpoints):\n    return 5",
    "exits": "def environment(checkpoints):\n    raise SystemExit(3)",
}


def write_module(folder: Path, environment: str) -> None:
    (folder / "payments.py").write_text(ENVIRONMENTS + textwrap.dedent(environment))


@pytest.mark.parametrize("how", FAILING)
def test_a_failing_environment_is_reported_before_a_run_is_named(
    effectflow: Command, folder: Path, how: str
) -> None:
    write_module(folder, FAILING[how])

    ran = effectflow("run", "payments:pay", "--input", "1", "--run-id", "p1")
    assert (ran.code, ran.out) == (2, "")
    assert "`environment(checkpoints)` of module 'payments'" in ran.err
    assert "p1" not in ran.err
    assert effectflow("show", "p1").code == 2
    said = {"raises": "KeyError: 'DB_URL'", "cannot be entered": "ConnectionError: no database"}
    assert said.get(how, "environment") in ran.err


def test_a_failing_environment_of_a_resume_leaves_the_run_alone(
    effectflow: Command, folder: Path
) -> None:
    write_module(folder, "def environment(checkpoints):\n    return App(checkpoints, None)")
    assert effectflow("run", "payments:pay", "--input", "1", "--run-id", "p1").code == 1
    before = effectflow("history", "p1").out
    write_module(folder, FAILING["raises"])
    del sys.modules["payments"]

    for choice in ("p1", "--all"):
        ran = effectflow("resume", choice, "--app", "payments")
        assert (ran.code, ran.out) == (2, "")
        assert "the environment could not be made" in ran.err
    assert effectflow("history", "p1").out == before


def test_a_missing_environment_is_reported_with_what_it_needs(
    effectflow: Command, folder: Path
) -> None:
    write_module(folder, "")

    ran = effectflow("run", "payments:pay", "--input", "1", "--run-id", "p1")
    assert (ran.code, ran.out) == (2, "")
    assert "'pay' needs an environment with bank, limit (App): define a function" in ran.err
    assert "in module 'payments'" in ran.err
    assert effectflow("run", "payments:plain", "--input", "1").code == 0
    # A list of steps has no annotation of its own: what is missing shows when it is used.
    ran = effectflow("run", "payments:steps", "--input", "1")
    assert ran.code == 1
    assert "not 'limit': define a function `environment(checkpoints)`" in ran.err


def test_an_environment_that_fails_to_close_does_not_hide_how_the_run_ended(
    effectflow: Command, folder: Path
) -> None:
    write_module(
        folder,
        """
        @asynccontextmanager
        async def environment(checkpoints):
            yield App(checkpoints, 1)
            raise ConnectionError("the database went away")
        """,
    )

    ran = effectflow("run", "payments:pay", "--input", "1", "--run-id", "p1")
    assert ran.code == 0
    assert "Run p1: completed" in ran.out
    assert "ConnectionError: the database went away" in ran.err
    assert "The environment failed to close" in ran.err
