"""Long states cost little in the store: entries are compressed, and unchanged parts are saved once."""

from __future__ import annotations

import hashlib
import sys
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, Literal, cast

import pytest
from hypothesis import given, strategies as st
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, Workflow, pure, step, workflow
from effectflow.checkpoint import (
    BeforeStep,
    Checkpoint,
    Completed,
    CorruptCheckpoint,
    Encryption,
    Entry,
    EntryAppended,
    RunStatus,
    RunSummary,
    Seal,
    Started,
    StepInputChanged,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.integrity import first_digest
from effectflow.effects import from_fn
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore
from effectflow.testing import RecordingObserver, crash_everywhere
from tests.sealing import sealed

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


@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_long_bytes_are_saved_once_and_in_cbor_as_they_are(
    format: Literal["json", "cbor"],
) -> None:
    blob = Random(1).randbytes(300_000)
    values = [{"blob": blob, "n": 1}, [blob, blob], blob]
    app = App(Checkpoints(MemoryStore(), format=format), values)
    assert await all_values.start(3, run_id="r").run(app) == Success(values)
    # Compression would not make random bytes shorter. The output of the run has all of them again.
    first, *others = [len(record.body) for record in await app.checkpoints.store.read("r")][2:-1:2]
    size = len(blob) * (1 if format == "cbor" else 4 / 3)
    assert size <= first < size + 500
    assert max(others) < 500
    checkpoint = await read_checkpoint(app.checkpoints.store, "r")
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    assert Checkpoint.from_binary(checkpoint.to_binary()) == checkpoint


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


@workflow
def changing_values() -> Do[App, str, list[Any]]:
    first = yield from give(0)
    first[0].append("more")
    second = yield from give(1)
    second[1]["text"] = "changed"
    third = yield from give(2)
    return [first, second, third, (yield from give(3))]


async def test_values_that_share_a_part_are_separate_objects() -> None:
    def value() -> list[Any]:
        return [["x" * 9000], {"text": "y" * 9000}]

    app = App(Checkpoints(MemoryStore()), [value(), value(), value()])
    with pytest.raises(IndexError):
        await changing_values.start(run_id="r").run(app)
    app.values.append(value())
    resumed = await changing_values.resume("r").run(app)
    (text,), part = value()
    assert resumed == Success(
        [[[text, "more"], part], [[text], {"text": "changed"}], value(), value()]
    )


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@dataclass(frozen=True)
class Conversation:
    turns: int
    messages: list[Message]


def message(turn: int) -> str:
    return hashlib.sha256(str(turn).encode()).hexdigest() * 32


@step
def reply(conversation: Conversation, turns: int) -> Effect[App, str, Conversation]:
    turn = conversation.turns
    more = Message("user", message(turn))

    def grown(app: App) -> Conversation:
        if turn == turns - 1 and not app.values:
            raise ConnectionError("the model is down")
        return Conversation(turn + 1, [*conversation.messages, more])

    return from_fn(grown)


@workflow
def agent(turns: int) -> Do[App, str, int]:
    conversation = Conversation(0, [])
    while conversation.turns < turns:
        conversation = yield from reply(conversation, turns)
    return len({each.text for each in conversation.messages})


async def interrupted_agent(turns: int) -> App:
    """Return what an agent has saved which has failed in its last turn."""
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(ConnectionError):
        await agent.start(turns, run_id="r").run(app)
    return app


async def test_a_list_that_grows_at_its_end_is_saved_about_once() -> None:
    app = await interrupted_agent(60)
    app.values.append("the model is up")
    assert await agent.resume("r").run(app) == Success(60)
    assert await size_of(cast(MemoryStore, app.checkpoints.store)) < 1.5 * 60 * len(message(0))


async def calls_to_resume(turns: int) -> int:
    """Return how many functions are called while an agent is resumed."""
    app, calls = await interrupted_agent(turns), 0
    app.values.append("the model is up")

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        resumed = await agent.resume("r").run(app)
    finally:
        sys.setprofile(None)
    assert resumed == Success(turns)
    return calls


async def test_a_resume_decodes_the_items_of_a_growing_list_once() -> None:
    # Each output has all items of the one before it: twice as many turns have four times as many items.
    assert await calls_to_resume(80) < 2.3 * await calls_to_resume(40)


async def test_a_changed_argument_is_refused_after_long_outputs() -> None:
    app = await interrupted_agent(40)
    app.values.append("the model is up")

    @workflow(name="agent")
    def changed(turns: int) -> Do[App, str, int]:
        conversation = Conversation(0, [])
        while conversation.turns < turns:
            if conversation.turns == 30:
                conversation = Conversation(30, conversation.messages[1:])
            conversation = yield from reply(conversation, turns)
        return 0

    refused = (await changed.resume("r").run(app)).failure()
    assert isinstance(refused, StepInputChanged)
    assert refused.step == "reply#31"


@step
def charge(conversation: Conversation, amount: int) -> Effect[App, str, str]:
    return pure(f"{amount} for {conversation.turns}")


@pytest.mark.parametrize("amount", [5, 7])
async def test_the_other_arguments_beside_a_long_output_are_compared(amount: int) -> None:
    def charging(amount: int) -> Workflow[App, str, None, str]:
        @workflow(name="charging")
        def body() -> Do[App, str, str]:
            conversation = Conversation(0, [])
            for _ in range(20):
                conversation = yield from reply(conversation, 100)
            charged = yield from charge(conversation, amount)
            yield from give(0)
            return charged

        return body

    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await charging(5).start(run_id="r").run(app)
    app.values.append("given")
    resumed = await charging(amount).resume("r").run(app)
    if amount == 5:
        assert resumed == Success("5 for 20")
    else:
        assert isinstance(resumed.failure(), StepInputChanged)
        assert "amount=5" in str(resumed.failure())
        assert "amount=7" in str(resumed.failure())


@step
def advanced(state: dict[str, Any], by: int) -> Effect[App, str, dict[str, Any]]:
    return pure({**state, "turn": state["turn"] + by})


@step
def picked(numbers: list[int], at: int) -> Effect[App, str, int]:
    return pure(numbers[at])


@workflow
def picking(sizes: list[int]) -> Do[App, str, int]:
    size, count = sizes
    state: dict[str, Any] = {"text": "x" * size, "numbers": list(range(count)), "turn": 0}
    state = yield from advanced(state, 1)
    state = yield from advanced(state, 2)
    state = yield from advanced(state, 3)
    number = yield from picked(state["numbers"], 7)
    yield from give(0)
    return number


# Around the sizes from which an entry is long, arguments are, and a list is.
@pytest.mark.parametrize("size", [7900, 8000, 8050, 8100, 8140, 8180, 20_000])
@pytest.mark.parametrize("count", [10, 99, 100, 2000])
async def test_unchanged_code_is_never_refused_for_its_arguments(size: int, count: int) -> None:
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await picking.start([size, count], run_id="r").run(app)
    app.values.append("given")
    assert await picking.resume("r").run(app) == Success(7)


@dataclass(frozen=True)
class Counted:
    text: str

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()


@dataclass(slots=True)
class Noted:
    text: str
    notes: list[str]


@step
def counted(count: int) -> Effect[App, str, list[Counted]]:
    return pure([Counted("hello " * 500 + str(number)) for number in range(count)])


@step
def noted(state: Noted) -> Effect[App, str, Noted]:
    return pure(Noted(state.text, list(state.notes)))


@workflow
def counting_words() -> Do[App, str, list[int]]:
    lists = [(yield from counted(5)), (yield from counted(6)), (yield from counted(7))]
    lists[1][0].words.append("more")
    yield from give(0)
    return [len(each[0].words) for each in lists]


async def test_cached_properties_of_outputs_are_separate_objects() -> None:
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await counting_words.start(run_id="r").run(app)
    app.values.append("given")
    assert await counting_words.resume("r").run(app) == Success([501, 502, 501])


async def test_what_changed_code_adds_to_a_long_output_is_noticed() -> None:
    def noting(more: list[str]) -> Workflow[App, str, None, Noted]:
        @workflow(name="noting")
        def body() -> Do[App, str, Noted]:
            state = Noted("x" * 20_000, [])
            state = yield from noted(state)
            state = yield from noted(state)
            state.notes += more
            state = yield from noted(state)
            yield from give(0)
            return state

        return body

    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await noting([]).start(run_id="r").run(app)
    app.values.append("given")
    refused = (await noting(["new"]).resume("r").run(app)).failure()
    assert isinstance(refused, StepInputChanged)


@step
def texts(count: int) -> Effect[App, str, dict[str, list[str]]]:
    # The JSON of both lists has the same length.
    return pure({"short": ["a" * 5] * 2 * count, "long": ["b" * 13] * count})


@step
def one_more(lists: dict[str, list[str]], name: str) -> Effect[App, str, dict[str, list[str]]]:
    return pure({**lists, name: [*lists[name], "new"]})


@workflow
def growing_texts(name: str) -> Do[App, str, dict[str, list[str]]]:
    lists = yield from texts(750)
    lists = yield from one_more(lists, name)
    yield from give(0)
    return lists


@pytest.mark.parametrize("name", ["short", "long"])
async def test_lists_of_the_same_size_are_told_apart(name: str) -> None:
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await growing_texts.start(name, run_id="r").run(app)
    app.values.append("given")
    resumed = (await growing_texts.resume("r").run(app)).unwrap()
    assert resumed[name] == [*(["a" * 5] * 1500 if name == "short" else ["b" * 13] * 750), "new"]


@dataclass(frozen=True)
class Tagged:
    text: str
    tags: list[str] = field(default_factory=list[str], compare=False)


@step
def tagged(number: int) -> Effect[App, str, list[Tagged]]:
    return pure([Tagged("x" * 9000)])


@workflow
def tagging() -> Do[App, str, list[list[str]]]:
    first = yield from tagged(1)
    second = yield from tagged(2)
    second[0].tags.append("seen")
    third = yield from tagged(3)
    yield from give(0)
    return [each[0].tags for each in (first, second, third)]


async def test_objects_that_can_be_changed_are_separate_although_they_have_a_hash() -> None:
    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        await tagging.start(run_id="r").run(app)
    app.values.append("given")
    assert await tagging.resume("r").run(app) == Success([[], ["seen"], []])


def test_classes_with_one_name_in_two_steps_are_told_apart() -> None:
    @dataclass(frozen=True)
    class Other:
        role: str
        text: str

    Other.__name__ = "Message"

    def messages_of(kind: type[Any], name: str) -> Effect[App, str, list[Any]]:
        return pure([kind("user", "x" * 9000)]).checkpointed(name, output=list[kind])

    @workflow
    def both() -> Do[App, str, list[str]]:
        found = [
            (yield from messages_of(Message, "one")),
            (yield from messages_of(Message, "two")),
            (yield from messages_of(Other, "three")),
        ]
        yield from give(0)
        return [type(each[0]).__qualname__.rpartition(".")[2] for each in found]

    app = App(Checkpoints(MemoryStore()))
    with pytest.raises(IndexError):
        both.start(run_id="r").run_sync(app)
    app.values.append("given")
    assert both.resume("r").run_sync(app) == Success(["Message", "Message", "Other"])


def sealed_outputs(*outputs: tuple[Any, Any]) -> list[bytes]:
    """Return the entries of a run whose steps have these outputs and references."""
    entries: list[Entry] = [Started("r", "w", "standard", "1", "", 0, {}, 1, 0.0)]
    for number, (output, shared) in enumerate(outputs):
        entries.append(BeforeStep(f"s{number}", 1))
        entries.append(Completed(f"s{number}", output, 0.0, shared=shared))
    digest, bodies = first_digest("r"), list[bytes]()
    for entry in entries:
        body, digest = Seal().close(entry, digest)
        bodies.append(body)
    return bodies


@pytest.mark.parametrize(
    "outputs",
    [
        [("x" * 2000, None)]
        + [([None, None], [[[0], 3 + 2 * n, []], [[1], 3 + 2 * n, []]]) for n in range(60)],
        [([[1]], None)] + [([[[None]]], [[[0, 0, 0], 3 + 2 * n, []]]) for n in range(100)],
        [([1], None), ([None, None], [[[0], 3, []], [[0, 0], 3, []]])],
        [([1], None), ({"a": [2]}, [[["b"], 3, []]])],
        [([1], None), ({"a": 2}, [[["a"], 3, []]])],
        [([1], None), (None, [[[], 5, []]])],
        [([1], None), (None, [[[], 3, [7]]])],
        [([1], None), (None, [[[], 3]])],
        [([1], None), (None, 7)],
    ],
    ids=[
        "doubling",
        "deeper",
        "into another",
        "no such key",
        "no list",
        "itself",
        "beyond",
        "short",
        "none",
    ],
)
async def test_hostile_references_are_refused(outputs: list[tuple[Any, Any]]) -> None:
    store, summary = MemoryStore(), RunSummary("w", RunStatus.RUNNING, 0.0)
    await store.create("r", sealed_outputs(*outputs), summary=summary)
    with pytest.raises(CorruptCheckpoint, match="refers to an entry"):
        await read_entries(store, "r")
    assert isinstance((await verify_run(store, "r")).problem, CorruptCheckpoint)


async def hostile(payload: bytes) -> CorruptCheckpoint:
    """Return how a run with this payload as its only entry is refused."""
    store, seal = MemoryStore(), Seal()

    body, _ = sealed(payload, hashlib.sha256(b"r").digest())
    summary = RunSummary("w", RunStatus.RUNNING, 0.0)
    await store.create("r", [body], summary=summary)
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
