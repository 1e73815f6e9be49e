"""Classes, signatures, encryption, checkpoints and exports of an older format can be read forever."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import Enum, Flag
from typing import Any, NamedTuple

import anyio
import attrs
import msgspec
import pydantic
import pytest

from effectflow.checkpoint import (
    Checkpoint,
    Encryption,
    ErrorRecord,
    RunDetails,
    RunStatus,
    RunSummary,
    read_checkpoint,
    read_entries,
    read_exported,
    verify_run,
)
from effectflow.checkpoint.failures import read_error
from effectflow.checkpoint.integrity import Seal, first_digest
from effectflow.checkpoint.values import KnownTypes, from_tree, to_tree
from effectflow.stores import MemoryStore
from tests.format.conftest import STORED


class Color(Enum):
    RED = "r"


class Access(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Line:
    item: str
    color: Color
    at: Point | None = None


@attrs.frozen
class Account:
    _number: int
    lines: tuple[Line, ...]


class Parcel(msgspec.Struct, frozen=True):
    weight: int


class Customer(pydantic.BaseModel):
    name: str
    age: int = 0


class OutOfStock(Exception):
    __module__ = "shop"

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item)
        self.left = left


TYPES = KnownTypes.of(Account, Access, Parcel, Customer, OutOfStock)

VALUE: dict[str, Any] = {
    "objects": Account(7, (Line("tea", Color.RED), Line("tin", Color.RED, Point(1, 2.0)))),
    "flag": Access.READ | Access.WRITE,
    "struct": Parcel(3),
    "model": Customer(name="Ann", age=9),
    "model of defaults": Customer(name="Bob"),
    "errors": [OutOfStock("tea", 3), LookupError("no route")],
}

SAVED = json.loads((STORED / "classes.json").read_text("utf-8"))

KEY = base64.b64decode(SAVED["key"])
KEYS = {name: base64.b64decode(key) for name, key in SAVED["encryption"].items()}


def seal_of(form: str) -> Seal:
    return Seal(key=KEY, encryption=Encryption("2026", KEYS) if form == "encrypted" else None)


SUMMARY = RunSummary("shop", RunStatus.FAILED, 1.0, details=RunDetails("graph", "2"))


def bodies(form: str) -> list[bytes]:
    rows: list[str] = SAVED[form]
    return [row.encode() if form == "json" else base64.b64decode(row) for row in rows]


async def store_of(form: str) -> MemoryStore:
    store = MemoryStore()
    assert await store.create("run-2", bodies(form), summary=SUMMARY)
    return store


async def read(form: str) -> Checkpoint:
    async with await store_of(form) as store:
        assert (await verify_run(store, "run-2", seal_of(form))).problem is None
        return await read_checkpoint(store, "run-2", seal_of(form))


def parts(value: Any) -> Any:
    """What errors are told by, as they are equal to nothing."""
    return {**value, "errors": [(type(e), e.args, vars(e)) for e in value["errors"]]}


@pytest.mark.parametrize("form", ["json", "cbor", "encrypted"])
def test_a_signed_run_of_classes_is_read(form: str) -> None:
    checkpoint = anyio.run(read, form)
    value = from_tree(checkpoint.completed_steps[0].output, types=TYPES)

    assert parts(value) == parts(VALUE)
    assert value["model of defaults"].model_fields_set == {"name"}
    assert checkpoint.definition.version == "2"
    assert checkpoint.definition.structure == ("collect -> pay", "pay -> ship")
    assert checkpoint.status is RunStatus.FAILED
    record = ErrorRecord("shop.OutOfStock", "tea", {"args": ["tea"], "state": {"left": 3}})
    assert checkpoint.finished is not None
    assert checkpoint.finished.error == record
    error: Any = read_error(record, "pay", TYPES)
    assert (type(error), error.args, error.left) == (OutOfStock, ("tea",), 3)


@pytest.mark.parametrize("form", ["json", "cbor"])
def test_entries_and_values_are_still_written_in_the_same_form(form: Any) -> None:
    async def entries() -> list[Any]:
        async with await store_of(form) as store:
            return await read_entries(store, "run-2", seal_of(form))

    seal, digest = Seal(form, KEY), first_digest("run-2")
    for entry, body in zip(anyio.run(entries), bodies(form), strict=True):
        written, digest = seal.close(entry, digest)
        assert written == body
    assert to_tree(VALUE, types=TYPES) == anyio.run(read, form).completed_steps[0].output


def test_a_checkpoint_is_read_from_json_and_binary() -> None:
    checkpoint = anyio.run(read, "json")

    assert Checkpoint.from_json(SAVED["checkpoint"]["json"]) == checkpoint
    assert Checkpoint.from_binary(base64.b64decode(SAVED["checkpoint"]["binary"])) == checkpoint
    assert checkpoint.to_json() == SAVED["checkpoint"]["readable"]
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_an_export_is_read() -> None:
    lines: list[str] = SAVED["export"]
    runs = list(read_exported(line.encode() + b"\n" for line in lines))

    assert [run.run_id for run in runs] == ["run-2", "run-2"]
    assert [list(run.bodies) for run in runs] == [bodies("json")[:2], bodies("cbor")[:2]]
    assert [run.summary for run in runs] == [SUMMARY, SUMMARY]
