"""Coroutines that await effects: bodies, and the code of effects and steps.

The interpreter drives such a coroutine itself, and so receives the effects that it awaits, however deep
in its functions. Everything else that it waits for goes on to the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

from effectflow.effects.arguments import BaseEffect
from effectflow.effects.event_loop import unmark_own_cancellation

A = TypeVar("A")

ENDED: Final[Any] = object()
"""Stands for the next effect of a body that has ended."""

_REFUSALS = ("Task got bad yield", "trio.run received unrecognized yield message")
"""How the event loops begin to say that they do not know what a coroutine waits for."""

_MOST_CLOSINGS = 1000
"""How often a coroutine is asked to end."""


def awaited(effect: Any) -> Generator[Any, Any, Any]:
    """Give an effect to the interpreter that drives the coroutine around. Return its value."""
    try:
        return (yield effect)
    except (RuntimeError, TypeError) as refused:
        # An effect that runs may raise this because its own code awaits something of another library.
        if not str(refused).startswith(_REFUSALS) or repr(effect) not in str(refused):
            raise
        raise RuntimeError(
            f"{effect!r} was awaited outside a run, or in another task. An effect can be awaited in the "
            "body of a workflow, in @do, and in the code of an effect or a step, in the same task: use "
            "par(...) in place of asyncio.gather or a task group. Elsewhere, write "
            "`await effect.run(env)`"
        ) from None


async def advanced(body: Coroutine[Any, Any, Any], resume: Callable[[], Any]) -> tuple[Any, Any]:
    """Resume a coroutine until it awaits an effect or ends.

    Return the effect, and whether it has waited for anything else before. Or `ENDED` and the value.
    """
    try:
        wanted = resume()
    except StopIteration as stop:
        return ENDED, stop.value
    if isinstance(wanted, BaseEffect):
        return wanted, False
    return await driven(body, wanted)


@coroutine
def driven(body: Coroutine[Any, Any, Any], wanted: Any) -> Generator[Any, Any, tuple[Any, Any]]:
    """Let the event loop have what a coroutine waits for. Return the same as `advanced`."""
    try:
        while not isinstance(wanted, BaseEffect):
            try:
                sent = yield wanted
            except BaseException as raised:
                unmark_own_cancellation(body, raised)
                wanted = body.throw(raised)
            else:
                wanted = body.send(sent)
    except StopIteration as stop:
        return ENDED, stop.value
    return wanted, True


def end_coroutine(body: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine at once, even if it catches that. Raise what it raises instead."""
    for _ in range(_MOST_CLOSINGS):
        try:
            body.close()
        except RuntimeError as refused:
            if str(refused) != "coroutine ignored GeneratorExit":
                raise
        else:
            return


async def awaiting(awaitable: Awaitable[A]) -> A:
    """Await something that need not be a coroutine."""
    return await awaitable
