"""What the CHANGELOG says of names: each new one exists, and each old one does not."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from tests.changelog import moved_names, renamed


def exists(path: str) -> bool:
    """Return whether a dotted path names something. `function(parameter=)` names a parameter."""
    path, _, parameter = path.partition("(")
    words = path.split(".")
    found: Any = import_module(words[0])
    for number, word in enumerate(words[1:], 2):
        try:
            found = getattr(found, word)
        except AttributeError:
            try:
                found = import_module(".".join(words[:number]))
            except ModuleNotFoundError:
                return False
    return not parameter or parameter.removesuffix("=)") in inspect.signature(found).parameters


def test_every_new_name_exists_and_no_old_one_does() -> None:
    moved = [(f"{before}.{name}", f"{now}.{name}") for name, before, now in moved_names()]
    pairs = [*moved, *renamed()]

    assert len(moved) > 50
    assert [before for before, _ in pairs if exists(before)] == []
    assert [now for _, now in pairs if now is not None and not exists(now)] == []
