"""What anyio does not offer about the running event loop, asyncio's or trio's.

For calls from other threads, `anyio.from_thread` with an `anyio.Event` would work, but costs three times
as much, and makes the other thread wait.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    # Importing asyncio takes twelve milliseconds, which a program on trio need not spend.
    import asyncio

A = TypeVar("A")


class CallSoon(Protocol):
    """Calls a function soon in its event loop. Any thread may use it."""

    def __call__(self, callback: Callable[..., object], /, *arguments: object) -> object: ...


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of asyncio, or None on trio."""
    # Looked up, because an import statement takes several times as long.
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def running_loop() -> object:
    """Return an object that identifies the running event loop."""
    return _asyncio_loop() or anyio.lowlevel.current_token().native_token


class PerEventLoop(Generic[A]):
    """A value for each event loop, created on first use. anyio's `RunVar` takes several times as long."""

    def __init__(self, create: Callable[[], A]) -> None:
        self._create = create
        self._values: WeakKeyDictionary[object, A] = WeakKeyDictionary()

    def get(self) -> A:
        """Return the value of the running event loop."""
        loop = running_loop()
        value = self._values.get(loop)
        if value is None:
            value = self._values[loop] = self._create()
        return value


def call_soon_from_threads() -> CallSoon:
    """Return the function with which other threads call into the running event loop.

    It raises RuntimeError after the loop was closed.
    """
    loop = _asyncio_loop()
    if loop is not None:
        return loop.call_soon_threadsafe
    token: Any = anyio.lowlevel.current_token().native_token
    return cast(CallSoon, token.run_sync_soon)


def is_closed(call_soon: CallSoon) -> bool:
    """Return whether the event loop that this calls into was closed."""
    try:
        call_soon(bool)
    except RuntimeError:
        return True
    return False


def running_backend() -> Literal["asyncio", "trio"]:
    """Return the running event loop."""
    return "trio" if _asyncio_loop() is None else "asyncio"


_background: set[Any] = set()


def spawn_background(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Start a task that belongs to the running event loop only, and to no task group.

    It has none of the context variables of the caller, because it outlives what they are about.
    """
    loop = _asyncio_loop()
    if loop is None:
        # The running program has imported it already; this package does not depend on it.
        sys.modules["trio"].lowlevel.spawn_system_task(work)
        return
    task = loop.create_task(work(), context=Context())
    # The loop itself keeps only weak references.
    _background.add(task)
    task.add_done_callback(_background.discard)


async def shielded(work: Coroutine[Any, Any, A]) -> A:
    """Return the result of `work`, shielded from cancellation, which is raised afterwards."""
    result, cancelled = await run_to_the_end(work)
    if cancelled is not None:
        raise cancelled
    return result


async def run_to_the_end(
    work: Coroutine[Any, Any, A], on_cancellation: Callable[[], object] | None = None
) -> tuple[A, BaseException | None]:
    """Return the result of `work`, and the cancellation that arrived meanwhile and must be raised.

    On asyncio it runs in a separate task. There is no other way to shield it from a cancellation by
    asyncio itself instead of an anyio scope. `on_cancellation` is called when that happens. On trio, and
    with anyio scopes, the next wait raises a cancellation that arrived meanwhile.
    """
    loop = _asyncio_loop()
    if loop is None:
        with anyio.CancelScope(shield=True):
            return await work, None
        raise AssertionError("a scope that is not cancelled continues")
    import asyncio

    task = loop.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
                if on_cancellation is not None:
                    on_cancellation()
    if cancelled is not None and not task.cancelled():
        error = task.exception()
        if error is not None:
            cancelled.add_note(f"and meanwhile failed: {error!r}")
            raise cancelled
    return task.result(), cancelled


def raise_again_later(cancelled: BaseException) -> None:
    """Let the next wait of the running task raise a cancellation that was caught.

    So the end of work that was cancelled too late can be recorded first.
    """
    if not has_been_cancelled_natively():
        # anyio's scopes and trio raise it again by themselves.
        return
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    # The same request as before, not another one: callers count them.
    if task.cancelling():
        task.uncancel()
    task.cancel(*cancelled.args)


def is_cancellation(raised: BaseException) -> bool:
    """Return whether an exception is the cancellation of the running backend."""
    return isinstance(raised, anyio.get_cancelled_exc_class())


_MARK = "_effectflow_is_cancelled"

_OF_SCOPES = "Cancelled via cancel scope"
"""The beginning of the message with which anyio's scopes cancel."""


def mark_as_cancelled(raised: BaseException) -> None:
    """Mark a cancellation as requested."""
    setattr(raised, _MARK, True)


def stray_cancellation(raised: BaseException) -> Exception | None:
    """Return a defect for a `CancelledError` that was raised although nothing cancelled the running task.

    A client library may raise one because of its own future. asyncio would end the task silently.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(raised, asyncio.CancelledError):
        return None
    if getattr(raised, _MARK, False):
        return None
    if str(raised).startswith(_OF_SCOPES) and is_cancelled_by_scope():
        # Otherwise the scope belongs to another task, which the effect awaited.
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None and task.cancelling():
        return None
    defect = RuntimeError(
        "an effect or a store raised CancelledError, though nothing has cancelled it: it awaited a "
        "future or a task that was cancelled elsewhere. Catch the CancelledError around that `await`, "
        "and raise an exception of another class"
    )
    defect.__cause__ = raised
    return defect


@contextmanager
def strays_as_errors() -> Generator[None]:
    """Raise a defect instead of a stray cancellation (see `stray_cancellation`)."""
    try:
        yield
    except BaseException as raised:
        stray = stray_cancellation(raised)
        if stray is None:
            raise
        raise stray from raised


def is_cancelled_by_scope() -> bool:
    """Return whether a cancel scope has cancelled the running task, so that its next wait raises."""
    return anyio.current_effective_deadline() == -math.inf


def has_been_cancelled_natively() -> bool:
    """Return whether asyncio itself, instead of an anyio scope, has cancelled the running task."""
    return running_backend() == "asyncio" and not is_cancelled_by_scope()


async def raise_pending_cancellation() -> None:
    """Raise the cancellation of the running asyncio task that `raise_again_later` left, if any."""
    loop = _asyncio_loop()
    if loop is not None:
        import asyncio

        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await asyncio.sleep(0)


def unmark_own_cancellation(body: Any, raised: BaseException) -> None:
    """Unmark the running task if an `asyncio.TaskGroup` in a coroutine has cancelled it.

    A group cancels its own task when a child fails. Before Python 3.13 it leaves the mark of that if it
    waits for its children then, and the task would seem to be stopped from outside. Call this before
    the coroutine receives `raised`.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or sys.version_info >= (3, 13):
        return
    if not isinstance(raised, asyncio.CancelledError) or is_cancelled_by_scope():
        return
    while isinstance(body, types.CoroutineType):
        if body.cr_code is asyncio.TaskGroup.__aexit__.__code__:
            group: Any = cast("types.FrameType", body.cr_frame).f_locals["self"]
            if group._parent_cancel_requested and group not in _unmarked:
                # The next cancellation comes from outside.
                _unmarked.add(group)
                asyncio.current_task().uncancel()
        body = body.cr_await


_unmarked: WeakSet[Any] = WeakSet()


def is_being_cancelled() -> bool:
    """Return whether something cancels the running task, even if the task has caught that."""
    loop = _asyncio_loop()
    if loop is None or is_cancelled_by_scope():
        return is_cancelled_by_scope()
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def raise_caught_cancellation() -> Never:
    """Raise the cancellation of the running task again, which code of a user has caught."""
    if has_been_cancelled_natively():
        import asyncio

        raise_again_later(asyncio.CancelledError())
    await anyio.sleep_forever()
    raise AssertionError("this wait has no end")


async def cancel_natively() -> None:
    """Cancel the running asyncio task without an anyio scope, as one of its children was cancelled."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def raise_stop() -> Never:
    """Raise the cancellation of the running task, which is being stopped.

    If asyncio itself has cancelled only another task of the same work, cancel this one, too.
    """
    if running_backend() == "asyncio" and not is_cancelled_by_scope():
        import asyncio

        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            task.cancel()
    await anyio.sleep_forever()
    raise AssertionError("this wait has no end")


@types.coroutine
def in_context(context: Context, work: Coroutine[Any, Any, A]) -> Generator[Any, Any, A]:
    """Return the result of `work`, run in the current task with the context variables of `context`.

    A separate task would do the same at ten times the cost.
    """
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        try:
            wanted = context.run(step)
        except StopIteration as stop:
            return stop.value
        try:
            step = partial(work.send, (yield wanted))
        except BaseException as raised:
            step = partial(work.throw, raised)


class Waiter(Protocol):
    """Can be awaited until it is passed to `wake`. A cancellation also ends the wait.

    On asyncio it is a future, with nothing around it: while hundreds of tasks wait, the garbage collector
    looks at everything that each of them keeps alive.
    """

    def done(self) -> bool:
        """Return whether the wait has ended."""
        ...

    def set_result(self, result: None, /) -> None:
        """End the wait."""
        ...

    def __await__(self) -> Generator[Any, Any, object]: ...


def new_waiter() -> Waiter:
    """Return a `Waiter` for the running task."""
    loop = _asyncio_loop()
    return _TrioWaiter() if loop is None else loop.create_future()


def wake(*waiters: Waiter) -> None:
    """End the waits of these waiters. Call it in their event loop."""
    for waiter in waiters:
        # A cancelled wait has cancelled its future.
        if not waiter.done():
            waiter.set_result(None)


class _TrioWaiter:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None, /) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, Any, object]:
        return self._event.wait().__await__()
