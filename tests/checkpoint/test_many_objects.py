"""Objects of one class in a list are converted together, to the same as each of them alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cached_property
from typing import Any

import pydantic
import pytest

from effectflow.checkpoint import Codec, NotSerializable
from effectflow.checkpoint.values import (
    MAX_DEPTH,
    KnownTypes,
    MalformedValue,
    Tree,
    codec,
    decode_cbor,
    decode_json,
    digest_of,
    encode_cbor,
    encode_json,
    from_tree,
    mismatch_of,
    options_of,
    to_tree,
    walk,
)

MANY = 30


class Color(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "small"


@dataclass
class Line:
    sku: str
    note: Any = None


@dataclass
class SpecialLine(Line):
    pass


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: Any = None


@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class Slotted:
    pass


@dataclass
class Text:
    text: str

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()


class Model(pydantic.BaseModel):
    sku: str = pydantic.Field(alias="code")
    note: Any = None


class Open(pydantic.BaseModel, extra="allow"):
    sku: str


class Root(pydantic.RootModel[int]):
    pass


class Base:
    __slots__ = ("hidden",)


@dataclass
class Derived(Base):
    sku: str


class Undeclared(Enum):
    ONE = 1


TYPES = KnownTypes.of(
    *[Line, SpecialLine, Point, Empty, Slotted, Text, Model, Open, Root, Derived, Color, Size]
)

LISTS: dict[str, Callable[[int], Any]] = {
    "scalars": lambda n: Line(f"line {n}", n),
    "slots": lambda n: Point(n / 3, bool(n)),
    "some None": lambda n: Line("x", None if n % 2 else n),
    "the text null": lambda n: Line("null", "null" if n % 2 else None),
    "any text": lambda n: Line(f'"$café {n}" \0', "$tag"),
    "NaN": lambda n: Point(math.nan if n == 7 else 1.0, None),
    "infinite": lambda n: Line("x", -math.inf if n else None),
    "negative zero": lambda n: Point(-0.0, 0.0),
    "long integers": lambda n: Line("x", 2**63 + n if n % 2 else 2**64 + n),
    "int and bool": lambda n: Line("x", True if n % 2 else 1),
    "enums": lambda n: Line("x", Color.RED if n % 2 else Size.SMALL),
    "moments": lambda n: Line("x", datetime(2026, 1, 1 + n % 9, tzinfo=UTC)),
    "lists": lambda n: Line("x", [n, (n,), {"a": n}]),
    "objects": lambda n: Line("x", Line("y", [Line("z", n)] * 12)),
    "no fields": lambda _: Empty(),
    "no fields and slots": lambda _: Slotted(),
    "a cached property": lambda n: (lambda it: (it.words, it)[1])(Text(f"a {n}")),
    "a subclass": lambda n: SpecialLine("x") if n == 7 else Line("x"),
    "models": lambda n: Model(code=f"line {n}", note=n),
    "models by default": lambda n: Model(code="x", note=None) if n == 7 else Model(code="x"),
    "models without a default": lambda n: Model(code=f"{n}"),
    "open models": lambda n: Open.model_validate(
        {"sku": "x", "more": n} if n % 2 else {"sku": "x"}
    ),
    "closed open models": lambda n: Open(sku=f"{n}"),
    "root models": lambda n: Root(n),
}


@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_many_objects_have_the_form_of_each_alone_and_come_back(make: Callable[[int], Any]) -> None:
    values = [make(n) for n in range(MANY)]
    trees = [to_tree(value, types=TYPES) for value in values]
    for whole, tag in ((values, None), ((*values,), "$tuple")):
        tree = to_tree(whole, types=TYPES)
        assert encode_json(tree) == encode_json(trees if tag is None else {tag: trees})
        for stored in (decode_json(encode_json(tree)), decode_cbor(encode_cbor(tree))):
            back = from_tree(stored, types=TYPES)
            assert type(back) is type(whole)
            assert list(map(state_of, back)) == list(map(state_of, values))
            assert encode_json(stored) == encode_json(tree), "reading has changed what was read"


def state_of(value: Any) -> object:
    """Return the text of a value that came back, and what its class keeps besides the fields."""
    if isinstance(value, pydantic.BaseModel):
        state = {key: part for key, part in value.__getstate__().items() if key != "__dict__"}
        return type(value), repr(value), state
    return type(value), repr(value)


def test_many_objects_share_nothing_with_what_they_are_made_of() -> None:
    values = [Line("x", [n]) for n in range(MANY)]
    tree: Any = to_tree(values, types=TYPES)
    values[0].sku, values[0].note[0] = "changed", "changed"
    assert tree[0] == {"$object": ["Line", {"sku": "x", "note": [0]}]}
    models = [Open(sku="x") for _ in range(MANY)]
    tree = to_tree(models, types=TYPES)
    for back in (from_tree(tree, types=TYPES), from_tree(tree, types=TYPES)):
        back[0].sku = back[0].more = "changed"
        assert (back[1].model_extra, back[1].model_fields_set) == ({}, {"sku"})
    assert tree[0] == {"$object": ["Open", {"sku": "x"}]}


def changed(value: Any, name: str, part: object) -> Any:
    object.__setattr__(value, name, part)
    return value


def without(value: Any, name: str) -> Any:
    object.__delattr__(value, name)
    return value


def private(model: Any) -> Any:
    model.__pydantic_private__ = {"_cache": Undeclared.ONE}
    return model


REJECTED: dict[str, tuple[Any, Any, str]] = {
    "an attribute": (Line("x"), changed(Line("x"), "more", 1), r"\$\[7\]: it has more besides"),
    "none of a field": (Line("x"), without(Line("x"), "sku"), r"\$\[7\]: a field of it is not set"),
    "none in slots": (Point(1), without(Point(1), "y"), r"\$\[7\]: a field of it is not set"),
    "a hidden slot": (Derived("x"), changed(Derived("x"), "hidden", 1), r"\$\[7\]: it has hidden"),
    "a surrogate": (Line("x"), Line("\ud800"), r"\$\[7\]\.sku: the text has a lone surrogate"),
    "an effect": (Line("x"), Line("x", object()), r"\$\[7\]\.note: an object cannot be saved"),
    "a part": (Line("x"), Line("x", [Undeclared.ONE]), r"\$\[7\]\.note\[0\]: Undeclared is not"),
    "a class": (Line("x"), Undeclared.ONE, r"\$\[7\]: Undeclared is not declared"),
    "private data": (Model(code="x"), private(Model(code="x")), r"\$\[7\]\.__pydantic_private__"),
    "no model": (Model(code="x"), Model.model_construct(), r"\$\[7\]: a field of it is not set"),
}


@pytest.mark.parametrize(("good", "bad", "message"), REJECTED.values(), ids=REJECTED)
def test_one_bad_object_of_many_is_rejected_with_its_path(
    good: Any, bad: Any, message: str
) -> None:
    values = [good] * MANY
    values[7] = bad
    with pytest.raises(NotSerializable, match=message):
        to_tree(values, types=TYPES)


@dataclass
class Typed:
    name: str = None  # type: ignore[assignment]  # a default of another type
    price: float = 0
    at: datetime | None = None


def test_one_object_of_many_with_a_field_of_another_type_is_found() -> None:
    wrong: Any = "1"
    good: list[Any] = [Typed("x", n, None) for n in range(MANY)]
    for odd, found in {
        "default": (Typed(), None),
        "subclass": (type("Special", (Typed,), {})("x"), None),
        "moment": (Typed("x", 1, datetime(2026, 1, 1)), None),
        "price": (Typed("x", wrong), ("[7].price", "'1' is not of the declared type float")),
        "unset": (without(Typed("x"), "at"), None),
        "missing": (
            changed(Typed("x"), "name", 1),
            ("[7].name", "1 is not of the declared type str"),
        ),
        "class": (Line("x"), ("[7]", "Line(sku='x', note=None) is not of the declared type Typed")),
    }.values():
        values = [*good]
        values[7] = odd
        assert mismatch_of(values, list[Typed]) == found
        assert mismatch_of(good, list[Typed]) is None


def test_many_objects_of_a_class_that_is_not_declared_are_rejected() -> None:
    with pytest.raises(NotSerializable, match=r"\$\[0\]: Line is not declared"):
        to_tree([Line("x")] * MANY, types=KnownTypes.of(Point))


def test_many_objects_of_a_class_with_a_codec_go_through_it() -> None:
    lines = Codec(Line, tag="line", encode=lambda line: line.sku, decode=Line)
    types = KnownTypes(TYPES.classes, options=options_of([lines], None))
    tree = to_tree([Line("x")] * MANY, types=types)
    assert tree == [{"$codec": ["line", "x"]}] * MANY
    assert from_tree(tree, types=types) == [Line("x")] * MANY


GOOD: Tree = {"$object": ["Line", {"sku": "x", "note": None}]}

MALFORMED: dict[str, tuple[Tree, str]] = {
    "another tag": ({"$object": ["Line", {}], "more": 1}, r"\$\[7\]: .*does not know the tag"),
    "no fields": ({"$object": ["Line"]}, r"\$\[7\]: it is not a valid object"),
    "a list": ({"$object": ["Line", ["sku", "note"]]}, r"\$\[7\].*: it is not a valid object"),
    "an unknown class": ({"$object": ["Other", {}]}, r"\$\[7\]: .*'Other' is not declared"),
    "an unhashable class": ({"$object": [["Line"], {}]}, r"\$\[7\]: .* is not declared"),
    "an enum": ({"$object": ["Color", {"sku": "x"}]}, r"\$\[7\]: .*'Color' is not declared"),
    "a field": ({"$object": ["Line", {"sku": "x", "more": 1}]}, r"\$\[7\]: .*has no more"),
    "a missing field": ({"$object": ["Line", {"note": 1}]}, r"\$\[7\]: .*sku"),
    "a part": (
        {"$object": ["Line", {"sku": "x", "note": {"$date": "?"}}]},
        r"\$\[7\]\.note: it is not a valid date",
    ),
}


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize(("bad", "message"), MALFORMED.values(), ids=MALFORMED)
def test_one_malformed_object_of_many_is_rejected_with_its_path(
    bad: Tree, message: str, place: int
) -> None:
    trees = [GOOD] * MANY
    trees[place] = bad
    with pytest.raises(MalformedValue, match=message.replace("7", str(place))):
        from_tree(trees, types=TYPES)


def test_objects_without_a_field_that_was_added_later_take_its_default() -> None:
    trees: list[Tree] = [{"$object": ["Line", {"sku": "x"}]} for _ in range(MANY)]
    assert from_tree(trees, types=TYPES) == [Line("x")] * MANY


@pytest.mark.parametrize("levels", range(3))
def test_many_objects_are_nested_at_most_as_deep_as_anything_else(levels: int) -> None:
    inner: Any = [Line("x", []) for _ in range(MANY)]
    tree: Any = to_tree(inner, types=TYPES)
    for _ in range(MAX_DEPTH - 3):
        inner, tree = [inner], [tree]
    assert from_tree(to_tree(inner, types=TYPES), types=TYPES) == inner
    for _ in range(levels):
        inner, tree = [inner], [tree]
    if levels:
        with pytest.raises(NotSerializable, match="nested more than"):
            to_tree(inner, types=TYPES)
        with pytest.raises(MalformedValue, match="nested more than"):
            from_tree(tree, types=TYPES)


def test_the_number_of_fields_of_many_objects_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    most = MANY + MANY * 2 + 1
    monkeypatch.setattr(walk, "MAX_ITEMS", most)
    few, many = [[Line("x")] * MANY], [[Line("x")] * MANY, 0]
    tree: Any = to_tree(few, types=TYPES)
    assert from_tree(tree, types=TYPES) == few
    with pytest.raises(NotSerializable, match=r"\$\[0\]\[29\]: with its 2 items"):
        to_tree(many, types=TYPES)
    with pytest.raises(MalformedValue, match=r"\$\[0\]\[29\]: with its 2 items"):
        from_tree([*tree, 0], types=TYPES)


@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_many_objects_have_the_digest_of_each_alone(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [make(n) for n in range(MANY)]
    together = digest_of(values)
    monkeypatch.setattr(codec, "MANY", MANY + 1)
    assert together == digest_of(values)


def test_a_digest_of_many_objects_leaves_out_their_defaults() -> None:
    @dataclass
    class Line:
        sku: str

    for note in (None, 1):
        values = [globals()["Line"]("x", note) for _ in range(MANY)]
        assert (digest_of(values) == digest_of([Line("x") for _ in range(MANY)])) is (note is None)
