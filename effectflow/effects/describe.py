"""An effect as text: the tree of what it would do, so that one that was never run can be seen."""

from __future__ import annotations

from typing import Any

__all__ = ["describe"]

_DEPTH = 6


def describe(effect: Any, depth: int = _DEPTH) -> str:
    """The tree of an effect on one line, down to a bounded depth."""
    if depth == 0:
        return "..."
    slots: tuple[str, ...] = effect.__class__.__slots__
    parts = [describe(effect.source, depth - 1)] if "source" in slots else []
    parts += [_name(getattr(effect, slot)) for slot in slots if slot != "source"]
    return f"{effect.__class__.__name__}({', '.join(parts)})"


def _name(part: Any) -> str:
    """A function by its name, anything else by a bounded repr."""
    name = getattr(part, "__qualname__", None)
    if isinstance(name, str):
        return name
    text = repr(part)
    return text if len(text) <= 60 else f"{text[:57]}..."
