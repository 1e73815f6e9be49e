"""Trees as bytes, and back."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.known_types import MalformedValue
from effectflow.checkpoint.values.model import Tree

__all__ = [
    "MAX_COMPACT_BYTES",
    "MAX_ENTRY_LEVELS",
    "MAX_PARTS",
    "decode_cbor",
    "decode_compact",
    "decode_entry_tree",
    "decode_indented_json",
    "decode_json",
    "encode_cbor",
    "encode_compact",
    "encode_json",
]

MAX_COMPACT_BYTES = 64 * 1024 * 1024
"""How much may come out of compact data: a few bytes can claim to be gigabytes."""


MAX_PARTS = 4_000_000
"""How many lists, maps, keys and items one tree may have: one of two bytes takes fifty in memory."""


_MAX_JSON_LEVELS = 254
"""How deep lists and maps may be nested in what orjson writes."""

MAX_ENTRY_LEVELS = 240
"""How deep they may be nested in an entry, which has to fit into a checkpoint and what shows that.

A value has three at most for each level of its own, of which it may have 64.
"""


def encode_json(tree: Tree) -> bytes:
    """A tree as compact JSON. Raises NotSerializable for one of more than MAX_PARTS."""
    return _bounded(orjson.dumps(tree), _parts_of_json)


def decode_json(data: bytes) -> Tree:
    """The tree in JSON. Raises MalformedValue for anything else."""
    _check_parts(data, _parts_of_json)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedValue("$", f"it is no JSON: {error}") from error


def decode_entry_tree(data: bytes) -> Tree:
    """The tree that `encode_json` or `encode_cbor` wrote for an entry, told apart by the first byte.

    Raises MalformedValue for anything else.
    """
    if data[:1] != b"{":
        tree = _decode_exact_cbor(data)
        if len(data) > MAX_ENTRY_LEVELS:
            _bounded_json(tree)
        return tree
    tree = decode_json(data)
    is_flat = data.count(b"[") + data.count(b"{") <= MAX_ENTRY_LEVELS
    if (orjson.dumps(tree) if is_flat else _bounded_json(tree)) != data:
        # A key that is there twice, blanks, another way to write a number.
        raise MalformedValue("$", "it is not in the form that entries are written in")
    return tree


def _bounded_json(tree: Tree) -> bytes:
    """The JSON of a tree. Raises MalformedValue for one that has more than MAX_ENTRY_LEVELS."""
    spare = _MAX_JSON_LEVELS - MAX_ENTRY_LEVELS
    for _ in range(spare):
        tree = [tree]
    try:
        return orjson.dumps(tree)[spare:-spare]
    except TypeError as error:
        reason = f"its lists and maps are nested more than {MAX_ENTRY_LEVELS} deep"
        raise MalformedValue("$", reason) from error


def decode_indented_json(data: bytes) -> Tree:
    """The tree in JSON for people. Raises MalformedValue for any other, and for a key in it twice.

    Of two values of one key each reader would believe another, whatever a digest says.
    """
    tree = decode_json(data)
    try:
        json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise MalformedValue("$", f"it is no JSON of ours: {error}") from error
    return tree


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is there twice")
    return content


def encode_cbor(tree: Tree) -> bytes:
    """A tree as CBOR (RFC 8949). Raises NotSerializable for one of more than MAX_PARTS."""
    import cbor2

    return _bounded(cbor2.dumps(tree), _parts_of_cbor)


def decode_cbor(data: bytes) -> Tree:
    """The tree in CBOR. Raises MalformedValue for anything else."""
    import cbor2

    _check_parts(data, _parts_of_cbor)
    source = BytesIO(data)
    try:
        # Lists as keys could all have one hash, which takes quadratic time.
        tree = cbor2.load(source, semantic_decoders=_NO_TAGS, strict_hashable_types=True)
    except (cbor2.CBORDecodeError, RecursionError, MemoryError) as error:
        raise MalformedValue("$", f"it is no CBOR: {error}") from error
    if source.read(1):
        raise MalformedValue("$", "something follows the CBOR data")
    return tree


def _decode_exact_cbor(data: bytes) -> Tree:
    """The tree that `encode_cbor` wrote. Raises MalformedValue for anything else."""
    tree = decode_cbor(data)
    try:
        text = orjson.dumps(tree)
    except TypeError as error:
        raise MalformedValue("$", f"it is no plain data: {error}") from error
    if encode_cbor(tree) != data:
        # A key that is there twice, or another way to write a number.
        raise MalformedValue("$", "it is not in the form that trees are written in")
    # orjson writes null for NaN and infinities. cbor2 begins them with this byte, which little else has.
    if b"\xf9" in data and orjson.loads(text) != tree:
        raise MalformedValue("$", "it has a float that is not finite")
    return tree


class _NoTags(dict[int, Callable[..., Any]]):
    """What becomes of the tags of CBOR: trees have none. Some take a few bytes for gigabytes."""

    def __missing__(self, tag: int) -> Callable[..., Any]:
        return _refuse_tag


def _refuse_tag(*_: object) -> Any:
    import cbor2

    raise cbor2.CBORDecodeError("a saved value has no tags")


_NO_TAGS = _NoTags()


def _bounded(data: bytes, parts_of: Callable[[bytes], int]) -> bytes:
    try:
        _check_parts(data, parts_of)
    except MalformedValue as error:
        raise NotSerializable(error.path, error.reason) from None
    return data


def _check_parts(data: bytes, parts_of: Callable[[bytes], int]) -> None:
    """Refuse what would take much memory when decoded. A part has one byte at least."""
    if len(data) > MAX_PARTS and parts_of(data) > MAX_PARTS:
        raise MalformedValue("$", f"it has more than {MAX_PARTS:,} lists, maps, keys and items")


def _parts_of_json(data: bytes) -> int:
    count = _count_marks(data)
    if count <= MAX_PARTS:
        return count
    # Text may hold the same marks, as that of a table does.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * MAX_PARTS:
        return count
    return _count_marks(_JSON_TEXT.sub(b"", unescaped))


_JSON_TEXT = re.compile(rb'"[^"]*"?')


def _count_marks(data: bytes) -> int:
    return sum(data.count(mark) for mark in (b"[", b"{", b":", b","))


def _parts_of_cbor(data: bytes) -> int:
    """How many parts begin in CBOR, in maps and lists as well; no more are counted than needed."""
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
    """From the first byte of a part to the next part; 0 for a text, whose length comes first."""
    kind, argument = head >> 5, head & 31
    is_text = kind in (2, 3)
    if 24 <= argument <= 27:
        return 0 if is_text else 1 + (1 << argument - 24)
    return 1 + argument if is_text and argument < 24 else 1


_CBOR_STEPS = tuple(_cbor_step(head) for head in range(256))


def encode_compact(tree: Tree, *, dictionary: bytes = b"") -> bytes:
    """A tree in few bytes: CBOR, compressed with zlib (RFC 1950).

    A preset dictionary, of what such trees have in common, makes a short one much shorter.
    """
    deflation = zlib.compressobj(9, zdict=dictionary) if dictionary else zlib.compressobj(9)
    return deflation.compress(encode_cbor(tree)) + deflation.flush()


def decode_compact(data: bytes, *, dictionary: bytes = b"") -> Tree:
    """The tree in compact data, with this dictionary or without one.

    Raises MalformedValue for anything else.
    """
    inflation = zlib.decompressobj(zdict=dictionary)
    try:
        plain = inflation.decompress(data, MAX_COMPACT_BYTES)
    except zlib.error as error:
        raise MalformedValue("$", f"it is no compressed data: {error}") from error
    if inflation.unconsumed_tail:
        raise MalformedValue("$", f"it holds more than {MAX_COMPACT_BYTES:,} bytes")
    if not inflation.eof:
        raise MalformedValue("$", "it is cut off")
    if inflation.unused_data:
        raise MalformedValue("$", "something follows the compressed data")
    return _decode_exact_cbor(plain)
