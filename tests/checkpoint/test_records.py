"""Instances that lack fields, and models of pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, time
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    decode_cbor,
    decode_json,
    encode_cbor,
    encode_json,
    from_tree,
    to_tree,
)


@dataclass
class Draft:
    title: str = field(init=False)


@attrs.define
class Sketch:
    title: str = attrs.field(init=False)


class Note(msgspec.Struct):
    title: str


class Letter(pydantic.BaseModel):
    title: str


class Appointment(pydantic.BaseModel):
    day: datetime
    opens: time


def untitled_note() -> Note:
    note = Note("x")
    del note.title
    return note


@pytest.mark.parametrize(
    "value", [Draft(), Sketch(), untitled_note(), Letter.model_construct()], ids=lambda it: type(it)
)
def test_to_tree_rejects_a_field_that_is_not_set(value: Any) -> None:
    with pytest.raises(NotSerializable, match=r"\$\[0\]: a field of it is not set: .*title"):
        to_tree([value], types=KnownTypes.of(type(value)))


@pytest.mark.parametrize("kind", [Note, Letter])
def test_from_tree_rejects_a_record_without_a_required_field(kind: type) -> None:
    with pytest.raises(MalformedValue, match="title"):
        from_tree({"$object": [kind.__name__, {}]}, types=KnownTypes.of(kind))


def test_the_set_fields_of_a_model_must_be_a_list() -> None:
    fields: dict[str, Tree] = {"title": "x", "model_fields_set": {"$failure": "title"}}
    with pytest.raises(MalformedValue):
        from_tree({"$object": ["Letter", fields]}, types=KnownTypes.of(Letter))


@pytest.mark.parametrize("offset", ["Z", "+02:00", "-05:30"])
def test_moments_parsed_by_pydantic_come_back(offset: str) -> None:
    text = f'{{"day": "2026-01-02T03:04:05{offset}", "opens": "08:00:00{offset}"}}'
    appointment = Appointment.model_validate_json(text)
    types = KnownTypes.of(Appointment)
    for encode, decode in ((encode_json, decode_json), (encode_cbor, decode_cbor)):
        back = from_tree(decode(encode(to_tree(appointment, types=types))), types=types)
        assert (type(back), repr(back)) == (Appointment, repr(appointment))
        assert type(back.day.tzinfo) is type(appointment.day.tzinfo)
    assert to_tree(appointment.opens, types=types) == {
        "$time": [appointment.opens.isoformat(), "pydantic", 0]
    }
    again = from_tree(to_tree(appointment.day.replace(fold=1), types=types), types=types)
    assert again.fold == 1


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05", "2026-01-02T03:04:05+01:00:01.500000"])
def test_from_tree_rejects_a_moment_that_pydantic_cannot_have_parsed(text: str) -> None:
    with pytest.raises(MalformedValue):
        from_tree({"$datetime": [text, "pydantic", 0]}, types=KnownTypes())
