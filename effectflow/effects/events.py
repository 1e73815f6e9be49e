"""A side channel: effects emit events, and the listener around them receives these.

Unlike in a writer monad, events are not gathered on the way: each one reaches its listener before the
effect continues.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Never, TypeVar, cast

from returns.result import Success

from effectflow.effects import nodes
from effectflow.effects.arguments import is_callable
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Exit
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")


def emit(event: object) -> Effect[object, Never, None]:
    """Pass `event` to the next outer listener, and wait until it has taken the event.

    Without a listener, the event is dropped. A resume does not run completed steps again, so they emit
    nothing. Events between steps are emitted again.

    Example:
        >>> from effectflow import emit, pure
        >>> emit("half").and_then(lambda _: emit("done")).map(lambda _: 42).collecting().run_sync(None)
        <Success: (42, ['half', 'done'])>
    """

    async def perform(_env: object, scope: Scope) -> None:
        if scope.sink is not None:
            await scope.sink(event, scope)

    return nodes.Perform(perform, ("emit", event))


def into_sink(source: Effect[Env, E, A], f: Callable[[Any], object]) -> Effect[Env, E, A]:
    """Run an effect with `f` as its listener; see `Effect.into_sink`."""
    if not is_callable(f):
        raise TypeError(f"into_sink takes a function that takes each event, not {f!r}")

    async def perform(env: Any, scope: Scope) -> Any:
        async def take(event: object, emitter: Scope) -> None:
            if scope.is_planned:
                # A plan passes no events on.
                return
            taken: Any = f(event)
            if isinstance(taken, Effect):
                listener = emitter.with_sink(scope.sink)
                await run_listener("a sink", cast("Effect[Any, Any, Any]", taken), env, listener)
            elif inspect.isawaitable(taken):
                await emitter.fiber.wait(emitter, itself, taken)

        return await interpret(source, env, scope.with_sink(take))

    return nodes.Perform(perform, (".into_sink", source, f))


def collecting(source: Effect[Env, E, A]) -> Effect[Env, E, tuple[A, list[object]]]:
    """Run an effect and gather its events; see `Effect.collecting`."""

    async def perform(env: Any, scope: Scope) -> Any:
        events: list[object] = []

        async def take(event: object, _: Scope) -> None:
            events.append(event)

        async def pass_on(_env: object, emitter: Scope) -> None:
            if scope.sink is not None:
                for event in events:
                    await scope.sink(event, emitter)

        def hand_over(ended: Exit[Any, Any]) -> Effect[object, Never, None]:
            return nodes.Pure(None) if isinstance(ended, Success) else nodes.Perform(pass_on)

        # A finalizer, because it is shielded and runs on every early end.
        listened = nodes.OnExit(source, hand_over)
        outcome = await interpret(listened, env, scope.with_sink(take))
        return outcome if outcome.__class__ is TypedFailure else (outcome, events)

    return nodes.Perform(perform, (".collecting", source))


async def itself(awaitable: Awaitable[A]) -> A:
    """Await something that exists already."""
    return await awaitable


async def run_listener(what: str, effect: Effect[Any, Any, object], env: Any, scope: Scope) -> None:
    """Run the effect that a listener returned. A failure is a bug, because its type excludes failures."""
    outcome = await interpret(effect, env, scope)
    if outcome.__class__ is TypedFailure:
        error = outcome.error
        raise TypeError(
            f"{what} failed with {error!r}, and it must not fail: handle the error inside it, "
            "for instance with .fallback(None)"
        ) from (error if isinstance(error, BaseException) else None)
