"""What a later version of effectflow writes is read, or rejected by name, as `docs/format.md` says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from effectflow import Checkpoints
from effectflow.checkpoint import (
    CheckpointStore,
    CorruptCheckpoint,
    RunQuery,
    UnsupportedVersion,
    find_run,
    read_entries,
    read_exported,
    verify_run,
)
from effectflow.stores import MemoryStore
from tests.format.conftest import unzipped
from tests.format.workflows import Shop, listed
from tests.format.write import SEALS
from tests.sealing import sealed

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def trees_of(store: CheckpointStore, run_id: str) -> list[dict[str, Any]]:
    """Return the entries of a run of the stored ones as JSON."""
    return [json.loads(record.body.rpartition(b"\n")[0]) for record in await store.read(run_id)]


@asynccontextmanager
async def with_entries(
    run_id: str, trees: list[dict[str, Any]], store: CheckpointStore
) -> AsyncIterator[CheckpointStore]:
    """Open a store in which a run has these entries, sealed as the page says."""
    info = await find_run(store, run_id)
    assert info is not None
    digest, bodies = hashlib.sha256(run_id.encode()).digest(), list[bytes]()
    for tree in trees:
        payload = json.dumps(tree).encode()
        body, digest = sealed(payload, digest)
        bodies.append(body)
    async with MemoryStore() as changed:
        await changed.create(run_id, bodies, summary=info.summary)
        yield changed


async def refusal(run_id: str, trees: list[dict[str, Any]], store: CheckpointStore) -> object:
    """Return what a resume of a run with these entries fails with, having changed nothing."""
    async with with_entries(run_id, trees, store) as changed:
        result = await listed.resume(run_id).run(Shop(Checkpoints(changed)))
        assert len(await changed.read(run_id)) == len(trees)
        return result.failure()


def extended(part: Any) -> Any:
    """Return a part of an entry with one more field."""
    return {**part, "novelty": {"any": ["thing"]}} if isinstance(part, dict) else part


async def test_unknown_fields_are_ignored(imported: CheckpointStore) -> None:
    run_ids = {info.run_id for info in await imported.find(RunQuery(limit=None))}
    # Those whose entries are all plain JSON.
    for run_id in run_ids - SEALS.keys() - {"everything"}:
        trees = [extended(tree) for tree in await trees_of(imported, run_id)]
        for tree in trees:
            for name in ("error", "arguments"):
                if name in tree:
                    tree[name] = extended(tree[name])
        async with with_entries(run_id, trees, imported) as changed:
            assert (await verify_run(changed, run_id)).problem is None
            assert await read_entries(changed, run_id) == await read_entries(imported, run_id)


async def test_an_unknown_kind_of_entry_is_rejected_and_not_taken_for_damage(
    imported: CheckpointStore,
) -> None:
    trees = await trees_of(imported, "steps")

    refused = await refusal("steps", [*trees, {"entry": "novelty", "at": 1.0}], imported)
    assert isinstance(refused, CorruptCheckpoint)
    assert not refused.is_damaged
    assert "upgrade effectflow if a newer one wrote it" in str(refused)


async def test_an_unknown_kind_of_value_is_rejected(imported: CheckpointStore) -> None:
    trees = await trees_of(imported, "steps")
    [completed] = [tree for tree in trees if tree["entry"] == "completed"]
    completed["output"] = {"$novelty": 1}

    refused = await refusal("steps", trees, imported)
    assert isinstance(refused, CorruptCheckpoint)
    assert "does not know the tag of ['$novelty']" in str(refused)


async def test_a_run_in_a_newer_format_is_rejected(imported: CheckpointStore) -> None:
    first, *others = await trees_of(imported, "steps")

    refused = await refusal("steps", [{**first, "journal": 2}, *others], imported)
    assert isinstance(refused, UnsupportedVersion)
    assert "Upgrade effectflow" in str(refused)


def test_an_export_with_unknown_fields_is_read_and_a_newer_one_is_rejected() -> None:
    header, *rows = unzipped("exported.jsonl").splitlines(keepends=True)
    [run, *_] = read_exported([header, *rows])
    count = len(run.bodies)

    novel = json.dumps({**json.loads(header), "novelty": 1}).encode()
    assert list(read_exported([novel, *rows[:count]])) == [run]
    newer = json.dumps({**json.loads(header), "effectflow_export": 2}).encode()
    with pytest.raises(UnsupportedVersion, match="Upgrade effectflow"):
        list(read_exported([newer, *rows[:count]]))
