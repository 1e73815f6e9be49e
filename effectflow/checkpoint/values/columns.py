"""Objects of one class in a list, converted together: field by field, as the columns of a table.

That takes about a third of the time: most fields have only numbers and texts, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effectflow.checkpoint.values.classes import KnownTypes, RecordClass, record_of
from effectflow.checkpoint.values.plain import SCALARS
from effectflow.checkpoint.values.walk import Convert, Walk

MANY = 10
"""The number of objects of one class from which they are converted together."""


def fields_in_all(
    trees: list[Any], tag: str, types: KnownTypes
) -> tuple[RecordClass | None, list[dict[str, Any]]]:
    """Return the class of the objects in these trees, and their fields. `tag` is that of objects.

    Returns no class for other trees, and if unsure: for a tree that could be malformed.
    """
    first = trees[0]
    if first.__class__ is not dict or tag not in first or {*map(len, trees)} != {1}:
        return UNSURE
    try:
        contents = [(name, fields) for name, fields in (tree[tag] for tree in trees)]
        names = {name for name, _ in contents}
        record = record_of(types.class_named(contents[0][0], is_enum=False))
    except (LookupError, TypeError, ValueError):
        return UNSURE
    every = [fields for _, fields in contents]
    is_sure = len(names) == 1 and {*map(type, every)} == {dict} and record.has_only_fields(every)
    return (record, every) if is_sure else UNSURE


UNSURE: tuple[None, list[dict[str, Any]]] = None, []


def convert_columns(
    objects: list[dict[str, Any]],
    convert: Convert,
    are_converted: Callable[[list[Any]], bool],
    walk: Walk,
) -> list[dict[str, Any]]:
    """Return the converted fields of objects of one class, in the same dicts if that changes nothing.

    Most columns, that is, the values of one field in all objects, have only what `are_converted` accepts.
    """
    walk.path += None, None
    out = objects
    for name in objects[0]:
        column = [fields[name] for fields in objects]
        if are_converted(column):
            continue
        if out is objects:
            out = [{**fields} for fields in objects]
        walk.path[-1] = name
        for index, part in enumerate(column):
            walk.path[-2] = index
            out[index][name] = convert(part, walk)
    del walk.path[-2:]
    return out


def have_scalars(column: list[Any]) -> bool:
    """Return whether a column of trees has only what stays as it is."""
    return SCALARS.issuperset(map(type, column))
