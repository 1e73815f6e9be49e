"""Values come back type for type, or saving them fails with the path of the part."""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import cbor2
import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from returns.maybe import Nothing, Some
from returns.result import Failure, Success

from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import (
    MAX_DEPTH,
    MAX_INT_BITS,
    KnownTypes,
    MalformedValue,
    Tree,
    decode_cbor,
    decode_compact,
    decode_json,
    encode_cbor,
    encode_compact,
    encode_json,
    encodings,
    from_tree,
    plain,
    to_tree,
    walk,
)

T = TypeVar("T")


class Color(Enum):
    RED = "r"


class Level(IntEnum):
    LOW = 1


class Undeclared(IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    item: str
    color: Color = Color.RED
    parts: tuple[Point, ...] = ()
    note: Any = None


@dataclass
class Box(Generic[T]):
    content: T
    opened: int = field(default=0, init=False)


@attrs.frozen
class Account:
    _secret: str
    owner: Any = attrs.field(default=None, alias="holder")


NO_TYPES = KnownTypes.of()
TYPES = KnownTypes.of(Order, Box[int], Account, Level)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(ZoneInfo("Europe/Berlin")))
    | st.dates()
    | st.times(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.decimals()
    | st.fractions()
    | st.uuids()
    | st.sampled_from([Color.RED, Level.LOW, PurePosixPath("a/b"), PurePosixPath(".")])
)
KEYS = TEXT | st.sampled_from(["$tuple", "$"]) | st.integers() | st.tuples(st.integers(), TEXT)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(st.integers() | TEXT, max_size=4)
        | st.frozensets(st.integers() | st.dates(), max_size=4)
        | st.builds(lambda note: Order(item="x", parts=(Point(1, note),), note=note), inner)
        | st.builds(Box[Any], inner)
        | st.builds(lambda owner: Account("s", holder=owner), inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down, with NaN equal to itself and -0.0 unlike 0.0."""
    if type(a) is not type(b):
        return False
    match a:
        case float():
            return (math.isnan(a) and math.isnan(b)) or (
                a == b and math.copysign(1, a) == math.copysign(1, b)
            )
        case Decimal():
            return str(a) == str(b)
        case datetime() | time():
            return (a.isoformat(), a.fold, repr(a.tzinfo)) == (
                b.isoformat(),
                b.fold,
                repr(b.tzinfo),
            )
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case dict():
            return len(a) == len(b) and all(map(same, a.items(), b.items()))
        case Order():
            return all(same(getattr(a, n), getattr(b, n)) for n in Order.__slots__)
        case Box() | Account():
            names = ["content", "opened"] if isinstance(a, Box) else ["_secret", "owner"]
            return all(same(getattr(a, n), getattr(b, n)) for n in names)
        case _:
            return a == b


@given(VALUES)
def test_every_encoding_restores_a_value_exactly(value: Any) -> None:
    tree = to_tree(value, types=TYPES)

    assert same(from_tree(decode_json(encode_json(tree)), types=TYPES), value)
    assert same(from_tree(decode_cbor(encode_cbor(tree)), types=TYPES), value)
    assert same(from_tree(decode_compact(encode_compact(tree)), types=TYPES), value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT.filter(lambda key: key[:1] != "$"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_plain_json_data_stays_as_it_is(value: Any) -> None:
    assert to_tree(value, types=NO_TYPES) == value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Name(str):
    """Text and a buffer of bytes in one, as the text of numpy is."""

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.encode())


class Celsius(float):
    """A float that would lose its class."""


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [{"price": object()}]}, "$.items[0].price"),
        ({"a b": lambda: None}, "$['a b']"),
        ([1, "\ud800"], "$[1]"),
        ({"\ud800": 1}, "$['\\ud800']"),
        ({(1, 2): object()}, "$[(1, 2)]"),
        (Celsius(3), "$"),
        ([Name("x")], "$[0]"),
        ({Name("x"): 1}, "$"),
        ({"n": OrderedDict(a=1)}, "$.n"),
        ([Undeclared.ONE], "$[0]"),
        ({"n": [True, {"x": Undeclared.ONE}]}, "$.n[1].x"),
        (Order(item="x", note=object()), "$.note"),
        ([datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "mine"))], "$[0]"),
    ],
)
def test_to_tree_rejects_what_it_could_not_restore(value: Any, path: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        to_tree(value, types=TYPES)

    assert caught.value.path == path


def test_to_tree_rejects_an_undeclared_class_and_says_how_to_declare_it() -> None:
    with pytest.raises(NotSerializable, match=r"\$\.order: Order is not declared: .*output=Order"):
        to_tree({"order": Order(item="x")}, types=NO_TYPES)


@pytest.mark.parametrize("value", [nested(70), cyclic()])
def test_depth_is_limited(value: list[Any]) -> None:
    with pytest.raises(NotSerializable, match="64 levels"):
        to_tree(value, types=NO_TYPES)
    with pytest.raises(MalformedValue, match="64 levels"):
        from_tree(nested(70), types=NO_TYPES)


LIMIT = 1000
"""A lower limit, to test the limits with small values."""


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (walk, plain):
        monkeypatch.setattr(module, "MAX_ITEMS", LIMIT)


@pytest.mark.usefixtures("few_items")
@pytest.mark.parametrize(
    "kind", [list, tuple, set, dict.fromkeys], ids=["list", "tuple", "set", "dict"]
)
def test_to_tree_limits_the_number_of_items(kind: Any) -> None:
    assert to_tree(kind(range(LIMIT)), types=NO_TYPES)
    with pytest.raises(NotSerializable, match="1,001 items") as caught:
        to_tree({"all": kind(range(LIMIT + 1))}, types=NO_TYPES)
    assert caught.value.path == "$.all"


@pytest.mark.usefixtures("few_items")
def test_from_tree_limits_the_number_of_items() -> None:
    many: list[Tree] = [0] * (LIMIT + 1)
    trees: list[Tree] = [
        many,
        {"$tuple": many},
        {"$dict": many},
        {str(n): 0 for n in range(len(many))},
        [many[: LIMIT // 2], [many[: LIMIT // 2]]],
    ]
    for tree in trees:
        with pytest.raises(MalformedValue, match="more than 1,000 in total"):
            from_tree(tree, types=NO_TYPES)


@pytest.mark.usefixtures("few_items")
def test_a_shared_item_counts_once_for_each_reference() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = [value, value]

    for convert, error in ((to_tree, NotSerializable), (from_tree, MalformedValue)):
        with pytest.raises(error, match="more than 1,000 in total"):
            convert(value, types=TYPES)


def test_a_deep_mapping_with_mixed_keys_takes_linear_time() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value, 1: 2}

    assert from_tree(to_tree(value, types=NO_TYPES), types=NO_TYPES) == value


def test_the_number_of_parts_in_json_and_cbor_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "MAX_PARTS", LIMIT)
    commas: Tree = ["1,2,3\n" * LIMIT, '\\"' * LIMIT]
    texts: list[Tree] = [","] * LIMIT
    many: list[Tree] = [0] * (LIMIT + 2)
    for encode, decode in ((encode_json, decode_json), (encode_cbor, decode_cbor)):
        assert decode(encode(commas)) == commas
        with pytest.raises(NotSerializable, match="more than 1,000"):
            encode(many)
    assert decode_json(encode_json(texts)) == texts
    for data in (b"[" + b"[]," * LIMIT + b"0]", b"[" + b'"",' * LIMIT + b"0]"):
        with pytest.raises(MalformedValue, match="more than 1,000"):
            decode_json(data)
    for data in (b"\x9f" + b"\x80" * LIMIT, b"\xbb" + b"\xff" * 8 + b"\x60\x80" * LIMIT):
        with pytest.raises(MalformedValue, match="more than 1,000"):
            decode_cbor(data)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [63, 64, 4096, 4097, MAX_INT_BITS - 1])
def test_integers_of_any_size_come_back(bits: int, sign: int) -> None:
    for value in (sign * (2**bits - 1), Fraction(sign * 2**bits, 3)):
        assert from_tree(to_tree(value, types=NO_TYPES), types=NO_TYPES) == value


def test_the_size_of_integers_is_limited() -> None:
    assert to_tree([2**MAX_INT_BITS - 1], types=NO_TYPES)
    for value in (2**MAX_INT_BITS, -(2**MAX_INT_BITS), Fraction(1, 2**MAX_INT_BITS)):
        with pytest.raises(NotSerializable, match="131,073 bits") as caught:
            to_tree({"n": [value]}, types=NO_TYPES)
        assert caught.value.path == "$.n[0]"
    digits = "0x" + "f" * (MAX_INT_BITS // 2)
    for tree in ({"$int": digits}, {"$fraction": [digits, digits]}):
        with pytest.raises(MalformedValue, match="digits"):
            from_tree(cast(Tree, tree), types=NO_TYPES)


ONE_HASH = sys.hash_info.modulus


@pytest.mark.parametrize(
    "kind", [int, Decimal, lambda n: Fraction(n, 7), lambda n: UUID(int=n), lambda n: (n,)]
)
def test_the_number_of_items_with_one_hash_is_limited(kind: Any) -> None:
    items = [kind(n * ONE_HASH) for n in range(1, 102)]
    trees = [to_tree(item, types=NO_TYPES) for item in items]
    for value in (set(items), frozenset(items), dict.fromkeys(items)):
        with pytest.raises(NotSerializable, match="the same hash"):
            to_tree(value, types=NO_TYPES)
    pairs: Tree = [[tree, None] for tree in trees]
    for tree in ({"$set": trees}, {"$frozenset": trees}, {"$dict": pairs}):
        with pytest.raises(MalformedValue, match="the same hash"):
            from_tree(cast(Tree, tree), types=NO_TYPES)
    assert from_tree(to_tree(set(items[1:]), types=NO_TYPES), types=NO_TYPES) == set(items[1:])


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"$nonsense": 1}, "$"),
        ({"a": {"$tuple": [], "b": 1}}, "$.a"),
        ({"a": [{"$tuple": 3}]}, "$.a[0]"),
        ({"$object": ["os.system", {"command": "true"}]}, "$"),
        ({"$object": ["Color", {}]}, "$"),
        ({"$object": ["Order", {"item": "x", "extra": 1}]}, "$"),
        ({"$object": ["Order", {}]}, "$"),
        ({"$enum": ["Color", "BLUE"]}, "$"),
        ({"$enum": ["Order", "item"]}, "$"),
        ({"$datetime": "yesterday"}, "$"),
        ({"$datetime": ["2026-01-01", "../../etc/passwd", 0]}, "$"),
        ({"$bytes": "***"}, "$"),
        ({"$uuid": "x"}, "$"),
        ({"$decimal": "ten"}, "$"),
        ({"$fraction": ["1", "0"]}, "$"),
        ({"$set": [[1]]}, "$"),
        ({"$dict": [[1]]}, "$"),
        ({"$int": "1e9"}, "$"),
        ({"$float": "1.5"}, "$"),
        ({"$timedelta": [1]}, "$"),
        ({"a": {1: 2}}, "$.a"),
        ({1: 2, 3: 4}, "$"),
        ({"$error": ["os.system", ["true"], {}]}, "$"),
        ({"$error": ["KeyError", [], []]}, "$"),
        ({"$error": ["UnicodeDecodeError", ["utf-8"], {}]}, "$"),
    ],
)
def test_from_tree_rejects_a_malformed_tree_with_its_path(tree: Tree, path: str) -> None:
    with pytest.raises(MalformedValue) as caught:
        from_tree(tree, types=TYPES)

    assert caught.value.path == path


@given(st.binary())
def test_decoding_random_bytes_raises_malformed_value_or_returns_a_tree(data: bytes) -> None:
    for decode, encode in ((decode_json, encode_json), (decode_cbor, encode_cbor)):
        try:
            tree = decode(data)
        except MalformedValue:
            continue
        assert isinstance(encode(tree), bytes)


def test_a_field_added_later_takes_its_default() -> None:
    old: Tree = {"$object": ["Order", {"item": "x"}]}

    assert from_tree(old, types=TYPES) == Order(item="x")


def test_known_types_rejects_two_classes_with_one_name() -> None:
    def another() -> type:
        @dataclass
        class Order:
            pass

        return Order

    with pytest.raises(ValueError, match="rename one"):
        KnownTypes.of(Order, another())


@dataclass
class Chain:
    next: Chain | None = None


def test_known_types_finds_classes_through_annotations() -> None:
    assert set(KnownTypes.of(dict[str, list[Order] | None]).classes) == {"Order", "Color", "Point"}
    assert set(KnownTypes.of(Chain).classes) == {"Chain"}


def test_fixed_offsets_and_folds_survive() -> None:
    moments = [
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 10, 25, 2, 30, fold=1),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    ]
    for moment in moments:
        assert same(from_tree(to_tree(moment, types=NO_TYPES), types=NO_TYPES), moment)


def test_to_tree_rejects_a_zone_that_is_not_the_one_of_its_name() -> None:
    nine_hours = (
        b"TZif" + bytes(16) + struct.pack(">6llbb4s", 0, 0, 0, 0, 1, 4, 9 * 3600, 0, 0, b"JST")
    )
    zone = ZoneInfo.from_file(BytesIO(nine_hours), key="Europe/Berlin")
    assert zone.utcoffset(datetime(2026, 1, 1)) == timedelta(hours=9)
    for value in (datetime(2026, 1, 1, tzinfo=zone), time(3, tzinfo=zone)):
        with pytest.raises(NotSerializable, match="what ZoneInfo gives"):
            to_tree([value], types=NO_TYPES)


def test_the_form_of_values_that_json_lacks() -> None:
    """Documents the format."""
    value = [date(2026, 1, 2), Fraction(1, 3), Decimal("1.50"), UUID(int=1), b"\x00", 2**64]

    assert to_tree(value, types=NO_TYPES) == [
        {"$date": "2026-01-02"},
        {"$fraction": ["1", "3"]},
        {"$decimal": "1.50"},
        {"$uuid": "00000000-0000-0000-0000-000000000001"},
        {"$bytes": b"\x00"},
        {"$int": "18446744073709551616"},
    ]


class Permission(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    LOW = 1


@dataclass(frozen=True)
class Rectangle:
    """Computes one field from the others."""

    width: int
    height: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.width * self.height)

    @cached_property
    def outline(self) -> int:
        return 2 * (self.width + self.height)


@dataclass
class Doubling:
    x: int

    def __post_init__(self) -> None:
        self.x *= 2


@dataclass
class Labelled(list[int]):
    label: str


@dataclass
class Seeded:
    seed: InitVar[int]
    x: int = 0


@pytest.mark.parametrize(
    "value",
    [
        Permission.READ | Permission.WRITE,
        Permission(0),
        Permission.READ,
        Bits(8),
        Bits.LOW,
        Rectangle(2, 3),
    ],
    ids=repr,
)
def test_flags_and_derived_fields_come_back(value: object) -> None:
    types = KnownTypes.of(type(value))
    if isinstance(value, Rectangle):
        assert value.outline == 10
    back = from_tree(to_tree(value, types=types), types=types)

    assert (type(back), back) == (type(value), value)


@dataclass
class Plain:
    x: int


def _with_more() -> Plain:
    plain = Plain(1)
    vars(plain)["colour"] = "red"
    return plain


class WithSlot(Plain):
    __slots__ = ("colour",)


def _with_slot() -> WithSlot:
    value = WithSlot(1)
    value.colour = "red"
    return value


@attrs.define
class Lengths:
    all: Any = attrs.field(converter=lambda parts: type(parts)(map(float, parts)))


def _later(parts: Any) -> Lengths:
    """Return Lengths whose converter has not seen `parts`."""
    value = Lengths([])
    object.__setattr__(value, "all", parts)
    return value


@attrs.frozen
class Circle:
    radius: int

    @cached_property
    def area(self) -> int:
        return 3 * self.radius**2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Doubling(1), "makes x=4 of x=2"),
        (_with_slot(), "colour"),
        (_later([1.0, 2]), r"makes all=\[1.0, 2.0\]"),
        (_later((True,)), r"makes all=\(1.0,\)"),
        (_later({1}), r"makes all=\{1.0\}"),
        (Labelled("a"), "built-in value besides its fields"),
        (Seeded(7), "cannot be rebuilt from its fields"),
        (_with_more(), "colour"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_to_tree_rejects_an_object_that_its_class_would_not_rebuild(
    value: object, reason: str
) -> None:
    with pytest.raises(NotSerializable, match=reason) as caught:
        to_tree([value], types=KnownTypes.of(type(value)))

    assert caught.value.path == "$[0]"


def test_cached_properties_and_converters_do_not_prevent_saving() -> None:
    circle = Circle(2)
    assert circle.area == 12
    types = KnownTypes.of(Circle, Lengths, WithSlot)

    for value in (circle, Lengths([1, math.nan]), WithSlot(1)):
        back = from_tree(to_tree(value, types=types), types=types)
        assert (type(back), repr(back)) == (type(value), repr(value))


class Parcel(msgspec.Struct, frozen=True):
    weight: int
    label: str = ""


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    parcels: tuple[Parcel, ...] = ()
    email: str | None = pydantic.Field(default=None, alias="mail")


@pytest.mark.parametrize(
    "value",
    [
        Success({"a": (1, 2)}),
        Failure([1.5]),
        Some(None),
        Nothing,
        Some(Success(Nothing)),
        Parcel(3, "x"),
        Customer(name="Ann", parcels=(Parcel(1),), mail="a@b"),
    ],
    ids=repr,
)
def test_results_maybes_structs_and_models_come_back(value: object) -> None:
    types = KnownTypes.of(Customer)
    for encode, decode in ((encode_json, decode_json), (encode_cbor, decode_cbor)):
        back = from_tree(decode(encode(to_tree(value, types=types))), types=types)
        assert (type(back), back) == (type(value), value)


class NotFound(Exception):
    """Takes other arguments than those that it passes on."""

    def __init__(self, item: str, *, place: Path) -> None:
        self.item = item
        self.place = place
        super().__init__(f"no {item} in {place}")


class Picky(Exception):
    """Would have another text when it is rebuilt."""

    def __str__(self) -> str:
        return str(id(self))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFound("cap", place=Path()), "NotFound is not declared"),
        (Picky(), "rebuilt from its args would be"),
        (KeyError(object()), r"\.args\[0\]: an object cannot be saved"),
    ],
)
def test_to_tree_rejects_an_exception_that_it_could_not_restore(
    error: Exception, reason: str
) -> None:
    with pytest.raises(NotSerializable, match=reason):
        to_tree(error, types=KnownTypes.of(Picky))


def test_a_model_keeps_which_of_its_fields_were_set() -> None:
    types = KnownTypes.of(Customer)
    for model in (Customer(name="Ann"), Customer(name="Ann", mail=None, parcels=())):
        back = from_tree(to_tree(model, types=types), types=types)
        assert back.model_fields_set == model.model_fields_set
    old: Tree = {"$object": ["Customer", {"name": "Ann", "parcels": {"$tuple": []}}]}
    assert from_tree(old, types=types).model_fields_set == {"name", "parcels"}
    others: list[Tree] = [["age"], [1], 7]
    for unknown in others:
        tree: Tree = {"$object": ["Customer", {"name": "Ann", "model_fields_set": unknown}]}
        with pytest.raises(MalformedValue):
            from_tree(tree, types=types)


@dataclass(frozen=True)
class Branch(Generic[T]):
    fruit: T
    smaller: Branch[T] | None = None
    larger: Branch[T] | None = None


@attrs.frozen
class Shipment:
    order: Order | Parcel
    customer: Customer | None
    level: Level
    weights: dict[Color, list[int]]
    by_weight: Branch[int]
    outcome: Success[int] | Failure[str]


PARCELS = st.builds(Parcel, st.integers(), TEXT)
CUSTOMERS = st.builds(
    Customer, name=TEXT, parcels=st.lists(PARCELS, max_size=2).map(tuple), mail=st.none() | TEXT
)
BRANCHES = st.recursive(
    st.builds(Branch[int], st.integers()),
    lambda inner: st.builds(Branch[int], st.integers(), st.none() | inner, st.none() | inner),
    max_leaves=6,
)
SHIPMENTS = st.builds(
    Shipment,
    st.builds(Order, item=TEXT, color=st.sampled_from(Color)) | PARCELS,
    st.none() | CUSTOMERS,
    st.sampled_from(Level),
    st.dictionaries(st.sampled_from(Color), st.lists(st.integers(), max_size=2)),
    BRANCHES,
    st.builds(Success, st.integers()) | st.builds(Failure, TEXT),
)


@given(SHIPMENTS)
def test_nested_classes_of_every_library_come_back(shipment: Shipment) -> None:
    types = KnownTypes.of(Shipment)
    tree = to_tree(shipment, types=types)

    for encode, decode in ((encode_json, decode_json), (encode_cbor, decode_cbor)):
        back = from_tree(decode(encode(tree)), types=types)
        assert back == shipment
        assert repr(back) == repr(shipment)


def shared_doubling(levels: int) -> bytes:
    """Return CBOR in which each list contains the previous one twice: 60 of them make 2**60 items."""
    lists = [b"\xd8\x1c\x82\x00\x00"]
    lists += [b"\xd8\x1c\x82" + 2 * (b"\xd8\x1d" + cbor2.dumps(n)) for n in range(levels - 1)]
    return b"\x98%c" % levels + b"".join(lists)


def repeated_text(times: int, size: int) -> bytes:
    """Return CBOR that contains a text of this size once, and refers to it this number of times."""
    references = b"\xd8\x19\x00" * times
    return (
        b"\xd9\x01\x00\x9a" + (times + 1).to_bytes(4, "big") + cbor2.dumps("a" * size) + references
    )


def test_text_may_contain_the_bytes_of_a_cbor_tag() -> None:
    assert decode_cbor(cbor2.dumps(["\u0625", "é", 1.7e9])) == ["\u0625", "é", 1.7e9]


@pytest.mark.parametrize("tag", [0, 1, 2, 4, 5, 25, 28, 29, 30, 35, 256, 258, 55799, 2**40])
def test_decode_cbor_rejects_tags(tag: int) -> None:
    for content in (0, "a", b"a", [], [1, 2]):
        with pytest.raises(MalformedValue, match="no tags"):
            decode_cbor(cbor2.dumps({"a": [cbor2.CBORTag(tag, content)]}))


@pytest.mark.parametrize("key", [b"\x82\x20\x21", b"\xa0", b"\x20", b"\xf6", b"\xf9\x7e\x00"])
def test_decode_cbor_rejects_keys_that_are_not_text(key: bytes) -> None:
    """Lists of -1 and -2 share one hash: building a map with such keys would take minutes."""
    with pytest.raises(MalformedValue, match="map key must be"):
        decode_cbor(b"\x81\xa1" + key + b"\x00")


def test_compact_data_cannot_expand_by_references() -> None:
    bomb = zlib.compress(repeated_text(10_000, 200_000), level=9)
    assert len(bomb) < 400

    with pytest.raises(MalformedValue, match="no tags"):
        decode_compact(bomb)


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("d81c81d81d00"),  # a list that holds itself
        b"\xd8\x23\x61a",  # a regular expression
        b"\xc1\x00",  # a datetime of CBOR's own
        b"\x9b\x00\x00\x00\xff\xff\xff\xff\xff",  # claims to have four thousand million items
        b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff",
        b"\x81" * 100_000 + b"\x00",
        b"\x82\x01",
        shared_doubling(5),
        shared_doubling(60),
    ],
    ids=lambda data: data[:6].hex(),
)
def test_decode_cbor_rejects_hostile_data(data: bytes) -> None:
    with pytest.raises(MalformedValue):
        from_tree(decode_cbor(data), types=NO_TYPES)


def test_decode_compact_rejects_damaged_data() -> None:
    steps: list[Tree] = ["validate", "charge", "ship"]
    tree: Tree = {"steps": steps * 5}
    data = encode_compact(tree)
    for cut in range(len(data)):
        with pytest.raises(MalformedValue):
            decode_compact(data[:cut])
    refused = 0
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_compact(bytes(changed)) == tree  # the last byte has unused bits
        except MalformedValue:
            refused += 1
    assert refused > len(data) * 8 - 8
    with pytest.raises(MalformedValue, match="follows"):
        decode_compact(data + b"more")


def test_the_size_of_decompressed_data_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "MAX_COMPACT_BYTES", LIMIT)
    bomb = zlib.compress(bytes(LIMIT + 1), level=9)

    with pytest.raises(MalformedValue, match="more than 1,000 bytes"):
        decode_compact(bomb)


@pytest.mark.parametrize(
    "value", [[1.5, math.nan], [(1,)], ["$"], {"$": 1}, {"a": "$tuple"}], ids=repr
)
def test_values_that_resemble_plain_data_come_back(value: Any) -> None:
    assert same(from_tree(to_tree(value, types=NO_TYPES), types=NO_TYPES), value)


def test_a_tree_does_not_share_lists_with_its_value() -> None:
    value = {"items": [1]}
    tree = to_tree(value, types=NO_TYPES)
    value["items"].append(2)

    assert tree == {"items": [1]}


@pytest.mark.parametrize("leaf", [math.nan, 2**70, b"", None, 1.5, "text"])
def test_a_value_that_to_tree_accepts_at_its_depth_can_be_read(leaf: object) -> None:
    value = leaf
    for _ in range(MAX_DEPTH + 2):
        try:
            tree = to_tree(value, types=NO_TYPES)
        except NotSerializable:
            return
        back = from_tree(tree, types=NO_TYPES)
        assert repr(back) == repr(value)
        value = [value]
    raise AssertionError("the depth is not limited")


class Deep(Enum):
    """Equal to the value of its member."""

    ONE = 1

    def __eq__(self, other: object) -> bool:
        return other in (1, self.name)

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("strange", [Deep.ONE, Level.LOW, (1,), UUID(int=1), math.nan], ids=repr)
def test_a_single_part_that_is_not_plain_keeps_its_type(strange: Any) -> None:
    rows: list[Any] = [{"n": [number, None, {"a": "b"}]} for number in range(100)]
    rows[50]["n"][2]["a"] = strange
    types = KnownTypes.of(Deep, Level)

    back = from_tree(to_tree(rows, types=types), types=types)

    assert same(back[50]["n"][2]["a"], strange)
    assert back[49] == rows[49]
    with pytest.raises(NotSerializable, match=r"\$\[50\]\.n\[2\]\.a"):
        to_tree([*rows[:50], {"n": [1, 2, {"a": Name("x")}]}], types=types)
