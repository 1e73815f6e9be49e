"""Forms made from types: what was typed, and the value that it means. Pure.

`described` of `fields.py` returns the fields of a type. `filled` returns what a form shows for a value,
and `read` the value of what was typed. A part whose type has no field of its own is typed as JSON, and
every value can be.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field as dataclass_field, replace
from typing import Any, TypeAlias, cast

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    Tree,
    ValueOptions,
    encode_json,
    plain_tree,
    to_tree,
)
from effectflow.effects.errors import Copyable
from effectflow.service.structured_input import DoesNotFit, Problem, structure_as
from effectflow.ui.fields import Field, pointer

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
    data = read_data(field, typed)
    if field.kind == "nothing":
        return None
    try:
        return structure_as(field.annotation, data, options)
    except DoesNotFit as error:
        names = {one.name: one for one in _all_fields(field, typed)}
        problems: dict[str, str] = {}
        for problem in error.problems:
            name, text = _placed(field, problem, names)
            problems[name] = f"{problems[name]}; {text}" if name in problems else text
        raise Mistyped(problems) from None


def read_data(field: Field, typed: Typed) -> Any:
    """Return the plain data that was typed in a field and its parts. Raise Mistyped."""
    problems: dict[str, str] = {}
    data = _Reader(typed, problems).data(field)
    if problems:
        raise Mistyped(problems)
    return None if data is _LEFT_OUT else data


def _all_fields(field: Field, typed: Typed) -> Iterator[Field]:
    yield field
    if field.json_name not in typed:
        for part in field.parts:
            yield from _all_fields(part, typed)


def _placed(field: Field, problem: Problem, names: Collection[str]) -> tuple[str, str]:
    """Return the name of the innermost field that a problem is in, and its text there."""
    name, rest = field.name, problem.place
    while rest and (inner := f"{name}/{pointer(str(rest[0]))}") in names:
        name, rest = inner, rest[1:]
    return name, str(Problem(rest, problem.text)) if rest else problem.text


class _Reader:
    """Reads the plain data in what was typed, and notes what is wrong in each field."""

    def __init__(self, typed: Typed, problems: dict[str, str]) -> None:
        self._typed = typed
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
            case "group":
                if field.has_switch and not is_given:
                    return self._empty(field, None)
                return self._group(field)
            case _:
                assert field.line is not None
                return field.line.parse(text) if text else self._empty(field, _MISSING)

    def _group(self, field: Field) -> Any:
        found = [(part.key, self.data(part)) for part in field.parts]
        if field.is_list:
            return [data for _, data in found]
        return {key: data for key, data in found if data is not _LEFT_OUT}

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


def filled(field: Field, value: Any, options: ValueOptions) -> dict[str, str]:
    """Return what a form shows for a value of its type: what `read` makes the same value of.

    What has no exact text in its field is shown as JSON, and nothing if that has none either. Secrets are
    shown as they are saved.
    """
    return _Filler(options).texts(field, value) or {}


def blank(field: Field, options: ValueOptions) -> dict[str, str]:
    """Return what a form shows before anything is typed: the defaults that are known."""
    if field.defaults:
        return filled(field, field.defaults[0], options)
    return {name: text for part in field.parts for name, text in blank(part, options).items()}


class _Filler:
    def __init__(self, options: ValueOptions) -> None:
        self._options = options

    def texts(self, field: Field, value: Any) -> dict[str, str] | None:
        """Return texts of a field that mean a value; None if there are none."""
        for texts in (self._in_fields, self._in_json):
            try:
                found = texts(field, value)
                if self._tree(field, read(field, found, self._options)) == self._tree(field, value):
                    return found
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError, Mistyped):
                continue
            except NotSerializable:
                return None
        return None

    def _tree(self, field: Field, value: Any) -> Any:
        return _without_marks(to_tree(value, types=self._types(field)))

    def _types(self, field: Field) -> KnownTypes:
        return replace(KnownTypes.of(field.annotation), options=self._options)

    def _in_fields(self, field: Field, value: Any) -> dict[str, str]:
        if value is None and field.when_empty == "none":
            return {}
        given = {field.given_name: "on"} if field.has_switch else {}
        match field.kind:
            case "nothing":
                return {}
            case "text":
                return {field.name: typeable(str(value))} | given
            case "choice":
                return {field.name: self._label(field, value)}
            case "lines":
                item = field.item
                assert item is not None
                items = cast("Iterable[Any]", value)
                lines = [self._in_fields(item, each)[item.name] for each in items]
                if any("\n" in line or not line for line in lines):
                    raise ValueError("an item is not one line")
                return {field.name: "\n".join(lines)} | given
            case "group":
                return self._in_parts(field, value) | given
            case _:
                if field.line is None:
                    raise ValueError("it is typed as JSON")
                return {field.name: typeable(field.line.show(value))}

    def _in_parts(self, field: Field, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in field.parts:
            if field.is_list:
                inner = value[part.key]
            elif part.attribute:
                inner = getattr(value, part.attribute)
            elif part.key in value:
                inner = value[part.key]
            else:
                continue
            texts = self.texts(part, inner)
            if texts is None:
                raise ValueError("a part cannot be typed")
            found |= texts
        return found

    def _label(self, field: Field, value: Any) -> str:
        for choice in field.choices:
            made = structure_as(field.annotation, choice.data, self._options)
            if made.__class__ is value.__class__ and made == value:
                return choice.label
        raise ValueError("it is none of the choices")

    def _in_json(self, field: Field, value: Any) -> dict[str, str]:
        """Return a value as plain JSON, or else in its saved form, which says its classes."""
        tree = to_tree(value, types=self._types(field))
        plain = plain_tree(tree)
        try:
            again = structure_as(field.annotation, plain, self._options)
            is_same = self._tree(field, again) == _without_marks(tree)
        except (ValueError, TypeError, NotSerializable):
            is_same = False
        text = json_text(plain if is_same else orjson.loads(encode_json(tree)))
        return as_json(field, text)


def _without_marks(tree: Tree) -> Any:
    """Return a value in its saved form without which fields of its models were given."""
    if isinstance(tree, list):
        return [_without_marks(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: _without_marks(tree[key]) for key in tree if key != "model_fields_set"}


def as_json(field: Field, text: str) -> dict[str, str]:
    """Return what a form shows of a field that is typed as JSON."""
    return {field.name: text} | ({} if field.kind == "json" else {field.json_name: "on"})


def json_text(data: object) -> str:
    """Return plain data as JSON for people, in which each character can be seen."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


def typeable(text: str) -> str:
    """Return a text as it is. Raise ValueError if a browser would change it, or it would mislead."""
    if all(one.isprintable() or one in "\n\t" for one in text):
        return text
    raise ValueError("it has characters that nobody can type")


@dataclass(frozen=True, slots=True)
class Form:
    """Fields, and what they show.

    Attributes:
        fields: what it asks for.
        typed: what was typed, or is shown at first.
        problems: what is wrong in each field, by its name.
        choice: distinguishes it from the other forms of its page.
    """

    fields: tuple[Field, ...] = ()
    typed: Typed = dataclass_field(default_factory=dict[str, str])
    problems: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])
    choice: str = ""

    def values(self, options: ValueOptions) -> dict[str, Any]:
        """Return the value of each field by its name. Raise Mistyped with all that is wrong."""
        found: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for field in self.fields:
            try:
                found[field.name] = read(field, self.typed, options)
            except Mistyped as error:
                problems |= error.problems
        if problems:
            raise Mistyped(problems)
        return found

    def switched(self, name: str, options: ValueOptions) -> Form:
        """Return the form with a field shown as JSON, or in its own way again, with what was typed."""
        for field in self.fields:
            if field.name == name:
                return self._switched(field, options)
        return self

    def _switched(self, field: Field, options: ValueOptions) -> Form:
        others = {name: text for name, text in self.typed.items() if not _is_of(name, field.name)}
        try:
            if field.json_name not in self.typed:
                text = json_text(read_data(field, self.typed))
                return replace(self, typed=others | as_json(field, text))
            shown = filled(field, read(field, self.typed, options), options)
        except (Mistyped, TypeError) as error:
            problems = error.problems if isinstance(error, Mistyped) else {field.name: str(error)}
            return replace(self, problems=problems)
        if field.json_name in shown:
            return replace(self, problems={field.name: "this value can be typed as JSON only"})
        return replace(self, typed=others | shown)


def _is_of(name: str, field: str) -> bool:
    return name == field or name.startswith((f"{field}/", f"{field}~"))


def form_of(
    *fields: Field,
    values: Mapping[str, Any] | None = None,
    options: ValueOptions,
    choice: str = "",
) -> Form:
    """Return a form that shows these values by the names of their fields, and defaults for others."""
    given = values or {}
    typed: dict[str, str] = {}
    for field in fields:
        known = field.name in given
        typed |= filled(field, given[field.name], options) if known else blank(field, options)
    return Form(fields, typed, choice=choice)
