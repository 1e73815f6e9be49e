"""Values as text of a bounded length, made in a time that is bounded as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

__all__ = ["repr_of", "shown"]

_LENGTH = 200


def shown(named: Mapping[str, object]) -> str:
    """Named values as a call would have them, cut off after 200 characters.

    Example:
        >>> shown({"name": "cap", "sizes": [1, 2]})
        "(name='cap', sizes=[1, 2])"
    """
    pieces: list[str] = []
    room = _LENGTH
    for name, value in named.items():
        room = _add(pieces, f", {name}=" if pieces else f"{name}=", room)
        room = _show(value, pieces, room)
        if room < 0:
            return f"({''.join(pieces)[:_LENGTH]}...)"
    return f"({''.join(pieces)})"


def _add(pieces: list[str], piece: str, room: int) -> int:
    pieces.append(piece)
    return room - len(piece)


def _show(value: Any, pieces: list[str], room: int) -> int:
    """Add what `repr` gives, and give how many characters there is room for yet.

    Of a long list only the beginning is looked at.
    """
    kind = cast("type[Any]", type(value))
    if kind in (str, bytes):
        return _add(pieces, repr(value[: _LENGTH + 1]), room)
    if kind is dict:
        return _show_all(value.items(), "{", "}", _show_pair, pieces, room)
    if kind in _BRACKETS and value:
        opening, closing = _BRACKETS[kind]
        if kind is tuple and len(value) == 1:
            closing = ",)"
        return _show_all(value, opening, closing, _show, pieces, room)
    return _add(pieces, repr_of(value), room)


_BRACKETS = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})")}


def _show_pair(pair: tuple[object, object], pieces: list[str], room: int) -> int:
    key, value = pair
    return _show(value, pieces, _add(pieces, ": ", _show(key, pieces, room)))


def _show_all(
    parts: Iterable[Any],
    opening: str,
    closing: str,
    show: Callable[[Any, list[str], int], int],
    pieces: list[str],
    room: int,
) -> int:
    room = _add(pieces, opening, room)
    for number, part in enumerate(parts):
        if room < 0:
            return room
        if number:
            room = _add(pieces, ", ", room)
        room = show(part, pieces, room)
    return _add(pieces, closing, room)


def repr_of(value: object) -> str:
    """What `repr` gives, also of what has none."""
    try:
        return repr(value)
    except Exception as problem:
        name = type(value).__name__
        return f"<{name}, whose __repr__ raised {type(problem).__name__}>"
