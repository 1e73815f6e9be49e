"""Signals to a process that drives a run, and a second process that tries to drive it too."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.conftest import COMMAND, ENVIRONMENT, Command
from tests.programs import PIPE, Program

WAITING = textwrap.dedent("""
    from pathlib import Path
    import anyio
    from effectflow import Do, Effect, sleep, step, workflow
    from effectflow.effects import from_async

    @step
    def wait_for(name: str) -> Effect[object, str, str]:
        async def wait(_):
            print("waiting", flush=True)
            while not Path(name).exists():
                await anyio.sleep(0.01)
            return "came"
        return from_async(wait)

    @workflow
    def patient(name: str) -> Do[object, str, str]:
        return (yield from wait_for(name))

    @workflow
    def stubborn(name: str) -> Do[object, str, None]:
        async def hold(_):
            print("holding", flush=True)
            await anyio.sleep(60)
        never = from_async(lambda _: anyio.sleep_forever()).on_exit(from_async(hold))
        print("waiting", flush=True)
        yield from never

    @workflow
    def idle(name: str) -> Do[object, str, None]:
        print("waiting", flush=True)
        yield from sleep(60)
""")

Start: TypeAlias = Callable[[str], Program]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start run `r1` of a workflow in a process, and return once it waits for the file `flag`."""
    (folder / "waits.py").write_text(WAITING)
    processes: list[Program] = []

    def start(workflow: str) -> Program:
        arguments = ["run", f"waits:{workflow}", "--input", '"flag"', "--run-id", "r1"]
        process = Program([*COMMAND, *arguments], env=ENVIRONMENT, stdout=PIPE)
        processes.append(process)
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_run_and_a_resume_completes_it(
    effectflow: Command, folder: Path, start: Start, number: signal.Signals
) -> None:
    process = start("patient")
    busy = effectflow("resume", "r1", "--app", "waits")
    assert busy.code == 4
    assert f"process {process.pid} on " in busy.out

    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "effectflow resume r1 --app waits:patient" in out

    shown = effectflow("show", "r1", "--json").json
    assert shown["status"] == "interrupted"
    assert shown["state"]["entry"] == "interrupted"
    assert shown["state"]["reason"] == number.name
    (folder / "flag").touch()
    resumed = effectflow("resume", "--latest", "--app", "waits")
    assert resumed.code == 0
    assert "came" in resumed.out


def test_a_run_interrupted_between_its_steps_is_not_shown_in_a_step(
    effectflow: Command, start: Start
) -> None:
    process = start("idle")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 3
    assert "Interrupted: no step" in effectflow("show", "r1").out


def test_a_second_signal_ends_the_process_at_once(start: Start) -> None:
    process = start("stubborn")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert "A second signal ends the process at once" in process.stdout.readline()
    assert "holding" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT
