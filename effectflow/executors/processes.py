"""Items run in a pool of worker processes on this machine.

The pool is our own, for what the known ones do not do. `concurrent.futures` and loky fail every item
that is under way when one process dies, and cannot stop an item. `anyio.to_process` has no place for an
environment that outlives a call, and stops an item only by force. Pebble does most of it, for threads.
What is left to write on top of anyio's processes, which run under asyncio and trio and are well kept, is
little: a list of idle workers, one item at a time for each, and two pipes with pickles on them.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from effectflow.effects import Effect, ExecutorError, ExecutorLost, WorkerLost
from effectflow.effects.event_loop import shielded
from effectflow.effects.nodes import Failed, Perform
from effectflow.effects.scope import Scope
from effectflow.executors.call import read_reply, write_call
from effectflow.executors.environment import factory_or_none, write_factory
from effectflow.executors.pool import PoolClosed, WorkerPool
from effectflow.executors.worker_process import WorkerDied

__all__ = ["ProcessExecutor"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")


class ProcessExecutor(Generic[Env]):
    """Runs items in worker processes, for work that computes: each worker has a core to itself.

    It lives within `async with`, under asyncio or trio, and its processes no longer than that, whatever
    ends it. They are started when they are first needed, and each runs one item at a time.

    Parameters:
        make_env: makes the environment of a worker process: once for each process, before its first
            item. It may give an async context manager, which is left when the worker ends. If not
            given, the environment is None.
        workers: how many processes there are at most; as many as this process may use cores if None.
        attempts: how many processes an item may lose before it fails with WorkerLost.
        grace: seconds that an item which was cancelled, or an environment which is left, may take for
            its finalizers, before the process is killed.

    Example:
        >>> import anyio
        >>> from effectflow import par_traverse, pure
        >>> async def main():
        ...     async with ProcessExecutor(workers=2) as executor:
        ...         square = lambda n: executor.apply(lambda n: pure(n * n), n)
        ...         return await par_traverse([1, 2, 3], square).run(None)
        >>> anyio.run(main)
        <Success: [1, 4, 9]>
    """

    @overload
    def __init__(
        self: ProcessExecutor[None],
        make_env: None = None,
        *,
        workers: int | None = None,
        attempts: int = 3,
        grace: float = 2.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        make_env: Callable[[], AbstractAsyncContextManager[Env]],
        *,
        workers: int | None = None,
        attempts: int = 3,
        grace: float = 2.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        make_env: Callable[[], Env],
        *,
        workers: int | None = None,
        attempts: int = 3,
        grace: float = 2.0,
    ) -> None: ...
    def __init__(
        self,
        make_env: Callable[[], Any] | None = None,
        *,
        workers: int | None = None,
        attempts: int = 3,
        grace: float = 2.0,
    ) -> None:
        if (workers is not None and workers < 1) or attempts < 1:
            raise ValueError(f"an executor needs a worker and an attempt: {workers=}, {attempts=}")
        if not grace >= 0:
            raise ValueError(f"grace is a time in seconds, from 0: {grace=}")
        self._make_env = factory_or_none(make_env)
        self._limit = workers or _cores()
        self._attempts = attempts
        self._grace = grace
        self._pool: WorkerPool | None = None

    def apply(
        self, function: Callable[[Item], Effect[Env, E, A]], item: Item
    ) -> Effect[object, E | ExecutorError, A]:
        """Runs `function(item)` in a worker, and ends as it ends there.

        Function and item travel pickled, by cloudpickle; so do the value, the error and the exception
        that come back. What cannot be pickled is a defect. A defect of the worker has its traceback as a
        note. Interruption cancels the item there and waits for its finalizers, for as long as the grace.

        Fails with WorkerLost when each of `attempts` processes died under it, and with ExecutorLost when
        the executor was closed meanwhile. No item but the one that ran there is concerned by a death.
        """
        return Perform(partial(self._perform, function, item), ("apply", function, item))

    async def _perform(
        self,
        function: Callable[[Any], Effect[Any, Any, Any]],
        item: object,
        _env: object,
        scope: Scope,
    ) -> Any:
        pool = self._pool
        if pool is None:
            raise RuntimeError("a ProcessExecutor runs items only within `async with executor:`")
        async with pool.turns:
            call = write_call(function, item, scope)
            try:
                reply = await _persistent(pool, call, self._attempts)
            except WorkerDied as death:
                return Failed(WorkerLost(reprlib.repr(item), self._attempts, str(death)))
            except PoolClosed:
                return Failed(ExecutorLost("the ProcessExecutor was closed"))
        return read_reply(reply)

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            raise RuntimeError(
                "this ProcessExecutor is entered already: enter it once, and share it"
            )
        self._pool = WorkerPool(write_factory(self._make_env), limit=self._limit, grace=self._grace)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await shielded(pool.close())


async def _persistent(pool: WorkerPool, call: bytes, attempts: int) -> bytes:
    """The reply of the first worker that lives to give it. Raises WorkerDied if none does."""
    for _ in range(attempts - 1):
        with suppress(WorkerDied):
            return await pool.ask(call)
    return await pool.ask(call)


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
