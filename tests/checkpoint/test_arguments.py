"""Arguments have digests that stay equal, and previews that people can read."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, Flag
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from returns.maybe import Nothing, Some

from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import digest_of, encode_arguments, render_arguments, safe_repr


class Color(Enum):
    RED = "r"


class Access(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass(frozen=True)
class Order:
    id: int
    tags: list[str] = field(default_factory=list[str])


@attrs.frozen
class Account:
    _secret: str
    tags: list[str] = attrs.Factory(list)
    level: int = 1


class Parcel(msgspec.Struct):
    weight: int
    tags: list[str] = []
    label: str = ""


class Customer(pydantic.BaseModel):
    name: str
    tags: list[str] = []
    notes: dict[str, str] = pydantic.Field(default_factory=dict)
    email: str | None = None


def test_a_digest_does_not_depend_on_order() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({1, 2, 3}) == digest_of({3, 2, 1})
    assert digest_of({1: 2, 3: {4: 5, 6: 7}}) == digest_of({3: {6: 7, 4: 5}, 1: 2})


def test_different_values_have_different_digests() -> None:
    values = [
        *(1, True, 1.0, "1", [1], (1,), {1}, None, float("nan"), 2**70),
        *({"a": None}, {"a": float("nan")}, {1: 2}, {1: 3}, {"1": 2}),
        *(Color.RED, "r", Order(1), Order(2), Order(True), Order(1, ["x"]), Point(1), Point(1, 0)),
    ]
    assert len({digest_of(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        (Order(1), "Order(id=1)"),
        (Point(1), "Point(x=1)"),
        (Account("s"), "Account(_secret='s')"),
        (Parcel(3), "Parcel(weight=3)"),
        (Customer(name="Ann"), "Customer(name='Ann')"),
        (Customer(name="Ann", tags=[], email=None), "Customer(name='Ann')"),
    ],
    ids=str,
)
def test_fields_that_equal_their_default_are_omitted(value: object, rendered: str) -> None:
    _, preview = encode_arguments({"it": value}, path="step")
    assert render_arguments(preview) == f"(it={rendered})"


def test_a_digest_survives_a_new_field_with_a_default() -> None:
    before = make_dataclass("Order", [("id", int)])
    after = make_dataclass("Order", [("id", int), ("priority", int, field(default=0))])
    assert digest_of(before(1)) == digest_of(after(1)) != digest_of(after(1, 2))


def test_equal_values_of_another_type_are_not_the_default() -> None:
    kind = make_dataclass("Kind", [("n", Any, field(default=1))])
    assert len({digest_of(kind(n)) for n in (1, True, 1.0)}) == 3


def test_the_result_of_a_factory_is_not_taken_for_the_default() -> None:
    numbers = count()
    kind = make_dataclass("Kind", [("n", int, field(default_factory=lambda: next(numbers)))])
    assert len({digest_of(kind()) for _ in range(3)}) == 3


def test_what_has_no_digest_belongs_in_the_environment() -> None:
    for convert in (digest_of, encode_arguments):
        with pytest.raises(NotSerializable, match=r"send\.client.*environment"):
            convert({"client": object()}, path="send")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.builds(Point, st.integers(), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), VALUES, max_size=3))
def test_the_digest_of_arguments_is_that_of_their_dict(bound: dict[str, Any]) -> None:
    try:
        expected = digest_of(bound)
    except NotSerializable:
        with pytest.raises(NotSerializable):
            encode_arguments(bound, path="step")
        return
    digest, preview = encode_arguments(bound, path="step")
    assert digest == expected
    assert len(preview) <= 83
    assert render_arguments(preview).isprintable()


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("cap", "'cap'"),
        (None, "None"),
        ([True, 1.5, -2], "[True, 1.5, -2]"),
        ({"a": {"b": []}}, "{'a': {'b': []}}"),
        ((1,), "(1,)"),
        ((1, "a"), "(1, 'a')"),
        ({2, 1}, "{1, 2}"),
        (set[int](), "set()"),
        (frozenset({1}), "frozenset({1})"),
        ({1: (2,)}, "{1: (2,)}"),
        (float("inf"), "inf"),
        (2**64, "18446744073709551616"),
        (Decimal("1.50"), "Decimal('1.50')"),
        (UUID(int=1), "UUID('00000000-0000-0000-0000-000000000001')"),
        (Path("a/b"), "Path('a/b')"),
        (date(2026, 1, 2), "date('2026-01-02')"),
        (datetime(2026, 1, 2, tzinfo=UTC), "datetime('2026-01-02T00:00:00+00:00')"),
        (Color.RED, "Color.RED"),
        (Access.READ | Access.WRITE, "Access(3)"),
        (Order(1, ["x"]), "Order(id=1, tags=['x'])"),
        (Some(Point(1)), "Some(Point(x=1))"),
        (Nothing, "Nothing"),
        (KeyError("a", 1), "KeyError('a', 1)"),
        ("\n\x1b[31m\u202e", r"'\n\x1b[31m\u202e'"),
    ],
    ids=str,
)
def test_a_preview_is_rendered_as_in_python(value: object, rendered: str) -> None:
    _, preview = encode_arguments({"it": value, "n": 2}, path="step")
    assert render_arguments(preview) == f"(it={rendered}, n=2)"


@pytest.mark.parametrize(
    ("bound", "rendered"),
    [
        ({"pad": "x" * 300}, f"(pad='{'x' * 72}..."),
        ({"word": "\u65e5" * 300}, "(word='" + "\u65e5" * 71 + "..."),
        ({"all": list(range(100, 200))}, f"(all=[{', '.join(map(str, range(100, 118)))}..."),
        ({"it": [Order(7)] * 9}, "(it=[" + "Order(id=7), " * 2 + "{..."),
    ],
    ids=["text", "wide text", "list", "records"],
)
def test_a_long_preview_ends_where_it_was_cut(bound: dict[str, object], rendered: str) -> None:
    _, preview = encode_arguments(bound, path="step")
    assert len(preview) == 83
    assert render_arguments(preview) == rendered


def test_the_output_of_the_step_before_is_not_shown_again() -> None:
    state = {"text": "x" * 100}
    assert encode_arguments({"state": state}, before=state, path="step")[1] == ""
    _, preview = encode_arguments({"state": state, "n": 1}, before=state, path="step")
    assert render_arguments(preview) == "(n=1, state='...')"
    # What is short is always shown.
    assert encode_arguments({"n": 7}, before=7, path="step")[1] == '{"n":7}'


def test_an_empty_call_has_a_preview() -> None:
    assert render_arguments(encode_arguments({}, path="step")[1]) == "()"


PREVIEW = encode_arguments(
    {"it": [Order(1, ["a"]), (1, 'b"\\')], "m": {1: Color.RED}, "s": {"k": {2}}}, path="step"
)[1]


@given(
    st.integers(0, len(PREVIEW)),
    st.lists(st.tuples(st.integers(0, len(PREVIEW) - 1), st.characters()), max_size=4),
    st.sampled_from(["", "..."]),
)
def test_damaged_previews_are_rendered(
    end: int, changes: list[tuple[int, str]], ending: str
) -> None:
    marks = list(PREVIEW)
    for position, mark in changes:
        marks[position] = mark
    assert render_arguments("".join(marks[:end]) + ending).isprintable()


@pytest.mark.parametrize(
    "preview", ["", "...", "[" * 10_000, '{"$object":5}', "{" * 200, "7", "\ud800"]
)
def test_previews_of_another_form_are_rendered(preview: str) -> None:
    assert render_arguments(preview).isprintable()


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_safe_repr_never_raises() -> None:
    assert safe_repr([1]) == "[1]"
    assert safe_repr(Broken()) == "<Broken, whose __repr__ raised ValueError>"
