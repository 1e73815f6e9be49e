"""Make the input of a workflow from plain data, such as the JSON that people write."""

from __future__ import annotations

import inspect
import typing
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import UnionType
from typing import Any, Final, cast
from uuid import UUID

import orjson

from effectflow.checkpoint.values import KnownTypes, MalformedValue, from_tree, of_type
from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.declared import name_of_type, with_arguments
from effectflow.effects.signatures import UnresolvedName, type_hints

__all__ = ["structure_as"]

_WRONG: Final = object()
"""Takes the place of a part that does not fit, so that the other parts are checked as well."""


def structure_as(annotation: object, data: object) -> Any:
    """Return `data` as the annotated type, or unchanged without an annotation.

    Records are objects with the names of their fields, enums the values or names of members, dates and
    times ISO 8601 text. Numbers, ids, paths and other types of the standard library are what their
    constructors take, a timedelta is a number of seconds, and bytes are base64. Of a union, the first
    type that fits is taken. Models and types of pydantic are validated by pydantic. Any value may also
    be in its saved form, such as `{"$object": ["Order", {...}]}`, which names its class.

    Raises ValueError, with the path of each part that does not fit.
    """
    if annotation in (None, type(None)):
        return data
    reading = _Reading()
    built = reading.build(annotation, data, "$")
    if reading.problems:
        reasons = "; ".join(reading.problems)
        raise ValueError(f"the input does not fit {annotation}: {reasons}")
    return built


def _base64(text: str) -> bytes:
    return b64decode(text, validate=True)


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def _decimal(number: str | float) -> Decimal:
    return Decimal(str(number))


_TEXT, _NUMBER = (str,), (int, float)

_ATOMS: Mapping[type, tuple[Callable[[Any], Any], tuple[type, ...], str]] = {
    bytes: (_base64, _TEXT, "base64 text"),
    datetime: (datetime.fromisoformat, _TEXT, "ISO 8601 text"),
    date: (date.fromisoformat, _TEXT, "ISO 8601 text"),
    time: (time.fromisoformat, _TEXT, "ISO 8601 text"),
    timedelta: (_seconds, _NUMBER, "a number of seconds"),
    Decimal: (_decimal, (*_TEXT, *_NUMBER), "a number"),
    Fraction: (Fraction, (*_TEXT, int), "a number, or text such as '1/3'"),
    UUID: (UUID, _TEXT, "a UUID"),
}
"""How values are made of plain data, of which classes that must be, and its name in messages."""

_BASIC: tuple[type[Any], ...] = (bool, int, float, str)


class _Reading:
    """Makes a value of plain data, and notes every part that does not fit."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def wrong(self, path: str, reason: str) -> Any:
        """Note what is wrong with a part."""
        self.problems.append(f"{reason} @ {path}")
        return _WRONG

    def build(self, annotation: Any, data: Any, path: str) -> Any:
        """Return the value of the annotated type; `_WRONG` if the data does not fit."""
        if _is_tagged(data):
            return self._tagged(annotation, data, path)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self.build(arguments[0], data, path)
        if origin in (typing.Union, UnionType):
            return self._any_of(annotation, arguments, data, path)
        if origin is typing.Literal:
            return self._literal(annotation, arguments, data, path)
        kind: Any = origin or annotation
        if isinstance(annotation, UnresolvedName) or kind in (Any, object):
            return data
        if isinstance(kind, type):
            return self._of_class(annotation, kind, arguments, data, path)
        for mark in ("__supertype__", "__value__"):
            # A NewType, or an alias by `type X = ...`.
            if hasattr(kind, mark):
                return self.build(getattr(kind, mark), data, path)
        return data

    def _tagged(self, annotation: Any, data: Any, path: str) -> Any:
        try:
            value = from_tree(data, path=path, types=KnownTypes.of(annotation))
            return of_type(value, annotation, path=path)
        except MalformedValue as error:
            return self.wrong(error.path, error.reason)

    def _any_of(self, annotation: Any, choices: tuple[Any, ...], data: Any, path: str) -> Any:
        if data.__class__ in choices and (data is None or data.__class__ in _BASIC):
            return data
        left = [choice for choice in choices if choice is not type(None)]
        if len(left) == 1:
            return self.build(left[0], data, path)
        reasons: list[str] = []
        for choice in left:
            attempt = _Reading()
            built = attempt.build(choice, data, path)
            if not attempt.problems:
                return built
            reasons += [f"{name_of_type(choice)}: {problem}" for problem in attempt.problems]
        whole = f"it is none of {name_of_type(annotation)} ({', '.join(reasons)})"
        return self.wrong(path, whole)

    def _literal(self, annotation: Any, choices: tuple[Any, ...], data: Any, path: str) -> Any:
        for choice in choices:
            plain = choice.value if isinstance(choice, Enum) else choice
            if plain.__class__ is data.__class__ and plain == data:
                return choice
        return self.wrong(path, f"{data!r} is not one of {annotation}")

    def _of_class(
        self, annotation: Any, kind: Any, arguments: tuple[Any, ...], data: Any, path: str
    ) -> Any:
        if hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__"):
            return self._validated(annotation, data, path)
        if issubclass(kind, Enum):
            return self._member(kind, data, path)
        if kind is type(None):
            return None if data is None else self.wrong(path, f"{data!r} is not null")
        if kind in _ATOMS:
            make, classes, expected = _ATOMS[kind]
            return self._made(make, classes, expected, data, path)
        if issubclass(kind, PurePath):
            return self._made(kind, _TEXT, "the text of a path", data, path)
        if issubclass(kind, _BASIC):
            return self._basic(kind, data, path)
        if typing.is_typeddict(kind) or is_record(kind):
            return self._record(kind, arguments, data, path)
        if issubclass(kind, Mapping):
            return self._mapping(arguments, data, path)
        if issubclass(kind, Collection | Iterable):
            return self._items(kind, arguments, data, path)
        if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
            return data
        return self.wrong(path, f"a {kind.__name__} cannot be made of JSON")

    def _validated(self, annotation: Any, data: Any, path: str) -> Any:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(annotation).validate_json(orjson.dumps(data))
        except ValidationError as error:
            # Without the input, which may be a secret.
            for found in error.errors(
                include_url=False, include_context=False, include_input=False
            ):
                place = "".join(_segment(part) for part in found["loc"])
                self.wrong(f"{path}{place}", found["msg"])
        return _WRONG

    def _member(self, kind: Any, data: Any, path: str) -> Any:
        for member in kind:
            if member.value.__class__ is data.__class__ and member.value == data:
                return member
        if data.__class__ is str and data in kind.__members__:
            return kind[data]
        if data.__class__ is int:
            try:
                # Flags together have no name.
                return kind(data)
            except ValueError:
                pass
        members = ", ".join(repr(member.value) for member in kind)
        return self.wrong(path, f"{data!r} is not a {kind.__name__}: {members}")

    def _made(
        self,
        make: Callable[[Any], Any],
        classes: tuple[type, ...],
        expected: str,
        data: Any,
        path: str,
    ) -> Any:
        if data.__class__ in classes:
            try:
                return make(data)
            except (ValueError, ArithmeticError):
                pass
        return self.wrong(path, f"{data!r} is not {expected}")

    def _basic(self, kind: type[Any], data: Any, path: str) -> Any:
        """Accept numbers, text and booleans of the exact type only: neither 1.9 nor "5" is an int."""
        basic = next(each for each in _BASIC if issubclass(kind, each))
        is_exact = data.__class__ is basic
        if not is_exact and (basic is not float or data.__class__ is not int):
            return self.wrong(path, f"found {data!r}, expected {kind.__name__}")
        value = data if is_exact else float(data)
        return value if kind is basic else self._called(kind, [value], {}, path)

    def _called(
        self, kind: Any, arguments: Iterable[Any], named: Mapping[str, Any], path: str
    ) -> Any:
        try:
            return kind(*arguments, **named)
        except Exception as error:
            return self.wrong(path, str(error) or repr(error))

    def _record(self, kind: Any, arguments: tuple[Any, ...], data: Any, path: str) -> Any:
        is_dict = typing.is_typeddict(kind)
        hints = type_hints(kind)
        given = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
        if is_dict:
            keys = {name: name for name in hints}
        else:
            parameters = record_of(kind).parameters.items()
            keys = {
                key: name
                for name, parameter in parameters
                if parameter
                for key in (name, parameter)
            }
        if tuple in kind.__mro__ and data.__class__ is list:
            data = dict(zip(keys, data, strict=False)) if len(data) <= len(keys) else data
        if data.__class__ is not dict:
            return self.wrong(path, f"{data!r} is not an object with the fields of {kind.__name__}")
        before = len(self.problems)
        named: dict[str, Any] = {}
        for key, part in data.items():
            place = path + _segment(key)
            if key not in keys:
                self.wrong(place, f"{kind.__name__} has no such field")
                continue
            name = keys[key]
            hint = with_arguments(hints.get(name, Any), given)
            parameter = name if is_dict else record_of(kind).parameters[name]
            named[str(parameter)] = self.build(hint, part, place)
        if len(self.problems) > before:
            return _WRONG
        if not is_dict:
            return self._called(kind, (), named, path)
        try:
            return of_type(named, kind, path=path)
        except MalformedValue as error:
            return self.wrong(error.path, error.reason)

    def _mapping(self, arguments: tuple[Any, ...], data: Any, path: str) -> Any:
        if data.__class__ is not dict:
            return self.wrong(path, f"{data!r} is not an object")
        of_keys, of_values = arguments if len(arguments) == 2 else (Any, Any)
        return {
            self._key(of_keys, key, path): self.build(of_values, part, path + _segment(key))
            for key, part in cast("dict[str, Any]", data).items()
        }

    def _key(self, annotation: Any, key: str, path: str) -> Any:
        # JSON has only text as keys.
        is_number = isinstance(annotation, type) and issubclass(annotation, int | float)
        try:
            data = orjson.loads(key) if is_number else key
        except orjson.JSONDecodeError:
            data = key
        return self.build(annotation, data, path + _segment(key))

    def _items(self, kind: Any, arguments: tuple[Any, ...], data: Any, path: str) -> Any:
        if data.__class__ is not list:
            return self.wrong(path, f"{data!r} is not a list")
        parts = cast("list[Any]", data)
        declared: list[Any] = [arguments[0] if arguments else Any] * len(parts)
        if tuple in kind.__mro__ and arguments and arguments[-1] is not ...:
            declared = [] if arguments == ((),) else list(arguments)
            if len(parts) != len(declared):
                return self.wrong(
                    path, f"it has {len(parts)} items, and {len(declared)} are declared"
                )
        before = len(self.problems)
        built = [
            self.build(each, part, f"{path}[{index}]")
            for index, (each, part) in enumerate(zip(declared, parts, strict=True))
        ]
        if inspect.isabstract(kind):
            kind = next(each for each in (list, set) if issubclass(each, kind))
        return _WRONG if len(self.problems) > before else self._called(kind, [built], {}, path)


def _segment(part: object) -> str:
    is_name = isinstance(part, str) and part.isidentifier()
    return f".{part}" if is_name else f"[{part!r}]"


def _is_tagged(data: object) -> bool:
    """Return whether data has the saved form of a value that is not plain."""
    keys = list(cast("dict[str, object]", data)) if isinstance(data, dict) else []
    return len(keys) == 1 and keys[0].startswith("$")
