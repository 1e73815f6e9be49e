"""The messages between an executor and its workers: calls, replies, factories of environments."""

from __future__ import annotations

import math
import os
import platform
import reprlib
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pickle import PicklingError
from types import MappingProxyType, TracebackType
from typing import Any, cast

import anyio

from effectflow.effects import Effect, ExecutorError
from effectflow.effects.arguments import add_hint
from effectflow.effects.fiber import PLAIN
from effectflow.effects.interpreter import interpret
from effectflow.effects.resources import entered
from effectflow.effects.scope import RunningStep, Scope, around_calls, running_step
from effectflow.effects.tracebacks import hide_frames
from effectflow.effects.trails import TypedFailure, add_note
from effectflow.executors.pickling import dumps, loads


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of `function(item)`.

    From the caller's scope it takes what makes sense in another process: the step, for `current_step()`,
    the context of the run, for `run_context()`, the deadline of finalizers, and what observers put
    around the call. Clock, listeners and journal stay behind.
    """

    function: Callable[[Any], Effect[Any, Any, Any]]
    item: Any
    step: RunningStep | None
    context: dict[str, object]
    finalizer_deadline: float | None
    around: tuple[AbstractContextManager[object], ...]


@dataclass(frozen=True, slots=True)
class _Reply:
    """The end of a call: what `interpret` returned, or the exception that it raised.

    `origin` is the worker's traceback of the exception, as text.
    """

    outcome: Any
    raised: Exception | None = None
    origin: str = ""


def write_call(
    function: Callable[[Any], Effect[Any, Any, Any]], item: object, scope: Scope
) -> bytes:
    """Return the call of `function(item)` as bytes. Raise with an explanation if it cannot be pickled."""
    context = dict(scope.context)
    around = tuple(make() for make in around_calls.get())
    call = _Call(function, item, scope.step, context, scope.finalizer_deadline, around)
    try:
        return dumps(call)
    except Exception as refusal:
        is_item = _can_be_pickled(function)
        what, sent = ("item", item) if is_item else ("function", function)
        _explain(
            refusal,
            f"That is in the {what} that a worker was to receive, {reprlib.repr(sent)}: it is pickled "
            "with everything it refers to. Put what cannot be pickled into the environment of the worker",
        )
        raise


def _can_be_pickled(part: object) -> bool:
    try:
        dumps(part)
    except Exception:
        return False
    return True


def _explain(refusal: Exception, what: str) -> None:
    """Add what was to be pickled to an error of pickle, which names only the innermost class."""
    if refusal.__class__ in (TypeError, AttributeError, PicklingError):
        add_hint(refusal, what)
    else:
        refusal.add_note(what)


async def answer(call: bytes, env: Any) -> bytes:
    """Run a call to its end in this environment, and return the reply."""
    try:
        with _NoExit("a module that the item needs"):
            task: _Call = loads(call)
        context = MappingProxyType(task.context)
        scope = Scope(finalizer_deadline=task.finalizer_deadline, context=context)
        # Each call has its own task, so there is nothing to reset.
        running_step.set(task.step)
        with _NoExit("the item"), ExitStack() as stack:
            for around in task.around:
                stack.enter_context(around)
            outcome = await interpret(
                task.function(task.item), env, scope.inside_step(PLAIN, task.step)
            )
    except Exception as defect:
        return defect_reply(defect)
    try:
        reply = dumps(_Reply(outcome))
        # Some classes can be pickled but not unpickled; the worker finds that out, not the caller.
        loads(reply)
    except Exception as refusal:
        has_failed = outcome.__class__ is TypedFailure
        what, sent = ("error", outcome.error) if has_failed else ("value", outcome)
        _explain(
            refusal,
            f"That is in the {what} that a worker was to send back, of {type(sent)!r}: it cannot be "
            "pickled and unpickled",
        )
        return defect_reply(refusal)
    return reply


def defect_reply(defect: Exception) -> bytes:
    """Return the reply of a call that ended in a defect."""
    hide_frames(defect)
    text = "".join(traceback.format_exception(defect))
    origin = f"raised in worker process {os.getpid()} on {platform.node()}:\n{text}"
    try:
        reply = dumps(_Reply(None, defect, origin))
        loads(reply)
    except Exception:
        # The exception cannot be sent; its text and its traceback can.
        stand_in = RuntimeError(f"{type(defect).__qualname__}: {defect}")
        return dumps(_Reply(None, stand_in, origin))
    return reply


def failure_reply(failure: ExecutorError) -> bytes:
    """Return the reply of a call whose end is unknown."""
    return dumps(_Reply(TypedFailure(failure)))


def read_reply(data: bytes) -> Any:
    """Return or raise the end of `interpret` in the worker: a value or a `TypedFailure`."""
    try:
        reply: _Reply = loads(data)
    except Exception as refusal:
        refusal.add_note(
            "while reading the reply of a worker, where it could be read: this process differs from it"
        )
        raise
    if reply.raised is not None:
        add_note(reply.raised, reply.origin)
        raise reply.raised
    return reply.outcome


def checked_factory(environment: Callable[[], Any] | None) -> Callable[[], Any]:
    """Return the given function, or one that makes None. Raise TypeError for anything else."""
    if environment is None:
        return _no_environment
    if not callable(environment):
        raise TypeError(f"environment must be a function that makes it, not {environment!r}")
    return environment


def _no_environment() -> None:
    """The environment of workers whose functions need none."""


def write_factory(environment: Callable[[], Any]) -> bytes:
    """Return the factory as bytes. Raise with an explanation if it cannot be pickled."""
    try:
        return dumps(environment)
    except Exception as refusal:
        _explain(
            refusal,
            f"That is in `environment`, {environment!r}: it is pickled with everything it refers to. Let "
            "it make what cannot be pickled, in the worker",
        )
        raise


@asynccontextmanager
async def worker_environment(environment: bytes) -> AsyncGenerator[Any]:
    """Make the environment. If it is a context manager, enter and leave it."""
    async with AsyncExitStack() as stack:
        with _NoExit("`environment`"):
            made = await entered(loads(environment)(), stack)
        yield made


class _NoExit:
    """Turns an exception that would end the worker into a defect, because the worker serves other items.

    Only a cancellation that comes from outside the block passes. This is a class because
    `contextmanager` assigns to the traceback of the exception, which may be frozen.
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
        # A cancellation that the item itself raises is also a defect.
        if not (_has_cancellation(leaving) and anyio.current_effective_deadline() == -math.inf):
            raise RuntimeError(f"{self._who} raised {leaving!r}") from leaving


def _has_cancellation(raised: BaseException) -> bool:
    if isinstance(raised, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", raised)
        return any(_has_cancellation(one) for one in group.exceptions)
    return isinstance(raised, anyio.get_cancelled_exc_class())
