"""Pickling preserves values: exceptions field for field, and classes as they are."""

from __future__ import annotations

import copyreg
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from pydantic import BaseModel, ValidationError, field_validator
from pydantic_core import PydanticSerializationError
from tblib import pickling_support

from effectflow import RetryExhausted, TimedOut
from effectflow.effects import ExecutorLost, WorkerLost
from effectflow.executors.pickling import dumps, loads

texts = st.text(max_size=20)
numbers = st.integers()
positions = st.integers(0, 9)


class Renamed(Exception):
    def __init__(self, *, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code}: {text}")


@dataclass
class Loose(Exception):
    code: int
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen(Exception):
    code: int
    text: str


class FileTrouble(OSError):
    def __init__(self, path: str, code: int) -> None:
        super().__init__(code, "trouble", path)
        self.severity = -code


class ReducesItself(Exception):
    def __init__(self, text: str, secret: object) -> None:
        super().__init__(text)
        self.secret = secret

    def __reduce__(self) -> Any:
        return ReducesItself, (self.args[0], "kept back")


EXCEPTIONS: list[st.SearchStrategy[Exception]] = [
    st.builds(Renamed, code=numbers, text=texts),
    st.builds(Loose, code=numbers, texts=st.lists(texts)),
    st.builds(Frozen, numbers, texts),
    st.builds(FileTrouble, texts, st.integers(1, 100)),
    st.builds(PydanticSerializationError, texts),
    st.builds(FileNotFoundError, st.just(2), texts, texts),
    st.builds(KeyError, texts),
    st.builds(ValueError, texts, numbers),
    st.builds(UnicodeDecodeError, st.just("utf-8"), st.binary(), positions, positions, texts),
    st.builds(ImportError, texts, name=texts, path=texts),
    st.builds(json.JSONDecodeError, texts, st.just("doc"), st.integers(0, 2)),
    st.builds(subprocess.CalledProcessError, numbers, texts),
    st.builds(TimedOut, st.floats(allow_nan=False)),
    st.builds(RetryExhausted, texts, numbers, st.floats(0, 9)),
    st.builds(WorkerLost, texts, numbers, texts),
    st.builds(ExecutorLost, texts),
]


def shown(error: BaseException) -> dict[str, object]:
    """Return everything that is visible of an exception."""
    names = {name for name in dir(error) if not name.startswith("__")} | {"__notes__"}
    fields: dict[str, object] = {name: getattr(error, name, None) for name in names}
    return {"type": type(error), "text": str(error)} | {
        name: value for name, value in fields.items() if not callable(value)
    }


@given(st.one_of(EXCEPTIONS), st.lists(texts, max_size=2))
@example(json.JSONDecodeError("", "doc", 0), ["a note"])
@example(PydanticSerializationError("a"), ["a note"])
def test_an_exception_comes_back_field_for_field(error: Exception, notes: list[str]) -> None:
    if not isinstance(error, Frozen):
        for note in notes:
            error.add_note(note)

    assert shown(loads(dumps(error))) == shown(error)


@pytest.fixture
def reducers_of_dask() -> Iterator[None]:
    """The reducers of exceptions that Dask registers when it is imported."""
    before = dict(copyreg.dispatch_table)
    pickling_support.install()
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.mark.usefixtures("reducers_of_dask")
@pytest.mark.parametrize(
    "error",
    [PydanticSerializationError("a"), Renamed(code=1, text="a"), ReducesItself("a", "kept back")],
)
def test_exceptions_come_back_even_if_dask_registers_other_reducers(error: Exception) -> None:
    assert shown(loads(dumps(error))) == shown(error)


def test_a_class_with_its_own_reduce_is_left_alone() -> None:
    assert loads(dumps(ReducesItself("text", object()))).secret == "kept back"


class Line(BaseModel):
    number: int
    text: str

    @field_validator("text")
    @classmethod
    def has_text(cls, text: str) -> str:
        if not text:
            raise ValueError("empty")
        return text


def test_a_class_in_rust_with_its_own_reduce_is_left_alone() -> None:
    with pytest.raises(ValidationError) as raised:
        Line.model_validate({"number": "many", "text": ""})

    back = loads(dumps(raised.value))

    assert type(back) is ValidationError
    assert str(back) == str(raised.value)
    assert [error["loc"] for error in back.errors()] == [("number",), ("text",)]


def test_the_exceptions_of_a_group_come_back() -> None:
    group = loads(dumps(ExceptionGroup("both", [Renamed(code=1, text="a"), Frozen(2, "b")])))

    assert group.message == "both"
    first, second = group.exceptions
    assert (first.code, first.text, second.code, second.text) == (1, "a", 2, "b")


def test_an_exception_that_refers_to_itself_comes_back() -> None:
    error = Renamed(code=1, text="a")
    error.cause_of = [error]  # pyright: ignore[reportAttributeAccessIssue]

    back = loads(dumps(error))

    assert back.cause_of[0] is back


def test_lambdas_and_closures_can_be_pickled() -> None:
    def adding(number: int) -> Callable[[int], int]:
        return lambda other: number + other

    assert loads(dumps(adding(3)))(4) == 7


@pytest.mark.parametrize("kind", [Frozen, Loose])
def test_a_class_that_can_be_imported_is_pickled_by_name(kind: type) -> None:
    assert loads(dumps(kind)) is kind
    assert len(dumps(kind)) < 100


def test_code_that_is_sent_keeps_the_name_of_its_file() -> None:
    def local() -> None:
        pass

    again = loads(dumps(local))
    assert again is not local
    assert again.__code__.co_filename == __file__
