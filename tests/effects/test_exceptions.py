"""Every exception of the package is copied and pickled whole, and a process pool returns it whole."""

from __future__ import annotations

import copy
import copyreg
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from returns.result import Failure, Success

import effectflow
from effectflow import Effect, fail, pure, sleep
from effectflow.builders.machine._states import StateSet
from effectflow.checkpoint.entries import ErrorRecord
from effectflow.effects import traverse
from effectflow.effects.trails import add_note
from effectflow.executors import ProcessExecutor
from effectflow.service.structured_input import Problem


def exception_classes() -> Iterator[type[BaseException]]:
    """Find the exceptions of all modules, except those whose name begins with an underscore."""
    for module in pkgutil.walk_packages(effectflow.__path__, "effectflow."):
        if module.name.endswith("__main__"):
            continue
        for name, found in vars(importlib.import_module(module.name)).items():
            is_ours = isinstance(found, type) and found.__module__ == module.name
            if is_ours and issubclass(found, BaseException) and not name.startswith("_"):
                yield found


PUBLIC = (
    *("effects", "checkpoint", "runs", "machines", "graphs", "mapreduce", "iterative"),
    *("executors", "service", "stores", "testing"),
)
"""The packages and modules whose names are public."""


def public_exception_classes() -> Iterator[type[BaseException]]:
    """Find the exceptions that the packages and modules export."""
    found: dict[type[BaseException], None] = {}
    for name in PUBLIC:
        page = importlib.import_module(f"effectflow.{name}")
        exported = [getattr(page, name) for name in vars(page).get("__all__", vars(page))]
        kinds = [one for one in exported if isinstance(one, type)]
        found |= dict.fromkeys(kind for kind in kinds if issubclass(kind, BaseException))
    yield from found


def example_of(kind: type[BaseException], *, is_short: bool = False) -> BaseException:
    """Return an exception with an argument for every parameter, by the parameter's annotation.

    If it is short, parameters that may be omitted are, and the others that may be None are.
    """
    if "__init__" not in vars(kind) and not any("__init__" in vars(base) for base in _ours(kind)):
        return kind("it failed")
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    for parameter in inspect.signature(kind).parameters.values():
        value = _example_of_parameter(kind, parameter)
        if is_short and parameter.default is not parameter.empty:
            continue
        if is_short and "None" in str(parameter.annotation):
            value = None
        if parameter.kind is parameter.KEYWORD_ONLY:
            options[parameter.name] = value
        else:
            arguments.append(value)
    return kind(*arguments, **options)


def _ours(kind: type) -> Iterator[type]:
    return (base for base in kind.__mro__ if base.__module__.startswith("effectflow"))


EXAMPLES: dict[str, Any] = {
    "str": "a text",
    "str | None": "a text",
    "int": 3,
    "int | None": 3,
    "float": 1.5,
    "float | None": 1.5,
    "bool": True,
    "Any": Failure("declined"),
    "object": {"amount": 5},
    "E": "declined",
    "E | WorkerLost | TimedOut": "declined",
    "Exception": ValueError("inside"),
    "Sequence[str]": ("first", "second"),
    "Iterable[str]": ("first", "second"),
    "Sequence[Problem]": (Problem(("items", 3), "Field required"),),
    "Sequence[tuple[str, str]]": (("old", "new"),),
    "Mapping[str, int]": {"first": 2},
    "Mapping[str, str]": {"first": "wrong"},
    "Mapping[str, Sequence[str]]": {"first": ("one", "two")},
    "tuple[str, ...]": ("first", "second"),
    "ErrorRecord": ErrorRecord("app.Declined", "no money", {"args": [5], "state": {}}),
    "StateSet": StateSet.named("paid", "sent"),
    "Literal['entry', 'run', 'message']": "message",
}


def _example_of_parameter(kind: type, parameter: inspect.Parameter) -> Any:
    assert parameter.annotation in EXAMPLES, (
        f"{kind.__qualname__} has the parameter {parameter}: add an example for its annotation"
    )
    return EXAMPLES[parameter.annotation]


def shown(error: BaseException) -> dict[str, Any]:
    """Return all that an exception consists of, with what has no equality as text."""
    state = {
        name: part
        if type(part).__eq__ is not object.__eq__ and not isinstance(part, BaseException)
        else f"{type(part).__qualname__}: {part}"
        for name, part in vars(error).items()
    }
    return {"class": type(error), "args": error.args, "message": str(error), **state}


def with_a_note(kind: type[BaseException]) -> BaseException:
    error = example_of(kind)
    error.add_note("a note")
    return error


def noted(kind: type[BaseException]) -> BaseException:
    error = with_a_note(kind)
    add_note(error, "a note of the library")
    return error


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
}


@pytest.fixture
def no_reducers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget how libraries of the tests copy all exceptions: Dask does, and most programs have none."""
    for kind in [kind for kind in copyreg.dispatch_table if issubclass(kind, BaseException)]:
        monkeypatch.delitem(copyreg.dispatch_table, kind)


EXCEPTIONS = [*exception_classes()]
PUBLIC = {*public_exception_classes()}


@pytest.mark.usefixtures("no_reducers")
@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__qualname__)
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_of_an_exception_is_whole_and_has_its_own_notes(
    kind: type[BaseException], make: Callable[[Any], Any]
) -> None:
    error = noted(kind)

    made = make(error)

    assert made is not error
    assert shown(made) == shown(error)
    assert made.__notes__ == ["a note", "a note of the library"]
    if kind in PUBLIC:
        add_note(made, "later")
        assert error.__notes__ == ["a note", "a note of the library"]


def test_a_traceback_names_no_private_module() -> None:
    assert not [kind for kind in PUBLIC if "._" in kind.__module__]


def test_the_exceptions_are_found() -> None:
    names = {kind.__name__ for kind in EXCEPTIONS}

    assert {"TimedOut", "RetryExhausted", "RunBusy", "ItemFailed", "NoEdge", "Crashed"} <= names


@pytest.mark.usefixtures("no_reducers")
@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__qualname__)
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_copy_is_raised_as_the_original_would_be(
    kind: type[BaseException], make: Callable[[Any], Any]
) -> None:
    original = example_of(kind, is_short=True)
    with pytest.raises(kind):
        raise original

    error = make(make(original))

    assert shown(error) == shown(original)
    with pytest.raises(kind) as raised:
        raise error
    assert raised.value is error
    assert repr(error) == repr(original)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_process_pool_returns_every_exception_whole() -> None:
    kinds = [kind for kind in EXCEPTIONS if issubclass(kind, Exception)]
    async with ProcessExecutor(limit=1) as executor:
        failing = traverse(kinds, lambda kind: executor.apply(failing_with, kind).result())
        results = (await failing.run(None)).unwrap()

    for kind, result in zip(kinds, results, strict=True):
        assert isinstance(result, Failure)
        assert shown(result.failure()) == shown(with_a_note(kind))


def failing_with(kind: type[BaseException]) -> Effect[object, BaseException, None]:
    return fail(with_a_note(kind))


@pytest.mark.anyio
async def test_a_timeout_is_a_timeout_error() -> None:
    late = sleep(60).timeout(0.001)

    recovered = late.recover(TimeoutError, lambda error: pure(str(error)))

    assert await recovered.run(None) == Success("it took longer than 0.001 s, and was cancelled")
    with pytest.raises(TimeoutError, match="longer than"):
        await late.run_or_raise(None)
