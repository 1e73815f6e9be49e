"""The loop that runs effects.

It keeps its own stack, so a chain of a million binds needs no recursion. It runs in the caller's task,
so cancellation, context variables and tracebacks are those of plain async code.

The stack has the nodes that continue once their source has ended (`AndThen`, `OrElse`, `OnExit`, ...),
the generators of `@do` bodies, and `_Restore`, which restores an outer environment.
"""

# Values, environments and errors of any type pass through this loop; pyright loses track of `Any` in it.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from inspect import isawaitable
from types import CoroutineType, GeneratorType
from typing import Any, NoReturn

import anyio
from returns.result import Failure, Success

from effectflow.effects.arguments import (
    BaseEffect,
    add_hint,
    call_of,
    misfit_of,
    not_an_effect,
    not_awaited,
)
from effectflow.effects.bodies import (
    Thrown,
    interrupt,
    resume,
    throw_defect,
    throw_failure,
)
from effectflow.effects.coroutines import ENDED, awaiting, driven
from effectflow.effects.debug import IS_DEBUG, begin
from effectflow.effects.errors import (
    Defect,
    EffectError,
    Exit,
    Interruption,
    LeftToResume,
    Parked,
    TracedError,
)
from effectflow.effects.event_loop import (
    cancel_natively,
    is_being_cancelled,
    is_cancellation,
    raise_caught_cancellation,
    raise_pending_cancellation,
    raise_stop,
    stray_cancellation,
)
from effectflow.effects.fiber import PLAIN
from effectflow.effects.nodes import (
    AndThen,
    AnyEffect,
    Ask,
    Attempt,
    Bracket,
    Context,
    Die,
    Fail,
    FromAsync,
    FromCoroutine,
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
    Step,
    Suspend,
    TapErr,
    Traced,
)
from effectflow.effects.paths import ACQUISITION
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.signatures import declares
from effectflow.effects.tracebacks import passing_code
from effectflow.effects.trails import (
    Suppressed,
    TypedFailure,
    add_note,
    log_hidden,
    raising_code,
    renew,
    show_trail,
)

_WAITING = frozenset({OrElse, Rescue, MapErr, Reify, Context, TapErr, Traced, OnExit})
_BODIES = frozenset({GeneratorType, CoroutineType, Thrown})

_BREATHLESS = 255
"""A coroutine lets other tasks run after this many effects and one, even if none of them waits."""


class _Restore:
    """Restores the environment and scope from outside a `Local` or an `InScope`."""

    __slots__ = ("env", "scope")

    def __init__(self, env: Any, scope: Scope) -> None:
        self.env = env
        self.scope = scope


class _FinalizerDefect:
    """The end of a finalizer in a defect."""

    __slots__ = ("exception",)

    def __init__(self, exception: Exception) -> None:
        self.exception = exception


class _Handled:
    """Waits for the end of a handler. If the handler fails with the same error, the trail continues.

    Attributes:
        failed: the failure that it handles.
    """

    __slots__ = ("failed",)

    def __init__(self, failed: TypedFailure) -> None:
        self.failed = failed

    def traced(self, again: TypedFailure) -> TypedFailure:
        """Return a failure of the handler, with the trail of the error that it handled."""
        handled = self.failed.find(again.error)
        if handled is None or again.trail[: len(handled.trail)] == handled.trail:
            return again
        return handled.after(*again.trail)


async def interpret(effect: AnyEffect, env: Any, scope: Scope) -> Any:
    """Run an effect. Return its value, or a `TypedFailure` around its error.

    It is one long function on purpose: a call for each kind of node would double the cost of a bind.
    """
    current: Any = effect
    if current.__class__ is Pure:
        # Many children of parallel operators are only this.
        return current.value
    if IS_DEBUG:
        begin()
    stack: list[Any] = []
    value: Any = None
    frame: Any
    kind: Any
    resumed = 0
    is_planned = scope.is_planned
    while True:
        try:
            while True:
                # Down: take the effect apart until something yields a value or fails.
                kind = current.__class__
                if kind is Pure:
                    value = current.value
                elif kind is AndThen or kind is Map:
                    source = current.source
                    kind = source.__class__
                    while kind is AndThen or kind is Map:
                        stack.append(current)
                        current = source
                        source = current.source
                        kind = source.__class__
                    if kind is not Pure:
                        stack.append(current)
                        current = source
                        continue
                    # Without the stack, which makes up a third of the cost of such a bind.
                    if current.__class__ is AndThen:
                        current = current.f(source.value)
                        continue
                    value = current.f(source.value)
                elif kind is FromFn:
                    if is_planned and scope.runs_no_function:
                        await scope.fiber.park(scope, f"{current!r} would be run")
                    value = current.f(env)
                elif kind is FromAsync:
                    if not (scope.fiber is PLAIN or scope.fiber.is_unordered):
                        await scope.fiber.begin_local(scope, current)
                    stack.append(_coroutine_of(current, current.f(env)))
                    value = None
                elif kind is FromGenerator or kind is FromCoroutine:
                    if IS_DEBUG:
                        begin()
                    stack.append(current.f(*current.args, **current.kwargs))
                    value = None
                elif kind is Attempt:
                    if is_planned and scope.runs_no_function:
                        await scope.fiber.park(scope, f"{current!r} would be run")
                    stack.append(current)
                    value = current.f(env)
                    if isawaitable(value):
                        stack.append(_coroutine_of(current, value))
                        value = None
                        if scope.fiber is not PLAIN:
                            await scope.fiber.begin_local(scope, current)
                elif kind is Step:
                    if IS_DEBUG:
                        begin()
                    value = await scope.fiber.execute(current, env, scope)
                elif kind is Perform:
                    if IS_DEBUG:
                        begin()
                    value = await current.f(env, scope)
                elif kind is Suspend:
                    current = current.f(env, scope)
                    continue
                elif kind is Ask:
                    value = env
                elif kind is Fail:
                    value = TypedFailure(current.error, current.trail)
                    if not current.trail:
                        renew(current.error)
                elif kind is Die:
                    renew(current.exception, current.notes)
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
                    # An acquisition is shielded: a fiber that was cancelled before must not begin it.
                    await anyio.lowlevel.checkpoint_if_cancelled()
                    await scope.fiber.check(scope, has_begun=True)
                    scope.fiber.next_path(ACQUISITION)
                    acquisition = partial(acquire, current.source, env, scope)
                    value, cancelled = await scope.fiber.supervise(acquisition)
                    if value.__class__ is not TypedFailure:
                        # From here on the resource is always released.
                        current = _used(current, value, cancelled)
                        continue
                    if cancelled is not None:
                        raise cancelled
                else:
                    raise TypeError(not_an_effect(current))

                # Up: pass the value or the failure to what waits on the stack.
                while stack:
                    frame = stack.pop()
                    kind = frame.__class__
                    if value.__class__ is not TypedFailure:
                        if kind is AndThen:
                            current = frame.f(value)
                            break
                        if kind is GeneratorType:
                            try:
                                current = frame.send(value)
                            except StopIteration as stop:
                                value = stop.value
                                continue
                            except Exception as raised:
                                if not declares(frame.gi_code, raised):
                                    raise
                                value = TypedFailure(raised)
                                continue
                            stack.append(frame)
                            break
                        if kind is Map:
                            value = frame.f(value)
                            continue
                        if kind is Reify:
                            value = Success(value)
                            continue
                        if kind is CoroutineType:
                            try:
                                if scope.fiber is PLAIN or scope.fiber.continues_freely():
                                    try:
                                        current = frame.send(value)
                                    except StopIteration as stop:
                                        value = stop.value
                                        continue
                                    value = False
                                    if not issubclass(current.__class__, BaseEffect):
                                        current, value = await driven(frame, current)
                                else:
                                    go_on = partial(frame.send, value)
                                    current, value = await scope.fiber.run_local(
                                        scope, frame, go_on
                                    )
                            except Exception as raised:
                                if not declares(frame.cr_code, raised):
                                    raise
                                value = TypedFailure(raised)
                                continue
                            if current is ENDED:
                                continue
                            stack.append(frame)
                            if value and is_being_cancelled():
                                # A coroutine must not swallow a cancellation.
                                await raise_caught_cancellation()
                            resumed += 1
                            if not resumed & _BREATHLESS:
                                await scope.fiber.breathe(scope)
                            break
                        if kind is Thrown:
                            current, value = await resume(
                                frame, partial(frame.body.send, value), scope
                            )
                            if current is ENDED:
                                continue
                            stack.append(frame)
                            break
                    elif kind is OrElse:
                        _begin_handling(stack, value)
                        current = frame.f(value.error)
                        break
                    elif kind in _BODIES:
                        thrown = frame if kind is Thrown else Thrown(frame)
                        current, value = await throw_failure(thrown, value, scope)
                        if current is ENDED:
                            continue
                        stack.append(thrown)
                        break
                    elif kind is MapErr:
                        value = value.mapped(frame.f(value.error))
                        continue
                    elif kind is Reify:
                        _yield_failure(stack, value)
                        value = Failure(show_trail(value.error, value.trail))
                        continue
                    elif kind is Context:
                        value = value.after(frame.message)
                        continue
                    elif kind is Rescue:
                        handled = frame.f(value)
                        if handled is None:
                            continue
                        _begin_handling(stack, value)
                        current = handled
                        break
                    elif kind is _Handled:
                        value = frame.traced(value)
                        continue
                    elif kind is TapErr:
                        _begin_handling(stack, value)
                        # The failure continues once the handler has ended.
                        stack.append(Map(frame, lambda _, failed=value: failed))
                        stack.append(_Restore(env, scope))
                        current = frame.f(value.error)
                        break
                    elif kind is Traced:
                        value = TypedFailure(_traced(value))
                        continue
                    if kind is _Restore:
                        env, scope = frame.env, frame.scope
                    elif kind is OnExit:
                        value = await _finalize(frame, value, env, scope)
                    elif kind is Named and scope.observer is not None:
                        scope.observer.ended(frame.name, exit_of(value))
                else:
                    # Only here, because a check after each function would make a `map` slower by a tenth.
                    if value.__class__ is CoroutineType:
                        raise TypeError(not_awaited(effect, value))
                    return value
        except BaseException as raised:
            try:
                if isinstance(raised, TypeError):
                    _add_hint_of(current, raised)
                current, env, scope = await _unwind(stack, raised, env, scope)
            except BaseException:
                # The traceback keeps this frame, even if a caller keeps the error to raise it again.
                frame = current = value = env = None
                raise


def _add_hint_of(effect: Any, raised: TypeError) -> None:
    """Add what to write to an error that Python raised for the call of a node's function."""
    if raised.__traceback__ is None or raised.__traceback__.tb_next is not None:
        # It comes from the code of a function.
        return
    if effect.__class__ is FromGenerator and misfit_of(effect.f, effect.args, effect.kwargs):
        add_hint(raised, f"Write {call_of(effect.f)}")


def _coroutine_of(effect: Any, awaitable: Any) -> Any:
    """Return what the function of an effect has returned as a coroutine."""
    if awaitable.__class__ is CoroutineType:
        return awaitable
    if not isawaitable(awaitable):
        raise TypeError(
            f"{effect!r} takes an async function of the environment, and it returned "
            f"{reprlib.repr(awaitable)}; use from_fn for other functions"
        )
    return awaiting(awaitable)


def raise_failure(failed: TypedFailure) -> NoReturn:
    """Raise the error of a failure, or an `EffectError` around it if it is not an exception."""
    show_trail(failed.error, failed.trail)
    if isinstance(failed.error, Exception):
        raise failed.error
    raised = EffectError(failed.error)
    for message in failed.trail:
        raised.add_note(message)
    raise raised


raising_code.update([interpret.__code__, raise_failure.__code__])
passing_code.add(raise_failure.__code__)


async def interpret_limited(
    operator: Operator,
    effect: AnyEffect,
    env: Any,
    seconds: float,
    instead: Callable[[], Any],
    *,
    is_finalizer: bool = False,
) -> Any:
    """Run an effect that a deadline may cut off. Return the same as `interpret`, or `instead()`.

    Parameters:
        operator: has decided once the deadline has cut off the effect.
        seconds: the time until then.
        instead: returns the outcome if the deadline has cut off the effect.
        is_finalizer: whether the deadline also counts while the run is being stopped from outside.
    """
    outer = operator.outer
    deadline = outer.fiber.deadline(operator, seconds)
    if deadline is None:
        with outer.deadline(seconds) as operator.cut:
            outcome = await interpret(effect, env, operator.inside)
            # What comes after the decision is discarded.
            if not operator.is_decided:
                return outcome
    else:
        async with deadline:
            outcome = await interpret(effect, env, operator.inside)
            if not operator.is_decided:
                return outcome
    if not is_finalizer and outer.fiber.is_stopping:
        await raise_hidden_stop(effect, outer)
    operator.is_decided = True
    outer.fiber.joins(operator)
    return instead()


async def raise_hidden_stop(effect: AnyEffect, scope: Scope) -> None:
    """Raise the cancellation of a run that is also being stopped, which a limit within it hides."""
    if scope.is_shielded:
        # The cancelled task is not this one, but the one that waits for its finalizer.
        raise LeftToResume(f"{effect!r}")
    await anyio.lowlevel.checkpoint_if_cancelled()
    await cancel_natively()


async def acquire(
    source: AnyEffect, env: Any, scope: Scope, *, is_kept: bool = True
) -> tuple[Any, BaseException | None]:
    """Run an effect that no operator may interrupt, because something undoes it later.

    Return its value or a `TypedFailure`, and the cancellation that arrived meanwhile. `is_kept` says
    whether a stop of the run waits for its end.
    """
    work = interpret(source, env, scope.shielded())
    return await scope.fiber.shield(work, is_kept=is_kept)


def _used(bracket: Bracket, resource: Any, cancelled: BaseException | None) -> OnExit:
    """Return the use of a resource, which releases the resource when it ends."""

    async def check(_env: Any, scope: Scope) -> None:
        # A cancellation during the acquisition takes effect before the use begins.
        if cancelled is not None:
            raise cancelled
        await raise_pending_cancellation()
        await anyio.lowlevel.checkpoint_if_cancelled()
        await scope.fiber.check(scope, has_begun=True)

    # Created late, so that the resource is released even if `use` raises before it returns an effect.
    use = AndThen(Perform(check), lambda _: bracket.use(resource))
    return OnExit(use, lambda _: bracket.release(resource))


def _begin_handling(stack: list[Any], failed: TypedFailure) -> None:
    """Let a handler fail with the same error and its trail again."""
    if failed.trail:
        _insert_handled(stack, len(stack), _Handled(failed))


def _insert_handled(stack: list[Any], position: int, handled: _Handled) -> None:
    if position > 0 and stack[position - 1].__class__ is _Handled:
        # A handler that continues as a loop must not need more memory in each round.
        stack[position - 1] = handled
    else:
        stack.insert(position, handled)


def _yield_failure(stack: list[Any], failed: TypedFailure) -> None:
    """Let the receiver of a failure as a value fail with it again, with its trail."""
    kind = stack[-1].__class__ if stack and failed.trail else None
    if kind is AndThen:
        _insert_handled(stack, len(stack) - 1, _Handled(failed))
    elif kind in _BODIES:
        if kind is not Thrown:
            stack[-1] = Thrown(stack[-1])
        stack[-1].receive(failed)


async def _unwind(
    stack: list[Any], raised: BaseException, env: Any, scope: Scope
) -> tuple[AnyEffect, Any, Scope]:
    """Pass a defect or an interruption through the stack.

    Return the next effect if a `@do` body caught the exception. Raise it otherwise.
    """
    frame: Any
    kind: Any
    raised = _explained(raised)
    while stack:
        frame = stack.pop()
        kind = frame.__class__
        if kind in _BODIES:
            thrown = frame if kind is Thrown else Thrown(frame)
            if not isinstance(raised, Exception):
                # A body must not swallow an interruption.
                raised = await interrupt(thrown.body, raised, scope)
                continue
            try:
                caught, value = await throw_defect(thrown, raised, scope)
            except BaseException as other:
                raised = other
                continue
            if caught is not ENDED:
                stack.append(thrown)
            elif value.__class__ is TypedFailure:
                caught = Fail(value.error, value.trail)
            else:
                caught = Pure(value)
            return caught, env, scope
        if kind is Attempt:
            if isinstance(raised, frame.errors):
                return Pure(TypedFailure(raised)), env, scope
        elif kind is _Restore:
            env, scope = frame.env, frame.scope
        elif kind is Named:
            if isinstance(raised, Exception):
                add_note(raised, frame.note)
            if scope.observer is not None:
                scope.observer.ended(frame.name, exit_of_raised(raised))
        elif kind is Context:
            if isinstance(raised, Exception):
                add_note(raised, frame.message)
        elif kind is _Handled and (handled := frame.failed.find(raised)) is not None:
            show_trail(raised, handled.trail)
        elif kind is OnExit and not isinstance(raised, Parked):
            raised = await _finalize_after(frame, raised, env, scope)
    frame = env = None
    raise raised


def _explained(raised: BaseException) -> BaseException:
    """Return what an exception means: itself, often with a hint, or a defect that names its cause."""
    if not isinstance(raised, Exception):
        return stray_cancellation(raised) or raised
    if raised.__class__ is RecursionError:
        return _explained_recursion(raised)
    if raised.__class__ is AttributeError and _is_of_a_list(raised):
        add_hint(raised, "`yield from` takes one effect, not a list: use par_try_all or traverse")
    return raised


def _is_of_a_list(raised: Any) -> bool:
    """Return whether an AttributeError comes from `yield from` before a list."""
    return raised.name == "send" and isinstance(raised.obj, Iterator)


_DEEP = 30
"""The number of interpreters within each other above which effects have used up Python's stack."""


def _explained_recursion(raised: Exception) -> Exception:
    """Return a RecursionError that names its cause, unless it is the recursion of a function."""
    depth, frame = 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]  # inspect takes it as well
    while (frame := frame.f_back) is not None:
        depth += frame.f_code is interpret.__code__
    if depth < _DEEP or not str(raised).startswith("maximum recursion depth"):
        return raised
    return RecursionError(
        f"{depth} timeouts, retries, steps, brackets or finalizers are nested within each other, more "
        "than Python's stack holds: run them one after another in a `@do` body or with `traverse`, "
        "or side by side with `par`, whose branches have a stack each"
    )


async def _finalize(frame: OnExit, value: Any, env: Any, scope: Scope) -> Any:
    """Run one finalizer. Return the end of its source, or the finalizer's own failure.

    An error of the finalizer is added to a failure of the source, and never replaces it. If the fiber was
    cancelled meanwhile, its failure may be dropped, so the error is also logged.
    """
    try:
        outcome, cancelled = await _run_finalizer(frame, exit_of(value), env, scope)
    except LeftToResume:
        if scope.is_shielded:
            raise
        # The run is being stopped.
        await raise_stop()
    failed = _failed_finalizer(outcome)
    if failed is not None and (cancelled is not None or scope.is_cancelled()):
        show_suppressed(failed, scope.cancelling_operator())
    if cancelled is not None:
        raise cancelled
    if failed is None:
        return value
    if value.__class__ is TypedFailure:
        return add_suppressed("a finalizer", failed, value, None)
    if outcome.__class__ is _FinalizerDefect:
        raise outcome.exception
    return outcome


async def _finalize_after(
    frame: OnExit, raised: BaseException, env: Any, scope: Scope
) -> BaseException:
    """Run one finalizer while an exception passes. Return the exception that continues.

    An interruption that arrives meanwhile replaces a defect. A KeyboardInterrupt or SystemExit also
    replaces a cancellation, which may be that of a part of the program only.
    """
    cause = scope.cause() if is_cancellation(raised) else None
    try:
        outcome, cancelled = await _run_finalizer(frame, exit_of_raised(raised), env, scope)
    except Parked as parked:
        return parked
    except BaseException as interruption:
        if isinstance(interruption, LeftToResume) and scope.is_shielded:
            # What an operator has cancelled is not released, so it must not look as if it were.
            return interruption
        is_exit = isinstance(interruption, KeyboardInterrupt | SystemExit)
        replaces = isinstance(raised, Exception) or (is_exit and is_cancellation(raised))
        return interruption if replaces else raised
    continues = raised if cancelled is None or not isinstance(raised, Exception) else cancelled
    failed = _failed_finalizer(outcome)
    return continues if failed is None else add_suppressed("a finalizer", failed, continues, cause)


def _failed_finalizer(outcome: Any) -> Suppressed | None:
    """Return the line of a trail that reports a failed finalizer; None if it succeeded."""
    if outcome.__class__ is TypedFailure:
        return Suppressed(outcome.error, is_defect=False)
    if outcome.__class__ is _FinalizerDefect:
        return Suppressed(outcome.exception, is_defect=True)
    return None


def add_suppressed(what: str, failed: Suppressed, ended: Any, cause: Operator | None) -> Any:
    """Add the error of a finalizer to the end that hides it, which it never replaces. Return that end.

    Parameters:
        what: what failed, for the log: "a finalizer".
        ended: a `TypedFailure`, a defect or an interruption.
        cause: the operator that cancelled the fiber, if an interruption passes.
    """
    error = failed.error if isinstance(failed.error, BaseException) else None
    if isinstance(ended, TypedFailure):
        if failed.is_defect:
            log_hidden(error, f"{what} failed after the failure %r", ended.error)
        return ended.after(failed)
    if not isinstance(ended, Exception):
        show_suppressed(failed, cause)
    elif failed.is_defect:
        log_hidden(error, f"{what} failed while %r was passing", ended)
    add_note(ended, str(failed))
    return ended


def show_suppressed(failed: Suppressed, cause: Operator | None) -> None:
    """Show the error of a finalizer in a cancelled fiber, whose own end is dropped."""
    if cause is not None:
        cause.suppressed.append(failed)
    error = failed.error if isinstance(failed.error, BaseException) else None
    log_hidden(error, "a finalizer failed after a cancellation: %r", failed.error)


async def _run_finalizer(
    frame: OnExit, ended: Exit[Any, Any], env: Any, scope: Scope
) -> tuple[Any, BaseException | None]:
    """Run a finalizer, shielded from cancellation until its deadline.

    Return its value, a `TypedFailure` or a `_FinalizerDefect`, and a cancellation that arrived meanwhile.
    """
    inside = scope.shielded()
    if not isinstance(ended, Success):
        is_cut = isinstance(ended, Interruption)
        scope.fiber.unwinds(scope.cancelling_operator() if is_cut else None)
    try:
        finalizer = frame.finalizer(ended)
        if finalizer.__class__ in _SYNCHRONOUS:
            # A plan goes on without it, as nothing is recorded of it.
            return None if inside.is_planned else await interpret(finalizer, env, inside), None
    except Exception as defect:
        return _FinalizerDefect(defect), None
    return await scope.fiber.supervise(partial(_finalizer_work, finalizer, env, inside))


async def _finalizer_work(
    finalizer: AnyEffect, env: Any, inside: Scope
) -> tuple[Any, BaseException | None]:
    return await inside.fiber.shield(_until_deadline(finalizer, env, inside))


_SYNCHRONOUS = frozenset({Pure, FromFn})


async def _until_deadline(finalizer: AnyEffect, env: Any, scope: Scope) -> Any:
    """Run a finalizer. Return its value, a `TypedFailure` or a `_FinalizerDefect`."""
    deadline = scope.finalizer_deadline
    try:
        if deadline is None and scope.fiber is PLAIN:
            return await interpret(finalizer, env, scope)
        # An earlier life of a durable run may have had one.
        seconds = math.inf if deadline is None else deadline
        operator = Operator(scope, "finalizer")

        def too_late() -> _FinalizerDefect:
            late = TimeoutError(
                f"the finalizer {finalizer!r} took more than {seconds:g} s and was cancelled"
                if deadline is not None
                else f"the finalizer {finalizer!r} took too long and was cancelled"
            )
            for line in operator.suppressed:
                add_note(late, str(line))
            return _FinalizerDefect(late)

        return await interpret_limited(
            operator, finalizer, env, seconds, too_late, is_finalizer=True
        )
    except Exception as defect:
        return _FinalizerDefect(defect)


def _traced(failed: TypedFailure) -> TracedError[Any]:
    suppressed = (line.error for line in failed.trail if isinstance(line, Suppressed))
    return TracedError(failed.error, tuple(map(str, failed.trail)), tuple(suppressed))


def exit_of(value: Any) -> Exit[Any, Any]:
    """Return the exit with this value, or with the error of a `TypedFailure`."""
    return Failure(value.error) if value.__class__ is TypedFailure else Success(value)


def exit_of_raised(raised: BaseException) -> Exit[Any, Any]:
    """Return the exit of an effect that raised this exception."""
    return Defect(raised) if isinstance(raised, Exception) else Interruption(raised)
