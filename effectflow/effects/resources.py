"""Resources that are acquired, used, and always released.

The idea comes from Haskell's `bracket`. Here, a cancellation never cuts off an acquisition. So at no
moment does a resource exist that nothing will release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack, cast

from effectflow.effects import nodes
from effectflow.effects.arguments import check_effects, check_function
from effectflow.effects.effect import Effect

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
    """Acquire a resource, use it, and release it exactly once, however the use ends.

    Acquire and release are shielded from cancellation, which takes effect in between. If it arrives
    during the acquisition, the resource is released and the use does not start. Give an acquisition
    that may hang a timeout of its own: `acquire.timeout(5)`.

    If both the use and the release fail, the error of the use stands, and the other one is in its trail
    and notes; `traced` returns both as one value. If only the release fails, its error is the failure of
    the whole. If the release fails after a cancellation, its error is logged. It is also in the trail of
    the operator that cancelled the use if that fails, as a `timeout` does.

    In a durable run, a release that is a step settles a failure of the use: the resource is gone, so a
    resume fails with the same failure. If the run is stopped from outside, such a release is not run,
    because the resume continues to use the resource. If the run itself cancels the use, as a `timeout`
    does, the release runs. Do not put into a step what each process must acquire again.

    On asyncio, acquire and release run in separate tasks. What must be exited by the task that entered
    it, such as a task group, belongs into one `from_async` with `async with`.

    Parameters:
        acquire: yields the resource. If it fails, nothing is released.
        release: creates the effect that releases the resource.
        use: creates the effect that uses the resource.

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
    check_effects("bracket", acquire)
    check_function(release, "the release of bracket")
    check_function(use, "the use of bracket")
    return nodes.Bracket(acquire, release, use)


def acquiring(
    acquire: Effect[Env, E, R], release: Callable[[R], Effect[Env, E, object]]
) -> Acquisition[Env, E, R]:
    """Begin a list of resources that are acquired in order and released in reverse order.

    Each is acquired and released as by `bracket`, also in a durable run.

    Example:
        >>> from effectflow import acquiring, from_fn, pure
        >>> log = []
        >>> def closing(name):
        ...     return from_fn(lambda _: log.append(name))
        >>> both = acquiring(pure("a"), closing).and_(pure("b"), closing)
        >>> both.use(lambda a, b: pure(a + b)).run_sync(None), log
        (<Success: ab>, ['b', 'a'])
    """
    check_effects("acquiring", acquire)
    check_function(release, "the release of acquiring")
    return Acquisition(((acquire, release),))


@dataclass(frozen=True, slots=True)
class Acquisition(Generic[Env, E, *Rs]):
    """Resources to acquire, each with its release. Created by `acquiring`."""

    pairs: tuple[tuple[AnyEffect, Callable[[Any], AnyEffect]], ...]

    def and_(
        self, acquire: Effect[Env, E2, R], release: Callable[[R], Effect[Env, E2, object]]
    ) -> Acquisition[Env, E | E2, *Rs, R]:
        """Add a resource that is acquired after the others, and released before them."""
        check_effects("and_", acquire)
        check_function(release, "the release of and_")
        return Acquisition((*self.pairs, (acquire, release)))

    def use(self, f: Callable[[Unpack[Rs]], Effect[Env, E2, A]]) -> Effect[Env, E | E2, A]:
        """Run `f(*resources)` with all resources acquired.

        If one cannot be acquired, the ones before it are released. Every release runs, even if another
        one fails.
        """
        check_function(f, "use")

        def nested(held: tuple[Any, ...]) -> AnyEffect:
            if len(held) == len(self.pairs):
                return cast("Callable[..., AnyEffect]", f)(*held)
            acquire, release = self.pairs[len(held)]
            return bracket(acquire, release, lambda resource: nested((*held, resource)))

        return nodes.Suspend(lambda _: nested(()), (".use", self, f))

    def __repr__(self) -> str:
        return "acquiring" + ".and_".join(nodes.show_arguments(pair) for pair in self.pairs)
