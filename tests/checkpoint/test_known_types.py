"""Every class that an annotation mentions is known, at any depth."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectflow.checkpoint.values import KnownTypes, from_tree, to_tree

T = TypeVar("T")


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Tax:
    percent: int


@dataclass(frozen=True)
class Line:
    taxes: dict[str, list[Tax]]


@dataclass(frozen=True)
class Order:
    lines: dict[str, list[Line]]


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Batch(msgspec.Struct, Generic[T]):
    items: list[T]


class Delivery(TypedDict):
    tax: Tax


@dataclass(frozen=True)
class Painted:
    color: Literal[Color.RED]
    delivery: Delivery


Dutiable = NewType("Dutiable", Tax)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order({"a": [Line({"vat": [Tax(20)]})]})),
        (Page[Order], Page[Order](items=[Order({"a": [Line({"vat": [Tax(20)]})]})])),
        (Batch[Tax], Batch([Tax(20)])),
        (Literal[Color.RED], Color.RED),
        (Painted, Painted(Color.RED, {"tax": Tax(20)})),
        (list[Dutiable], [Tax(20)]),
        (Annotated[Tax | None, "in per cent"], Tax(20)),
    ],
)
def test_values_of_the_classes_that_an_annotation_mentions_come_back(
    annotation: object, value: object
) -> None:
    types = KnownTypes.of(annotation)

    assert from_tree(to_tree(value, types=types), types=types) == value


FORMS = ("{}", "list[{}]", "{} | None", "dict[str, {}]", "tuple[{}, ...]", "dict[str, list[{}]]")

# For each class, the earlier classes that its fields refer to, and in which form.
references = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        *(
            st.lists(st.tuples(st.integers(0, number - 1), st.sampled_from(FORMS)), max_size=3)
            if number
            else st.just([])
            for number in range(count)
        )
    )
)


@given(shape=references)
def test_all_reachable_classes_are_known(shape: tuple[list[tuple[int, str]], ...]) -> None:
    classes = [_class(number, fields) for number, fields in enumerate(shape)]
    reached, todo = set[int](), [len(classes) - 1]
    while todo:
        number = todo.pop()
        reached.add(number)
        todo += [other for other, _ in shape[number]]

    assert set(KnownTypes.of(classes[-1]).classes) == {f"C{number}" for number in reached}


def _class(number: int, references: list[tuple[int, str]]) -> type[Any]:
    """Return a class whose annotations are text, so that its hints are made anew each time."""
    fields = [
        (f"part_{place}", form.format(f"C{other}"))
        for place, (other, form) in enumerate(references)
    ]
    made = make_dataclass(f"C{number}", fields, namespace={"__module__": __name__})
    globals()[f"C{number}"] = made
    return made
