"""Run items in a pool of worker processes on this machine.

The pool is our own because the known ones fall short. `concurrent.futures` and loky fail every item in
progress when one process dies, and cannot stop an item. `anyio.to_process` has no environment that
outlives a call, and stops an item only by force. Pebble works with threads. On top of anyio's processes,
which run under asyncio and trio, little is left to write: a list of idle workers, one item at a time for
each, and two pipes that carry pickles.
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
from effectflow.executors.remote_call import checked_factory, read_reply, write_call, write_factory
from effectflow.executors.worker_pool import PoolClosed, WorkerDied, WorkerPool

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")


class ProcessExecutor(Generic[Env]):
    """Runs items in worker processes, for work that computes: each worker has a core to itself.

    Use it in `async with`, under asyncio or trio. Its processes start when they are needed, run one item
    at a time, and end with the block, however it ends.

    Parameters:
        make_env: makes the environment of a worker process, once per process, before its first item. It
            may return an async context manager, which is entered, and left when the worker ends. By
            default the environment is None.
        workers: at most this many processes; by default one for each core that this process may use.
        attempts: after this many processes have died under an item, it fails with WorkerLost.
        grace: seconds that the finalizers of a cancelled item, or of an environment, may take before the
            process is killed.

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
            raise ValueError(f"workers and attempts must be at least 1: {workers=}, {attempts=}")
        if not grace >= 0:
            raise ValueError(f"grace must be at least 0 seconds: {grace=}")
        self._make_env = checked_factory(make_env)
        self._limit = workers or _cores()
        self._attempts = attempts
        self._grace = grace
        self._pool: WorkerPool | None = None

    def apply(
        self, function: Callable[[Item], Effect[Env, E, A]], item: Item
    ) -> Effect[object, E | ExecutorError, A]:
        """Return an effect that runs `function(item)` in a worker, and ends as it ends there.

        cloudpickle sends the function and the item, and the value, error or exception that comes back.
        What cannot be pickled is a defect. A defect of the worker carries its traceback as a note.
        Interruption cancels the item in the worker, and waits at most `grace` seconds for its
        finalizers.

        The effect fails with WorkerLost if `attempts` processes died under the item, and with
        ExecutorLost if the executor was closed in the meantime. The death of a process affects no
        other item.
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
            raise RuntimeError("a ProcessExecutor runs items only inside `async with executor:`")
        async with pool.turns:
            call = write_call(function, item, scope)
            try:
                reply = await _ask(pool, call, self._attempts)
            except WorkerDied as death:
                return Failed(WorkerLost(reprlib.repr(item), self._attempts, str(death)))
            except PoolClosed:
                return Failed(ExecutorLost("the ProcessExecutor was closed"))
        return read_reply(reply)

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            raise RuntimeError(
                "this ProcessExecutor has already been entered: enter it once, and share it"
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


async def _ask(pool: WorkerPool, call: bytes, attempts: int) -> bytes:
    """Return the reply of the first worker that survives the call. Raise WorkerDied if none does."""
    for _ in range(attempts - 1):
        with suppress(WorkerDied):
            return await pool.ask(call)
    return await pool.ask(call)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
