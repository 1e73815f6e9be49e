"""Create effects from values, functions, coroutines and results."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Never, TypeVar, get_origin, overload
from uuid import UUID, uuid4

import anyio
from returns.result import Result, Success

from effectflow.effects import nodes
from effectflow.effects.arguments import check_function
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.effect import Effect
from effectflow.effects.event_loop import is_being_cancelled, is_cancellation, run_to_the_end
from effectflow.effects.scope import Scope
from effectflow.effects.type_variables import X1, X2, X3, X4, X5, X6, X7, X8

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def pure(value: A) -> Effect[object, Never, A]:
    """Yield `value`."""
    return nodes.Pure(value)


def fail(error: E) -> Effect[object, E, Never]:
    """Fail with `error`, which may be any value."""
    return nodes.Fail(error)


def die(exception: Exception) -> Effect[object, Never, Never]:
    """End in a defect: `run` raises `exception` unchanged."""
    return nodes.Die(exception)


def from_fn(f: Callable[[Env], A]) -> Effect[Env, Never, A]:
    """Call `f(env)`. An exception that it raises is a defect; see `attempt`."""
    check_function(f, "from_fn", "use from_async")
    return nodes.FromFn(f)


def from_async(f: Callable[[Env], Awaitable[A]]) -> Effect[Env, Never, A]:
    """Await `f(env)`. An exception that it raises is a defect; see `attempt`."""
    return nodes.FromAsync(f)


def from_blocking(f: Callable[[Env], A]) -> Effect[Env, Never, A]:
    """Call `f(env)` in a worker thread, without blocking the event loop.

    At most 40 such calls run at the same time, which is anyio's default limit. A thread cannot be
    stopped, so an interruption waits until the call returns, unless the call has not begun. A timeout
    around it takes effect only after that, where the effect waits next. If a step of
    a durable run ends with the call, its end is recorded before the interruption takes effect. To call
    into the event loop, `f` needs the token of `anyio.lowlevel.current_token()`.
    """
    check_function(f, "from_blocking", "use from_async, which needs no thread")
    return nodes.Suspend(
        lambda _, scope: nodes.FromAsync(partial(_in_a_thread, f, scope)), ("from_blocking", f)
    )


async def _in_a_thread(f: Callable[[Env], A], scope: Scope, env: Env) -> A:
    # Imported late, like everything that most programs do not use.
    from anyio import to_thread

    limiter = to_thread.current_default_thread_limiter()
    turn = object()
    # The wait for a free thread can be interrupted; only the call itself cannot.
    await limiter.acquire_on_behalf_of(turn)
    try:
        end, cancelled = await run_to_the_end(_end_in_a_thread(f, env))
    finally:
        limiter.release_on_behalf_of(turn)
    try:
        if cancelled is not None:
            scope.postpone(_noted(cancelled, end))
        elif scope.step is not None and is_being_cancelled():
            # A scope has cancelled it, which raises that at the next wait.
            scope.step.is_cancelled = True
        if isinstance(end, _Raised):
            raise end.error
        return end
    finally:
        # The traceback of the error keeps this frame.
        del end


class _Raised:
    """What a function raised in a thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _end_in_a_thread(f: Callable[[Env], A], env: Env) -> A | _Raised:
    from effectflow.effects.threads import in_thread

    try:
        return await in_thread(partial(f, env), anyio.CapacityLimiter(1))
    except BaseException as raised:
        if is_cancellation(raised):
            raise
        return _Raised(raised)


def _noted(cancelled: BaseException, end: object) -> BaseException:
    if isinstance(end, _Raised):
        cancelled.add_note(f"and meanwhile failed: {end.error!r}")
    return cancelled


def from_result(result: Result[A, E]) -> Effect[object, E, A]:
    """Yield the value of a `Success`, or fail with the error of a `Failure`."""
    if isinstance(result, Success):
        return nodes.Pure(result.unwrap())
    return nodes.Fail(result.failure())


def from_optional(value: A | None, error: E) -> Effect[object, E, A]:
    """Yield a value, or fail with `error` if it is None.

    Example:
        >>> from effectflow.effects import from_optional
        >>> prices = {"tea": 3}
        >>> from_optional(prices.get("tea"), "unknown").run_sync(None)
        <Success: 3>
        >>> from_optional(prices.get("cap"), "unknown").run_sync(None)
        <Failure: unknown>
    """
    return nodes.Fail(error) if value is None else nodes.Pure(value)


@overload
def attempt(
    f: Callable[[Env], Awaitable[A]],
    x1: type[X1],
    x2: type[X2] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x3: type[X3] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x4: type[X4] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x5: type[X5] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x6: type[X6] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x7: type[X7] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x8: type[X8] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    /,
) -> Effect[Env, X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8, A]: ...
@overload
def attempt(
    f: Callable[[Env], A],
    x1: type[X1],
    x2: type[X2] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x3: type[X3] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x4: type[X4] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x5: type[X5] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x6: type[X6] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x7: type[X7] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    x8: type[X8] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # `Never` by default
    /,
) -> Effect[Env, X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8, A]: ...
@overload
def attempt(
    f: Callable[[Env], Awaitable[A]], /, *exception_types: type[X1]
) -> Effect[Env, X1, A]: ...
@overload
def attempt(f: Callable[[Env], A], /, *exception_types: type[X1]) -> Effect[Env, X1, A]: ...
def attempt(f: Callable[[Any], Any], /, *exception_types: type[Exception]) -> Effect[Any, Any, Any]:
    """Call `f(env)`, plain or async, and turn the named exceptions into failures.

    Any other exception is a defect.

    Example:
        >>> from effectflow import attempt
        >>> attempt(lambda env: int("twelve"), ValueError).run_sync(None)
        <Failure: invalid literal for int() with base 10: 'twelve'>
    """
    if not exception_types:
        raise TypeError("attempt() needs at least one exception class to turn into a failure")
    return nodes.Attempt(f, exception_types)


def suspend(f: Callable[[], Effect[Env, E, A]]) -> Effect[Env, E, A]:
    """Create the effect with `f()` each time that it is run."""
    check_function(f, "suspend")
    return nodes.Suspend(lambda _env, _scope: f(), ("suspend", f))


@overload
def ask() -> Effect[Env, Never, Env]: ...
@overload
def ask(environment: type[Env], /) -> Effect[Env, Never, Env]: ...
def ask(environment: type[Env] | None = None, /) -> Effect[Any, Never, Any]:
    """Yield the environment.

    The class tells type checkers which one it is. With another one, the effect ends in a TypeError. A
    protocol is not checked, unless it is `runtime_checkable`.
    """
    kind: Any = get_origin(environment) or environment
    try:
        isinstance(None, kind)
    except TypeError:
        # None, a protocol, and other forms that only type checkers check.
        return _ASK

    def look(env: object, _scope: Scope) -> Effect[Any, Never, Any]:
        if isinstance(env, kind):
            return nodes.Pure(env)
        return nodes.Die(
            TypeError(
                f"ask({kind.__name__}) found an environment of another class, {type(env).__qualname__}: "
                f"run the effect in a {kind.__name__}, or ask for a protocol"
            )
        )

    return nodes.Suspend(look, ("ask", nodes.Written(kind.__name__)))


_ASK = nodes.Ask()


def asks(f: Callable[[Env], A]) -> Effect[Env, Never, A]:
    """Yield `f(env)`: one part of the environment."""
    check_function(f, "asks", "use from_async")
    return nodes.FromFn(f)


def sleep(duration: Duration) -> Effect[object, Never, None]:
    """Wait for this many seconds, or this `timedelta`, of the run's clock.

    A time of 0 or less, such as that until a moment in the past, only gives other tasks a turn. Raises
    ValueError if it is not a number (NaN).

    Between the steps of a durable run, the end of the wait is recorded: a resume waits only for the
    remaining time.
    """
    seconds = in_seconds(duration)
    if math.isnan(seconds):
        raise ValueError("a sleep must be a number of seconds, not nan")

    def perform(_env: object, scope: Scope) -> Awaitable[None]:
        return scope.fiber.sleep(scope, seconds)

    return nodes.Perform(perform, ("sleep", seconds))


def sleep_until(moment: datetime) -> Effect[object, Never, None]:
    """Wait until a moment, which needs a time zone. If it has passed, only other tasks get a turn.

    Between the steps of a durable run, the moment is recorded: a resume waits for the same one.

    Example:
        >>> from datetime import UTC, datetime
        >>> sleep_until(datetime(2000, 1, 1, tzinfo=UTC)).run_sync(None)
        <Success: None>
    """
    if moment.tzinfo is None:
        raise ValueError(f"sleep_until needs a moment with a time zone, not {moment!r}")

    async def perform(_env: object, scope: Scope) -> None:
        await scope.fiber.sleep_until(scope, moment.timestamp(), math.inf)

    return nodes.Perform(perform, ("sleep_until", moment))


def never() -> Effect[object, Never, Never]:
    """Wait until interrupted."""
    return nodes.FromAsync(_sleep_forever)


async def _sleep_forever(_env: object) -> None:
    await anyio.sleep_forever()


nodes.written(_sleep_forever, "never")


def now() -> Effect[object, Never, datetime]:
    """Yield the time of day, aware, in UTC.

    Between the steps of a durable run, the value is recorded: a resume yields the same time. So it is
    inside a step that begins other steps. In any other step, each attempt reads the time again.
    """
    return _observed("now", datetime, lambda scope: scope.clock.now())


def random() -> Effect[object, Never, float]:
    """Yield a random number x with 0.0 <= x < 1.0. Recorded like `now`."""
    return _observed("random", float, _draw)


def _draw(_scope: Scope) -> float:
    from random import random

    return random()


def uuid() -> Effect[object, Never, UUID]:
    """Yield a random UUID (version 4). Recorded like `now`."""
    return _observed("uuid", UUID, lambda _: uuid4())


def _observed(name: str, kind: type[A], take: Callable[[Scope], A]) -> Effect[object, Never, A]:
    async def perform(_env: object, scope: Scope) -> A:
        return scope.fiber.value(name, kind, partial(take, scope))

    return nodes.Perform(perform, (name,))


def emit(event: object) -> Effect[object, Never, None]:
    """Pass `event` to the next outer listener, and wait until it has taken the event.

    Without a listener, the event is dropped. A resume does not run completed steps again, so they emit
    nothing. Events between steps are emitted again.

    Example:
        >>> from effectflow import pure
        >>> from effectflow.effects import emit
        >>> emit("half").and_then(lambda _: emit("done")).map(lambda _: 42).collecting().run_sync(None)
        <Success: (42, ['half', 'done'])>
    """

    async def perform(_env: object, scope: Scope) -> None:
        if scope.sink is not None:
            await scope.sink(event, scope)

    return nodes.Perform(perform, ("emit", event))
