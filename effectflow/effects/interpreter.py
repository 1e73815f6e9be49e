"""The one loop that gives effects their meaning.

It keeps its own stack, so a chain of a million binds needs no recursion, and it runs in the caller's
task, so cancellation, context variables and tracebacks are those of plain async code.

What waits on the stack is the effect that has to go on once its source has ended (`AndThen`, `OrElse`,
`OnExit`, ...), the generator of a `@do` body, or a `_Restore` that brings back an outer environment.
"""

from __future__ import annotations

import logging
from types import GeneratorType
from typing import Any

import anyio
from returns.result import Failure, Success

from effectflow.effects.exit import Defect, Exit, Interruption
from effectflow.effects.nodes import (
    AndThen,
    AnyEffect,
    Ask,
    Die,
    Fail,
    Failed,
    FromAsync,
    FromFn,
    FromGenerator,
    InScope,
    Local,
    Map,
    MapErr,
    Noted,
    OnExit,
    OrElse,
    Perform,
    Pure,
    Reify,
    Suspend,
)
from effectflow.effects.scope import Scope

__all__ = ["interpret"]

logger = logging.getLogger(__name__)

_WAITING = frozenset({OrElse, MapErr, Reify, Noted, OnExit})


class _Restore:
    """Brings back the environment and scope that held outside a `Local` or an `InScope`."""

    __slots__ = ("env", "scope")

    def __init__(self, env: Any, scope: Scope) -> None:
        self.env = env
        self.scope = scope


async def interpret(effect: AnyEffect, env: Any, scope: Scope) -> Any:
    """Run an effect; give its value, or a `Failed` around its error.

    One long function on purpose: a call for each kind of node would double the price of a bind.
    """
    stack: list[Any] = []
    current: Any = effect
    value: Any
    frame: Any
    kind: Any
    while True:
        try:
            while True:
                # Down: take the effect apart until something yields a value or fails.
                kind = current.__class__
                if kind is Pure:
                    value = current.value
                elif kind is AndThen or kind is Map:
                    stack.append(current)
                    current = current.source
                    continue
                elif kind is FromFn:
                    value = current.f(env)
                elif kind is FromAsync:
                    value = await current.f(env)
                elif kind is FromGenerator:
                    stack.append(current.f())
                    value = None
                elif kind is Perform:
                    value = await current.f(env, scope)
                elif kind is Suspend:
                    current = current.f(scope)
                    continue
                elif kind is Ask:
                    value = env
                elif kind is Fail:
                    value = Failed(current.error)
                elif kind is Die:
                    raise current.exception
                elif kind is Local:
                    stack.append(_Restore(env, scope))
                    env = current.f(env)
                    current = current.source
                    continue
                elif kind is InScope:
                    stack.append(_Restore(env, scope))
                    scope = current.scope
                    current = current.source
                    continue
                elif kind in _WAITING:
                    stack.append(current)
                    current = current.source
                    continue
                else:
                    raise TypeError(_not_an_effect(current))

                # Up: hand the value, or the failure, to whatever waits for it.
                while stack:
                    frame = stack.pop()
                    kind = frame.__class__
                    if value.__class__ is not Failed:
                        if kind is AndThen:
                            current = frame.f(value)
                            break
                        if kind is GeneratorType:
                            try:
                                current = frame.send(value)
                            except StopIteration as stop:
                                value = stop.value
                                continue
                            stack.append(frame)
                            break
                        if kind is Map:
                            value = frame.f(value)
                            continue
                        if kind is Reify:
                            value = Success(value)
                            continue
                    elif kind is OrElse:
                        current = frame.f(value.error)
                        break
                    elif kind is GeneratorType:
                        frame.close()
                        continue
                    elif kind is MapErr:
                        value = Failed(frame.f(value.error))
                        continue
                    elif kind is Reify:
                        value = Failure(value.error)
                        continue
                    if kind is _Restore:
                        env, scope = frame.env, frame.scope
                    elif kind is OnExit:
                        await _finalize(frame, _exit_of(value), env, scope)
                else:
                    return value
        except BaseException as raised:
            current, env, scope = await _unwind(stack, raised, env, scope)


async def _unwind(
    stack: list[Any], raised: BaseException, env: Any, scope: Scope
) -> tuple[AnyEffect, Any, Scope]:
    """Pass a defect or an interruption through everything that waits.

    Gives the effect to go on with if a `@do` body caught the exception; raises it otherwise.
    """
    frame: Any
    kind: Any
    caught: Any
    while stack:
        frame = stack.pop()
        kind = frame.__class__
        if kind is GeneratorType:
            try:
                if isinstance(raised, Exception):
                    caught = frame.throw(raised)
                else:
                    # A body must not swallow an interruption: it is closed, not asked.
                    frame.close()
                    continue
            except StopIteration as stop:
                return Pure(stop.value), env, scope
            except BaseException as other:
                raised = other
                continue
            stack.append(frame)
            return caught, env, scope
        if kind is _Restore:
            env, scope = frame.env, frame.scope
        elif kind is Noted:
            if isinstance(raised, Exception):
                raised.add_note(frame.note)
        elif kind is OnExit:
            await _finalize_after(frame, raised, env, scope)
    raise raised


async def _finalize(frame: OnExit, ended: Exit[Any, Any], env: Any, scope: Scope) -> None:
    """Run one finalizer, shielded from cancellation."""
    finalizer = frame.finalizer(ended)
    if finalizer.__class__ is Pure:
        return
    with anyio.CancelScope(shield=True):
        outcome = await interpret(finalizer, env, scope)
        if outcome.__class__ is Failed:
            raise TypeError(
                f"a finalizer failed with {outcome.error!r}; a finalizer must not fail: "
                "handle its errors with or_else, or raise them as defects"
            )


async def _finalize_after(frame: OnExit, raised: BaseException, env: Any, scope: Scope) -> None:
    """Run one finalizer on the way of an exception, which goes on whatever the finalizer does."""
    ended = Defect(raised) if isinstance(raised, Exception) else Interruption(raised)
    try:
        await _finalize(frame, ended, env, scope)
    except Exception as defect:
        logger.exception("a finalizer failed while %r was passing", raised)
        raised.add_note(f"and a finalizer failed: {defect!r}")


def _exit_of(value: Any) -> Exit[Any, Any]:
    return Failure(value.error) if value.__class__ is Failed else Success(value)


def _not_an_effect(found: object) -> str:
    hint = "did you forget to call it?" if callable(found) else "wrap a plain value in pure(...)"
    return f"expected an effect and got {found!r}: {hint}"
