"""Entries with a valid digest but hostile contents are reported, or have a readable checkpoint."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, Literal

import anyio
import cbor2
import orjson
import pytest
from hypothesis import given, settings, strategies as st
from returns.result import Failure

from effectflow import Checkpoints, Do, Effect, Signal, pure, step, workflow
from effectflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CorruptCheckpoint,
    RunStatus,
    RunSummary,
    read_checkpoint,
    verify_run,
)
from effectflow.stores import MemoryStore
from tests.apps import App, cut_off
from tests.sealing import sealed

pytestmark = pytest.mark.anyio

Format = Literal["json", "cbor"]


@step
def add(number: int) -> Effect[App, str, int]:
    return pure(number + 1)


@workflow
def adding(number: int) -> Do[App, str, int]:
    handled = yield from add(number).result()
    return (yield from add(handled.value_or(0)))


STARTED: dict[str, Any] = {
    "entry": "started", "journal": 1, "run_id": "r", "workflow": "adding", "kind": "standard",
    "version": "1", "fingerprint": adding.fingerprint, "steps": ["add"], "input": 5,
    "context": {}, "at": 1.0,
}  # fmt: skip
BEGUN = {"entry": "before_step", "step": "add", "attempt": 1, "at": 2.0}
COMPLETED = {"entry": "completed", "step": "add", "output": 6, "duration": 0.5, "at": 3.0}


def failed(error: dict[str, Any]) -> dict[str, Any]:
    return {"entry": "failed", "step": "add", "error": error, "retryable": False, "at": 3.0}


def encoded(tree: Any, form: Format) -> bytes:
    return orjson.dumps(tree) if form == "json" else cbor2.dumps(tree)


async def write_run(store: CheckpointStore, trees: list[Any], form: Format) -> None:
    """Write a run as docs/format.md describes it."""
    digest, bodies = hashlib.sha256(b"r").digest(), list[bytes]()
    for tree in trees:
        body, digest = sealed(encoded(tree, form), digest)
        bodies.append(body)
    summary = RunSummary("adding", RunStatus.RUNNING, 1.0)
    await store.create("r", bodies, summary=summary)


async def assert_refused(trees: list[Any], form: Format) -> None:
    """Assert that all that read the run report the last of these entries as damaged."""
    async with MemoryStore() as store:
        await write_run(store, trees, form)
        found = await verify_run(store, "r")
        assert isinstance(found.problem, CorruptCheckpoint)
        assert found.good == len(trees) - 1
        with pytest.raises(CorruptCheckpoint, match=f"entry {len(trees)} of run 'r'"):
            await read_checkpoint(store, "r")
        ended = await adding.resume("r").run(App(Checkpoints(store)))
        assert isinstance(ended, Failure)
        assert isinstance(ended.failure(), CorruptCheckpoint)


def nested(levels: int, *, in_maps: bool = False) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"a": value} if in_maps else [value]
    return value


STRANGE: list[Any] = [
    b"bytes",
    cbor2.undefined,
    cbor2.CBORSimpleValue(200),
    -(2**63) - 1,
    {1: 2},
    {None: 1},
    {b"a": 1},
    {("a",): 1},
    nested(300),
    nested(300, in_maps=True),
]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("part", ["value", "part of a value", "time"])
async def test_reading_an_entry_rejects_what_is_not_plain_data(strange: Any, part: str) -> None:
    values = {
        "value": {"output": strange},
        "part of a value": {"output": {"a": [1, {"b": strange}]}},
        "time": {"at": strange},
    }
    await assert_refused([STARTED, BEGUN, {**COMPLETED, **values[part]}], "cbor")


@pytest.mark.parametrize("form", ["json", "cbor"])
@pytest.mark.parametrize("in_maps", [False, True], ids=["lists", "maps"])
@pytest.mark.parametrize("levels", [240, 250, 252])
async def test_the_depth_of_an_entry_is_limited_so_that_a_checkpoint_can_contain_it(
    form: Format, in_maps: bool, levels: int
) -> None:
    value = nested(levels, in_maps=in_maps)
    await assert_refused([STARTED, BEGUN, {**COMPLETED, "output": value}], form)

    async with MemoryStore() as store:
        value = nested(239, in_maps=in_maps)
        await write_run(store, [STARTED, BEGUN, {**COMPLETED, "output": value}], form)
        assert (await verify_run(store, "r")).problem is None
        checkpoint = await read_checkpoint(store, "r")
    assert_comes_back(checkpoint)


@pytest.mark.parametrize("form", ["json", "cbor"])
async def test_the_deepest_value_that_can_be_saved_can_be_read(form: Format) -> None:
    def nest(depth: int) -> Any:
        return {depth: nest(depth - 1)} if depth else "bottom"

    deepest = nest(64)

    @workflow
    def deep(_: None) -> Do[App, Any, Any]:
        return (yield from pure(deepest).checkpointed("deep"))

    async with MemoryStore() as store:
        app = App(Checkpoints(store, format=form))
        assert await deep.start(None, run_id="r").run_or_raise(app) == deepest
        assert await deep.start(None, run_id="r").run_or_raise(app) == deepest
        assert_comes_back(await read_checkpoint(store, "r"))


@pytest.mark.parametrize("form", ["json", "cbor"])
async def test_reading_rejects_a_defect_that_is_not_an_exception(form: Format) -> None:
    error = {"type": "str", "message": "m", "value": {"value": "x"}, "traceback": "in line 1"}
    await assert_refused([STARTED, BEGUN, failed(error)], form)


go: Signal[int] = Signal("go", int)


@workflow
def waiting(_: None) -> Do[App, str, int]:
    return (yield from go.wait())


@pytest.mark.parametrize("form", ["json", "cbor"])
async def test_a_message_that_is_another_entry_is_left_in_the_mailbox(
    form: Format, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [hashlib.sha256(part).digest() for part in (b"r", go.topic.encode(), b"k")]
    place = hashlib.sha256(b"message" + b"".join(parts)).digest()
    async with MemoryStore() as store:
        app = App(Checkpoints(store))
        await cut_off(waiting.start(None, run_id="r"), app)
        await store.send("r", go.topic, key="k", body=sealed(encoded(COMPLETED, form), place)[0])
        await cut_off(waiting.resume("r"), app)
        assert [message.key for message in await store.mailbox("r")] == ["k"]
    assert "message 'k' to run 'r' about 'signal:go'" in caplog.text
    assert "it is a Completed" in caplog.text


def assert_comes_back(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    assert Checkpoint.from_binary(checkpoint.to_binary()) == checkpoint


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
async def test_reading_a_saved_checkpoint_rejects_what_is_not_plain_data(strange: Any) -> None:
    async with MemoryStore() as store:
        await write_run(store, [STARTED, BEGUN, COMPLETED], "json")
        tree: dict[str, Any] = (await read_checkpoint(store, "r")).to_tree()
    del tree["digest"]
    tree["current_state"] = [strange]
    try:
        digest = hashlib.sha256(orjson.dumps(tree)).hexdigest()
    except TypeError:
        digest = ""
    data = zlib.compress(cbor2.dumps({**tree, "digest": digest}))
    with pytest.raises(CorruptCheckpoint):
        Checkpoint.from_binary(data)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.sampled_from([cbor2.undefined, cbor2.CBORSimpleValue(99)])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(LEAVES, parts, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(ANYTHING)
def test_the_checkpoint_of_a_verified_run_can_be_saved_and_read(value: Any) -> None:
    async def read() -> Checkpoint | None:
        async with MemoryStore() as store:
            await write_run(store, [{**STARTED, "input": value}, BEGUN], "cbor")
            if (await verify_run(store, "r")).problem is not None:
                return None
            return await read_checkpoint(store, "r")

    checkpoint = anyio.run(read)
    if checkpoint is not None:
        assert_comes_back(checkpoint)
