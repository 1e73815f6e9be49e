"""A call of a function in another process, and the reply that comes back of it."""

from __future__ import annotations

import os
import platform
import reprlib
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from effectflow.effects import Effect
from effectflow.effects.interpreter import interpret
from effectflow.effects.nodes import Failed
from effectflow.effects.notes import add_note
from effectflow.effects.scope import Scope, root_scope
from effectflow.executors.pickling import dumps, loads

__all__ = ["answer", "defect_reply", "environment", "no_environment", "read_reply", "write_call"]


def no_environment() -> None:
    """The environment of workers whose functions need none."""


@asynccontextmanager
async def environment(make_env: bytes) -> AsyncGenerator[Any]:
    """The environment that a pickled factory makes, for as long as it is wanted.

    An async context manager that it makes is entered, and left.
    """
    made = loads(make_env)()
    if isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[Any]", made) as entered:
            yield entered
    else:
        yield made


@dataclass(frozen=True, slots=True)
class _Call:
    """What travels.

    Of the scope only what has a meaning elsewhere does: where the run stands, so that `step_info()`
    is known there, and how long finalizers may take. Clock, listeners and the journal stay here.
    """

    function: Callable[[Any], Effect[Any, Any, Any]]
    item: Any
    path: str
    step: object
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
    call = _Call(function, item, scope.path, scope.step, scope.finalizer_deadline)
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
        task: _Call = loads(call)
        scope = root_scope(finalizer_deadline=task.finalizer_deadline)
        place = scope.inside_step(task.path, task.step)
        outcome = await interpret(task.function(task.item), env, place)
    except Exception as defect:
        return defect_reply(defect)
    except (SystemExit, KeyboardInterrupt) as leaving:
        # It is for no item to end the worker, which may have others.
        stand_in = RuntimeError(f"the item raised {leaving!r}")
        return defect_reply(stand_in.with_traceback(leaving.__traceback__))
    try:
        reply = dumps(_Reply(outcome))
        if outcome.__class__ is Failed:
            # A class may take itself apart and yet refuse to be put together again.
            loads(reply)
    except Exception as refusal:
        what = outcome.error if outcome.__class__ is Failed else outcome
        refusal.add_note(f"a value of {type(what)!r} cannot travel back: it is to be pickled")
        return defect_reply(refusal)
    return reply


def defect_reply(defect: Exception) -> bytes:
    """The reply of a call that ended in a defect."""
    text = "".join(traceback.format_exception(defect))
    origin = f"raised in worker process {os.getpid()} on {platform.node()}:\n{text}"
    try:
        reply = dumps(_Reply(None, defect, origin))
        loads(reply)
    except Exception:
        stand_in = RuntimeError(f"{type(defect).__qualname__}: {defect}")
        return dumps(_Reply(None, stand_in, origin))
    return reply


def read_reply(data: bytes) -> Any:
    """What `interpret` gave in the worker: a value, or a `Failed`. Raises what it raised."""
    try:
        reply: _Reply = loads(data)
    except Exception as refusal:
        refusal.add_note(
            "while reading the reply of a worker, which has a class that is not known here"
        )
        raise
    if reply.raised is not None:
        add_note(reply.raised, reply.origin)
        raise reply.raised
    return reply.outcome
