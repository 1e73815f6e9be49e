"""Generator notation: write effects from top to bottom, with types that checkers follow.

The notation comes from Haskell's `do`. The `stateless` library showed that `yield from` makes it typed
in Python.
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
    """Turn a generator function that yields effects into a function that returns an effect.

    `value = yield from effect` runs the effect and returns its value. A failure is raised there: the
    error itself if it is an exception, otherwise an `EffectError` around it. So `try`, `except`, `else`
    and `finally` work, and `finally` may yield effects. An exception that the body raises is a failure
    if the annotation declares its class, otherwise a defect.

    A cancellation closes the body. If an operator such as `timeout` cancelled it, a `finally` block that
    yields an effect then is a defect: use `on_exit` or `bracket`, which also run after a cancellation.
    See docs/errors.md.

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
            f"@do needs a generator function, and {function!r} has no `yield from`; a function that "
            "returns an effect needs no @do"
        )

    remember_body(function)

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Effect[Env, E, A]:
        return nodes.FromGenerator(function, args, kwargs)

    return make
