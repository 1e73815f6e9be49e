"""Check that a damaged run hurts no other one."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.store import (
    CheckpointStore,
    DueRuns,
    RunQuery,
    RunStatus,
    ServiceStore,
    find_run,
)
from effectflow.testing.store_conformance._check import (
    DAMAGE,
    Damage,
    appended,
    begun,
    bodies_of,
    claimed,
    created,
    fails,
    found,
    summary_of,
)

DUE = summary_of(RunStatus.PENDING, due_at=1.0)


class _Warnings(logging.Handler):
    """Collects the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def warned(run_id: str) -> Generator[None]:
    """Check that the block logs a warning that names a run."""
    warnings = _Warnings()
    logging.root.addHandler(warnings)
    try:
        yield
    finally:
        logging.root.removeHandler(warnings)
    is_named = any(run_id in text for text in warnings.texts)
    assert is_named, f"no warning names run {run_id!r}; the warnings are {warnings.texts}"


@DAMAGE.check_damage
async def a_damaged_run_is_skipped_with_a_warning(store: CheckpointStore, damage: Damage) -> None:
    for run_id in ("first", "damaged", "last"):
        await created(store, run_id)
    await damage(store, "damaged")

    for query in (RunQuery(), RunQuery(limit=None), RunQuery(resumable=True)):
        with warned("damaged"):
            assert await found(store, query) == ["first", "last"]
    assert await store.damaged_runs() == ["damaged"]
    with fails(CorruptCheckpoint) as caught:
        await find_run(store, "damaged")
    assert caught.error.run_id == "damaged"


@DAMAGE.check_damage
async def a_damaged_run_leaves_full_pages_of_the_others(
    store: CheckpointStore, damage: Damage
) -> None:
    for number in range(6):
        await created(store, f"r{number}", summary=summary_of(created_at=9 - number))
    await damage(store, "r1")

    page = await store.find(RunQuery(limit=3))
    assert [info.run_id for info in page] == ["r0", "r2", "r3"]
    assert await found(store, RunQuery(limit=3, after=page[-1].place)) == ["r4", "r5"]


@DAMAGE.check_damage
async def the_others_are_written_beside_a_damaged_run(
    store: CheckpointStore, damage: Damage
) -> None:
    lease = await begun(store, "held")
    await begun(store, "damaged", seconds=0)
    await damage(store, "damaged")

    assert len(store.renew([lease], seconds=60)) == 1
    await appended(store, lease, b"2", summary=summary_of(RunStatus.FAILED), release=True)
    await claimed(store, "held")
    await created(store, "new")
    assert set(await found(store)) == {"held", "new"}


@DAMAGE.check_damage
async def a_damaged_run_is_not_created_again_and_can_be_deleted(
    store: CheckpointStore, damage: Damage
) -> None:
    await created(store, "damaged", summary=DUE)
    await damage(store, "damaged")

    with fails(CorruptCheckpoint):
        await claimed(store, "damaged")
    await store.salvage("damaged")
    assert await store.create("damaged", [b"x"], summary=DUE) is None
    await store.delete("damaged")
    assert await store.damaged_runs() == []
    await created(store, "damaged", b"anew")
    assert await bodies_of(store, "damaged") == [b"anew"]


@DAMAGE.check_damage
async def a_worker_claims_the_others_beside_a_damaged_run(
    store: CheckpointStore, damage: Damage
) -> None:
    """Only of a store that workers can use."""
    if not isinstance(store, ServiceStore):
        return
    for run_id in ("damaged", "child", "due"):
        await created(store, run_id, summary=DUE)
    await damage(store, "damaged")

    for _ in range(2):
        owners = [str(Owner.new()) for _ in range(5)]
        due = DueRuns(frozenset({"w"}), owners, 60, time.time())
        claimed = await store.claim_due(due)
        assert {one.info.run_id for one in claimed.runs} == {"child", "due"}
        for one in claimed.runs:
            await store.release(one.lease)
