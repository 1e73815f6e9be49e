"""Imports of optional packages."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["needs"]


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
