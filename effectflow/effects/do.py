"""Generator notation: write a workflow top to bottom, and let the type checkers follow it.

The notation is from Haskell's `do`; that `yield from` makes it typed in Python was shown by the
`stateless` library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.signatures import remember_body

__all__ = ["Do", "do"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
P = ParamSpec("P")

Do: TypeAlias = Generator[Effect[Env, E, Any], Any, A]
"""What a `@do` function returns: needs an `Env`, may fail with an `E`, and returns an `A`."""


def do(
    function: Callable[P, Generator[Effect[Env, E, Any], Any, A]],
) -> Callable[P, Effect[Env, E, A]]:
    """Make a function that returns an effect out of a generator function that yields effects.

    `value = yield from effect` runs an effect and gives its value; a failure ends the body, after its
    `finally` blocks, which must not yield. A defect can be caught by `except` like any exception.

    Example:
        >>> from effectflow import Do, do, pure
        >>> @do
        ... def area(width: int, height: int) -> Do[object, str, int]:
        ...     w = yield from pure(width)
        ...     h = yield from pure(height)
        ...     return w * h
        >>> area(6, 7).run_sync(None)
        <Success: 42>
    """

    if not inspect.isgeneratorfunction(function):
        raise TypeError(
            f"@do needs a generator function, and {function!r} is none: it has to have a `yield from`; "
            "a function that returns an effect needs no @do"
        )

    remember_body(function)

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Effect[Env, E, A]:
        return nodes.FromGenerator(function, args, kwargs)

    return make
