"""Make the input of a workflow from plain data, such as the JSON that people write."""

from __future__ import annotations

import inspect
import typing
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import lru_cache
from pathlib import PurePath
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, Literal, NotRequired, TypeAlias, Union, cast
from uuid import UUID

import orjson
from cattrs import ClassValidationError, Converter, transform_error
from cattrs.cols import list_structure_factory, mapping_structure_factory  # pyright: ignore[reportUnknownVariableType]  # cattrs leaves types out
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError
from cattrs.gen import make_hetero_tuple_structure_fn
from cattrs.gen.typeddicts import make_dict_structure_fn  # pyright: ignore[reportUnknownVariableType]  # cattrs leaves types out
from cattrs.v import format_exception

from effectflow.checkpoint.values import (
    Codec,
    KnownTypes,
    MalformedValue,
    ValueOptions,
    dict_type,
    from_tree,
    of_type,
)
from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.declared import field_types, name_of_type, required_keys
from effectflow.effects.signatures import UnresolvedName, type_hints

_Hook: TypeAlias = Callable[[Any, Any], Any]
"""How cattrs makes a value from plain data and the annotated type."""

_BASIC: tuple[type[Any], ...] = (bool, int, float, str, NoneType)

_ATOMS: Final[Mapping[Any, tuple[_Hook, str]]] = {
    bytes: (lambda text, kind: kind(b64decode(text, validate=True)), "base64 text"),
    date: (lambda text, kind: kind.fromisoformat(text), "ISO 8601 text"),
    time: (lambda text, kind: kind.fromisoformat(text), "ISO 8601 text"),
    timedelta: (lambda number, kind: kind(seconds=number), "a number of seconds"),
    Decimal: (lambda number, kind: kind(str(number)), "a number"),
    Fraction: (lambda number, kind: kind(number), "a number, or text such as '1/3'"),
    UUID: (lambda text, kind: kind(text), "a UUID"),
    PurePath: (lambda text, kind: kind(text), "the text of a path"),
}
"""How other values without parts are made, and the form that they are made from."""


def structure_as(
    annotation: object, data: object, options: ValueOptions, *, what: str = "the input"
) -> Any:
    """Return `data` as the annotated type, or unchanged without an annotation.

    Parameters:
        annotation: the type.
        data: plain data, such as parsed JSON.
        options: the codecs and the encryption for values.
        what: what the error calls the data.

    Records are objects with the parameters of their classes, enums the values or names of members, dates
    and times ISO 8601 text. Numbers, ids, paths and other types of the standard library are what their
    constructors take, a timedelta is a number of seconds, and bytes are base64. Of a union, the first
    type that fits is taken. Models and types of pydantic are validated by pydantic. The value of a class
    with a codec is made of what `encode` returns: of the type of its annotation, if it has one. Any value
    may also be in its saved form, such as `{"$object": ["Order", {...}]}`, which names its class.

    Raises ValueError, with the path of each part that does not fit.
    """
    if annotation in (None, NoneType):
        return data
    try:
        return _converter(options).structure(data, annotation)
    except Exception as error:
        reasons = "; ".join(transform_error(error, format_exception=_reason))
    # Not from the error, which may show a secret.
    raise ValueError(f"{what} does not fit {name_of_type(annotation)}: {reasons}")


def _reason(error: BaseException, kind: Any) -> str:
    # cattrs raises an AttributeError for what is not a mapping.
    is_of_cattrs = isinstance(error, KeyError | AttributeError | ForbiddenExtraKeysError)
    return format_exception(error, kind) if is_of_cattrs else str(error) or repr(error)


class _Converter(Converter):
    """Calls `structure` for each part at any depth, since any part may be in its saved form.

    Attributes:
        options: the codecs and the encryption for values.
    """

    def __init__(self, options: ValueOptions) -> None:
        super().__init__(forbid_extra_keys=True, structure_fallback_factory=_other_hook)
        self.options = options

    def structure(self, obj: Any, cl: Any) -> Any:
        kind = _origin(cl)
        if obj.__class__ is dict and [str(key)[:1] for key in obj] == ["$"]:
            return _from_saved(obj, cl, self.options)
        codec = self.options.by_class.get(kind)
        if codec is not None:
            return self._decoded(obj, codec)
        # Here, since classes of both kinds may derive from `str`, which cattrs looks at first.
        if hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__"):
            return _validated(obj, cl)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _choice(obj, kind)
        return super().structure(obj, object if isinstance(cl, UnresolvedName) else cl)

    def _decoded(self, data: Any, codec: Codec[Any]) -> Any:
        parts = self.structure(data, type_hints(codec.encode).get("return", object))
        try:
            value = codec.decode(parts)
        except Exception as error:
            raise ValueError(f"the codec {codec.tag!r} raised {error!r}") from None
        if value.__class__ is not codec.kind:
            raise ValueError(f"the codec {codec.tag!r} did not return a {codec.kind.__name__}")
        return value

    def get_structure_hook(self, type: Any, cache_result: bool = True) -> _Hook:  # noqa: A002
        return self.structure


@lru_cache(
    maxsize=16
)  # Each Checkpoints has its own options, and a worker or a test may have many of them.
def _converter(options: ValueOptions) -> _Converter:
    converter = _Converter(options)
    for kind in _BASIC:
        converter.register_structure_hook(kind, _exactly)
    for kind in _ATOMS:
        converter.register_structure_hook(kind, _atom)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Literal, _choice)
    # What is registered last is asked first.
    register = converter.register_structure_hook_factory
    register(lambda kind: issubclass(_origin(kind), Collection), _items_hook)
    register(lambda kind: _origin(kind) is Iterable, _items_hook)
    register(lambda kind: issubclass(_origin(kind), Mapping), _mapping_hook)
    register(_has_fields, _record_hook)
    register(lambda kind: _origin(kind) in (Union, UnionType), _union_hook)
    return converter


def _origin(kind: Any) -> Any:
    return typing.get_origin(kind) or kind


def _has_fields(kind: Any) -> bool:
    return typing.is_typeddict(_origin(kind)) or is_record(_origin(kind))


def _shown(data: object) -> str:
    """Return data for messages, without its parts, since these may be secrets."""
    return {list: "a list", dict: "an object"}.get(cast(Any, data.__class__)) or repr(data)


def _exactly(data: Any, kind: Any) -> Any:
    """Accept numbers, text and booleans of the exact type only: neither 1.9 nor "5" is an int."""
    basic = next(each for each in _BASIC if issubclass(kind, each))
    if data.__class__ is not basic and (basic is not float or data.__class__ is not int):
        raise ValueError(f"found {_shown(data)}, expected {kind.__name__}")
    return data if data.__class__ is kind else kind(data)


def _atom(data: Any, kind: Any) -> Any:
    make, expected = next(_ATOMS[each] for each in _ATOMS if issubclass(kind, each))
    # Each constructor raises errors of its own kind, such as `decimal.InvalidOperation`.
    with suppress(Exception):
        if data.__class__ is not bool:
            return make(data, kind)
    raise ValueError(f"{_shown(data)} is not {expected}")


def _choice(data: Any, kind: Any) -> Any:
    """Return the choice of a Literal, or the member of an enum that has this value or name."""
    if data.__class__ is int and Flag in getattr(kind, "__mro__", ()):
        # Several together have no name.
        return kind(data)
    each_choice: Any = typing.get_args(kind) or kind
    choices = [(getattr(each, "value", each), each) for each in each_choice]
    choices += getattr(kind, "__members__", {}).items()
    for plain, choice in choices:
        if plain.__class__ is data.__class__ and plain == data:
            return choice
    raise ValueError(f"{_shown(data)} is not one of {', '.join(repr(each) for each, _ in choices)}")


def _from_saved(data: Any, annotation: Any, options: ValueOptions) -> Any:
    types = replace(KnownTypes.of(annotation), options=options)
    try:
        return of_type(from_tree(data, types=types), annotation)
    except MalformedValue as error:
        raise _misfits([(error.path.lstrip("$."), error.reason)]) from None


def _validated(data: Any, kind: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(orjson.dumps(data))
    except ValidationError as error:
        # Without the input, which may be a secret.
        found = error.errors(include_url=False, include_context=False, include_input=False)
    raise _misfits([(".".join(map(str, each["loc"])), each["msg"]) for each in found])


def _misfits(problems: list[tuple[str, str]]) -> Exception:
    """Return what cattrs raises for wrong parts, of the place and the reason of each."""
    errors = [ValueError(reason) for _, reason in problems]
    for error, (place, _) in zip(errors, problems, strict=True):
        if place:
            error.add_note(cast(Any, AttributeValidationNote)("", place, None))
    make_error: Callable[..., Exception] = cast(Any, ClassValidationError)
    return make_error("", errors, object)


def _union_hook(union: Any, converter: Converter) -> _Hook:
    choices = typing.get_args(union)
    left = [choice for choice in choices if choice is not NoneType]

    def hook(data: Any, _: Any) -> Any:
        if data.__class__ in choices and data.__class__ in _BASIC:
            return data
        if len(left) == 1:
            return converter.structure(data, left[0])
        reasons: list[str] = []
        for choice in left:
            try:
                return converter.structure(data, choice)
            except Exception as error:
                problems = transform_error(error, format_exception=_reason)
                reasons += [f"{name_of_type(choice)}: {problem}" for problem in problems]
        raise ValueError(f"it is none of {name_of_type(union)} ({', '.join(reasons)})")

    return hook


def _arguments(kind: Any) -> list[Any]:
    """Return the types of the parts; not Any, since cattrs does not look into parts of that."""
    return [object if each is Any else each for each in typing.get_args(kind)]


def _items_hook(kind: Any, converter: Converter) -> _Hook:
    origin, arguments = _origin(kind), _arguments(kind)
    make = origin
    if inspect.isabstract(origin):
        make = list if issubclass(list, origin) else set
    # The class `tuple` itself has any number of items.
    is_fixed = origin is tuple and kind is not tuple and ... not in arguments
    of_items: Any = kind if is_fixed else GenericAlias(list, (*arguments, object)[0])
    factory: Any = make_hetero_tuple_structure_fn if is_fixed else list_structure_factory
    read: _Hook = factory(of_items, converter)

    def hook(data: Any, _: Any) -> Any:
        if data.__class__ is not list:
            raise ValueError(f"{_shown(data)} is not a list")
        if is_fixed and len(data) != len(arguments):
            raise ValueError(f"it has {len(data)} items, and {len(arguments)} are declared")
        return cast(Any, make)(read(data, of_items))

    return hook


def _mapping_hook(kind: Any, converter: Converter) -> _Hook:
    of_keys, of_values = _arguments(kind) or (object, object)
    of_dict: Any = GenericAlias(dict, (of_keys, of_values))
    read: _Hook = mapping_structure_factory(of_dict, converter)

    def key_of(text: str) -> Any:
        # JSON has only text as keys.
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text) if of_keys in (int, float) else text
        return text

    return lambda data, _: read({key_of(key): part for key, part in data.items()}, of_dict)


def _record_hook(kind: Any, converter: Converter) -> _Hook:
    """Read the arguments of a class as cattrs reads a TypedDict, and call the class with them."""
    origin = _origin(kind)
    hints = field_types(origin, typing.get_args(kind))
    if typing.is_typeddict(origin):
        names = {name: name for name in hints}
        required: Collection[str] = required_keys(origin)
    else:
        names = {key: name for name, key in record_of(origin).parameters.items() if key}
        parameters = inspect.signature(origin).parameters.values()
        required = [each.name for each in parameters if each.default is each.empty]
    parts = {key: hints.get(name, Any) for key, name in names.items()}
    # A TypedDict rejects Final.
    parts = {key: Any if _origin(part) is Final else part for key, part in parts.items()}
    optional = {key: NotRequired[part] for key, part in parts.items() if key not in required}
    of_dict = dict_type("parts", parts | optional)
    read = cast(Any, make_dict_structure_fn(of_dict, converter))

    def hook(data: Any, _: Any) -> Any:
        if tuple in origin.__mro__ and data.__class__ is list and len(data) <= len(names):
            data = dict(zip(names, data, strict=False))
        arguments = read(data, of_dict)
        try:
            return origin(**arguments)
        except Exception as error:
            raise ValueError(str(error) or repr(error)) from None

    return hook


def _other_hook(kind: Any) -> _Hook:
    is_open = kind is object or inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)

    def hook(data: Any, _: Any) -> Any:
        if isinstance(kind, type) and not is_open:
            raise ValueError(
                f"a {kind.__name__} cannot be made from JSON: pass Checkpoints(codecs=...) a Codec for "
                "it, or take plain data as the input, and make it in the workflow"
            )
        return data

    return hook
