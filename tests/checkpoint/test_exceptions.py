"""Exceptions come back with all their attributes, or saving them fails."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attrs
import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, Workflow, fail, workflow
from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    Tree,
    decode_cbor,
    decode_json,
    encode_cbor,
    encode_json,
    from_tree,
    to_tree,
)
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, last

pytestmark = pytest.mark.anyio


@dataclass
class Plain(Exception):
    code: int


@dataclass(slots=True)
class Slotted(Exception):
    code: int

    def __str__(self) -> str:
        return "slotted"


@dataclass(frozen=True)
class Frozen(Exception):
    code: int

    def __str__(self) -> str:
        return "frozen"


@dataclass(frozen=True, slots=True)
class FrozenSlotted(Exception):
    code: int


@attrs.define
class OfAttrs(Exception):
    code: int
    reason: str = "none"


class WithSlots(Exception):
    __slots__ = ("__secret", "code", "unset")

    def __init__(self, *, code: int) -> None:
        super().__init__("with slots")
        self.code = code
        self.__secret = [code]

    @property
    def secret(self) -> list[int]:
        return self.__secret


class Derived(WithSlots):
    def __init__(self) -> None:
        super().__init__(code=9)
        self.note = "in its dict"


class NoSuchFile(FileNotFoundError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "No such file", name)
        self.shown = name.upper()


class ConnectionError(Exception):  # noqa: A001, the name of a built-in one on purpose
    pass


class NotFound(Exception):
    """Takes other arguments than those that it passes on."""

    def __init__(self, item: str, *, place: Path) -> None:
        self.item = item
        self.place = place
        super().__init__(f"no {item} in {place}")


class NoText(UnicodeDecodeError):
    def __init__(self, data: bytes) -> None:
        super().__init__("utf-8", data, 0, 1, "no text")


class Missing(ImportError):
    def __init__(self, name: str) -> None:
        super().__init__(f"install {name}", name=name)


def stopped() -> StopIteration:
    error = StopIteration(1)
    error.value = [2]
    return error


def written() -> OSError:
    error = BlockingIOError(11, "try again")
    error.characters_written = 100_000
    return error


def no_json() -> Exception:
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return error.with_traceback(None)
    raise AssertionError("it is not JSON")


ERRORS: list[Exception] = [
    Plain(5),
    Slotted(5),
    Frozen(5),
    FrozenSlotted(5),
    OfAttrs(5, "late"),
    WithSlots(code=5),
    Derived(),
    ConnectionError("no built-in one"),
    NotFound("cap", place=Path("a/b")),
    KeyError("cap"),
    FileNotFoundError(2, "No such file", "caps.txt"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    NoSuchFile("a"),
    NoText(b"\xff"),
    Missing("cbor2"),
    ImportError("x", name="n", path="p"),
    AttributeError("x", name="n"),
    NameError("x", name="n"),
    stopped(),
    written(),
    OSError(2, "no", "one", None, "two"),
    SyntaxError("bad", ("file.py", 3, 4, "text", 3, 5)),
    UnicodeEncodeError("ascii", "\xe9" * 1000, 900, 999, "no ASCII"),
    ExceptionGroup("both", [NameError("x", name="n"), Derived()]),
    no_json(),
]

by_class = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def parts(error: Any) -> tuple[Any, ...]:
    """Return all attributes of an exception, and those of the exceptions in it."""
    kept = {
        name: getattr(error, name, "unset")
        for name in dir(error)
        if not name.startswith("__") and not callable(getattr(error, name, None))
    }
    inner: list[Exception] = list(kept.pop("exceptions", ()))
    args = [arg for arg in error.args if arg != inner]
    return type(error), str(error), repr(args), repr(kept), [parts(part) for part in inner]


@by_class
def test_an_exception_in_a_value_comes_back_with_all_attributes(error: Exception) -> None:
    types = KnownTypes.of(type(error), WithSlots)
    for encode, decode in ((encode_json, decode_json), (encode_cbor, decode_cbor)):
        [back] = from_tree(decode(encode(to_tree([error], types=types))), types=types)
        assert parts(back) == parts(error)


def handling(error: Exception, seen: list[Any]) -> Workflow[App, None, Any, Any]:
    """Return a workflow that handles the error of a step and continues."""
    failing: Effect[object, Any, None] = fail(error)

    @workflow
    def handling(_: None) -> Do[App, Any, None]:
        caught = yield from failing.checkpointed("failing", error=type(error) | WithSlots).result()
        seen.append(caught.failure())
        yield from last()

    return handling


@by_class
async def test_a_handled_exception_comes_back_with_all_attributes(error: Exception) -> None:
    seen: list[Any] = []
    made, app = handling(error, seen), app_on(MemoryStore(), failing=["last"])
    assert await made.start(None, run_id="r").run(app) == Failure("crash here")
    app.world.recover()
    assert await made.resume("r").run(app) == Success(None)

    first, again = seen
    assert first is error
    assert again is not error
    assert parts(again) == parts(error)


class Quiet(UnicodeDecodeError):
    """Has the same text for any arguments."""

    def __str__(self) -> str:
        return "quiet"


class Marked(Exception):
    """Has an attribute as soon as it is created."""

    mark: int

    def __new__(cls, *args: object) -> Marked:
        error = super().__new__(cls, *args)
        error.mark = 1
        return error


def moved() -> Exception:
    error = Quiet("utf-8", b"\xff\xff", 0, 1, "no text")
    error.start = 1
    return error


def unmarked() -> Exception:
    error = Marked("x")
    del error.mark
    return error


@pytest.mark.parametrize("error", [moved(), unmarked()], ids=lambda error: type(error).__name__)
async def test_to_tree_rejects_an_exception_that_would_lose_or_gain_an_attribute(
    error: Exception,
) -> None:
    with pytest.raises(NotSerializable, match=r"rebuilt from its args(: | would be)"):
        to_tree(error, types=KnownTypes.of(Quiet, Marked))
    seen: list[Any] = []
    async with MemoryStore() as store:
        ended = await handling(error, seen).start(None).run(App(Checkpoints(store)))
    assert isinstance(ended, Failure)
    assert isinstance(ended.failure(), NotSerializable)


def test_the_object_that_lacked_an_attribute_is_not_saved() -> None:
    with pytest.raises(AttributeError) as raised:
        threading.Lock().name  # type: ignore[attr-defined]  # noqa: B018
    back = from_tree(to_tree(raised.value, types=KnownTypes.of()), types=KnownTypes.of())
    assert (back.name, back.obj, back.args) == ("name", None, raised.value.args)


@pytest.mark.parametrize(
    "tree",
    [
        {"$error": ["ValueError", [], {"__notes__": 5}]},
        {"$error": ["UnicodeDecodeError", ["a", {"$bytes": ""}, 0, 1, "r"], {"start": 10**6}]},
        {"$error": ["UnicodeDecodeError", ["a", {"$bytes": ""}, 0, 1, "r"], {"object": None}]},
        {"$error": ["UnicodeDecodeError", ["a", {"$bytes": ""}, {"$int": f"{2**70}"}, 1, "r"], {}]},
        {"$error": ["BlockingIOError", [11, "x"], {"characters_written": "many"}]},
        {"$error": ["ExceptionGroup", ["x", [{"$error": ["KeyError", [], {}]}]], {"message": 1}]},
    ],
    ids=str,
)
def test_from_tree_rejects_attributes_that_exceptions_cannot_have(tree: Tree) -> None:
    with pytest.raises(MalformedValue):
        from_tree(tree, types=KnownTypes.of())
