"""Values as the plain data that means them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson

from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    Tree,
    ValueOptions,
    encode_json,
    plain_tree,
    to_tree,
)
from effectflow.service.structured_input import structure_as


def plain_data(annotation: Any, value: Any, options: ValueOptions) -> Any:
    """Return a value as plain data that means it, or else in its saved form, which says its classes.

    What has secrets is always in its saved form, in which they are encrypted.
    """
    types = replace(KnownTypes.of(annotation), options=options)
    tree = to_tree(value, types=types)
    saved = encode_json(tree)
    if b'"$secret"' in saved:
        return orjson.loads(saved)
    plain = plain_tree(tree)
    try:
        again = structure_as(annotation, plain, options)
        if comparable(annotation, again, options) == _without_marks(tree):
            return plain
    except (ValueError, TypeError, NotSerializable):
        pass
    return orjson.loads(saved)


def comparable(annotation: Any, value: Any, options: ValueOptions) -> Any:
    """Return a value in its saved form, without its secrets, whose encryption differs each time.

    It is also without which fields of its models were given.
    """
    types = replace(KnownTypes.of(annotation), options=options)
    return _without_marks(to_tree(value, types=types))


def _without_marks(tree: Tree) -> Any:
    if isinstance(tree, list):
        return [_without_marks(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "$secret" in tree:
        return "a secret"
    return {key: _without_marks(tree[key]) for key in tree if key != "model_fields_set"}


def json_text(data: object) -> str:
    """Return plain data as JSON for people, in which each character can be seen."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )
