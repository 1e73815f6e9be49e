"""What every saved value is made of."""

from __future__ import annotations

from typing import TypeAlias, Union

__all__ = ["Tree"]

Tree: TypeAlias = Union[None, bool, int, float, str, "list[Tree]", "dict[str, Tree]"]
"""Plain data, as JSON has it."""
