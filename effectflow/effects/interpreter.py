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

from returns.result import Failure, Success

from effectflow.effects.errors import TracedError
from effectflow.effects.event_loop import run_to_the_end, shielded
from effectflow.effects.exit import Defect, Exit, Interruption
from effectflow.effects.nodes import (
    AndThen,
    AnyEffect,
    Ask,
    Bracket,
    Context,
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
    Named,
    OnExit,
    OrElse,
    Perform,
    Pure,
    Reify,
    Rescue,
    Suspend,
    Traced,
)
from effectflow.effects.notes import add_note, forget_notes, show_trail
from effectflow.effects.scope import Operator, Scope

__all__ = ["interpret"]

logger = logging.getLogger(__name__)

_WAITING = frozenset({OrElse, Rescue, MapErr, Reify, OnExit, Context, Traced})


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
    current: Any = effect
    if current.__class__ is Pure:
        # Many children of parallel operators are no more than this.
        return current.value
    stack: list[Any] = []
    value: Any = None
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
                    stack.append(current.f(*current.args, **current.kwargs))
                    value = None
                elif kind is Perform:
                    value = await current.f(env, scope)
                elif kind is Suspend:
                    current = current.f(scope)
                    continue
                elif kind is Ask:
                    value = env
                elif kind is Fail:
                    value = Failed(current.error, current.trail)
                    if not current.trail:
                        forget_notes(current.error)
                elif kind is Die:
                    forget_notes(current.exception)
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
                elif kind is Named:
                    stack.append(current)
                    if scope.observer is not None:
                        scope.observer.began(current.name)
                    current = current.source
                    continue
                elif kind is Bracket:
                    value, cancelled = await run_to_the_end(interpret(current.source, env, scope))
                    if value.__class__ is not Failed:
                        # From here on it is released, whatever comes.
                        current = _used(current, value)
                        stack.append(current)
                        current = current.source
                    if cancelled is not None:
                        raise cancelled
                    if value.__class__ is not Failed:
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
                        value = Failed(frame.f(value.error), value.trail)
                        continue
                    elif kind is Reify:
                        value = Failure(show_trail(value.error, value.trail))
                        continue
                    elif kind is Context:
                        value = _failed_in(frame.message, value)
                        continue
                    elif kind is Rescue:
                        handled = frame.f(value)
                        if handled is None:
                            continue
                        current = handled
                        break
                    elif kind is Traced:
                        value = Failed(TracedError(value.error, value.trail))
                        continue
                    if kind is _Restore:
                        env, scope = frame.env, frame.scope
                    elif kind is OnExit:
                        value = await _finalize(frame, value, env, scope)
                    elif kind is Named and scope.observer is not None:
                        scope.observer.ended(frame.name, _exit_of(value))
                else:
                    return value
        except BaseException as raised:
            current, env, scope = await _unwind(stack, raised, env, scope)


def _used(bracket: Bracket, resource: Any) -> OnExit:
    """The use of a resource, which is released when that has ended."""
    # Made late: a `use` that raises before it gives an effect is released from, too.
    use = Suspend(lambda _: bracket.use(resource))
    return OnExit(use, lambda _: bracket.release(resource))


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
                    _close(frame, raised)
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
        elif kind is Named:
            if isinstance(raised, Exception):
                add_note(raised, frame.note)
            if scope.observer is not None:
                scope.observer.ended(frame.name, _exit_of_raised(raised))
        elif kind is Context:
            if isinstance(raised, Exception):
                add_note(raised, frame.message)
        elif kind is OnExit:
            raised = await _finalize_after(frame, raised, env, scope)
    raise raised


def _close(body: GeneratorType[Any, Any, Any], raised: BaseException) -> None:
    """End a body whose run is interrupted. What its `finally` raises must not hide that."""
    try:
        body.close()
    except Exception as defect:
        logger.exception("a body failed while %r was passing", raised)
        raised.add_note(f"and a body failed meanwhile: {defect!r}")


async def _finalize(frame: OnExit, value: Any, env: Any, scope: Scope) -> Any:
    """Run one finalizer; give what its source ended with, or the finalizer's own bad end.

    A bad end of the finalizer joins a failure of the source, and never takes its place.
    """
    try:
        outcome = await _run_finalizer(frame.finalizer(_exit_of(value)), env, scope)
    except Exception as defect:
        if value.__class__ is not Failed:
            raise
        logger.exception("a finalizer failed after the failure %r", value.error)
        return _failed_in(f"and a finalizer failed: {defect!r}", value)
    if outcome.__class__ is not Failed:
        return value
    if value.__class__ is not Failed:
        return outcome
    return _failed_in(f"and a finalizer failed: {outcome.error!r}", value)


async def _finalize_after(
    frame: OnExit, raised: BaseException, env: Any, scope: Scope
) -> BaseException:
    """Run one finalizer on the way of an exception, which goes on whatever the finalizer does.

    Gives what goes on: an interruption that came meanwhile takes the place of a defect.
    """
    if not isinstance(raised, Exception):
        scope = scope.finalizing()
    try:
        outcome = await _run_finalizer(frame.finalizer(_exit_of_raised(raised)), env, scope)
    except Exception as defect:
        logger.exception("a finalizer failed while %r was passing", raised)
        add_note(raised, f"and a finalizer failed: {defect!r}")
    except BaseException as interruption:
        return interruption if isinstance(raised, Exception) else raised
    else:
        if outcome.__class__ is Failed:
            add_note(raised, f"and a finalizer failed: {outcome.error!r}")
    return raised


async def _run_finalizer(finalizer: AnyEffect, env: Any, scope: Scope) -> Any:
    """The outcome of a finalizer, which is shielded from cancellation until its deadline."""
    if finalizer.__class__ in _SYNCHRONOUS:
        return await interpret(finalizer, env, scope)
    return await shielded(_until_deadline(finalizer, env, scope))


_SYNCHRONOUS = frozenset({Pure, FromFn})


async def _until_deadline(finalizer: AnyEffect, env: Any, scope: Scope) -> Any:
    deadline = scope.finalizer_deadline
    if deadline is None:
        return await interpret(finalizer, env, scope)
    with scope.clock.move_on_after(deadline) as limit:
        inside = scope.under(Operator(lambda: limit.cancel_called))
        return await interpret(finalizer, env, inside)
    raise TimeoutError(f"the finalizer {finalizer!r} took more than {deadline} s, and was ended")


def _failed_in(message: str, failed: Failed) -> Failed:
    """The failure once it has crossed a context."""
    return Failed(failed.error, (*failed.trail, message))


def _exit_of(value: Any) -> Exit[Any, Any]:
    return Failure(value.error) if value.__class__ is Failed else Success(value)


def _exit_of_raised(raised: BaseException) -> Exit[Any, Any]:
    return Defect(raised) if isinstance(raised, Exception) else Interruption(raised)


def _not_an_effect(found: object) -> str:
    hint = "did you forget to call it?" if callable(found) else "wrap a plain value in pure(...)"
    return f"expected an effect and got {found!r}: {hint}"
