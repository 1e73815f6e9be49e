"""The first program of README.md, and the commands that it lists, work as written."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, ENVIRONMENT, ROOT, Command
from tests.pages import examples
from tests.programs import PIPE, Program, ran

README = ROOT / "README.md"

DIES = """    if amount == 7:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""


def first_program() -> str:
    return next(examples(README))


def execute(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the first program as its reader does."""
    return ran(
        ["first.py"],
        cwd=folder,
        env=ENVIRONMENT,
    )


@pytest.fixture
def killed(folder: Path) -> Path:
    """A folder with the first program, whose run was killed while it executed its last step."""
    charge = '    return f"paid {amount}"\n'
    assert first_program().count(charge) == 1
    (folder / "first.py").write_text(first_program().replace(charge, DIES + charge))
    assert execute(folder).returncode == -signal.SIGKILL
    (folder / "first.py").write_text(first_program())
    return folder


def test_the_first_program_prints_the_same_result_twice(folder: Path) -> None:
    (folder / "first.py").write_text(first_program())
    promised = re.findall(r"^ *# (<Success: .*>)$", first_program(), re.MULTILINE)

    assert [execute(folder).stdout.splitlines() for _ in range(2)] == [promised, promised]


def test_a_plan_of_the_killed_first_program_changes_nothing(
    effectflow: Command, killed: Path
) -> None:
    before = effectflow("history", "order-17").out

    planned = effectflow("plan", "order-17", "--app", "first")
    assert planned.out == "skip: 1 completed step\nstart: charge#2 (again)\n"
    assert effectflow("history", "order-17", "--app", "first").out == before
    shown = effectflow("show", "order-17", "--app", "first").out
    assert "crashed" in shown
    assert "BeforeStep: charge#2" in shown

    resumed = effectflow("resume", "order-17", "--app", "first")
    assert resumed.code == 0
    assert "paid 7" in resumed.out


def test_the_session_after_the_kill_goes_as_it_is_shown(effectflow: Command, killed: Path) -> None:
    block = README.read_text(encoding="utf-8").partition("<!-- killed-session -->")[2]
    session = block.split("```")[1].splitlines()[1:]
    commands = [line[2:] for line in session if line.startswith("$ effectflow")]
    # Only a charge that takes its time shows progress.
    shown = [line for line in session if not re.match(r"\$|\d+ steps done", line)]

    ended = [effectflow(*shlex.split(command)[1:]) for command in commands]
    text = "".join(each.err + each.out for each in ended)
    # The time of the checkpoint is that of the kill.
    assert (
        re.sub(r"of 20[-0-9]+ [+:0-9]+:", "of 2026-12-24 18:00:00+00:00:", text).splitlines()
        == shown
    )


def test_the_killed_first_program_continues_when_it_is_started_again(
    effectflow: Command, killed: Path
) -> None:
    assert "paid 7" in execute(killed).stdout
    assert effectflow("show", "order-17", "--json").json["status"] == "completed"


def table_of_commands() -> Sequence[str]:
    """Return the commands in the first column of the table."""
    section = (
        README.read_text(encoding="utf-8").partition("\n## Commands\n")[2].partition("\n## ")[0]
    )
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [command for row in rows for command in re.findall(r"`(effectflow [^`]*)`", row)]


def test_the_commands_of_the_table_work_as_written(effectflow: Command, killed: Path) -> None:
    commands = [one for one in table_of_commands() if "shop" not in one]

    assert len(commands) == 18
    for command in commands:
        ended = effectflow(*shlex.split(command)[1:])
        assert ended.code == 0, (command, ended)


def of_service(name: str) -> str:
    """Return the command of this name that the table shows for the service."""
    [found] = [one for one in table_of_commands() if "shop" in one and one.split()[1] == name]
    return found


def test_the_commands_of_the_service_work_as_written(folder: Path, effectflow: Command) -> None:
    run, worker, send = map(of_service, ("run", "worker", "send"))

    drive_until(folder, run, "waits for signal approval", code=3)
    assert "was sent signal 'approval'" in effectflow(*shlex.split(send)[1:]).out
    drive_until(folder, worker, "is released, completed", code=0)


def test_the_order_of_the_table_can_be_cancelled_while_it_waits(
    folder: Path, effectflow: Command
) -> None:
    run, worker, cancel = map(of_service, ("run", "worker", "cancel"))

    drive_until(folder, run, "waits for signal approval", code=3)
    assert "was asked to cancel itself" in effectflow(*shlex.split(cancel)[1:]).out
    drive_until(folder, worker, "is released, cancelled", code=0)


def started(folder: Path, command: str) -> Program:
    """Start a command of the table as if in the folder of the examples."""
    return Program(
        [*COMMAND, *shlex.split(command)[1:]],
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"},
        stdout=PIPE,
        stderr=subprocess.STDOUT,
    )


def drive_until(folder: Path, command: str, until: str, *, code: int) -> None:
    """Let a command run until it says this, and stop it. It must end with this code."""
    process = started(folder, command)
    assert process.stdout is not None
    alarm = threading.Timer(60, process.kill)
    alarm.start()
    said = ""
    for line in process.stdout:
        said += line
        if until in line:
            break
    process.terminate()
    rest, _ = process.communicate()
    alarm.cancel()
    assert until in said, said + rest
    assert process.returncode == code, said + rest
