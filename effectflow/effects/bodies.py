"""`@do` bodies while they run: failures are raised in them, and what they raise ends them.

The interpreter sends values to a body itself. Once it has raised something in the body, a `Thrown` stands
for the body on its stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from effectflow.effects.errors import EffectError
from effectflow.effects.event_loop import is_cancellation
from effectflow.effects.nodes import Die, Fail
from effectflow.effects.scope import Scope
from effectflow.effects.signatures import declares
from effectflow.effects.trails import TypedFailure, log_hidden, our_notes

ENDED: Any = object()
"""Stands for the next effect of a body that has ended."""


class Thrown:
    """The exceptions that were thrown into a body last, and the failures that they stand for.

    A body may raise one of them later, after other effects. It then keeps its kind.

    Attributes:
        body: the generator.
        recent: each thrown exception and the failure that it stands for, or None for a defect.
        failures: the failures that the body has received, also as results. Defects have their notes as
            trails.
    """

    __slots__ = ("body", "failures", "recent")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.recent: deque[tuple[BaseException, TypedFailure | None]] = deque(maxlen=8)
        self.failures: deque[TypedFailure] = deque(maxlen=8)

    def again(self, effect: Any) -> Any:
        """Return the next effect of the body. If it fails with such an error again, the trail stays."""
        kind = effect.__class__
        if kind is Fail and not effect.trail:
            trail = self._trail_of(effect.error)
            return Fail(effect.error, trail) if trail else effect
        if kind is Die:
            notes = self._trail_of(effect.exception)
            return Die(effect.exception, notes) if notes else effect
        return effect

    def _trail_of(self, error: object) -> tuple[str, ...]:
        found = (failed.find(error) for failed in reversed(self.failures))
        return next((failed.trail for failed in found if failed is not None), ())


def throw_failure(thrown: Thrown, failed: TypedFailure) -> tuple[Any, Any]:
    """Raise a failure in a body, at its `yield`. Return the same as `resume_body`."""
    error = failed.error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raised: Exception = error
    else:
        raised = EffectError(error)
    thrown.recent.append((raised, failed))
    thrown.failures.append(failed)
    traceback, context = raised.__traceback__, raised.__context__
    try:
        return resume_body(thrown, thrown.body.throw, raised)
    finally:
        # The same error may be raised many times, and its traceback must not grow.
        raised.with_traceback(traceback)
        # A frozen dataclass raises AttributeError, and with slots a TypeError.
        with suppress(AttributeError, TypeError):
            raised.__context__ = context


def throw_defect(thrown: Thrown, defect: Exception) -> tuple[Any, Any]:
    """Raise a defect in a body, at its `yield`. Return the same as `resume_body`."""
    thrown.recent.append((defect, None))
    thrown.failures.append(TypedFailure(defect, our_notes(defect)))
    return resume_body(thrown, thrown.body.throw, defect)


def resume_body(thrown: Thrown, resume: Callable[[Any], Any], argument: Any) -> tuple[Any, Any]:
    """Resume a body with `resume(argument)`. Return the next effect, or `ENDED` and the outcome.

    An exception that leaves the body is the failure that it was when it was thrown in, or a failure that
    the body declares. Otherwise it is a defect, and raised.
    """
    try:
        return thrown.again(resume(argument)), None
    except StopIteration as stop:
        return ENDED, stop.value
    except Exception as left:
        for raised, failed in reversed(thrown.recent):
            if raised is left:
                if failed is None:
                    raise
                return ENDED, failed
        if declares(thrown.body.gi_code, left):
            return ENDED, TypedFailure(left)
        raise


def close_body(body: Any, raised: BaseException, scope: Scope) -> BaseException:
    """Close a body whose flow is interrupted. Return the exception that continues."""
    try:
        body.close()
    except RuntimeError as refused:
        # If an operator cancelled the flow, the run continues without this effect of the body, which
        # must be visible. If the whole run is stopped, its resume reaches the effect.
        if str(refused) != "generator ignored GeneratorExit":
            return _noted(raised, refused)
        cause = scope.cause() if is_cancellation(raised) else None
        if cause is not None:
            cause.unfinished = RuntimeError(
                f"the body {body.__qualname__!r} yielded an effect in a `finally` block while it was "
                "cancelled, and that effect was not run: use `.on_exit(...)` or `bracket(...)`, whose "
                "finalizers run then, too"
            )
            return cause.unfinished
    except Exception as defect:
        return _noted(raised, defect)
    return raised


def _noted(raised: BaseException, defect: Exception) -> BaseException:
    """Note on an interruption that a body failed meanwhile, without hiding the interruption."""
    log_hidden(defect, "a body failed while %r was passing", raised)
    raised.add_note(f"and a body failed meanwhile: {defect!r}")
    return raised
