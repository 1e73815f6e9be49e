"""Every entry that is not what was written at its place is found, named, and never used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given, strategies as st
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import (
    CheckpointStore,
    CorruptCheckpoint,
    Encryption,
    Entry,
    NotSerializable,
    Record,
    RunInfo,
    RunNotFound,
    RunQuery,
    RunStatus,
    RunSummary,
    Seal,
    read_checkpoint,
    read_entries,
    verify_run,
)
from effectflow.checkpoint.integrity import first_digest
from effectflow.effects import traverse
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.sealing import sealed
from tests.sweeps import in_pairs

KEY = bytes(range(32))
SUMMARY = RunSummary("story", RunStatus.RUNNING, 0.0)
SECRETS = Encryption("new", {"old": b"o" * 16, "new": b"n" * 32})

SEALS = {
    "json": Seal("json"),
    "cbor": Seal("cbor"),
    "signed": Seal("json", KEY),
    "signed cbor": Seal("cbor", KEY),
    "encrypted": Seal("json", None, SECRETS),
    "signed and encrypted": Seal("cbor", KEY, SECRETS),
}


@step
def say(text: str) -> Effect[object, str, str]:
    return pure(text)


@workflow
def story(_: None) -> Do[App, str, list[str]]:
    return (yield from traverse(["once", "upon", "a", "time"], say))


def checkpoints(store: CheckpointStore, seal: Seal) -> Checkpoints:
    return Checkpoints(store, format=seal.format, key=seal.key, encryption=seal.encryption)


def written(seal: Seal, run_id: str = "r") -> list[Record]:
    """The records of a run that was written with this seal."""

    async def main() -> list[Record]:
        async with MemoryStore() as store:
            await story.start(None, run_id=run_id).run_or_raise(App(checkpoints(store, seal)))
            return await store.read(run_id)

    return anyio.run(main)


WRITTEN = {name: written(seal) for name, seal in SEALS.items()}
FOREIGN = {name: written(seal, "another") for name, seal in SEALS.items()}


class Tampered(MemoryStore):
    """A store that hands out these records."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__()
        self._records = records

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return [record for record in self._records if record.sequence > after]

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        summary = replace(SUMMARY, status=RunStatus.COMPLETED)
        return [RunInfo("r", summary, 0.0, len(self._records), None)]


def verified(records: list[Record], seal: Seal) -> Any:
    async def main() -> Any:
        return await verify_run(Tampered(records), "r", seal)

    return anyio.run(main)


@pytest.mark.parametrize("name", SEALS)
def test_written_runs_verify_as_good(name: str) -> None:
    found = verified(WRITTEN[name], SEALS[name])

    assert found.problem is None
    assert found.good == found.length == 10


def changed(record: Record, body: bytes) -> Record:
    return Record(record.sequence, record.written_at, body)


@given(st.sampled_from(sorted(SEALS)), st.integers(0, 9), st.data())
def test_a_flipped_bit_is_found_where_it_is(name: str, at: int, data: st.DataObject) -> None:
    records = list(WRITTEN[name])
    body = bytearray(records[at].body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    records[at] = changed(records[at], bytes(body))

    assert_found(records, SEALS[name], at)


@given(st.sampled_from(sorted(SEALS)), st.integers(0, 9), st.data())
def test_an_entry_that_was_cut_off_is_found(name: str, at: int, data: st.DataObject) -> None:
    records = list(WRITTEN[name])
    body = records[at].body
    records[at] = changed(records[at], body[: data.draw(st.integers(0, len(body) - 1))])

    assert_found(records, SEALS[name], at)


def swapped(records: list[Record], _foreign: list[Record], at: int) -> list[Record]:
    one, other = records[at], records[at + 1]
    return [*records[:at], changed(one, other.body), changed(other, one.body), *records[at + 2 :]]


def missing(records: list[Record], _foreign: list[Record], at: int) -> list[Record]:
    return records[:at] + records[at + 1 :]


def missing_and_renumbered(records: list[Record], _foreign: list[Record], at: int) -> list[Record]:
    later = [changed(a, b.body) for a, b in zip(records[at:], records[at + 1 :], strict=False)]
    return records[:at] + later


def foreign(records: list[Record], foreign: list[Record], at: int) -> list[Record]:
    return [*records[:at], foreign[at], *records[at + 1 :]]


@in_pairs(tamper=[swapped, missing, missing_and_renumbered, foreign], name=SEALS, at=[0, 1, 5, 8])
def test_entries_swapped_missing_or_foreign_are_found(
    name: str, at: int, tamper: Callable[[list[Record], list[Record], int], list[Record]]
) -> None:
    assert_found(tamper(WRITTEN[name], FOREIGN[name], at), SEALS[name], at)


def assert_found(records: list[Record], seal: Seal, at: int) -> None:
    found = verified(records, seal)
    assert isinstance(found.problem, CorruptCheckpoint)
    assert found.good == at
    assert "'r'" in str(found.problem)
    if at:
        assert f"The {at} entr" in str(found.problem)


@pytest.mark.parametrize("left", [1, 5, 9])
@pytest.mark.parametrize("name", SEALS)
def test_entries_that_are_missing_at_the_end_are_found(name: str, left: int) -> None:
    found = verified(WRITTEN[name][:left], SEALS[name])

    assert (found.good, found.length) == (left, left)
    assert f"what came after entry {left} is missing" in str(found.problem)


class Growing(Tampered):
    """A store of a run that goes on: with each answer it has one record more."""

    def __init__(self, length: int) -> None:
        super().__init__(WRITTEN["json"][:length])

    def _go_on(self) -> None:
        self._records = WRITTEN["json"][: len(self._records) + 1]

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        found = await super().read(run_id, after=after)
        self._go_on()
        return found

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        is_complete = len(self._records) == len(WRITTEN["json"])
        status = RunStatus.COMPLETED if is_complete else RunStatus.RUNNING
        found = RunInfo("r", replace(SUMMARY, status=status), 0.0, len(self._records), None)
        self._go_on()
        return [found]


@pytest.mark.parametrize("length", range(1, len(WRITTEN["json"]) + 1))
def test_a_run_that_continues_while_it_is_verified_is_good(length: int) -> None:
    found = anyio.run(verify_run, Growing(length), "r")

    assert found.problem is None
    assert found.good == found.length == length


@pytest.mark.parametrize(
    ("written_with", "read_with", "reason"),
    [
        ("signed", Seal(), "pass its key"),
        ("signed", Seal(key=b"another key, 16 bytes or more"), "another key"),
        ("json", Seal(key=KEY), "not signed"),
        ("encrypted", Seal(), "encrypted"),
        ("encrypted", Seal(encryption=Encryption("x", {"x": bytes(16)})), "not among"),
        (
            "encrypted",
            Seal(encryption=Encryption("new", {"new": bytes(32)})),
            "cannot be decrypted",
        ),
    ],
)
def test_the_wrong_keys_are_rejected(written_with: str, read_with: Seal, reason: str) -> None:
    found = verified(WRITTEN[written_with], read_with)

    assert found.good == 0
    assert reason in str(found.problem)


def test_a_forger_without_the_key_is_rejected() -> None:
    """One who makes a journal that is right in itself, but has no key to sign it with."""
    forged = written(Seal())

    assert "not signed" in str(verified(forged, Seal(key=KEY)).problem)


async def read_spliced(*bodies: bytes) -> list[Entry]:
    """Return the entries of a run into which a forger without a key has put bytes and their digests."""
    digest = first_digest("r")
    async with MemoryStore() as store:
        chained: list[bytes] = []
        for body in bodies:
            payload = body[:-17] if body[:1] == b"\x01" else body.rpartition(b"\n")[0]
            chain, digest = sealed(payload, digest)
            chained.append(chain)
        await store.create("r", chained, summary=SUMMARY)
        return await read_entries(store, "r", Seal(encryption=SECRETS))


def test_an_encrypted_entry_cannot_be_moved_nor_a_plain_one_be_put_beside_it() -> None:
    first, second, third, *_ = (record.body for record in WRITTEN["encrypted"])
    plain = WRITTEN["json"][1].body

    assert len(anyio.run(read_spliced, first, second, third)) == 3
    with pytest.raises(CorruptCheckpoint, match="not written at this place"):
        anyio.run(read_spliced, first, third)
    with pytest.raises(CorruptCheckpoint, match="not encrypted"):
        anyio.run(read_spliced, first, plain)


def test_nothing_of_an_encrypted_run_can_be_read() -> None:
    assert all(b"upon" not in record.body for record in WRITTEN["encrypted"])
    assert any(b"upon" in record.body for record in WRITTEN["signed"])


@pytest.mark.anyio
async def test_keys_are_exchanged_while_runs_continue() -> None:
    old = Encryption("old", {"old": b"o" * 16})
    async with MemoryStore() as store:
        await story.start(None, run_id="r").run_or_raise(App(Checkpoints(store, encryption=old)))
        again = App(Checkpoints(store, encryption=SECRETS))
        assert await story.resume("r").run(again) == Success(["once", "upon", "a", "time"])


@pytest.mark.anyio
@pytest.mark.parametrize("name", SEALS)
async def test_a_damaged_run_is_not_resumed(name: str) -> None:
    seal = SEALS[name]
    records = list(WRITTEN[name])
    records[3] = changed(records[3], records[5].body)
    store = Tampered(records)

    error = (await story.resume("r").run(App(checkpoints(store, seal)))).failure()
    assert isinstance(error, CorruptCheckpoint)
    assert (error.sequence, error.intact) == (4, 3)
    text = str(error)
    assert "The 3 entries before that are intact, and nothing was changed" in text
    assert "`read_checkpoint(store, 'r', at=3)`" in text
    assert "Restore the run from a backup or an export" in text
    assert (await read_checkpoint(store, "r", seal, at=3)).metadata.entries == 3
    for read in (read_entries, read_checkpoint):
        with pytest.raises(CorruptCheckpoint):
            await read(store, "r", seal)


def test_the_error_says_if_no_entry_of_a_run_is_intact() -> None:
    [first, *others] = WRITTEN["json"]
    problem = verified([changed(first, b"x"), *others], SEALS["json"]).problem
    assert problem.intact == 0
    assert "None of its entries are intact, and nothing was changed" in str(problem)
    assert "every step is executed again" in str(problem)


def test_a_run_that_needs_a_key_is_not_called_damaged() -> None:
    problem = verified(WRITTEN["signed"], SEALS["json"]).problem
    assert problem.intact is None
    assert str(problem).endswith("pass its key, Checkpoints(key=...) or --key-file")


@pytest.mark.anyio
async def test_an_unknown_run_is_not_verified() -> None:
    with pytest.raises(RunNotFound):
        await verify_run(MemoryStore(), "unknown")


@pytest.mark.parametrize("format", ["json", "cbor"])
def test_json_stays_readable(format: Literal["json", "cbor"]) -> None:
    first = WRITTEN[format][0].body
    assert first.startswith(b'{"entry":"started"') is (format == "json")


def test_invalid_keys_are_rejected_and_never_shown() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Seal(key=b"short")
    with pytest.raises(ValueError, match="AES takes"):
        Encryption("a", {"a": b"short"})
    with pytest.raises(ValueError, match="the current key is 'b'"):
        Encryption("b", {"a": bytes(16)})
    store = MemoryStore()
    shown = repr(Checkpoints(store, key=KEY, encryption=SECRETS)) + repr(SEALS)
    assert repr(KEY)[2:-1] not in shown
    assert "nnnn" not in shown


def test_an_entry_that_is_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectflow.checkpoint.integrity.MAX_ENTRY_BYTES", 1000)

    async def main() -> Any:
        async with MemoryStore() as store:
            app = App(checkpoints(store, Seal()))
            return await said_at_length.start(None).run(app)

    error = anyio.run(main).failure()
    assert isinstance(error, NotSerializable)
    assert "store large data elsewhere" in str(error)


@workflow
def said_at_length(_: None) -> Do[App, str, str]:
    return (yield from say("x" * 2000))
