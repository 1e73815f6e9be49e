"""`frozen`: small data classes of which each step and each run creates many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make a class a data class with slots that is frozen for type checkers only.

    `frozen=True` makes `__init__` four times as slow.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
