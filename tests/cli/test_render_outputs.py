"""How the commands show outputs, inputs and contexts: readable for people, plain in JSON."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from effectflow.checkpoint.values import KnownTypes, plain_tree, to_tree
from tests.cli.conftest import Command

RECEIPTS = textwrap.dedent("""
    from dataclasses import dataclass
    from datetime import UTC, datetime, timedelta
    from decimal import Decimal
    from enum import Enum
    from fractions import Fraction
    from pathlib import Path
    from typing import Any, Never
    from uuid import UUID
    from effectflow import Do, Effect, fail, pure, workflow
    from effectflow.mapreduce import MapReduce

    class Size(Enum):
        SMALL = 1

    @dataclass(frozen=True)
    class Line:
        item: str
        size: Size = Size.SMALL
        price: Decimal = Decimal("9.90")

    @dataclass(frozen=True)
    class Order:
        item: str

    @dataclass(frozen=True)
    class Receipt:
        lines: tuple[Line, ...]
        at: datetime
        took: timedelta
        by_number: dict[int, str]

    RECEIPT = Receipt(
        (Line("cap"),), datetime(2026, 1, 31, 9, tzinfo=UTC), timedelta(minutes=1.5), {7: "seven"}
    )

    @workflow
    def receipt(_: Any) -> Do[object, Never, Receipt]:
        return (yield from pure(RECEIPT))

    @workflow
    def receipts(_: Any) -> Do[object, Never, list[Receipt]]:
        return (yield from pure([RECEIPT]))

    @workflow
    def reads(order: Order) -> Do[object, Never, None]:
        return (yield from pure(None))

    @workflow
    def opens(_: Any) -> Do[object, str, None]:
        yield from fail("cannot open a\\udcff.py")

    def numbers(_: None) -> list[int]:
        return [1, 2]

    def mapped(number: int) -> Effect[object, str, Line]:
        return pure(Line(str(number)))

    def joined(lines: list[Line]) -> Effect[object, str, Line]:
        return pure(Line("-".join(line.item for line in lines)))

    lines = MapReduce("lines", items=numbers, map=mapped, reduce=joined, key=str, limit=1,
                      on_item_failure="dead_letter")
""")

PLAIN = {
    "lines": [{"item": "cap", "size": "SMALL", "price": "9.90"}],
    "at": "2026-01-31T09:00:00+00:00",
    "took": 90.0,
    "by_number": {"7": "seven"},
}


@pytest.fixture(autouse=True)
def receipts(folder: Path) -> None:
    (folder / "receipts.py").write_text(RECEIPTS)


def test_an_output_is_plain_in_json(effectflow: Command) -> None:
    assert effectflow("run", "receipts:receipt", "--json").json["output"] == PLAIN
    ran = effectflow("run", "receipts:receipts", "--run-id", "r", "--json")
    assert ran.json["output"] == [PLAIN]
    again = effectflow("resume", "r", "--app", "receipts", "--json")
    assert again.json["output"] == [PLAIN]
    output = effectflow("run", "receipts:lines", "--json").json["output"]
    assert output["value"] == {"item": "1-2", "size": "SMALL", "price": "9.90"}


def test_a_message_about_a_file_name_of_any_bytes_is_json(effectflow: Command) -> None:
    message = "The workflow failed: cannot open a\udcff.py"
    assert effectflow("run", "receipts:opens", "--json").json["message"] == message


def test_values_are_shown_as_python_writes_them(effectflow: Command) -> None:
    effectflow("run", "receipts:receipt", "--run-id", "r")
    shown = effectflow("show", "r").out
    assert "output: Receipt(lines=(Line(item='cap', size=Size.SMALL, price=" in shown
    assert "by_number={7: 'seven'}" in shown
    assert "$" not in shown
    assert "Receipt(lines=(Line(item='cap'" in effectflow("history", "r").out

    effectflow("run", "receipts:reads", "--input", '{"item": "cap"}', "--run-id", "i")
    assert "Order(item='cap')" in effectflow("show", "i").out


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, None, "x"], "b": {}}, {"a": [1, None, "x"], "b": {}}),
        ({(1, 2): {3}}, {"[1, 2]": [3]}),
        ({"$odd": (1,)}, {"$odd": [1]}),
        (b"ab", "YWI="),
        (float("inf"), "inf"),
        (10**40, str(10**40)),
        (Path("a/b"), "a/b"),
        (ValueError("no"), "ValueError('no')"),
    ],
)
def test_a_value_of_any_kind_has_a_plain_form(value: object, plain: object) -> None:
    assert plain_tree(to_tree(value, types=KnownTypes.of(type(value)))) == plain


STUCK = textwrap.dedent("""
    from effectflow import Do, bracket, fail, par, pure, sleep, workflow
    from effectflow.effects import never

    @workflow
    def visit(_: None) -> Do[object, str, None]:
        room = bracket(pure("room"), lambda _: fail("stuck"), lambda _: never())
        yield from par(room, sleep(0.1).and_then(lambda _: fail("closed"))).context("visiting")
""")


def test_show_tells_of_the_release_that_failed_after_a_cancellation(
    effectflow: Command, folder: Path
) -> None:
    (folder / "visits.py").write_text(STUCK, encoding="utf-8")
    assert effectflow("run", "visits:visit", "--input", "null", "--run-id", "v").code == 1

    assert effectflow("show", "v").out.splitlines()[-3:] == [
        "str: closed",
        "  and a finalizer failed: 'stuck'",
        "  visiting",
    ]
