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
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any, Generic, Self, TypeVar, cast, overload

import anyio
from anyio.abc import ByteReceiveStream, Process

from effectflow.effects import Effect, ExecutorError, ExecutorLost, WorkerLost
from effectflow.effects.arguments import check_count
from effectflow.effects.clock import Duration, waiting_time
from effectflow.effects.event_loop import is_cancellation, run_to_the_end, running_backend, shielded
from effectflow.effects.nodes import Perform
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.executors.pickling import dumps
from effectflow.executors.remote_call import checked_factory, read_reply, write_call, write_factory
from effectflow.executors.worker_main import CANCEL, FRAME_LENGTH, Greeting, frame

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")


class ProcessExecutor(Generic[Env]):
    """Runs items in worker processes, for work that computes: each worker has a core to itself.

    Use it in `async with`, under asyncio or trio. Its processes start when they are needed, run one item
    at a time, and end with the block, however it ends.

    Parameters:
        environment: makes the environment of a worker process, once per process, before its first item: a
            function, an async function, or one that returns a context manager or an async one, which is
            entered, and left when the worker ends. By default the environment is None.
        limit: at most this many processes; by default one for each core that this process may use.
        attempts: after this many processes have died under an item, it fails with WorkerLost. An item of
            an at-most-once step is given to one process only.
        grace: seconds that the finalizers of a cancelled item, or of an environment, may take before the
            process is killed.

    Example:
        >>> import anyio
        >>> from effectflow import par_traverse, pure
        >>> async def main():
        ...     async with ProcessExecutor(limit=2) as executor:
        ...         square = lambda n: executor.apply(lambda n: pure(n * n), n)
        ...         return await par_traverse([1, 2, 3], square).run(None)
        >>> anyio.run(main)
        <Success: [1, 4, 9]>
    """

    @overload
    def __init__(
        self: ProcessExecutor[None],
        environment: None = None,
        *,
        limit: int | None = None,
        attempts: int = 3,
        grace: Duration = 2.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        environment: Callable[
            [], AbstractAsyncContextManager[Env] | AbstractContextManager[Env] | Awaitable[Env]
        ],
        *,
        limit: int | None = None,
        attempts: int = 3,
        grace: Duration = 2.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        environment: Callable[[], Env],
        *,
        limit: int | None = None,
        attempts: int = 3,
        grace: Duration = 2.0,
    ) -> None: ...
    def __init__(
        self,
        environment: Callable[[], Any] | None = None,
        *,
        limit: int | None = None,
        attempts: int = 3,
        grace: Duration = 2.0,
    ) -> None:
        if limit is not None:
            check_count("limit", limit, least=1)
        check_count("attempts", attempts, least=1)
        seconds = waiting_time("grace", grace)
        self._environment = checked_factory(environment)
        self._limit = limit or _cores()
        self._attempts = attempts
        self._grace = seconds
        self._pool: WorkerPool | None = None

    def apply(
        self, function: Callable[[Item], Effect[Env, E, A]], item: Item
    ) -> Effect[object, E | ExecutorError, A]:
        """Return an effect that runs `function(item)` in a worker, and ends as it ends there.

        cloudpickle sends the function and the item, and the value, error or exception that comes back.
        What cannot be pickled is a defect. A defect of the worker carries its traceback as a note.
        Interruption cancels the item in the worker, and waits at most `grace` seconds for its
        finalizers. If the item ends anyway, and a step of a durable run with it, that is recorded
        before the interruption takes effect.

        The effect fails with WorkerLost if `attempts` processes died under the item, and with
        ExecutorLost if the executor was closed in the meantime. The death of a process affects no
        other item.
        """

        def perform(env: object, scope: Scope) -> Coroutine[Any, Any, Any]:
            return scope.fiber.wait(scope, self._perform, function, item, scope)

        return Perform(perform, ("apply", function, item))

    async def _perform(
        self,
        function: Callable[[Any], Effect[Any, Any, Any]],
        item: object,
        scope: Scope,
    ) -> Any:
        pool = self._pool
        if pool is None:
            raise RuntimeError("a ProcessExecutor runs items only inside `async with executor:`")
        attempts = 1 if scope.is_at_most_once else self._attempts
        async with pool.turns:
            call = write_call(function, item, scope)
            end = ""
            for _ in range(attempts):
                try:
                    reply, cancelled = await pool.ask(call)
                except WorkerDied as death:
                    end = str(death)
                except PoolClosed:
                    return TypedFailure(ExecutorLost("the ProcessExecutor was closed"))
                else:
                    if cancelled is not None:
                        scope.postpone(cancelled)
                    return read_reply(reply)
        return TypedFailure(WorkerLost(reprlib.repr(item), attempts, end))

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            raise RuntimeError(
                "this ProcessExecutor has already been entered: enter it once, and share it"
            )
        self._pool = WorkerPool(
            write_factory(self._environment), limit=self._limit, grace=self._grace
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await shielded(pool.close())


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_PIPE_ERRORS = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class PoolClosed(Exception):
    """The pool was closed while a call waited for its reply."""


class WorkerDied(Exception):
    """The worker process ended before it replied. The message says how."""


class WorkerPool:
    """At most `limit` worker processes, each started when no other is idle.

    Attributes:
        turns: limits the calls at a time to the number of workers; hold it around `ask`.
    """

    def __init__(self, environment: bytes, *, limit: int, grace: float) -> None:
        self.turns = anyio.Semaphore(limit)
        self._environment = environment
        self._grace = grace
        self._is_closed = False
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []

    async def ask(self, call: bytes) -> tuple[bytes, BaseException | None]:
        """Return the reply of an idle worker to a call, and the cancellation that came too late for it.

        Raise WorkerDied if the worker died, and PoolClosed if the pool was closed. When cancelled,
        cancel the call in the worker and wait for its end. Raise the cancellation, unless the call ended
        although it was cancelled.
        """
        worker = await self._take()
        try:
            reply = await worker.ask(call)
        except BaseException as raised:
            late, again = await run_to_the_end(self._give_back(worker))
            if self._is_closed and isinstance(raised, Exception):
                raise PoolClosed from raised
            if late is None or not is_cancellation(raised):
                raise
            return late, again or raised
        self._idle.append(worker)
        return reply, None

    async def close(self) -> None:
        """End all workers and their calls."""
        self._is_closed = True
        async with anyio.create_task_group() as group:
            for worker in self._workers:
                group.start_soon(worker.end)

    async def _take(self) -> WorkerProcess:
        while not self._is_closed:
            # A new worker never becomes idle first: another task would take it.
            worker = self._idle.pop() if self._idle else await self._started()
            if worker.is_alive:
                return worker
            await shielded(self._give_back(worker))
        raise PoolClosed

    async def _started(self) -> WorkerProcess:
        worker, cancelled = await run_to_the_end(self._start())
        if cancelled is not None:
            self._idle.append(worker)
            raise cancelled
        return worker

    async def _start(self) -> WorkerProcess:
        worker = await WorkerProcess.start(self._environment, self._grace)
        self._workers.add(worker)
        if self._is_closed:
            # `close` did not know of this worker.
            await worker.end()
        return worker

    async def _give_back(self, worker: WorkerProcess) -> bytes | None:
        """Take back a worker that may be dead, or busy with a call that was cancelled.

        Return the reply to that call if it ended anyway.
        """
        reply = await worker.interrupt()
        if worker.is_alive:
            self._idle.append(worker)
        else:
            self._workers.discard(worker)
        return reply


class WorkerProcess:
    """A process that answers one call at a time."""

    def __init__(self, process: Process, grace: float) -> None:
        self._process = process
        self._grace = grace
        # Both are pipes: see `start`.
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests = process.stdin
        self._replies = _FrameStream(process.stdout)
        self._owes_reply = False
        self._is_sending = False

    @classmethod
    async def start(cls, environment: bytes, grace: float) -> WorkerProcess:
        """Start a process that makes its own environment."""
        # A new session, so that Ctrl-C in the terminal reaches only the coordinator.
        process = await anyio.open_process(
            _command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            start_new_session=True,
        )
        worker = cls(process, grace)
        # If the process has died already, the first call reports it.
        with suppress(*_PIPE_ERRORS):
            await worker._requests.send(
                frame(dumps(Greeting(environment, running_backend(), grace)))
            )
        return worker

    @property
    def is_alive(self) -> bool:
        """Whether the process is not known to have ended."""
        return self._process.returncode is None

    async def ask(self, call: bytes) -> bytes:
        """Return the reply to a call. Raise WorkerDied if the process ends first."""
        try:
            self._is_sending = self._owes_reply = True
            await self._requests.send(frame(call))
            self._is_sending = False
            reply = await self._replies.receive()
        except _PIPE_ERRORS:
            self._owes_reply = False
            raise WorkerDied(await self.end()) from None
        self._owes_reply = False
        return reply

    async def interrupt(self) -> bytes | None:
        """Cancel the call whose `ask` was cancelled, if any. Return its reply if it ended anyway.

        Kill the process if its item does not end within the grace.
        """
        reply = CANCEL
        if self._owes_reply and not self._is_sending:
            with anyio.move_on_after(self._grace), suppress(*_PIPE_ERRORS):
                await self._requests.send(frame(CANCEL))
                reply = await self._replies.receive()
                self._owes_reply = False
        if self._owes_reply:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._owes_reply or not self.is_alive:
            await self.end()
        return None if reply == CANCEL else reply

    async def end(self) -> str:
        """End the process, by force once its grace is over. Return how it ended."""
        with anyio.move_on_after(self._grace):
            # Close its standard input, which tells it to end, and wait. A cancelled wait kills it.
            await self._process.aclose()
        code = await self._process.wait()
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"


def _command() -> list[str]:
    """Return the command of a new interpreter; a fork would copy threads and event loops midway."""
    # Like Python, skip what is not text, such as a `pathlib.Path`.
    paths = [str(path) for path in sys.path if isinstance(cast(object, path), str)]
    code = (
        f"import sys; sys.path[:] = {paths!r}; "
        "from effectflow.executors.worker_main import main; main()"
    )
    return [sys.executable, "-c", code]


class _FrameStream:
    """Reads messages from a stream. A cancelled `receive` loses nothing: the next one continues."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._unread = bytearray()

    async def receive(self) -> bytes:
        """Return the next message. Raise what the stream raises at its end."""
        await self._read_until(FRAME_LENGTH.size)
        end = FRAME_LENGTH.size + FRAME_LENGTH.unpack_from(self._unread)[0]
        await self._read_until(end)
        message = bytes(memoryview(self._unread)[FRAME_LENGTH.size : end])
        del self._unread[:end]
        return message

    async def _read_until(self, length: int) -> None:
        while len(self._unread) < length:
            self._unread += await self._stream.receive()
