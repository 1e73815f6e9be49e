"""Worker threads for functions that block.

On asyncio they are not anyio's: those are waited for when the process exits, and end only once the main
task of their event loop has. So a process that is interrupted several times while it stops would hang.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import checkpoint

from effectflow.effects.event_loop import running_backend

A = TypeVar("A")

_Work: TypeAlias = Callable[[], Callable[[], object]]
"""Does the work, and returns a function that reports its result."""

_IDLE_SECONDS = 10.0
"""The seconds without work after which a thread ends."""


async def in_thread(f: Callable[[], A], limiter: CapacityLimiter) -> A:
    """Return the result of `f()`, called in a worker thread with the context of the caller.

    A thread cannot be stopped, so only the wait for the limiter can be cancelled by a scope. If asyncio
    itself cancels the caller, the call continues without it.
    """
    if running_backend() == "trio":
        return await to_thread.run_sync(f, limiter=limiter)
    await checkpoint()
    async with limiter:
        with anyio.CancelScope(shield=True):
            return await _call(partial(copy_context().run, f))
        raise AssertionError("a scope that is not cancelled continues")


async def _call(f: Callable[[], A]) -> A:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[A] = loop.create_future()

    def end(result: Callable[[], None]) -> None:
        if not future.done():
            result()

    def work() -> Callable[[], object]:
        try:
            result = partial(future.set_result, f())
        except StopIteration as error:
            # A future does not accept a StopIteration.
            wrapped = RuntimeError("a function that ran in a thread raised StopIteration")
            wrapped.__cause__ = error
            result = partial(future.set_exception, wrapped)
        except BaseException as error:
            result = partial(future.set_exception, error)
        return lambda: loop.call_soon_threadsafe(end, result)

    _threads.start(work)
    return await future


class _Threads:
    """Daemon threads that are started when none is idle, and end when they were idle for a while."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[_Work]] = deque()

    def start(self, work: _Work) -> None:
        """Call `work` in an idle thread or in a new one, then call the function that it returns."""
        try:
            # The newest idle thread, so that the others can end.
            queue = self._idle.pop()
        except IndexError:
            queue = SimpleQueue[_Work]()
            threading.Thread(
                target=self._run, args=[queue], name="effectflow-worker", daemon=True
            ).start()
        queue.put(work)

    def _run(self, queue: SimpleQueue[_Work]) -> None:
        work = queue.get()
        while True:
            report = work()
            del work
            # First, so that the caller finds it idle.
            self._idle.append(queue)
            # The event loop may have been closed meanwhile, and its tasks with it.
            with suppress(RuntimeError):
                report()
            del report
            try:
                work = queue.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    self._idle.remove(queue)
                except ValueError:
                    # This thread was taken just now, and work follows.
                    work = queue.get()
                else:
                    return


_threads = _Threads()


def _forget_in_child() -> None:
    """Start without threads, because a forked process has none."""
    global _threads
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
