"""`Effect[Env, E, A]`: a description of work, and the fluent way to combine such descriptions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, Generic, Literal, Never, TypeVar, cast

import anyio
from returns.result import Failure, Result, Success

from effectflow.effects.clock import Clock
from effectflow.effects.errors import EffectError
from effectflow.effects.exit import Exit

__all__ = ["Effect"]

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
A = TypeVar("A", covariant=True)

Env2 = TypeVar("Env2")
E2 = TypeVar("E2")
A2 = TypeVar("A2")
B = TypeVar("B")


class Effect(Generic[Env, E, A]):
    """Work that needs an `Env`, may fail with an `E`, and otherwise yields an `A`.

    An effect is an immutable value. Nothing happens until it is run, and it may be run many times,
    also at once. It ends in one of three ways:

    - *success* or *failure*: a `Result`, which `run` returns;
    - *defect*: an exception that no effect declared; `run` raises it as itself;
    - *interruption*: the backend's cancellation, which is never swallowed.

    The idea, and most names, are from ZIO and from Rust's Stillwater.

    Example:
        >>> from effectflow import pure
        >>> pure(20).map(lambda n: n + 1).and_then(lambda n: pure(n * 2)).run_sync(None)
        <Success: 42>
    """

    __slots__ = ()

    async def run(
        self: Effect[Env2, E2, A2], env: Env2, *, clock: Clock | None = None
    ) -> Result[A2, E2]:
        """Run this effect in the current task and return its `Result`.

        Parameters:
            env: what the effect asks for.
            clock: tells the time and sleeps; the machine's own if not given.

        Defects propagate as the exceptions that they are. Cancelling the task that runs it runs
        every finalizer, shielded, and lets the cancellation go on.
        """
        outcome = await _interpret(self, env, clock)
        if outcome.__class__ is nodes.Failed:
            return Failure(cast(E2, outcome.error))
        return Success(cast(A2, outcome))

    async def run_or_raise(self, env: Env, *, clock: Clock | None = None) -> A:
        """Run this effect and return its value.

        Raises the error of a failure, or `EffectError` around it when it is no exception.
        """
        outcome = await _interpret(self, env, clock)
        if outcome.__class__ is not nodes.Failed:
            return outcome
        if isinstance(outcome.error, Exception):
            raise outcome.error
        raise EffectError(outcome.error)

    def run_sync(
        self: Effect[Env2, E2, A2],
        env: Env2,
        *,
        backend: Literal["asyncio", "trio"] = "asyncio",
        clock: Clock | None = None,
    ) -> Result[A2, E2]:
        """Run this effect in a new event loop, for scripts. See `run`."""

        async def main() -> Result[A2, E2]:
            return await self.run(env, clock=clock)

        return anyio.run(main, backend=backend)

    def map(self, f: Callable[[A], B]) -> Effect[Env, E, B]:
        """Apply a function to the value."""
        return nodes.Map(self, f)

    def map_err(self, f: Callable[[E], E2]) -> Effect[Env, E2, A]:
        """Apply a function to the error."""
        return nodes.MapErr(self, f)

    def and_then(
        self: Effect[Env2, E, A], f: Callable[[A], Effect[Env2, E2, B]]
    ) -> Effect[Env2, E | E2, B]:
        """Go on with the effect that `f` makes of the value (monadic bind)."""
        return nodes.AndThen(self, f)

    def or_else(
        self: Effect[Env2, E, A], f: Callable[[E], Effect[Env2, E2, B]]
    ) -> Effect[Env2, E2, A | B]:
        """Go on with the effect that `f` makes of the error."""
        return nodes.OrElse(self, f)

    def tap(
        self: Effect[Env2, E, A], f: Callable[[A], Effect[Env2, E2, object]]
    ) -> Effect[Env2, E | E2, A]:
        """Run the effect that `f` makes of the value, and keep the value.

        A failure of that effect is a failure of the whole.
        """
        return nodes.AndThen(self, lambda value: nodes.Map(f(value), lambda _: value))

    def tap_err(
        self: Effect[Env2, E, A], f: Callable[[E], Effect[Env2, E2, object]]
    ) -> Effect[Env2, E | E2, A]:
        """Run the effect that `f` makes of the error, and fail with the error still.

        A failure of that effect takes the place of the error.
        """
        return nodes.OrElse(
            self, lambda error: nodes.AndThen(f(error), lambda _: nodes.Fail(error))
        )

    def result(self: Effect[Env2, E2, A2]) -> Effect[Env2, Never, Result[A2, E2]]:
        """Yield `Success(value)` or `Failure(error)`; never fail."""
        return nodes.Reify(self)

    def local(self, f: Callable[[Env2], Env]) -> Effect[Env2, E, A]:
        """Run this effect in an environment made from the outer one."""
        return nodes.Local(self, f)

    def provide(self, env: Env) -> Effect[object, E, A]:
        """Run this effect in this environment, whatever the outer one is."""
        return nodes.Local(self, lambda _: env)

    def on_exit(
        self: Effect[Env2, E2, A2],
        finalizer: Effect[Env2, Never, object]
        | Callable[[Exit[A2, E2]], Effect[Env2, Never, object]],
    ) -> Effect[Env2, E2, A2]:
        """Run `finalizer` once this effect has ended, however it ended, exactly once.

        `finalizer` is an effect, or a function that is told how it ended and makes one. It is
        shielded from cancellation. A defect of a finalizer is added as a note where the effect
        itself ended in a defect or an interruption, and is raised where it did not.
        """
        if not isinstance(finalizer, Effect):
            return nodes.OnExit(self, finalizer)
        always = cast("Effect[Env2, Never, object]", finalizer)
        return nodes.OnExit(self, lambda _: always)

    def checkpointed(
        self: Effect[Env2, E2, A2],
        step: str,
        *,
        output: type[A2] | None = None,
        error: object = None,
        retryable: bool | Callable[[E2], bool] | None = None,
        at_most_once: bool = False,
    ) -> Effect[Env2, E2, A2]:
        """Make this effect a durable step: `with_checkpointing(step, self, ...)`, which see."""
        return Effect.make_durable(
            step,
            self,
            output=output,
            error=error,
            retryable=retryable,
            at_most_once=at_most_once,
        )

    make_durable: ClassVar[Callable[..., Effect[Any, Any, Any]]]
    """`with_checkpointing`, set by the checkpoints: a layer that this one does not know."""

    def __iter__(self: Effect[Env2, E2, A2]) -> Generator[Effect[Env2, E2, Any], Any, A2]:
        """Lets `value = yield from effect` have the type of the effect's value in a `@do` body."""
        return (yield self)

    def __repr__(self) -> str:
        return describe(self)


# Nodes derive from Effect and its methods make nodes, so these come once the class is there.
from effectflow.effects import nodes  # noqa: E402
from effectflow.effects.describe import describe  # noqa: E402
from effectflow.effects.scope import root_scope  # noqa: E402


async def _interpret(effect: Effect[Any, Any, Any], env: Any, clock: Clock | None) -> Any:
    # The interpreter takes every node apart, so it can only be imported once all of them are there.
    from effectflow.effects.interpreter import interpret

    return await interpret(effect, env, root_scope(clock))
