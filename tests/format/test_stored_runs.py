"""Runs that were stored in each version of the format are read, verified and continued for ever.

`stored` has them as each store has them on its disk, and never changes. See `docs/format.md#versions`.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import anyio
import pytest
from returns.result import Success

from effectflow import App, Checkpoints, Client, Worker
from effectflow.checkpoint import (
    CheckpointStore,
    Entry,
    RunQuery,
    RunStatus,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.workflows import IterativeResult, JobResult
from tests.format.conftest import STORED
from tests.format.workflows import (
    SERVED,
    STARTED,
    Order,
    Parcel,
    Receipt,
    Shop,
    approval,
    invoice,
    order,
    parent,
    request,
)
from tests.format.write import SEALS, checkpoints_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"]),
]

CHECKPOINTS: dict[str, Any] = json.loads((STORED / "checkpoints.json").read_text("utf-8"))


async def check_runs(store: CheckpointStore, run_ids: list[str]) -> None:
    """Check that a store has these runs whole, and that they are what they were when they were stored."""
    assert sorted(run_ids) == sorted(CHECKPOINTS)
    for run_id in run_ids:
        seal = checkpoints_of(store, run_id).seal
        assert (await verify_run(store, run_id, seal)).problem is None
        checkpoint = await read_checkpoint(store, run_id, seal)
        assert json.loads(checkpoint.to_json()) == CHECKPOINTS[run_id]


async def run_ids_of(store: CheckpointStore) -> list[str]:
    return [info.run_id for info in await store.find(RunQuery(limit=None))]


async def test_every_run_is_whole_and_reads_as_it_did(store: CheckpointStore) -> None:
    await check_runs(store, await run_ids_of(store))


async def test_every_exported_run_is_whole_and_reads_as_it_did(imported: CheckpointStore) -> None:
    await check_runs(imported, await run_ids_of(imported))


async def test_the_stored_runs_have_every_kind_of_entry(imported: CheckpointStore) -> None:
    kinds: set[type[Any]] = set()
    for run_id in CHECKPOINTS:
        entries = await read_entries(imported, run_id, checkpoints_of(imported, run_id).seal)
        kinds |= {type(entry) for entry in entries}

    assert kinds == set(get_args(Entry))


async def test_every_run_that_failed_is_resumed_to_its_end(store: CheckpointStore) -> None:
    shop = Shop(Checkpoints(store))
    ended = {
        run_id: await workflow.resume(run_id).run(shop)
        for run_id, (workflow, _) in STARTED.items()
    }
    assert {run_id: result.unwrap() for run_id, result in ended.items()} == RESULTS


RESULTS: dict[str, Any] = {}
