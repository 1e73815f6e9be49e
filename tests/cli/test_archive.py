"""`effectflow archive`: a compressed file that the commands read, and what it lets delete."""

from __future__ import annotations

import gzip
import re
import signal
import textwrap
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import RunQuery, RunStatus, read_exported
from effectflow.stores import ArchiveStore, SqliteStore, _archive
from tests.cli.conftest import ENVIRONMENT, Command
from tests.cli.test_selection import APP, SHOP, rows, start
from tests.programs import PIPE, Program

FILE = ("--store", "runs.jsonl.gz")


@pytest.fixture(autouse=True)
def till(folder: Path) -> None:
    (folder / "till.py").write_text(SHOP)


def test_the_commands_read_an_archive(effectflow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    start(a=1, b=-1, c=2, d=3)
    archived = effectflow("archive", "--since", "1h", "--output", "runs.jsonl.gz", *APP)
    assert (archived.code, archived.out) == (0, "4 runs written to runs.jsonl.gz\n")

    listed = effectflow("list", "--json", *FILE).json
    assert listed == effectflow("list", "--json", *APP).json
    assert [
        run["run_id"] for run in effectflow("list", "--status", "failed", "--json", *FILE).json
    ] == ["b"]
    for command in ("show", "history"):
        for run_id in ("a", "b"):
            assert effectflow(command, run_id, "--json", *FILE).json == (
                effectflow(command, run_id, "--json", *APP).json
            )
    opened: list[Path] = []

    def open_export(path: Path) -> object:
        opened.append(path)
        return original(path)

    original = _archive.open_export
    monkeypatch.setattr(_archive, "open_export", open_export)
    assert effectflow("verify", *FILE).out.endswith("4 runs checked, 0 damaged\n")
    # It is not read again for each run.
    assert len(opened) == 4

    refused = effectflow("resume", "b", "--app", "till", *FILE)
    assert (refused.code, "`effectflow import` copies them" in refused.err + refused.out) == (
        4,
        True,
    )
    assert "no run 'x'" in effectflow("show", "x", *FILE).err
    assert effectflow("import", "runs.jsonl.gz", "--store", "copy.db").code == 0
    assert effectflow("resume", "b", "--app", "till", "--store", "copy.db").code == 1


def test_an_archive_deletes_the_ended_runs_that_are_in_it(effectflow: Command) -> None:
    start(a=1, b=-1, c=2)
    assert effectflow("run", "order", *APP, "--detach", "--input", "5", "--run-id", "d").code == 0
    ids = ("a", "b", "c", "d", "x")
    shown = effectflow("archive", *ids[:2], "--delete", "--dry-run", "--output", "f.gz", *APP)
    assert shown.out.endswith("This would archive and delete 2 runs.\n")
    archived = effectflow("archive", *ids, "--delete", "--json", "--output", "f.jsonl.gz", *APP)
    assert archived.code == 4
    missing, *others = rows(archived)
    assert "no run 'x'" in missing["error"]
    assert others == [{"run_id": one, "deleted": one != "d"} for one in ids[:4]]
    assert [run["run_id"] for run in effectflow("list", "--json", *APP).json] == ["d"]
    again = effectflow("archive", "d", "--output", "f.jsonl.gz", *APP)
    assert (again.code, "f.jsonl.gz exists already" in again.err) == (2, True)
    assert effectflow("import", "f.jsonl.gz", *APP).out.startswith("a: imported\n")


def test_a_damaged_archive_says_so(effectflow: Command, folder: Path) -> None:
    start(a=1, b=2)
    assert effectflow("archive", "a", "b", "--output", "runs.jsonl.gz", *APP).code == 0
    whole = (folder / "runs.jsonl.gz").read_bytes()
    (folder / "runs.jsonl.gz").write_bytes(whole[:-20])
    for arguments in (("list", *FILE), ("verify", *FILE), ("import", "runs.jsonl.gz")):
        ran = effectflow(*arguments)
        assert (ran.code, "is damaged or cut off" in ran.err) == (4, True), ran
    lines = gzip.decompress(whole).splitlines(keepends=True)
    (folder / "plain.jsonl").write_bytes(b"".join(lines[:-1]))
    ran = effectflow("list", "--store", "plain.jsonl")
    assert (ran.code, "the export of run 'b'" in ran.err) == (4, True), ran
    for entries in (b"0", b"-1"):
        header = re.sub(rb'"entries":\d+', b'"entries":' + entries, lines[0])
        (folder / "plain.jsonl").write_bytes(header)
        for arguments in (("list", "--store", "plain.jsonl"), ("import", "plain.jsonl")):
            ran = effectflow(*arguments)
            assert (ran.code, "is not an export of effectflow" in ran.err) == (4, True), ran
    assert "does not exist" in effectflow("list", "--store", "none.jsonl").err


KILLED = textwrap.dedent("""
    import time
    from effectflow.cli import archive
    from effectflow.cli.commands import main
    from effectflow.runs import retention
    from effectflow.stores import SqliteStore

    calls = []

    def counted(work):
        async def call(*given):
            done = await work(*given)
            calls.append(1)
            if len(calls) == 3:
                print("killed", flush=True)
                time.sleep(60)
            return done
        return call

    retention._BATCH = 1
    PATCH
    main()
""")


@pytest.mark.parametrize(
    ("patch", "deleted"),
    [
        ("archive.export_run = counted(archive.export_run)", 0),
        ("SqliteStore.delete_unchanged = counted(SqliteStore.delete_unchanged)", 3),
    ],
)
def test_a_killed_archive_loses_no_run(folder: Path, patch: str, deleted: int) -> None:
    ids = [f"r{number}" for number in range(6)]
    start(**dict.fromkeys(ids, 1))
    words = ["archive", *ids, "--delete", "--output", "runs.jsonl.gz", "--store", "shop.db"]
    code = KILLED.replace("PATCH", patch)
    program = Program(["-c", code, *words], cwd=folder, env=ENVIRONMENT, stdout=PIPE)
    assert program.stdout is not None
    assert [line for line in iter(program.stdout.readline, "killed\n") if not line] == []
    program.kill()
    program.communicate()
    assert program.returncode == -signal.SIGKILL

    async def left() -> list[str]:
        async with SqliteStore(folder / "shop.db") as store:
            return [info.run_id for info in await store.find()]

    path = folder / "runs.jsonl.gz"
    remaining = anyio.run(left)
    assert len(remaining) == 6 - deleted
    assert path.exists() == bool(deleted)
    if deleted:
        with gzip.open(path) as lines:
            assert [run.run_id for run in read_exported(lines)] == ids


def test_pages_of_an_archive_have_every_run_once(folder: Path) -> None:
    start(a=1, b=2, c=3, d=4, e=5)
    exported = folder / "all.jsonl"

    async def main() -> None:
        from effectflow.checkpoint import export_run, write_exported

        async with SqliteStore(folder / "shop.db") as store:
            with exported.open("wb") as file:
                for run_id in "cadeb":
                    file.writelines(write_exported(await export_run(store, run_id)))
            every = await store.find()
        async with ArchiveStore(exported) as archive:
            first = await archive.find(RunQuery(limit=2))
            rest = await archive.find(RunQuery(after=first[-1].place))
            assert first + rest == every
            assert [len(await archive.read(run_id, after=1)) for run_id in "abx"] == [3, 3, 0]

    anyio.run(main)


def test_of_a_run_that_an_archive_has_twice_the_newer_copy_counts(
    effectflow: Command, folder: Path
) -> None:
    start(a=1, b=-1, c=2)
    assert effectflow("archive", "a", "b", "c", "--output", "old.gz", *APP).code == 0
    assert effectflow("complete-step", "b", "pay", "1", *APP).code == 0
    assert effectflow("archive", "b", "a", "--output", "new.gz", *APP).code == 0
    parts = [(folder / name).read_bytes() for name in ("old.gz", "new.gz")]

    async def main() -> None:
        async with SqliteStore(folder / "shop.db") as store:
            every = await store.find()
        async with ArchiveStore(folder / "both.jsonl.gz") as archive:
            assert [info.run_id for info in await archive.find(RunQuery(limit=2))] == ["c", "b"]
            found = await archive.find()
            assert found == [replace(info, lease=None) for info in every]
            # The older copy of this run has failed.
            assert await archive.find(RunQuery(statuses=frozenset({RunStatus.FAILED}))) == []
            for info in (*found, *reversed(found)):
                assert await archive.find(RunQuery(run_id=info.run_id)) == [info]
                assert len(await archive.read(info.run_id)) == info.length

    for name, joined in {"1.db": parts, "2.db": parts[::-1]}.items():
        (folder / "both.jsonl.gz").write_bytes(b"".join(joined))
        anyio.run(main)
        imported = effectflow("import", "both.jsonl.gz", "--store", name)
        assert (imported.code, sorted(imported.out.splitlines())) == (
            0,
            ["a: imported", "b: imported", "c: imported"],
        )
        of_both = [
            effectflow("history", "b", "--json", "--store", one) for one in (name, "shop.db")
        ]
        assert of_both[0].json == of_both[1].json
