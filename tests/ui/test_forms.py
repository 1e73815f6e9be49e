from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, Never, NotRequired, Protocol, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from jinja2 import Environment, PackageLoader

from effectflow import Checkpoints
from effectflow.checkpoint import Encryption
from effectflow.checkpoint.values import NO_OPTIONS
from effectflow.stores import MemoryStore
from effectflow.ui.formatting import plain
from effectflow.ui.forms import Field, Form, Mistyped, described, form_of
from effectflow.ui.forms.reading import read
from tests.ui.controls import forms_in


class Color(Enum):
    RED = "r"
    BLUE = 2
    BOTH = (1, 2)


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Row(TypedDict):
    name: str
    count: NotRequired[int | None]


@attrs.frozen
class Parcel:
    weight: Decimal
    _label: str = "fragile"


class Person(msgspec.Struct, frozen=True):
    name: str
    age: int | None = None


class Account(pydantic.BaseModel, frozen=True):
    owner: str = pydantic.Field(alias="accountOwner")
    limit: pydantic.PositiveInt = 5
    color: Color = Color.RED


@dataclass(frozen=True)
class Login:
    user: str
    password: pydantic.SecretStr


LOGIN = Login("emma", pydantic.SecretStr("swordfish"))


@dataclass(frozen=True)
class Yes:
    by: str


@dataclass(frozen=True)
class No:
    by: str


@dataclass(frozen=True)
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list["Tree"])
    twin: Tree | None = None


_texts = st.text(max_size=8)
_counts = st.none() | st.integers()
_simple: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (str, _texts),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False)),
    (Decimal, st.decimals(allow_nan=False, places=2)),
    (date, st.dates()),
    (datetime, st.datetimes(timezones=st.none() | st.just(UTC))),
    (timedelta, st.timedeltas()),
    (bytes, st.binary(max_size=4)),
    (Color, st.sampled_from(Color)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (int | str, st.integers() | _texts),
    (Any, st.none() | st.booleans() | st.lists(_texts, max_size=2)),
    (dict[str, int], st.dictionaries(_texts, st.integers(0, 9), max_size=2)),
    (Point, st.builds(Point, st.integers(), st.floats(allow_nan=False))),
    (Parcel, st.builds(Parcel, st.decimals(allow_nan=False, places=2), _texts)),
    (Person, st.builds(Person, _texts, st.none() | st.integers())),
    (Account, st.builds(Account, accountOwner=_texts, color=st.sampled_from(Color))),
    (Row, st.builds(lambda name: Row(name=name), _texts)),
    (Row, st.builds(lambda name, count: Row(name=name, count=count), _texts, _counts)),
]
Case = tuple[Any, st.SearchStrategy[Any]]


def _optional(case: Case) -> Case:
    return case[0] | None, st.none() | case[1]


def _list(case: Case) -> Case:
    return list[case[0]], st.lists(case[1], max_size=3)


def _pair(case: Case) -> Case:
    return tuple[case[0], str], st.tuples(case[1], _texts)


def _record(case: Case) -> Case:
    # The classes of a value need different names.
    name = f"With{getattr(case[0], '__name__', 'part')}"
    made = make_dataclass(name, [("part", case[0]), ("note", str | None, None)], frozen=True)
    return made, st.builds(made, case[1], st.none() | _texts)


def _union(case: Case) -> Case:
    return case[0] | Point | timedelta, st.one_of(case[1], _simple[14][1], st.timedeltas())


_wrappers: list[Callable[[Case], Case]] = [_optional, _list, _pair, _record, _union]


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a type and a value of it."""
    case = draw(st.sampled_from(_simple))
    for wrap in draw(st.lists(st.sampled_from(_wrappers), max_size=3)):
        case = wrap(case)
    return case[0], draw(case[1])


_templates = Environment(loader=PackageLoader("effectflow.ui"), autoescape=True)
vars(_templates)["filters"]["plain"] = plain


def submitted(form: Form) -> dict[str, str]:
    """Return what a browser submits with a form."""
    module: Any = _templates.get_template("_form.html").module
    return forms_in(f"<form>{module.fields(form)}</form>")[0].typed


def again(shown: Field, typed: dict[str, str]) -> Any:
    return read(shown, typed, NO_OPTIONS)


@given(typed_values())
def test_a_value_comes_back_from_its_form_as_it_was(drawn: tuple[Any, Any]) -> None:
    annotation, value = drawn
    shown = described(annotation)
    found = again(shown, submitted(form_of(shown, values={"value": value}, options=NO_OPTIONS)))
    assert repr(found) == repr(value)


def test_what_is_wrong_is_told_at_its_field_and_what_was_typed_stays() -> None:
    shown = described(Tree | None, name="input")
    typed = {
        "input~given": "on",
        "input/value": "five",
        "input/children/1~given": "on",
        "input/children/1/value": "7",
        "input/children/1/children": '[{"value": true}]',
        "input/twin~given": "on",
        "input/twin/value": "6",
    }
    with pytest.raises(Mistyped) as raised:
        again(shown, typed)
    assert raised.value.problems == {"input/value": "it is not a whole number"}
    typed["input/value"] = "5"
    with pytest.raises(Mistyped) as raised:
        again(shown, typed)
    [(name, problem)] = raised.value.problems.items()
    assert name == "input/children/1/children"
    assert problem.endswith("@ $[0].value")
    html = submitted(Form((shown,), typed, raised.value.problems))
    assert {name: text for name, text in html.items() if name in typed} == typed


def test_a_list_of_records_has_rows_and_those_that_are_ticked_count() -> None:
    form = Form((described(list[Point]),)).with_more_rows("value", NO_OPTIONS)
    typed = submitted(form)
    assert form.rows(form.fields[0])[-1].label == "7"
    for number in ("1", "6"):
        typed |= {f"value/{number}~given": "on", f"value/{number}/x": number}
    assert again(form.fields[0], typed) == [Point(1), Point(6)]
    with pytest.raises(Mistyped, match="value/6/x: it is not a whole number"):
        again(form.fields[0], typed | {"value/6/x": "six"})


def test_one_of_several_types_is_chosen_and_asked_for() -> None:
    """Also if another type of them has the same fields."""
    shown = described(Yes | No)
    assert again(shown, {"value": "No", "value~1/by": "emma"}) == No("emma")
    with pytest.raises(Mistyped, match="value: it is required"):
        again(shown, {})
    with pytest.raises(Mistyped, match="value~1/x: it is not a whole number"):
        again(described(Yes | Point), {"value": "Point", "value~1/x": "one"})


def test_a_form_shows_the_defaults_and_an_empty_field_takes_them_again() -> None:
    shown = described(Account)
    form = form_of(shown, options=NO_OPTIONS)
    assert form.typed["value/limit"] == "5"
    typed = submitted(form) | {"value/accountOwner": "emma", "value/limit": ""}
    assert again(shown, typed) == Account(accountOwner="emma")


def test_a_value_can_be_typed_as_json_and_back_without_losing_anything() -> None:
    form = Form((described(Point),), {"value/x": "3", "value/y": "1.5"})
    as_json = form.switched("value", NO_OPTIONS)
    assert as_json.values(NO_OPTIONS) == {"value": Point(3, 1.5)}
    assert submitted(as_json.switched("value", NO_OPTIONS)) == form.typed
    broken = Form(form.fields, {"value": "{", "value~json": "on"})
    kept = broken.switched("value", NO_OPTIONS)
    assert kept.typed == broken.typed
    assert "it is not JSON" in kept.problems["value"]


def test_a_type_of_endless_or_very_many_parts_is_typed_as_json() -> None:
    wide = make_dataclass("Wide", [(f"field{number}", int) for number in range(1000)])
    assert described(wide).kind == "json"
    depth, shown = 0, described(Tree)
    while shown.kind == "group":
        depth, shown = depth + 1, shown.parts[-1]
    assert depth <= 5


def test_a_secret_is_shown_encrypted_and_stays_what_it_was() -> None:
    encryption = Encryption("k1", {"k1": bytes(32)})
    options = Checkpoints(MemoryStore(), encryption=encryption).value_options
    shown = described(Login)
    assert shown.parts[1].line
    assert shown.parts[1].line.input == "password"
    form = form_of(shown, values={"value": LOGIN}, options=options)
    assert form.typed["value/user"] == "emma"
    assert "swordfish" not in str(form.typed)
    found = read(shown, submitted(form), options)
    assert found == LOGIN
    assert "swordfish" not in str(form.switched("value", options).typed)


def test_hostile_text_is_shown_as_text() -> None:
    text = "</textarea><script>alert(1)</script>\x00\u202e"
    shown = described(str)
    form = form_of(shown, values={"value": text}, options=NO_OPTIONS)
    module: Any = _templates.get_template("_form.html").module
    html = str(module.fields(form))
    assert "<script" not in html
    assert "\u202e" not in html
    assert again(shown, submitted(form)) == text


@pytest.mark.parametrize("annotation", [TypeVar("T"), Never, list, Protocol])
def test_any_annotation_has_a_form(annotation: Any) -> None:
    shown = described(annotation)
    assert shown.kind == "json"
    assert again(shown, {"value": "[]"}) == []
