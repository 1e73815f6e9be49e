"""A step whose output could not be saved is rejected before it acts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import pydantic
import pytest
from returns.maybe import Maybe
from returns.result import Success

from effectflow import Do, Effect, step, workflow
from effectflow.checkpoint import (
    BeforeStep,
    Codec,
    NotSerializable,
    Step,
    find_run,
    read_entries,
)
from effectflow.checkpoint.values import KnownTypes, check_savable, options_of
from effectflow.effects import from_fn
from effectflow.stores import MemoryStore
from tests.apps import App, app_on

if TYPE_CHECKING:
    from somewhere import Unknown  # pyright: ignore[reportMissingImports]

T = TypeVar("T")


class Connection:
    """A class of which effectflow knows nothing."""


@dataclass
class Session:
    connection: Connection | None


@dataclass
class Login:
    sessions: list[Session]


@dataclass
class Hidden:
    part: Unknown


class Pair(NamedTuple):
    left: socket.socket


class Row(TypedDict):
    connection: Connection


@dataclass
class Id(Generic[T]):
    """The id of a T, which it does not have."""

    text: str


@dataclass
class Box(Generic[T]):
    content: T


class Array(Generic[T]):
    """A class of another package, whose parameter is not part of its values."""


class Sized(Protocol):
    def size(self) -> int: ...


class Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    connection: Connection


@pytest.mark.parametrize(
    ("annotation", "where", "reason"),
    [
        (Connection, "it", "a Connection cannot be saved"),
        (list[Connection], "it", "a Connection cannot be saved"),
        (dict[str, int | Connection], "it", "a Connection cannot be saved"),
        (bytearray, "it", "a bytearray cannot be saved"),
        (Login, "it: Session.connection", "a Connection cannot be saved"),
        (Hidden, "it: Hidden.part", "'Unknown'.*cannot be resolved"),
        (Pair | None, "it: Pair.left", "a socket cannot be saved"),
        (Row, "it: Row.connection", "a Connection cannot be saved"),
        (Box[Connection], "it", "a Connection cannot be saved"),
        (pydantic.SecretStr, "it", "saved only encrypted"),
    ],
)
def test_a_class_that_cannot_be_saved_is_named_with_its_field(
    annotation: object, where: str, reason: str
) -> None:
    with pytest.raises(NotSerializable, match=reason) as refused:
        check_savable(annotation, KnownTypes.of(annotation), path="it")
    assert refused.value.path == where


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        T,
        Sized,
        Maybe[int],
        Form,
        pydantic.HttpUrl,
        type(None),
        int | None,
        Id[Connection],
        list[Id[Connection]],
        Annotated[list[int], "sorted"],
    ],
)
def test_a_type_of_which_values_can_be_saved_is_accepted(annotation: object) -> None:
    check_savable(annotation, KnownTypes.of(annotation), path="it")


def test_a_codec_makes_a_class_savable() -> None:
    codec = Codec(
        Connection, tag="connection", encode=lambda _: None, decode=lambda _: Connection()
    )
    types = KnownTypes(KnownTypes.of(Login).classes, options=options_of([codec], None))
    check_savable(Login, types, path="it")


def test_the_parameters_of_a_class_with_a_codec_are_no_parts_of_it() -> None:
    codec = Codec(Array, tag="array", encode=lambda _: None, decode=lambda _: Array[object]())
    types = KnownTypes(options=options_of([codec], None))
    check_savable(dict[str, Array[Connection]], types, path="it")


def test_what_one_codec_makes_savable_is_not_savable_with_other_options() -> None:
    codec = Codec(Array, tag="array", encode=lambda _: None, decode=lambda _: Array[object]())
    for _ in range(20):
        # The memory of the options is used again by the next ones.
        check_savable(Array, KnownTypes(options=options_of([codec], None)), path="it")
        with pytest.raises(NotSerializable):
            check_savable(Array, KnownTypes(options=options_of([], None)), path="it")


def acting(declared: Any, world: list[str]) -> Any:
    def act(*_: object) -> Effect[App, str, Any]:
        return from_fn(lambda _: world.append("acted"))

    act.__annotations__ = {"return": Effect[App, str, declared]}
    return act


@pytest.mark.anyio
async def test_a_step_with_an_output_that_cannot_be_saved_does_not_act() -> None:
    acted: list[str] = []
    act = step(acting(Login, acted))

    @workflow
    def body(_: None) -> Do[App, str, None]:
        yield from act()

    app = app_on(MemoryStore())
    result = await body.start(None, run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "act: Session.connection: a Connection cannot be saved" in str(result.failure())
    assert acted == []
    # Nothing was recorded of the step.
    entries = await read_entries(app.checkpoints.store, "r")
    assert not [entry for entry in entries if isinstance(entry, BeforeStep)]


@pytest.mark.anyio
async def test_a_class_in_a_function_is_rejected_before_the_step_acts() -> None:
    acted: list[str] = []

    @dataclass
    class Local:
        name: str

    @step
    def make() -> Effect[App, str, Local]:
        return from_fn(lambda _: acted.append("acted") or Local("x"))

    @workflow
    def body(_: None) -> Do[App, str, str]:
        return (yield from make()).name

    result = await body.start(None).run(app_on(MemoryStore()))
    assert isinstance(result.failure(), NotSerializable)
    assert "make: the name 'Local' in its annotation cannot be resolved" in str(result.failure())
    assert acted == []


@pytest.mark.anyio
async def test_an_output_of_a_workflow_that_cannot_be_saved_is_rejected_before_it_starts() -> None:
    acted: list[str] = []
    app = app_on(MemoryStore())
    result = await workflow(name="body")(acting(Session, acted)).start(None, run_id="r").run(app)
    assert isinstance(result.failure(), NotSerializable)
    assert "output: Session.connection" in str(result.failure())
    assert acted == []
    assert await find_run(app.checkpoints.store, "r") is None


@step
def make_later() -> Effect[App, Unknown, Later]:
    return from_fn(lambda _: Later("x"))


@workflow
def with_later(given: Later) -> Do[App, str, Later]:
    return (yield from make_later())


@dataclass
class Later:
    """Follows the functions that name it."""

    name: str


@pytest.mark.anyio
async def test_names_that_follow_in_the_module_and_those_of_unknown_errors_do_not_matter() -> None:
    assert isinstance(make_later, Step)
    result = await with_later.start(Later("y")).run(app_on(MemoryStore()))
    assert result == Success(Later("x"))
