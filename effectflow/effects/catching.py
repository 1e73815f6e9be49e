"""`catch`: some failures as values, with a type that keeps only the others."""

from __future__ import annotations

from typing import Any, Generic, Never, TypeVar, overload

from returns.result import Failure, Result, Success

from effectflow.effects import nodes
from effectflow.effects.arguments import check_effects
from effectflow.effects.effect import Effect
from effectflow.effects.trails import TypedFailure, show_trail
from effectflow.effects.type_variables import E1, E2, E3, E4, E5, E6, E7, E8

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
C = TypeVar("C", covariant=True)


@overload
def catch(c1: type[E1], /) -> Catch[E1]: ...
@overload
def catch(c1: type[E1], c2: type[E2], /) -> Catch[E1 | E2]: ...
@overload
def catch(c1: type[E1], c2: type[E2], c3: type[E3], /) -> Catch[E1 | E2 | E3]: ...
@overload
def catch(
    c1: type[E1], c2: type[E2], c3: type[E3], c4: type[E4], /
) -> Catch[E1 | E2 | E3 | E4]: ...
@overload
def catch(
    c1: type[E1], c2: type[E2], c3: type[E3], c4: type[E4], c5: type[E5], /
) -> Catch[E1 | E2 | E3 | E4 | E5]: ...
@overload
def catch(
    c1: type[E1], c2: type[E2], c3: type[E3], c4: type[E4], c5: type[E5], c6: type[E6], /
) -> Catch[E1 | E2 | E3 | E4 | E5 | E6]: ...
@overload
def catch(
    c1: type[E1],
    c2: type[E2],
    c3: type[E3],
    c4: type[E4],
    c5: type[E5],
    c6: type[E6],
    c7: type[E7],
    /,
) -> Catch[E1 | E2 | E3 | E4 | E5 | E6 | E7]: ...
@overload
def catch(
    c1: type[E1],
    c2: type[E2],
    c3: type[E3],
    c4: type[E4],
    c5: type[E5],
    c6: type[E6],
    c7: type[E7],
    c8: type[E8],
    /,
) -> Catch[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8]: ...
@overload
def catch(*classes: type[E1]) -> Catch[E1]: ...
def catch(*classes: type[Any]) -> Catch[Any]:
    """Return a function that turns the failures of some classes into values, and lets others pass.

    It does for them what `Effect.result` does for all: the effect yields `Success(value)` or
    `Failure(error)`, and its type keeps only the other errors. (mypy keeps their common base class if
    there is more than one left.)

    Raises TypeError for anything but classes.

    Example:
        >>> from effectflow import TimedOut, sleep
        >>> from effectflow.effects import catch
        >>> late = sleep(60).map(lambda _: "on time").timeout(0.001)
        >>> catch(TimedOut)(late).map(lambda result: result.value_or("late")).run_sync(None)
        <Success: late>
    """
    for one in classes or (None,):
        if not isinstance(one, type):
            raise TypeError(f"catch takes classes of errors, such as catch(TimedOut), not {one!r}")
    return Catch(classes)


class Catch(Generic[C]):
    """The result of `catch(...)`, before it receives the effect."""

    def __init__(self, classes: tuple[type[C], ...]) -> None:
        self._classes = classes

    # The effect alone as the parameter, so that the classes are known when checkers subtract them.
    @overload
    def __call__(self, effect: Effect[Env, C, A], /) -> Effect[Env, Never, Result[A, C]]: ...
    @overload
    def __call__(self, effect: Effect[Env, C | E, A], /) -> Effect[Env, E, Result[A, C]]: ...
    def __call__(self, effect: Effect[Any, Any, Any], /) -> Effect[Any, Any, Any]:
        """Return the effect without the failures of these classes."""
        check_effects("catch", effect)
        classes = self._classes

        def catch(failed: TypedFailure) -> nodes.AnyEffect | None:
            if not isinstance(failed.error, classes):
                return None
            return nodes.Pure(Failure(show_trail(failed.error, failed.trail)))

        return nodes.Rescue(effect.map(Success), nodes.written(catch, "catch", *classes))
