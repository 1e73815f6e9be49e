"""Runs move between stores of any kind without loss."""

from __future__ import annotations

import pytest

from effectflow.checkpoint import (
    CorruptCheckpoint,
    ExportedRun,
    Owner,
    RunConflict,
    RunNotFound,
    RunStatus,
    RunSummary,
    export_run,
    import_run,
    read_exported,
    write_exported,
)
from effectflow.stores import MemoryStore
from effectflow.testing.store_conformance import HOSTILE_RUN_IDS, MakeStore

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", "standard", "2", RunStatus.INTERRUPTED, 12.5)
BODIES = (b"{}\nsha256:00", b"\xff\x00binary", b"", *(b"%d" % n for n in range(1200)))


async def test_a_run_comes_through_any_store_unchanged(make_store: MakeStore) -> None:
    runs = [ExportedRun(run_id, SUMMARY, BODIES) for run_id in HOSTILE_RUN_IDS[:4]]
    async with make_store() as store:
        for run in runs:
            assert await import_run(store, run)
            assert not await import_run(store, run)
        exported = [await export_run(store, run.run_id) for run in runs]

    assert exported == runs
    lines = [line for run in exported for line in write_exported(run)]
    assert list(read_exported(lines)) == runs


async def test_an_import_that_was_cut_off_is_gone_on_with() -> None:
    run = ExportedRun("r", SUMMARY, BODIES)
    async with MemoryStore() as store:
        lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
        await store.append(lease, BODIES[:700], after=0, summary=SUMMARY, release=True)

        assert await import_run(store, run)
        assert await export_run(store, "r") == run


async def test_another_run_of_that_id_is_left_alone() -> None:
    async with MemoryStore() as store:
        await import_run(store, ExportedRun("r", SUMMARY, (b"one", b"two")))
        for bodies in ((b"one", b"three"), (b"other",)):
            with pytest.raises(RunConflict):
                await import_run(store, ExportedRun("r", SUMMARY, bodies))
        with pytest.raises(RunNotFound):
            await export_run(store, "nobody")


@pytest.mark.parametrize("lines", [[b"{}"], [b"no json"], [b"[]"], [b'{"effectflow_export": 2}']])
def test_what_is_no_export_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(CorruptCheckpoint):
        list(read_exported(lines))


def test_an_export_that_is_cut_off_is_refused() -> None:
    lines = list(write_exported(ExportedRun("r", SUMMARY, BODIES)))
    with pytest.raises(CorruptCheckpoint, match="cut off"):
        list(read_exported(lines[:-1]))
