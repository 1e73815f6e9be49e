"""Packages that are installed only where they are wanted."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Says what to install when the package that an extra brings is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this needs the package {missing.name}: pip install 'effectflow[{extra}]'",
            name=missing.name,
        ) from missing
