"""Check whether values have the types that annotations declare.

What a step yields is checked when it is saved and when it is read back, so that code whose annotations
have changed never works with values of other types. A part of an annotation that says nothing about
values, such as a type variable or a protocol, accepts all of them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Literal, Never, TypeAlias, TypedDict, Union, cast

from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.exceptions import safe_repr
from effectflow.checkpoint.values.plain import MalformedValue
from effectflow.checkpoint.values.tables import is_numpy_scalar
from effectflow.effects.effect import Effect
from effectflow.effects.signatures import UnresolvedName, meaning_of, type_hints

Passed: TypeAlias = Mapping[int, set[Any]]
"""The checks that values have passed which nothing changes, by the `id` of the value."""

NOTHING_PASSED: Passed = {}

Mismatch: TypeAlias = tuple[str, str]
"""The path of a part that has another type than declared, such as `.items[3]`, and the problem."""

_Find: TypeAlias = Callable[[Any, Passed], Mismatch | None]


def mismatch_of(
    value: object, annotation: object, passed: Passed = NOTHING_PASSED
) -> Mismatch | None:
    """Return the first part of a value that is not what its annotation declares, or None.

    `None` as an annotation means that there is none. An int is a float, and a float is a complex number.

    Example:
        >>> mismatch_of({"a": [1, "2"]}, dict[str, list[int]])
        ("['a'][1]", "'2' is not of the declared type int")
    """
    return None if annotation is None else _check_of(annotation).find(value, passed)


def of_type(
    value: object, annotation: object, *, path: str = "$", passed: Passed = NOTHING_PASSED
) -> Any:
    """Return a value that has the annotated type. Raises MalformedValue, with the path of the part."""
    mismatch = mismatch_of(value, annotation, passed)
    if mismatch is not None:
        raise MalformedValue(f"{path}{mismatch[0]}", mismatch[1])
    return value


def union_of(annotations: Iterable[object]) -> Any:
    """Return the annotation of values that one of these describes; `Never` for none of them."""
    parts = tuple(annotations)
    return Union[parts] if parts else Never  # noqa: UP007, any number of them


def dict_type(name: str, fields: Mapping[str, object]) -> Any:
    """Return the annotation of a dict with these keys, and the annotations of their values."""
    make: Any = TypedDict
    return make(name, dict(fields))


@dataclass(frozen=True, slots=True)
class ReadableBy:
    """In an `Annotated`, says that values of the type are those that a function can read.

    Attributes:
        read: raises TypeError or ValueError for any other value.
    """

    read: Callable[[Any], object]


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """How values of one type are checked.

    Attributes:
        find: returns the first mismatch in a value, or None.
        exact: classes whose instances surely have the type; None if all values have it.
        are_surely: returns whether all of many values surely have the type, in less time than `find`.
    """

    find: _Find
    exact: frozenset[type] | None
    are_surely: Callable[[Collection[Any]], bool] | None = None


_ACCEPT = _Check(lambda _value, _passed: None, None)

_NO_CLASS: frozenset[type] = frozenset()

_EXACT: Mapping[type, frozenset[type]] = {
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    complex: frozenset({complex, float, int, bool}),
    type(None): frozenset({type(None)}),
}


_STANDARD = frozenset({"builtins", "collections", "collections.abc", "typing"})


def _check_of(annotation: Any) -> _Check:
    try:
        return _cached_check(annotation)
    except TypeError:
        # It cannot be hashed, such as Annotated with a list.
        return _make_check(annotation)


@cache
def _cached_check(annotation: Any) -> _Check:
    return _make_check(annotation)


def _make_check(annotation: Any) -> _Check:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        check = _check_of(arguments[0])
        readers = [one for one in arguments[1:] if isinstance(one, ReadableBy)]
        return _readable(check, readers[0]) if readers else check
    if origin in (Union, UnionType):
        return _any_of(annotation, [_check_of(argument) for argument in arguments])
    if isinstance(annotation, UnresolvedName):
        return _ACCEPT
    if origin is Literal:
        return _literal(annotation, arguments)
    kind: Any = origin or annotation
    if isinstance(kind, type):
        return _of_class(annotation, kind, arguments)
    meaning = meaning_of(kind)
    return _ACCEPT if meaning is None else _check_of(meaning)


def _readable(check: _Check, by: ReadableBy) -> _Check:
    def find(value: Any, passed: Passed) -> Mismatch | None:
        found = check.find(value, passed)
        if found is None:
            try:
                by.read(value)
            except (TypeError, ValueError) as error:
                found = "", str(error)
        return found

    return _Check(find, _NO_CLASS)


def _any_of(annotation: Any, checks: list[_Check]) -> _Check:
    exact: set[type] = set()
    for check in checks:
        if check.exact is None:
            return _ACCEPT
        exact |= check.exact

    def find(value: Any, passed: Passed) -> Mismatch | None:
        if value.__class__ in exact or any(check.find(value, passed) is None for check in checks):
            return None
        return _other(value, annotation)

    return _Check(find, frozenset(exact))


def _literal(annotation: Any, choices: tuple[Any, ...]) -> _Check:
    known = frozenset((choice.__class__, choice) for choice in choices)

    def find(value: Any, passed: Passed) -> Mismatch | None:
        try:
            is_known = (value.__class__, value) in known
        except TypeError:
            # It cannot be hashed, and all choices can.
            is_known = False
        return None if is_known else _other(value, annotation)

    return _Check(find, _NO_CLASS)


def _of_class(annotation: Any, kind: Any, arguments: tuple[Any, ...]) -> _Check:
    if kind in (object, Any, type) or getattr(kind, "_is_protocol", False):
        return _ACCEPT
    if typing.is_typeddict(kind):
        return _fields_check(kind, arguments)
    if kind in _EXACT:
        return _Check(_instance_find(annotation, tuple(_EXACT[kind])), _EXACT[kind])
    # Values that pydantic has validated may have other types than the annotations.
    is_validated = hasattr(kind, "__pydantic_core_schema__")
    try:
        isinstance(None, kind)
    except TypeError:
        return _ACCEPT
    find = _instance_find(annotation, kind)
    if kind is tuple and arguments:
        return _Check(_tuple_find(find, arguments), _NO_CLASS)
    # The contents of any other class may differ from its parameters: a Table[Row] may yield columns.
    is_standard = kind.__module__ in _STANDARD
    if arguments and is_standard and issubclass(kind, Mapping):
        return _Check(_pairs_find(find, *arguments[:2]), _NO_CLASS)
    if is_record(kind) and not is_validated:
        return _fields_check(kind, arguments)
    if len(arguments) == 1 and is_standard and issubclass(kind, Collection):
        return _Check(_items_find(find, arguments[0]), _NO_CLASS)
    return _Check(find, _NO_CLASS)


def _instance_find(annotation: Any, kind: Any) -> _Find:
    def find(value: Any, passed: Passed) -> Mismatch | None:
        return None if isinstance(value, kind) else _other(value, annotation)

    return find


def _items_find(find_whole: _Find, argument: Any) -> _Find:
    # Not now, because an alias may contain itself.
    check = cache(lambda: _check_of(argument))

    def find(value: Any, passed: Passed) -> Mismatch | None:
        item = check()
        found = find_whole(value, passed)
        if found or item.exact is None or item.exact.issuperset(map(type, value)):
            return found
        if item.are_surely is not None and not passed and item.are_surely(value):
            return None
        for index, part in enumerate(value):
            done = passed.get(id(part))
            if done is None or item not in done:
                found = item.find(part, passed)
                if found:
                    return f"[{index}]{found[0]}", found[1]
                if done is not None:
                    done.add(item)
        return None

    return find


def _pairs_find(find_whole: _Find, of_keys: Any = Any, of_values: Any = Any) -> _Find:
    # Not now, because an alias may contain itself.
    checks = cache(lambda: (_check_of(of_keys), _check_of(of_values)))

    def find(value: Any, passed: Passed) -> Mismatch | None:
        key_check, item = checks()
        found = find_whole(value, passed)
        if found:
            return found
        if key_check.exact is not None and not key_check.exact.issuperset(map(type, value)):
            found = _first((f"[{safe_repr(key)}]", key_check.find(key, passed)) for key in value)
        if found or item.exact is None or item.exact.issuperset(map(type, value.values())):
            return found
        return _first(
            (f"[{safe_repr(key)}]", item.find(part, passed)) for key, part in value.items()
        )

    return find


def _tuple_find(find_whole: _Find, arguments: tuple[Any, ...]) -> _Find:
    if len(arguments) == 2 and arguments[1] is ...:
        return _items_find(find_whole, arguments[0])
    if any(typing.get_origin(argument) is typing.Unpack for argument in arguments):
        return find_whole
    expected = 0 if arguments == ((),) else len(arguments)

    def find(value: Any, passed: Passed) -> Mismatch | None:
        found = find_whole(value, passed)
        if found:
            return found
        if len(value) != expected:
            return "", f"it has {len(value)} items, and {expected} are declared"
        return _first(
            (f"[{index}]", _check_of(argument).find(part, passed))
            for index, (argument, part) in enumerate(zip(arguments, value, strict=False))
        )

    return find


def _fields_check(kind: Any, arguments: tuple[Any, ...]) -> _Check:
    """Return how the fields of a record, or the items of a TypedDict, are checked.

    `arguments` takes the place of its type parameters.
    """
    is_dict = typing.is_typeddict(kind)
    find_whole = _instance_find(kind, dict if is_dict else kind)
    defaults: Mapping[str, object] = {} if is_dict else record_of(kind).defaults

    @cache
    def checks() -> list[tuple[str, _Check]]:
        # Not earlier, because a class may have fields of its own type.
        return [(name, _check_of(hint)) for name, hint in field_types(kind, arguments).items()]

    def find(value: Any, passed: Passed) -> Mismatch | None:
        found = find_whole(value, passed)
        if found:
            return found
        if is_dict and (missing := required_keys(kind) - value.keys()):
            return "", f"it has no {', '.join(sorted(missing))}"
        for name, check in checks():
            part = value.get(name, _MISSING) if is_dict else getattr(value, name, _MISSING)
            # A field may have a default of another type, as in `name: str = None`.
            exact = check.exact
            if exact is None or part.__class__ in exact:
                continue
            if part is _MISSING or part is defaults.get(name, _MISSING):
                continue
            found = check.find(part, passed)
            if found:
                return f".{name}{found[0]}", found[1]
        return None

    def are_surely(values: Collection[Any]) -> bool:
        if {*map(type, values)} != {kind}:
            return False
        try:
            return all(
                check.exact is None
                or check.exact.issuperset(map(type, map(attrgetter(name), values)))
                for name, check in checks()
            )
        except AttributeError:
            return False

    return _Check(find, _NO_CLASS, None if is_dict else are_surely)


_MISSING = object()


@cache
def required_keys(kind: Any) -> frozenset[str]:
    """Return the keys that a TypedDict requires."""
    hints = type_hints(kind, include_extras=True)
    # The class itself does not resolve a NotRequired in annotations that are text.
    optional = {name for name in hints if typing.get_origin(hints[name]) is typing.NotRequired}
    return kind.__required_keys__ - optional


def field_types(kind: Any, arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the annotations of the items of a TypedDict, or of the fields of a record.

    `arguments` takes the place of its type parameters.
    """
    hints = _hints_of(kind, arguments)
    fields = hints.keys() if typing.is_typeddict(kind) else record_of(kind).parameters.keys()
    return {name: hint for name, hint in hints.items() if name in fields}


def _hints_of(kind: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the annotations in a class and its bases, with these arguments for its type parameters.

    A base class has other arguments: in `class Page(Box[list[T]])`, the `T` of `Box` is a `list[T]`.
    """
    parameters = getattr(kind, "__parameters__", ())
    # A TypeVarTuple takes any number of arguments, so it is not known which one belongs to which.
    is_plain = all(isinstance(parameter, typing.TypeVar) for parameter in parameters)
    given = dict(zip(parameters, arguments, strict=False)) if is_plain else {}
    written = type_hints(kind)
    hints = {name: _with_arguments(hint, given) for name, hint in written.items()}
    # Only the parameters of the class itself: as an attribute, they would be inherited.
    own = cast("dict[str, Any]", kind.__dict__)
    bases: tuple[Any, ...] = own.get("__orig_bases__", kind.__bases__)
    for base in reversed(bases):
        origin = typing.get_origin(base) or base
        if not isinstance(origin, type) or origin in (object, dict, tuple, typing.Generic):
            continue
        inherited = type_hints(origin)
        bound = _hints_of(origin, typing.get_args(_with_arguments(base, given)))
        # A field that the class annotates again has its own annotation.
        hints |= {name: bound[name] for name in bound if written.get(name) == inherited[name]}
    return hints


def _with_arguments(annotation: Any, given: Mapping[Any, Any]) -> Any:
    """Return an annotation with these arguments in place of type parameters."""
    if isinstance(annotation, typing.TypeVar):
        return given.get(annotation, annotation)
    parameters = getattr(annotation, "__parameters__", ()) if given else ()
    if not parameters or isinstance(annotation, type):
        return annotation
    return annotation[tuple(given.get(parameter, parameter) for parameter in parameters)]


def _first(parts: Any) -> Mismatch | None:
    for place, found in parts:
        if found:
            return place + found[0], found[1]
    return None


def _other(value: Any, annotation: Any) -> Mismatch:
    problem = f"{safe_repr(value):.80} is not of the declared type {name_of_type(annotation)}"
    if isinstance(value, Effect):
        problem += ", but an effect (did you forget `await` or `yield from`?)"
    elif annotation in _EXACT and is_numpy_scalar(value.__class__):
        problem += f": write {annotation.__name__}(...)"
    return "", problem


def name_of_type(annotation: Any) -> str:
    """Return an annotation as text for messages."""
    origin = typing.get_origin(annotation)
    if origin in (Union, UnionType):
        return " | ".join(map(name_of_type, typing.get_args(annotation)))
    if annotation is type(None):
        return "None"
    is_class = origin is None and isinstance(annotation, type)
    return annotation.__name__ if is_class else repr(annotation)
