"""What of a `DaskExecutor` is in the workers, and in the scheduler, of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from threading import Event, Lock
from typing import Any, Literal

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from distributed import Reschedule, get_worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from effectflow.effects import ExecutorLost
from effectflow.effects.event_loop import call_soon_from_threads
from effectflow.executors.call import answer, defect_reply, failure_reply
from effectflow.executors.environment import environment

__all__ = ["CLOSED", "Departure", "Workplace", "answer_in"]

CLOSED = "the DaskExecutor was closed"
"""Why items are lost that were under way then."""

_GRACE = 2.0
"""Seconds that items and the environment have to end when the executor is closed."""


def answer_in(name: str, key: str, call: bytes) -> bytes:
    """The reply to a call, made in the workplace of this name. This is a task for Dask."""
    worker: Any = get_worker()
    workplace: Workplace | None = worker.plugins.get(name)
    # It is taken away when the executor is closed, and a call may come just then.
    lost = ExecutorLost(CLOSED)
    reply = failure_reply(lost) if workplace is None else workplace.answer(key, call)
    if reply is None:
        # It was cancelled. Should the scheduler want it again after all, it is begun anew, elsewhere
        # if this worker is about to end.
        raise Reschedule
    return reply


class Workplace(WorkerPlugin):
    """An environment, and an event loop in a thread of its own, on each worker of the cluster.

    Both are made when the first call comes, and ended with the executor or with the worker.
    """

    def __init__(self, make_env: bytes, backend: Literal["asyncio", "trio"]) -> None:
        self._make_env = make_env
        self._backend: Literal["asyncio", "trio"] = backend

    def setup(self, worker: object) -> None:
        """Called on the worker. What cannot travel is made here."""
        self._opening = Lock()
        self._place: tuple[BlockingPortal, Any] | None = None
        self._life = ExitStack()
        self._is_closed = False
        self._running: dict[str, _Running] = {}

    def answer(self, key: str, call: bytes) -> bytes | None:
        """The reply to a call; None if it was cancelled, or comes too late.

        To be called in a thread of Dask's.
        """
        running = self._running[key] = _Running()
        try:
            portal, env = self._open()
            return portal.call(running.answer, call, env)
        except Exception as defect:
            return None if self._is_closed else defect_reply(defect)
        finally:
            del self._running[key]
            running.has_ended.set()

    def transition(self, key: Any, start: object, finish: object, **_: object) -> None:
        """Called by the worker whenever the state of a task changes."""
        running = self._running.get(key)
        if running is not None and finish == "released":
            running.cancel()

    async def teardown(self, worker: object) -> None:
        """Called on the worker, at its end or at that of the executor."""
        # An item that computes cannot be stopped: it ends on its own, with nobody waiting for it.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._close), _GRACE)

    def _open(self) -> tuple[BlockingPortal, Any]:
        with self._opening:
            if self._is_closed:
                # Nobody would leave an environment that is made now.
                raise RuntimeError("the workplace is closed")
            if self._place is None:
                with ExitStack() as life:
                    portal = life.enter_context(start_blocking_portal(self._backend))
                    made = portal.wrap_async_context_manager(environment(self._make_env))
                    self._place = portal, life.enter_context(made)
                    self._life = life.pop_all()
            return self._place

    def _close(self) -> None:
        running = list(self._running.values())
        for item in running:
            item.cancel()
        for item in running:
            item.has_ended.wait()
        with self._opening:
            self._is_closed = True
            self._life.close()


class _Running:
    """A call that is under way, or soon will be, and that may be cancelled from any thread."""

    def __init__(self) -> None:
        self.has_ended = Event()
        self._is_cancelled = False
        self._stop: Callable[[], object] | None = None

    async def answer(self, call: bytes, env: Any) -> bytes | None:
        """The reply, or None if it was cancelled."""
        with anyio.CancelScope() as scope:
            self._stop = partial(call_soon_from_threads(), scope.cancel)
            if not self._is_cancelled:
                return await answer(call, env)
        return None

    def cancel(self) -> None:
        """End it, after its finalizers; if it has not begun yet, it will not."""
        self._is_cancelled = True
        if self._stop is not None:
            # An event loop that has ended has nothing left to cancel.
            with suppress(RuntimeError):
                self._stop()


class Departure(SchedulerPlugin):
    """Takes the workplaces away when their client has gone, killed perhaps, without a word."""

    def __init__(self, client_id: str, name: str) -> None:
        self._client_id = client_id
        self._name = name
        self._leaving: asyncio.Task[None] | None = None

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Called by the scheduler when it has lost a client."""
        if client == self._client_id:
            self._leaving = asyncio.create_task(self._leave(scheduler))

    async def _leave(self, scheduler: Any) -> None:
        await scheduler.unregister_worker_plugin(None, self._name)
        scheduler.remove_plugin(self._name)
