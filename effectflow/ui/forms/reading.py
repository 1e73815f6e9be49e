"""The value that was typed in the fields of a form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from effectflow.checkpoint.values import ValueOptions
from effectflow.effects.errors import Copyable
from effectflow.service.structured_input import DoesNotFit, Problem, structure_as
from effectflow.ui.forms.field import MOST_ROWS, Field, row
from effectflow.ui.forms.plain_values import plain_data

Typed: TypeAlias = Mapping[str, str]
"""What was typed or is shown in the fields of a form, by their names."""


class Mistyped(Copyable, Exception):
    """What was typed is not what a form asks for.

    Attributes:
        problems: what is wrong in each field, by its name.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in problems.items()))
        self.problems = problems


class _LeftOut:
    """What a field means that is left out."""


_LEFT_OUT = _LeftOut()


def read(field: Field, typed: Typed, options: ValueOptions) -> Any:
    """Return the value that was typed in a field and its parts. Raise Mistyped.

    Parameters:
        options: the codecs and the encryption for values.
    """
    data = read_data(field, typed, options)
    return None if field.kind == "nothing" else _structured(field, data, typed, options)


def read_data(field: Field, typed: Typed, options: ValueOptions) -> Any:
    """Return the plain data that was typed in a field and its parts. Raise Mistyped."""
    problems: dict[str, str] = {}
    data = _Reader(typed, options, problems).data(field)
    if problems:
        raise Mistyped(problems)
    return None if data is _LEFT_OUT else data


def _structured(field: Field, data: Any, typed: Typed, options: ValueOptions) -> Any:
    try:
        return structure_as(field.annotation, data, options)
    except DoesNotFit as error:
        problems: dict[str, str] = {}
        for problem in error.problems:
            inner, rest = _placed(field, problem.place, typed)
            text = str(Problem(rest, problem.text)) if rest else problem.text
            known = problems.get(inner.name)
            problems[inner.name] = f"{known}; {text}" if known else text
        raise Mistyped(problems) from None


_Path: TypeAlias = tuple[str | int, ...]
"""Where in the data of a field something is: keys and positions."""


def _placed(field: Field, path: _Path, typed: Typed) -> tuple[Field, _Path]:
    """Return the innermost field on a path in the data of a field, and the rest of the path."""
    if not path or field.json_name in typed:
        return field, path
    parts: dict[str | int, Field] = {}
    if field.kind == "group":
        parts = {part.key: part for part in field.parts}
    elif field.kind == "rows":
        parts |= enumerate(one for one in rows(field, typed) if one.given_name in typed)
    inner = parts.get(path[0])
    return (field, path) if inner is None else _placed(inner, path[1:], typed)


FIRST_ROWS = 2
"""The rows that a form shows for more items, before someone asks for others."""

MORE_ROWS = 5
"""The rows that someone gets who asks for more."""


def rows(field: Field, typed: Typed) -> list[Field]:
    """Return the rows that a form shows, or that were submitted."""
    text = typed.get(field.rows_name, "")
    count = int(text) if text.isdecimal() and len(text) < 4 else FIRST_ROWS
    return [row(field, number) for number in range(min(count, MOST_ROWS))]


def find(field: Field, name: str, typed: Typed) -> Field | None:
    """Return the part of a field that has this name; None if there is none."""
    if field.name == name or field.json_name in typed:
        return field if field.name == name else None
    parts = rows(field, typed) if field.kind == "rows" else field.parts
    found = (find(part, name, typed) for part in parts)
    return next((one for one in found if one is not None), None)


class _Reader:
    """Reads the plain data in what was typed, and notes what is wrong in each field."""

    def __init__(self, typed: Typed, options: ValueOptions, problems: dict[str, str]) -> None:
        self._typed = typed
        self._options = options
        self._problems = problems

    def data(self, field: Field) -> Any:
        text = self._typed.get(field.name, "").replace("\r\n", "\n")
        if field.json_name in self._typed or field.kind == "json":
            return self._json(field, text)
        try:
            return self._of_kind(field, text)
        except ValueError as error:
            return self._wrong(field, str(error))

    def _of_kind(self, field: Field, text: str) -> Any:
        is_given = field.given_name in self._typed
        match field.kind:
            case "nothing":
                return None
            case "text":
                return text if text or is_given else self._empty(field, "")
            case "choice":
                return self._chosen(field, text)
            case "lines" if field.item is not None:
                if not (text or is_given):
                    return self._empty(field, list[object]())
                return [self._of_kind(field.item, line) for line in text.split("\n") if line]
            case "group" | "rows" if field.has_switch and not is_given:
                return self._empty(field, None)
            case "group":
                return self._group(field)
            case "rows":
                found = [self.data(one) for one in rows(field, self._typed)]
                return [data for data in found if data is not _LEFT_OUT]
            case "variant":
                return self._variant(field, text)
            case _:
                assert field.line is not None
                return field.line.parse(text) if text else self._empty(field, _MISSING)

    def _group(self, field: Field) -> Any:
        found = [(part.key, self.data(part)) for part in field.parts]
        if field.is_list:
            return [data for _, data in found]
        return {key: data for key, data in found if data is not _LEFT_OUT}

    def _variant(self, field: Field, text: str) -> Any:
        """Return the data of the chosen type, in a form that is of no other type."""
        chosen = [part for part in field.parts if part.label == text]
        if not chosen:
            return self._empty(field, _MISSING)
        known, part = len(self._problems), chosen[0]
        data = self.data(part)
        if len(self._problems) > known:
            return None
        try:
            value = _structured(part, data, self._typed, self._options)
        except Mistyped as error:
            self._problems.update(error.problems)
            return None
        return plain_data(field.annotation, value, self._options)

    def _chosen(self, field: Field, text: str) -> Any:
        for choice in field.choices:
            if choice.label == text:
                return choice.data
        if text:
            raise ValueError("it is not one of the choices")
        return self._empty(field, _MISSING)

    def _json(self, field: Field, text: str) -> Any:
        if not text.strip():
            return self._empty(field, _MISSING)
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return self._wrong(field, f"it is not JSON: {error}")

    def _empty(self, field: Field, otherwise: Any) -> Any:
        match field.when_empty:
            case "none":
                return None
            case "left out":
                return _LEFT_OUT
            case _:
                return self._wrong(field, "it is required") if otherwise is _MISSING else otherwise

    def _wrong(self, field: Field, text: str) -> None:
        self._problems[field.name] = text


_MISSING: Any = object()


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is not a number in JSON; its saved form is {{"$float": ...}}')
