"""Runs move between stores of any kind without loss."""

from __future__ import annotations

import orjson
import pytest

from effectflow.checkpoint import (
    CorruptCheckpoint,
    ExportedRun,
    RunConflict,
    RunDetails,
    RunNotFound,
    RunStatus,
    RunSummary,
    UnsupportedVersion,
    export_run,
    import_run,
    read_exported,
    write_exported,
)
from effectflow.stores import MemoryStore
from effectflow.testing.store_conformance import HOSTILE_RUN_IDS, MakeStore

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", RunStatus.INTERRUPTED, 12.5, details=RunDetails(version="2"))
BODIES = (b"{}\nsha256:00", b"\xff\x00binary", b"", *(b"%d" % n for n in range(1200)))


async def test_any_store_exports_what_it_imported(make_store: MakeStore) -> None:
    runs = [ExportedRun(run_id, SUMMARY, BODIES) for run_id in HOSTILE_RUN_IDS[:4]]
    async with make_store() as store:
        for run in runs:
            assert await import_run(store, run)
            assert not await import_run(store, run)
        exported = [await export_run(store, run.run_id) for run in runs]

    assert exported == runs
    lines = [line for run in exported for line in write_exported(run)]
    assert list(read_exported(lines)) == runs


async def test_an_import_never_replaces_another_run() -> None:
    async with MemoryStore() as store:
        await import_run(store, ExportedRun("r", SUMMARY, (b"one", b"two")))
        for bodies in ((b"one", b"three"), (b"other",)):
            with pytest.raises(RunConflict):
                await import_run(store, ExportedRun("r", SUMMARY, bodies))
        with pytest.raises(RunNotFound):
            await export_run(store, "unknown")


def altered(row: bytes) -> list[bytes]:
    """Return an export in which this row replaces another."""
    head, _, *rest = write_exported(ExportedRun("r", SUMMARY, BODIES))
    return [head, row, *rest]


@pytest.mark.parametrize(
    "lines",
    [
        [b"{}"],
        [b"no json"],
        [b"[]"],
        [b"5"],
        [b'{"effectflow_export": 1, "run_id": 5}'],
        altered(b'{"text":5}'),
        altered(b"[]"),
    ],
)
def test_lines_that_are_not_an_export_are_rejected(lines: list[bytes]) -> None:
    with pytest.raises(CorruptCheckpoint):
        list(read_exported(lines))


HEAD = {
    "effectflow_export": 1,
    "run_id": "r",
    "workflow": "w",
    "status": "running",
    "created_at": 1.0,
    "entries": 1,
    "details": {"kind": "standard", "version": "1"},
}


@pytest.mark.parametrize(
    "altered",
    [
        {"effectflow_export": "1"},
        {"effectflow_export": True},
        {"workflow": 5},
        {"workflow": [1]},
        {"details": {"kind": None}},
        {"details": {"version": 1}},
        {"details": "{}"},
        {"status": "unheard of"},
        {"created_at": None},
        {"created_at": "1.0"},
        {"created_at": True},
        {"created_at": 1e300},
        {"created_at": -(10**18)},
        {"entries": True},
        {"entries": -1},
        {"priority": 2**63},
        {"priority": -(2**31) - 1},
    ],
    ids=str,
)
def test_an_export_with_a_malformed_header_is_rejected(altered: dict[str, object]) -> None:
    """If it were accepted, `find` would fail for the whole store."""
    body = b'{"text":"{}"}'
    assert len(list(read_exported([orjson.dumps(HEAD), body]))) == 1
    with pytest.raises(CorruptCheckpoint):
        list(read_exported([orjson.dumps(HEAD | altered), body]))


def test_an_infinite_time_is_rejected() -> None:
    head = orjson.dumps(HEAD).replace(b"1.0", b"1e400")
    with pytest.raises(CorruptCheckpoint):
        list(read_exported([head, b'{"text":"{}"}']))


def test_an_export_of_a_newer_version_is_rejected() -> None:
    head, *rest = write_exported(ExportedRun("r", SUMMARY, BODIES))
    with pytest.raises(UnsupportedVersion):
        list(
            read_exported([head.replace(b'"effectflow_export":1', b'"effectflow_export":2'), *rest])
        )


def test_a_truncated_export_is_rejected() -> None:
    lines = list(write_exported(ExportedRun("r", SUMMARY, BODIES)))
    with pytest.raises(CorruptCheckpoint, match="cut off"):
        list(read_exported(lines[:-1]))
