"""FileStore: its files, and how it reads damaged ones."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import math
import shutil
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from filelock import FileLock
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import (
    CorruptCheckpoint,
    Lease,
    LeaseLost,
    Owner,
    RunBusy,
    RunConflict,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.journal_reader import all_run_ids
from effectflow.checkpoint.run_info import RunQuery
from effectflow.checkpoint.store import Batch, find_run
from effectflow.effects import traverse
from effectflow.stores import FileStore
from effectflow.stores._atomic_files import write_whole
from effectflow.stores._file_run import RunFolder
from effectflow.testing.store_conformance import HOSTILE_RUN_IDS
from tests.stores.runs import SUMMARY, begun, bodies_of, claimed

pytestmark = pytest.mark.anyio


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
    """Write a run with `count` entries, each in a save of its own."""
    lease = await begun(store, [b"0"], run_id)
    for number in range(1, count):
        await store.append(lease, Batch([b"%d" % number], after=number, summary=SUMMARY))
    await store.release(lease)


async def found(store: FileStore) -> list[str]:
    return sorted(info.run_id for info in await store.find())


async def test_files_are_readable_and_in_their_documented_places(
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
async def test_history_is_limited(tmp_path: Path, history: int) -> None:
    store = FileStore(tmp_path, history=history)
    await story.start(["word"] * 8, run_id="r").run_or_raise(App(store))

    assert len(list((tmp_path / "sessions" / "r" / "history").iterdir())) == history


def test_a_negative_history_limit_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="-1"):
        FileStore(tmp_path, history=-1)


@pytest.mark.parametrize("seconds", [0, -1, math.inf, -math.inf, math.nan])
def test_a_lease_needs_a_positive_finite_duration(tmp_path: Path, seconds: float) -> None:
    """A lease file without an expiry would be read as damaged, and therefore as free."""
    with pytest.raises(ValueError, match=f"lease_seconds .*{seconds}"):
        Checkpoints(FileStore(tmp_path), lease_seconds=seconds)


async def test_the_cost_of_a_save_does_not_depend_on_the_length_of_the_run(
    store: FileStore, tmp_path: Path
) -> None:
    run = tmp_path / "sessions" / "r"
    sizes: list[int] = []
    lease = await begun(store, [b"x" * 100] * 5)
    for number in range(5, 450, 5):
        await store.append(lease, Batch([b"x" * 100] * 5, after=number, summary=SUMMARY))
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
async def test_a_damaged_checkpoint_is_read_from_the_newest_intact_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with FileStore(tmp_path) as store:
        await written(store, 5)
    run = tmp_path / "sessions" / "r"
    DAMAGE[damage](run / "checkpoint.json")
    newest = max((run / "history").iterdir())
    newest.write_bytes(b"damaged as well")

    async with FileStore(tmp_path) as store:
        assert await bodies_of(store) == [b"0", b"1", b"2"]
        assert "what was saved after that is lost" in caplog.text
        assert "with 3 entries" in caplog.text
        lease = await claimed(store)
        await store.append(lease, Batch([b"3 again"], after=3))
    async with FileStore(tmp_path) as store:
        assert await bodies_of(store) == [b"0", b"1", b"2", b"3 again"]


@pytest.mark.parametrize("history", [0, 2])
@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_checkpoint_damaged_while_the_run_is_driven_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, count: int, history: int
) -> None:
    """Its owner knows what it has saved."""
    expected = [b"%d" % number for number in range(count + 2)]
    async with FileStore(tmp_path, history=history) as store:
        lease = await begun(store, expected[: count - 1])
        await store.append(lease, Batch([expected[count - 1]], after=count - 1))
        run = tmp_path / "sessions" / "r"
        DAMAGE[damage](run / "checkpoint.json")
        left = [(run / "checkpoint.json").read_bytes()] if damage != "missing" else []

        await store.append(lease, Batch([expected[count]], after=count))
        await store.append(lease, Batch([expected[count + 1]], after=count + 1, release=True))
    async with FileStore(tmp_path) as store:
        assert await bodies_of(store) == expected
    assert [path.read_bytes() for path in (run / "history").glob("damaged-*")] == left
    assert "nothing is lost" in caplog.text
    assert "is lost" not in caplog.text.replace("nothing is lost", "")


async def test_a_stale_owner_never_overwrites_a_damaged_checkpoint_from_memory(
    store: FileStore, tmp_path: Path
) -> None:
    stale = await begun(store, [b"0"], seconds=0)
    await store.append(stale, Batch([b"1"], after=1))
    async with FileStore(tmp_path) as other:
        await other.append(await claimed(other), Batch([b"2"], after=2))
    checkpoint = tmp_path / "sessions" / "r" / "checkpoint.json"
    checkpoint.write_bytes(b"damaged")

    with pytest.raises(LeaseLost):
        await store.append(stale, Batch([b"stale"], after=2))
    assert checkpoint.read_bytes() == b"damaged"


@pytest.mark.parametrize("damage", DAMAGE)
async def test_the_process_that_ended_a_run_can_resume_it_from_an_older_copy(
    store: FileStore, tmp_path: Path, damage: str
) -> None:
    """Only the damaged file told that the lease was released."""
    await story.start(["once", "upon"], run_id="r").run_or_raise(App(store))
    DAMAGE[damage if damage != "changed" else "cut off"](
        tmp_path / "sessions" / "r" / "checkpoint.json"
    )

    info = await find_run(store, "r")
    assert info is not None
    assert info.length < 6
    assert info.lease is None
    assert await story.resume("r").run(App(store)) == Success(["once", "upon"])
    assert (await verify_run(store, "r")).problem is None


async def test_a_damaged_checkpoint_without_copies_is_corrupt(tmp_path: Path) -> None:
    async with FileStore(tmp_path, history=0) as store:
        await written(store, 3)
        (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"{}")
        with pytest.raises(CorruptCheckpoint, match="no intact copy"):
            await store.read("r")


async def test_a_damaged_file_of_older_entries_is_named(store: FileStore, tmp_path: Path) -> None:
    await written(store, 150)
    (tmp_path / "sessions" / "r" / "entries" / "000000001.json").write_bytes(b"[")

    with pytest.raises(CorruptCheckpoint, match=r"000000001\.json"):
        await store.read("r")
    assert len(await store.read("r", after=100)) == 50


async def test_a_claim_removes_the_leftovers_of_an_interrupted_write(
    store: FileStore, tmp_path: Path
) -> None:
    await written(store, 2)
    left = tmp_path / "sessions" / "r" / "checkpoint.json.tmp"
    left.write_bytes(b"half a checkp")

    await claimed(store)
    assert not left.exists()
    assert await bodies_of(store) == [b"0", b"1"]


async def test_run_ids_never_lead_out_of_the_folder(store: FileStore, tmp_path: Path) -> None:
    for run_id in (*HOSTILE_RUN_IDS, "latest", "LATEST", "con.txt", "-rf", ".hidden"):
        await written(store, 1, run_id)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["locks", "sessions"]
    names = [path.name for path in (tmp_path / "sessions").iterdir()]
    assert all(len(name) < 200 and not name.startswith(".") for name in names)
    assert (tmp_path / "sessions" / "latest").is_symlink()


async def test_a_file_in_place_of_the_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        async with FileStore(tmp_path / "file"):
            pass


async def test_an_unreadable_file_raises_store_unavailable_and_hurts_no_other_run(
    store: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await written(store, 1)
    await written(store, 1, "good")
    checkpoint = tmp_path / "sessions" / "r" / "checkpoint.json"
    checkpoint.unlink()
    checkpoint.mkdir()

    for reading in (store.read("r"), find_run(store, "r")):
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await reading
    assert await found(store) == ["good"]
    assert "skipping run 'r'" in caplog.text
    assert await store.damaged_runs() == ["r"]


class Clock(datetime):
    """A clock that is an hour late."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) - timedelta(hours=1)


async def test_copies_stay_in_order_when_the_clock_is_set_back(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(store, 20)
    monkeypatch.setattr("effectflow.stores._file_history.datetime", Clock)
    lease = await claimed(store)
    for number in range(20, 60):
        await store.append(lease, Batch([b"%d" % number], after=number))

    (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"")
    assert len(await bodies_of(store)) == 59
    history = sorted((tmp_path / "sessions" / "r" / "history").iterdir())
    assert len(history) == 10


async def test_a_full_disk_loses_nothing_that_another_process_has_repaired(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that once read the damaged file must not move the repaired one aside."""
    async with FileStore(tmp_path) as onlooker:
        await written(store, 4)
        (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"")
        assert len(await bodies_of(onlooker)) == 3
        lease = await claimed(store)
        await store.append(lease, Batch([b"again"], after=3, release=True))

        lease = await claimed(onlooker)
        full_disk(monkeypatch)
        with pytest.raises(SaveFailed, match="No space"):
            await onlooker.append(lease, Batch([b"more"], after=4))
        assert await bodies_of(onlooker) == [b"0", b"1", b"2", b"again"]


async def test_a_damaged_checkpoint_is_kept_until_it_is_replaced(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(store, 4)
    run = tmp_path / "sessions" / "r"
    (run / "checkpoint.json").write_bytes(b"damaged")
    lease = await claimed(store)
    with monkeypatch.context() as patch:
        full_disk(patch)
        with pytest.raises(SaveFailed):
            await store.append(lease, Batch([b"3 again"], after=3))
    assert (run / "checkpoint.json").read_bytes() == b"damaged"

    await store.append(lease, Batch([b"3 again"], after=3))
    assert await bodies_of(store) == [b"0", b"1", b"2", b"3 again"]
    assert {path.read_bytes() for path in (run / "history").glob("damaged-*")} == {b"damaged"}


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writes to checkpoints fail. Links and renames still work."""

    def write(path: Path, data: bytes) -> None:
        if path.name == "checkpoint.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data)

    monkeypatch.setattr("effectflow.stores._file_run.write_whole", write)


async def test_failed_saves_do_not_change_the_history(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(store, 15)
    lease = await claimed(store)
    with monkeypatch.context() as patch:
        full_disk(patch)
        for _ in range(12):
            with pytest.raises(SaveFailed):
                await store.append(lease, Batch([b"15"], after=15))
    await store.append(lease, Batch([b"15"], after=15))

    history = (tmp_path / "sessions" / "r" / "history").iterdir()
    counts = sorted(len(json.loads(path.read_text())["entries"]) for path in history)
    assert counts == list(range(6, 16))


async def test_a_copy_that_cannot_be_removed_does_not_fail_the_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each save tries again to remove it."""
    store = FileStore(tmp_path, history=1)
    async with store:
        await saved_with_a_stuck_copy(store, tmp_path, caplog)


async def saved_with_a_stuck_copy(
    store: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await begun(store, [b"0"])
    stuck = tmp_path / "sessions" / "r" / "history" / "checkpoint-20260101T000000.000000Z.json"
    stuck.mkdir()
    for number in range(1, 4):
        await store.append(lease, Batch([b"%d" % number], after=number))
        assert f"cannot remove {stuck.name} of run 'r'" in caplog.text
        caplog.clear()
    stuck.rmdir()
    await store.append(lease, Batch([b"4"], after=4))

    assert "cannot remove" not in caplog.text
    assert await bodies_of(store) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(list(stuck.parent.iterdir())) == 1


@pytest.mark.parametrize("version", [1, 2, 99])
@pytest.mark.parametrize("name", ["checkpoint.json", "lease.json"])
async def test_files_of_another_version_are_rejected_and_not_changed(
    store: FileStore, tmp_path: Path, name: str, version: int
) -> None:
    await written(store, 5)
    file = tmp_path / "sessions" / "r" / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {"effectflow": version}))
    before = contents(tmp_path)

    for use in (find_run(store, "r"), claimed(store), store.delete("r")):
        with pytest.raises(UnsupportedVersion) as caught:
            await use
        assert caught.value.found == version
    assert await found(store) == []
    assert await all_run_ids(store) == ["r"]
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of each file in a folder, except locks, which are empty."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: data for path in files if (data := path.read_bytes())}


@pytest.mark.parametrize(("count", "size"), [(100, 1), (230, 1), (3, 1024 * 1024)])
async def test_older_entries_survive_the_loss_of_the_checkpoint(
    store: FileStore, tmp_path: Path, count: int, size: int
) -> None:
    lease = await begun(store, [b"x" * size])
    for number in range(1, count):
        await store.append(lease, Batch([b"x" * size], after=number, summary=SUMMARY))
    run = tmp_path / "sessions" / "r"
    (run / "checkpoint.json").write_bytes(b"")
    # Keep only a copy that is older than those files.
    for path in sorted((run / "history").iterdir())[1:]:
        path.unlink()

    in_files = count // 100 * 100 if size == 1 else count
    assert len(await bodies_of(store)) == max(in_files, count - 10)
    await store.append(lease, Batch([b"next"], after=len(await bodies_of(store))))
    assert (await bodies_of(store))[-1] == b"next"


async def test_entries_of_a_failed_save_are_never_read(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(store, 99)
    lease = await claimed(store)
    with monkeypatch.context() as patch:
        full_disk(patch)
        with pytest.raises(SaveFailed):
            await store.append(lease, Batch([b"refused", b"refused"], after=99))
    await store.release(lease)
    await written_on(store, after=99, count=0)

    (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"")
    assert b"refused" not in await bodies_of(store)


async def written_on(store: FileStore, *, after: int, count: int) -> None:
    """Append `count` more entries."""
    lease = await claimed(store)
    for number in range(after, after + count):
        await store.append(lease, Batch([b"%d" % number], after=number))
    await store.release(lease)


async def test_foreign_files_among_the_entries_are_ignored(
    store: FileStore, tmp_path: Path
) -> None:
    await written(store, 150)
    entries = tmp_path / "sessions" / "r" / "entries"
    shutil.copy(entries / "000000001.json", entries / "000000001 copy.json")

    assert len(await bodies_of(store)) == 150


async def test_a_seal_that_is_not_text_is_damage(store: FileStore, tmp_path: Path) -> None:
    await written(store, 150)
    file = tmp_path / "sessions" / "r" / "entries" / "000000001.json"
    rows = json.loads(file.read_text())
    rows[3] = {"at": 1.0, "entry": {}, "seal": 5}
    file.write_text(json.dumps(rows))

    with pytest.raises(CorruptCheckpoint, match=r"000000001\.json"):
        await store.read("r")


async def test_find_skips_a_damaged_run(
    store: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await written(store, 1, "good")
    await written(store, 1, "bad/er")
    [bad] = (tmp_path / "sessions").glob("%*")
    (bad / "checkpoint.json").write_bytes(b"{}")

    assert await found(store) == ["good"]
    assert "skipping run 'bad/er'" in caplog.text
    assert await all_run_ids(store) == ["good", "bad/er"]
    problem = (await verify_run(store, "bad/er")).problem
    assert isinstance(problem, CorruptCheckpoint)
    await store.delete("bad/er")
    assert await all_run_ids(store) == ["good"]


@pytest.mark.parametrize(
    "altered",
    [
        {"created_at": None},
        {"created_at": "1.0"},
        {"created_at": 1e300},
        {"workflow": [1]},
        {"due_at": math.inf},
        {"priority": "1"},
        {"details": {"dead_letters": -1.5}},
    ],
    ids=str,
)
async def test_find_skips_a_run_with_values_of_wrong_types(
    store: FileStore, tmp_path: Path, altered: dict[str, Any]
) -> None:
    """Even if its digest is right."""
    await written(store, 1, "good")
    await store.create("bad", [b"x"], summary=SUMMARY)
    file = tmp_path / "sessions" / "bad" / "checkpoint.json"
    content: dict[str, Any] = json.loads(file.read_text()) | altered
    del content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    file.write_text(json.dumps(content | {"sha256": digest.hexdigest()}))

    assert await found(store) == ["good"]
    assert await store.damaged_runs() == ["bad"]
    with pytest.raises(CorruptCheckpoint):
        await find_run(store, "bad")
    assert await store.create("bad", [b"x"], summary=SUMMARY) is None
    await claimed(store, "good")


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_run_with_a_damaged_lease_can_be_claimed_and_its_owner_loses_it(
    store: FileStore, tmp_path: Path, damage: str
) -> None:
    for run_id in ("r", "r/2"):
        await written(store, 1, run_id)
        stale = await claimed(store, run_id)
        await store.append(stale, Batch([b"1"], after=1))
        [folder] = {path.parent for path in tmp_path.rglob("lease.json")} - {
            tmp_path / "sessions" / "r" if run_id != "r" else None
        }
        file = folder / "lease.json"
        DAMAGE["no JSON" if damage == "changed" else damage](file)

        assert run_id in await found(store)
        new = await claimed(store, run_id)
        assert new.fence > stale.fence
        with pytest.raises(LeaseLost):
            await store.append(stale, Batch([b"stale"], after=2))
        await store.append(new, Batch([b"2"], after=2))


async def test_the_newer_of_two_leases_with_the_same_fencing_token_is_valid(
    store: FileStore, tmp_path: Path
) -> None:
    """The same fencing token is issued twice if the lease file was lost before anything was saved."""
    await written(store, 1)
    stale = await claimed(store)
    (tmp_path / "sessions" / "r" / "lease.json").unlink()
    new = await claimed(store)

    with pytest.raises(LeaseLost):
        await store.append(stale, Batch([b"stale"], after=1))
    await store.append(new, Batch([b"1"], after=1))


async def test_a_copied_folder_is_not_another_run(store: FileStore, tmp_path: Path) -> None:
    await written(store, 3)
    shutil.copytree(tmp_path / "sessions" / "r", tmp_path / "sessions" / "r-backup")
    (tmp_path / "sessions" / "notes.txt").write_text("")

    assert await all_run_ids(store) == ["r"]


@pytest.mark.parametrize("part", ["all of it", "a damaged checkpoint"])
async def test_a_folder_of_another_run_is_rejected_and_not_changed(
    store: FileStore, tmp_path: Path, part: str
) -> None:
    """As on a file system that ignores the case of letters, where `R` and `r` share a folder."""
    folder = tmp_path / "sessions" / "r"
    await written(store, 3, "R")
    folder.with_name("R").rename(folder)
    if part == "a damaged checkpoint":
        (folder / "checkpoint.json").write_bytes(b"{}")
    lease = Lease("r", "unknown", 1, math.inf)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.claim("r", owner=str(Owner.new()), seconds=60),
        lambda: store.release(lease),
        lambda: store.append(lease, Batch([b"x"], after=1, summary=SUMMARY)),
        lambda: store.create("r", [b"x"], summary=SUMMARY),
        lambda: store.read("r"),
        lambda: find_run(store, "r"),
        lambda: store.delete("r"),
    ]
    for call in calls:
        with pytest.raises(RunConflict, match=r"run id 'r' .*has the files of run 'R'"):
            await call()
    other = await begun(store, [b"1"], "other")
    assert [one.run_id for one in store.renew([lease, other], seconds=60)] == ["other"]
    await store.delete("other", lease=other)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert await store.find() == []


async def test_a_deleted_run_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    await written(store, 120)
    stale = await claimed(store)
    await store.release(stale)
    await store.delete("r")
    with pytest.raises(RunNotFound):
        await store.delete("unknown")

    assert list((tmp_path / "sessions").iterdir()) == []
    assert contents(tmp_path) == {}
    new = await begun(store, [b"new"])
    assert new.fence > stale.fence
    with pytest.raises(LeaseLost):
        await store.append(stale, Batch([b"stale"], after=1, summary=SUMMARY))


async def test_a_creation_removes_what_an_interrupted_removal_left(
    store: FileStore, tmp_path: Path
) -> None:
    await written(store, 150)
    run = tmp_path / "sessions" / "r"
    shutil.rmtree(run / "history")
    (run / "checkpoint.json").unlink()

    assert await found(store) == []
    await written(store, 3)
    assert await bodies_of(store) == [b"0", b"1", b"2"]
    assert list((run / "entries").iterdir()) == []


async def test_a_lease_is_released_together_with_the_last_entry_or_not_at_all(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await begun(store, [b"0"])
    with monkeypatch.context() as patch:
        full_disk(patch)
        with pytest.raises(SaveFailed):
            await store.append(lease, Batch([b"1"], after=1, release=True))
    assert [one.fence for one in store.renew([lease], seconds=60)] == [lease.fence]

    monkeypatch.setattr(RunFolder, "write_lease", unwritable)
    await store.append(lease, Batch([b"1"], after=1, release=True))
    info = await find_run(store, "r")
    assert info is not None
    assert info.lease is None


def unwritable(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


async def test_history_works_without_hard_links(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", unwritable)
    await written(store, 5)

    (tmp_path / "sessions" / "r" / "checkpoint.json").write_bytes(b"")
    assert len(await bodies_of(store)) == 4


async def test_a_store_does_not_keep_entries_in_memory(tmp_path: Path) -> None:
    async with FileStore(tmp_path) as store:
        for number in range(20):
            await store.create(f"r{number}", [b"x" * 900_000], summary=SUMMARY)
        tracemalloc.start()
        assert len(await found(store)) == 20
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert kept < 1_000_000


async def test_a_resume_from_files(store: FileStore) -> None:
    words = [f"word {number}" for number in range(150)]
    await story.start(words, run_id="r").run_or_raise(App(store))
    assert await story.resume("r").run(App(store)) == Success(words)
    entries: list[Any] = await read_entries(store, "r")
    assert len(entries) == 302


async def test_the_wait_for_another_program_is_a_parameter(tmp_path: Path) -> None:
    async with FileStore(tmp_path, lock_timeout=0.1) as store:
        lease = await begun(store, [b"0"])
        [lock] = (tmp_path / "locks").iterdir()
        with FileLock(lock), pytest.raises(SaveFailed, match=r"for 0\.1 s"):
            await store.append(lease, Batch([b"1"], after=1))
        await store.append(lease, Batch([b"1"], after=1))


async def test_a_claim_has_ended_once_its_cancelled_task_has(
    store: FileStore, tmp_path: Path
) -> None:
    """Otherwise it could take effect after the run was released, and nothing would release it again."""
    await store.create("r", [b"1"], summary=SUMMARY)
    [lock] = [FileLock(path) for path in (tmp_path / "locks").iterdir() if not path.suffix]
    with lock:
        claiming = asyncio.create_task(store.claim("r", owner="second", seconds=60))
        await asyncio.sleep(0.1)
        claiming.cancel()
        await asyncio.wait([claiming], timeout=0.1)
        assert not claiming.done()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    with pytest.raises(RunBusy):
        await store.claim("r", owner="third", seconds=60)


async def test_find_reads_only_the_files_that_changed(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("a", "b", "c"):
        await written(store, 2, run_id)
    assert await found(store) == ["a", "b", "c"]
    read: list[str] = []
    original = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        read.append(path.relative_to(tmp_path / "sessions").parts[0])
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    async with FileStore(tmp_path) as other:
        lease = await claimed(other, "b")
    read.clear()
    [resumable] = [
        one.run_id for one in await store.find(RunQuery(resumable=True, prefix="b"))
    ] or ["-"]
    assert resumable == "-"
    assert set(read) == {"b"}
    read.clear()
    [info] = await store.find(RunQuery(prefix="b"))
    assert info.lease == lease
    assert read == []


NUMBERS: dict[str, Any] = {
    "fence": [-1, 1.5, True, 2**64, "1", None],
    "expires_at": ["soon", None, [], 7],
    "owner": [1, None],
    "effectflow": [None, "3", 3.0, [3]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NUMBERS.items() for value in values]
)
async def test_a_lease_with_wrong_values_can_be_claimed_and_hurts_no_other_run(
    store: FileStore, tmp_path: Path, name: str, value: object
) -> None:
    held = await begun(store, [b"1"], "held")
    stale = await begun(store, [b"1"])
    file = tmp_path / "sessions" / "r" / "lease.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))

    assert await found(store) == ["held", "r"]
    assert [one.run_id for one in store.renew([stale, held], seconds=60)] == ["held"]
    new = await claimed(store)
    await store.append(new, Batch([b"2"], after=1))
    with pytest.raises(LeaseLost):
        await store.append(stale, Batch([b"stale"], after=2))


@pytest.mark.parametrize("damage", DAMAGE)
async def test_salvage_has_a_damaged_checkpoint_although_a_copy_is_read(
    store: FileStore, tmp_path: Path, damage: str
) -> None:
    await written(store, 3)
    assert (await store.salvage("r")).unreadable == {}
    file = tmp_path / "sessions" / "r" / "checkpoint.json"
    DAMAGE[damage](file)

    assert await store.damaged_runs() == []
    left = file.read_bytes() if file.exists() else b""
    assert (await store.salvage("r")).unreadable == {"checkpoint.json": left}
    await written_on(store, after=len(await bodies_of(store)), count=1)
    assert (await store.salvage("r")).unreadable == {}
