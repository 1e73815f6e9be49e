"""Check whether values of an annotated type can be saved, before there are any."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.classes import NO_CIPHER, KnownTypes, is_record
from effectflow.checkpoint.values.custom import ValueOptions
from effectflow.checkpoint.values.declared import field_types
from effectflow.checkpoint.values.tables import name_of_table
from effectflow.effects.signatures import UnresolvedName, meaning_of


class _Part(NamedTuple):
    """A part of an annotation, and the field that it belongs to: `Order.lines`, or empty."""

    annotation: Any
    field: str = ""


_accepted: WeakKeyDictionary[ValueOptions, set[object]] = WeakKeyDictionary()
"""The annotations that have no problem, by the options of `Checkpoints`."""


def check_savable(annotation: object, types: KnownTypes, *, path: str) -> None:
    """Raise NotSerializable, with the class and the field, if a part of a type cannot be saved.

    A part that says nothing about the class of values, such as a type variable, a protocol or an abstract
    class, has no problem. Fields of pydantic models have none either, because they may have other types
    than their annotations.
    """
    accepted = _accepted.setdefault(types.options, set())
    try:
        if annotation is None or annotation in accepted:
            return
        is_hashable = True
    except TypeError:
        # Such as Annotated with a list.
        is_hashable = False
    todo, seen = [_Part(annotation)], list[Any]()
    while todo:
        part = todo.pop()
        if any(part.annotation is other for other in seen):
            continue
        seen.append(part.annotation)
        problem = _problem_of(part.annotation, types)
        if problem:
            where = f"{path}: {part.field}" if part.field else path
            raise NotSerializable(where, problem)
        todo += _parts_of(part, types)
    if is_hashable:
        accepted.add(annotation)


def _problem_of(annotation: Any, types: KnownTypes) -> str:
    if isinstance(annotation, UnresolvedName):
        return (
            f"the name {annotation.__name__!r} in its annotation cannot be resolved. Define the class in "
            "the module, not in a function, and import it outside of `if TYPE_CHECKING`"
        )
    kind: Any = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind in (Any, Annotated, UnionType) or _is_vague(kind):
        return ""
    # Imported late, like everything that plain data does not need.
    from effectflow.checkpoint.values.codec import cannot_be_saved, foreign_kind
    from effectflow.checkpoint.values.pydantic_values import pydantic_kind
    from effectflow.checkpoint.values.tags import SAVED_CLASSES

    if is_record(kind) or typing.is_typeddict(kind) or issubclass(kind, Enum | Exception):
        return ""
    known = (*SAVED_CLASSES, *types.options.by_class, *types.classes.values())
    if any(issubclass(each, kind) for each in known):
        return ""
    if foreign_kind(cast("type[Any]", kind)) is not None:
        return ""
    of_pydantic = pydantic_kind(cast("type[Any]", kind))
    if of_pydantic is None:
        return cannot_be_saved(cast("type[Any]", kind))
    is_refused = of_pydantic.tag == "$secret" and types.options.cipher is None
    return f"{kind.__name__}: {NO_CIPHER}" if is_refused else ""


def _is_vague(kind: type) -> bool:
    """Return whether a class, as a protocol, leaves open which class its instances have."""
    return getattr(kind, "_is_protocol", False) or inspect.isabstract(kind)


def _parts_of(part: _Part, types: KnownTypes) -> Iterator[_Part]:
    annotation, field = part
    origin: Any = typing.get_origin(annotation)
    if origin is typing.Literal:
        return
    if origin is typing.Annotated:
        yield _Part(typing.get_args(annotation)[0], field)
        return
    kind: Any = origin or annotation
    for argument in _arguments_of(annotation, kind, types):
        parts: list[Any] = [*argument] if isinstance(argument, list) else [argument]
        yield from (_Part(each, field) for each in parts)
    if isinstance(kind, type):
        yield from _fields_of(kind, types)
        return
    yield _Part(meaning_of(kind), field)


def _arguments_of(annotation: Any, kind: Any, types: KnownTypes) -> tuple[Any, ...]:
    """Return the arguments of an annotation that are the types of parts of its values."""
    arguments = typing.get_args(annotation)
    if kind in types.options.by_class or (isinstance(kind, type) and name_of_table(kind)):
        # Its codec knows its parts.
        return ()
    if not isinstance(kind, type) or not (is_record(kind) or typing.is_typeddict(kind)):
        return arguments
    parameters = getattr(kind, "__parameters__", ())
    if len(parameters) != len(arguments):
        return arguments
    hints = field_types(kind).values()
    used = {part for hint in hints for part in (hint, *getattr(hint, "__parameters__", ()))}
    # No field has the type of the others, such as Customer in `Id[Customer]`.
    return tuple(each for name, each in zip(parameters, arguments, strict=True) if name in used)


def _fields_of(kind: Any, types: KnownTypes) -> Iterator[_Part]:
    if kind in types.options.by_class or hasattr(kind, "__pydantic_core_schema__"):
        return
    if typing.is_typeddict(kind) or is_record(kind):
        for name, annotation in field_types(kind).items():
            yield _Part(annotation, f"{kind.__name__}.{name}")
