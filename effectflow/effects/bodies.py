"""Bodies while they run: failures are raised in them, and what they raise ends them.

A body is a generator, which yields effects, or a coroutine, which awaits them. The interpreter sends
values to it itself. Once it has raised something in the body, a `Thrown` stands for the body on its
stack.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple

from effectflow.effects.arguments import BaseEffect
from effectflow.effects.coroutines import ENDED, end_coroutine
from effectflow.effects.errors import EffectError
from effectflow.effects.event_loop import (
    is_being_cancelled,
    is_cancellation,
    raise_caught_cancellation,
)
from effectflow.effects.scope import Scope
from effectflow.effects.signatures import declares
from effectflow.effects.tracebacks import passed_through
from effectflow.effects.trails import Marked, TypedFailure, log_hidden, our_notes

_RECENT = 8
"""How many failures a body remembers in any case. It remembers an older one while its error exists."""

_ITSELF: Any = object()
"""Stands for the marked error in a failure, which would keep it."""


class Failing(BaseEffect):
    """An effect that only fails or ends in a defect, perhaps with an error that a body has received."""

    __slots__ = ()

    @abstractmethod
    def with_trail(self, trail_of: Callable[[object], tuple[str, ...]]) -> BaseEffect:
        """Return an effect that ends the same way, with what `trail_of` returns for its error."""
        raise NotImplementedError


class _Received(NamedTuple):
    """A failure or a defect that a body has received.

    Attributes:
        raised: the exception that was raised in the body; None if it received a result.
        failed: the failure. A defect is one here, with its notes as trail.
        is_defect: whether it is a defect.
    """

    raised: Exception | None
    failed: TypedFailure
    is_defect: bool


class Thrown:
    """A body that has received failures, and what it has to remember of them.

    It may raise one of them later, after other effects. That one then keeps its kind and its trail.

    Attributes:
        body: the generator or the coroutine.
        is_coroutine: whether it is a coroutine.
    """

    __slots__ = ("_older", "_recent", "_trails", "body", "is_coroutine")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.is_coroutine = body.__class__ is CoroutineType
        self._recent: deque[_Received] = deque()
        # A body that never ends must not keep all errors that it has handled.
        self._older: Marked[_Received] | None = None
        self._trails: Marked[tuple[str, ...]] | None = None

    def receive(
        self, failed: TypedFailure, raised: Exception | None = None, *, is_defect: bool = False
    ) -> None:
        """Remember a failure that the body receives, as an exception or as a result."""
        if len(self._recent) == _RECENT:
            self._set_aside(self._recent.popleft())
        self._recent.append(_Received(raised, failed, is_defect))

    def ending_by(self, left: Exception) -> TypedFailure | None:
        """Return the failure that an exception is which leaves the body; None if it is a defect."""
        known = self._received(left)
        if known is not None:
            return None if known.is_defect else known.failed
        code = self.body.cr_code if self.is_coroutine else self.body.gi_code
        if declares(code, left):
            return TypedFailure(left, self._trail_of(left))
        return None

    def again(self, effect: Any) -> Any:
        """Return the next effect of the body. If it fails with such an error again, the trail stays."""
        return effect.with_trail(self._trail_of) if isinstance(effect, Failing) else effect

    def _set_aside(self, received: _Received) -> None:
        """Remember a failure only as long as its errors exist."""
        raised, failed, is_defect = received
        if self._older is None or self._trails is None:
            self._older, self._trails = Marked(), Marked()
        if raised is not None:
            kept = failed
            if raised is failed.error:
                kept = TypedFailure(_ITSELF, failed.trail, failed.parts)
            self._older[raised] = _Received(None, kept, is_defect)
        for part in failed.with_parts():
            if isinstance(part.error, BaseException):
                self._trails[part.error] = part.trail

    def _received(self, raised: Exception) -> _Received | None:
        """Return what the body has received as this exception."""
        for known in reversed(self._recent):
            if known.raised is raised:
                return known
        older = None if self._older is None else self._older.get(raised)
        if older is None or older.failed.error is not _ITSELF:
            return older
        failed = TypedFailure(raised, older.failed.trail, older.failed.parts)
        return _Received(raised, failed, older.is_defect)

    def _trail_of(self, error: object) -> tuple[str, ...]:
        found = (known.failed.find(error) for known in reversed(self._recent))
        recent = next(filter(None, found), None)
        if recent is not None:
            return recent.trail
        if self._trails is None or not isinstance(error, BaseException):
            return ()
        return self._trails.get(error) or ()


async def throw_failure(thrown: Thrown, failed: TypedFailure, scope: Scope) -> tuple[Any, Any]:
    """Raise a failure in a body, where it waits. Return the same as `resume`."""
    error = failed.error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raised: Exception = error
    else:
        raised = EffectError(error)
    thrown.receive(failed, raised)
    traceback, context = raised.__traceback__, raised.__context__
    try:
        current, value = await resume(thrown, partial(thrown.body.throw, raised), scope)
        if value.__class__ is TypedFailure and value.error is raised:
            # The body did not handle it: the traceback shows the place where it went through.
            traceback = passed_through(raised, traceback)
        return current, value
    finally:
        # The same error may be raised many times, and its traceback must not grow.
        raised.with_traceback(traceback)
        # A frozen dataclass raises AttributeError, and with slots a TypeError.
        with suppress(AttributeError, TypeError):
            raised.__context__ = context


async def throw_defect(thrown: Thrown, defect: Exception, scope: Scope) -> tuple[Any, Any]:
    """Raise a defect in a body, where it waits. Return the same as `resume`."""
    thrown.receive(TypedFailure(defect, our_notes(defect)), defect, is_defect=True)
    return await resume(thrown, partial(thrown.body.throw, defect), scope)


async def resume(thrown: Thrown, go_on: Callable[[], Any], scope: Scope) -> tuple[Any, Any]:
    """Resume a body with `go_on()`. Return the next effect, or `ENDED` and the outcome.

    An exception that leaves the body is the failure that it was when it was thrown in, or a failure that
    the body declares. Otherwise it is a defect, and raised.
    """
    try:
        if thrown.is_coroutine:
            effect, value = await scope.fiber.run_local(scope, thrown.body, go_on)
            if effect is ENDED:
                return ENDED, value
            if value and is_being_cancelled():
                await raise_caught_cancellation()
        else:
            effect = go_on()
        return thrown.again(effect), None
    except StopIteration as stop:
        return ENDED, stop.value
    except Exception as left:
        failed = thrown.ending_by(left)
        if failed is None:
            raise
        return ENDED, failed


async def interrupt(body: Any, raised: BaseException, scope: Scope) -> BaseException:
    """End a body whose fiber is interrupted. Return the exception that continues."""
    try:
        if body.__class__ is not CoroutineType:
            body.close()
        elif isinstance(raised, GeneratorExit):
            end_coroutine(body)
        else:
            effect, _ = await scope.fiber.run_local(scope, body, partial(body.throw, raised))
            if _was_cancelled_by_itself(raised, scope):
                end_coroutine(body)
                return _own_cancellation(body)
            if effect is not ENDED:
                return refuse_effect(body, raised, scope)
    except RuntimeError as refused:
        if str(refused) != "generator ignored GeneratorExit":
            return refused if _was_cancelled_by_itself(raised, scope) else _noted(raised, refused)
        return refuse_effect(body, raised, scope)
    except Exception as defect:
        if _was_cancelled_by_itself(raised, scope):
            return _own_cancellation(body) if isinstance(defect, TimeoutError) else defect
        return _noted(raised, defect)
    except BaseException as ended:
        # Another cancellation may have come while the coroutine cleaned up.
        return raised if is_cancellation(ended) else ended
    return raised


def _was_cancelled_by_itself(raised: BaseException, scope: Scope) -> bool:
    """Return whether a cancel scope in a body has cancelled it, which the body has left meanwhile."""
    is_requested = scope.cause() is not None or is_being_cancelled()
    return is_cancellation(raised) and not is_requested


def _own_cancellation(body: Any) -> RuntimeError:
    return RuntimeError(
        f"a cancel scope or a timeout of asyncio or anyio in the body {body.__qualname__!r} has "
        "cancelled an effect that it awaits: use `.timeout(...)` or `race(...)`, which resumes repeat"
    )


def refuse_effect(body: Any, raised: BaseException, scope: Scope) -> BaseException:
    """End a body that wants an effect although it is interrupted. Return the exception that continues.

    If an operator cancelled the fiber, the run continues without the effect, which must be visible. If
    the whole run is stopped, its resume reaches the effect.
    """
    try:
        if body.__class__ is CoroutineType:
            end_coroutine(body)
    except Exception as defect:
        _noted(raised, defect)
    cause = scope.cause() if is_cancellation(raised) else None
    if cause is None:
        return raised
    cause.unfinished = RuntimeError(
        f"the body {body.__qualname__!r} came to an effect while it was cancelled, as in a `finally` "
        "block, and that effect was not run: use `.on_exit(...)` or `bracket(...)`, whose finalizers run "
        "then, too"
    )
    return cause.unfinished


def _noted(raised: BaseException, defect: Exception) -> BaseException:
    """Note on an interruption that a body failed meanwhile, without hiding the interruption."""
    log_hidden(defect, "a body failed while %r was passing", raised)
    raised.add_note(f"and a body failed meanwhile: {defect!r}")
    return raised
