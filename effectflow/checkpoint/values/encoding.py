"""Trees as bytes, and back."""

from __future__ import annotations

import zlib
from collections.abc import Callable
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
        tree = cbor2.load(source, semantic_decoders=_NO_TAGS)
    except (cbor2.CBORDecodeError, RecursionError, MemoryError) as error:
        raise MalformedValue("$", f"it is no CBOR: {error}") from error
    if source.read(1):
        raise MalformedValue("$", "something follows the CBOR data")
    return tree


class _NoTags(dict[int, Callable[..., Any]]):
    """What becomes of the tags of CBOR: trees have none. Some take a few bytes for gigabytes."""

    def __missing__(self, tag: int) -> Callable[..., Any]:
        return _refuse_tag


def _refuse_tag(*_: object) -> Any:
    import cbor2

    raise cbor2.CBORDecodeError("a saved value has no tags")


_NO_TAGS = _NoTags()


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
