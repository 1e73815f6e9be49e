"""A call of a function in another process, and the reply that comes back of it."""

from __future__ import annotations

import math
import os
import platform
import reprlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, cast

import anyio

from effectflow.effects import Effect, ExecutorError
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed
from effectflow.effects.notes import add_note
from effectflow.effects.scope import Scope, root_scope
from effectflow.executors.pickling import dumps, loads

__all__ = ["WithoutExit", "answer", "defect_reply", "failure_reply", "read_reply", "write_call"]


@dataclass(frozen=True, slots=True)
class _Call:
    """What travels.

    Of the scope only what has a meaning elsewhere does: where the run stands and what its caller
    attached to it, so that `step_info()` and `run_context()` are known there, and how long finalizers
    may take. Clock, listeners and the journal stay here.
    """

    function: Callable[[Any], Effect[Any, Any, Any]]
    item: Any
    path: str
    step: object
    context: dict[str, object]
    finalizer_deadline: float | None


@dataclass(frozen=True, slots=True)
class _Reply:
    """What comes back: what `interpret` gave, or the exception that it raised.

    `origin` says of an exception where it comes from: the traceback of the worker, as text.
    """

    outcome: Any
    raised: Exception | None = None
    origin: str = ""


def write_call(
    function: Callable[[Any], Effect[Any, Any, Any]], item: object, scope: Scope
) -> bytes:
    """The call of `function(item)` as bytes. What cannot be pickled is a defect that says so."""
    context = dict(scope.context)
    call = _Call(function, item, scope.path, scope.step, context, scope.finalizer_deadline)
    try:
        return dumps(call)
    except Exception as refusal:
        refusal.add_note(
            f"while sending {function!r} with {reprlib.repr(item)} to a worker: both travel pickled, "
            "with all that they refer to; what cannot travel belongs into the environment of the worker"
        )
        raise


async def answer(call: bytes, env: Any) -> bytes:
    """Run a call in this environment to its end; give the reply."""
    try:
        with WithoutExit("a module that the item needs"):
            task: _Call = loads(call)
        context = MappingProxyType(task.context)
        scope = root_scope(finalizer_deadline=task.finalizer_deadline, context=context)
        place = scope.inside_step(task.path, task.step)
        with WithoutExit("the item"):
            outcome = await interpret(task.function(task.item), env, place)
    except Exception as defect:
        return defect_reply(defect)
    try:
        reply = dumps(_Reply(outcome))
        # A class may take itself apart and yet refuse to be put together again.
        loads(reply)
    except Exception as refusal:
        what = outcome.error if outcome.__class__ is Failed else outcome
        refusal.add_note(
            f"a value of {type(what)!r} cannot travel back: it is to be pickled, and made anew"
        )
        return defect_reply(refusal)
    return reply


class WithoutExit:
    """What is done within cannot end the worker, which may have other items: to want it is a defect.

    Only who cancels the work around it may end it. `contextmanager` would not do: it assigns to the
    traceback of what is raised, and an exception may be frozen.
    """

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        leaving: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if leaving is None or isinstance(leaving, Exception):
            return
        # An item may raise a cancellation on its own, which then is one more way to want to leave.
        if not (_has_cancellation(leaving) and anyio.current_effective_deadline() == -math.inf):
            raise RuntimeError(f"{self._who} raised {leaving!r}") from leaving


def _has_cancellation(raised: BaseException) -> bool:
    if isinstance(raised, BaseExceptionGroup):
        together = cast("BaseExceptionGroup[BaseException]", raised)
        return any(_has_cancellation(one) for one in together.exceptions)
    return isinstance(raised, anyio.get_cancelled_exc_class())


def defect_reply(defect: Exception) -> bytes:
    """The reply of a call that ended in a defect."""
    text = "".join(traceback.format_exception(defect))
    origin = f"raised in worker process {os.getpid()} on {platform.node()}:\n{text}"
    try:
        reply = dumps(_Reply(None, defect, origin))
        loads(reply)
    except Exception:
        # It cannot travel, for whatever reason its class has; its text and where it was raised can.
        stand_in = RuntimeError(f"{type(defect).__qualname__}: {defect}")
        return dumps(_Reply(None, stand_in, origin))
    return reply


def failure_reply(failure: ExecutorError) -> bytes:
    """The reply of a call of which nobody knows how it would have ended."""
    return dumps(_Reply(Failed(failure)))


def read_reply(data: bytes) -> Any:
    """What `interpret` gave in the worker: a value, or a `Failed`. Raises what it raised."""
    try:
        reply: _Reply = loads(data)
    except Exception as refusal:
        refusal.add_note(
            "while reading the reply of a worker, which could read it: what differs is this process"
        )
        raise
    if reply.raised is not None:
        add_note(reply.raised, reply.origin)
        raise reply.raised
    return reply.outcome
