"""The laws, over generated programs: value, error, order of side effects and of finalizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given, strategies as st

from effectflow import pure
from effectflow.effects import Effect
from tests.effects.reference import AnyEffect, Ended, Tree, beside, build, expected, observed, trees

Backend = Literal["asyncio", "trio"]
backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def run(backend: Backend, make: Callable[[list[str]], AnyEffect], env: int = 1) -> Ended:
    log: list[str] = []

    async def main() -> Ended:
        return await observed(make(log), env, log)

    return anyio.run(main, backend=backend)


@backends
@given(tree=trees)
def test_the_interpreter_agrees_with_the_reference_on_any_program(
    backend: Backend, tree: Tree
) -> None:
    assert run(backend, lambda log: build(tree, log)) == expected(tree, env=1)


@backends
@given(tree=trees)
def test_a_child_of_a_parallel_operator_does_the_same(backend: Backend, tree: Tree) -> None:
    assert run(backend, lambda log: beside(tree, log)) == expected(tree, env=1)


@given(tree=trees)
def test_an_effect_may_be_run_again(tree: Tree) -> None:
    """One value, run twice one after another, does the same twice."""
    log: list[str] = []
    effect = build(tree, log)

    async def twice() -> list[Ended]:
        endings: list[Ended] = []
        for _ in range(2):
            endings.append(await observed(effect, 1, log))
            log.clear()
        return endings

    first, second = anyio.run(twice)
    assert first == second == expected(tree, env=1)


continuations = trees.map(
    lambda tree: lambda log: lambda value: build(tree, log).map(lambda got: (value, got))
)


@given(tree=trees)
def test_right_identity(tree: Tree) -> None:
    assert run("asyncio", lambda log: build(tree, log).and_then(pure)) == expected(tree, 1)


@given(value=st.integers(), f=continuations)
def test_left_identity(value: int, f: Callable[[list[str]], Callable[[Any], AnyEffect]]) -> None:
    start: Any = pure(value)

    def bound(log: list[str]) -> AnyEffect:
        return start.and_then(f(log))

    assert run("asyncio", bound) == run("asyncio", lambda log: f(log)(value))


@given(tree=trees, f=continuations, g=continuations)
def test_associativity(
    tree: Tree,
    f: Callable[[list[str]], Callable[[Any], AnyEffect]],
    g: Callable[[list[str]], Callable[[Any], AnyEffect]],
) -> None:
    def left(log: list[str]) -> AnyEffect:
        return build(tree, log).and_then(f(log)).and_then(g(log))

    def right(log: list[str]) -> AnyEffect:
        return build(tree, log).and_then(lambda value: f(log)(value).and_then(g(log)))

    assert run("asyncio", left) == run("asyncio", right)


@given(tree=trees)
def test_functor_laws(tree: Tree) -> None:
    assert run("asyncio", lambda log: build(tree, log).map(lambda x: x)) == expected(tree, 1)
    once = run("asyncio", lambda log: build(tree, log).map(lambda x: (2, (1, x))))
    twice = run("asyncio", lambda log: build(tree, log).map(lambda x: (1, x)).map(lambda x: (2, x)))
    assert once == twice


@given(tree=trees)
def test_map_is_and_then_pure(tree: Tree) -> None:
    mapped = run("asyncio", lambda log: build(tree, log).map(str))
    assert mapped == run("asyncio", lambda log: build(tree, log).and_then(_pure_text))


def _pure_text(value: object) -> Effect[object, Any, str]:
    return pure(str(value))
