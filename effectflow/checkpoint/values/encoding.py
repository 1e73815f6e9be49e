"""Trees as bytes, and back."""

from __future__ import annotations

from io import BytesIO

import orjson

from effectflow.checkpoint.values.known_types import MalformedValue
from effectflow.checkpoint.values.model import Tree

__all__ = ["decode_cbor", "decode_json", "encode_cbor", "encode_json"]


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
    return tree
