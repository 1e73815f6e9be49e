"""Trees as bytes, and back."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Any

import orjson

from effectflow.checkpoint.values.known_types import MalformedValue
from effectflow.checkpoint.values.model import Tree

__all__ = [
    "MAX_COMPACT_BYTES",
    "decode_cbor",
    "decode_compact",
    "decode_json",
    "encode_cbor",
    "encode_compact",
    "encode_json",
]

MAX_COMPACT_BYTES = 64 * 1024 * 1024
"""How much may come out of compact data: a few bytes can claim to be gigabytes."""


def encode_json(tree: Tree) -> bytes:
    """A tree as compact JSON."""
    return orjson.dumps(tree)


def decode_json(data: bytes) -> Tree:
    """The tree in JSON. Raises MalformedValue for anything else."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedValue("$", f"it is no JSON: {error}") from error


def encode_cbor(tree: Tree) -> bytes:
    """A tree as CBOR (RFC 8949)."""
    import cbor2

    return cbor2.dumps(tree)


def decode_cbor(data: bytes) -> Tree:
    """The tree in CBOR. Raises MalformedValue for anything else."""
    import cbor2

    source = BytesIO(data)
    try:
        tree = cbor2.load(source)
    except (cbor2.CBORDecodeError, RecursionError, MemoryError) as error:
        raise MalformedValue("$", f"it is no CBOR: {error}") from error
    if source.read(1):
        raise MalformedValue("$", "something follows the CBOR data")
    if any(reference in data for reference in _REFERENCES):
        _check_is_tree(tree)
    return tree


_REFERENCES = tuple(
    head + b"\x1d" for head in (b"\xd8", b"\xd9\0", b"\xda\0\0\0", b"\xdb" + bytes(7))
)
"""How CBOR may write the tag of a reference to an earlier value. Text may hold the same bytes."""


def _check_is_tree(tree: Any) -> None:
    """Refuse values that refer to one another: a few bytes of them take for ever to be written out."""
    seen: set[int] = set()
    todo = [tree]
    while todo:
        part = todo.pop()
        if part.__class__ is not list and part.__class__ is not dict:
            continue
        if id(part) in seen:
            raise MalformedValue("$", "one of its values is referred to from two places")
        seen.add(id(part))
        todo += part.values() if part.__class__ is dict else part


def encode_compact(tree: Tree) -> bytes:
    """A tree in few bytes: CBOR, compressed with zlib (RFC 1950)."""
    return zlib.compress(encode_cbor(tree), level=9)


def decode_compact(data: bytes) -> Tree:
    """The tree in compact data. Raises MalformedValue for anything else."""
    inflation = zlib.decompressobj()
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
    return decode_cbor(plain)
