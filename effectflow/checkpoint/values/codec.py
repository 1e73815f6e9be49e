"""Values as trees of plain data, and back: the same value, type for type.

Plain JSON data stays as it is. Any other value becomes an object with one key, its tag, such as
`{"$datetime": "2026-01-01T00:00:00+00:00"}`, so it can be read without knowing what to expect. The
table at the end of this module has one entry for each tag, and `TAGS` the classes with these tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.classes import KnownTypes, is_record, record_of
from effectflow.checkpoint.values.columns import (
    MANY,
    UNSURE,
    convert_columns,
    fields_in_all,
    have_scalars,
)
from effectflow.checkpoint.values.exceptions import (
    error_named,
    is_same_error,
    name_of_error,
    put_together,
    safe_repr,
    take_apart,
)
from effectflow.checkpoint.values.moments import decode_moment, encode_moment
from effectflow.checkpoint.values.plain import (
    MAX_DEPTH,
    MAX_INT_BITS,
    SCALARS,
    KnownParts,
    MalformedValue,
    Tree,
    are_scalars,
    bytes_of,
    is_scalar,
    sorted_json,
)
from effectflow.checkpoint.values.pydantic_values import SECRET, URL, pydantic_kind
from effectflow.checkpoint.values.tables import (
    build_scalar,
    build_table,
    is_numpy_scalar,
    name_of_table,
    take_scalar,
    take_table,
)
from effectflow.checkpoint.values.tags import SAVED_CLASSES, TAGS
from effectflow.checkpoint.values.walk import KEY, Convert, Fault, Kind, Walk, encodable
from effectflow.effects.effect import Effect


def cannot_be_saved(cls: type[Any]) -> str:
    """Return why no object of this class can be saved, and what to do."""
    if cls.__name__ == "LazyFrame" and cls.__module__.startswith("polars."):
        return "a LazyFrame cannot be saved: it has no data yet. Save what `.collect()` returns"
    known = next((base.__name__ for base in cls.__mro__ if base in SAVED_CLASSES), None)
    convert = f"Convert it to {_with_article(known)}, take" if known else "Take"
    return (
        f"{_with_article(cls.__qualname__)} cannot be saved so that the same value comes back. {convert} "
        "it from the environment, or pass Checkpoints(codecs=...) a Codec for it"
    )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


MAX_SAME_HASH = 100
"""The number of set items or dict keys that may share a hash: each is compared with those before it."""


def _check_hashes(parts: Collection[Any]) -> None:
    """Raise Fault for set items or dict keys that would take quadratic time to compare."""
    hashes = Counter(map(hash, parts))
    if len(hashes) < len(parts) and max(hashes.values()) > MAX_SAME_HASH:
        raise Fault(f"more than {MAX_SAME_HASH} of its items have the same hash")


def encode(value: object, path: str, types: KnownTypes) -> Tree:
    """Return the tree of a value that is not plain data. Raises NotSerializable as `to_tree`."""
    walk = Walk(types)
    try:
        return _encode(value, walk)
    except Fault as fault:
        raise NotSerializable(path + walk.position(), str(fault)) from None


def decode(tree: Tree, path: str, types: KnownTypes, known: KnownParts | None = None) -> Any:
    """Return the value of any tree. Raises MalformedValue as `from_tree`."""
    walk = Walk(types, known)
    try:
        return _decode(tree, walk)
    except Fault as fault:
        raise MalformedValue(path + walk.position(), str(fault)) from None


def _encode(value: Any, walk: Walk) -> Any:
    cls = value.__class__
    kind = walk.kinds.get(cls)
    if kind is None and is_scalar(value):
        return value
    if len(walk.path) >= MAX_DEPTH:
        raise Fault(f"it is nested more than {MAX_DEPTH} levels deep, or contains itself")
    if kind is not None:
        return {kind.tag: kind.encode(value, walk)}
    if cls is str:
        return encodable(value)
    if cls is list:
        return _encode_items(value, walk)
    if cls is dict and _has_plain_keys(value):
        return _fields(_encode, value, walk)
    kind = _BY_CLASS.get(cls)
    if kind is None:
        kind = walk.kinds[cls] = _declared_kind(value, walk.types)
    return {kind.tag: kind.encode(value, walk)}


def _decode(tree: Any, walk: Walk) -> Any:
    cls = tree.__class__
    if cls in SCALARS:
        return tree
    if len(walk.path) >= MAX_DEPTH:
        raise Fault(f"it is nested more than {MAX_DEPTH} levels deep")
    known = walk.known
    if cls is list:
        return _decode_items(tree, walk) if known is None else _known_items(tree, walk, known)
    if cls is not dict:
        raise Fault(f"a {cls.__name__} cannot be part of a saved value")
    if known is None:
        return _decode_mapping(tree, walk)
    found = known.values.get(id(tree))
    if found is None:
        value = _decode_mapping(tree, walk)
        if is_immutable(value):
            known.values[id(tree)] = tree, value
            known.passed[id(value)] = set()
        elif SCALARS.issuperset(map(type, tree.values())) and _has_plain_keys(tree):
            known.values[id(tree)] = tree, _FLAT
        return value
    return tree.copy() if found[1] is _FLAT else found[1]


def _known_items(parts: list[Any], walk: Walk, known: KnownParts) -> list[Any]:
    """Return the items of a list, most of which were decoded before."""
    walk.count(parts)
    out: list[Any] = []
    for index, part in enumerate(parts):
        found = known.values.get(id(part))
        if found is None:
            out.append(walk.at(index, _decode, part))
        else:
            out.append(part.copy() if found[1] is _FLAT else found[1])
    return out


_FLAT = object()
"""Takes the place of the value of a dict of scalars, which is copied each time."""


_IMMUTABLE = SCALARS | {
    bytes,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
    Fraction,
    UUID,
}


def is_immutable(value: Any) -> bool:
    """Return whether nothing changes a value: for example, a frozen data class of texts and numbers."""
    cls = value.__class__
    if cls in _IMMUTABLE or isinstance(value, Enum):
        return True
    if cls is tuple or cls is frozenset:
        return all(map(is_immutable, value))
    return (
        is_record(cls)
        and (record := record_of(cls)).is_frozen
        and all(map(is_immutable, record.take(value).values()))
    )


def _decode_mapping(tree: dict[str, Any], walk: Walk) -> Any:
    tag = next(iter(tree), "")
    kind = _BY_TAG.get(tag)
    if kind is None and _has_plain_keys(tree):
        return _fields(_decode, tree, walk)
    if kind is None or len(tree) > 1:
        raise Fault(f"this version does not know the tag of {safe_repr([*tree]):.100}")
    try:
        return kind.decode(tree[tag], walk)
    except Fault:
        raise
    except Exception as error:
        raise Fault(f"it is not a valid {tag[1:]}: {error}") from None


def _has_plain_keys(mapping: Mapping[Any, Any]) -> bool:
    return all(key.__class__ is str and key[:1] != "$" for key in mapping)


def _items(convert: Convert, parts: Collection[Any], walk: Walk) -> list[Any]:
    walk.count(parts)
    out: list[Any] = []
    walk.path.append(None)
    for index, part in enumerate(parts):
        walk.path[-1] = index
        out.append(convert(part, walk))
    walk.path.pop()
    return out


def _encode_items(parts: Sequence[Any], walk: Walk) -> list[Any]:
    objects = _fields_of_all(parts, walk.types) if len(parts) >= MANY else None
    if objects is None or not walk.has_room_for(objects):
        return _items(_encode, parts, walk)
    encoded = convert_columns(objects, _encode, are_scalars, walk)
    name = parts[0].__class__.__name__
    return [{_OBJECT.tag: [name, {**fields}]} for fields in encoded]


def _decode_items(parts: list[Any], walk: Walk) -> list[Any]:
    many = len(parts) >= MANY
    record, objects = fields_in_all(parts, _OBJECT.tag, walk.types) if many else UNSURE
    if record is None or not walk.has_room_for(objects):
        return _items(_decode, parts, walk)
    return [*map(record.build, convert_columns(objects, _decode, have_scalars, walk))]


def _fields_of_all(values: Sequence[Any], types: KnownTypes) -> list[dict[str, Any]] | None:
    """Return the fields of objects of one class; None for other values, and if unsure."""
    cls = values[0].__class__
    if {*map(type, values)} != {cls} or not types.knows(cls):
        return None
    return types.fields_of_all(values) if _declared_kind(values[0], types) is _OBJECT else None


def _fields(convert: Convert, parts: Mapping[str, Any], walk: Walk) -> dict[str, Any]:
    walk.count(parts)
    out: dict[str, Any] = {}
    path = walk.path
    path.append(None)
    for key, part in parts.items():
        path[-1] = key
        if not key.isascii():
            encodable(key)
        # Most fields have such values, and a call for each would take most of the time.
        cls = part.__class__
        is_own = cls is bool or (cls is str and part.isascii())
        out[key] = part if is_own else convert(part, walk)
    path.pop()
    return out


def _encode_pairs(value: dict[Any, Any], walk: Walk) -> list[Any]:
    walk.count(value)
    _check_hashes(value)
    return [
        [walk.at(KEY, _encode, key), walk.at(key, _encode, part)] for key, part in value.items()
    ]


def _decode_pairs(content: Any, walk: Walk) -> list[Any]:
    walk.count(content)
    pairs: list[Any] = []
    for encoded, part in content:
        key = walk.at(KEY, _decode, encoded)
        pairs.append((key, walk.at(key, _decode, part)))
    _check_hashes([key for key, _ in pairs])
    return pairs


def _encode_set(value: Any, walk: Walk) -> list[Any]:
    _check_hashes(value)
    # Equal sets have the same form.
    return sorted(_items(_encode, value, walk), key=sorted_json)


def _decode_set(content: Any, walk: Walk) -> list[Any]:
    parts = _decode(content, walk)
    _check_hashes(parts)
    return parts


def _encode_int(value: int) -> str:
    if value.bit_length() > MAX_INT_BITS:
        raise Fault(f"the integer has {value.bit_length():,} bits, more than {MAX_INT_BITS:,}")
    # Python refuses to write very long numbers in decimal digits, which takes quadratic time.
    return str(value) if value.bit_length() <= 4096 else hex(value)


def _decode_int(digits: str) -> int:
    if len(digits) > MAX_INT_BITS // 4 + len("-0x"):
        raise Fault(f"the integer has {len(digits):,} digits")
    return int(digits, 16) if digits.removeprefix("-").startswith("0x") else int(digits)


def _decode_float(name: str) -> float:
    if name not in ("nan", "inf", "-inf"):
        raise Fault(f"{name!r} is not the name of a float")
    return float(name)


def _decode_fraction(content: Any) -> Fraction:
    numerator, denominator = content
    return Fraction(_decode_int(numerator), _decode_int(denominator))


def _decode_timedelta(content: Any) -> timedelta:
    days, seconds, microseconds = content
    return timedelta(days, seconds, microseconds)


def _encode_custom(value: Any, walk: Walk) -> list[Any]:
    codec = walk.types.options.by_class[value.__class__]
    try:
        parts = codec.encode(value)
    except Exception as error:
        raise Fault(f"the codec {codec.tag!r} raised {error!r}") from error
    return [codec.tag, walk.at(f"{codec.tag}()", _encode, parts)]


def _decode_custom(content: Any, walk: Walk) -> Any:
    tag, parts = content
    codec = walk.types.options.by_tag.get(tag)
    if codec is None:
        raise Fault(f"no codec has the tag {safe_repr(tag):.100}: Checkpoints(codecs=...) needs it")
    decoded = walk.at(f"{tag}()", _decode, parts)
    value = codec.decode(decoded)
    if value.__class__ is not codec.kind:
        raise Fault(f"the codec {tag!r} made {safe_repr(value):.100}, not a {codec.kind.__name__}")
    return value


def foreign_kind(cls: type[Any]) -> Kind | None:
    """Return the kind of the values of a class of numpy, pandas, polars or pyarrow; None for others."""
    if is_numpy_scalar(cls):
        return _SCALAR
    return None if name_of_table(cls) is None else _TABLE


def _encode_scalar(value: Any, walk: Walk) -> list[Any]:
    dtype, item = _taken(take_scalar, value)
    return [dtype, walk.at("item()", _encode, item)]


def _decode_scalar(content: Any, walk: Walk) -> Any:
    dtype, item = content
    return build_scalar(dtype, walk.at("item()", _decode, item))


def _taken(take: Callable[[Any], Any], value: Any) -> Any:
    try:
        return take(value)
    except ValueError as error:
        raise Fault(str(error)) from error


def _declared_kind(value: Any, types: KnownTypes) -> Kind:
    """Return the kind of a value of a class that users define. Raises Fault if it is not declared."""
    cls = value.__class__
    if cls in types.options.by_class:
        return _CUSTOM
    if name_of_error(cls) in types.errors:
        return _ERROR
    if types.knows(cls):
        return _FLAG if isinstance(value, Flag) else _ENUM if isinstance(value, Enum) else _OBJECT
    if isinstance(value, Exception):
        return _ERROR
    if is_record(cls) or isinstance(value, Enum):
        raise Fault(
            f"{cls.__name__} is not declared: annotate the function that returns it or takes it as its "
            f"input, or pass output={cls.__name__}"
        )
    kind = pydantic_kind(cls) or foreign_kind(cls)
    if kind is not None:
        return kind
    if isinstance(value, Effect):
        raise Fault(
            f"{value!r} is an effect, not its value (did you forget `await` or `yield from`?)"
        )
    raise Fault(cannot_be_saved(cls))


def _encode_object(value: Any, walk: Walk) -> list[Any]:
    try:
        fields = walk.types.fields_of(value)
    except ValueError as error:
        raise Fault(str(error)) from None
    return [value.__class__.__name__, _fields(_encode, fields, walk)]


def _decode_object(content: Any, walk: Walk) -> Any:
    name, fields = content
    record = record_of(walk.types.class_named(name, is_enum=False))
    return record.build(_fields(_decode, fields, walk))


def _encode_error(error: Exception, walk: Walk) -> list[Any]:
    cls = error.__class__
    name = name_of_error(cls)
    try:
        args, state = take_apart(error)
        again = put_together(error_named(name, walk.types.errors), args, state)
    except LookupError:
        raise Fault(
            f"{cls.__name__} is not declared: annotate the function that fails with it, "
            f"or pass error={cls.__name__}"
        ) from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise Fault(f"a {cls.__name__} cannot be rebuilt from its args: {problem}") from None
    if not is_same_error(again, error):
        raise Fault(f"a {cls.__name__} rebuilt from its args would be {again!r}")
    return [name, walk.at("args", _encode, args), _fields(_encode, state, walk)]


def _decode_error(content: Any, walk: Walk) -> Exception:
    name, args, state = content
    cls = error_named(name, walk.types.errors)
    return put_together(cls, walk.at("args", _decode, args), _decode(state, walk))


def _atom(tag: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> Kind:
    """Return the kind of values that contain no other values."""
    return Kind(tag, lambda value, _: encode(value), lambda content, _: decode(content))


def _collection(tag: str, cls: type[Any], encode: Convert, decode: Convert) -> Kind:
    """Return the kind of the values of a class that is called with a list of its items."""
    return Kind(tag, encode, lambda content, walk: cls(decode(content, walk)))


def _wrapper(tag: str, cls: type[Any], method: str) -> Kind:
    """Return the kind of the values of a class that contain one value, which a method returns."""
    call = f"{method}()"
    return Kind(
        tag,
        lambda value, walk: walk.at(call, _encode, getattr(value, method)()),
        lambda content, walk: cls(walk.at(call, _decode, content)),
    )


def _encode_path(value: PurePath) -> str:
    return encodable(str(value))


_ENUM: Kind = Kind(
    "$enum",
    lambda value, _: [value.__class__.__name__, value.name],
    lambda content, walk: walk.types.class_named(content[0], is_enum=True)[content[1]],
)
# A combination of flags may have no name.
_FLAG: Kind = Kind(
    "$flag",
    lambda value, walk: [value.__class__.__name__, walk.at("value", _encode, value.value)],
    lambda content, walk: walk.types.class_named(content[0], is_enum=True)(
        walk.at("value", _decode, content[1])
    ),
)
_OBJECT: Kind = Kind("$object", _encode_object, _decode_object)
_ERROR: Kind = Kind("$error", _encode_error, _decode_error)
_CUSTOM: Kind = Kind("$codec", _encode_custom, _decode_custom)
_SCALAR: Kind = Kind("$scalar", _encode_scalar, _decode_scalar)
_TABLE: Kind = _atom("$table", partial(_taken, take_table), build_table)

_KINDS: tuple[Kind, ...] = (
    _atom("$int", _encode_int, _decode_int),
    _atom("$float", repr, _decode_float),
    _atom("$bytes", lambda it: it, bytes_of),
    _atom("$datetime", encode_moment, partial(decode_moment, datetime)),
    _atom("$date", date.isoformat, date.fromisoformat),
    _atom("$time", encode_moment, partial(decode_moment, time)),
    _atom("$timedelta", lambda it: [it.days, it.seconds, it.microseconds], _decode_timedelta),
    _atom("$decimal", str, Decimal),
    _atom(
        "$fraction",
        lambda it: [*map(_encode_int, it.as_integer_ratio())],
        _decode_fraction,
    ),
    _atom("$uuid", str, UUID),
    _atom("$path", _encode_path, Path),
    _atom("$posix_path", _encode_path, PurePosixPath),
    _atom("$windows_path", _encode_path, PureWindowsPath),
    _atom("$nothing", lambda _: None, lambda _: Nothing),
    _wrapper("$some", Some, "unwrap"),
    _wrapper("$success", Success, "unwrap"),
    _wrapper("$failure", Failure, "failure"),
    _collection("$tuple", tuple, _encode_items, _decode),
    _collection("$set", set, _encode_set, _decode_set),
    _collection("$frozenset", frozenset, _encode_set, _decode_set),
    _collection("$dict", dict, _encode_pairs, _decode_pairs),
    _ENUM,
    _FLAG,
    _OBJECT,
    _ERROR,
    _CUSTOM,
    URL,
    SECRET,
    _SCALAR,
    _TABLE,
)

_BY_TAG: Mapping[str, Kind] = {kind.tag: kind for kind in _KINDS}
_BY_CLASS: Mapping[type, Kind] = {cls: _BY_TAG[tag] for cls, tag in TAGS.items()}
