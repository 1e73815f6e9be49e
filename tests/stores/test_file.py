"""FileStore: its files, and what it makes of damaged ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, traverse, workflow
from effectflow.checkpoint import (
    CorruptCheckpoint,
    Owner,
    RunStatus,
    RunSummary,
    StoreUnavailable,
    read_entries,
)
from effectflow.stores import FileStore
from effectflow.testing.store_conformance import HOSTILE_RUN_IDS

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", "standard", "1", RunStatus.RUNNING, 0.0)


class App:
    def __init__(self, store: FileStore) -> None:
        self.checkpoints = Checkpoints(store)


@step
def say(word: str) -> Effect[object, str, str]:
    return pure(word)


@workflow
def story(words: list[str]) -> Do[App, str, list[str]]:
    return (yield from traverse(words, say))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    async with FileStore(tmp_path) as store:
        yield store


async def written(store: FileStore, count: int, run_id: str = "r") -> None:
    """A run with so many entries, each saved by itself."""
    lease = await store.claim(run_id, owner=str(Owner.new()), seconds=60)
    for number in range(count):
        await store.append(lease, [b"%d" % number], after=number, summary=SUMMARY)
    await store.release(lease)


async def bodies(store: FileStore, run_id: str = "r") -> list[bytes]:
    return [record.body for record in await store.read(run_id)]


async def test_the_files_are_where_they_should_be_and_can_be_read(
    store: FileStore, tmp_path: Path
) -> None:
    await story.start(["once", "upon"], run_id="tale-1").run_or_raise(App(store))

    run = tmp_path / "sessions" / "tale-1"
    checkpoint = json.loads((run / "checkpoint.json").read_text())
    assert checkpoint["run_id"] == "tale-1"
    assert checkpoint["status"] == "completed"
    entries = [row["entry"] for row in checkpoint["entries"]]
    assert [entry["entry"] for entry in entries][:2] == ["started", "before_step"]
    assert entries[2]["output"] == "once"
    assert (tmp_path / "sessions" / "latest").resolve() == run.resolve()
    history = sorted(path.name for path in (run / "history").iterdir())
    assert all(name.startswith("checkpoint-20") for name in history)
    assert len(history) == 3


@pytest.mark.parametrize("history", [0, 3])
async def test_the_history_has_a_limit(store: FileStore, tmp_path: Path, history: int) -> None:
    app = App(store)
    app.checkpoints = Checkpoints(store, history=history)

    await story.start(["word"] * 8, run_id="r").run_or_raise(app)

    assert len(list((tmp_path / "sessions" / "r" / "history").iterdir())) == history


def test_a_history_of_less_than_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="-1"):
        Checkpoints(FileStore(tmp_path), history=-1)


async def test_a_save_costs_the_same_however_long_the_run_is(
    store: FileStore, tmp_path: Path
) -> None:
    run = tmp_path / "sessions" / "r"
    sizes: list[int] = []
    lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
    for number in range(450):
        await store.append(lease, [b"x" * 100], after=number, summary=SUMMARY)
        sizes.append((run / "checkpoint.json").stat().st_size)

    assert max(sizes) < 30_000
    assert [path.name for path in sorted((run / "entries").iterdir())] == [
        "000000001.json",
        "000000101.json",
        "000000201.json",
        "000000301.json",
    ]
    assert len(await store.read("r")) == 450
    for after in (0, 99, 100, 101, 250, 400, 449):
        records = await store.read("r", after=after)
        assert [record.sequence for record in records] == list(range(after + 1, 451))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "empty": lambda path: path.write_bytes(b""),
    "changed": lambda path: path.write_bytes(path.read_bytes().replace(b"running", b"failed!")),
    "missing": lambda path: path.unlink(),
    "no JSON": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_checkpoint_is_taken_from_the_newest_good_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with FileStore(tmp_path) as store:
        await written(store, 5)
    run = tmp_path / "sessions" / "r"
    DAMAGE[damage](run / "checkpoint.json")
    newest = max((run / "history").iterdir())
    newest.write_bytes(b"damaged as well")

    async with FileStore(tmp_path) as store:
        assert await bodies(store) == [b"0", b"1", b"2"]
        assert "what was saved after that is lost" in caplog.text
        assert "with 3 entries" in caplog.text
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        await store.append(lease, [b"3 again"], after=3)
    async with FileStore(tmp_path) as store:
        assert await bodies(store) == [b"0", b"1", b"2", b"3 again"]


async def test_without_any_good_copy_it_is_corrupt(tmp_path: Path) -> None:
    async with FileStore(tmp_path) as store:
        store.keep_history("r", 0)
        await written(store, 3)
        (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"{}")
        with pytest.raises(CorruptCheckpoint, match="no good copy"):
            await store.read("r")


async def test_a_damaged_file_of_older_entries_is_named(store: FileStore, tmp_path: Path) -> None:
    await written(store, 150)
    (tmp_path / "sessions" / "r" / "entries" / "000000001.json").write_bytes(b"[")

    with pytest.raises(CorruptCheckpoint, match=r"000000001\.json"):
        await store.read("r")
    assert len(await store.read("r", after=100)) == 50


async def test_what_an_interrupted_write_left_is_removed(store: FileStore, tmp_path: Path) -> None:
    await written(store, 2)
    left = tmp_path / "sessions" / "r" / "checkpoint.json.tmp"
    left.write_bytes(b"half a checkp")

    await store.claim("r", owner=str(Owner.new()), seconds=60)
    assert not left.exists()
    assert await bodies(store) == [b"0", b"1"]


async def test_no_run_id_leads_out_of_the_folder(store: FileStore, tmp_path: Path) -> None:
    for run_id in (*HOSTILE_RUN_IDS, "latest", "LATEST", "con.txt", "-rf", ".hidden"):
        await written(store, 1, run_id)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["sessions"]
    names = [path.name for path in (tmp_path / "sessions").iterdir()]
    assert all(len(name) < 200 and not name.startswith(".") for name in names)
    assert (tmp_path / "sessions" / "latest").is_symlink()


async def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        async with FileStore(tmp_path / "file"):
            pass


async def test_a_file_that_cannot_be_read_is_told(store: FileStore, tmp_path: Path) -> None:
    await written(store, 1)
    checkpoint = tmp_path / "sessions" / "r" / "checkpoint.json"
    checkpoint.unlink()
    checkpoint.mkdir()

    for reading in (store.read("r"), store.info("r"), store.find()):
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await reading


async def test_a_resume_from_files(store: FileStore) -> None:
    words = [f"word {number}" for number in range(150)]
    await story.start(words, run_id="r").run_or_raise(App(store))
    assert await story.resume("r").run(App(store)) == Success(words)
    entries: list[Any] = await read_entries(store, "r")
    assert len(entries) == 302
