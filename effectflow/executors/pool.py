"""Worker processes that are idle, busy, or yet to be started."""

from __future__ import annotations

import anyio

from effectflow.effects.event_loop import run_to_the_end, shielded
from effectflow.executors.worker_process import WorkerProcess

__all__ = ["PoolClosed", "WorkerPool"]


class PoolClosed(Exception):
    """The pool was closed while somebody waited for a reply."""


class WorkerPool:
    """So many worker processes at most, each started when no other is idle.

    Attributes:
        turns: to be held by whoever asks; there are as many as there may be workers.
    """

    def __init__(self, make_env: bytes, *, limit: int, grace: float) -> None:
        self.turns = anyio.Semaphore(limit)
        self._make_env = make_env
        self._grace = grace
        self._is_closed = False
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []

    async def ask(self, call: bytes) -> bytes:
        """The reply of a worker that has nothing else to do.

        Raises WorkerDied if it died, and PoolClosed if the pool was closed. Cancelled, it cancels the
        call in the worker, and waits for the end of it.
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
        """End all workers, and what they are doing."""
        self._is_closed = True
        async with anyio.create_task_group() as group:
            for worker in self._workers:
                group.start_soon(worker.end)

    async def _take(self) -> WorkerProcess:
        while not self._is_closed:
            # One that was just started is never idle: another task would take it meanwhile.
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
            # Closed meanwhile, so that nobody else would end it.
            await worker.end()
        return worker

    async def _give_back(self, worker: WorkerProcess) -> None:
        """Take back a worker that may be dead, or at work for somebody who does not wait any more."""
        if await worker.interrupt():
            self._idle.append(worker)
        else:
            self._workers.discard(worker)
