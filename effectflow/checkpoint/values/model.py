"""What every saved value is made of."""

from __future__ import annotations

from typing import TypeAlias, Union

__all__ = ["Tree"]

Tree: TypeAlias = Union[bool, int, float, str, "list[Tree]", "dict[str, Tree]", None]
"""Plain data, as JSON has it."""
