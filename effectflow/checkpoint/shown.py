"""Values as text of a bounded length, made in a time that is bounded as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

__all__ = ["repr_of", "shown"]

_LENGTH = 200


def shown(named: Mapping[str, object]) -> str:
    """Named values as a call would have them, cut off after 200 characters.

    Example:
        >>> shown({"name": "cap", "sizes": [1, 2]})
        "(name='cap', sizes=[1, 2])"
    """
    text = ""
    for piece in _joined(_named(named.items())):
        text += piece
        if len(text) > _LENGTH:
            return f"({text[:_LENGTH]}...)"
    return f"({text})"


def _named(items: Iterable[tuple[str, object]]) -> Iterator[Iterator[str]]:
    for name, value in items:
        yield _after(f"{name}=", value)


def _pieces(value: Any) -> Iterator[str]:
    """What `repr` gives, piece by piece: of a long list only the beginning is looked at."""
    kind = cast("type[Any]", type(value))
    if kind in (str, bytes):
        yield repr(value if len(value) <= _LENGTH else value[: _LENGTH + 1])
    elif kind is dict:
        yield "{"
        yield from _joined(_pair(key, part) for key, part in value.items())
        yield "}"
    elif kind in _BRACKETS and value:
        opening, closing = _BRACKETS[kind]
        yield opening
        yield from _joined(map(_pieces, value))
        yield ",)" if kind is tuple and len(value) == 1 else closing
    else:
        yield repr_of(value)


_BRACKETS = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})")}


def _pair(key: object, value: object) -> Iterator[str]:
    yield from _pieces(key)
    yield from _after(": ", value)


def _after(text: str, value: object) -> Iterator[str]:
    yield text
    yield from _pieces(value)


def _joined(parts: Iterable[Iterator[str]]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number:
            yield ", "
        yield from part


def repr_of(value: object) -> str:
    """What `repr` gives, also of what has none."""
    try:
        return repr(value)
    except Exception as problem:
        name = type(value).__name__
        return f"<{name}, whose __repr__ raised {type(problem).__name__}>"
