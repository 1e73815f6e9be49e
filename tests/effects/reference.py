"""A small reference interpreter: what effects mean, said a second time and as plainly as can be.

A `Tree` is a program as data. `build` makes the effect of it; `expected` says what running it does,
by plain recursion, exceptions and a list. Both write what they do to a log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st
from returns.result import Failure, Result, Success

from effectflow import Effect, do, fail, par, pure
from effectflow.effects import Defect, Interruption, die, from_async, from_fn, suspend, traverse

Tree: TypeAlias = tuple[Any, ...]
AnyEffect: TypeAlias = Effect[int, Any, Any]


class Bug(Exception):
    """The one defect of these programs. Two are equal if they say the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bug) and self.args == other.args

    __hash__ = Exception.__hash__


class Failing(Exception):
    """How the reference interpreter carries a typed failure."""

    def __init__(self, error: Any) -> None:
        self.error = error


@dataclass(frozen=True)
class Ended:
    """What running a program did: how it ended, and what it logged meanwhile."""

    ending: object
    log: tuple[str, ...]


leaves = st.one_of(
    st.tuples(st.just("pure"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.sampled_from("xyz")),
    st.tuples(st.just("die"), st.sampled_from("xyz")),
    st.tuples(st.just("log"), st.sampled_from("abc")),
    st.tuples(st.just("await"), st.sampled_from("abc")),
    st.tuples(st.just("ask")),
)


def _grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    one = (
        "map",
        "map_err",
        "result",
        "local",
        "suspend",
        "context",
        "named",
        "fallback",
        "collect",
    )
    two = (
        "and_then",
        "or_else",
        "tap",
        "tap_err",
        "zip",
        "on_exit",
        "fallback_to",
        "do",
        "traverse",
    )
    return st.one_of(
        st.tuples(st.sampled_from(one), inner), st.tuples(st.sampled_from(two), inner, inner)
    )


trees: st.SearchStrategy[Tree] = st.recursive(leaves, _grown, max_leaves=25)


def build(tree: Tree, log: list[str]) -> AnyEffect:
    """The effect of a program."""

    async def write_later(text: str) -> str:
        log.append(text)
        return text

    def write(text: str) -> str:
        log.append(text)
        return text

    match tree:
        case "pure", value:
            return pure(value)
        case "fail", error:
            return fail(error)
        case "die", text:
            return die(Bug(text))
        case "log", text:
            return from_fn(lambda _: write(text))
        case "await", text:
            return from_async(lambda _: write_later(text))
        case ("ask",):
            return from_fn(lambda env: env)
        case operator, source:
            return _build_one(operator, build(source, log), log)
        case operator, source, other:
            return _build_two(operator, build(source, log), build(other, log), log)
    raise AssertionError(tree)


def _build_one(operator: str, source: AnyEffect, log: list[str]) -> AnyEffect:
    match operator:
        case "map":
            return source.map(lambda value: ("mapped", value))
        case "map_err":
            return source.map_err(lambda error: f"mapped {error}")
        case "result":
            return source.result()
        case "local":
            return source.local(lambda env: env + 1)
        case "suspend":
            return suspend(lambda: source)
        case "context":
            return source.context("context")
        case "named":
            return source.named("name")
        case "fallback":
            return source.fallback("instead")
        case "collect":
            return source.collecting().map(lambda both: both[0])
    raise AssertionError(operator)


def _build_two(operator: str, source: AnyEffect, other: AnyEffect, log: list[str]) -> AnyEffect:
    match operator:
        case "and_then":
            return source.and_then(lambda value: other.map(lambda second: (value, second)))
        case "or_else":
            return source.or_else(lambda error: other.map(lambda value: (error, value)))
        case "tap":
            return source.tap(lambda _: other)
        case "tap_err":
            return source.tap_err(lambda _: other)
        case "zip":
            return source.zip(other)
        case "on_exit":
            # A finalizer must not fail, so this one shows how the other effect would have.
            def finalize(ended: object) -> AnyEffect:
                log.append(f"exit {kind_of(ended)}")
                return other.result()

            return source.on_exit(finalize)
        case "fallback_to":
            return source.fallback_to(other)
        case "do":

            @do
            def body() -> Any:
                first = yield from source
                log.append("between")
                second = yield from other
                return [first, second]

            return body()
        case "traverse":
            return traverse([source, other], lambda effect: effect)
    raise AssertionError(operator)


def expected(tree: Tree, env: int) -> Ended:
    """What running a program does."""
    log: list[str] = []
    try:
        ending: object = Success(_value(tree, env, log))
    except Failing as failing:
        ending = Failure(failing.error)
    except Bug as bug:
        ending = bug
    return Ended(ending, tuple(log))


def _value(tree: Tree, env: int, log: list[str]) -> Any:
    match tree:
        case "pure", value:
            return value
        case "fail", error:
            raise Failing(error)
        case "die", text:
            raise Bug(text)
        case (("log" | "await"), text):
            log.append(text)
            return text
        case ("ask",):
            return env
        case "local", source:
            return _value(source, env + 1, log)
        case operator, source:
            return _value_one(operator, lambda: _value(source, env, log))
        case operator, source, other:
            return _value_two(
                operator, lambda: _value(source, env, log), lambda: _value(other, env, log), log
            )
    raise AssertionError(tree)


def _value_one(operator: str, source: Callable[[], Any]) -> Any:
    match operator:
        case "map":
            return ("mapped", source())
        case "suspend" | "context" | "named" | "collect":
            return source()
    try:
        value = source()
    except Failing as failing:
        match operator:
            case "map_err":
                raise Failing(f"mapped {failing.error}") from None
            case "result":
                return Failure(failing.error)
            case "fallback":
                return "instead"
        raise AssertionError(operator) from None
    return Success(value) if operator == "result" else value


def _value_two(
    operator: str, source: Callable[[], Any], other: Callable[[], Any], log: list[str]
) -> Any:
    match operator:
        case "and_then" | "zip":
            return (source(), other())
        case "tap":
            value = source()
            other()
            return value
        case "do":
            first = source()
            log.append("between")
            return [first, other()]
        case "traverse":
            return [source(), other()]
        case "on_exit":
            return _finalized(source, other, log)
    try:
        return source()
    except Failing as failing:
        match operator:
            case "or_else":
                return (failing.error, other())
            case "fallback_to":
                return other()
            case "tap_err":
                other()
                raise
        raise AssertionError(operator) from None


def _finalized(source: Callable[[], Any], other: Callable[[], Any], log: list[str]) -> Any:
    try:
        value = source()
    except Failing as failing:
        log.append("exit failure")
        # A defect of a finalizer joins a bad end, and never takes its place.
        _ignoring_everything(other)
        raise failing from None
    except Bug as bug:
        log.append("exit defect")
        _ignoring_everything(other)
        raise bug from None
    log.append("exit success")
    with suppress(Failing):
        other()
    return value


def _ignoring_everything(f: Callable[[], Any]) -> None:
    with suppress(Failing, Bug):
        f()


def kind_of(ended: object) -> str:
    match ended:
        case Defect():
            return "defect"
        case Interruption():
            return "interruption"
        case Result():
            return "success" if isinstance(ended, Success) else "failure"
    raise AssertionError(ended)


async def observed(effect: AnyEffect, env: int, log: list[str]) -> Ended:
    """What running an effect did."""
    ending: object
    try:
        ending = await effect.run(env)
    except Bug as bug:
        ending = bug
    return Ended(ending, tuple(log))


def beside(tree: Tree, log: list[str]) -> AnyEffect:
    """The same program, run by a parallel operator of one child."""
    return par(build(tree, log)).map(lambda values: values[0])
