"""Every class that an annotation mentions is known, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    TypedDict,
    TypeVar,
    TypeVarTuple,
)

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from returns.maybe import Maybe, Some
from returns.result import Failure, Success

from effectflow import Do, Effect, fail, pure, step, with_checkpointing, workflow
from effectflow.checkpoint import CorruptCheckpoint, NotSerializable
from effectflow.checkpoint.values import KnownTypes, from_tree, mismatch_of, to_tree
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, last

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


@dataclass
class Tree:
    name: str = None  # type: ignore[assignment]  # as many write it
    branches: list[Tree] = field(default_factory=list["Tree"])


class Point(NamedTuple):
    x: float
    y: float


@attrs.frozen
class Parcel:
    weight: int | None
    size: Point


class Address(TypedDict):
    street: str
    number: NotRequired[int]


U = TypeVar("U")
Parts = TypeVarTuple("Parts")


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True)
class ListBox(Box[list[T]], Generic[T]):
    """Its `T` is not that of `Box`."""

    newest: T


@dataclass(frozen=True)
class IntsBox(ListBox[int]):
    pass


@dataclass(frozen=True)
class Both(Generic[T, U]):
    first: T
    second: U


@dataclass(frozen=True)
class Exchanged(Both[U, T], Generic[T, U]):
    pass


@dataclass(frozen=True)
class Many(Generic[*Parts]):
    parts: tuple[*Parts]


class Boxed(TypedDict, Generic[T]):
    content: T


class ListBoxed(Boxed[list[T]], Generic[T]):
    newest: T


class Columns(dict[str, T]):
    """Its only parameter is that of its values."""


class Table(list[list[T]]):
    """Its items are not of the type of its parameter."""


class Sized(Protocol):
    def size(self) -> int: ...


class Email:
    """Like a type of pydantic: values of it are text."""


class Customer(pydantic.BaseModel):
    name: str


OF_THE_TYPE: list[tuple[object, object]] = [
    (5, Any),
    (5, object),
    (5, None),
    (5, T),
    (5, Sized),
    (5, "Unknown"),
    (print, Callable[[], int]),
    (None, type(None)),
    (None, int | None),
    (True, int),
    (5, float),
    (5.0, complex),
    (5, Literal[4, 5]),
    (Color.RED, Color),
    (Color.RED, Literal[Color.RED]),
    (Tax(1), Dutiable),
    (Tax(1), Annotated[Tax, ["not hashable"]]),
    ([1, "a", None], list[int | str | None]),
    ([1, True], list[float]),
    ([[1], []], list[list[int]]),
    ((1, "a"), tuple[int, str]),
    ((), tuple[()]),
    ((1, 2, 3), tuple[int, ...]),
    ((1, 2, 3), tuple),
    ({1, 2}, set[int]),
    ({"a": [Tax(1)]}, dict[str, list[Tax]]),
    ({"a": 1}, Mapping[str, int]),
    ([1, 2], Sequence[int]),
    ("text", Sequence[str]),
    ({"street": "Main"}, Address),
    ({"street": "Main", "number": 5}, Address),
    (datetime(2026, 1, 1), date),
    (Path("a"), Path),
    (Some(5), Maybe[int]),
    (Success(5), Success[int]),
    (Tree(None, [Tree("a")]), Tree),  # type: ignore[arg-type]
    (Point(1, 2.5), Point),
    (Parcel(None, Point(0, 0)), Parcel),
    (Page[Tax](items=[Tax(1)]), Page[Tax]),
    (Batch([Tax(1)]), Batch[Tax]),
    (Customer.model_construct(name=5), Customer),
    (ListBox([1], 2), ListBox[int]),
    (IntsBox([1], 2), IntsBox),
    (Box([1]), Box[list[int]]),
    (Exchanged("a", 1), Exchanged[int, str]),
    (Many((1, "a")), Many[int, str]),
    ({"content": [1], "newest": 1}, ListBoxed[int]),
    (Columns(a=1), Columns[int]),
    (Table([[1]]), Table[int]),
]


@pytest.mark.parametrize(("value", "annotation"), OF_THE_TYPE)
def test_a_value_of_the_declared_type_is_accepted(value: object, annotation: object) -> None:
    assert mismatch_of(value, annotation) is None


NOT_OF_THE_TYPE: list[tuple[object, object, str]] = [
    (Decimal("1.5"), Tax, ""),
    (5, str, ""),
    (5.0, int, ""),
    (None, int, ""),
    (5, type(None), ""),
    (5, bool, ""),
    (True, Literal[1], ""),
    ("x", int | None, ""),
    (Point(1, 2), Parcel, ""),
    (["a"], list[int], "[0]"),
    ([1, [2, "a"]], list[int | list[int]], "[1]"),
    ([[1], [2, "a"]], list[list[int]], "[1][1]"),
    ((1, 2), tuple[int, str], "[1]"),
    ((1, 2), tuple[int], ""),
    ([1], tuple[int, ...], ""),
    ((1, "a"), tuple[int, ...], "[1]"),
    ({1, "a"}, set[int], "[0]"),
    ({"a": [Tax(1), None]}, dict[str, list[Tax]], "['a'][1]"),
    ({1: 1}, dict[str, int], "[1]"),
    ({"street": 5}, Address, ".street"),
    (Tree("a", [Tree("b", [5])]), Tree, ".branches[0].branches[0]"),  # type: ignore[list-item]
    (Point("1", 2), Point, ".x"),  # type: ignore[arg-type]
    (Parcel(1, Point(None, 2)), Parcel, ".size.x"),  # type: ignore[arg-type]
    (Tax("ten"), Dutiable, ".percent"),  # type: ignore[arg-type]
    (Box("a"), Box[int], ".content"),
    (ListBox(["a"], 2), ListBox[int], ".content[0]"),  # type: ignore[arg-type, list-item]
    (ListBox([1], "a"), ListBox[int], ".newest"),  # type: ignore[arg-type, list-item]
    (IntsBox(["a"], 2), IntsBox, ".content[0]"),  # type: ignore[list-item]
    (Exchanged(1, "a"), Exchanged[int, str], ".first"),
    ({"content": 1, "newest": 1}, ListBoxed[int], ".content"),
]


@pytest.mark.parametrize(("value", "annotation", "path"), NOT_OF_THE_TYPE)
def test_a_value_of_a_wrong_type_is_reported_with_its_path(
    value: object, annotation: object, path: str
) -> None:
    if value == {1, "a"} and next(iter({1, "a"})) == 1:
        path = "[1]"
    found = mismatch_of(value, annotation)
    assert found is not None
    assert found[0] == path


def loading(value: object, annotation: object, error: object = str) -> Any:
    """Return a workflow whose step yields a value, or fails with it, and declares a type for it."""

    def load() -> Effect[App, Any, Any]:
        return fail(value) if isinstance(value, Exception) else pure(value)

    load.__annotations__ = {"return": Effect[App, error, annotation]}
    loaded = step(load)

    @workflow(name="made")
    def made(_: None) -> Do[App, Any, Any]:
        found = yield from loaded().result()
        yield from last()
        return str(found)

    return made


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("was", "value", "declared"),
    [
        (Decimal, Decimal("1.5"), Tax),
        (int, 5, str),
        (list[str], ["a"], list[int]),
        (dict[str, int], {"a": 1}, Tax),
        (int | None, None, int),
    ],
)
async def test_a_recorded_output_must_have_the_declared_type(
    was: object, value: object, declared: object
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    assert await loading(value, was).start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    result = await loading(value, declared).resume("r").run(app)
    assert isinstance(result.failure(), CorruptCheckpoint)
    assert "is not of the declared type" in str(result.failure())
    forced = await loading(value, declared).resume("r", force=True).run(app)
    assert forced == Success(str(Success(value)))


@pytest.mark.anyio
async def test_an_output_of_another_type_is_rejected_when_it_is_saved() -> None:
    app = app_on(MemoryStore())
    result = await loading(["a", 5], list[str]).start(None, run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "load: $[1]: 5 is not of the declared type str" in str(result.failure())

    @workflow(name="made")
    def made(_: None) -> Do[App, Any, Any]:
        return (yield from with_checkpointing("load", pure(5), output=str))

    result = await made.start(None, run_id="s").run(app)
    assert isinstance(result.failure(), NotSerializable)


class Loaded(Exception):
    """An exception class of the process that no step declares."""


class Derived(Loaded):
    """One that derives from a declared class."""


@pytest.mark.anyio
@pytest.mark.parametrize("declared", [Exception, Exception | ValueError, LookupError])
async def test_a_built_in_exception_does_not_declare_those_that_derive_from_it(
    declared: object,
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    error = Loaded("x")
    failed = await loading(error, int, Loaded).start(None, run_id="r").run(app)
    assert failed == Failure("crash here")
    app.world.recover()
    result = await loading(error, int, declared).resume("r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "Declare its class" in str(result.failure())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "declared"), [(Derived("x"), Loaded), (KeyError("x"), Exception)]
)
async def test_exceptions_that_a_declaration_covers_come_back(
    error: Exception, declared: object
) -> None:
    app = app_on(MemoryStore(), failing={"last"})
    await loading(error, int, declared).start(None, run_id="r").run(app)
    app.world.recover()
    result = await loading(error, int, declared).resume("r").run(app)
    assert result == Success(str(Failure(error)))
