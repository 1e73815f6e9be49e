"""`effectflow worker` as a process: it drains, is killed while others go on, and logs what it does."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from returns.result import Success

from effectflow.checkpoint import RunStatus
from tests.cli.conftest import COMMAND, ENVIRONMENT, Command
from tests.cli.services import submitted, until, with_handle, write_mall
from tests.programs import PIPE, Program
from tests.stores.servers import wait_for

APP = ("--app", "mall:app")

Work: TypeAlias = Callable[..., Program]


@pytest.fixture
def mall(folder: Path) -> Any:
    return write_mall(folder)


@pytest.fixture
def work(folder: Path, mall: Any) -> Iterator[Work]:
    """Start a worker in a process, and return once it takes runs."""
    processes: list[Program] = []

    def start(*options: str, app: str = "mall:app") -> Program:
        process = Program([*COMMAND, "worker", app, *options], env=ENVIRONMENT, stderr=PIPE)
        processes.append(process)
        assert process.stderr is not None
        assert f"the worker of {app} takes runs of " in process.stderr.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def end_of(worker: Program) -> str:
    """Wait for the end of a worker. Return what it has logged since the line that was read last."""
    assert worker.stderr is not None
    rest = worker.stderr.read()
    worker.wait(60)
    return rest


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_sigterm_lets_steps_in_progress_end_and_begins_nothing_more(
    folder: Path, mall: Any, work: Work
) -> None:
    worker = work("--grace", "60")
    submitted(mall, "pack", "flag", "p1")
    wait_for(lambda: bool(lines_of(folder / "begun")), seconds=60)

    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    told = iter(worker.stderr.readline, "")
    assert any("SIGTERM: steps in progress may end" in line for line in told)
    (folder / "flag").touch()
    rest = end_of(worker)
    assert worker.returncode == 0
    assert " INFO    [pack p1] run 'p1' of 'pack' is released, interrupted" in rest
    # The step has ended, and the next one was not begun.
    assert len(lines_of(folder / "begun")) == 1
    assert lines_of(folder / "notes") == ["picked"]

    work()
    assert with_handle(mall, "pack", "p1", lambda p: p.result(timeout=60)) == Success("packed")
    assert lines_of(folder / "notes") == ["picked", "sent"]
    assert len(lines_of(folder / "begun")) == 1


def test_a_second_signal_interrupts_the_steps_at_once(
    effectflow: Command, folder: Path, mall: Any, work: Work
) -> None:
    worker = work("--grace", "600")
    submitted(mall, "pack", "flag", "p1")
    wait_for(lambda: bool(lines_of(folder / "begun")), seconds=60)

    assert worker.stderr is not None
    told = iter(worker.stderr.readline, "")
    worker.send_signal(signal.SIGINT)
    assert any("SIGINT: steps in progress may end" in line for line in told)
    worker.send_signal(signal.SIGINT)
    rest = end_of(worker)
    assert worker.returncode == 0
    assert "SIGINT again: steps in progress are interrupted" in rest

    shown = effectflow("show", "p1", *APP, "--json").json
    assert (shown["status"], shown["state"]["in_progress"]) == ("interrupted", True)
    assert shown["state"]["reason"] == "SIGINT"
    assert until(mall, "p1", RunStatus.INTERRUPTED).lease is None


def test_a_run_whose_worker_is_killed_has_crashed_and_another_worker_continues_it(
    effectflow: Command, folder: Path, mall: Any, work: Work
) -> None:
    first = work()
    submitted(mall, "pack", "flag", "p1")
    wait_for(lambda: bool(lines_of(folder / "begun")), seconds=60)
    first.kill()
    first.wait()
    [crashed] = effectflow("list", "--status", "crashed", *APP, "--json").json
    assert crashed["run_id"] == "p1"
    assert "crashed" in effectflow("show", "p1", *APP).out

    work()
    wait_for(lambda: len(lines_of(folder / "begun")) == 2, seconds=60)
    (folder / "flag").touch()
    assert with_handle(mall, "pack", "p1", lambda p: p.result(timeout=60)) == Success("packed")
    # The step that was complete was not executed again.
    assert lines_of(folder / "notes") == ["picked", "sent"]
    assert effectflow("history", "p1", *APP).out.count(", after a crash") == 1


def test_signals_and_cancellation_come_from_other_processes(
    effectflow: Command, mall: Any, work: Work
) -> None:
    for run_id in ("by client", "by command", "cancelled"):
        submitted(mall, "order", 5, run_id)
    worker = work("--limit", "5", "--json")
    for run_id in ("by client", "by command", "cancelled"):
        until(mall, run_id, RunStatus.SUSPENDED)

    with_handle(mall, "order", "by client", lambda o: o.send(mall.approval, mall.Approval("bob")))
    assert effectflow("send", "by command", "mall:approval", '{"by": "ann"}', *APP).code == 0
    assert effectflow("cancel", "cancelled", *APP).code == 0
    for run_id, by in (("by client", "bob"), ("by command", "ann")):
        result = with_handle(mall, "order", run_id, lambda o: o.result(timeout=60))
        assert result == Success(f"approved by {by}")
    until(mall, "cancelled", RunStatus.CANCELLED)

    worker.send_signal(signal.SIGTERM)
    rest = end_of(worker)
    logged = [json.loads(line) for line in rest.splitlines()]
    assert all(line["level"] == "info" for line in logged), logged
    messages = [line["message"] for line in logged]
    assert "run 'by client' of 'order' is taken, pending" in messages
    assert (
        "run 'by client' of 'order' is released, suspended, waits for signal approval" in messages
    )
    assert "run 'cancelled' of 'order' is released, cancelled" in messages
    assert {line.get("run_id") for line in logged if line.get("workflow") == "order"} == {
        "by client",
        "by command",
        "cancelled",
    }
    assert messages[-1] == "the worker of mall:app has ended"


def test_the_health_of_a_worker_is_served_until_it_ends(
    effectflow: Command, mall: Any, work: Work
) -> None:
    worker = work("--health-port", "0")
    assert worker.stderr is not None
    port = int(worker.stderr.readline().rpartition(":")[2])
    with urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        assert json.load(answer)["is_healthy"] is True
    taken = effectflow("worker", "mall:app", "--health-port", str(port))
    assert taken.code == 2
    assert f"--health-port {port}: " in taken.err

    worker.send_signal(signal.SIGTERM)
    end_of(worker)
    assert worker.returncode == 0
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/", timeout=10)


PACKED_ANEW = """
import logging

from effectflow import App, Do, step, workflow
from effectflow.runs import StepMigration
from mall import Shop, app as before

@step
async def seal(name: str) -> str:
    logging.getLogger("renewed").warning("sealing %s", name)
    return "sealed"

@workflow(name="pack", version="2", migrations={1: StepMigration()})
def pack(name: str) -> Do[Shop, str, str]:
    return (yield from seal(name))

app = App[Shop]([pack], environment=Shop, checkpoints=before.checkpoints)
"""


def test_a_pinned_worker_leaves_runs_of_an_earlier_version_that_it_could_migrate(
    folder: Path, mall: Any, work: Work
) -> None:
    (folder / "renewed.py").write_text(PACKED_ANEW)
    submitted(mall, "pack", "flag", "old")
    submitted(import_module("renewed"), "pack", "flag", "new")
    pinned = work("--pinned", app="renewed:app")
    assert with_handle(mall, "pack", "new", lambda p: p.result(timeout=60)) == Success("sealed")
    left = until(mall, "old", RunStatus.BLOCKED)
    assert "the run is of version '1', and this worker takes '2'" in left.summary.details.blocked
    pinned.send_signal(signal.SIGTERM)
    assert " WARNING [pack new seal#1] sealing flag\n" in end_of(pinned)


def test_a_worker_that_cannot_make_its_environment_says_so(
    effectflow: Command, folder: Path
) -> None:
    (folder / "broken.py").write_text(
        "from effectflow import App, Checkpoints\n"
        "from effectflow.stores import MemoryStore\n"
        "def environment(checkpoints):\n    raise KeyError('DB_URL')\n"
        "app = App([], environment=environment, checkpoints=Checkpoints(MemoryStore()))\n"
    )
    ran = effectflow("worker", "broken:app")
    assert ran.code == 2
    assert "`environment` of the App raised KeyError: 'DB_URL'" in ran.err
