"""Entries as bytes, and the fold of a journal to its checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Literal

import anyio
import pytest
from hypothesis import given, strategies as st

from effectflow.checkpoint import (
    BeforeStep,
    CancelRequested,
    Checkpoint,
    ChildEnded,
    ChildStarted,
    Completed,
    CorruptCheckpoint,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    HistoryItem,
    Interrupted,
    Local,
    Published,
    Resumed,
    RunStatus,
    Seal,
    SetAside,
    Signalled,
    Started,
    Suspended,
    TimerFired,
    UnsupportedVersion,
    Value,
    Waiting,
    fold,
)
from effectflow.checkpoint.entries import Format, decode_entry, encode_entry, write_entry
from effectflow.checkpoint.integrity import UNSIGNED, first_digest
from effectflow.checkpoint.journal_reader import open_records
from effectflow.checkpoint.store import Record
from effectflow.checkpoint.values import Tree, decode_json, encode_cbor, encode_json

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(0, 2**33)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
ranges = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=2).map(tuple)
exact = st.fixed_dictionaries({"args": st.lists(json_values, max_size=2), "state": st.just({})})
plain_errors = st.builds(ErrorRecord, texts, texts, json_values) | st.builds(
    ErrorRecord, texts, texts, st.none() | exact, texts
)
some_errors = st.lists(plain_errors, max_size=2).map(tuple)
trails = st.lists(texts, max_size=2).map(tuple)
errors = plain_errors | st.builds(
    ErrorRecord, texts, texts, json_values, st.none(), trails, some_errors
)
with_errors = st.sampled_from([RunStatus.FAILED, RunStatus.CANCELLED])
without_errors = st.sampled_from([RunStatus.COMPLETED, RunStatus.CANCELLED])
turns = st.integers(0, 99)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        Started,
        texts,
        texts,
        texts,
        texts,
        texts,
        json_values,
        json_values,
        st.just(1),
        times,
        st.lists(texts, max_size=3).map(tuple),
        st.lists(texts, max_size=3).map(tuple),
    ),
    st.builds(
        Resumed,
        texts,
        times,
        st.none() | texts,
        st.just(()),
        st.just(()),
        ranges,
        ranges,
        ranges,
        st.booleans(),
    ),
    st.builds(
        BeforeStep,
        texts,
        st.integers(1, 99),
        times,
        st.none() | texts,
        texts,
        st.booleans(),
        turns,
    ),
    st.builds(Completed, texts, json_values, times, times, st.booleans(), st.none(), turns),
    st.builds(
        Failed,
        texts,
        errors,
        st.booleans(),
        times,
        st.none() | times,
        ranges,
        st.booleans(),
        turns,
    ),
    st.builds(
        Interrupted,
        st.none() | texts,
        st.booleans(),
        texts,
        times,
        st.booleans(),
        ranges,
        st.booleans(),
        turns,
    ),
    st.builds(Value, texts, json_values, times),
    st.builds(Waiting, texts, st.none() | times, times, texts, texts, turns),
    st.builds(TimerFired, texts, times, turns),
    st.builds(Signalled, texts, texts, texts, json_values, times, turns),
    st.builds(ChildStarted, texts, texts, texts, texts, times, st.booleans(), turns),
    st.builds(
        ChildEnded, texts, st.just(RunStatus.COMPLETED), times, json_values, st.none(), turns
    ),
    st.builds(ChildEnded, texts, with_errors, times, st.none(), errors, turns),
    st.builds(Local, texts, times, texts, turns),
    st.builds(Published, texts, texts, json_values, times, turns),
    st.builds(SetAside, texts, json_values, times, turns),
    st.builds(Suspended, times),
    st.builds(CancelRequested, times, texts, turns),
    st.builds(Finished, without_errors, times, json_values, st.none(), ranges),
    st.builds(Finished, st.just(RunStatus.FAILED), times, st.none(), errors, ranges),
)

STARTED = Started("r", "w", "standard", "1", "f", "in", {}, journal=1, at=1.0)


@given(entries, st.sampled_from(["json", "cbor"]))
def test_an_entry_comes_back_from_either_format(
    entry: Entry, format: Literal["json", "cbor"]
) -> None:
    body = encode_entry(entry, format)

    assert decode_entry(body, "r", 1) == entry


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"entry": "unheard of"}', b'{"entry": "completed"}', b"\xff\x00"],
)
def test_data_that_is_not_an_entry_is_named(body: bytes) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        decode_entry(body, "run-1", 7)

    assert caught.value.sequence == 7
    assert "'run-1'" in str(caught.value)


ERROR: dict[str, Tree] = {"type": "E", "message": "", "value": None, "traceback": None}


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        (STARTED, {"journal": 0}),
        (STARTED, {"journal": True}),
        (STARTED, {"steps": "abc"}),
        (STARTED, {"steps": [1]}),
        (STARTED, {"structure": [None]}),
        (STARTED, {"at": None}),
        (STARTED, {"at": 1e18}),
        (Completed("a", 1, 0.1), {"at": -1e18}),
        (Resumed("p", 1.0), {"version": 2}),
        (Resumed("p", 1.0), {"owner": 1}),
        (BeforeStep("a", 1), {"attempt": "many"}),
        (BeforeStep("a", 1), {"step": {}}),
        (BeforeStep("a", 1), {"arguments": 1}),
        (BeforeStep("a", 1), {"turn": "1"}),
        (Resumed("p", 1.0), {"void": [[1]]}),
        (Resumed("p", 1.0), {"void": [[1, "2"]]}),
        (Completed("a", 1, 0.1), {"at": "x"}),
        (Completed("a", 1, 0.1), {"step": [1]}),
        (Completed("a", 1, 0.1), {"entry": ["completed"]}),
        (Failed("a", ErrorRecord("E", ""), retryable=True), {"retryable": "no"}),
        (Failed("a", ErrorRecord("E", ""), retryable=True), {"error": None}),
        (Failed("a", ErrorRecord("E", ""), retryable=True), {"error": {**ERROR, "message": 2}}),
        (Failed("a", ErrorRecord("E", ""), retryable=True), {"error": {**ERROR, "traceback": 2}}),
        (Interrupted(None, in_progress=False), {"step": 1}),
        (Value("now", 1, 1.0), {"path": None}),
        (Finished(RunStatus.COMPLETED, 1.0), {"status": "done"}),
        (Finished(RunStatus.COMPLETED, 1.0), {"error": "E"}),
    ],
)
def test_an_entry_of_other_parts_is_rejected(entry: Entry, change: dict[str, Tree]) -> None:
    tree = write_entry(entry)
    assert isinstance(tree, dict)
    for encode in (encode_json, encode_cbor):
        with pytest.raises(CorruptCheckpoint, match="does not know such an entry"):
            decode_entry(encode({**tree, **change}), "r", 1)


def test_a_format_from_the_future_is_rejected() -> None:
    body = encode_entry(STARTED).replace(b'"journal":1', b'"novelty":1,"journal":2')

    with pytest.raises(UnsupportedVersion):
        decode_entry(body, "r", 1)


def test_a_format_from_before_the_first_release_is_rejected() -> None:
    body = encode_entry(STARTED).replace(b'"journal":1', b'"format":1')

    with pytest.raises(UnsupportedVersion, match="from before the first release"):
        decode_entry(body, "r", 1)


@pytest.mark.parametrize(
    "journal",
    [
        pytest.param([], id="empty"),
        pytest.param([BeforeStep("a", 1)], id="without-its-beginning"),
        pytest.param([STARTED, BeforeStep("a", 1), STARTED], id="begun-twice"),
        pytest.param([STARTED, Completed("a", 1, 0.1, 2.0)], id="step-ends-and-has-not-begun"),
    ],
)
def test_a_journal_that_no_run_writes_is_rejected(journal: list[Entry]) -> None:
    with pytest.raises(CorruptCheckpoint):
        fold(journal, "r")


def test_the_journal_of_another_run_is_rejected() -> None:
    with pytest.raises(CorruptCheckpoint, match="'r'"):
        fold([STARTED], "another")


def test_a_retried_step_has_the_outcome_of_its_last_attempt() -> None:
    checkpoint = fold(
        [
            STARTED,
            BeforeStep("a", 1),
            Failed("a", ErrorRecord("OSError", "no route"), retryable=True),
            Resumed("pid 1 on host (2, 3)", 5.0),
            BeforeStep("a", 2),
            Completed("a", 42, 0.1, 6.0),
        ],
        "r",
    )

    assert checkpoint.history == (HistoryItem("a", "completed"),)
    assert checkpoint.metadata.attempts == {"a": 2}
    assert checkpoint.metadata.resumes == 1
    assert checkpoint.current_state == 42
    assert checkpoint.updated_at == 6.0
    assert checkpoint.status is RunStatus.RUNNING


def test_the_digest_is_of_the_whole_checkpoint() -> None:
    one = fold([STARTED, BeforeStep("a", 1), Completed("a", 1, 0.1, 2.0)], "r")
    same = fold([STARTED, BeforeStep("a", 1), Completed("a", 1, 0.1, 2.0)], "r")
    other = fold([STARTED, BeforeStep("a", 1), Completed("a", 2, 0.1, 2.0)], "r")

    assert one.digest == same.digest != other.digest
    assert one.id == "r@3"


@given(st.lists(entries.filter(lambda entry: not isinstance(entry, Started)), max_size=8))
def test_a_checkpoint_comes_back_from_json_and_binary(journal: list[Entry]) -> None:
    begun = [BeforeStep(one.step, 1) for one in journal if isinstance(one, Completed | Failed)]
    checkpoint = fold([STARTED, *begun, *journal], "r")

    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    assert Checkpoint.from_binary(checkpoint.to_binary()) == checkpoint


def twenty_steps() -> Checkpoint:
    journal: list[Entry] = [STARTED]
    for number in range(20):
        journal.append(BeforeStep(f"step-{number}", 1, at=number + 0.123456))
        journal.append(Completed(f"step-{number}", {"total": number * 17}, 0.01 * number, number))
    return fold(journal, "r")


def test_binary_is_less_than_half_of_json() -> None:
    checkpoint = twenty_steps()
    indented = checkpoint.to_json()
    compact = encode_json(decode_json(indented.encode()))

    assert len(checkpoint.to_binary()) < len(compact) / 2
    assert len(checkpoint.to_binary()) < len(indented) / 3


def test_times_are_readable_in_json_and_come_back_exactly() -> None:
    exact = 1_767_225_600.1234567
    journal: list[Entry] = [
        replace(STARTED, at=1_767_225_600.0),
        BeforeStep("a", 1, at=exact),
        Completed("a", {"at": 5.0, "created_at": 6.0}, 0.25, exact),
        BeforeStep("b", 1, at=exact),
        Failed("b", ErrorRecord("OSError", "no"), retryable=True, at=exact, retry_at=exact + 1),
        Finished(RunStatus.FAILED, exact + 2, None, ErrorRecord("OSError", "no")),
    ]
    checkpoint = fold(journal, "r")
    data = json.loads(checkpoint.to_json())

    assert data["created_at"] == "2026-01-01T00:00:00.0+00:00"
    assert data["completed_steps"][0]["completed_at"] == "2026-01-01T00:00:00.1234567+00:00"
    assert data["state"]["at"] == "2026-01-01T00:00:00.1234567+00:00"
    assert data["state"]["retry_at"].startswith("2026-01-01T00:00:01.123456")
    assert data["finished"]["at"].startswith("2026-01-01T00:00:02.123456")
    assert data["completed_steps"][0]["duration"] == 0.25
    # Data of the workflow stays as it is, for any names.
    assert data["completed_steps"][0]["output"] == {"at": 5.0, "created_at": 6.0}
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_a_damaged_checkpoint_is_rejected() -> None:
    text, data = fold([STARTED, BeforeStep("a", 1)], "r").to_json(), twenty_steps().to_binary()
    for cut in range(len(text)):
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.from_json(text[:cut])
    for place in range(len(data)):
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.from_binary(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    for foreign in ("[]", "{}", "null", '{"version": "one"}', "\ud800"):
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.from_json(foreign)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ('"workflow": "w"', '"workflow": "v"'),
        ('"step": "a"', '"step": "b"'),
        ('"version": 1', '"version": 0'),
    ],
)
def test_a_changed_checkpoint_is_rejected(part: str, changed: str) -> None:
    text = fold([STARTED, BeforeStep("a", 1)], "r").to_json()
    assert part in text

    with pytest.raises(CorruptCheckpoint, match="digest"):
        Checkpoint.from_json(text.replace(part, changed))


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("workflow", 7),
        ("definition", {"version": "1", "fingerprint": "f", "steps": [7]}),
        (
            "completed_steps",
            [{"step": "a", "output": 1, "attempt": "1", "duration": 1, "completed_at": 1}],
        ),
        ("completed_steps", [{"step": "a"}]),
        ("completed_steps", ["a"]),
        ("history", [{"step": "a", "outcome": "completed", "detail": None}]),
        ("metadata", {"attempts": {"a": "1"}, "resumes": 0, "entries": 2}),
        ("metadata", {"attempts": [], "resumes": 0, "entries": 2}),
        ("created_at", "today"),
    ],
)
def test_a_checkpoint_of_other_parts_is_rejected(part: str, changed: Tree) -> None:
    tree = fold([STARTED, BeforeStep("a", 1)], "r").to_tree()
    del tree["digest"]
    tree[part] = changed
    tree["digest"] = hashlib.sha256(encode_json(tree)).hexdigest()

    with pytest.raises(CorruptCheckpoint, match="the checkpoint cannot be read"):
        Checkpoint.from_json(encode_json(tree).decode())


def test_a_checkpoint_from_the_future_is_rejected() -> None:
    text = twenty_steps().to_json().replace('"version": 1', '"version": 2', 1)

    with pytest.raises(UnsupportedVersion):
        Checkpoint.from_json(text)


@given(times.filter(bool), times, st.sampled_from(["json", "cbor"]))
def test_a_step_that_begins_at_once_has_the_time_of_the_entry_before(
    before: float, at: float, format: Format
) -> None:
    entry = BeforeStep("a", at=at or before)

    body = Seal(format).draft(entry, before=before).payload

    assert body is not None
    assert decode_entry(body, "r", 2, before=before) == entry
    assert (b"at" in body) is (entry.at != before)


def test_what_is_added_to_a_known_journal_is_read_as_with_all_of_it() -> None:
    written = [
        STARTED,
        BeforeStep("a", at=1.0),
        Completed("a", 1, 1.0, at=2.0),
        BeforeStep("b", at=2.0),
    ]
    records, digest, before = list[Record](), first_digest("r"), 0.0
    for number, entry in enumerate(written, 1):
        body, digest = UNSIGNED.close(UNSIGNED.draft(entry, before=before), digest)
        records.append(Record(number, 0.0, body))
        before = entry.at

    async def read_in_two(first: int) -> tuple[Entry, ...]:
        known, _ = await open_records(records[:first], "r", UNSIGNED)
        return (await open_records(records[first:], "r", UNSIGNED, known))[0].entries

    for first in range(len(written)):
        assert anyio.run(read_in_two, first) == tuple(written)
