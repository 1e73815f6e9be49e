"""Trees as bytes and back; and the canonical JSON of values, for digests and previews of arguments."""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from hashlib import sha256
from io import BytesIO
from typing import Any

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.classes import KnownTypes, is_record, record_of
from effectflow.checkpoint.values.custom import NO_OPTIONS, ValueOptions
from effectflow.checkpoint.values.plain import (
    SCALARS,
    MalformedValue,
    Tree,
    base64_json,
    plain_json,
    sorted_json,
    to_tree,
    write_json,
)

MAX_PARTS = 4_000_000
"""The number of lists, maps, keys and items in one tree. A part of two bytes takes fifty in memory."""

MAX_ENTRY_LEVELS = 240
"""The number of levels that lists and maps of an entry may be nested.

A value needs at most three for each of its own levels. orjson writes 254 levels, and an entry must fit
into a checkpoint.
"""

MAX_COMPACT_BYTES = 64 * 1024 * 1024
"""The maximum size of decompressed data: a few compressed bytes can expand to gigabytes."""


def encode_json(tree: Tree) -> bytes:
    """Return a tree as compact JSON. Raises NotSerializable if it has more than MAX_PARTS."""
    data = write_json(tree)
    return data if len(data) <= MAX_PARTS else _checked(data, _parts_of_json)


def encode_without_long(tree: Tree, most: int) -> tuple[bytes, int]:
    """Return `encode_json` with null for bytes of more than `most`, and the length of these in JSON."""
    left_out = 0

    def write(data: object) -> object:
        nonlocal left_out
        if not isinstance(data, bytes) or len(data) <= most:
            return base64_json(data)
        left_out += len(data) * 4 // 3
        return None

    data = orjson.dumps(tree, default=write)
    return data if len(data) <= MAX_PARTS else _checked(data, _parts_of_json), left_out


def tree_digest(tree: Tree) -> str:
    """Return the SHA-256 of saved data, in hex."""
    return sha256(encode_json(tree)).hexdigest()


def decode_json(data: bytes) -> Tree:
    """Return the tree in JSON. Raises MalformedValue for anything else."""
    if len(data) > MAX_PARTS:
        _check_parts(data, _parts_of_json)
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedValue("$", f"it is not JSON: {error}") from error
    has_bytes = _DOLLAR in data and (b'"$bytes"' in data or b'"$table"' in data)
    return _with_bytes(tree) if has_bytes else tree


_DOLLAR = ord("$")
"""Most JSON has none, and a byte is found much faster than several."""


def _with_bytes(tree: Any) -> Any:
    """Return a tree of JSON with the bytes that JSON has as base64."""
    if tree.__class__ is list:
        return [part if part.__class__ in SCALARS else _with_bytes(part) for part in tree]
    if tree.__class__ is not dict:
        return tree
    if len(tree) == 1:
        # What is not base64 is left to the reader of the value, who says where it is.
        with suppress(ValueError):
            match tree:
                case {"$bytes": str(text)}:
                    return {"$bytes": _from_base64(text)}
                case {"$table": [name, shape, str(text), *more]}:
                    return {"$table": [name, shape, _from_base64(text), *more]}
                case _:
                    pass
    return {
        key: part if part.__class__ in SCALARS else _with_bytes(part) for key, part in tree.items()
    }


def _from_base64(text: str) -> bytes:
    # In pieces, because one call lets no other thread run.
    starts = range(0, len(text), _PIECE)
    return b"".join(a2b_base64(text[at : at + _PIECE], strict_mode=True) for at in starts)


_PIECE = 1 << 20


def encode_cbor(tree: Tree) -> bytes:
    """Return a tree as CBOR (RFC 8949). Raises NotSerializable if it has more than MAX_PARTS."""
    import cbor2

    return _checked(cbor2.dumps(tree), _parts_of_cbor)


def decode_cbor(data: bytes) -> Tree:
    """Return the tree in CBOR. Raises MalformedValue for anything else."""
    import cbor2

    _check_parts(data, _parts_of_cbor)
    source = BytesIO(data)
    try:
        # Lists as keys could all have one hash, which takes quadratic time.
        tree = cbor2.load(source, semantic_decoders=_NO_TAGS, strict_hashable_types=True)
    except (cbor2.CBORDecodeError, RecursionError, MemoryError) as error:
        raise MalformedValue("$", f"it is not CBOR: {error}") from error
    if source.read(1):
        raise MalformedValue("$", "more data follows the CBOR data")
    return tree


def encode_compact(tree: Tree, *, dictionary: bytes = b"") -> bytes:
    """Return a tree as CBOR, compressed with zlib (RFC 1950).

    A preset dictionary of text that such trees share makes short data much shorter.
    """
    deflation = zlib.compressobj(9, zdict=dictionary) if dictionary else zlib.compressobj(9)
    return deflation.compress(encode_cbor(tree)) + deflation.flush()


def decode_compact(data: bytes, *, dictionary: bytes = b"") -> Tree:
    """Return the tree in compact data, with this dictionary or without one.

    Raises MalformedValue for anything else, and for more than MAX_COMPACT_BYTES.
    """
    inflation = zlib.decompressobj(zdict=dictionary)
    try:
        plain = inflation.decompress(data, MAX_COMPACT_BYTES)
    except zlib.error as error:
        raise MalformedValue("$", f"it is not compressed data: {error}") from error
    if inflation.unconsumed_tail:
        raise MalformedValue("$", f"it holds more than {MAX_COMPACT_BYTES:,} bytes")
    if not inflation.eof:
        raise MalformedValue("$", "it is cut off")
    if inflation.unused_data:
        raise MalformedValue("$", "more data follows the compressed data")
    return decode_cbor(plain)


def decode_entry_tree(data: bytes) -> Tree:
    """Return the tree of an entry in JSON or CBOR, distinguished by the first byte.

    Raises MalformedValue for anything else, and for more than MAX_ENTRY_LEVELS.
    """
    if data[:1] == b"{":
        tree = decode_json(data)
        if len(data) <= _SHORT or _has_few(b"[{", data):
            return tree
    else:
        tree = decode_cbor(data)
    nested = tree
    for _ in range(_MAX_JSON_LEVELS - MAX_ENTRY_LEVELS):
        nested = [nested]
    try:
        shape = orjson.dumps(nested, default=_mark_bytes)
    except TypeError as error:
        reason = f"it is nested more than {MAX_ENTRY_LEVELS} deep, or is not plain data: {error}"
        raise MalformedValue("$", reason) from error
    if shape.count(_BYTES) > len(_PLACES_OF_BYTES.findall(shape)):
        raise MalformedValue("$", "it has bytes that are no part of a value")
    return tree


_SHORT = 2 * MAX_ENTRY_LEVELS
"""The bytes of JSON that has at most that many levels, because each takes two brackets."""

_MAX_JSON_LEVELS = 254
"""The number of levels that orjson writes."""


def _has_few(marks: bytes, data: bytes) -> bool:
    """Return whether data has at most MAX_ENTRY_LEVELS of some marks."""
    if len(data) < _LONG:
        return sum(map(data.count, marks)) <= MAX_ENTRY_LEVELS
    # `find` is several times as fast as `count`, and long data with few marks is one long text.
    left = MAX_ENTRY_LEVELS
    for mark in marks:
        position = data.find(mark)
        while position >= 0:
            left -= 1
            if left < 0:
                return False
            position = data.find(mark, position + 1)
    return True


_BYTES = b"\0"
"""Marks where a tree has bytes. No text in JSON contains it."""

_PLACES_OF_BYTES = re.compile(rb'"\$bytes":\0|"\$table":\["[^"]*",\[[\d,]*\],\0')


def _mark_bytes(part: object) -> orjson.Fragment:
    if not isinstance(part, bytes):
        raise TypeError(f"a {type(part).__name__}")
    return orjson.Fragment(_BYTES)


def _refuse_tag(*_: object) -> Any:
    import cbor2

    raise cbor2.CBORDecodeError("a saved value has no tags")


_NO_TAGS: Mapping[int, Callable[..., Any]] = defaultdict(lambda: _refuse_tag)
"""The decoders of CBOR tags. Trees have no tags, and some expand a few bytes to gigabytes."""


def _checked(data: bytes, parts_of: Callable[[bytes], int]) -> bytes:
    try:
        _check_parts(data, parts_of)
    except MalformedValue as error:
        raise NotSerializable(error.path, error.reason) from None
    return data


def _check_parts(data: bytes, parts_of: Callable[[bytes], int]) -> None:
    """Reject data that would take too much memory when decoded. A part takes at least one byte."""
    if len(data) > MAX_PARTS and parts_of(data) > MAX_PARTS:
        raise MalformedValue("$", f"it has more than {MAX_PARTS:,} lists, maps, keys and items")


def _parts_of_json(data: bytes) -> int:
    if _has_few(b"[{:,", data):
        return 0
    count = _count_marks(data)
    if count <= MAX_PARTS:
        return count
    # Text may contain the same marks, as a table does. Between many texts there are many marks.
    return _count_marks(_JSON_TEXT.sub(b"", data, count=MAX_PARTS + 2))


_JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def _count_marks(data: bytes) -> int:
    # `count` would take a pass for each mark, and is slower in each.
    return len(data) - len(data.translate(None, b"[{:,"))


def _parts_of_cbor(data: bytes) -> int:
    """Return the number of parts, or one of more than MAX_PARTS."""
    position = parts = 0
    while position < len(data) and parts <= MAX_PARTS:
        step = _CBOR_STEPS[data[position]]
        if not step:
            end = position + 1 + (1 << (data[position] & 3))
            step = end - position + int.from_bytes(data[position + 1 : end])
        position += step
        parts += 1
    return parts


def _cbor_step(head: int) -> int:
    """Return the length of a part by its first byte, without its items; 0 if the next bytes say it."""
    kind, argument = head >> 5, head & 31
    is_text = kind in (2, 3)
    if 24 <= argument <= 27:
        return 0 if is_text else 1 + (1 << argument - 24)
    return 1 + argument if is_text and argument < 24 else 1


_CBOR_STEPS = tuple(map(_cbor_step, range(256)))


class _AnyTypes(KnownTypes):
    """Knows every class, because canonical JSON is only compared. Omits fields with their default."""

    def knows(self, kind: type) -> bool:
        return issubclass(kind, Enum) or is_record(kind)

    def fields_of(self, value: Any) -> dict[str, Any]:
        return record_of(value.__class__).take_changed(value)

    def fields_of_all(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        return record_of(values[0].__class__).take_all_changed(values)

    def hide(self, text: str) -> str:
        # Another encryption key must not change the digest.
        super().hide("")
        return text


_ANY_TYPES = _AnyTypes()


def digest_of(value: Any, *, path: str = "$", options: ValueOptions = NO_OPTIONS) -> str:
    """Return a digest of 16 hex digits that is equal for equal values, in any process.

    The order of keys, and fields of records that equal their defaults, make no difference. So a field
    with a default can be added to a class without changing the digests of earlier values.

    Raises NotSerializable, with the path of the part, for what has no stable form, such as a function
    or a connection.
    """
    return sha256(_canonical_json(value, path, options)).hexdigest()[:16]


def encode_arguments(
    bound: Mapping[str, object],
    options: ValueOptions = NO_OPTIONS,
    known: Collection[int] = (),
    before: object = None,
    *,
    path: str,
) -> tuple[str, str]:
    """Return the digest of named arguments, as `digest_of`, and a preview for `render_arguments`.

    If there are several, and their JSON is long, each has a digest of its own: see `is_same_digest`.

    Parameters:
        known: the `id`s of arguments that need not be compared. If there is one, nothing is previewed.
        before: the output of the step before. The preview of long arguments leaves it out, because the
            journal has it already; it is empty if there are no others.

    The preview is the beginning of the JSON that the digest is taken of: 80 characters, and "..." if
    there is more. Raises NotSerializable as `digest_of`.

    Example:
        >>> encode_arguments({"item": "cap", "n": 2}, path="charge")[1]
        '{"item":"cap","n":2}'
    """
    if known and not {id(part) for part in bound.values()}.isdisjoint(known):
        return _digest_of_each(bound, options, known, path), ""
    # Plain data has no secrets.
    data = shown = plain_json(bound, orjson.OPT_SORT_KEYS)
    if data is None or shown is None:
        data = _canonical_json_of_other(bound, path, options)
        shown = data if data.find(b'"$secret"') < 0 else sorted_json(_masked(orjson.loads(data)))
    text = shown[:_PREVIEW_BYTES].decode("utf-8", "ignore")
    preview = text if len(text) <= PREVIEW else text[:PREVIEW] + "..."
    if len(text) > PREVIEW and before is not None and any(one is before for one in bound.values()):
        marked = {name: "..." if one is before else one for name, one in bound.items()}
        preview = encode_arguments(marked, options, path=path)[1] if len(bound) > 1 else ""
    if len(data) >= _LONG and len(bound) > 1:
        return _digest_of_each(bound, options, (), path), preview
    return sha256(data).hexdigest()[:16], preview


_LONG = 8192
"""The size of the JSON of arguments, in bytes, from which each has a digest of its own."""

_NOT_COMPARED = "*"
"""Takes the place of the digest of an argument that is not compared."""


def _digest_of_each(
    bound: Mapping[str, object], options: ValueOptions, known: Collection[int], path: str
) -> str:
    return ".".join(
        _NOT_COMPARED if id(part) in known else digest_of(part, path=path, options=options)
        for _, part in sorted(bound.items())
    )


def is_same_digest(recorded: str, current: str) -> bool:
    """Return whether two digests of `encode_arguments` are equal, as far as they are compared."""
    if _NOT_COMPARED not in current:
        return recorded == current
    pairs = zip(recorded.split("."), current.split("."), strict=False)
    is_same = all(one == other or other == _NOT_COMPARED for one, other in pairs)
    return is_same and recorded.count(".") == current.count(".")


def is_compared(digest: str) -> bool:
    """Return whether a digest of `encode_arguments` is that of all arguments."""
    return _NOT_COMPARED not in digest


PREVIEW = 80
"""The number of characters in a preview of arguments."""

_PREVIEW_BYTES = 4 * (PREVIEW + 1)
"""Enough for a preview, and one more character: none takes more than four bytes."""


def _masked(tree: Tree) -> Tree:
    """Return a tree without the text of its secrets."""
    if isinstance(tree, list):
        return [_masked(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: "**********" if key == "$secret" else _masked(tree[key]) for key in tree}


def are_same(one: Tree, other: Tree) -> bool:
    """Return whether two trees represent the same value, type for type, in any order of keys.

    Python's `==` would not distinguish True, 1 and 1.0.
    """
    return _canonical_tree(one) == _canonical_tree(other)


def _canonical_json(value: object, path: str, options: ValueOptions) -> bytes:
    data = plain_json(value, orjson.OPT_SORT_KEYS)
    return _canonical_json_of_other(value, path, options) if data is None else data


def _canonical_json_of_other(value: object, path: str, options: ValueOptions) -> bytes:
    try:
        types = _ANY_TYPES if options is NO_OPTIONS else _AnyTypes(options=options)
        return _canonical_tree(to_tree(value, path=path, types=types))
    except NotSerializable as error:
        raise NotSerializable(
            error.path,
            f"{error.reason}. The arguments of a step are compared by a resume, so they must be plain "
            "data or data classes: take anything else from the environment",
        ) from None


def _canonical_tree(tree: Tree) -> bytes:
    data = sorted_json(tree)
    return sorted_json(_with_sorted_pairs(tree)) if b'"$dict"' in data else data


def _with_sorted_pairs(tree: Tree) -> Tree:
    if isinstance(tree, list):
        return [_with_sorted_pairs(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    parts = {key: _with_sorted_pairs(part) for key, part in tree.items()}
    pairs = parts.get("$dict")
    if isinstance(pairs, list):
        pairs.sort(key=sorted_json)
    return parts
