"""Runs that were written in an older version of the format go on in the present one.

The present version is the first, so the tests make one up that came before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Never

import orjson
import pytest

from effectflow import Checkpoints, Do, Effect, from_fn, step, workflow
from effectflow.checkpoint import (
    BeforeStep,
    Checkpoint,
    CheckpointStore,
    CorruptCheckpoint,
    Owner,
    Resumed,
    RunStatus,
    RunSummary,
    UnsupportedVersion,
    read_checkpoint,
    read_entries,
)
from effectflow.checkpoint.values import Tree, encode_compact
from effectflow.stores import MemoryStore

pytestmark = pytest.mark.anyio

OLD = [
    {
        "entry": "started", "format": 1, "run_id": "r", "workflow": "adding", "kind": "standard",
        "version": "1", "fingerprint": "", "steps": ["add"], "input": 5, "context": {}, "at": 1.0,
    },
    {"entry": "before_step", "step": "add", "try": 1, "at": 2.0},
    {"entry": "completed", "step": "add", "output": 6, "duration": 0.5, "at": 3.0},
    {"entry": "before_step", "step": "add#2", "try": 1, "at": 4.0},
]  # fmt: skip
"""A run of two steps that stopped in the second, when attempts were called tries."""


def from_tries_to_attempts(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"attempt" if key == "try" else key: value for key, value in tree.items()}


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    added: list[int]


@step
def add(number: int) -> Effect[App, Never, int]:
    def add(app: App) -> int:
        app.added.append(number)
        return number + 1

    return from_fn(add)


@workflow
def adding(number: int) -> Do[App, Never, int]:
    number = yield from add(number)
    number = yield from add(number)
    return number


async def write_run(store: CheckpointStore, trees: list[dict[str, Tree]]) -> None:
    """A run as docs/format.md describes it."""
    digest, bodies = hashlib.sha256(b"r").digest(), list[bytes]()
    for tree in trees:
        payload = orjson.dumps(tree)
        digest = hashlib.sha256(digest + payload).digest()
        bodies.append(payload + b"\nsha256:" + digest.hex().encode())
    lease = await store.claim("r", owner=str(Owner.new()), seconds=60)
    summary = RunSummary("adding", "standard", "1", RunStatus.RUNNING, 1.0)
    await store.append(lease, bodies, after=0, summary=summary, release=True)


@pytest.fixture
def second_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "effectflow.checkpoint.format_versions.MIGRATIONS", (from_tries_to_attempts,)
    )


@pytest.mark.usefixtures("second_version")
async def test_a_run_of_an_older_version_goes_on_in_the_present_one() -> None:
    async with MemoryStore() as store:
        await write_run(store, [{**OLD[0], "fingerprint": adding.fingerprint}, *OLD[1:]])
        app = App(Checkpoints(store), [])

        assert await adding.resume("r").run_or_raise(app) == 7
        assert app.added == [6]
        # What was written in either version is read together.
        entries = await read_entries(store, "r")
        assert [entry.format for entry in entries if isinstance(entry, Resumed)] == [2]
        assert await adding.start(5, run_id="r").run_or_raise(app) == 7
        assert app.added == [6]


async def test_a_run_that_a_newer_version_went_on_with_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore() as store:
        app = App(Checkpoints(store), [])
        with monkeypatch.context() as newer:
            newer.setattr(
                "effectflow.checkpoint.format_versions.MIGRATIONS", (from_tries_to_attempts,)
            )
            await write_run(store, [{**OLD[0], "fingerprint": adding.fingerprint}])
            assert await adding.resume("r").run_or_raise(app) == 7
        before = await store.read("r")

        with pytest.raises(UnsupportedVersion, match="run 'r' has format version 2"):
            await adding.start(5, run_id="r").run_or_raise(app)
        assert await store.read("r") == before


async def old_checkpoint() -> dict[str, Any]:
    """The run above as a checkpoint, as the older version saved it; without its digest."""
    async with MemoryStore() as store:
        await write_run(store, [{**OLD[0], "fingerprint": adding.fingerprint}, *OLD[1:]])
        tree: dict[str, Any] = (await read_checkpoint(store, "r")).to_tree()
    del tree["digest"]
    return {**tree, "version": 1, "state": OLD[3]}


def saved(tree: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint with its digest, as docs/format.md describes it."""
    return {**tree, "digest": hashlib.sha256(orjson.dumps(tree)).hexdigest()}


@pytest.mark.usefixtures("second_version")
async def test_a_checkpoint_that_an_older_version_saved_is_read_in_the_present_one() -> None:
    tree = saved(await old_checkpoint())

    checkpoint = Checkpoint.from_json(orjson.dumps(tree).decode())
    assert checkpoint == Checkpoint.from_binary(encode_compact(tree))
    assert checkpoint.state == BeforeStep("add#2", 1, at=4.0)
    # What is saved of it now says so.
    assert checkpoint.version == 2
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    assert Checkpoint.from_binary(checkpoint.to_binary()) == checkpoint
    async with MemoryStore() as store:
        await write_run(store, [{**OLD[0], "fingerprint": adding.fingerprint}, *OLD[1:]])
        assert await read_checkpoint(store, "r") == checkpoint


@pytest.mark.usefixtures("second_version")
async def test_the_parts_of_an_older_checkpoint_must_agree_as_well() -> None:
    tree = await old_checkpoint()
    for wrong in ({"status": "completed"}, {"id": "r@9"}, {"state": {**OLD[3], "more": 1}}):
        text = orjson.dumps(saved({**tree, **wrong})).decode()
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.from_json(text)


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", [0, -1, -3, True, 1.0, "1", None, [1]])
async def test_a_checkpoint_of_no_version_is_refused(version: Any) -> None:
    text = orjson.dumps(saved({**await old_checkpoint(), "version": version})).decode()
    with pytest.raises(CorruptCheckpoint):
        Checkpoint.from_json(text)
