"""Runs from before the first release, whose branches had no order, are refused as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from effectflow import (
    CheckpointError,
    Checkpoints,
    Do,
    Effect,
    pure,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointStore,
    CorruptCheckpoint,
    RunStatus,
    RunSummary,
    UnsupportedVersion,
    find_run,
    read_checkpoint,
    repair_run,
    verify_run,
)
from effectflow.checkpoint.integrity import Seal
from effectflow.service import App as Service, Worker
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, note
from tests.sealing import sealed

pytestmark = pytest.mark.anyio

say = step(note)


@step
def ask(who: str) -> Effect[App, str, str]:
    return pure(who) if who == "ann" else sleep(60).map(lambda _: who)


@workflow
def order(item: str) -> Do[App, Any, int]:
    yield from race([ask("ann"), ask("bob")])
    return (yield from say(item))


STARTED: dict[str, Any] = {
    "entry": "started",
    "run_id": "r",
    "workflow": "order",
    "kind": "standard",
    "version": "1",
    "fingerprint": "e9fbceeb1c3398cf",
    "input": "cap",
    "context": {},
    "at": 1.0,
}
BEGAN = {"entry": "before_step", "step": "race[0]/ask", "attempt": 1, "at": 2.0, "function": "ask"}
COMPLETED = {
    "entry": "completed",
    "step": "race[0]/ask",
    "output": "ann",
    "duration": 0.1,
    "at": 3.0,
}
DECIDED = [
    {"entry": "decided", "path": "race", "value": 0, "at": 4.0},
    {"entry": "branches_ended", "path": "race", "at": 5.0},
]
OLD = [{**STARTED, "format": 1}, BEGAN, COMPLETED, *DECIDED]
"""A journal of the development format: `format` in place of `journal`, and what operators decided."""

MIXED = [{**STARTED, "journal": 1}, BEGAN, {**COMPLETED, "turn": 1}, *DECIDED]
"""A journal of this format, with entries that it does not have."""


async def written(store: CheckpointStore, trees: list[dict[str, Any]]) -> list[bytes]:
    """Write an interrupted run that is due. Return its entries."""
    digest, bodies = hashlib.sha256(b"r").digest(), list[bytes]()
    for tree in trees:
        payload = json.dumps(tree).encode()
        body, digest = sealed(payload, digest)
        bodies.append(body)
    summary = RunSummary("order", RunStatus.INTERRUPTED, 1.0, due_at=1.0)
    await store.create("r", bodies, summary=summary)
    return bodies


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store


USES: dict[str, Callable[[], Effect[App, Any, Any]]] = {
    "start": lambda: order.start("cap", run_id="r"),
    "resume": lambda: order.resume("r"),
    "resume, forced": lambda: order.resume("r", force=True),
    "plan": lambda: order.plan("r"),
    "result": lambda: order.result("r"),
    "retry of dead letters": lambda: order.retry_dead_letters("r"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("trees", [OLD, MIXED], ids=["old", "mixed"])
async def test_a_run_of_the_development_format_is_refused_and_not_changed(
    store: MemoryStore, use: Callable[[], Effect[App, Any, Any]], trees: list[dict[str, Any]]
) -> None:
    bodies, app = await written(store, trees), app_on(store)

    error = (await use().run(app)).failure()

    check_refusal(error, trees)
    assert app.world.done == []
    assert [record.body for record in await store.read("r")] == bodies
    info = await find_run(store, "r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.INTERRUPTED, None)


def check_refusal(error: object, trees: list[dict[str, Any]]) -> None:
    if trees is OLD:
        assert isinstance(error, UnsupportedVersion)
        assert "is from before the first release: end its runs with the effectflow" in str(error)
    else:
        assert isinstance(error, CorruptCheckpoint)
        assert "does not know such an entry (KeyError('decided'))" in str(error)


@pytest.mark.parametrize("trees", [OLD, MIXED], ids=["old", "mixed"])
async def test_a_run_of_the_development_format_is_neither_read_nor_taken_for_damage(
    store: MemoryStore, trees: list[dict[str, Any]]
) -> None:
    bodies = await written(store, trees)

    check_refusal((await verify_run(store, "r")).problem, trees)
    with pytest.raises(CheckpointError) as caught:
        await read_checkpoint(store, "r")
    check_refusal(caught.value, trees)
    with pytest.raises(CheckpointError) as caught:
        await repair_run(store, "r", Seal())
    check_refusal(caught.value, trees)
    assert [record.body for record in await store.read("r")] == bodies


async def test_a_worker_puts_a_run_of_the_development_format_off_and_drives_the_others(
    store: MemoryStore,
) -> None:
    bodies, app = await written(store, OLD), app_on(store)
    service = Service([order], environment=lambda _: app, checkpoints=Checkpoints(store))

    async with Worker(service) as worker:
        handle = await worker.client.submit(order, "hat", run_id="s")
        assert (await handle.result(timeout=30)).unwrap() == 1

    assert app.world.done == ["hat"]
    assert [record.body for record in await store.read("r")] == bodies
