"""A short digest of any plain value or data class, for comparing the arguments of steps."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values.known_types import KnownTypes
from effectflow.checkpoint.values.tree import to_tree

__all__ = ["digest_of"]


class _AnyTypes(KnownTypes):
    """Knows every class: a digest is compared and never read back."""

    def name_of(self, kind: type) -> str | None:
        from enum import Enum

        from effectflow.checkpoint.values.known_types import is_record

        return kind.__name__ if is_record(kind) or issubclass(kind, Enum) else None


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
    encoded = orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(encoded).hexdigest()[:16]
