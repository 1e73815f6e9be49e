"""The example of map-reduce, as a user runs it: killed in the middle, it ends as if it had not been."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import Checkpoint, RunNotFound, RunStatus, read_checkpoint
from effectflow.stores import SqliteStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "word_statistics.py"
EACH_EXECUTOR = pytest.mark.parametrize(
    "executor",
    [
        "processes",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("local", "dask")),
    ],
)
"""The executors have tests of their own, in which a cluster outlives a killed coordinator."""

LIBRARY = Path(os.__file__).parent


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), *arguments]


def output_of(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        command(*arguments), cwd=folder, check=True, capture_output=True, text=True, timeout=120
    ).stdout


async def read(store: Path, run_id: str) -> Checkpoint | None:
    async with SqliteStore(store) as opened:
        try:
            return await read_checkpoint(opened, run_id)
        except RunNotFound:
            return None


def durable_steps(folder: Path) -> dict[str, int]:
    """The steps whose completion is durable, and the attempt that completed each."""
    checkpoint = anyio.run(read, folder / "words.db", "words")
    if checkpoint is None:
        return {}
    assert checkpoint.status is RunStatus.RUNNING, "it ended before it could be killed"
    return {step.step: step.attempt for step in checkpoint.completed_steps}


def some_durable_steps(folder: Path) -> dict[str, int]:
    """Wait until there are some."""
    deadline = time.monotonic() + 60
    while len(done := durable_steps(folder)) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the example prints of the standard library when it is not interrupted."""
    return output_of(tmp_path_factory.mktemp("whole"))


@pytest.mark.exhaustive
@EACH_EXECUTOR
def test_killed_in_the_middle_it_continues_to_the_same_report(
    tmp_path: Path, whole: str, executor: str
) -> None:
    arguments = ("--executor", executor)
    process = subprocess.Popen(command(*arguments), cwd=tmp_path, stdout=subprocess.DEVNULL)
    done = some_durable_steps(tmp_path)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done |= durable_steps(tmp_path)

    assert output_of(tmp_path, *arguments) == whole

    checkpoint = anyio.run(read, tmp_path / "words.db", "words")
    assert checkpoint is not None
    assert checkpoint.metadata.resumes == 1
    attempts = {step.step: step.attempt for step in checkpoint.completed_steps}
    assert done.items() <= attempts.items(), "a step that was durable was run again"
    assert len(attempts) > len(done)


@pytest.mark.exhaustive
@EACH_EXECUTOR
def test_ctrl_c_stops_it_without_a_traceback_of_its_workers(tmp_path: Path, executor: str) -> None:
    process = subprocess.Popen(
        command("--executor", executor),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    some_durable_steps(tmp_path)
    # As the terminal does it: to all processes that it knows of.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert err.endswith("stopped by SIGINT; start it again to continue\n")
    assert "Traceback" not in err


@pytest.mark.exhaustive
@EACH_EXECUTOR
def test_the_report_is_the_same_wherever_the_files_are_counted(
    tmp_path: Path, executor: str
) -> None:
    folder = str(LIBRARY / "json")

    report = output_of(tmp_path, folder, "--executor", executor, "--run-id", "elsewhere")

    assert report == output_of(tmp_path, folder, "--executor", "local", "--run-id", "here")


def test_a_file_that_is_not_text_is_named_and_can_be_retried_alone(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for source in (LIBRARY / "json").glob("*.py"):
        shutil.copy(source, folder)
    (folder / "latin.txt").write_bytes("naïve café".encode("latin-1"))

    first = output_of(tmp_path, "texts")
    assert "not counted: latin.txt (UnicodeDecodeError)" in first

    (folder / "latin.txt").write_text("naïve café", encoding="utf-8")
    retried = output_of(tmp_path, "texts", "--retry")
    assert "not counted" not in retried
    assert retried == output_of(tmp_path, "texts", "--run-id", "at once")


def test_its_numbers_are_right(tmp_path: Path) -> None:
    texts = {"a.txt": "One two, two.", "b.txt": "TWO three-four 5", "c.md": ""}
    (tmp_path / "texts").mkdir()
    for name, text in texts.items():
        (tmp_path / "texts" / name).write_text(text)

    lines = output_of(tmp_path, "texts").splitlines()

    assert lines[0] == "3 files, 6 words, 4 of them different"
    assert [line.split() for line in lines[1:]] == [
        ["3", "two"],
        ["1", "four"],
        ["1", "one"],
        ["1", "three"],
    ]
