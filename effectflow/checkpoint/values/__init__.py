"""The value model: every value is a tree of plain data that says what it was, type for type."""

from effectflow.checkpoint.values.digest import are_same, digest_of
from effectflow.checkpoint.values.encoding import (
    MAX_COMPACT_BYTES,
    MAX_PARTS,
    decode_cbor,
    decode_compact,
    decode_entry_tree,
    decode_indented_json,
    decode_json,
    encode_cbor,
    encode_compact,
    encode_json,
)
from effectflow.checkpoint.values.known_types import KnownTypes, MalformedValue
from effectflow.checkpoint.values.model import Tree
from effectflow.checkpoint.values.reading import from_tree
from effectflow.checkpoint.values.walk import MAX_DEPTH, MAX_INT_BITS, MAX_ITEMS
from effectflow.checkpoint.values.writing import to_tree

__all__ = [
    "MAX_COMPACT_BYTES",
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_ITEMS",
    "MAX_PARTS",
    "KnownTypes",
    "MalformedValue",
    "Tree",
    "are_same",
    "decode_cbor",
    "decode_compact",
    "decode_entry_tree",
    "decode_indented_json",
    "decode_json",
    "digest_of",
    "encode_cbor",
    "encode_compact",
    "encode_json",
    "from_tree",
    "to_tree",
]
