"""`Effect[Env, E, A]`: a description of work, and the fluent way to combine such descriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from inspect import isawaitable
from types import FunctionType, UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeVar,
    cast,
    get_origin,
    overload,
)

import anyio
from returns.result import Failure, Result, Success

from effectflow.effects.arguments import (
    AND_THEN,
    CO_COROUTINE,
    TEST_THE_VALUE,
    BaseEffect,
    add_hint,
    check_effects,
    check_function,
    holds,
    is_callable,
)
from effectflow.effects.clock import Clock, Duration, waiting_time
from effectflow.effects.coroutines import awaited, awaiting
from effectflow.effects.errors import ExecutorError, Exit, RetryExhausted, TimedOut, TracedError
from effectflow.effects.retry import FailedAttempt, RetryPolicy, check_bounded, retried
from effectflow.effects.scope import EffectObserver, Operator, Scope, supervised
from effectflow.effects.tracebacks import hide_frames, passing_code, shown_failure
from effectflow.effects.trails import TypedFailure, our_notes, refuse_failure
from effectflow.effects.type_variables import (
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    A8,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
)

Env = TypeVar("Env", contravariant=True)
E = TypeVar("E", covariant=True)
A = TypeVar("A", covariant=True)

Env2 = TypeVar("Env2")
X = TypeVar("X")
B = TypeVar("B")
C = TypeVar("C")
MadeB = TypeVar("MadeB", covariant=True)
MadeEnv = TypeVar("MadeEnv", covariant=True)


_new = object.__new__


class Effect(BaseEffect, Generic[Env, E, A]):
    """Work that needs an `Env`, may fail with an `E`, and otherwise yields an `A`.

    An effect is an immutable value. Nothing happens until it is run, and it may be run many times, also
    concurrently. It ends in one of three ways:

    - *success* or *failure*: a `Result`, which `run` returns;
    - *defect*: an exception that no effect declared; `run` raises it unchanged;
    - *interruption*: the backend's cancellation, which is never swallowed.

    The idea and most names come from ZIO and from Stillwater, a Rust library.

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
        finalizer_deadline: Duration | None = None,
    ) -> Result[A2, E2]:
        """Run this effect in the current task and return its `Result`.

        Parameters:
            env: the environment that the effect needs.
            clock: tells the time and sleeps; the system clock by default.
            observer: is told when named effects and steps begin and end.
            finalizer_deadline: the seconds, or the `timedelta`, after which a finalizer is cancelled
                with a TimeoutError, so that it cannot block a cancelled run. No limit if None.

        Raises defects unchanged. If the task is cancelled, all finalizers run, shielded, and the
        cancellation continues.
        """
        scope = Scope(clock, observer=observer, finalizer_deadline=finalizer_deadline)
        try:
            outcome = await interpret(self, env, scope)
        except BaseException as raised:
            hide_frames(raised)
            raise raised  # `python -X dev` shows the frames of effectflow, too
        finally:
            # The traceback of a defect keeps this frame.
            del env
        if outcome.__class__ is TypedFailure:
            return Failure(cast(E2, shown_failure(outcome)))
        return Success(cast(A2, outcome))

    async def run_or_raise(
        self,
        env: Env,
        *,
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: Duration | None = None,
    ) -> A:
        """Run this effect and return its value; see `run`.

        Raises the error of a failure, or an `EffectError` around it if it is not an exception.
        """
        scope = Scope(clock, observer=observer, finalizer_deadline=finalizer_deadline)
        try:
            outcome = await interpret(self, env, scope)
            if outcome.__class__ is TypedFailure:
                raise_failure(outcome)
        except BaseException as raised:
            hide_frames(raised)
            raise raised  # `python -X dev` shows the frames of effectflow, too
        finally:
            # The traceback of the exception keeps this frame alive.
            del env
        return outcome

    def run_sync(
        self: Effect[Env2, E2, A2],
        env: Env2,
        *,
        backend: Literal["asyncio", "trio"] = "asyncio",
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: Duration | None = None,
    ) -> Result[A2, E2]:
        """Run this effect in a new event loop, for scripts. See `run`."""
        # The run empties it, because the traceback of a defect keeps this frame.
        environment = [env]
        del env
        run = partial(
            self.run, clock=clock, observer=observer, finalizer_deadline=finalizer_deadline
        )
        return _run_in_new_loop(run, environment, backend)

    def run_sync_or_raise(
        self,
        env: Env,
        *,
        backend: Literal["asyncio", "trio"] = "asyncio",
        clock: Clock | None = None,
        observer: EffectObserver | None = None,
        finalizer_deadline: Duration | None = None,
    ) -> A:
        """Run this effect in a new event loop and return its value, for scripts. See `run_or_raise`.

        Example:
            >>> from effectflow import pure
            >>> pure(42).run_sync_or_raise(None)
            42
        """
        environment = [env]
        del env
        run = partial(
            self.run_or_raise, clock=clock, observer=observer, finalizer_deadline=finalizer_deadline
        )
        return _run_in_new_loop(run, environment, backend)

    def map(self, f: Callable[[A], B]) -> Effect[Env, E, B]:
        """Apply a function to the value."""
        given: Any = f
        # The check for most functions, without the cost of a call.
        if type(given) is not FunctionType or given.__code__.co_flags & CO_COROUTINE:
            check_function(f, "map", AND_THEN)
        # `nodes.Map(self, f)` without the call of __init__, which takes as long as the check.
        mapped: Any = _new(nodes.Map)
        mapped.source = self
        mapped.f = f
        return mapped

    def map_err(self, f: Callable[[E], E2]) -> Effect[Env, E2, A]:
        """Apply a function to the error."""
        check_function(f, "map_err")
        return nodes.MapErr(self, f)

    def and_then(
        self: Effect[Env2, E, A], f: Callable[[A], Effect[Env2, E2, B]]
    ) -> Effect[Env2, E | E2, B]:
        """Continue with the effect `f(value)` (monadic bind)."""
        given: Any = f
        # As in `map`.
        if type(given) is not FunctionType or given.__code__.co_flags & CO_COROUTINE:
            check_function(f, "and_then")
        bound: Any = _new(nodes.AndThen)
        bound.source = self
        bound.f = f
        return bound

    def or_else(
        self: Effect[Env2, E, A], f: Callable[[E], Effect[Env2, E2, B]]
    ) -> Effect[Env2, E2, A | B]:
        """Continue with the effect `f(error)` after a failure."""
        check_function(f, "or_else")
        return nodes.OrElse(self, f)

    def tap(
        self: Effect[Env2, E, A], f: Callable[[A], Effect[Env2, E2, object]]
    ) -> Effect[Env2, E | E2, A]:
        """Run the effect `f(value)`, and keep the value. If that effect fails, the whole fails."""
        check_function(f, "tap")

        def tap(value: A) -> nodes.AnyEffect:
            return nodes.Map(f(value), lambda _: value)

        return nodes.AndThen(self, nodes.written(tap, "tap", f))

    def tap_err(
        self: Effect[Env2, E, A], f: Callable[[E], Effect[Env2, E2, object]]
    ) -> Effect[Env2, E | E2, A]:
        """Run the effect `f(error)` after a failure, then fail with the same error.

        A failure of that effect replaces the error. In a durable run, the failure stands once a step of
        that effect has begun: a resume fails with it again instead of repeating the failed step.
        """
        check_function(f, "tap_err")
        return nodes.TapErr(self, f)

    @overload
    def zip(
        self: Effect[Env2, E, A], e2: Effect[Env2, E2, A2], /
    ) -> Effect[Env2, E | E2, tuple[A, A2]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A], e2: Effect[Env2, E2, A2], e3: Effect[Env2, E3, A3], /
    ) -> Effect[Env2, E | E2 | E3, tuple[A, A2, A3]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A],
        e2: Effect[Env2, E2, A2],
        e3: Effect[Env2, E3, A3],
        e4: Effect[Env2, E4, A4],
        /,
    ) -> Effect[Env2, E | E2 | E3 | E4, tuple[A, A2, A3, A4]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A],
        e2: Effect[Env2, E2, A2],
        e3: Effect[Env2, E3, A3],
        e4: Effect[Env2, E4, A4],
        e5: Effect[Env2, E5, A5],
        /,
    ) -> Effect[Env2, E | E2 | E3 | E4 | E5, tuple[A, A2, A3, A4, A5]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A],
        e2: Effect[Env2, E2, A2],
        e3: Effect[Env2, E3, A3],
        e4: Effect[Env2, E4, A4],
        e5: Effect[Env2, E5, A5],
        e6: Effect[Env2, E6, A6],
        /,
    ) -> Effect[Env2, E | E2 | E3 | E4 | E5 | E6, tuple[A, A2, A3, A4, A5, A6]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A],
        e2: Effect[Env2, E2, A2],
        e3: Effect[Env2, E3, A3],
        e4: Effect[Env2, E4, A4],
        e5: Effect[Env2, E5, A5],
        e6: Effect[Env2, E6, A6],
        e7: Effect[Env2, E7, A7],
        /,
    ) -> Effect[Env2, E | E2 | E3 | E4 | E5 | E6 | E7, tuple[A, A2, A3, A4, A5, A6, A7]]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A],
        e2: Effect[Env2, E2, A2],
        e3: Effect[Env2, E3, A3],
        e4: Effect[Env2, E4, A4],
        e5: Effect[Env2, E5, A5],
        e6: Effect[Env2, E6, A6],
        e7: Effect[Env2, E7, A7],
        e8: Effect[Env2, E8, A8],
        /,
    ) -> Effect[
        Env2, E | E2 | E3 | E4 | E5 | E6 | E7 | E8, tuple[A, A2, A3, A4, A5, A6, A7, A8]
    ]: ...
    @overload
    def zip(
        self: Effect[Env2, E, A], /, *others: Effect[Env2, E2, A2]
    ) -> Effect[Env2, E | E2, tuple[A | A2, ...]]: ...
    def zip(
        self: Effect[Any, Any, Any], /, *others: Effect[Any, Any, Any]
    ) -> Effect[Any, Any, Any]:
        """Run this effect, then the others in order, and yield all values as a tuple.

        `par` runs them in parallel.

        Example:
            >>> from effectflow import pure
            >>> pure(1).zip(pure("a"), pure(None)).run_sync(None)
            <Success: (1, 'a', None)>
        """
        check_effects("zip", *others)

        def others_after(value: object) -> nodes.AnyEffect:
            return nodes.FromGenerator(_one_after_another, (value, *others))

        return nodes.AndThen(self, nodes.written(others_after, "zip", *others))

    def zip_with(
        self: Effect[Env2, E, A], other: Effect[Env2, E2, B], f: Callable[[A, B], C]
    ) -> Effect[Env2, E | E2, C]:
        """Run this effect, then another, and yield `f` of both values."""
        check_effects("zip_with", other)
        check_function(f, "zip_with", AND_THEN)

        def zip_with(a: A) -> nodes.AnyEffect:
            return nodes.Map(other, lambda b: f(a, b))

        return nodes.AndThen(self, nodes.written(zip_with, "zip_with", other, f))

    def ensure(self, predicate: Callable[[A], bool], error: E2) -> Effect[Env, E | E2, A]:
        """Fail with `error` unless the value satisfies the predicate. `ensure_with` makes the error."""
        check_function(predicate, "ensure", TEST_THE_VALUE)
        failed = nodes.Fail(error)

        def ensure(value: A) -> nodes.AnyEffect:
            return nodes.Pure(value) if holds(predicate, value, "ensure") else failed

        return nodes.AndThen(self, nodes.written(ensure, "ensure", predicate, error))

    def ensure_with(
        self, predicate: Callable[[A], bool], make_error: Callable[[A], E2]
    ) -> Effect[Env, E | E2, A]:
        """Fail with `make_error(value)` unless the value satisfies the predicate.

        Example:
            >>> from effectflow import pure
            >>> pure(-3).ensure_with(lambda n: n > 0, lambda n: f"{n} is not positive").run_sync(None)
            <Failure: -3 is not positive>
        """
        check_function(predicate, "ensure_with", TEST_THE_VALUE)
        check_function(make_error, "ensure_with")

        def ensure_with(value: A) -> nodes.AnyEffect:
            if holds(predicate, value, "ensure_with"):
                return nodes.Pure(value)
            return nodes.Fail(make_error(value))

        return nodes.AndThen(self, nodes.written(ensure_with, "ensure_with", predicate, make_error))

    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: type[X],
        handler: Callable[[X], Effect[Env2, E2, B]],
    ) -> Effect[Env2, E | E2, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2]],
        handler: Callable[[E1 | E2], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2], type[E3]],
        handler: Callable[[E1 | E2 | E3], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2], type[E3], type[E4]],
        handler: Callable[[E1 | E2 | E3 | E4], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2], type[E3], type[E4], type[E5]],
        handler: Callable[[E1 | E2 | E3 | E4 | E5], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2], type[E3], type[E4], type[E5], type[E6]],
        handler: Callable[[E1 | E2 | E3 | E4 | E5 | E6], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[E1], type[E2], type[E3], type[E4], type[E5], type[E6], type[E7]],
        handler: Callable[[E1 | E2 | E3 | E4 | E5 | E6 | E7], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[
            type[E1], type[E2], type[E3], type[E4], type[E5], type[E6], type[E7], type[E8]
        ],
        handler: Callable[[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8], Effect[Env2, X, B]],
    ) -> Effect[Env2, E | X, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: tuple[type[X], ...],
        handler: Callable[[X], Effect[Env2, E2, B]],
    ) -> Effect[Env2, E | E2, A | B]: ...
    @overload
    def recover(
        self: Effect[Env2, E, A],
        error_type: Callable[[E], bool],
        handler: Callable[[E], Effect[Env2, E2, B]],
    ) -> Effect[Env2, E | E2, A | B]: ...
    def recover(
        self: Effect[Any, Any, Any],
        error_type: Any,
        handler: Callable[[Any], Effect[Any, Any, Any]],
    ) -> Effect[Any, Any, Any]:
        """Continue with the effect `handler(error)` after some errors. Others pass.

        A method cannot remove a class from its error type, so the type keeps all of `E`. `catch`
        narrows it, and so do `result()`, and `or_else` with a function that distinguishes the errors by
        `match` or `isinstance`.

        Parameters:
            error_type: a class of errors, a tuple of classes, or a predicate of the error.
            handler: creates the effect to continue with.

        Example:
            >>> from effectflow import fail, pure
            >>> fail(KeyError("cap")).recover(LookupError, lambda error: pure(0)).run_sync(None)
            <Success: 0>
            >>> fail(404).recover(lambda status: status >= 500, lambda _: pure(0)).run_sync(None)
            <Failure: 404>
        """
        check_function(handler, "recover")
        is_class = isinstance(error_type, type | tuple)
        generic = get_origin(error_type)
        if isinstance(generic, type) and generic is not UnionType:
            raise TypeError(
                f"recover cannot tell {error_type} at run time: use {generic.__name__} without type "
                "arguments, or a predicate"
            )
        if not is_class:
            check_function(error_type, "recover", TEST_THE_VALUE)

        def recover(failed: TypedFailure) -> nodes.AnyEffect | None:
            error = failed.error
            if isinstance(error, error_type) if is_class else holds(error_type, error, "recover"):
                return handler(error)
            return None

        return nodes.Rescue(self, nodes.written(recover, "recover", error_type, handler))

    def fallback(self, value: B) -> Effect[Env, Never, A | B]:
        """Yield `value` instead of failing."""
        replaced = nodes.Pure(value)

        def fallback(_: object) -> nodes.AnyEffect:
            return replaced

        return nodes.OrElse(self, nodes.written(fallback, "fallback", value))

    def fallback_to(
        self: Effect[Env2, E, A], effect: Effect[Env2, E2, B]
    ) -> Effect[Env2, E2, A | B]:
        """Run another effect instead of failing."""
        check_effects("fallback_to", effect)

        def fallback_to(_: object) -> nodes.AnyEffect:
            return effect

        return nodes.OrElse(self, nodes.written(fallback_to, "fallback_to", effect))

    def context(self: Effect[Env2, E2, A2], message: str) -> Effect[Env2, E2, A2]:
        """Describe what this effect does, for the trail of failures and the notes of defects.

        A trail reads from inner to outer. It stays with a failure through `map_err`, parallel operators
        and `retry`. It is shown as notes (PEP 678) on exceptions and on what `run_or_raise` raises;
        `traced` returns it as a value.
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
        """Name this effect, for notes on defects, for `repr`, and for the observer of the run."""
        return nodes.Named(self, name, f"in {name!r}")

    def timeout(self: Effect[Env2, E2, A2], limit: Duration) -> Effect[Env2, E2 | TimedOut, A2]:
        """Cancel this effect after this many seconds, or this `timedelta`, and fail with TimedOut.

        Its finalizers have run by then. It can cancel only where the effect waits: code that blocks the
        event loop runs to its end first, and so does a call of `from_blocking`. With `math.inf`, there is
        no limit.

        In a durable run the absolute deadline is recorded, so a resume waits only for the remaining time.
        An expired timeout stands if the workflow continued after it. If it ended the run, a resume sets a
        new deadline.
        """
        seconds = waiting_time("a timeout", limit)

        @supervised
        async def perform(env: Any, scope: Scope) -> Any:
            operator = Operator(scope, "timeout")
            late = partial(operator.timed_out, seconds)
            return await interpret_limited(operator, self, env, seconds, late)

        return nodes.Perform(perform, (".timeout", self, seconds))

    @overload
    def retry(
        self: Effect[Env2, E2, A2],
        policy: RetryPolicy,
        *,
        retryable: None = None,
        on_retry: Callable[[FailedAttempt[E2]], Effect[Env2, Never, object] | None] | None = None,
    ) -> Effect[Env2, RetryExhausted[E2], A2]: ...
    @overload
    def retry(
        self: Effect[Env2, E2, A2],
        policy: RetryPolicy,
        *,
        retryable: Callable[[E2], bool],
        on_retry: Callable[[FailedAttempt[E2]], Effect[Env2, Never, object] | None] | None = None,
    ) -> Effect[Env2, E2 | RetryExhausted[E2], A2]: ...
    def retry(
        self: Effect[Any, Any, Any],
        policy: RetryPolicy,
        *,
        retryable: Callable[[Any], bool] | None = None,
        on_retry: Callable[[FailedAttempt[Any]], Effect[Any, Never, object] | None] | None = None,
    ) -> Effect[Any, Any, Any]:
        """Run this effect again while it fails, according to the policy.

        Defects and interruptions are not retried. In a durable run the end of each delay is recorded, so
        a resume waits only for the remaining time. If giving up ended the run, a
        resume repeats the last attempt. Every attempt of a step in this effect is a separate step with
        its own idempotency key; `@step(retry=policy)` uses one key for all attempts.

        Parameters:
            policy: the number of attempts and their delays.
            retryable: whether an error is worth another attempt. Other errors are failures immediately.
            on_retry: receives each failed attempt, including the last one and one that `retryable`
                rejects, with `delay=None`. It may return an effect, which is run and must not fail; a
                failure is a defect, raised as TypeError.

        Fails with RetryExhausted when the policy allows no more attempts. Raises ValueError for a policy
        without a bound.

        Example:
            >>> from effectflow import RetryPolicy, fail
            >>> flaky = fail("no").retry(RetryPolicy.constant(0.001).with_max_retries(2))
            >>> flaky.run_sync(None).failure().attempts
            3
        """
        check_bounded(policy)
        if retryable is not None:
            check_function(retryable, "retryable", TEST_THE_VALUE)
        if on_retry is not None:
            check_function(on_retry, "on_retry")

        def perform(env: Any, scope: Scope) -> Awaitable[object]:
            def run(effect: nodes.AnyEffect) -> Awaitable[object]:
                return interpret(effect, env, scope)

            return retried(self, run, scope, policy, retryable, on_retry)

        options = nodes.Options(retryable=retryable, on_retry=on_retry)
        return nodes.Perform(perform, (".retry", self, policy, options))

    def collecting(self: Effect[Env2, E2, A2]) -> Effect[Env2, E2, tuple[A2, list[object]]]:
        """Yield the value together with the emitted events, in order.

        If the effect yields no value, its events go to the next outer listener. To receive them with a
        failure, use `effect.result().collecting()`. Steps that a resume skips emit no events.
        """

        async def perform(env: Any, scope: Scope) -> Any:
            events: list[object] = []

            async def take(event: object, _: Scope) -> None:
                events.append(event)

            async def pass_on(_env: object, emitter: Scope) -> None:
                if scope.sink is not None:
                    for event in events:
                        await scope.sink(event, emitter)

            def hand_over(ended: Exit[Any, Any]) -> nodes.AnyEffect:
                return nodes.Pure(None) if isinstance(ended, Success) else nodes.Perform(pass_on)

            # A finalizer, because it is shielded and runs on every early end.
            listened = nodes.OnExit(self, hand_over)
            outcome = await interpret(listened, env, scope.with_sink(take))
            return outcome if outcome.__class__ is TypedFailure else (outcome, events)

        return nodes.Perform(perform, (".collecting", self))

    def into_sink(
        self: Effect[Env2, E2, A2],
        f: Callable[[Any], Effect[Env2, Never, object] | Coroutine[Any, Any, object] | None],
    ) -> Effect[Env2, E2, A2]:
        """Pass each event to `f` immediately. The emitter continues when `f` has taken the event.

        Nothing is buffered. `f` may be a plain function, an async function, or one that returns an
        effect. A failure of that effect is a defect, raised as TypeError. `f` may emit to the next
        outer listener.

        Example:
            >>> from effectflow.effects import emit
            >>> emit("half").and_then(lambda _: emit("done")).into_sink(print).run_sync(None)
            half
            done
            <Success: None>
        """
        if not is_callable(f):
            raise TypeError(f"into_sink takes a function that takes each event, not {f!r}")

        async def perform(env: Any, scope: Scope) -> Any:
            async def take(event: object, emitter: Scope) -> None:
                if scope.is_planned:
                    # A plan passes no events on.
                    return
                taken: Any = f(event)
                if isinstance(taken, Effect):
                    effect = cast("nodes.AnyEffect", taken)
                    outcome = await interpret(effect, env, emitter.with_sink(scope.sink))
                    refuse_failure("a sink", outcome)
                elif isawaitable(taken):
                    await emitter.fiber.wait(emitter, awaiting, taken)

            return await interpret(self, env, scope.with_sink(take))

        return nodes.Perform(perform, (".into_sink", self, f))

    def result(self: Effect[Env2, E2, A2]) -> Effect[Env2, Never, Result[A2, E2]]:
        """Yield `Success(value)` or `Failure(error)`; never fail."""
        return nodes.Reify(self)

    def local(self, f: Callable[[Env2], Env]) -> Effect[Env2, E, A]:
        """Run this effect in the environment `f(outer environment)`."""
        check_function(f, "local", AND_THEN)
        return nodes.Local(self, f)

    def provide(self, env: Env) -> Effect[object, E, A]:
        """Run this effect in the given environment instead of the outer one."""

        def provide(_: object) -> object:
            return env

        return nodes.Local(self, nodes.written(provide, "provide", env))

    def within(self, environment: EnvironmentClass[B, Env]) -> Effect[B, E, A]:
        """Return this effect with a larger environment in its type, to combine it with others.

        Parallel operators, `zip`, `race` and `bracket` need one environment type for all parts. Parts
        that ask for different protocols combine once each is within the same class. Type checkers
        reject a class that lacks something that the effect needs. Nothing changes at run time.

        Parameters:
            environment: a class or protocol that has everything this effect needs.

        Example:
            >>> from typing import NamedTuple, Protocol
            >>> from effectflow import par
            >>> from effectflow.effects import asks
            >>> class HasName(Protocol):
            ...     name: str
            >>> class HasPrice(Protocol):
            ...     price: int
            >>> class Env(NamedTuple):
            ...     name: str
            ...     price: int
            >>> def name_of(env: HasName) -> str:
            ...     return env.name
            >>> def price_of(env: HasPrice) -> int:
            ...     return env.price
            >>> par(asks(name_of).within(Env), asks(price_of).within(Env)).run_sync(Env("tea", 3))
            <Success: ('tea', 3)>
        """
        return cast("Effect[B, E, A]", self)

    def on_executor(
        self: Effect[Any, E2, A2], executor: Executor
    ) -> Effect[Any, E2 | ExecutorError, A2]:
        """Run this effect where the executor runs work, in the environment of the worker.

        The whole effect is sent. `executor.apply(function, item)` is cheaper for many items: it sends
        only the item, and the worker creates the effect.
        """
        return executor.apply(nodes.itself, self)

    def on_exit(
        self: Effect[Env2, E2, A2],
        finalizer: Effect[Env2, Never, object]
        | Callable[[Exit[A2, E2]], Effect[Env2, Never, object]],
    ) -> Effect[Env2, E2, A2]:
        """Run `finalizer` exactly once when this effect has ended, however it ended.

        `finalizer` is an effect, or a function that receives the `Exit` and returns one. It is shielded
        from cancellation. If the effect ended in a defect or an interruption, a defect of the finalizer
        is added as a note; otherwise it is raised. In a durable run, a failure stands once a step of a
        finalizer has begun, as in `tap_err`. If the run is stopped from outside, the finalizer ends
        before its next step, and the resume executes that step.
        """
        if not isinstance(finalizer, Effect):
            check_function(finalizer, "on_exit")
            return nodes.OnExit(self, finalizer)
        always = cast("Effect[Env2, Never, object]", finalizer)

        def on_exit(_: object) -> Effect[Env2, Never, object]:
            return always

        return nodes.OnExit(self, nodes.written(on_exit, "on_exit", finalizer))

    def checkpointed(
        self: Effect[Env2, E2, A2],
        step: str,
        *,
        output: type[A2] | None = None,
        error: object = None,
        retryable: bool | Callable[[E2], bool] | None = None,
        at_most_once: bool = False,
    ) -> Effect[Env2, E2, A2]:
        """Make this effect a durable step. Same as `with_checkpointing(step, self, ...)`."""
        return Effect.make_durable(
            step,
            self,
            output=output,
            error=error,
            retryable=retryable,
            at_most_once=at_most_once,
        )

    make_durable: ClassVar[Callable[..., Effect[Any, Any, Any]]]
    """`with_checkpointing`. The checkpoint layer sets it, because this layer must not import it."""

    def __iter__(self: Effect[Env2, E2, A2]) -> Generator[Effect[Env2, E2, Any], Any, A2]:
        """Give `value = yield from effect` the type of the effect's value in a `@do` body."""
        return (yield self)

    def __await__(self: Effect[Env2, E2, A2]) -> Generator[Any, Any, A2]:
        """Run this effect in the coroutine that awaits it: a body, or the code of an effect or a step.

        A failure is raised: the error itself if it is an exception, otherwise an `EffectError` around it.
        Raises RuntimeError where no run has the coroutine, or in another task than that of the run.
        """
        return awaited(self)

    def __repr__(self) -> str:
        return nodes.describe(self)


def _run_in_new_loop(
    run: Callable[[B], Awaitable[A]], environment: list[B], backend: Literal["asyncio", "trio"]
) -> A:
    """Await `run(env)` in a new event loop. Take the environment out of the list that has it."""

    async def main() -> A:
        return await run(environment.pop())

    try:
        return anyio.run(main, backend=backend)
    except BaseException as raised:
        if environment and isinstance(raised, RuntimeError):
            add_hint(raised, "In async code, write `await effect.run(env)`")
        cancelled = raised.__context__
        if isinstance(raised, KeyboardInterrupt) and cancelled is not None:
            # On asyncio, it follows the cancellation of the task. Only what that has learnt matters.
            for note in our_notes(cancelled):
                raised.add_note(note)
            raised.__context__ = None
        hide_frames(raised)
        raise raised  # `python -X dev` shows the frames of effectflow, too


class EnvironmentClass(Protocol[MadeB, MadeEnv]):
    """A class whose instances are a `B` and an `Env`, as the parameter of `within`.

    Each overload is a condition. Together they infer the class and compare it with what the effect
    needs, also for protocols, which checkers reject as a `type[...]`.
    """

    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> MadeB: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # never called
        self, *args: Any, **kwargs: Any
    ) -> MadeEnv: ...


class Executor(Protocol):
    """Runs effects in this event loop, in other processes, or on a cluster.

    The function and the item are sent. The effect is created and run by the worker, in the worker's
    environment. Its value, failure or defect comes back.
    """

    def apply(
        self, function: Callable[[B], Effect[Any, E2, A2]], item: B
    ) -> Effect[Any, E2 | ExecutorError, A2]:
        """Return an effect that runs `function(item)` where the executor runs work.

        It ends as that effect ends. It fails with an ExecutorError if the outcome is unknown: WorkerLost
        for this item, ExecutorLost for everything that ran there.
        """
        ...


def _one_after_another(
    first: object, *effects: Effect[Any, Any, Any]
) -> Generator[Any, Any, tuple[Any, ...]]:
    values = [first]
    for effect in effects:
        values += [(yield effect)]
    return tuple(values)


# Nodes derive from Effect, and its methods create and run nodes, so these imports follow the class.
from effectflow.effects import nodes  # noqa: E402
from effectflow.effects.interpreter import (  # noqa: E402
    interpret,
    interpret_limited,
    raise_failure,
)

passing_code.add(vars(Effect)["run_or_raise"].__code__)
