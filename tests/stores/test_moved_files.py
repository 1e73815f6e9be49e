"""FileStore: runs whose files other programs have copied, moved, or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, fail, pure, step, workflow
from effectflow.checkpoint import CorruptCheckpoint, LeaseLost, export_run, import_run, verify_run
from effectflow.effects import from_fn
from effectflow.stores import FileStore
from effectflow.testing import FaultyStore
from tests.apps import App

pytestmark = pytest.mark.anyio


@step
def say(word: str) -> Effect[App, str, str]:
    return pure(word)


@step
def end() -> Effect[App, str, str]:
    return fail("no end")


@workflow
def story(words: int) -> Do[App, str, str]:
    for number in range(words):
        yield from say(str(number))
    return (yield from end())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    async with FileStore(tmp_path) as store:
        yield store


def copied_without_empty_folders(source: Path, target: Path) -> None:
    """Copy as git, object stores and some archives do."""
    shutil.copytree(source, target)
    for folder, _, _ in os.walk(target, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


async def test_a_run_copied_without_its_empty_folders_is_not_removed(
    store: FileStore, tmp_path: Path
) -> None:
    await story.start(3, run_id="r").run(App(Checkpoints(store)))
    exported = await export_run(store, "r")
    copied_without_empty_folders(tmp_path, tmp_path / "copy")

    async with FileStore(tmp_path / "copy") as copy:
        assert await import_run(copy, exported) is False
        assert await export_run(copy, "r") == exported


@pytest.mark.parametrize("history", [0, 10])
async def test_a_run_copied_without_its_empty_folders_can_be_resumed(
    tmp_path: Path, history: int
) -> None:
    store = FileStore(tmp_path / "store", history=history)
    await story.start(45, run_id="r").run(App(Checkpoints(store)))
    copied_without_empty_folders(tmp_path / "store", tmp_path / "copy")

    async with FileStore(tmp_path / "copy", history=history) as copy:
        # Each resume fails and adds entries, until some are moved to `entries`.
        for _ in range(3):
            result = await story.resume("r").run(App(Checkpoints(copy)))
            assert result.failure() == "no end"
        verification = await verify_run(copy, "r")
    assert verification.problem is None
    assert verification.length > 100


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_verify_reports_a_run_that_is_read_from_an_older_copy(
    tmp_path: Path, is_forwarded: bool
) -> None:
    async with FileStore(tmp_path) as store:
        await story.start(3, run_id="r").run(App(Checkpoints(store)))
        before = await verify_run(store, "r")
    checkpoint = tmp_path / "sessions" / "r" / "checkpoint.json"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"no end", b"an end"))
    # The lost entries released it.
    (checkpoint.parent / "lease.json").unlink()

    async with FileStore(tmp_path) as store:
        looked_at = FaultyStore(store) if is_forwarded else store
        verification = await verify_run(looked_at, "r")
        assert verification.length == verification.good < before.length
        assert isinstance(verification.problem, CorruptCheckpoint)
        assert "an older copy was read" in str(verification.problem)

        # The resume has repaired it.
        resumed = await story.resume("r").run(App(Checkpoints(store)))
        assert resumed.failure() == "no end"
        assert (await verify_run(looked_at, "r")).problem is None


HARM: dict[str, Callable[[Path], object]] = {
    "run removed": lambda path: shutil.rmtree(path / "sessions" / "r"),
    "run moved": lambda path: os.rename(path / "sessions" / "r", path / "sessions" / "moved"),
    "removed": shutil.rmtree,
    "moved": lambda path: os.rename(path, f"{path}.moved"),
}


@pytest.mark.parametrize("words", [0, 1])
@pytest.mark.parametrize("harm", HARM)
async def test_a_run_ends_if_its_files_are_gone(tmp_path: Path, harm: str, words: int) -> None:
    said: list[str] = []

    @step
    def note(word: str) -> Effect[App, str, None]:
        return from_fn(lambda _: said.append(word))

    @workflow
    def made(words: int) -> Do[App, str, int]:
        yield from note("before")
        HARM[harm](tmp_path / "runs")
        for number in range(words):
            yield from note(str(number))
        return words

    result = await made.start(words, run_id="r").run(App(Checkpoints(FileStore(tmp_path / "runs"))))
    assert isinstance(result.failure(), LeaseLost)
    assert "were deleted or moved" in str(result.failure())
    assert said == ["before"]


async def test_a_run_continues_in_a_directory_that_was_replaced_by_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "runs"

    @workflow
    def made(_: None) -> Do[App, str, str]:
        yield from say("before")
        shutil.copytree(path, tmp_path / "copy", symlinks=True)
        shutil.rmtree(path)
        (tmp_path / "copy").rename(path)
        return (yield from say("after"))

    async with FileStore(path) as store:
        result = await made.start(None, run_id="r").run(App(Checkpoints(store)))
        assert result == Success("after")
        assert (await verify_run(store, "r")).problem is None


@pytest.mark.parametrize("words", [48, 60])
async def test_missing_files_of_entries_are_detected(
    store: FileStore, tmp_path: Path, words: int
) -> None:
    app = App(Checkpoints(store))
    await story.start(words, run_id="r").run(app)
    shutil.rmtree(tmp_path / "sessions" / "r" / "entries")

    assert isinstance((await verify_run(store, "r")).problem, CorruptCheckpoint)
    with pytest.raises(CorruptCheckpoint, match="missing"):
        await store.read("r")
    for effect in (story.resume("r"), story.start(words, run_id="r")):
        assert isinstance((await effect.run(app)).failure(), CorruptCheckpoint)
    with pytest.raises(CorruptCheckpoint):
        await export_run(store, "r")
