"""The value model: what can be saved, as which plain data, and in which bytes."""

from effectflow.checkpoint.values.classes import NO_TYPES as NO_TYPES, KnownTypes as KnownTypes
from effectflow.checkpoint.values.custom import (
    NO_OPTIONS as NO_OPTIONS,
    Codec as Codec,
    ValueOptions as ValueOptions,
    options_of as options_of,
)
from effectflow.checkpoint.values.declared import (
    NOTHING_PASSED as NOTHING_PASSED,
    ReadableBy as ReadableBy,
    dict_type as dict_type,
    mismatch_of as mismatch_of,
    of_type as of_type,
    union_of as union_of,
)
from effectflow.checkpoint.values.encodings import (
    MAX_COMPACT_BYTES as MAX_COMPACT_BYTES,
    MAX_PARTS as MAX_PARTS,
    are_same as are_same,
    decode_cbor as decode_cbor,
    decode_compact as decode_compact,
    decode_entry_tree as decode_entry_tree,
    decode_json as decode_json,
    digest_of as digest_of,
    encode_arguments as encode_arguments,
    encode_cbor as encode_cbor,
    encode_compact as encode_compact,
    encode_json as encode_json,
    encode_without_long as encode_without_long,
    is_compared as is_compared,
    is_same_digest as is_same_digest,
    tree_digest as tree_digest,
)
from effectflow.checkpoint.values.exceptions import safe_repr as safe_repr
from effectflow.checkpoint.values.plain import (
    MAX_DEPTH as MAX_DEPTH,
    MAX_INT_BITS as MAX_INT_BITS,
    MAX_ITEMS as MAX_ITEMS,
    KnownParts as KnownParts,
    MalformedValue as MalformedValue,
    Tree as Tree,
    from_tree as from_tree,
    plain_json as plain_json,
    short_plain as short_plain,
    to_tree as to_tree,
    write_json as write_json,
)
from effectflow.checkpoint.values.rendering import (
    bounded as bounded,
    cut as cut,
    plain_tree as plain_tree,
    render_arguments as render_arguments,
    render_tree as render_tree,
)
from effectflow.checkpoint.values.savable import check_savable as check_savable
