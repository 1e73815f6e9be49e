"""A process that resumes a run after a fault, and checks that nothing durable was lost."""

from __future__ import annotations

import anyio
from returns.result import Success

from effectflow import Checkpoints
from effectflow.checkpoint import Record, read_checkpoint, read_entries, repair_run, verify_run
from effectflow.checkpoint.entries import Signalled
from effectflow.checkpoint.store import ServiceStore
from tests.stores.faults.lives import DAMAGED, Life, Lived
from tests.stores.faults.tale import RUN, STORES, WORDS, App, digest, tale_in

__all__ = ["take_up", "take_up_repaired"]


async def take_up(life: Life, lived: Lived, *, may_be_late: bool = False) -> int:
    """Check that no entry is missing or wrong. Resume the run, and check that no step runs twice.

    Return the number of entries found. `may_be_late` allows the newest to be missing.
    """
    async with STORES[life.store](life.data) as store:
        records = await store.read(RUN)
        check(records, lived.said("durable"), may_be_late=may_be_late)
        done = 0
        if records:
            assert (await verify_run(store, RUN)).problem is None
            done = len((await read_checkpoint(store, RUN)).completed_steps)
        said: list[str] = []
        app = App(Checkpoints(store), said.append)
        # If the last word was lost, it waits for it forever.
        with anyio.fail_after(20):
            assert await tale_in(life.store).start(WORDS, run_id=RUN).run(app) == Success(WORDS)
        assert said == WORDS[done:]
        assert (await verify_run(store, RUN)).problem is None
        if isinstance(store, ServiceStore):
            entries = await read_entries(store, RUN)
            assert sum(isinstance(entry, Signalled) for entry in entries) == 1
            assert await store.mailbox(RUN) == []
    return len(records)


async def take_up_repaired(life: Life, lived: Lived) -> None:
    """Check that a damaged run is as before or repaired. Repair and resume it."""
    entries = lived.said("entry")
    kept = DAMAGED - 1
    async with STORES[life.store](life.data) as store:
        found = await repair_run(store, RUN, dry_run=True)
        if found.problem is None:
            assert found.kept == kept
        else:
            assert not lived.said("repaired")
            assert (found.kept, found.lost) == (kept, len(entries) - kept)
            assert [digest(record.body) for record in found.removed] == entries[kept:]
        await repair_run(store, RUN)
        assert [digest(record.body) for record in await store.read(RUN)] == entries[:kept]
        assert (await verify_run(store, RUN)).problem is None
        said: list[str] = []
        # With the key of the lost entry, the last word would be a repetition.
        app = App(Checkpoints(store), said.append, key=None)
        assert await tale_in(life.store).resume(RUN).run(app) == Success(WORDS)
        assert said == WORDS[1:]
        assert (await verify_run(store, RUN)).problem is None


def check(records: list[Record], durable: list[str], *, may_be_late: bool) -> None:
    """Check that every entry that was reported durable is there once, in its place, unchanged."""
    found = [f"{RUN} {record.sequence} {digest(record.body)}" for record in records]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    if may_be_late:
        durable = [line for line in durable if int(line.split()[1]) <= len(records)]
    assert set(durable) <= set(found)
