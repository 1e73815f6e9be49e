"""Imports on first use, and imports of optional packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__` of a package, and its `__all__`.

    A module of the package is imported when a program first uses one of its names. For type checkers, the
    package also imports its names in the form `from module import Name as Name`, which marks them as
    public.

    `homes` maps each submodule to its names, separated by spaces. `.other.module` is a submodule of the
    parent package. A submodule that maps to its own name is public itself. A function or class with the
    name of a submodule must be imported at once, because importing the submodule would replace it.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{home_of[name]}", package)
        found = module if home_of[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, sorted(home_of)


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Raise an error that names the extra to install if its package is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this needs the package {missing.name}: pip install 'effectflow[{extra}]'",
            name=missing.name,
        ) from missing
