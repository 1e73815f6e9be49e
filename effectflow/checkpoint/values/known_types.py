"""The classes that saved values may be made of. Nothing else is ever built from stored data."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from typing import Any, cast

from effectflow.checkpoint.values.exceptions import name_of_error

__all__ = ["KnownTypes", "MalformedValue", "is_record"]


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
        kind: type[Any] = value.__class__
        shape = _shape(kind)
        fields = shape.take(value)
        _check_same(value, fields, shape)
        return fields

    def build(self, name: object, fields: dict[str, Any]) -> Any:
        """An instance of the class of this name. Raises LookupError, TypeError or ValueError."""
        return _shape(self.class_named(name, is_enum=False)).build(fields)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one class is taken apart and put together."""

    take: Callable[[Any], dict[str, Any]]
    build: Callable[[dict[str, Any]], Any]


@cache
def _shape(kind: Any) -> _Shape:
    if issubclass(kind, tuple):
        return _named_tuple_shape(kind)
    if hasattr(kind, "__struct_fields__"):
        return _struct_shape(kind)
    if hasattr(kind, "model_fields"):
        return _model_shape(kind)
    return _record_shape(kind)


def _named_tuple_shape(kind: Any) -> _Shape:
    def take(value: Any) -> dict[str, Any]:
        return value._asdict()

    def build(fields: dict[str, Any]) -> Any:
        return kind(**fields)

    return _Shape(take, build)


def _struct_shape(kind: Any) -> _Shape:
    """That of a Struct of msgspec."""
    names: tuple[str, ...] = kind.__struct_fields__

    def take(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names}

    def build(fields: dict[str, Any]) -> Any:
        return kind(**fields)

    return _Shape(take, build)


def _model_shape(kind: Any) -> _Shape:
    """That of a model of pydantic. What was saved was valid, so it is not validated again."""

    def take(value: Any) -> dict[str, Any]:
        extra: dict[str, Any] = value.__pydantic_extra__ or {}
        private: dict[str, Any] = value.__pydantic_private__ or {}
        if extra or private:
            raise ValueError(f"it has {', '.join([*extra, *private])} besides its declared fields")
        return {name: getattr(value, name) for name in kind.model_fields}

    def build(fields: dict[str, Any]) -> Any:
        unknown = fields.keys() - kind.model_fields.keys()
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind.model_construct(**fields)

    return _Shape(take, build)


def _record_shape(kind: Any) -> _Shape:
    # cattrs takes 60 ms to import, and a program that saves plain data does not need it.
    from cattrs import Converter, ForbiddenExtraKeysError
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

    # The parts are values already: cattrs knows the shape, and lets them through.
    let_through: dict[str, Any] = {
        part.name: override(
            omit=False, struct_hook=lambda value, _: value, unstruct_hook=lambda value: value
        )
        for part in _attributes(kind)
    }
    derived = [part.name for part in _attributes(kind) if not part.init]
    converter = Converter()
    parameters = getattr(kind, "__parameters__", ())
    shape = kind[tuple(Any for _ in parameters)] if parameters else kind
    take: Any = make_dict_unstructure_fn(
        shape, converter, _cattrs_include_init_false=True, **let_through
    )
    structure: Any = make_dict_structure_fn(
        shape,
        converter,
        _cattrs_forbid_extra_keys=True,
        _cattrs_detailed_validation=False,
        **{name: part for name, part in let_through.items() if name not in derived},
    )

    def build(fields: dict[str, Any]) -> Any:
        given = {name: part for name, part in fields.items() if name not in derived}
        try:
            built = structure(given, shape)
        except ForbiddenExtraKeysError as error:
            raise ValueError(str(error)) from error
        for name in derived:
            # What the class works out by itself is left as it is; what was set later is set again.
            if name in fields and not _is_same(getattr(built, name, _MISSING), fields[name]):
                object.__setattr__(built, name, fields[name])
        return built

    return _Shape(take, build)


_MISSING = object()

_PLAIN_BASES = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex)


def _check_same(value: Any, fields: dict[str, Any], shape: _Shape) -> None:
    """Refuse an object that its class would not make again of its fields."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, _PLAIN_BASES):
        raise ValueError(
            f"{kind.__name__} is a built-in value besides its fields, which alone are saved"
        )
    more = sorted(name for name in getattr(value, "__dict__", ()) if _is_extra(name, kind, fields))
    if more:
        raise ValueError(f"it has {', '.join(more)} besides the fields of {kind.__name__}")
    try:
        built = shape.build(fields)
    except Exception as error:
        raise ValueError(
            f"{kind.__name__} cannot be made again of its fields: {error!r}"
        ) from error
    for name, part in shape.take(built).items():
        if not _is_same(part, fields[name]):
            raise ValueError(
                f"{kind.__name__} makes {name}={part!r} of {name}={fields[name]!r}, so the same would "
                "not come back: let its __init__ leave alone what is right already"
            )


def _is_extra(name: str, kind: type[Any], fields: dict[str, Any]) -> bool:
    """Whether an attribute is none of the fields, and not worked out from them either."""
    is_derived = isinstance(getattr(kind, name, None), cached_property)
    return name not in fields and not is_derived and not name.startswith("__")


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and one == other)


def _attributes(kind: type[Any]) -> tuple[Any, ...]:
    from attrs import fields as attrs_fields
    from attrs import has

    if has(kind):
        return tuple(attrs_fields(kind))
    import dataclasses

    return dataclasses.fields(cast(Any, kind))


_RECORD_MARKS = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "model_fields")


def is_record(kind: Any) -> bool:
    """Whether a class is a data class, an attrs class, a named tuple, a Struct or a model."""
    if any(hasattr(kind, mark) for mark in _RECORD_MARKS):
        return True
    bases: tuple[type[Any], ...] = kind.__mro__
    return tuple in bases and hasattr(kind, "_fields")


def _collect(
    annotation: object, found: dict[str, type], errors: dict[str, type[Exception]]
) -> None:
    """Add the classes of an annotation; each is looked into once."""
    todo = [annotation]
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        todo.extend(_arguments(part))
        origin = typing.get_origin(part) or part
        if not isinstance(origin, type) or found.get(origin.__name__) is origin:
            continue
        kind: type = origin
        if issubclass(kind, Exception):
            errors[name_of_error(kind)] = kind
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
    for argument in cast("tuple[object, ...]", typing.get_args(part)):
        yield from cast("list[object]", argument) if isinstance(argument, list) else [argument]


def _field_annotations(kind: type[Any]) -> list[object]:
    if issubclass(kind, Enum):
        return []
    try:
        return list(typing.get_type_hints(cast(Any, kind)).values())
    except (NameError, TypeError, AttributeError):
        # A name that exists only for the type checkers: its class then counts as undeclared.
        return []
