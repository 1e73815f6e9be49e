"""What the tests of all executors send to workers: prices of a shop, and classes that are hard to send.

The workers import this module, and not that of the tests, which imports much more.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Never

from effectflow import Effect, effect, pure, step
from tests.executors.items import OutOfStock


@dataclass(frozen=True)
class Shop:
    prices: dict[str, int]


def make_shop() -> Shop:
    return Shop({"cap": 7, "scarf": 9})


def number_of_prices(shop: Shop) -> int:
    return len(shop.prices)


@effect(errors=KeyError)
def price_of(shop: Shop, item: str) -> int:
    return shop.prices[item]


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    reason: str
    codes: tuple[int, ...] = ()


def explode(item: str, _: object) -> Never:
    raise OutOfStock(item, 0)


@step
def inner(number: int) -> Effect[object, str, int]:
    return pure(number + 1)


class Peculiar:
    """Can be pickled, but not unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Peculiar, ()


class Stubborn(Exception):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Leaving(BaseException):
    """Not an `Exception`."""


@dataclass(frozen=True)
class Frozen(Exception):
    reason: str


@dataclass(frozen=True, slots=True)
class FrozenWithSlots(Exception):
    reason: str


class ExitsWhenUnpickled:
    """Unpickles like a name from a module that calls `sys.exit` when it is imported."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)
