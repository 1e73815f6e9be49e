"""The value model: what can be saved, as which plain data, and in which bytes."""

from effectflow.checkpoint.values.classes import KnownTypes
from effectflow.checkpoint.values.custom import NO_OPTIONS, Codec, ValueOptions, options_of
from effectflow.checkpoint.values.declared import dict_type, mismatch_of, of_type, union_of
from effectflow.checkpoint.values.encodings import (
    MAX_COMPACT_BYTES,
    MAX_PARTS,
    are_same,
    decode_cbor,
    decode_compact,
    decode_entry_tree,
    decode_json,
    digest_of,
    encode_arguments,
    encode_cbor,
    encode_compact,
    encode_json,
)
from effectflow.checkpoint.values.exceptions import safe_repr
from effectflow.checkpoint.values.plain import (
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_ITEMS,
    MalformedValue,
    Tree,
    from_tree,
    plain_json,
    to_tree,
)
from effectflow.checkpoint.values.rendering import plain_tree, render_arguments, render_tree
from effectflow.checkpoint.values.savable import check_savable

__all__ = [
    "MAX_COMPACT_BYTES",
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_ITEMS",
    "MAX_PARTS",
    "NO_OPTIONS",
    "Codec",
    "KnownTypes",
    "MalformedValue",
    "Tree",
    "ValueOptions",
    "are_same",
    "check_savable",
    "decode_cbor",
    "decode_compact",
    "decode_entry_tree",
    "decode_json",
    "dict_type",
    "digest_of",
    "encode_arguments",
    "encode_cbor",
    "encode_compact",
    "encode_json",
    "from_tree",
    "mismatch_of",
    "of_type",
    "options_of",
    "plain_json",
    "plain_tree",
    "render_arguments",
    "render_tree",
    "safe_repr",
    "to_tree",
    "union_of",
]
