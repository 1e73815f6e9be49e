"""Runs that were stored in each version of the format are read, verified and continued forever.

`stored` has them as each store has them on its disk, and never changes: see `docs/format.md`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, get_args

import pytest
from returns.result import Success

from effectflow import App, Checkpoints, Client, Worker
from effectflow.builders.iterative import IterativeResult
from effectflow.checkpoint import (
    CheckpointStore,
    Entry,
    RunCancelled,
    RunQuery,
    ServiceStore,
    find_run,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.integrity import first_digest
from effectflow.stores import MemoryStore
from tests.format.conftest import STORED
from tests.format.workflows import (
    SERVED,
    STARTED,
    Parcel,
    Receipt,
    Shop,
    approval,
    invoice,
    order,
    parcel,
    parent,
    request,
)
from tests.format.write import SEALS, checkpoints_of
from tests.sweeps import BACKENDS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", BACKENDS),
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


async def test_entries_are_still_written_in_the_same_form(imported: CheckpointStore) -> None:
    for run_id in CHECKPOINTS.keys() - SEALS.keys():
        seal, digest = checkpoints_of(imported, run_id).seal, first_digest(run_id)
        for record in await imported.read(run_id):
            entry, following = seal.open(record, run_id, digest)
            # Other versions of zlib compress in other ways.
            if record.body.startswith(b"{"):
                assert seal.close(entry, digest) == (record.body, following)
            digest = following


async def test_every_run_that_failed_is_resumed_to_its_end(store: CheckpointStore) -> None:
    shop = Shop(Checkpoints(store))
    results = {
        run_id: (await workflow.resume(run_id).run(shop)).unwrap()
        for run_id, (workflow, _) in STARTED.items()
    }

    machine = results.pop("machine")
    assert (machine.current, machine.metadata.total_attempts) == (
        Parcel.SHIPPED,
        {"pack": 2, "ship": 1},
    )
    job = results.pop("job")
    assert (job.value, job.items, [letter.key for letter in job.dead_letters]) == (8, 3, ["two"])
    assert results == {
        "graph": "text! TEXT! text!!",
        "rounds": IterativeResult(12, 2, True),
        "steps": "text, prepared, finished",
        "long": 101,
    }
    # Only what had failed.
    assert shop.done == ["ship", "publish", "count", "double 6", "finish", "finish"]


@pytest.mark.parametrize("run_id", SEALS)
async def test_a_run_in_another_encoding_or_encrypted_is_resumed(
    store: CheckpointStore, run_id: str
) -> None:
    shop = Shop(checkpoints_of(store, run_id))

    assert await invoice.resume(run_id).run(shop) == Success(3)


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_a_saved_machine_continues(form: str) -> None:
    saved = json.loads((STORED / "machines.json").read_text("utf-8"))
    attempted, packed = (
        parcel.from_json(one["json"])
        if form == "json"
        else parcel.from_binary(b64decode(one["binary"]))
        for one in saved
    )

    pending = attempted.metadata.pending
    assert pending is not None
    assert (pending.transition, pending.feedback) == ("pack", "no box")
    assert attempted.path() == (Parcel.NEW,)
    assert packed.path() == (Parcel.NEW, Parcel.PACKED)
    assert packed.metadata.total_attempts == {"pack": 2}
    shipped = await parcel.step(packed).run_or_raise(Shop(Checkpoints(MemoryStore())))
    assert shipped.path() == (Parcel.NEW, Parcel.PACKED, Parcel.SHIPPED)


async def test_outputs_of_complete_runs_are_read(store: CheckpointStore) -> None:
    shop = Shop(Checkpoints(store))
    receipt = Receipt(prices=(5, 4), first="first", is_approved=True, pages=400)

    assert await order.resume("everything").run(shop) == Success(receipt)
    assert await request.resume("shipped").run(shop) == Success("shipped was shipped")
    assert isinstance((await request.resume("cancelled").run(shop)).failure(), RunCancelled)
    assert (await request.resume("undone").run(shop)).failure().args == ("ship",)
    assert shop.done == []


async def test_a_worker_continues_runs_that_wait_are_pending_or_lost_their_owner(
    service_store: ServiceStore,
) -> None:
    store = service_store
    shop = Shop(Checkpoints(store))
    app = App[Shop](SERVED, environment=lambda _: shop, checkpoints=shop.checkpoints)
    async with Worker(app) as worker:
        client = worker.client
        for run_id in ("suspended", "pending", "killed", "interrupted"):
            await client.handle(request, run_id).send(approval, True)

        assert {
            run_id: await client.handle(request, run_id).result(timeout=30) for run_id in WAITING
        } == {
            run_id: Success(f"{run_id} was {'refused' if run_id == 'answered' else 'shipped'}")
            for run_id in WAITING
        }
        assert await client.handle(parent, "parent").result(timeout=30) == Success("7 was paid")

    # What had been reserved is not reserved again.
    reserved = [action for action in shop.done if action.startswith("reserve")]
    assert reserved == ["reserve pending"]
    for run_id in WAITING:
        assert await store.mailbox(run_id) == []


WAITING = ("answered", "suspended", "pending", "killed", "interrupted")
"""The runs of `request` that wait for an approval or have not begun. `answered` has it in its mailbox."""


async def test_a_message_that_was_taken_is_not_sent_again(service_store: ServiceStore) -> None:
    store = service_store
    handle = Client(Checkpoints(store)).handle(request, "undone")
    before = await find_run(store, "undone")

    await handle.send(approval, True, idempotency_key="yes")

    assert await store.mailbox("undone") == []
    assert await find_run(store, "undone") == before
