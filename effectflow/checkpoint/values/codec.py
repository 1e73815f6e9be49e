"""Values as trees of plain data, and back: the same value, type for type.

Plain JSON data stays as it is. Any other value becomes an object with one key, its tag, such as
`{"$datetime": "2026-01-01T00:00:00+00:00"}`, so it can be read without knowing what to expect. The
table at the end of this module has one entry for each tag, and `TAGS` the classes with these tags.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.classes import KnownTypes, RecordClass, is_record, record_of
from effectflow.checkpoint.values.exceptions import (
    error_named,
    is_same_error,
    name_of_error,
    put_together,
    safe_repr,
    take_apart,
)
from effectflow.checkpoint.values.plain import (
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_ITEMS,
    SCALARS,
    KnownParts,
    MalformedValue,
    Tree,
    are_scalars,
    bytes_of,
    is_scalar,
    sorted_json,
)
from effectflow.checkpoint.values.tables import (
    build_scalar,
    build_table,
    is_numpy_scalar,
    name_of_table,
    take_scalar,
    take_table,
)
from effectflow.checkpoint.values.tags import SAVED_CLASSES, TAGS
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


class _Fault(Exception):
    """A problem with the part of a value at the path where the walk is."""


def _segment_of(key: object) -> str:
    """Return the path segment for the value of a key or index, or for the result of a method."""
    if isinstance(key, str) and key.removesuffix("()").isidentifier():
        return f".{key}"
    return f"[{key!r}]"


def _check_hashes(parts: Collection[Any]) -> None:
    """Raise _Fault for set items or dict keys that would take quadratic time to compare."""
    hashes = Counter(map(hash, parts))
    if len(hashes) < len(parts) and max(hashes.values()) > MAX_SAME_HASH:
        raise _Fault(f"more than {MAX_SAME_HASH} of its items have the same hash")


def encode(value: object, path: str, types: KnownTypes) -> Tree:
    """Return the tree of a value that is not plain data. Raises NotSerializable as `to_tree`."""
    walk = _Walk(types)
    try:
        return _encode(value, walk)
    except _Fault as fault:
        raise NotSerializable(path + walk.position(), str(fault)) from None


def decode(tree: Tree, path: str, types: KnownTypes, known: KnownParts | None = None) -> Any:
    """Return the value of any tree. Raises MalformedValue as `from_tree`."""
    walk = _Walk(types, known)
    try:
        return _decode(tree, walk)
    except _Fault as fault:
        raise MalformedValue(path + walk.position(), str(fault)) from None


class _Walk:
    """The state of encoding or decoding one value.

    Attributes:
        types: the declared classes.
        known: what was decoded before; None if the tree shares no parts with other ones.
        kinds: the kinds of the declared classes that were met.
        items: the number of items so far.
        path: the keys and indexes that lead to the current part, one for each level.
    """

    __slots__ = ("items", "kinds", "known", "path", "types")

    def __init__(self, types: KnownTypes, known: KnownParts | None = None) -> None:
        self.types = types
        self.known = known
        self.kinds: dict[type, _Kind] = {}
        self.items = 0
        self.path: list[object] = []

    def at(self, key: object, convert: _Convert, part: Any) -> Any:
        """Convert the part at this key, one level deeper."""
        self.path.append(key)
        converted = convert(part, self)
        self.path.pop()
        return converted

    def count(self, parts: Sized) -> None:
        """Count these items. Raises _Fault if the value has too many."""
        self.items += len(parts)
        if self.items > MAX_ITEMS:
            raise _Fault(
                f"with its {len(parts):,} items there are more than {MAX_ITEMS:,} in total"
            )

    def has_room_for(self, objects: list[dict[str, Any]]) -> bool:
        """Return whether a list of objects with these fields is within the limits, and count them."""
        items = self.items + len(objects) * (1 + len(objects[0]))
        if items > MAX_ITEMS or len(self.path) + 1 >= MAX_DEPTH:
            return False
        self.items = items
        return True

    def position(self) -> str:
        """Return the path as text."""
        return "".join(_segment_of(key) for key in self.path if key is not _KEY)


_KEY = object()
"""Takes the place of a key in the path while this key itself is converted."""

_Convert: TypeAlias = Callable[[Any, _Walk], Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the values of one kind are saved.

    Attributes:
        tag: the key of the object that they become.
        encode: returns the content of the tag. Raises _Fault.
        decode: returns the value of a content. May raise any exception for a malformed one.
    """

    tag: str
    encode: _Convert
    decode: _Convert


def _encode(value: Any, walk: _Walk) -> Any:
    cls = value.__class__
    kind = walk.kinds.get(cls)
    if kind is None and is_scalar(value):
        return value
    if len(walk.path) >= MAX_DEPTH:
        raise _Fault(f"it is nested more than {MAX_DEPTH} levels deep, or contains itself")
    if kind is not None:
        return {kind.tag: kind.encode(value, walk)}
    if cls is str:
        return _encodable(value)
    if cls is list:
        return _encode_items(value, walk)
    if cls is dict and _has_plain_keys(value):
        return _fields(_encode, value, walk)
    kind = _BY_CLASS.get(cls)
    if kind is None:
        kind = walk.kinds[cls] = _declared_kind(value, walk.types)
    return {kind.tag: kind.encode(value, walk)}


def _decode(tree: Any, walk: _Walk) -> Any:
    cls = tree.__class__
    if cls in SCALARS:
        return tree
    if len(walk.path) >= MAX_DEPTH:
        raise _Fault(f"it is nested more than {MAX_DEPTH} levels deep")
    known = walk.known
    if cls is list:
        return _decode_items(tree, walk) if known is None else _known_items(tree, walk, known)
    if cls is not dict:
        raise _Fault(f"a {cls.__name__} cannot be part of a saved value")
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


def _known_items(parts: list[Any], walk: _Walk, known: KnownParts) -> list[Any]:
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


def _decode_mapping(tree: dict[str, Any], walk: _Walk) -> Any:
    tag = next(iter(tree), "")
    kind = _BY_TAG.get(tag)
    if kind is None and _has_plain_keys(tree):
        return _fields(_decode, tree, walk)
    if kind is None or len(tree) > 1:
        raise _Fault(f"this version does not know the tag of {safe_repr([*tree]):.100}")
    try:
        return kind.decode(tree[tag], walk)
    except _Fault:
        raise
    except Exception as error:
        raise _Fault(f"it is not a valid {tag[1:]}: {error}") from None


def _has_plain_keys(mapping: Mapping[Any, Any]) -> bool:
    return all(key.__class__ is str and key[:1] != "$" for key in mapping)


def _items(convert: _Convert, parts: Collection[Any], walk: _Walk) -> list[Any]:
    walk.count(parts)
    out: list[Any] = []
    walk.path.append(None)
    for index, part in enumerate(parts):
        walk.path[-1] = index
        out.append(convert(part, walk))
    walk.path.pop()
    return out


_MANY = 10
"""The number of objects of one class from which they are converted together, field by field.

That takes about a third of the time: most fields have only numbers and texts, which stay as they are.
"""


def _encode_items(parts: Sequence[Any], walk: _Walk) -> list[Any]:
    objects = _fields_of_all(parts, walk) if len(parts) >= _MANY else None
    if objects is None or not walk.has_room_for(objects):
        return _items(_encode, parts, walk)
    encoded = _convert_columns(objects, _encode, are_scalars, walk)
    name = parts[0].__class__.__name__
    return [{_OBJECT.tag: [name, {**fields}]} for fields in encoded]


def _decode_items(parts: list[Any], walk: _Walk) -> list[Any]:
    record, objects = _fields_in_all(parts, walk) if len(parts) >= _MANY else _UNSURE
    if record is None or not walk.has_room_for(objects):
        return _items(_decode, parts, walk)
    return [*map(record.build, _convert_columns(objects, _decode, _have_scalars, walk))]


def _fields_of_all(values: Sequence[Any], walk: _Walk) -> list[dict[str, Any]] | None:
    """Return the fields of objects of one class; None for other values, and if unsure."""
    cls = values[0].__class__
    if {*map(type, values)} != {cls} or not walk.types.knows(cls):
        return None
    is_object = _declared_kind(values[0], walk.types) is _OBJECT
    return walk.types.fields_of_all(values) if is_object else None


def _fields_in_all(
    trees: list[Any], walk: _Walk
) -> tuple[RecordClass | None, list[dict[str, Any]]]:
    """Return the class of the objects in these trees, and their fields.

    Returns no class for other trees, and if unsure: for a tree that could be malformed.
    """
    first, tag = trees[0], _OBJECT.tag
    if first.__class__ is not dict or tag not in first or {*map(len, trees)} != {1}:
        return _UNSURE
    try:
        contents = [(name, fields) for name, fields in (tree[tag] for tree in trees)]
        names = {name for name, _ in contents}
        record = record_of(walk.types.class_named(contents[0][0], is_enum=False))
    except (LookupError, TypeError, ValueError):
        return _UNSURE
    every = [fields for _, fields in contents]
    is_sure = len(names) == 1 and {*map(type, every)} == {dict} and record.has_only_fields(every)
    return (record, every) if is_sure else _UNSURE


_UNSURE: tuple[None, list[dict[str, Any]]] = None, []


def _convert_columns(
    objects: list[dict[str, Any]],
    convert: _Convert,
    are_converted: Callable[[list[Any]], bool],
    walk: _Walk,
) -> list[dict[str, Any]]:
    """Return the converted fields of objects of one class, in the same dicts if that changes nothing.

    Most columns, that is, the values of one field in all objects, have only what `are_converted` accepts.
    """
    walk.path += None, None
    out = objects
    for name in objects[0]:
        column = [fields[name] for fields in objects]
        if are_converted(column):
            continue
        if out is objects:
            out = [{**fields} for fields in objects]
        walk.path[-1] = name
        for index, part in enumerate(column):
            walk.path[-2] = index
            out[index][name] = convert(part, walk)
    del walk.path[-2:]
    return out


def _have_scalars(column: list[Any]) -> bool:
    return SCALARS.issuperset(map(type, column))


def _fields(convert: _Convert, parts: Mapping[str, Any], walk: _Walk) -> dict[str, Any]:
    walk.count(parts)
    out: dict[str, Any] = {}
    path = walk.path
    path.append(None)
    for key, part in parts.items():
        path[-1] = key
        if not key.isascii():
            _encodable(key)
        # Most fields have such values, and a call for each would take most of the time.
        cls = part.__class__
        is_own = cls is bool or (cls is str and part.isascii())
        out[key] = part if is_own else convert(part, walk)
    path.pop()
    return out


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Fault(
            f"the text has a lone surrogate at {error.start}, which no encoding can hold: os.fsencode() "
            "returns the bytes of a file name, text.encode(errors='backslashreplace') those of other text"
        ) from None
    return text


def _encode_pairs(value: dict[Any, Any], walk: _Walk) -> list[Any]:
    walk.count(value)
    _check_hashes(value)
    return [
        [walk.at(_KEY, _encode, key), walk.at(key, _encode, part)] for key, part in value.items()
    ]


def _decode_pairs(content: Any, walk: _Walk) -> list[Any]:
    walk.count(content)
    pairs: list[Any] = []
    for encoded, part in content:
        key = walk.at(_KEY, _decode, encoded)
        pairs.append((key, walk.at(key, _decode, part)))
    _check_hashes([key for key, _ in pairs])
    return pairs


def _encode_set(value: Any, walk: _Walk) -> list[Any]:
    _check_hashes(value)
    # Equal sets have the same form.
    return sorted(_items(_encode, value, walk), key=sorted_json)


def _decode_set(content: Any, walk: _Walk) -> list[Any]:
    parts = _decode(content, walk)
    _check_hashes(parts)
    return parts


def _encode_int(value: int) -> str:
    if value.bit_length() > MAX_INT_BITS:
        raise _Fault(f"the integer has {value.bit_length():,} bits, more than {MAX_INT_BITS:,}")
    # Python refuses to write very long numbers in decimal digits, which takes quadratic time.
    return str(value) if value.bit_length() <= 4096 else hex(value)


def _decode_int(digits: str) -> int:
    if len(digits) > MAX_INT_BITS // 4 + len("-0x"):
        raise _Fault(f"the integer has {len(digits):,} digits")
    return int(digits, 16) if digits.removeprefix("-").startswith("0x") else int(digits)


def _decode_float(name: str) -> float:
    if name not in ("nan", "inf", "-inf"):
        raise _Fault(f"{name!r} is not the name of a float")
    return float(name)


def _decode_fraction(content: Any) -> Fraction:
    numerator, denominator = content
    return Fraction(_decode_int(numerator), _decode_int(denominator))


def _decode_timedelta(content: Any) -> timedelta:
    days, seconds, microseconds = content
    return timedelta(days, seconds, microseconds)


_PYDANTIC = "pydantic"
"""The name of the zones of the class that pydantic makes of an offset in text."""


def _encode_moment(value: datetime | time) -> str | list[Any]:
    """Return a datetime or time of day as text, or as a list of text, name of its zone, and fold."""
    zone, text = value.tzinfo, value.isoformat()
    if (zone is UTC or zone is None) and not value.fold:
        return text
    # A zone of pydantic exists only if pydantic is imported.
    pydantic: Any = sys.modules.get("pydantic_core")
    if pydantic is not None and isinstance(zone, pydantic.TzInfo):
        return [text, _PYDANTIC, value.fold]
    if isinstance(zone, ZoneInfo) and _is_named(zone):
        return [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]
    if zone is not None and repr(type(value).fromisoformat(text).tzinfo) != repr(zone):
        raise _Fault(
            f"its time zone {zone!r} is neither a plain offset nor what ZoneInfo gives for a name"
        )
    return [text, None, value.fold] if value.fold else text


def _is_named(zone: ZoneInfo) -> bool:
    """Return whether a zone is the one that its name means. A zone read from a file may have any name."""
    try:
        return bool(zone.key) and ZoneInfo(zone.key) is zone
    except (ZoneInfoNotFoundError, ValueError):
        return False


def _decode_moment(cls: type[datetime] | type[time], content: Any) -> datetime | time:
    text, name, fold = (content, None, 0) if isinstance(content, str) else content
    moment = cls.fromisoformat(text).replace(fold=fold)
    if name is None:
        return moment
    return moment.replace(tzinfo=_pydantic_zone(moment) if name == _PYDANTIC else ZoneInfo(name))


def _pydantic_zone(moment: datetime | time) -> tzinfo:
    from pydantic_core import TzInfo

    offset = moment.utcoffset()
    if offset is None or offset.microseconds:
        raise _Fault(f"pydantic has no zone for {moment}")
    return TzInfo(int(offset.total_seconds()))


def _encode_custom(value: Any, walk: _Walk) -> list[Any]:
    codec = walk.types.options.by_class[value.__class__]
    try:
        parts = codec.encode(value)
    except Exception as error:
        raise _Fault(f"the codec {codec.tag!r} raised {error!r}") from error
    return [codec.tag, walk.at(f"{codec.tag}()", _encode, parts)]


def _decode_custom(content: Any, walk: _Walk) -> Any:
    tag, parts = content
    codec = walk.types.options.by_tag.get(tag)
    if codec is None:
        raise _Fault(
            f"no codec has the tag {safe_repr(tag):.100}: Checkpoints(codecs=...) needs it"
        )
    decoded = walk.at(f"{tag}()", _decode, parts)
    value = codec.decode(decoded)
    if value.__class__ is not codec.kind:
        raise _Fault(f"the codec {tag!r} made {safe_repr(value):.100}, not a {codec.kind.__name__}")
    return value


_URLS = frozenset(
    [
        "Url",
        "MultiHostUrl",
        "AnyUrl",
        "AnyHttpUrl",
        "HttpUrl",
        "FileUrl",
        "FtpUrl",
        "WebsocketUrl",
        "AnyWebsocketUrl",
        "PostgresDsn",
        "CockroachDsn",
        "AmqpDsn",
        "RedisDsn",
        "MongoDsn",
        "KafkaDsn",
        "NatsDsn",
        "MySQLDsn",
        "MariaDBDsn",
        "ClickHouseDsn",
        "SnowflakeDsn",
    ]
)
_SECRETS = frozenset({"SecretStr", "SecretBytes"})


def _class_of_pydantic(name: object, names: Collection[str]) -> Any:
    """Return the class of pydantic that has one of these names. Raises LookupError for another name."""
    if name not in names:
        raise LookupError(f"{safe_repr(name):.100} is not known")
    import pydantic
    import pydantic_core

    found: Any = pydantic_core if name in ("Url", "MultiHostUrl") else pydantic
    return getattr(found, str(name))


def pydantic_kind(cls: type[Any]) -> _Kind | None:
    """Return the kind of the values of a class of pydantic that is not a model, or None."""
    name = cls.__name__
    if not cls.__module__.startswith("pydantic"):
        return None
    if name in _URLS and _class_of_pydantic(name, _URLS) is cls:
        return _URL
    return _SECRET if name in _SECRETS and _class_of_pydantic(name, _SECRETS) is cls else None


def foreign_kind(cls: type[Any]) -> _Kind | None:
    """Return the kind of the values of a class of numpy, pandas, polars or pyarrow; None for others."""
    if is_numpy_scalar(cls):
        return _SCALAR
    return None if name_of_table(cls) is None else _TABLE


def _encode_scalar(value: Any, walk: _Walk) -> list[Any]:
    dtype, item = _taken(take_scalar, value)
    return [dtype, walk.at("item()", _encode, item)]


def _decode_scalar(content: Any, walk: _Walk) -> Any:
    dtype, item = content
    return build_scalar(dtype, walk.at("item()", _decode, item))


def _taken(take: Callable[[Any], Any], value: Any) -> Any:
    try:
        return take(value)
    except ValueError as error:
        raise _Fault(str(error)) from error


def _encode_secret(value: Any, walk: _Walk) -> list[Any]:
    clear = value.get_secret_value()
    text = _encodable(clear) if isinstance(clear, str) else b64encode(clear).decode()
    try:
        return [value.__class__.__name__, walk.types.hide(text)]
    except ValueError as error:
        raise _Fault(str(error)) from None


def _decode_secret(content: Any, walk: _Walk) -> Any:
    name, hidden = content
    cls = _class_of_pydantic(name, _SECRETS)
    text = walk.types.reveal(hidden)
    return cls(text if name == "SecretStr" else b64decode(text, validate=True))


def _declared_kind(value: Any, types: KnownTypes) -> _Kind:
    """Return the kind of a value of a class that users define. Raises _Fault if it is not declared."""
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
        raise _Fault(
            f"{cls.__name__} is not declared: annotate the function that returns it or takes it as its "
            f"input, or pass output={cls.__name__}"
        )
    kind = pydantic_kind(cls) or foreign_kind(cls)
    if kind is not None:
        return kind
    if isinstance(value, Effect):
        raise _Fault(
            f"{value!r} is an effect, not its value (did you forget `await` or `yield from`?)"
        )
    raise _Fault(cannot_be_saved(cls))


def _encode_object(value: Any, walk: _Walk) -> list[Any]:
    try:
        fields = walk.types.fields_of(value)
    except ValueError as error:
        raise _Fault(str(error)) from None
    return [value.__class__.__name__, _fields(_encode, fields, walk)]


def _decode_object(content: Any, walk: _Walk) -> Any:
    name, fields = content
    record = record_of(walk.types.class_named(name, is_enum=False))
    return record.build(_fields(_decode, fields, walk))


def _encode_error(error: Exception, walk: _Walk) -> list[Any]:
    cls = error.__class__
    name = name_of_error(cls)
    try:
        args, state = take_apart(error)
        again = put_together(error_named(name, walk.types.errors), args, state)
    except LookupError:
        raise _Fault(
            f"{cls.__name__} is not declared: annotate the function that fails with it, "
            f"or pass error={cls.__name__}"
        ) from None
    except (TypeError, ValueError, AttributeError) as problem:
        raise _Fault(f"a {cls.__name__} cannot be rebuilt from its args: {problem}") from None
    if not is_same_error(again, error):
        raise _Fault(f"a {cls.__name__} rebuilt from its args would be {again!r}")
    return [name, walk.at("args", _encode, args), _fields(_encode, state, walk)]


def _decode_error(content: Any, walk: _Walk) -> Exception:
    name, args, state = content
    cls = error_named(name, walk.types.errors)
    return put_together(cls, walk.at("args", _decode, args), _decode(state, walk))


def _atom(tag: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> _Kind:
    """Return the kind of values that contain no other values."""
    return _Kind(tag, lambda value, _: encode(value), lambda content, _: decode(content))


def _collection(tag: str, cls: type[Any], encode: _Convert, decode: _Convert) -> _Kind:
    """Return the kind of the values of a class that is called with a list of its items."""
    return _Kind(tag, encode, lambda content, walk: cls(decode(content, walk)))


def _wrapper(tag: str, cls: type[Any], method: str) -> _Kind:
    """Return the kind of the values of a class that contain one value, which a method returns."""
    call = f"{method}()"
    return _Kind(
        tag,
        lambda value, walk: walk.at(call, _encode, getattr(value, method)()),
        lambda content, walk: cls(walk.at(call, _decode, content)),
    )


def _encode_path(value: PurePath) -> str:
    return _encodable(str(value))


_ENUM: _Kind = _Kind(
    "$enum",
    lambda value, _: [value.__class__.__name__, value.name],
    lambda content, walk: walk.types.class_named(content[0], is_enum=True)[content[1]],
)
# A combination of flags may have no name.
_FLAG: _Kind = _Kind(
    "$flag",
    lambda value, walk: [value.__class__.__name__, walk.at("value", _encode, value.value)],
    lambda content, walk: walk.types.class_named(content[0], is_enum=True)(
        walk.at("value", _decode, content[1])
    ),
)
_OBJECT: _Kind = _Kind("$object", _encode_object, _decode_object)
_ERROR: _Kind = _Kind("$error", _encode_error, _decode_error)
_CUSTOM: _Kind = _Kind("$codec", _encode_custom, _decode_custom)
_URL: _Kind = _Kind(
    "$url",
    lambda value, _: [value.__class__.__name__, str(value)],
    lambda content, _: _class_of_pydantic(content[0], _URLS)(content[1]),
)
_SECRET: _Kind = _Kind("$secret", _encode_secret, _decode_secret)
_SCALAR: _Kind = _Kind("$scalar", _encode_scalar, _decode_scalar)
_TABLE: _Kind = _atom("$table", partial(_taken, take_table), build_table)

_KINDS: tuple[_Kind, ...] = (
    _atom("$int", _encode_int, _decode_int),
    _atom("$float", repr, _decode_float),
    _atom("$bytes", lambda it: it, bytes_of),
    _atom("$datetime", _encode_moment, partial(_decode_moment, datetime)),
    _atom("$date", date.isoformat, date.fromisoformat),
    _atom("$time", _encode_moment, partial(_decode_moment, time)),
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
    _URL,
    _SECRET,
    _SCALAR,
    _TABLE,
)

_BY_TAG: Mapping[str, _Kind] = {kind.tag: kind for kind in _KINDS}
_BY_CLASS: Mapping[type, _Kind] = {cls: _BY_TAG[tag] for cls, tag in TAGS.items()}
