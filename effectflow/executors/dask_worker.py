"""The part of a `DaskExecutor` that runs on the workers and on the scheduler of the cluster."""

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
from effectflow.executors.remote_call import answer, defect_reply, failure_reply, opened_environment

CLOSED = "the DaskExecutor was closed"
"""Why items that were in progress are lost."""

_GRACE = 2.0
"""Seconds that items and the environment may take to end when the executor is closed."""


def answer_in(name: str, key: str, call: bytes) -> bytes:
    """Return the reply to a call, from the workplace of this name. Dask runs this as a task."""
    worker: Any = get_worker()
    workplace: Workplace | None = worker.plugins.get(name)
    # A call may come just after closing the executor has removed the workplace.
    lost = ExecutorLost(CLOSED)
    reply = failure_reply(lost) if workplace is None else workplace.answer(key, call)
    if reply is None:
        # The call was cancelled. If the scheduler wants it again, it starts again, on another worker
        # if this one is about to end.
        raise Reschedule
    return reply


class Workplace(WorkerPlugin):
    """An environment, and an event loop in a thread of its own, on each worker of the cluster.

    Both start with the first call, and end with the executor or with the worker.
    """

    def __init__(self, make_env: bytes, backend: Literal["asyncio", "trio"]) -> None:
        self._make_env = make_env
        self._backend: Literal["asyncio", "trio"] = backend

    def setup(self, worker: object) -> None:
        """Called on the worker: make what cannot be pickled."""
        self._opening = Lock()
        self._place: tuple[BlockingPortal, Any] | None = None
        self._stack = ExitStack()
        self._is_closed = False
        self._running: dict[str, _Running] = {}

    def answer(self, key: str, call: bytes) -> bytes | None:
        """Return the reply to a call, or None if the call was cancelled or came too late.

        Called in a thread of Dask.
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
        """Called by the worker when the state of a task changes."""
        running = self._running.get(key)
        if running is not None and finish == "released":
            running.cancel()

    async def teardown(self, worker: object) -> None:
        """Called on the worker when it ends, or when the executor is closed."""
        # An item that computes cannot be stopped. It ends later, and nothing waits for it.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._close), _GRACE)

    def _open(self) -> tuple[BlockingPortal, Any]:
        with self._opening:
            if self._is_closed:
                # An environment that is made now would never be left.
                raise RuntimeError("the workplace is closed")
            if self._place is None:
                with ExitStack() as stack:
                    portal = stack.enter_context(start_blocking_portal(self._backend))
                    manager = portal.wrap_async_context_manager(opened_environment(self._make_env))
                    self._place = portal, stack.enter_context(manager)
                    self._stack = stack.pop_all()
            return self._place

    def _close(self) -> None:
        running = list(self._running.values())
        for item in running:
            item.cancel()
        for item in running:
            item.has_ended.wait()
        with self._opening:
            self._is_closed = True
            self._stack.close()


class _Running:
    """A call in progress, or about to begin. Any thread may cancel it."""

    def __init__(self) -> None:
        self.has_ended = Event()
        self._is_cancelled = False
        self._stop: Callable[[], object] | None = None

    async def answer(self, call: bytes, env: Any) -> bytes | None:
        """Return the reply, or None if the call was cancelled."""
        with anyio.CancelScope() as scope:
            self._stop = partial(call_soon_from_threads(), scope.cancel)
            if not self._is_cancelled:
                return await answer(call, env)
        return None

    def cancel(self) -> None:
        """Cancel the call, or keep it from beginning."""
        self._is_cancelled = True
        if self._stop is not None:
            # The event loop may have ended already, and the call with it.
            with suppress(RuntimeError):
                self._stop()


class WorkplaceRemover(SchedulerPlugin):
    """Removes the workplaces once their client is gone, which may have been killed."""

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
