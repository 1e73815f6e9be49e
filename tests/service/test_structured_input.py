"""The JSON that people write becomes an input of the declared type, or is refused by its path."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, StrEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import attrs
import msgspec
import numpy
import pydantic
import pytest
from returns.result import Success

from effectflow import Checkpoints, Effect, Workflow, pure, workflow
from effectflow.checkpoint import Codec
from effectflow.service.structured_input import DoesNotFit, input_of
from effectflow.stores import MemoryStore
from tests.apps import App, app_on

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    DARK = (0, 0, 0)


class Size(StrEnum):
    BIG = "big"


class Access(Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Card:
    number: str
    expires: date


@dataclass(frozen=True)
class Invoice:
    address: str
    due: timedelta = timedelta(days=14)


@dataclass
class Order:
    id: UUID
    pay: Card | Invoice
    lines: list[Line] = field(default_factory=list["Line"])
    note: str | None = None


@attrs.frozen
class Line:
    item: str
    price: Decimal
    _count: int = 1


class Point(NamedTuple):
    x: float
    y: float


class Job(msgspec.Struct, frozen=True):
    at: datetime
    where: Path


class Row(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass(frozen=True)
class Box(Generic[T]):
    part: T


@dataclass(frozen=True)
class Tree:
    left: Tree | None = None
    others: list[Tree] = field(default_factory=list["Tree"])


@dataclass(frozen=True)
class ListBox(Box[list[T]], Generic[T]):
    """Its `T` is not that of `Box`."""


class Customer(pydantic.BaseModel):
    name: str
    site: pydantic.HttpUrl
    token: pydantic.SecretStr
    points: set[Point] = set()


@dataclass
class Signup:
    customer: Customer
    at: datetime


UserId = NewType("UserId", int)
ID = "12345678-1234-5678-1234-567812345678"
CUSTOMER = {"name": "Ann", "site": "https://example.org", "token": "hunter2"}


def taking(annotation: object) -> Workflow[Any, Any, Any, Any]:
    def body(given: Any) -> Effect[App, str, Any]:
        return pure(given)

    body.__annotations__ = {"given": annotation, "return": Effect[App, str, Any]}
    return workflow(name="body")(body)


PLAIN = Checkpoints(MemoryStore())


def built(annotation: object, data: object, checkpoints: Checkpoints = PLAIN) -> Any:
    return input_of(taking(annotation), data, checkpoints)


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (Color, "red", Color.RED),
        (Color, "DARK", Color.DARK),
        (Size, "big", Size.BIG),
        (Access, 3, Access.READ | Access.WRITE),
        (Literal[1, Color.RED], "red", Color.RED),
        (UserId, 5, 5),
        (Annotated[int, "positive"], 5, 5),
        (int | None, None, None),
        (int | str, "5", "5"),
        (float | int, 5, 5),
        (float, 5, 5.0),
        (date | str, "2026-01-02", "2026-01-02"),
        (date | int, "2026-01-02", date(2026, 1, 2)),
        (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (time, "03:04", time(3, 4)),
        (timedelta, 1.5, timedelta(seconds=1.5)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 1.1, Decimal("1.1")),
        (Fraction, "1/3", Fraction(1, 3)),
        (bytes, "AP8=", b"\x00\xff"),
        (Path, "a/b", Path("a/b")),
        (PurePosixPath, "/x", PurePosixPath("/x")),
        (list[int], [1], [1]),
        (set[Color], ["red"], {Color.RED}),
        (set[Decimal], [{"$decimal": "1.10"}], {Decimal("1.10")}),
        (dict[str, Any], {"a": {"$decimal": "1.10"}, "b": [1]}, {"a": Decimal("1.10"), "b": [1]}),
        (Sequence[int], [1], [1]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (Mapping[int, list[Path]], {"5": ["a"]}, {5: [Path("a")]}),
        (Point, {"x": 1, "y": 2.5}, Point(1.0, 2.5)),
        (Point, [1, 2.5], Point(1.0, 2.5)),
        (Row, {"name": "a"}, {"name": "a"}),
        (Box[Color], {"part": "red"}, Box(Color.RED)),
        (Tree, {"left": {"left": {}}, "others": [{}]}, Tree(Tree(Tree()), [Tree()])),
        (ListBox[Color], {"part": ["red"]}, ListBox([Color.RED])),
        (
            Job,
            {"at": "2026-01-02T03:04:05", "where": "a"},
            Job(datetime(2026, 1, 2, 3, 4, 5), Path("a")),
        ),
        (Card | Invoice, {"address": "here", "due": 60}, Invoice("here", timedelta(minutes=1))),
        (Card | Invoice, {"$object": ["Invoice", {"address": "x"}]}, Invoice("x")),
        (Decimal, {"$decimal": "1.10"}, Decimal("1.10")),
        (pydantic.HttpUrl, "https://example.org", pydantic.HttpUrl("https://example.org")),
        (Customer, CUSTOMER, Customer.model_validate(CUSTOMER)),
    ],
)
def test_an_input_is_what_its_type_takes(annotation: object, data: object, value: object) -> None:
    made = built(annotation, data)
    assert (type(made), made) == (type(value), value)


def test_records_are_nested_at_any_depth() -> None:
    made = built(
        Order,
        {
            "id": ID,
            "pay": {"number": "1", "expires": "2026-01-02"},
            "lines": [{"item": "cap", "price": "1.10", "count": 2}],
        },
    )
    line = Line("cap", Decimal("1.10"), 2)
    assert made == Order(UUID(ID), Card("1", date(2026, 1, 2)), [line])
    signup = built(Signup, {"customer": CUSTOMER, "at": "2026-01-02"})
    assert signup.customer.token.get_secret_value() == "hunter2"


@pytest.mark.parametrize(
    ("annotation", "data", "problems"),
    [
        (int, 1.9, ["Input should be a valid integer @ $"]),
        (int, True, ["Input should be a valid integer @ $"]),
        (list[int], [1, "2", 3.5], ["valid integer @ $[1]", "valid integer @ $[2]"]),
        (
            dict[str, Color],
            {"a-b": "blue"},
            ["it is not one of 'red', (0, 0, 0), 'RED', 'DARK' @ $['a-b']"],
        ),
        (dict[int, int], {"a": 1}, ["unable to parse string as an integer @ $.a"]),
        (date, "tomorrow", ["Input should be a valid date in the format YYYY-MM-DD"]),
        (tuple[int, str], [1], ["Field required @ $[1]"]),
        (
            Card,
            {"number": "1", "colour": 5},
            ["Field required @ $.expires", "Extra inputs are not permitted @ $.colour"],
        ),
        (Card, {"number": "1"}, ["Field required @ $.expires"]),
        (Row, {}, ["Field required @ $.name"]),
        (
            Order,
            {"id": "x", "pay": None},
            ["Input should be a valid UUID", "@ $.id", "it is none of Card | Invoice"],
        ),
        (
            Order,
            {"lines": [{"price": "?"}]},
            ["Input should be a valid decimal @ $.lines[0].price"],
        ),
        (Signup, {"customer": {"name": 5}}, ["Input should be a valid string @ $.customer.name"]),
        (Decimal, {"$decimal": "?"}, ["it is not a valid decimal"]),
        (Literal[1], True, ["it is not one of 1 @ $"]),
        (list[str], "ab", ["Input should be a valid list @ $"]),
        (list[Card], [{"$object": ["Card", {"number": 5}]}], ["argument: 'expires' @ $[0]"]),
        (int, {"$decimal": "1"}, ["Decimal('1') is not of the declared type int @ $"]),
        (object(), {"$object": ["Card", {}]}, ["'Card' is not declared"]),
    ],
)
def test_each_part_that_does_not_fit_is_named_by_its_path(
    annotation: object, data: object, problems: list[str]
) -> None:
    with pytest.raises(ValueError, match="the input does not fit") as refused:
        built(annotation, data)
    for problem in problems:
        assert problem in str(refused.value)


def test_an_input_that_is_nested_too_deeply_is_refused() -> None:
    data: dict[str, Any] = {}
    for _ in range(1000):
        data = {"left": data}
    with pytest.raises(ValueError, match="does not fit Tree: it is nested too deeply"):
        built(Tree, data)


@pytest.mark.parametrize(
    ("annotation", "data", "place"),
    [
        (Customer, {"name": 1, "site": "?", "token": ["hunter2"]}, "$.site"),
        (int | Customer, {"token": ["hunter2"]}, "$.token"),
        (tuple[str, pydantic.SecretStr], ["hunter2"], "$"),
        (list[Card], [{"number": {"token": "hunter2"}}, ["hunter2"]], "$[0].number"),
    ],
)
def test_no_message_shows_a_secret(annotation: object, data: object, place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"@ {place}")) as refused:
        built(annotation, data)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


class Money:
    def __init__(self, amount: Decimal, currency: str) -> None:
        self.amount = amount
        self.currency = currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.amount, self.currency))


class Weight:
    def __init__(self, grams: int) -> None:
        if grams < 0:
            raise ValueError(f"{grams} g")
        self.grams = grams

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weight) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.grams)


def parts_of(money: Money) -> tuple[Decimal, str]:
    return money.amount, money.currency


CODECS = Checkpoints(
    MemoryStore(),
    codecs=[
        Codec(Money, tag="money", encode=parts_of, decode=lambda parts: Money(*parts)),
        Codec(Weight, tag="weight", encode=lambda it: it.grams, decode=Weight),
    ],
)


@dataclass
class Parcel:
    price: Money
    weights: list[Weight]


EURO = Money(Decimal("1.10"), "EUR")


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (Weight, 5, Weight(5)),
        (Weight | None, None, None),
        (list[Weight], [5, {"$codec": ["weight", 6]}], [Weight(5), Weight(6)]),
        # The annotation of `encode` tells what the parts are.
        (Money, ["1.10", "EUR"], EURO),
        (
            Parcel,
            {"price": ["1.10", "EUR"], "weights": [5]},
            Parcel(EURO, [Weight(5)]),
        ),
    ],
)
def test_a_class_with_a_codec_is_made_of_what_its_encode_returns(
    annotation: object, data: object, value: object
) -> None:
    made = built(annotation, data, CODECS)
    assert (type(made), made) == (type(value), value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"price": ["?", "EUR"], "weights": []}, "Input should be a valid decimal @ $.price[0]"),
        (
            {"price": ["1", "EUR"], "weights": [-5]},
            "'weight' raised ValueError('-5 g') @ $.weights[0]",
        ),
    ],
)
def test_a_part_that_a_codec_rejects_is_named_by_its_path(data: object, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        built(Parcel, data, CODECS)


def test_a_class_without_a_codec_is_rejected_with_the_way_out() -> None:
    with pytest.raises(
        ValueError, match=r"a Money cannot be made from JSON: pass Checkpoints\(codecs"
    ):
        built(Parcel, {"price": 1, "weights": []})


@pytest.mark.anyio
async def test_an_input_made_by_a_codec_starts_a_run() -> None:
    @workflow
    def weighing(weight: Weight) -> Effect[App, str, Weight]:
        return pure(weight)

    app = app_on(MemoryStore(), codecs=CODECS.codecs)
    weight = input_of(weighing, 5, app.checkpoints)
    assert await weighing.start(weight).run(app) == Success(Weight(5))


@pytest.mark.anyio
async def test_a_built_input_starts_a_run() -> None:
    @workflow
    def paying(order: Order) -> Effect[App, str, Card | Invoice]:
        return pure(order.pay)

    order = input_of(paying, {"id": ID, "pay": {"address": "here"}}, PLAIN)
    assert await paying.start(order).run(app_on(MemoryStore())) == Success(Invoice("here"))


@pytest.mark.parametrize("annotation", [numpy.ndarray, list[numpy.ndarray]])
def test_a_class_that_pydantic_does_not_know_says_so(annotation: Any) -> None:
    data = [1] if annotation is numpy.ndarray else [[1]]
    with pytest.raises(ValueError, match="cannot be made from JSON"):
        built(annotation, data)


def test_an_int_of_any_size_is_read() -> None:
    assert built(int, 10**40) == 10**40


def test_what_does_not_fit_has_a_place_for_each_problem() -> None:
    with pytest.raises(DoesNotFit) as raised:
        built(dict[str, list[int]], {"a": [1, "2"], "b": 3})
    assert [problem.place for problem in raised.value.problems] == [("a", 1), ("b",)]


class Broken(pydantic.BaseModel):
    size: int = pydantic.Field(default_factory=lambda: 1 // 0)


def test_what_the_code_of_a_class_raises_is_a_problem_of_the_data() -> None:
    with pytest.raises(DoesNotFit, match="the code of a class raised ZeroDivisionError"):
        built(list[Broken], [{}])
