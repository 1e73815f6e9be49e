"""Long states cost little in the store: entries are compressed, and unchanged parts are saved once."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import (
    Completed,
    CorruptCheckpoint,
    Encryption,
    EntryAppended,
    RunStatus,
    RunSummary,
    Seal,
    read_entries,
)
from effectflow.effects import from_fn
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver, crash_everywhere

pytestmark = pytest.mark.anyio

LONG = " ".join(str(number * number) for number in range(30_000))


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    values: list[Any] = field(default_factory=list[Any])


def visit(state: dict[str, Any]) -> Effect[object, str, dict[str, Any]]:
    return pure({**state, "visits": state["visits"] + 1})


graph = (
    StateGraph[App, str, dict[str, Any]]("reading")
    .node("read", visit)
    .edge("read", "read", when=lambda state: state["visits"] < 40)
    .node("end", pure)
    .edge("read", "end")
    .entry("read")
    .exit("end")
    .build()
)


async def size_of(store: MemoryStore) -> int:
    return sum(len(record.body) for record in await store.read("r"))


@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_a_state_that_hardly_changes_is_saved_about_once(
    format: Literal["json", "cbor"],
) -> None:
    store = MemoryStore()
    app = App(Checkpoints(store, format=format))
    result = await graph.start({"visits": 0, "text": LONG}, run_id="r").run(app)
    assert result == Success({"visits": 40, "text": LONG})
    # The input, the first visit and the output have the text; 39 visits refer to it.
    assert await size_of(store) < 3 * len(zlib.compress(LONG.encode(), 1)) + 41 * 800

    outputs: list[Any] = [
        entry.output for entry in await read_entries(store, "r") if isinstance(entry, Completed)
    ]
    assert [output["visits"] for output in outputs] == [*range(1, 41), 40]
    assert all(output["text"] == LONG for output in outputs)
    assert await graph.resume("r").run(app) == result


async def test_observers_get_whole_outputs() -> None:
    observer = RecordingObserver()
    app = App(Checkpoints(MemoryStore(), observers=[observer]))
    await graph.start({"visits": 38, "text": LONG}, run_id="r").run(app)
    told: list[Any] = [
        event.entry.output
        for event in observer.events
        if isinstance(event, EntryAppended) and isinstance(event.entry, Completed)
    ]
    assert [output["text"] for output in told] == [LONG] * 3


async def test_a_crash_changes_nothing_about_long_states() -> None:
    points = await crash_everywhere(
        graph, {"visits": 38, "text": LONG}, lambda store: App(Checkpoints(store))
    )
    assert len(points) == 10


@step
def give(number: int) -> Effect[App, str, Any]:
    return from_fn(lambda app: app.values[number])


@workflow
def all_values(count: int) -> Do[App, str, list[Any]]:
    values: list[Any] = []
    for number in range(count):
        values.append((yield from give(number)))
    return values


parts = st.sampled_from(
    ["x" * 2000, "y" * 9000, "z" * 20_000, ["x" * 2000] * 3, {"a": "y" * 9000}, 1]
)
values = st.recursive(
    parts,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(values=st.lists(values, max_size=6), is_encrypted=st.booleans())
async def test_saved_values_come_back_unchanged(values: list[Any], is_encrypted: bool) -> None:
    encryption = Encryption("k", {"k": bytes(32)}) if is_encrypted else None
    app = App(Checkpoints(MemoryStore(), encryption=encryption), values)
    await all_values.start(len(values), run_id="r").run(app)
    seal = app.checkpoints.seal
    entries = await read_entries(app.checkpoints.store, "r", seal)
    assert [entry.output for entry in entries if isinstance(entry, Completed)] == values


async def test_outputs_that_share_a_part_are_separate_objects() -> None:
    app = App(Checkpoints(MemoryStore()), [[["x" * 9000]], [["x" * 9000]]])
    await all_values.start(2, run_id="r").run(app)
    entries = await read_entries(app.checkpoints.store, "r")
    outputs: list[Any] = [entry.output for entry in entries if isinstance(entry, Completed)]
    first, second = outputs
    first[0].append("more")
    assert second == [["x" * 9000]]


async def hostile(payload: bytes) -> CorruptCheckpoint:
    """Return how a run with this payload as its only entry is refused."""
    store, seal = MemoryStore(), Seal()

    previous = hashlib.sha256(b"r").digest()
    digest = hashlib.sha256(previous + payload).digest()
    summary = RunSummary("w", RunStatus.RUNNING, 0.0)
    await store.create("r", [payload + digest + b"S"], summary=summary)
    with pytest.raises(CorruptCheckpoint) as refused:
        await read_entries(store, "r", seal)
    return refused.value


async def test_a_compressed_entry_that_expands_without_end_is_rejected() -> None:
    bomb = zlib.compress(bytes(65 * 1024 * 1024), 9)
    assert "its size is wrong" in str(await hostile(b"\x02" + bomb))


@pytest.mark.parametrize(
    "data", [b"", b"no", zlib.compress(b"{}")[:-3], zlib.compress(b"{}") + b"x"]
)
async def test_a_compressed_entry_that_is_damaged_is_rejected(data: bytes) -> None:
    assert "cannot be decompressed" in str(await hostile(b"\x02" + data))
