"""Run items on a Dask cluster, for work that is too large for one machine.

The second half of this module runs on the workers and on the scheduler of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import reprlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, suppress
from functools import partial
from itertools import count
from threading import Event, Lock
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, overload
from uuid import uuid4

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from distributed import (
    Client,
    Reschedule,
    get_client,  # pyright: ignore[reportUnknownVariableType] its parameters have no types
    get_worker,
)
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.scheduler import KilledWorker

from effectflow.effects import Effect, ExecutorError, ExecutorLost, RetryPolicy, WorkerLost
from effectflow.effects.event_loop import (
    call_soon_from_threads,
    new_waiter,
    running_backend,
    shielded,
    wake,
)
from effectflow.effects.nodes import Perform
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure
from effectflow.executors.remote_call import (
    answer,
    checked_factory,
    defect_reply,
    failure_reply,
    read_reply,
    worker_environment,
    write_call,
    write_factory,
)

logger = logging.getLogger(__name__)

_REGISTER_AGAIN = RetryPolicy.exponential(0.1).with_max_retries(6)
"""Gives the scheduler 6.3 seconds to notice that a worker is gone."""

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")

_Client: TypeAlias = Any
"""A `distributed.Client`; the checkers know only some of its types."""

_Future: TypeAlias = Any
"""A `distributed.Future`; the checkers know only some of its types."""

CLOSED = "the DaskExecutor was closed"
"""Why items that were in progress are lost."""

_GRACE = 2.0
"""Seconds that items and the environment may take to end when the executor is closed."""


class DaskExecutor(Generic[Env]):
    """Runs items on the workers of a Dask cluster.

    Use it in `async with`, under asyncio or trio. Install the same version of effectflow on the scheduler
    and on the workers.

    Parameters:
        client: the address of the scheduler, or a synchronous `distributed.Client`, which stays open.
        environment: makes the environment on a worker, once per worker process, before its first item: a
            function, an async function, or one that returns a context manager or an async one, which is
            entered, and left when the executor is closed. By default the environment is None.

    Entering the block raises ExecutorLost if no scheduler answers.
    """

    @overload
    def __init__(
        self: DaskExecutor[None], client: Client | str, environment: None = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        client: Client | str,
        environment: Callable[
            [], AbstractAsyncContextManager[Env] | AbstractContextManager[Env] | Awaitable[Env]
        ],
    ) -> None: ...
    @overload
    def __init__(self, client: Client | str, environment: Callable[[], Env]) -> None: ...
    def __init__(self, client: Client | str, environment: Callable[[], Any] | None = None) -> None:
        if isinstance(client, Client) and client.asynchronous:
            raise TypeError(
                "DaskExecutor needs a synchronous client, or the address of the scheduler"
            )
        self._given = client
        self._environment = checked_factory(environment)
        self._name = f"effectflow-{uuid4().hex}"
        self._client: _Client = None
        self._in_progress: dict[anyio.CancelScope, _Future] = {}

    def apply(
        self, function: Callable[[Item], Effect[Env, E, A]], item: Item
    ) -> Effect[object, E | ExecutorError, A]:
        """Return an effect that runs `function(item)` on a worker, and ends as it ends there.

        cloudpickle sends the function and the item, and the value, error or exception that comes back.
        What cannot be pickled is a defect. A defect of the worker carries its traceback as a note.
        Interruption cancels the item on the worker and does not wait for it. An item that computes
        without a pause runs to its end, and its result is dropped.

        The effect fails with WorkerLost if more workers died under the item than the scheduler's setting
        `allowed-failures` allows, and with ExecutorLost if the scheduler cannot be reached or the
        executor was closed in the meantime. An item of an at-most-once step begins on one worker only,
        however Dask loses or moves it.
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
        if self._client is None:
            raise RuntimeError("a DaskExecutor runs items only inside `async with executor:`")
        call = write_call(function, item, scope)
        if self._client.status != "running":
            return TypedFailure(_lost_connection())
        # The dashboard of Dask groups tasks by the part of the key before the dash.
        key = f"{getattr(function, '__name__', 'effect')}-{uuid4().hex}"
        once = reprlib.repr(item) if scope.is_at_most_once else None
        future: Any = self._client.submit(
            answer_in, self._name, key, call, once, key=key, pure=False
        )
        reply = await self._reply(future, item)
        return TypedFailure(reply) if isinstance(reply, ExecutorError) else read_reply(reply)

    async def _reply(self, future: _Future, item: object) -> bytes | ExecutorError:
        """Return the reply, or why none comes. Closing the executor ends the wait."""
        reply: bytes | ExecutorError = ExecutorLost(CLOSED)
        until_closed = anyio.CancelScope()
        self._in_progress[until_closed] = future
        try:
            with until_closed:
                await _end_of(future)
                reply = await to_thread.run_sync(_collect, future, item, abandon_on_cancel=True)
        finally:
            del self._in_progress[until_closed]
            # If the item is still in progress, this cancels it.
            future.release()
        return reply

    async def __aenter__(self) -> Self:
        if self._client is not None:
            raise RuntimeError(
                "this DaskExecutor has already been entered: enter it once, and share it"
            )
        self._client = await to_thread.run_sync(self._connect, running_backend())
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        abandoned = list(self._in_progress.values())
        for wait in self._in_progress:
            wait.cancel()
        await shielded(to_thread.run_sync(self._leave, client, abandoned))

    def _connect(self, backend: Literal["asyncio", "trio"]) -> _Client:
        workplace = Workplace(write_factory(self._environment), backend)
        client: _Client = self._given
        if isinstance(self._given, str):
            try:
                client = Client(self._given, set_as_default=False)
            except OSError as error:
                raise ExecutorLost(f"no Dask scheduler answers at {self._given}") from error
        if client.status != "running":
            raise _lost_connection()
        try:
            _register(client, WorkplaceKeeper(client.id, self._name), self._name)
            _register(client, workplace, self._name)
        except BaseException:
            self._leave(client, [])
            raise
        return client

    def _leave(self, client: _Client, abandoned: list[_Future]) -> None:
        if client.status == "running":
            try:
                # First, so that no worker starts an item without an environment.
                client.cancel(abandoned)
                client.unregister_scheduler_plugin(self._name)
                client.unregister_worker_plugin(self._name)
            except OSError:
                # A worker that cannot be reached is about to end, and its environment with it.
                pass
            except Exception:
                logger.exception("leaving an environment failed on the Dask cluster")
        if not isinstance(self._given, Client):
            client.close()


def _register(client: _Client, plugin: object, name: str) -> None:
    """Register a plugin with the cluster.

    A worker that dies in the meantime makes this fail until the scheduler notices that it is gone.
    """
    for attempt in count():
        try:
            client.register_plugin(plugin, name=name)
        except OSError as error:
            delay = _REGISTER_AGAIN.delay_for_attempt(attempt)
            if delay is None:
                raise ExecutorLost(f"cannot reach a worker of the Dask cluster: {error}") from error
            time.sleep(delay)
        else:
            return


async def _end_of(future: Any) -> None:
    """Wait until Dask is done with a task, however it ended."""
    waiter, call_soon = new_waiter(), call_soon_from_threads()

    def end_wait(_: object) -> None:
        # The event loop may have ended after the wait was cancelled.
        with suppress(RuntimeError):
            call_soon(wake, waiter)

    future.add_done_callback(end_wait)
    await waiter


def _collect(future: _Future, item: object) -> bytes | ExecutorError:
    """Fetch the reply from the worker that has it, or return why none comes."""
    client = future.client
    if client.status in ("closing", "closed"):
        # A closed client may never answer.
        return _lost_connection()
    try:
        return future.result()
    except KilledWorker as killed:
        where = f"at {killed.last_worker.address}"
        return WorkerLost(reprlib.repr(item), killed.allowed_failures + 1, where)
    except CancelledError as lost:
        return ExecutorLost(f"Dask cancelled the item: {' '.join(str(lost).split()).rstrip('.')}")
    except Exception:
        if client.status == "running":
            raise
        return _lost_connection()


def _lost_connection() -> ExecutorLost:
    return ExecutorLost("the connection to the Dask scheduler is lost")


def answer_in(name: str, key: str, call: bytes, once: str | None) -> bytes:
    """Return the reply to a call, from the workplace of this name. Dask runs this as a task.

    `once` is the item, shortened, if it must begin on one worker only; otherwise None.
    """
    if once is not None and not _begin_once(name, key):
        lost = WorkerLost(once, 1, "or was about to end, or has lost its connection")
        return failure_reply(lost)
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


def _begin_once(name: str, key: str) -> bool:
    """Return whether this is the first worker that is about to begin a call.

    Dask gives a task to another worker when the first one has died, is about to end, or cannot be
    reached, and its limit for that applies to the whole cluster. So the scheduler remembers begun calls.
    """
    client: _Client = get_client()
    return client.run_on_scheduler(_begin_on_scheduler, name=name, key=key)


def _begin_on_scheduler(name: str, key: str, dask_scheduler: Any) -> bool:
    keeper: WorkplaceKeeper | None = dask_scheduler.plugins.get(name)
    return keeper is not None and keeper.begin(key)


class Workplace(WorkerPlugin):
    """An environment and an event loop, in a separate thread, on each worker of the cluster.

    Both start with the first call, and end with the executor or with the worker.
    """

    def __init__(self, environment: bytes, backend: Literal["asyncio", "trio"]) -> None:
        self._environment = environment
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
                    manager = portal.wrap_async_context_manager(
                        worker_environment(self._environment)
                    )
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


class WorkplaceKeeper(SchedulerPlugin):
    """Knows which at-most-once calls have begun, and removes the workplaces once their client is gone.

    The client may have been killed.

    Attributes:
        begun: the keys of the at-most-once calls that have begun.
    """

    def __init__(self, client_id: str, name: str) -> None:
        self._client_id = client_id
        self._name = name
        self.begun: set[str] = set()
        self._leaving: asyncio.Task[None] | None = None

    def begin(self, key: str) -> bool:
        """Note that a call begins. Return False if it began before."""
        if key in self.begun:
            return False
        self.begun.add(key)
        return True

    def transition(self, key: Any, start: object, finish: object, **_: object) -> None:
        """Called by the scheduler when the state of a task changes."""
        if finish == "forgotten":
            self.begun.discard(key)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Called by the scheduler when it has lost a client."""
        if client == self._client_id:
            self._leaving = asyncio.create_task(self._leave(scheduler))

    async def _leave(self, scheduler: Any) -> None:
        await scheduler.unregister_worker_plugin(None, self._name)
        scheduler.remove_plugin(self._name)
