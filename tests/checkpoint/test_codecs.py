"""Codecs for types of one's own, types of pydantic, and secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pydantic
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, fail, par_traverse, pure, step, workflow
from effectflow.checkpoint import (
    Codec,
    CorruptCheckpoint,
    Encryption,
    NotSerializable,
    StepInputChanged,
    find_run,
    read_checkpoint,
    read_entries,
)
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    decode_cbor,
    decode_json,
    digest_of,
    encode_arguments,
    encode_cbor,
    encode_json,
    from_tree,
    options_of,
    render_arguments,
    to_tree,
)
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore
from tests.apps import App, World, app_on, last


class Money:
    """A class of which effectflow knows nothing."""

    def __init__(self, cents: int, currency: str) -> None:
        self.cents = cents
        self.currency = currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.cents, self.currency))


MONEY = Codec(
    Money, tag="money", encode=lambda it: (it.cents, it.currency), decode=lambda it: Money(*it)
)
EURO = Money(150, "EUR")


@dataclass(frozen=True)
class Price:
    net: Money
    by_country: dict[str, Money] = field(default_factory=dict[str, Money])


class Priced(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    price: Money


ENCODINGS: Any = pytest.mark.parametrize(
    ("encode", "decode"), [(encode_json, decode_json), (encode_cbor, decode_cbor)]
)


@ENCODINGS
@pytest.mark.parametrize(
    "value",
    [
        EURO,
        [EURO, (EURO,)],
        {EURO},
        frozenset({EURO}),
        {EURO: EURO},
        {"a": {1: EURO}},
        Price(EURO, {"at": EURO}),
        Priced(price=EURO),
        Success(EURO),
    ],
)
def test_a_codec_works_in_every_position(value: object, encode: Any, decode: Any) -> None:
    types = KnownTypes(KnownTypes.of(Price, Priced).classes, options=options_of([MONEY], None))
    assert from_tree(decode(encode(to_tree(value, types=types))), types=types) == value


def test_values_with_a_codec_have_digests_and_previews() -> None:
    options = options_of([MONEY], None)
    assert digest_of([EURO], options=options) == digest_of([Money(150, "EUR")], options=options)
    assert digest_of([EURO], options=options) != digest_of([Money(151, "EUR")], options=options)
    _, preview = encode_arguments({"price": EURO}, path="pay", options=options)
    assert render_arguments(preview) == "(price=money((150, 'EUR')))"


def test_without_the_codec_the_tag_is_named_and_nothing_is_made() -> None:
    tree = to_tree(EURO, types=KnownTypes(options=options_of([MONEY], None)))
    assert tree == {"$codec": ["money", {"$tuple": [150, "EUR"]}]}
    with pytest.raises(MalformedValue, match="no codec has the tag 'money'"):
        from_tree(tree, types=KnownTypes())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Codec(Money, tag="My Money", encode=str, decode=lambda _: EURO),
        lambda: Codec(int, tag="int", encode=str, decode=int),
        lambda: Codec(KeyError, tag="key", encode=str, decode=KeyError),
        lambda: Checkpoints(MemoryStore(), codecs=[MONEY, MONEY]),
    ],
)
def test_a_codec_must_have_a_tag_and_a_class_of_its_own(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="codec"):
        make()


async def encode_later(money: Money) -> int:
    return money.cents


async def decode_later(cents: int) -> Money:
    return Money(cents, "EUR")


WRONG: Any = {"kind": list[Money], "tag": 5, "encode": "cents", "codecs": [Money]}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Codec(Money, tag="money", encode=encode_later, decode=lambda _: EURO),
            "`encode` of the Codec for Money takes a plain function, .* await anything else in a step",
        ),
        (
            lambda: Codec(Money, tag="money", encode=str, decode=partial(decode_later)),
            "`decode` of the Codec for Money takes a plain function",
        ),
        (
            lambda: Codec(Money, tag="money", encode=WRONG["encode"], decode=lambda _: EURO),
            "`encode` of the Codec for Money takes a function, not 'cents'",
        ),
        (
            lambda: Codec(WRONG["kind"], tag="money", encode=str, decode=lambda _: EURO),
            "a Codec saves the values of a class, not list",
        ),
        (
            lambda: Codec(Money, tag=WRONG["tag"], encode=str, decode=lambda _: EURO),
            "the tag of the Codec for Money is text, not 5",
        ),
        (
            lambda: Checkpoints(MemoryStore(), codecs=WRONG["codecs"]),
            r"codecs takes a list of Codecs, such as Codec\(Money, tag='money', .*, not <class .*Money",
        ),
        (
            lambda: Checkpoints(MemoryStore(), codecs=MONEY),  # pyright: ignore[reportArgumentType]  # refused
            r"codecs takes a list of Codecs, such as .*, not Codec\(kind=",
        ),
    ],
)
def test_anything_but_a_codec_is_rejected_at_once(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_errors_of_a_codec_name_it_and_the_path() -> None:
    broken = Codec(Money, tag="broken", encode=lambda _: 1 / 0, decode=lambda _: EURO)
    with pytest.raises(NotSerializable, match=r"\$\[1\]: the codec 'broken' raised ZeroDivision"):
        to_tree([1, EURO], types=KnownTypes(options=options_of([broken], None)))
    text: Any = "text"
    other = Codec(Money, tag="other", encode=lambda _: None, decode=lambda _: text)
    types = KnownTypes(options=options_of([other], None))
    with pytest.raises(MalformedValue, match="the codec 'other' made 'text', not a Money"):
        from_tree(to_tree(EURO, types=types), types=types)


@step
def double(price: Money) -> Effect[App, str, Money]:
    return pure(Money(price.cents * 2, price.currency))


@step
def refuse(price: Money) -> Effect[App, Price, Money]:
    return fail(Price(price))


@workflow
def paying(price: Money) -> Do[App, str, dict[Money, Price]]:
    prices = yield from par_traverse([price, price], double)
    refused = (yield from refuse(prices[0]).result()).failure()
    yield from last()
    return {price: refused}


@pytest.mark.anyio
@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_inputs_arguments_outputs_errors_and_items_have_codecs(
    format: Literal["json", "cbor"],
) -> None:
    app = app_on(MemoryStore(), failing={"last"}, codecs=[MONEY], format=format)
    assert await paying.start(EURO, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    done = Success({EURO: Price(Money(300, "EUR"))})
    assert await paying.resume("r").run(app) == done
    assert await paying.start(EURO, run_id="r").run(app) == done
    without = App(Checkpoints(app.checkpoints.store))
    result = await paying.resume("r").run(without)
    assert isinstance(result.failure(), CorruptCheckpoint)
    assert "no codec has the tag 'money'" in str(result.failure())


@pytest.mark.anyio
async def test_states_and_nested_runs_have_codecs() -> None:
    halving = (
        StateGraph[App, str, Money]("halving")
        .node("halve", lambda it: pure(Money(it.cents // 2, it.currency)))
        .node("end", lambda it: last().map(lambda _: it))
        .edge("halve", "end")
        .entry("halve")
        .exit("end")
        .build()
    )

    @workflow
    def outer(price: Money) -> Do[App, Any, Money]:
        return (yield from halving.call(price))

    app = app_on(MemoryStore(), failing={"last"}, codecs=[MONEY])
    assert await outer.start(EURO, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    assert await outer.resume("r").run(app) == Success(Money(75, "EUR"))


# Types of pydantic.


class Page(pydantic.BaseModel):
    url: pydantic.HttpUrl
    database: pydantic.PostgresDsn | None = None


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    count: int = 0
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)
    _hits: int = pydantic.PrivateAttr()


class Closed(pydantic.BaseModel):
    name: str


def opened(**fields: Any) -> Open:
    made = Open(name="a", **fields)
    made._seen.append(5)
    return made


@ENCODINGS
@pytest.mark.parametrize(
    "value",
    [
        Page.model_validate(
            {"url": "https://example.org/a?b=c", "database": "postgresql://a:b@c/d"}
        ),
        {pydantic.HttpUrl("https://example.org"): pydantic.AnyUrl("ftp://x/y")},
        Open(name="a"),
        opened(),
        opened(model_extra=1, size=(1, 2), count=5),
    ],
)
def test_urls_extra_fields_and_private_attributes_come_back(
    value: Any, encode: Any, decode: Any
) -> None:
    types = KnownTypes.of(Page, Open)
    back = from_tree(decode(encode(to_tree(value, types=types))), types=types)
    assert back == value
    if isinstance(value, Open):
        assert back.model_fields_set == value.model_fields_set
        assert back.model_extra == value.model_extra
        assert back.__pydantic_private__ == value.__pydantic_private__


def test_extra_fields_and_private_attributes_have_a_part_in_digests() -> None:
    values = [Open(name="a"), opened(), opened(size=1), opened(size=2)]
    assert len({digest_of(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a", "__pydantic_extra__": {"b": 1}},
        {"name": "a", "__pydantic_private__": {"_b": 1}},
        {"name": "a", "b": 1},
    ],
)
def test_stored_data_adds_nothing_to_a_model_that_allows_nothing(fields: Any) -> None:
    with pytest.raises(MalformedValue, match="Closed has no"):
        from_tree({"$object": ["Closed", fields]}, types=KnownTypes.of(Closed))


@pytest.mark.parametrize(
    "tree", [{"$url": ["BaseModel", "x"]}, {"$url": ["HttpUrl", "x"]}, {"$secret": ["Page", "x"]}]
)
def test_stored_data_cannot_name_other_classes_of_pydantic(tree: Any) -> None:
    with pytest.raises(MalformedValue):
        from_tree(tree, types=KnownTypes())


# Secrets.

CLEAR = "hunter2-hunter2"
KEYS = {"old": bytes(range(32)), "new": bytes(range(32, 64))}


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr
    token: pydantic.SecretBytes = pydantic.SecretBytes(b"")


LOGIN = Login(user="ann", password=pydantic.SecretStr(CLEAR), token=pydantic.SecretBytes(b"\xff"))


@step
def enter(login: Login) -> Effect[App, str, Login]:
    return pure(login)


@workflow
def entering(login: Login) -> Do[App, str, Login]:
    entered = yield from par_traverse([login], enter)
    yield from last()
    return entered[0]


def encrypted(store: MemoryStore, current: str = "old", **world: Any) -> App:
    return App(Checkpoints(store, encryption=Encryption(current, KEYS)), World(**world))


@pytest.mark.anyio
async def test_secrets_are_rejected_without_encryption(caplog: pytest.LogCaptureFixture) -> None:
    app = app_on(MemoryStore(), key=b"a key only signs, it does not hide")
    result = await entering.start(LOGIN, run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "input: $.password: a secret is saved only encrypted" in str(result.failure())
    assert CLEAR not in str(result.failure()) + caplog.text
    assert await find_run(app.checkpoints.store, "r") is None

    @workflow
    def body(_: None) -> Do[App, str, str]:
        return (yield from enter(LOGIN)).user

    result = await body.start(None, run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert CLEAR not in str(result.failure())


@pytest.mark.anyio
async def test_encrypted_secrets_come_back_and_nothing_shows_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    store, seen = MemoryStore(), list[object]()

    class Seeing:
        def notify(self, event: object) -> None:
            seen.append(event)

    app = encrypted(store, failing={"last"})
    watched = App(
        Checkpoints(store, encryption=app.checkpoints.encryption, observers=[Seeing()]), app.world
    )
    assert await entering.start(LOGIN, run_id="r").run(watched) == Failure("crash here")
    checkpoint = await read_checkpoint(store, "r", app.checkpoints.seal)
    entries = await read_entries(store, "r", app.checkpoints.seal)
    app.world.recover()
    result = await entering.resume("r").run(watched)
    assert result == Success(LOGIN)
    assert result.unwrap().password.get_secret_value() == CLEAR
    shown = [repr(seen), checkpoint.to_json(), repr(entries), repr(result), caplog.text]
    shown += [repr(record) for record in await store.read("r")]
    for text in shown:
        assert CLEAR not in text
    assert "**********" in repr(entries)


@pytest.mark.anyio
async def test_a_new_key_changes_neither_inputs_nor_arguments() -> None:
    store = MemoryStore()
    app = encrypted(store, failing={"last"})
    assert await entering.start(LOGIN, run_id="r").run(app) == Failure("crash here")
    rotated = encrypted(store, "new")
    assert await entering.start(LOGIN, run_id="r").run(rotated) == Success(LOGIN)
    assert await entering.start(LOGIN, run_id="r").run(encrypted(store)) == Success(LOGIN)


@pytest.mark.anyio
async def test_another_secret_is_another_argument_and_no_message_shows_either() -> None:
    chosen = [LOGIN]

    @workflow
    def body(_: None) -> Do[App, str, None]:
        yield from enter(chosen[0])
        yield from last()

    app = encrypted(MemoryStore(), failing={"last"})
    await body.start(None, run_id="r").run(app)
    chosen[0] = LOGIN.model_copy(update={"password": pydantic.SecretStr("another")})
    result = await body.resume("r").run(app)
    assert isinstance(result.failure(), StepInputChanged)
    assert "another" not in str(result.failure()).replace("another input", "")
    assert CLEAR not in str(result.failure())
    assert "with arguments of digest" in str(result.failure())
