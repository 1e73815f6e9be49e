"""`Effect[Env, E, A]`: a description of work, and the fluent way to combine such descriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Never, TypeVar, cast, overload

import anyio
from returns.result import Failure, Result, Success

from effectflow.effects.clock import Clock
from effectflow.effects.errors import (
    EffectError,
    ExecutorError,
    RetryExhausted,
    TimedOut,
    TracedError,
)
from effectflow.effects.exit import Exit
from effectflow.effects.observer import EffectObserver

if TYPE_CHECKING:
    from effectflow.effects.executor import Executor

__all__ = ["Effect"]

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
A = TypeVar("A", covariant=True)

Env2 = TypeVar("Env2")
E2 = TypeVar("E2")
A2 = TypeVar("A2")
X = TypeVar("X")
B = TypeVar("B")
C = TypeVar("C")


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
        self: Effect[Env2, E2, A2],
        env: Env2,
        *,
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: float | None = None,
    ) -> Result[A2, E2]:
        """Run this effect in the current task and return its `Result`.

        Parameters:
            env: what the effect asks for.
            clock: tells the time and sleeps; the machine's own if not given.
            observer: is told of named effects and steps.
            finalizer_deadline: seconds that each finalizer may take before it is ended with a
                TimeoutError, so that one that hangs does not hang a cancelled run. No limit if None.

        Defects propagate as the exceptions that they are. Cancelling the task that runs it runs
        every finalizer, shielded, and lets the cancellation go on.
        """
        scope = root_scope(clock, observer=observer, finalizer_deadline=finalizer_deadline)
        outcome = await interpret(self, env, scope)
        if outcome.__class__ is nodes.Failed:
            return Failure(cast(E2, show_trail(outcome.error, outcome.trail)))
        return Success(cast(A2, outcome))

    async def run_or_raise(
        self,
        env: Env,
        *,
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: float | None = None,
    ) -> A:
        """Run this effect and return its value; see `run`.

        Raises the error of a failure, or `EffectError` around it when it is no exception.
        """
        scope = root_scope(clock, observer=observer, finalizer_deadline=finalizer_deadline)
        outcome = await interpret(self, env, scope)
        if outcome.__class__ is not nodes.Failed:
            return outcome
        show_trail(outcome.error, outcome.trail)
        if isinstance(outcome.error, Exception):
            raise outcome.error
        raised = EffectError(outcome.error)
        for message in outcome.trail:
            raised.add_note(message)
        raise raised

    def run_sync(
        self: Effect[Env2, E2, A2],
        env: Env2,
        *,
        backend: Literal["asyncio", "trio"] = "asyncio",
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: float | None = None,
    ) -> Result[A2, E2]:
        """Run this effect in a new event loop, for scripts. See `run`."""

        async def main() -> Result[A2, E2]:
            return await self.run(
                env, clock=clock, observer=observer, finalizer_deadline=finalizer_deadline
            )

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

        A failure of that effect takes the place of the error. In a durable run, a step of that effect
        settles the error: a resume fails with it again, instead of running what failed.
        """

        return nodes.TapErr(self, f)

    def zip(
        self: Effect[Env2, E, A], other: Effect[Env2, E2, B]
    ) -> Effect[Env2, E | E2, tuple[A, B]]:
        """Run this effect, then another, and yield both values. See `par` for side by side."""
        return nodes.AndThen(self, lambda a: nodes.Map(other, lambda b: (a, b)))

    def zip_with(
        self: Effect[Env2, E, A], other: Effect[Env2, E2, B], f: Callable[[A, B], C]
    ) -> Effect[Env2, E | E2, C]:
        """Run this effect, then another, and yield `f` of both values."""
        return nodes.AndThen(self, lambda a: nodes.Map(other, lambda b: f(a, b)))

    def ensure(self, predicate: Callable[[A], bool], error: E2) -> Effect[Env, E | E2, A]:
        """Fail with `error` unless the value satisfies the predicate."""
        failed = nodes.Fail(error)
        return nodes.AndThen(self, lambda a: nodes.Pure(a) if predicate(a) else failed)

    def recover(
        self: Effect[Env2, E, A],
        error_type: type[X],
        handler: Callable[[X], Effect[Env2, E2, B]],
    ) -> Effect[Env2, E | E2, A | B]:
        """Go on with the effect that `handler` makes of an error of this class; let others pass.

        Python's types cannot take one class out of a union of type variables, so the type still has
        all of `E`. Where it matters that an error is gone, use `or_else` with a function that tells
        the errors apart by `match` or `isinstance`: the checkers follow that.

        Example:
            >>> from effectflow import fail, pure
            >>> fail(KeyError("cap")).recover(LookupError, lambda error: pure(0)).run_sync(None)
            <Success: 0>
        """
        return nodes.Rescue(
            self,
            lambda failed: handler(failed.error) if isinstance(failed.error, error_type) else None,
        )

    def fallback(self, value: B) -> Effect[Env, Never, A | B]:
        """Yield `value` instead of failing."""
        replaced = nodes.Pure(value)
        return nodes.OrElse(self, lambda _: replaced)

    def fallback_to(
        self: Effect[Env2, E, A], effect: Effect[Env2, E2, B]
    ) -> Effect[Env2, E2, A | B]:
        """Run another effect instead of failing."""
        return nodes.OrElse(self, lambda _: effect)

    def context(self: Effect[Env2, E2, A2], message: str) -> Effect[Env2, E2, A2]:
        """Say what was being done: for the trail of failures, and the notes of defects.

        A trail reads from inner to outer. It stays with a failure through `map_err`, parallel operators
        and `retry`, and shows as notes (PEP 678) on an error that is an exception, on what
        `run_or_raise` raises, and as a value by `traced`.
        """
        return nodes.Context(self, message)

    def traced(self: Effect[Env2, E2, A2]) -> Effect[Env2, TracedError[E2], A2]:
        """Fail with the error and its trail as one value.

        Example:
            >>> from effectflow import fail
            >>> fail("no route").context("connecting").context("loading").traced().run_sync(None)
            <Failure: loading: connecting: no route>
        """
        return nodes.Traced(self)

    def named(self: Effect[Env2, E2, A2], name: str) -> Effect[Env2, E2, A2]:
        """Give it a name: for notes on defects, for `repr`, and for the observer of the run."""
        return nodes.Named(self, name, f"in {name!r}")

    def timeout(self: Effect[Env2, E2, A2], seconds: float) -> Effect[Env2, E2 | TimedOut, A2]:
        """Cancel this effect after so many seconds of the run's clock, and fail with TimedOut.

        Its finalizers have run by then. An effect that has ended in time is not failed. In a durable
        run that it timed out is recorded: a resumed run does not try again.
        """
        return timeout(self, seconds)

    @overload
    def retry(
        self: Effect[Env2, E2, A2],
        policy: RetryPolicy,
        *,
        when: None = None,
        on_retry: Callable[[FailedAttempt[E2]], Effect[Env2, Never, object] | None] | None = None,
    ) -> Effect[Env2, RetryExhausted[E2], A2]: ...
    @overload
    def retry(
        self: Effect[Env2, E2, A2],
        policy: RetryPolicy,
        *,
        when: Callable[[E2], bool],
        on_retry: Callable[[FailedAttempt[E2]], Effect[Env2, Never, object] | None] | None = None,
    ) -> Effect[Env2, E2 | RetryExhausted[E2], A2]: ...
    def retry(
        self: Effect[Any, Any, Any],
        policy: RetryPolicy,
        *,
        when: Callable[[Any], bool] | None = None,
        on_retry: Callable[[FailedAttempt[Any]], Effect[Any, Never, object] | None] | None = None,
    ) -> Effect[Any, Any, Any]:
        """Run this effect again while it fails, as the policy says.

        Defects and interruptions are not retried. In a durable run, between steps, each decision is
        recorded and when its delay ends: a resumed run waits only for what is left. If giving up ended
        the run, a resume tries the last attempt again.

        Parameters:
            policy: how often, and after which delays.
            when: whether an error is worth another attempt; one that is not ends it as itself.
            on_retry: is told of each failed attempt, the last one included; it may give an effect,
                which is run and must not fail: that would be a defect, raised as TypeError.

        Fails with RetryExhausted when the policy allows no more. A policy without a bound is refused.

        Example:
            >>> from effectflow import RetryPolicy, fail
            >>> flaky = fail("no").retry(RetryPolicy.constant(0.001).with_max_retries(2))
            >>> flaky.run_sync(None).failure().attempts
            3
        """
        return retry(self, policy, when, on_retry)

    def collecting(self: Effect[Env2, E2, A2]) -> Effect[Env2, E2, tuple[A2, list[object]]]:
        """Yield the value together with the events that were emitted, in order.

        Those of an effect that ends otherwise go to the listener further out; to have them with a
        failure, write `effect.result().collecting()`. Steps that a resume skips emit none again.
        """
        return collecting(self)

    def into_sink(
        self: Effect[Env2, E2, A2],
        f: Callable[[Any], Effect[Env2, Never, object] | Awaitable[object] | None],
    ) -> Effect[Env2, E2, A2]:
        """Give each event to `f` at once; the emitter goes on when `f` has taken it.

        Nothing is buffered. `f` may be a plain function, an async one, or one that makes an effect;
        if that fails, it is a defect, a TypeError. It may emit to the listener further out itself.

        Example:
            >>> from effectflow import emit
            >>> emit("half").and_then(lambda _: emit("done")).into_sink(print).run_sync(None)
            half
            done
            <Success: None>
        """
        return into_sink(self, f)

    def result(self: Effect[Env2, E2, A2]) -> Effect[Env2, Never, Result[A2, E2]]:
        """Yield `Success(value)` or `Failure(error)`; never fail."""
        return nodes.Reify(self)

    def local(self, f: Callable[[Env2], Env]) -> Effect[Env2, E, A]:
        """Run this effect in an environment made from the outer one."""
        return nodes.Local(self, f)

    def provide(self, env: Env) -> Effect[object, E, A]:
        """Run this effect in this environment, whatever the outer one is."""
        return nodes.Local(self, lambda _: env)

    def on_executor(
        self: Effect[Any, E2, A2], executor: Executor
    ) -> Effect[Any, E2 | ExecutorError, A2]:
        """Run this effect where the executor runs things, in the environment that is there.

        The effect itself travels. `executor.apply(function, item)` is lighter for many items: there
        only the item does, and the effect is made where it runs.
        """
        return executor.apply(nodes.itself, self)

    def on_exit(
        self: Effect[Env2, E2, A2],
        finalizer: Effect[Env2, Never, object]
        | Callable[[Exit[A2, E2]], Effect[Env2, Never, object]],
    ) -> Effect[Env2, E2, A2]:
        """Run `finalizer` once this effect has ended, however it ended, exactly once.

        `finalizer` is an effect, or a function that is told how it ended and makes one. It is
        shielded from cancellation. A defect of a finalizer is added as a note where the effect
        itself ended in a defect or an interruption, and is raised where it did not. In a durable run,
        its steps settle a failure, as those of `tap_err` do. If the run is interrupted from outside,
        it ends where it comes to a step, which is left to the resume.
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
from effectflow.effects.events import collecting, into_sink  # noqa: E402
from effectflow.effects.interpreter import interpret  # noqa: E402
from effectflow.effects.notes import show_trail  # noqa: E402
from effectflow.effects.retry import FailedAttempt, RetryPolicy, retry  # noqa: E402
from effectflow.effects.scope import root_scope  # noqa: E402
from effectflow.effects.timeout import timeout  # noqa: E402
