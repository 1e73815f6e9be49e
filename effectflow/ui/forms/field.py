"""A field of a form: a value that people type, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "nothing", "text", "line", "choice", "lines", "group", "rows", "variant", "json"
]
"""How a value is typed: not at all; as text of any length; in one line; by choosing; as a line for each
item; in parts; as a group for each item; as one of several types; or as JSON."""

WhenEmpty: TypeAlias = Literal["", "none", "left out"]
"""What a field means in which nothing was typed: itself, None, or that it is left out."""

MOST_ROWS = 50
"""A list with more items is typed as JSON."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values to choose from, and the plain data that means it."""

    label: str
    data: object


@dataclass(frozen=True, slots=True)
class Line:
    """How values of a class are typed in a line.

    Attributes:
        input: the type of the HTML input.
        hint: what to type.
        parse: returns the plain data of what was typed. Raises ValueError with the reason.
        show: returns what to type for a value.
    """

    input: str
    hint: str
    parse: Callable[[str], object] = str.strip
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Field:
    """A value that a form asks for.

    Attributes:
        name: its name in what is submitted. That of a part is its JSON Pointer after that of the form.
        label: what it is, for people.
        kind: how it is typed.
        annotation: its type.
        when_empty: what it means if nothing is typed.
        hint: more about it, such as its type.
        line: how it is typed, if that is in one line; a text has it only if it is short.
        key: its key in the data of the field around it.
        attribute: its attribute of the value around it, if that has attributes.
        choices: what there is to choose from.
        parts: the fields of a group; of a variant, one for each type.
        is_list: whether the data of a group is a list.
        item: for lines and rows, the field of one item.
        defaults: its default, if that is known; otherwise empty.
    """

    name: str
    label: str
    kind: Kind
    annotation: Any
    when_empty: WhenEmpty = ""
    hint: str = ""
    line: Line | None = None
    key: str | int = ""
    attribute: str = ""
    choices: tuple[Choice, ...] = ()
    parts: tuple[Field, ...] = ()
    is_list: bool = False
    item: Field | None = None
    defaults: tuple[object, ...] = ()

    @property
    def json_name(self) -> str:
        """What is submitted if it is typed as JSON, whatever its kind. No pointer has such a name."""
        return f"{self.name}~json"

    @property
    def given_name(self) -> str:
        """What is submitted if it is given, although it may be empty."""
        return f"{self.name}~given"

    @property
    def rows_name(self) -> str:
        """What is submitted to say how many rows it shows."""
        return f"{self.name}~rows"

    @property
    def has_switch(self) -> bool:
        """Whether only a switch tells that it is given and empty from that it is not given."""
        return bool(self.when_empty) and self.kind in ("text", "lines", "group", "rows")

    @property
    def can_be_json(self) -> bool:
        """Whether it can be typed as JSON instead."""
        return self.kind in ("choice", "lines", "group", "rows", "variant")


def one_line(field: Field) -> Field:
    """Return the field of a text that has no line breaks, such as an id."""
    return replace(field, line=Line("text", "", str))


def row(field: Field, number: int) -> Field:
    """Return the field of a row, of which the first has the number 0."""
    assert field.item is not None
    named = _renamed(field.item, field.name, f"{field.name}/{number}")
    return replace(named, label=str(number + 1))


def _renamed(field: Field, old: str, new: str) -> Field:
    """Return a field and its parts with another name at the beginning of their names."""
    parts = tuple(_renamed(part, old, new) for part in field.parts)
    item = None if field.item is None else _renamed(field.item, old, new)
    return replace(field, name=new + field.name.removeprefix(old), parts=parts, item=item)
