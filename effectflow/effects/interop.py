"""Convert to and from the containers of `returns`: Maybe, FutureResult, RequiresContextFutureResult.

`Result` needs no conversion: `from_result` takes one, and `effect.run` returns one. Import these
functions from here, `effectflow.effects.interop`; `import effectflow` does not load them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from returns.context import RequiresContextFutureResult
from returns.future import FutureResult
from returns.maybe import Maybe, Nothing, Some
from returns.result import Result
from returns.unsafe import unsafe_perform_io

from effectflow.effects import nodes
from effectflow.effects.constructors import from_async, from_result
from effectflow.effects.effect import Effect

__all__ = [
    "from_future_result",
    "from_maybe",
    "to_future_result",
    "to_maybe",
    "to_requires_context",
]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def from_maybe(maybe: Maybe[A]) -> Effect[object, None, A]:
    """Yield the value of a `Some`, or fail with None for `Nothing`.

    Example:
        >>> from returns.maybe import Nothing, Some
        >>> from_maybe(Some(1)).run_sync(None), from_maybe(Nothing).run_sync(None)
        (<Success: 1>, <Failure: None>)
    """
    return nodes.Fail(None) if maybe is Nothing else nodes.Pure(maybe.unwrap())


async def to_maybe(effect: Effect[Env, object, A], env: Env) -> Maybe[A]:
    """Run an effect and return `Some` of its value, or `Nothing` if it failed."""
    return (await effect.run(env)).map(Some).value_or(Nothing)


def from_future_result(f: Callable[[Env], FutureResult[A, E]]) -> Effect[Env, E, A]:
    """Await `f(env)`. A `RequiresContextFutureResult` is such a function itself.

    A FutureResult can be awaited only once, but an effect may run many times. So this takes a function
    that creates one.

    Example:
        >>> from returns.future import FutureResult
        >>> from_future_result(lambda env: FutureResult.from_value(env + 1)).run_sync(1)
        <Success: 2>
    """

    async def resolve(env: Env) -> Result[A, E]:
        # An IOResult is an IO of a Result, which its type does not tell.
        return unsafe_perform_io(cast(Any, await f(env)))

    return from_async(resolve).and_then(from_result)


def to_future_result(effect: Effect[Env, E, A], env: Env) -> FutureResult[A, E]:
    """Return an awaitable that runs the effect in this environment, once."""
    return FutureResult(effect.run(env))


def to_requires_context(effect: Effect[Env, E, A]) -> RequiresContextFutureResult[A, E, Env]:
    """Return a function of the environment that runs the effect when its result is awaited."""
    return RequiresContextFutureResult(lambda env: to_future_result(effect, env))
