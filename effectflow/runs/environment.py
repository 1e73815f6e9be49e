"""What the steps and bodies of a workflow declare to need from their environment."""

from __future__ import annotations

import inspect
from typing import get_origin

from effectflow.effects.signatures import meaning_of
from effectflow.runs.blueprint import Blueprint


def needs_of(blueprint: Blueprint) -> tuple[frozenset[str], str]:
    """Return the attributes of the environment that the steps and bodies of a workflow declare to need,
    besides `checkpoints`, and the names of the classes that declare them."""
    kinds = [
        kind
        for kind in map(_class_of, blueprint.environment_types())
        if kind is not None and _members(kind) - {"checkpoints"}
    ]
    names = frozenset[str]().union(*map(_members, kinds)) - {"checkpoints"}
    return names, ", ".join(dict.fromkeys(kind.__name__ for kind in kinds))


def missing_in(environment: object, blueprint: Blueprint) -> str:
    """Return what a workflow declares to need and the environment lacks, as text; "" if nothing."""
    if hasattr(type(environment), "__getattr__"):
        # Only reading an attribute shows whether it exists, and that may run any code.
        return ""
    names, declared = needs_of(blueprint)
    missing = [name for name in sorted(names) if not _has(environment, name)]
    return f"{', '.join(missing)} ({declared})" if missing else ""


_MISSING = object()


def _has(environment: object, name: str) -> bool:
    """Return whether an attribute exists, without running the code of a property."""
    return inspect.getattr_static(environment, name, _MISSING) is not _MISSING


def _class_of(annotation: object) -> type | None:
    """Return the class or protocol that an annotation names; None for Any, a type variable or a union."""
    meant = meaning_of(annotation) or annotation
    kind = get_origin(meant) or meant
    return kind if isinstance(kind, type) else None


def _members(kind: type) -> set[str]:
    """Return the public attributes and methods that a class or protocol declares."""
    return {
        name
        for base in kind.__mro__
        if base.__module__ not in ("builtins", "typing", "abc")
        for name in (*inspect.get_annotations(base), *vars(base))
        if not name.startswith("_")
    }
