"""Data classes, attrs classes, named tuples, Structs and models, taken apart and put together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

__all__ = ["Shape", "fields_of", "is_record", "shape_of"]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a record, by name. Raises ValueError if one made of them would not be the same."""
    kind: type[Any] = value.__class__
    shape = shape_of(kind)
    try:
        fields = shape.take(value)
    except AttributeError as error:
        raise ValueError(f"a field of it is not set: {error}") from error
    _check_alone(value, kind, fields)
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
    return fields


@dataclass(frozen=True, slots=True)
class Shape:
    """How one class is taken apart and put together.

    Attributes:
        take: gives the fields of an instance.
        build: makes an instance of fields. Raises TypeError or ValueError.
    """

    take: Callable[[Any], dict[str, Any]]
    build: Callable[[dict[str, Any]], Any]


@cache
def shape_of(kind: Any) -> Shape:
    """The shape of a data class, attrs class, named tuple, Struct or model."""
    if issubclass(kind, tuple):
        return _named_tuple_shape(kind)
    if hasattr(kind, "__struct_fields__"):
        return _struct_shape(kind)
    if hasattr(kind, "model_fields"):
        return _model_shape(kind)
    return _record_shape(kind)


def _named_tuple_shape(kind: Any) -> Shape:
    def take(value: Any) -> dict[str, Any]:
        return value._asdict()

    def build(fields: dict[str, Any]) -> Any:
        return kind(**fields)

    return Shape(take, build)


def _struct_shape(kind: Any) -> Shape:
    """That of a Struct of msgspec."""
    names: tuple[str, ...] = kind.__struct_fields__

    def take(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names}

    def build(fields: dict[str, Any]) -> Any:
        return kind(**fields)

    return Shape(take, build)


def _model_shape(kind: Any) -> Shape:
    """That of a model of pydantic. What was saved was valid, so it is not validated again."""

    def take(value: Any) -> dict[str, Any]:
        extra: dict[str, Any] = value.__pydantic_extra__ or {}
        private: dict[str, Any] = value.__pydantic_private__ or {}
        if extra or private:
            raise ValueError(f"it has {', '.join([*extra, *private])} besides its declared fields")
        fields = {name: getattr(value, name) for name in kind.model_fields}
        if value.model_fields_set != fields.keys():
            fields[_FIELDS_SET] = sorted(value.model_fields_set)
        return fields

    def build(fields: dict[str, Any]) -> Any:
        given = {name: part for name, part in fields.items() if name != _FIELDS_SET}
        listed = fields.get(_FIELDS_SET, [*given])
        if not isinstance(listed, list):
            raise ValueError(f"{_FIELDS_SET} is {listed!r}")
        were_set = set(cast("list[Any]", listed))
        unknown = (given.keys() | were_set) - kind.model_fields.keys()
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(map(str, unknown))}")
        required = {name for name, part in kind.model_fields.items() if part.is_required()}
        if not given.keys() >= required:
            # Pydantic would give a model without them.
            raise ValueError(f"{kind.__name__} needs {', '.join(sorted(required - given.keys()))}")
        return kind.model_construct(_fields_set=were_set, **given)

    return Shape(take, build)


_FIELDS_SET = "model_fields_set"
"""Which fields of a model were given, if not all of them. None can have this name itself."""


def _record_shape(kind: Any) -> Shape:
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

    return Shape(take, build)


_MISSING = object()


def _check_alone(value: Any, kind: type[Any], fields: Collection[str]) -> None:
    """Refuse an object that is or has something besides its fields."""
    if issubclass(kind, _PLAIN_BASES):
        raise ValueError(
            f"{kind.__name__} is a built-in value besides its fields, which alone are saved"
        )
    names = [
        *getattr(value, "__dict__", ()),
        *(name for name in _slots(kind) if hasattr(value, name)),
    ]
    more = sorted(name for name in names if _is_extra(name, kind, fields))
    if more:
        raise ValueError(f"it has {', '.join(more)} besides the fields of {kind.__name__}")


_PLAIN_BASES = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex)


@cache
def _slots(kind: type[Any]) -> list[str]:
    return [
        name
        for base in kind.__mro__
        # Besides its fields, attrs keeps in slots only what it can work out of them.
        if "__attrs_attrs__" not in vars(base)
        for name, part in vars(base).items()
        if inspect.ismemberdescriptor(part)
    ]


def _is_extra(name: str, kind: type[Any], fields: Collection[str]) -> bool:
    """Whether an attribute is none of the fields, and not worked out from them either."""
    is_derived = isinstance(getattr(kind, name, None), cached_property)
    return name not in fields and not is_derived and not name.startswith("__")


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same types all the way down."""
    if one is other:
        return True
    kind = cast("type[Any]", type(one))
    if kind is not type(other):
        return False
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if kind is dict:
        return _is_same([*one.items()], [*other.items()])
    if kind in (set, frozenset):
        there = {part: part for part in other}
        return one == other and all(_is_same(part, there[part]) for part in one)
    if is_record(kind):
        take = shape_of(kind).take
        return _is_same(take(one), take(other))
    # The repr tells 1.0 from 1.00, -0.0 from 0.0, and one fold from the other.
    is_equal = one == other or (kind is float and math.isnan(one))
    return is_equal and repr(one) == repr(other)


def _attributes(kind: Any) -> tuple[Any, ...]:
    from attrs import fields as attrs_fields
    from attrs import has

    if has(kind):
        return tuple(attrs_fields(kind))
    import dataclasses

    return dataclasses.fields(kind)


_RECORD_MARKS = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "model_fields")


def is_record(kind: Any) -> bool:
    """Whether a class is a data class, an attrs class, a named tuple, a Struct or a model."""
    if any(hasattr(kind, mark) for mark in _RECORD_MARKS):
        return True
    bases: tuple[type[Any], ...] = kind.__mro__
    return tuple in bases and hasattr(kind, "_fields")
