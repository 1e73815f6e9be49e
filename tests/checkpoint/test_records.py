"""Instances of classes that are not what their class says, and models of pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import KnownTypes, MalformedValue, Tree, from_tree, to_tree


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


def untitled_note() -> Note:
    note = Note("x")
    del note.title
    return note


@pytest.mark.parametrize(
    "value", [Draft(), Sketch(), untitled_note(), Letter.model_construct()], ids=lambda it: type(it)
)
def test_a_field_that_is_not_set_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(NotSerializable, match=r"\$\[0\]: a field of it is not set: .*title"):
        to_tree([value], types=KnownTypes.of(type(value)))


@pytest.mark.parametrize("kind", [Note, Letter])
def test_what_was_saved_without_a_field_that_is_needed_now_is_refused(kind: type) -> None:
    with pytest.raises(MalformedValue, match="title"):
        from_tree({"$object": [kind.__name__, {}]}, types=KnownTypes.of(kind))


def test_the_fields_of_a_model_that_were_set_are_a_list() -> None:
    fields: dict[str, Tree] = {"title": "x", "model_fields_set": {"$failure": "title"}}
    with pytest.raises(MalformedValue):
        from_tree({"$object": ["Letter", fields]}, types=KnownTypes.of(Letter))
