"""Whether two values are the same, told by their trees or by short digests of them."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, cast

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.known_types import KnownTypes
from effectflow.checkpoint.values.model import Tree
from effectflow.checkpoint.values.records import is_record
from effectflow.checkpoint.values.writing import to_tree

__all__ = ["are_same", "digest_of"]


class _AnyTypes(KnownTypes):
    """Knows every class: a digest is compared and never read back."""

    def name_of(self, kind: type) -> str | None:
        return kind.__name__ if issubclass(kind, Enum) or is_record(kind) else None


_ANY = _AnyTypes()


def digest_of(value: Any, *, path: str = "$") -> str:
    """Sixteen hex digits: equal for equal values, whatever the order of keys, in any process.

    Raises NotSerializable for what has no stable form, such as a function or a connection.
    """
    try:
        tree = to_tree(value, path=path, types=_ANY)
    except NotSerializable as error:
        raise NotSerializable(
            error.path,
            f"{error.reason}. The arguments of a step are compared by a resume, so they must be "
            "plain data or data classes: take anything else from the environment",
        ) from None
    return hashlib.sha256(_canonical(tree)).hexdigest()[:16]


def are_same(one: Tree, other: Tree) -> bool:
    """Whether two trees are those of the same value, type for type, whatever the order of keys.

    Python's `==` would take True, 1 and 1.0 for the same.
    """
    return _canonical(one) == _canonical(other)


def _canonical(tree: Tree) -> bytes:
    encoded = _encoded(tree)
    return _encoded(_in_order(tree)) if b'"$dict"' in encoded else encoded


def _in_order(tree: Any) -> Any:
    """The tree with the pairs of every mapping in an order of their own."""
    if isinstance(tree, list):
        return [_in_order(part) for part in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    parts = {key: _in_order(part) for key, part in cast("dict[str, Any]", tree).items()}
    if "$dict" in parts:
        parts["$dict"] = sorted(parts["$dict"], key=_encoded)
    return parts


def _encoded(tree: Any) -> bytes:
    return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)
