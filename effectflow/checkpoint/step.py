"""`@step`: a function that returns an effect, as a durable step of that function's name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Generator, Mapping
from functools import partial, update_wrapper
from typing import (
    Any,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.checkpoint.entries import Arguments
from effectflow.checkpoint.shown import shown
from effectflow.checkpoint.values import KnownTypes, digest_of
from effectflow.effects import Effect, do, suspend

__all__ = ["Step", "arguments_of", "effect_types", "step"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
P = ParamSpec("P")


class Step(Generic[P, Env, E, A]):
    """A function whose effect is a durable step. Calling it gives the effect."""

    def __init__(
        self,
        function: Callable[P, Effect[Env, E, A]],
        *,
        name: str | None = None,
        retryable: bool | Callable[[Any], bool] | None = None,
        at_most_once: bool = False,
    ) -> None:
        self.function = function
        update_wrapper(self, function)
        output, error = effect_types(function)
        self.definition = StepDefinition(
            name or function.__name__,
            KnownTypes.of(output, error),
            retryable,
            at_most_once,
        )
        parameters = inspect.signature(function).parameters
        self.parameters = tuple(parameters)
        self.gathering = next(
            (name for name, one in parameters.items() if one.kind is one.VAR_POSITIONAL), None
        )

    @property
    def name(self) -> str:
        """The step's name."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Effect[Env, E, A]:
        # Called only if the step is to be run: of one that is skipped, not even the function is called.
        effect = suspend(lambda: self.function(*args, **kwargs))
        return durable(self.definition, effect, partial(self._describe, args, kwargs))

    def _describe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        if kwargs:
            bound = inspect.signature(self.function).bind(*args, **kwargs).arguments
            return arguments_of(self.name, bound)
        bound = self._named(args, len(self.parameters), "*")
        if self.gathering is None:
            return arguments_of(self.name, bound)
        # The digest names what `*items` gathers otherwise, as it always did: journals have it.
        position = self.parameters.index(self.gathering)
        named = self._named(args, position, self.gathering)
        return Arguments(digest_of(bound, path=self.name), shown(named))

    def _named(self, args: tuple[Any, ...], count: int, gathering: str) -> dict[str, Any]:
        """The first so many arguments by their parameters, and the others as what gathers them."""
        named = dict(zip(self.parameters[:count], args, strict=False))
        if len(args) > count:
            named[gathering] = args[count:]
        return named


def arguments_of(step: str, bound: Mapping[str, Any]) -> Arguments:
    """What a step was called with, as its entry keeps it.

    Raises NotSerializable for what is neither plain data nor a data class.
    """
    return Arguments(digest_of(bound, path=step), shown(bound))


@overload
def step(function: Callable[P, Effect[Env, E, A]], /) -> Step[P, Env, E, A]: ...
@overload
def step(
    function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
) -> Step[P, Env, E, A]: ...
@overload
def step(
    *,
    name: str | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> StepDecorator: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
    at_most_once: bool = False,
) -> Any:
    """Make the effect that a function returns a durable step; see `with_checkpointing`.

    The step is named after the function, and the classes of its output and errors are read from its
    return annotation, `Effect[Env, Error, Output]` or, on a generator function, `Do[...]`. The function
    is called when the step runs, so what it raises is a defect of the step, and not at all where a
    resume finds the step completed.

    The step also records a digest of its arguments: reached again with other ones, a completed step
    fails the run with `StepInputChanged`. Arguments must be plain data or data classes; what is none of
    those (a connection, a client) belongs in the environment.
    """
    decorator = StepDecorator(name, retryable, at_most_once)
    return decorator if function is None else decorator(function)


class StepDecorator:
    """What `@step(...)` is, before it is given the function."""

    def __init__(
        self,
        name: str | None,
        retryable: bool | Callable[[Any], bool] | None,
        at_most_once: bool,
    ) -> None:
        self._name = name
        self._retryable = retryable
        self._at_most_once = at_most_once

    @overload
    def __call__(self, function: Callable[P, Effect[Env, E, A]], /) -> Step[P, Env, E, A]: ...
    @overload
    def __call__(
        self, function: Callable[P, Generator[Effect[Env, E, Any], Any, A]], /
    ) -> Step[P, Env, E, A]: ...
    def __call__(self, function: Callable[..., Any], /) -> Step[..., Any, Any, Any]:
        make = do(function) if inspect.isgeneratorfunction(function) else function
        return Step(
            make, name=self._name, retryable=self._retryable, at_most_once=self._at_most_once
        )


def effect_types(function: Callable[..., Any]) -> tuple[object, object]:
    """The output and error types in a function's return annotation; None for what is not told."""
    try:
        annotation = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        # A name that exists only for the type checkers: the classes then count as undeclared.
        return None, None
    errors: tuple[type[Exception], ...] | None = getattr(function, "declared_errors", None)
    if errors is not None:
        # Made by `@effect`, so it is annotated with its plain value.
        return annotation, Union[errors] if errors else None  # noqa: UP007, so many at once
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Effect and len(args) == 3:
        return args[2], args[1]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Generator):
        yielded = get_args(args[0])
        return args[2], yielded[1] if len(yielded) == 3 else None
    return None, None
