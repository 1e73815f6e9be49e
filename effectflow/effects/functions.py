"""`@effect` and `@do`: functions and generator functions as functions that return effects.

The notation of `@do` comes from Haskell. The `stateless` library showed that `yield from` makes it typed
in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from effectflow.effects import nodes
from effectflow.effects.arguments import (
    add_hint,
    call_of,
    effectful_decorator,
    is_async,
    mark_as_effectful,
    was_rejected,
)
from effectflow.effects.constructors import attempt
from effectflow.effects.effect import Effect
from effectflow.effects.nodes import describe_call
from effectflow.effects.signatures import remember_body
from effectflow.effects.type_variables import X1, X2, X3, X4, X5, X6, X7, X8, ErrorClasses

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
X = TypeVar("X", bound=Exception, covariant=True)
P = ParamSpec("P")


class BoundFunction:
    """A function with all of its arguments except the environment."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __call__(self, env: Any) -> Any:
        try:
            return self.function(env, *self.args, **self.kwargs)
        except TypeError as error:
            # Checked only now, because each check takes longer than the creation of an effect.
            if was_rejected(error, self.function, (env, *self.args), self.kwargs):
                call = call_of(self.function, skip=1)
                add_hint(error, f"Write {call}: the environment is passed for you")
            raise

    def __repr__(self) -> str:
        return describe_call(self.function, self.args, self.kwargs)


class _WithoutEnvironment(BoundFunction):
    """A function with all of its arguments, which takes no environment."""

    __slots__ = ()

    def __call__(self, env: Any) -> Any:
        return self.function(*self.args, **self.kwargs)


class CoroutineDecorator(Protocol[X]):
    """The result of `@do(errors=...)`, before it receives the async function."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, A]], /
    ) -> Callable[P, Effect[object, X, A]]: ...


class EffectDecorator(Protocol[X]):
    """The result of `@effect(errors=...)`, before it receives the function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Env, P], Coroutine[Any, Any, A]], /
    ) -> Callable[P, Effect[Env, X, A]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Env, P], A], /
    ) -> Callable[P, Effect[Env, X, A]]: ...


@overload
def effect(
    function: Callable[Concatenate[Env, P], Coroutine[Any, Any, A]], /
) -> Callable[P, Effect[Env, Never, A]]: ...
@overload
def effect(function: Callable[Concatenate[Env, P], A], /) -> Callable[P, Effect[Env, Never, A]]: ...
@overload
def effect(
    *, errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8]
) -> EffectDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8]: ...
@overload
def effect(*, errors: tuple[type[X], ...]) -> EffectDecorator[X]: ...
def effect(
    function: Callable[..., Any] | None = None,
    /,
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Turn a function that takes the environment and acts into one that returns an effect.

    `(env, *arguments)`, plain or async, becomes `(*arguments) -> Effect`. The exceptions in `errors=`, a
    class or a tuple of classes, become typed failures. Any other exception is a defect.

    Example:
        >>> from effectflow import effect
        >>> @effect(errors=KeyError)
        ... def price(env: dict[str, int], item: str) -> int:
        ...     return env[item]
        >>> price("tea").run_sync({"tea": 3})
        <Success: 3>
    """
    declared = checked_errors("@effect", errors)

    def decorate(function: Callable[..., Any]) -> Callable[..., Effect[Any, Any, Any]]:
        signature = _checked_signature(function)
        node = nodes.FromAsync if is_async(function) else nodes.FromFn

        @wraps(function)
        def make(*args: Any, **kwargs: Any) -> Effect[Any, Any, Any]:
            call = BoundFunction(function, args, kwargs)
            return attempt(call, *declared) if declared else node(call)

        # Inspection shows the parameters without the environment, and the errors.
        described: Any = make
        described.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
        described.declared_errors = declared
        described.takes_environment = True
        mark_as_effectful(make, "effect")
        return make

    return decorate if function is None else decorate(function)


def checked_errors(decorator: str, errors: Any) -> tuple[type[Exception], ...]:
    """Return the classes of `errors=`. Raise TypeError for anything but classes of exceptions."""
    given = cast("tuple[Any, ...]", errors if isinstance(errors, tuple) else (errors,))
    for one in given:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise TypeError(
                f"{decorator}(errors=...) takes a class of exceptions or a tuple of classes, such as "
                f"errors=(Declined, Closed), not {one!r}"
            )
    return given


def _checked_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function that `@effect` can turn into one that returns an effect.

    Raises TypeError for a function that returns an effect already, and one without an environment.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    made_by = effectful_decorator(function)
    if made_by == "step":
        raise TypeError(f"@effect is above @step on {name}: write @step above @effect")
    if made_by is not None:
        raise TypeError(
            f"{name} returns an effect already, by @{made_by}: write it without @effect"
        )
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} is a generator function: decorate it with @do instead of @effect")
    signature = inspect.signature(function)
    first = next(iter(signature.parameters), None)
    if first in (None, "self", "cls"):
        raise TypeError(
            f"@effect passes the environment first, and the first parameter of {name} is {first!r}. Use "
            "a function whose first parameter is the environment, or a method without @effect that "
            "returns an effect, such as from_async(lambda env: self.load(env))"
            if first is not None
            else f"@effect passes the environment first, and {name} has no parameters"
        )
    return signature


def coroutine_effect(
    function: Callable[..., Coroutine[Any, Any, Any]], errors: tuple[type[Exception], ...]
) -> Callable[..., Effect[Any, Any, Any]]:
    """Return an async function without an environment as one that returns an effect.

    Exceptions of the classes in `errors` are its failures.
    """
    make: Any = do(function)
    if not errors:
        return make

    @wraps(make)
    def attempted(*args: Any, **kwargs: Any) -> Effect[Any, Any, Any]:
        return nodes.Attempt(_WithoutEnvironment(function, args, kwargs), errors)

    described: Any = attempted
    described.declared_errors = errors
    return attempted


Do: TypeAlias = Generator[Effect[Env, E, Any], Any, A]
"""What a `@do` function returns: needs an `Env`, may fail with an `E`, and returns an `A`."""


@overload
def do(
    function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
) -> Callable[P, Effect[Env, E, A]]: ...
@overload
def do(
    function: Callable[P, Coroutine[Any, Any, A]], /
) -> Callable[P, Effect[object, Never, A]]: ...
@overload
def do(
    *, errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8]
) -> CoroutineDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8]: ...
@overload
def do(*, errors: tuple[type[X], ...]) -> CoroutineDecorator[X]: ...
def do(function: Callable[..., Any] | None = None, /, *, errors: Any = None) -> Any:
    """Turn a function whose body runs effects into a function that returns an effect.

    In a generator function, `value = yield from effect` runs an effect and returns its value, with exact
    types. In an async function, `value = await effect` does, beside any other `await`. Type checkers do
    not know what it needs, and only those of its failures that `errors` names.

    A failure is raised there: the error itself if it is an exception, otherwise an `EffectError` around
    it. So `try`, `except`, `else` and `finally` work, and `finally` may run effects. If a failure
    leaves the body, the body fails with it. Any other exception that the body raises is a defect,
    unless the annotation of a generator function declares its class, or `errors` of an async function.

    A cancellation ends the body. If an operator such as `timeout` cancelled it, a `finally` block that
    comes to an effect then is a defect: use `on_exit` or `bracket`, which also run after a cancellation.
    See docs/errors.md.

    Parameters:
        errors: the class of the exceptions that are failures of an async function, or a tuple of classes.

    Example:
        >>> from effectflow import Do, do, pure
        >>> @do
        ... def area(width: int, height: int) -> Do[object, str, int]:
        ...     w = yield from pure(width)
        ...     h = yield from pure(height)
        ...     return w * h
        >>> area(6, 7).run_sync(None)
        <Success: 42>
        >>> @do
        ... async def perimeter(width: int, height: int) -> int:
        ...     return 2 * (await pure(width) + await pure(height))
        >>> perimeter(6, 7).run_sync(None)
        <Success: 26>
    """
    if function is None:
        declared = checked_errors("@do", errors)
        return partial(_body_of, declared=declared)
    return _body_of(function, None)


def _body_of(
    function: Callable[..., Any], declared: tuple[type[Exception], ...] | None
) -> Callable[..., Effect[Any, Any, Any]]:
    """Return a function with a body as one that returns an effect."""
    if effectful_decorator(function) == "step":
        raise TypeError(f"@do is above @step on {function!r}: write @step above @do, or @step only")
    is_coroutine = is_async(function)
    if not is_coroutine and not inspect.isgeneratorfunction(function):
        raise TypeError(
            f"@do needs a generator function or an async function, and {function!r} is neither; a "
            "function that returns an effect needs no @do"
        )
    if declared is not None and not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"errors= is for async functions, and {function!r} is none: declare the errors of another "
            "one in its annotation, `Do[Env, TheError, Output]` or `Effect[Env, TheError, Output]`"
        )
    node = nodes.FromCoroutine if is_coroutine else nodes.FromGenerator

    @wraps(function)
    def make(*args: Any, **kwargs: Any) -> Effect[Any, Any, Any]:
        return node(function, args, kwargs)

    if is_coroutine:
        # Its annotation is that of its plain value.
        described: Any = make
        described.declared_errors = declared or ()
        if declared:
            remember_body(function, declared)
    else:
        remember_body(function)
    mark_as_effectful(make, "do")
    return make
