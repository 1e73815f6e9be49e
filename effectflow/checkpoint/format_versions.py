"""The version of the format that entries are written in, and how those of older versions are read.

A journal says its version in its first entry, and again where a newer effectflow goes on with it. A saved
checkpoint says that of the entries in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Migration", "format_version", "migrated"]

Migration: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the plain data of one entry in some version to that in the next. Pure; `format` stays."""

MIGRATIONS: tuple[Migration, ...] = ()
"""The first leads from version 1 to 2, and so on. What stands here is never changed."""


def format_version() -> int:
    """The version that this effectflow writes, and the newest that it reads."""
    return len(MIGRATIONS) + 1


def migrated(tree: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """An entry of some version as the present one would have written it."""
    for migrate in MIGRATIONS[version - 1 :]:
        tree = migrate(tree)
    return tree
