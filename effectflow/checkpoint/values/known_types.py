"""The classes that saved values may be made of. Nothing else is ever built from stored data."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.checkpoint.values.records import fields_of, is_record, shape_of

__all__ = ["KnownTypes", "MalformedValue"]


class MalformedValue(ValueError):
    """Stored data is no value that can be read back. `path` says which part of it."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


@dataclass(frozen=True)
class KnownTypes:
    """Data classes, attrs classes, named tuples and enums, and exceptions, by their names.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     lines: list[str]
        >>> sorted(KnownTypes.of(list[Order] | None).classes)
        ['Order']
    """

    classes: Mapping[str, type] = field(default_factory=dict[str, type])
    errors: Mapping[str, type[Exception]] = field(default_factory=dict[str, type[Exception]])

    @staticmethod
    def of(*annotations: object) -> KnownTypes:
        """The classes that annotations mention, and those that these are made of in turn.

        Raises ValueError if two different ones have the same name.
        """
        found: dict[str, type] = {}
        errors: dict[str, type[Exception]] = {}
        for annotation in annotations:
            _collect(annotation, found, errors)
        return KnownTypes(found, errors)

    def name_of(self, kind: type[Any]) -> str | None:
        """The name under which a class is known, or None."""
        return kind.__name__ if self.classes.get(kind.__name__) is kind else None

    def class_named(self, name: object, *, is_enum: bool) -> type[Any]:
        """The class of this name. Raises LookupError if there is none of that sort."""
        kind = self.classes.get(name) if isinstance(name, str) else None
        if kind is None or issubclass(kind, Enum) is not is_enum:
            raise LookupError(f"{name!r} is not declared")
        return kind

    def fields_of(self, value: Any) -> dict[str, Any]:
        """The fields of a data class, attrs class or named tuple, by name.

        Raises ValueError if an object made of them would not be the same.
        """
        return fields_of(value)

    def build(self, name: object, fields: dict[str, Any]) -> Any:
        """An instance of the class of this name. Raises LookupError, TypeError or ValueError."""
        return shape_of(self.class_named(name, is_enum=False)).build(fields)


def _collect(
    annotation: object, found: dict[str, type], errors: dict[str, type[Exception]]
) -> None:
    """Add the classes of an annotation; each is looked into once."""
    todo = [annotation]
    # With the parts, which hints make anew: the next one could have the id of one that is gone.
    seen: dict[int, object] = {}
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        todo.extend(_arguments(part))
        origin = typing.get_origin(part) or part
        if not isinstance(origin, type):
            todo.extend(_meant_by(origin))
            continue
        if found.get(origin.__name__) is origin:
            continue
        kind: type = origin
        if issubclass(kind, Exception):
            errors[name_of_error(kind)] = kind
        if typing.is_typeddict(origin):
            todo.extend(_field_annotations(origin))
        if not (is_record(origin) or (issubclass(origin, Enum) and origin is not Enum)):
            continue
        other = found.get(origin.__name__)
        if other is not None:
            raise ValueError(
                f"two classes of one step are named {origin.__name__}: {other!r} and {origin!r}. "
                "Saved values name their class by that alone: rename one of them"
            )
        found[origin.__name__] = origin
        todo.extend(_field_annotations(origin))


def _arguments(part: object) -> Iterator[object]:
    if isinstance(part, typing.TypeVar):
        yield part.__bound__
        yield from part.__constraints__
    for argument in typing.get_args(part):
        if isinstance(argument, list):
            yield from cast("list[object]", argument)
        else:
            # In a Literal there are members, whose class is meant.
            yield type(argument) if isinstance(argument, Enum) else argument


def _meant_by(name: object) -> list[object]:
    """What a NewType or an alias (`type X = ...`) stands for."""
    try:
        return [
            getattr(name, mark) for mark in ("__supertype__", "__value__") if hasattr(name, mark)
        ]
    except NameError:
        return []


def _field_annotations(kind: Any) -> list[object]:
    if issubclass(kind, Enum):
        return []
    # Where a model is a generic one with its parameters filled in, only these know.
    fields = getattr(kind, "model_fields", None)
    models = cast("Mapping[str, Any]", fields if isinstance(fields, dict) else {})
    annotations: list[object] = [field.annotation for field in models.values()]
    try:
        return [*annotations, *typing.get_type_hints(kind).values()]
    except (NameError, TypeError, AttributeError):
        # A name that exists only for the type checkers: its class then counts as undeclared.
        return annotations
