"""What the commands and the log of a worker say about runs that failed, were refused or are cancelled."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from effectflow.checkpoint import RunStatus
from effectflow.service import Worker
from tests.cli.conftest import COMMAND, ENVIRONMENT, Command
from tests.cli.services import driven, submitted, until, with_handle, write_mall
from tests.programs import Program
from tests.stores.servers import wait_for

APP = ("--app", "mall:app")


@pytest.fixture
def mall(folder: Path) -> Any:
    return write_mall(folder)


def failing(mall: Any, caplog: pytest.LogCaptureFixture, run_id: str) -> logging.LogRecord:
    """Let a worker drive a run that fails, and return the warning about it."""

    async def drive() -> None:
        async with Worker(mall.app):
            with anyio.fail_after(30):
                while not any(f"run {run_id!r} has failed" in one for one in caplog.messages):
                    await anyio.sleep(0.01)

    anyio.run(drive)
    until(mall, run_id, RunStatus.FAILED)
    [warning] = [one for one in caplog.records if f"run {run_id!r} has failed" in one.message]
    assert warning.levelno == logging.WARNING
    return warning


def test_a_worker_logs_the_failure_of_a_run(mall: Any, caplog: pytest.LogCaptureFixture) -> None:
    submitted(mall, "order", 5, "o")
    driven(mall, "o")
    refusal = mall.Approval("bob", is_given=False)
    with_handle(mall, "order", "o", lambda order: order.send(mall.approval, refusal))

    assert failing(mall, caplog, "o").message == "run 'o' has failed: 'bob declined'"


def test_a_worker_logs_the_traceback_of_a_defect(
    folder: Path, mall: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "notes").mkdir()
    submitted(mall, "pack", "box", "p")

    warning = failing(mall, caplog, "p")
    assert "run 'p' has failed with a defect: IsADirectoryError" in warning.message
    assert warning.exc_info is not None
    assert isinstance(warning.exc_info[1], IsADirectoryError)


def test_cancel_says_that_the_request_is_pending_and_what_carries_it_out(
    effectflow: Command, mall: Any
) -> None:
    submitted(mall, "order", 5, "o")
    driven(mall, "o")

    said = effectflow("cancel", "o", *APP).out
    assert "the request is pending" in said
    command = said.rpartition("this does: effectflow ")[2].split()
    assert command == ["resume", "o", *APP]

    assert "Run o: cancelled" in effectflow(*command).out
    last = effectflow("history", "o", *APP).out.splitlines()[-1]
    assert last.endswith("  Finished     cancelled")


def test_cancel_of_a_run_that_a_process_drives_does_not_say_that_it_is_pending(
    effectflow: Command, folder: Path, mall: Any
) -> None:
    submitted(mall, "pack", "box", "p")
    worker = Program([*COMMAND, "worker", "mall:app"], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        wait_for((folder / "begun").exists, seconds=60)
        said = effectflow("cancel", "p", *APP).out
    finally:
        worker.kill()
        worker.wait()
    # It may be cancelled already.
    assert re.fullmatch(
        r"Run p was asked to cancel itself\. Its status is (running|cancelled)\.\n", said
    )


def test_a_run_id_of_another_run_is_refused_without_the_word_error(
    effectflow: Command, mall: Any
) -> None:
    first = effectflow("run", "named", *APP, "--run-id", "r")
    assert first.code == 0

    refused = effectflow("run", "remind", "--input", "1", *APP, "--run-id", "r")
    assert refused.code == 4
    assert "Run r: refused; " in refused.out
    assert "checkpoint error" not in refused.out + refused.err
    again = effectflow("run", "remind", "--input", "1", *APP, "--run-id", "r", "--json")
    assert again.json["status"] == "refused"


def test_cancel_of_a_run_that_a_process_holds_leaves_it_to_that(
    effectflow: Command, folder: Path, mall: Any
) -> None:
    submitted(mall, "pack", "box", "p")
    worker = Program([*COMMAND, "worker", "mall:app"], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        wait_for((folder / "begun").exists, seconds=60)
        worker.send_signal(signal.SIGSTOP)  # it does not cancel the run meanwhile
        said = effectflow("cancel", "p", "--store", "mall.db").out
    finally:
        worker.kill()
        worker.wait()
    assert said == "Run p was asked to cancel itself. Its status is running.\n"


def test_the_note_of_a_run_ends_at_the_edge_of_a_terminal(
    effectflow: Command, mall: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(mall, "order", 5, "o1")
    value = json.dumps({"by": "ann and everyone else", "is_given": False})
    assert effectflow("send", "o1", "approval", value, *APP).code == 0
    driven(mall, "o1")

    _, piped = effectflow("list", *APP).out.splitlines()
    monkeypatch.setattr("effectflow.cli.list_runs.terminal_width", lambda: 72)
    _, shown = effectflow("list", *APP).out.splitlines()

    assert piped.endswith("str: ann and everyone else declined")
    assert (len(shown), shown) == (72, f"{piped[:69]}...")
