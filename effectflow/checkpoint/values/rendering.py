"""Trees as text for people, much like the `repr` of values, and as the plain data of other programs."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import takewhile
from typing import Any, cast

import orjson

from effectflow.checkpoint.values.encodings import PREVIEW
from effectflow.checkpoint.values.plain import Tree


def render_arguments(preview: str) -> str:
    """Return a preview of `encode_arguments` as text for people. Never fails on damaged text.

    Example:
        >>> render_arguments('{"item":"cap","n":2}')
        "(item='cap', n=2)"
        >>> render_arguments('{"order":{"$object":["Order",{"id":1}]}}')
        '(order=Order(id=1))'
    """
    text = preview[: PREVIEW + len("...")]
    arguments, is_whole = _parsed(text)
    if isinstance(arguments, dict):
        text = f"({_render_fields(arguments)})"
        if not is_whole:
            # Nothing says that the open ends are complete.
            text = text.rstrip(")]}'\"") + "..."
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)


def _parsed(text: str) -> tuple[Tree, bool]:
    """Return the longest beginning of JSON that can be completed, and whether it is all of it."""
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(text), True
    text = text.removesuffix("...")
    for end in range(len(text), 0, -1):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text[:end] + _closing(text[:end])), False
    return None, False


def _closing(text: str) -> str:
    """Return the quotes and brackets that complete truncated JSON."""
    marks, quote, _ = re.sub(r'"(?:[^"\\]|\\.)*"', "", text).partition('"')
    closing: list[str] = []
    for mark in marks:
        if mark in "[{":
            closing.append("]" if mark == "[" else "}")
        elif mark in "]}" and closing:
            closing.pop()
    return quote + "".join(reversed(closing))


def render_tree(tree: Tree) -> str:
    """Return a tree as text for people, much like the `repr` of its value.

    Example:
        >>> render_tree([{"$object": ["Order", {"id": 1, "items": {"$tuple": ["cap"]}}]}])
        "[Order(id=1, items=('cap',))]"
    """
    if isinstance(tree, list):
        return f"[{_render_items(tree)}]"
    if not isinstance(tree, dict):
        return repr(tree)
    tag = next(iter(tree), "")
    if tag in _RENDERERS:
        with suppress(LookupError, TypeError, AttributeError):
            return _RENDERERS[tag](tree[tag])
    if tag.startswith("$"):
        return f"{_CLASSES.get(tag, tag[1:])}({render_tree(tree[tag])})"
    return f"{{{_render_pairs(tree.items())}}}"


_CLASSES = {
    "$decimal": "Decimal",
    "$fraction": "Fraction",
    "$uuid": "UUID",
    "$path": "Path",
    "$posix_path": "PurePosixPath",
    "$windows_path": "PureWindowsPath",
    "$success": "Success",
    "$failure": "Failure",
    "$some": "Some",
}
"""The names of classes that differ from their tags."""


def _render_items(trees: Any) -> str:
    return ", ".join(map(render_tree, trees))


def _render_pairs(pairs: Any) -> str:
    return ", ".join(": ".join(map(render_tree, pair)) for pair in pairs)


def _render_fields(trees: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={render_tree(tree)}" for name, tree in trees.items())


# The contents of a tag may be truncated anywhere.
_RENDERERS: Mapping[str, Callable[[Any], str]] = {
    "$int": str,
    "$float": str,
    "$bytes": lambda content: f"bytes({content!r})" if isinstance(content, str) else repr(content),
    "$tuple": lambda content: f"({_render_items(content)}{',' if len(content) == 1 else ''})",
    "$set": lambda content: f"{{{_render_items(content)}}}" if content else "set()",
    "$frozenset": lambda content: f"frozenset({{{_render_items(content)}}})",
    "$dict": lambda content: f"{{{_render_pairs(content)}}}",
    "$nothing": lambda _content: "Nothing",
    "$enum": ".".join,
    "$flag": lambda content: f"{content[0]}({_render_items(content[1:])})",
    "$object": lambda content: f"{content[0]}({''.join(map(_render_fields, content[1:]))})",
    "$error": lambda content: f"{content[0]}({''.join(map(_render_items, content[1:2]))})",
    "$codec": lambda content: f"{content[0]}({render_tree(content[1])})",
    "$url": lambda content: f"{content[0]}({content[1]!r})",
    "$secret": lambda _content: "**********",
    "$scalar": lambda content: render_tree(content[1]),
    "$table": lambda content: f"{content[0]}(shape={tuple(content[1])})",
}


def plain_tree(tree: Tree) -> Tree:
    """Return a tree without tags, as other programs write JSON, and so without the types.

    A data class becomes an object, an enum its name, a tuple or set a list, a duration its seconds.

    Example:
        >>> plain_tree({"$object": ["Order", {"sizes": {"$tuple": [1, 2]}}]})
        {'sizes': [1, 2]}
    """
    if isinstance(tree, list):
        return [plain_tree(part) for part in tree]
    if isinstance(tree, bytes):
        return b64encode(tree).decode()
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"$object": [_, fields]}:
            return plain_tree(fields)
        case {"$enum": [_, content]} | {"$flag": [_, content]}:
            return plain_tree(content)
        case {"$url": [_, content]} | {"$codec": [_, content]} | {"$scalar": [_, content]}:
            return plain_tree(content)
        case {"$secret": _} | {"$table": _}:
            return render_tree(tree)
        case {"$dict": [*pairs]}:
            named = cast("list[tuple[Tree, Tree]]", pairs)
            return {_key(plain_tree(key)): plain_tree(part) for key, part in named}
        case {"$timedelta": [int(days), int(seconds), int(microseconds)]}:
            return timedelta(days, seconds, microseconds).total_seconds()
        case {"$datetime": [str(text), *_]} | {"$time": [str(text), *_]}:
            return text
        case {"$fraction": [str(numerator), str(denominator)]}:
            return f"{numerator}/{denominator}"
        case {"$error": _}:
            return render_tree(tree)
        case _:
            # What remains is one part (a number, a path, the items of a tuple), or no tag at all.
            [(tag, content), *_] = tree.items() if tree else [("", None)]
            if tag.startswith("$"):
                return plain_tree(content)
            return {name: plain_tree(part) for name, part in tree.items()}


def _key(key: Tree) -> str:
    return key if isinstance(key, str) else render_tree(key)


def bounded(tree: Tree, limit: int = 120) -> str:
    """Return a value as text, cut to this many characters. A long value is read only so far."""
    return cut(render_tree(_beginning(tree, [limit])), limit)


def _beginning(tree: Tree, left: list[int]) -> Tree:
    """Return the parts of a tree that come first and fill a text with so many characters left."""
    left[0] -= 1
    if isinstance(tree, str):
        text = tree[: max(left[0], 0) + 1]
        left[0] -= len(text)
        return text
    if isinstance(tree, list):
        return [_beginning(part, left) for part in takewhile(lambda _: left[0] >= 0, tree)]
    if isinstance(tree, dict):
        parts = takewhile(lambda _: left[0] >= 0, tree.items())
        return {name: _beginning(part, left) for name, part in parts}
    return tree


def cut(text: str, limit: int = 120) -> str:
    """Return a text, cut to this many characters."""
    return text if len(text) <= limit else f"{text[:limit]}..."
