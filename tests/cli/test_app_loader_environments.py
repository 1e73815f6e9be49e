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
    from effectflow import Checkpoints, effect, pure
    from effectflow.mapreduce import MapReduce
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

    executor = ProcessExecutor(limit=1)
    squares = MapReduce(
        "squares",
        items=lambda count: [(COORDINATOR, number) for number in range(count)],
        map=square,
        reduce=lambda values: pure(sum(values)),
        key=lambda item: item[1],
        limit=1,
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

    plan = effectflow("plan", "s", "--app", "numbers_", "--json")
    assert len(plan.json["skip"]) == 3
    assert (folder / "log").read_text() == "opened\nclosed\n" * 2

    (folder / "ready").touch()
    resumed = effectflow("resume", "s", "--app", "numbers_", "--json")
    assert resumed.code == 0, resumed.err
    assert "30" in resumed.out
    assert (folder / "log").read_text() == "opened\nclosed\n" * 3


ENVIRONMENTS = textwrap.dedent("""
    from contextlib import asynccontextmanager, contextmanager
    from dataclasses import dataclass
    from typing import Any, Never, Protocol
    import anyio
    from effectflow import (
        Checkpoints,
        Do,
        Effect,
        HasCheckpoints,
        Workflow,
        effect,
        pure,
        step,
        workflow,
    )
    from effectflow.effects import from_fn
    from effectflow.graphs import StateGraph
    from effectflow.iterative import Iterative
    from effectflow.machines import Moved, StateMachine, Transition
    from effectflow.mapreduce import MapReduce
    from effectflow.effects import Executor
    from effectflow.executors import LocalExecutor

    @workflow
    def pay(amount: int) -> "Do[App, str, int]":
        return (yield from charge(amount))

    @dataclass(frozen=True)
    class App:
        checkpoints: Checkpoints
        limit: int

        def bank(self) -> str:
            return "bank"

    class HasExecutor(HasCheckpoints, Protocol):
        executor: Executor

    @step
    def charge(amount: int) -> Effect[App, str, int]:
        return from_fn(lambda env: env.limit + amount)

    @effect
    def refund(app: App, amount: int) -> int:
        return app.limit - amount

    @workflow
    def plain(amount: int) -> Do[HasCheckpoints, str, int]:
        return (yield from pure(amount))

    def keep(amount: int) -> Effect[HasCheckpoints, Never, int]:
        return pure(amount)

    def unknown(amount):
        return from_fn(lambda env: env.limit)

    def total(amounts: list[int]) -> Effect[Any, Never, int]:
        return pure(sum(amounts))

    def transfer() -> Effect[App, Never, Moved[str]]:
        return from_fn(lambda env: Moved("paid"))

    def machine(name, action):
        transition = Transition("transfer", "new", "paid", action)
        return StateMachine(name, initial="new", transitions=[transition], final={"paid"})

    def graph(name, body):
        return StateGraph[Any, Any, int](name).node("node", body).entry("node").exit("node")

    def job(name, map, reduce=total, **options):
        return MapReduce(
            name, items=lambda n: [n], map=map, reduce=reduce, key=str, limit=1, **options
        )

    steps = Workflow.of_steps("steps", [keep, charge])
    acting = Workflow.of_steps("acting", [refund])
    moving = machine("moving", transfer)
    nodes = graph("nodes", charge).build()
    both = StateGraph[Any, Any, int]("branches").parallel("both", {"a": charge}, lambda n, _: n)
    branches = both.entry("both").exit("both").build()
    nested = graph("nested", steps).build()
    declared = StateGraph[App, Never, int]("declared").node("n", keep).entry("n").exit("n").build()
    mapping = job("mapping", charge)
    reducing = job("reducing", keep, refund)
    executing = job("executing", keep, executor=lambda app: app.executor)
    rounds = Iterative("rounds", charge, converged=lambda a, b: True, max_rounds=2)

    def executor_of(app: HasExecutor) -> Executor:
        return app.executor

    injected = job("injected", keep, executor=executor_of)

    plain_steps = Workflow.of_steps("plain_steps", [keep])
    plain_machine = machine("plain_machine", None)
    plain_graph = graph("plain_graph", keep).build()
    # The items of an executor may run in the environment of a worker.
    plain_job = job("plain_job", charge, executor=LocalExecutor())
    plain_rounds = Iterative("plain_rounds", keep, converged=lambda a, b: True, max_rounds=2)
    unannotated = Workflow.of_steps("unannotated", [unknown])
""")

NEED_THE_APP = [
    "pay",
    "steps",
    "acting",
    "moving",
    "nodes",
    "branches",
    "nested",
    "declared",
    "mapping",
    "reducing",
    "rounds",
]
NEED_CHECKPOINTS = ["plain", "plain_steps", "plain_machine", "plain_graph", "plain_rounds"]

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

    ran = effectflow("run", "payments:pay", "--input", "1", "--run-id", "never-begun")
    assert (ran.code, ran.out) == (2, "")
    assert "`environment(checkpoints)` of module 'payments'" in ran.err
    assert "never-begun" not in ran.err
    assert not (folder / "effectflow.db").exists()
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


@pytest.mark.parametrize("name", NEED_THE_APP)
def test_a_missing_environment_is_reported_before_a_run_is_named(
    effectflow: Command, folder: Path, name: str
) -> None:
    write_module(folder, "")

    ran = effectflow("run", f"payments:{name}", "--input", "1", "--run-id", "never-begun")
    assert (ran.code, ran.out) == (2, "")
    assert "module 'payments' has no function `environment(checkpoints)`" in ran.err
    assert f"workflow {name!r} needs an environment with bank, limit (App)" in ran.err
    assert "never-begun" not in ran.err
    assert not (folder / "effectflow.db").exists()


@pytest.mark.parametrize("name", NEED_CHECKPOINTS)
def test_a_workflow_that_needs_only_checkpoints_works_without_an_environment_function(
    effectflow: Command, folder: Path, name: str
) -> None:
    write_module(folder, "")

    given = "null" if "machine" in name else "1"
    ran = effectflow("run", f"payments:{name}", "--input", given, "--run-id", "p1")
    assert (ran.code, ran.err) == (0, "")
    assert effectflow("plan", "p1", "--app", "payments").code == 0


def test_a_missing_environment_is_reported_by_every_command_that_needs_it(
    effectflow: Command, folder: Path
) -> None:
    write_module(folder, "def environment(checkpoints):\n    return App(checkpoints, None)")
    assert effectflow("run", "payments:steps", "--input", "1", "--run-id", "p1").code == 1
    before = effectflow("history", "p1").out
    write_module(folder, "")
    del sys.modules["payments"]

    for command in (
        ("resume", "p1"),
        ("resume", "--all"),
        ("plan", "p1"),
        ("dead-letters", "p1", "--retry"),
    ):
        ran = effectflow(*command, "--app", "payments")
        assert (ran.code, ran.out) == (2, "")
        assert "module 'payments' has no function `environment(checkpoints)`" in ran.err
    assert effectflow("history", "p1").out == before


def test_an_executor_from_the_environment_is_asked_for(effectflow: Command, folder: Path) -> None:
    write_module(folder, "")
    ran = effectflow("run", "payments:injected", "--input", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "needs an environment with executor (HasExecutor)" in ran.err


@pytest.mark.parametrize("name", ["unannotated", "plain_job"])
def test_what_no_annotation_declares_is_reported_when_it_is_used(
    effectflow: Command, folder: Path, name: str
) -> None:
    write_module(folder, "")
    ran = effectflow("run", f"payments:{name}", "--input", "1")
    assert ran.code == 1
    assert "not 'limit': define a function `environment(checkpoints)`" in ran.err


@pytest.mark.parametrize(
    "environment",
    [
        "def environment(checkpoints):\n    return App(checkpoints, 5)",
        "async def environment(checkpoints):\n    await anyio.sleep(0)\n    return App(checkpoints, 5)",
        "@asynccontextmanager\nasync def environment(checkpoints):\n    yield App(checkpoints, 5)",
        "@contextmanager\ndef environment(checkpoints):\n    yield App(checkpoints, 5)",
    ],
)
def test_an_environment_is_made_by_a_plain_or_async_function_or_a_context_manager(
    effectflow: Command, folder: Path, environment: str
) -> None:
    write_module(folder, environment)
    ran = effectflow("run", "payments:steps", "--input", "1", "--run-id", "r", "--json")
    assert (ran.code, ran.json["output"]) == (0, 6)


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
