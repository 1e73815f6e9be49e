"""The classes that saved values may have: how they are found in annotations, taken apart and rebuilt.

Only these classes, the subclasses of exceptions among them that are not built in, and built-in
exceptions are ever built from stored data. A class name in stored data is never imported.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, cast

from effectflow.checkpoint.values.custom import NO_OPTIONS, ValueOptions
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects.signatures import UnresolvedName, meaning_of, type_hints

NO_CIPHER = (
    "a secret is saved only encrypted: pass Checkpoints(encryption=...), or take it from the environment "
    "where it is used"
)


@dataclass(frozen=True)
class KnownTypes:
    """The records, enums and exceptions that saved values may be made of, by name.

    A record is a data class, attrs class, named tuple, msgspec Struct or pydantic model.

    Attributes:
        classes, errors: the classes by their names.
        options: the codecs and the encryption for values.
        is_whole: whether all names in the annotations could be resolved.

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
    options: ValueOptions = NO_OPTIONS
    is_whole: bool = True

    @staticmethod
    def of(*annotations: object) -> KnownTypes:
        """Return the classes that annotations mention, and those that their fields mention in turn.

        Raises ValueError if two different classes have the same name.
        """
        classes: dict[str, type] = {}
        errors: dict[str, type[Exception]] = {}
        todo = list(annotations)
        is_whole = True
        # Keeps the parts alive: type hints are new objects each time, and an id could be reused.
        seen: dict[int, object] = {}
        while todo:
            part = todo.pop()
            if id(part) in seen:
                continue
            seen[id(part)] = part
            todo.extend(_arguments(part))
            if isinstance(part, UnresolvedName):
                is_whole = False
                continue
            kind: Any = typing.get_origin(part) or part
            if not isinstance(kind, type):
                todo.append(meaning_of(kind))
                continue
            if Exception in kind.__mro__:
                errors[name_of_error(kind)] = kind
            if typing.is_typeddict(kind):
                todo.extend(_field_annotations(kind))
            elif is_record(kind) or (issubclass(kind, Enum) and kind is not Enum):
                if kind.__name__ not in classes:
                    classes[kind.__name__] = kind
                    todo.extend(_field_annotations(kind))
                elif classes[kind.__name__] is not kind:
                    raise ValueError(
                        f"two classes of one step are named {kind.__name__}: {kind!r} and "
                        f"{classes[kind.__name__]!r}. Saved values refer to a class by its name "
                        "alone: rename one of them"
                    )
        return KnownTypes(classes, errors, is_whole=is_whole)

    def knows(self, kind: type[Any]) -> bool:
        """Return whether a record or enum is declared."""
        return self.classes.get(kind.__name__) is kind

    def hide(self, text: str) -> str:
        """Return the text of a secret as it is saved. Raises ValueError if it would not be encrypted."""
        if self.options.cipher is None:
            raise ValueError(NO_CIPHER)
        return self.options.cipher.hide(text)

    def reveal(self, hidden: str) -> str:
        """Return the text of a secret that was saved. Raises ValueError if it cannot be decrypted."""
        if self.options.cipher is None:
            raise ValueError(NO_CIPHER)
        return self.options.cipher.reveal(hidden)

    def class_named(self, name: object, *, is_enum: bool) -> Any:
        """Return the enum or record of this name. Raises LookupError if it is not declared."""
        kind = self.classes.get(name) if isinstance(name, str) else None
        if kind is None or issubclass(kind, Enum) is not is_enum:
            raise LookupError(f"{name!r} is not declared")
        return kind

    def fields_of(self, value: Any) -> dict[str, Any]:
        """Return the fields of a record, by name.

        Raises ValueError if a record that is built from them would differ.
        """
        record = record_of(value.__class__)
        fields = record.take(value)
        if record.keeps_fields:
            return fields
        try:
            built = record.build(fields)
        except Exception as error:
            raise ValueError(
                f"{record.kind.__name__} cannot be rebuilt from its fields: {error!r}"
            ) from error
        for name, part in record.take(built).items():
            if not _is_same(part, fields[name]):
                raise ValueError(
                    f"{record.kind.__name__} makes {name}={part!r} of {name}={fields[name]!r}, so the "
                    "value would change: let its __init__ leave a correct value as it is"
                )
        return fields

    def fields_of_all(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the fields of records of one class, as `RecordClass.take_all`."""
        return record_of(values[0].__class__).take_all(values)


NO_TYPES = KnownTypes()
"""No classes: for values that are plain data."""


def _arguments(part: object) -> Iterator[object]:
    if isinstance(part, typing.TypeVar):
        yield part.__bound__
        yield from part.__constraints__
    for argument in typing.get_args(part):
        if argument.__class__ is list:
            yield from argument
        else:
            # A Literal has enum members as arguments.
            yield type(argument) if isinstance(argument, Enum) else argument


def _field_annotations(kind: Any) -> list[object]:
    if issubclass(kind, Enum):
        return []
    # Only these know the parameters of a generic pydantic model.
    fields: Any = getattr(kind, "model_fields", None)
    annotations: list[object] = []
    if fields.__class__ is dict:
        annotations = [field.annotation for field in fields.values()]
    return [*annotations, *type_hints(kind).values()]


_RECORD_MARKS = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "model_fields")


def is_record(kind: Any) -> bool:
    """Return whether a class is a data class, attrs class, named tuple, Struct or model."""
    if any(hasattr(kind, mark) for mark in _RECORD_MARKS):
        return True
    return tuple in kind.__mro__ and hasattr(kind, "_fields")


@dataclass(frozen=True, slots=True)
class RecordClass:
    """How instances of one class are taken apart and rebuilt.

    Attributes:
        kind: the class.
        parameters: for each field, its parameter of the constructor; None if it has none.
        defaults: for each field, its default, or a sentinel if it has none.
        slots: the slots of the class besides its fields.
        keeps_fields: whether a new instance surely has the fields that it is built from.
    """

    kind: Any
    parameters: Mapping[str, str | None]
    defaults: Mapping[str, object]
    slots: tuple[str, ...]
    keeps_fields: bool

    @property
    def is_frozen(self) -> bool:
        """Whether it is a plain data class whose instances have only fields that keep their values."""
        parameters = getattr(self.kind, "__dataclass_params__", None)
        bases: tuple[type, ...] = self.kind.__mro__
        is_cached = any(
            isinstance(part, cached_property) for base in bases for part in vars(base).values()
        )
        return self.keeps_fields and getattr(parameters, "frozen", False) and not is_cached

    def take(self, value: Any) -> dict[str, Any]:
        """Return the fields of an instance. Raises ValueError for a missing or an additional one."""
        if self.keeps_fields:
            own = getattr(value, "__dict__", None)
            if own is not None and own.keys() == self.parameters.keys():
                return {name: own[name] for name in self.parameters}
        if issubclass(self.kind, _BUILT_IN):
            raise ValueError(
                f"{self.kind.__name__} is a built-in value besides its fields, and only those are saved"
            )
        try:
            fields = {name: getattr(value, name) for name in self.parameters}
        except AttributeError as error:
            raise ValueError(f"a field of it is not set: {error}") from error
        more = [
            name
            for name in (*getattr(value, "__dict__", ()), *self.slots)
            if name not in fields and hasattr(value, name) and not self._is_derived(name)
        ]
        if more:
            raise ValueError(f"it has {', '.join(more)} besides the fields of {self.kind.__name__}")
        return fields

    def take_all(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the fields of some instances, maybe in their own dicts, or None if unsure."""
        if not self.keeps_fields:
            return None
        if hasattr(values[0], "__dict__"):
            every: list[dict[str, Any]] = [value.__dict__ for value in values]
            return every if self.has_only_fields(every) else None
        try:
            return [{name: getattr(value, name) for name in self.parameters} for value in values]
        except AttributeError:
            return None

    def has_only_fields(self, every: list[dict[str, Any]]) -> bool:
        """Return whether these are surely the fields of instances, from which `build` makes others."""
        return self.keeps_fields and {*map(tuple, every)} == {(*self.parameters,)}

    def take_changed(self, value: Any) -> dict[str, Any]:
        """Return the fields that differ from their defaults. Raises ValueError as `take`."""
        return {
            name: part
            for name, part in self.take(value).items()
            if name in self.defaults and not _is_same(part, self.defaults[name])
        }

    def take_all_changed(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the fields that differ from their defaults, or None if unsure.

        Those are the same in all instances, because they are converted field by field.
        """
        every = self.take_all(values)
        if every is None:
            return None
        changed: list[str] = []
        for name, default in self.defaults.items():
            column = [fields[name] for fields in every]
            has_class = default.__class__ in {*map(type, column)}
            same = sum(_is_same(part, default) for part in column) if has_class else 0
            if 0 < same < len(column):
                return None
            if not same:
                changed.append(name)
        if len(changed) == len(every[0]):
            return every
        return [{name: fields[name] for name in changed} for fields in every]

    def build(self, fields: Mapping[str, Any]) -> Any:
        """Return an instance with these fields. Raises ValueError, or what the class raises."""
        if self.keeps_fields and fields.keys() == self.parameters.keys():
            return self.kind(**fields)
        if unknown := fields.keys() - self.parameters.keys():
            raise ValueError(f"{self.kind.__name__} has no {', '.join(sorted(unknown))}")
        given = self.parameters.items()
        built = self.kind(**{key: fields[name] for name, key in given if key and name in fields})
        for name, part in fields.items():
            # Attributes that the class computes stay; attributes that were set afterwards are set again.
            if not self.parameters[name] and not _is_same(getattr(built, name, _MISSING), part):
                object.__setattr__(built, name, part)
        return built

    def _is_derived(self, name: str) -> bool:
        """Return whether an attribute is computed from the fields, or belongs to Python or attrs."""
        return name.startswith("__") or isinstance(getattr(self.kind, name, None), cached_property)


_BUILT_IN: Any = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex)

_MISSING = object()

_FIELDS_SET = "model_fields_set"
"""Lists the fields of a model that were given, if not all were. No field can have this name."""

_EXTRA, _PRIVATE = "__pydantic_extra__", "__pydantic_private__"
"""The extra fields of a model, and its private attributes. No field can have these names."""

_BESIDES = (_FIELDS_SET, _EXTRA, _PRIVATE)


class _Model(RecordClass):
    """A pydantic model. What was saved was valid, so it is not validated again."""

    __slots__ = ()

    def take(self, value: Any) -> dict[str, Any]:
        fields = RecordClass.take(self, value) | self._besides(value)
        if value.model_fields_set == self.parameters.keys() == fields.keys():
            return fields
        if value.model_fields_set != fields.get(_EXTRA, {}).keys() | self.parameters.keys():
            fields[_FIELDS_SET] = sorted(value.model_fields_set)
        return fields

    def take_all(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        every = RecordClass.take_all(self, values)
        if every is None or any(map(self._besides, values)):
            return None
        names = frozenset(self.parameters)
        have_all = {value.model_fields_set == names for value in values}
        if have_all == {True, False}:
            return None
        if True in have_all:
            return every
        return [
            {**fields, _FIELDS_SET: sorted(value.model_fields_set)}
            for fields, value in zip(every, values, strict=True)
        ]

    def take_changed(self, value: Any) -> dict[str, Any]:
        return RecordClass.take_changed(self, value) | self._besides(value)

    def _besides(self, value: Any) -> dict[str, Any]:
        """Return the extra fields and private attributes of a model that has any."""
        if not value.__pydantic_extra__ and not value.__pydantic_private__:
            return {}
        parts = {_EXTRA: value.__pydantic_extra__, _PRIVATE: value.__pydantic_private__}
        return {name: dict(part) for name, part in parts.items() if part}

    def build(self, fields: Mapping[str, Any]) -> Any:
        if self.keeps_fields and fields.keys() == self.parameters.keys():
            built = self.kind.__new__(self.kind)
            # As pickle does. `model_construct` takes twice as long.
            built.__setstate__(
                {
                    "__dict__": {**fields},
                    "__pydantic_fields_set__": {*fields},
                    _EXTRA: {} if self.kind.model_config.get("extra") == "allow" else None,
                    _PRIVATE: None,
                }
            )
            return built
        more: dict[str, Any] = fields.get(_EXTRA, {})
        private: dict[str, Any] = fields.get(_PRIVATE, {})
        given = {name: part for name, part in fields.items() if name not in _BESIDES} | more
        were_set: set[str] = set(fields.get(_FIELDS_SET, given))
        known = self.parameters.keys() | more.keys()
        unknown = (
            given.keys() | were_set
        ) - known | private.keys() - self.kind.__private_attributes__
        if unknown or (more and self.kind.model_config.get("extra") != "allow"):
            named = ", ".join(map(str, unknown or more))
            raise ValueError(f"{self.kind.__name__} has no {named}")
        required = {name for name, part in self.kind.model_fields.items() if part.is_required()}
        # pydantic would return a model without them.
        if missing := required - given.keys():
            raise ValueError(f"{self.kind.__name__} needs {', '.join(sorted(missing))}")
        built = self.kind.model_construct(_fields_set=were_set, **given)
        if private:
            built.__pydantic_private__.update(private)
        return built


@cache
def record_of(kind: Any) -> RecordClass:
    """Return how instances of a class are taken apart and rebuilt, if `is_record` is true for it."""
    parameters: dict[str, str | None] = {}
    defaults: dict[str, object] = {}
    for name, parameter, default, factory in _fields_of(kind):
        parameters[name] = parameter
        # Any other factory may return the current time, or a new id at each call.
        makes_empty = (typing.get_origin(factory) or factory) in _EMPTY
        defaults[name] = factory() if makes_empty else default
    mro: tuple[type, ...] = kind.__mro__
    slots = tuple(
        name
        for base in mro
        # Besides its fields, attrs keeps in slots only what it can compute from them.
        if "__attrs_attrs__" not in vars(base)
        for name, part in vars(base).items()
        if isinstance(part, MemberDescriptorType) and name not in parameters
    )
    if hasattr(kind, "model_fields"):
        return _Model(kind, parameters, defaults, slots, _is_plain_model(kind))
    keeps_fields = not slots and _is_plain_data_class(kind, parameters)
    return RecordClass(kind, parameters, defaults, slots, keeps_fields)


def _is_plain_data_class(kind: Any, fields: Mapping[str, str | None]) -> bool:
    """Return whether a data class has the generated constructor, which only sets its fields."""
    own = cast("dict[str, Any]", vars(kind))
    code: Any = getattr(own.get("__init__"), "__code__", None)
    module = sys.modules.get(kind.__module__)
    return (
        "__dataclass_fields__" in own
        # The code that dataclasses generate has this file, as has that of `python -c`.
        and code is not None
        and code.co_filename == "<string>"
        and code.co_argcount + code.co_kwonlyargcount == 1 + len(fields)
        and hasattr(module, "__file__")
        and not hasattr(kind, "__post_init__")
        and type(kind).__call__ is type.__call__
        and kind.__new__ is object.__new__
        and kind.__getattribute__ is object.__getattribute__
        and (kind.__setattr__ is object.__setattr__ or kind.__dataclass_params__.frozen)
        and None not in fields.values()
        and not any(_has_setter(getattr_static(kind, name, None)) for name in fields)
        and not issubclass(kind, _BUILT_IN)
    )


def _has_setter(attribute: object) -> bool:
    return hasattr(attribute, "__set__") and not isinstance(attribute, MemberDescriptorType)


def _is_plain_model(kind: Any) -> bool:
    """Return whether the instances of a model are made by pydantic alone, with the given fields."""
    import pydantic

    return (
        kind.model_construct.__func__ is pydantic.BaseModel.model_construct.__func__
        and kind.__setstate__ is pydantic.BaseModel.__setstate__
        and kind.__pydantic_post_init__ is None
        and kind.__new__ is object.__new__
        and kind.__getattribute__ is object.__getattribute__
        and not any(_has_setter(getattr_static(kind, name, None)) for name in kind.model_fields)
    )


_EMPTY: tuple[Any, ...] = (list, dict, set, frozenset, tuple)


def _fields_of(kind: Any) -> Iterator[tuple[str, str | None, Any, Any]]:
    """Yield the name, parameter, default and factory of each field; a sentinel for a missing default."""
    if tuple in kind.__mro__:
        for name in kind._fields:
            yield name, name, kind._field_defaults.get(name, _MISSING), None
    elif hasattr(kind, "__struct_fields__"):
        names, defaults = kind.__struct_fields__, kind.__struct_defaults__
        missing = [_MISSING] * (len(names) - len(defaults))
        for name, default in zip(names, (*missing, *defaults), strict=True):
            yield name, name, default, getattr(default, "factory", None)
    elif hasattr(kind, "model_fields"):
        for name, part in kind.model_fields.items():
            yield name, name, part.default, part.default_factory
    elif hasattr(kind, "__attrs_attrs__"):
        for part in kind.__attrs_attrs__:
            parameter = part.alias if part.init else None
            yield part.name, parameter, part.default, getattr(part.default, "factory", None)
    else:
        for part in dataclasses.fields(kind):
            yield part.name, part.name if part.init else None, part.default, part.default_factory


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and have the same types all the way down."""
    if one is other:
        return True
    kind = one.__class__
    if kind is not other.__class__:
        return False
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if kind is dict:
        return _is_same([*one.items()], [*other.items()])
    if kind in (set, frozenset):
        there = {part: part for part in other}
        return one == other and all(_is_same(part, there[part]) for part in one)
    if is_record(kind):
        record = record_of(kind)
        return _is_same(record.take(one), record.take(other))
    # The repr distinguishes 1.0 from 1.00, -0.0 from 0.0, and the two folds of a time.
    try:
        is_equal = bool(one == other or (kind is float and math.isnan(one)))
    except ValueError:
        # Arrays and frames compare their items.
        return False
    return is_equal and repr(one) == repr(other)
