"""Resources: acquired, used, and released whatever happens meanwhile.

The idea is from Haskell's `bracket`. Here an acquisition is never cut off by a cancellation, so that
there is no moment at which a resource exists and nobody is bound to release it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, cast

from effectflow.effects import nodes
from effectflow.effects.effect import Effect

__all__ = ["Acquisition", "acquiring", "bracket"]

Env = TypeVar("Env")
E = TypeVar("E")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
A = TypeVar("A")
R = TypeVar("R")
Rs = TypeVarTuple("Rs")

AnyEffect = Effect[Any, Any, Any]


def bracket(
    acquire: Effect[Env, E, R],
    release: Callable[[R], Effect[Env, E2, object]],
    use: Callable[[R], Effect[Env, E3, A]],
) -> Effect[Env, E | E2 | E3, A]:
    """Acquires a resource, uses it, and releases it exactly once, however the use ends.

    Acquiring and releasing are shielded from cancellation, which takes effect in between. If the use
    ends badly and the release does so too, the use's error stands, and the release's is in its trail
    and notes; if the use ends well, the release's error is that of the whole.

    In a durable run, a release that is a step settles a failure of the use: what was acquired is gone, so
    a resume fails with it again. If the run is interrupted from outside, such a release is left to the
    resume, which goes on using what was acquired; where the run goes on, as after a `timeout`, it is not.
    What each process has to acquire anew belongs into no step.

    On asyncio acquire and release run in tasks of their own. What has to be left by the task that
    entered it, such as a task group, belongs into one `from_async` with `async with`.

    Parameters:
        acquire: yields the resource. If it fails, nothing is released.
        release: from the resource to the effect that gives it back.
        use: from the resource to what is to be done with it.

    Example:
        >>> from effectflow import bracket, from_fn, pure
        >>> log = []
        >>> bracket(
        ...     pure("file"),
        ...     lambda name: from_fn(lambda _: log.append(f"closed {name}")),
        ...     lambda name: pure(len(name)),
        ... ).run_sync(None), log
        (<Success: 4>, ['closed file'])
    """
    return nodes.Bracket(acquire, release, use)


def acquiring(
    acquire: Effect[Env, E, R], release: Callable[[R], Effect[Env, E, object]]
) -> Acquisition[Env, E, R]:
    """Begins a list of resources that are acquired in order and released last first.

    Each is acquired and released as by `bracket`, in a durable run as well.

    Example:
        >>> from effectflow import acquiring, from_fn, pure
        >>> log = []
        >>> def closing(name):
        ...     return from_fn(lambda _: log.append(name))
        >>> both = acquiring(pure("a"), closing).and_(pure("b"), closing)
        >>> both.use(lambda a, b: pure(a + b)).run_sync(None), log
        (<Success: ab>, ['b', 'a'])
    """
    return Acquisition(((acquire, release),))


@dataclass(frozen=True, slots=True)
class Acquisition(Generic[Env, E, *Rs]):
    """Resources to acquire, each with its release. Made by `acquiring`."""

    pairs: tuple[tuple[AnyEffect, Callable[[Any], AnyEffect]], ...]

    def and_(
        self, acquire: Effect[Env, E2, R], release: Callable[[R], Effect[Env, E2, object]]
    ) -> Acquisition[Env, E | E2, *Rs, R]:
        """One more resource, acquired after those before it, and released before them."""
        return Acquisition((*self.pairs, (acquire, release)))

    def use(self, f: Callable[[Unpack[Rs]], Effect[Env, E2, A]]) -> Effect[Env, E | E2, A]:
        """Runs `f(*resources)` with all of them acquired.

        One that cannot be acquired ends it; those before it are released. Every release is run, even
        if another fails.
        """

        def nested(held: tuple[Any, ...]) -> AnyEffect:
            if len(held) == len(self.pairs):
                return cast("Callable[..., AnyEffect]", f)(*held)
            acquire, release = self.pairs[len(held)]
            return bracket(acquire, release, lambda resource: nested((*held, resource)))

        acquired = [acquire for acquire, _ in self.pairs]
        return nodes.Suspend(lambda _: nested(()), ("acquiring", acquired, f))
