"""The worker processes of a `ProcessExecutor`, as the process that starts them sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from typing import cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from effectflow.effects.event_loop import run_to_the_end, running_backend, shielded
from effectflow.executors.pickling import dumps
from effectflow.executors.worker_main import CANCEL, FRAME_LENGTH, Greeting, frame

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

    def __init__(self, make_env: bytes, *, limit: int, grace: float) -> None:
        self.turns = anyio.Semaphore(limit)
        self._make_env = make_env
        self._grace = grace
        self._is_closed = False
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []

    async def ask(self, call: bytes) -> bytes:
        """Return the reply of an idle worker to a call.

        Raise WorkerDied if the worker died, and PoolClosed if the pool was closed. When cancelled,
        cancel the call in the worker and wait for its end.
        """
        worker = await self._take()
        try:
            reply = await worker.ask(call)
        except BaseException as raised:
            await shielded(self._give_back(worker))
            if self._is_closed and isinstance(raised, Exception):
                raise PoolClosed from raised
            raise
        self._idle.append(worker)
        return reply

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
        worker = await WorkerProcess.start(self._make_env, self._grace)
        self._workers.add(worker)
        if self._is_closed:
            # `close` did not know of this worker.
            await worker.end()
        return worker

    async def _give_back(self, worker: WorkerProcess) -> None:
        """Take back a worker that may be dead, or busy with a call that was cancelled."""
        if await worker.interrupt():
            self._idle.append(worker)
        else:
            self._workers.discard(worker)


class WorkerProcess:
    """A process that answers one call at a time."""

    def __init__(self, process: Process, grace: float) -> None:
        self._process = process
        self._grace = grace
        self._requests = cast(ByteSendStream, process.stdin)
        self._replies = _FrameStream(cast(ByteReceiveStream, process.stdout))
        self._owes_reply = False
        self._is_sending = False

    @classmethod
    async def start(cls, make_env: bytes, grace: float) -> WorkerProcess:
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
            await worker._requests.send(frame(dumps(Greeting(make_env, running_backend(), grace))))
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

    async def interrupt(self) -> bool:
        """Cancel the call whose `ask` was cancelled, if any. Return whether the worker can go on.

        Kill the process if its item does not end within the grace.
        """
        if self._owes_reply and not self._is_sending:
            with anyio.move_on_after(self._grace), suppress(*_PIPE_ERRORS):
                await self._requests.send(frame(CANCEL))
                await self._replies.receive()
                self._owes_reply = False
        if self._owes_reply:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._owes_reply or not self.is_alive:
            await self.end()
            return False
        return True

    async def end(self) -> str:
        """End the process, by force once its grace is over. Return how it ended."""
        with anyio.move_on_after(self._grace):
            # Close its standard input, which tells it to end, and wait. If cut off, this kills it.
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
