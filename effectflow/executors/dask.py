"""Run items on a Dask cluster, for work that is too large for one machine."""

from __future__ import annotations

import logging
import reprlib
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, overload
from uuid import uuid4

import anyio
from anyio import to_thread
from distributed import Client
from distributed.scheduler import KilledWorker

from effectflow.effects import Effect, ExecutorError, ExecutorLost, RetryPolicy, WorkerLost
from effectflow.effects.event_loop import new_waiter, running_backend, shielded
from effectflow.effects.nodes import Failed, Perform
from effectflow.effects.scope import Scope
from effectflow.executors.dask_worker import CLOSED, Workplace, WorkplaceRemover, answer_in
from effectflow.executors.remote_call import checked_factory, read_reply, write_call, write_factory

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


class DaskExecutor(Generic[Env]):
    """Runs items on the workers of a Dask cluster.

    Use it in `async with`, under asyncio or trio. Install the same version of effectflow on the scheduler
    and on the workers.

    Parameters:
        client: the address of the scheduler, or a synchronous `distributed.Client`, which stays open.
        make_env: makes the environment on a worker, once per worker process, before its first item. It
            may return an async context manager, which is entered, and left when the executor is closed.
            By default the environment is None.

    Entering the block raises ExecutorLost if no scheduler answers.
    """

    @overload
    def __init__(self: DaskExecutor[None], client: Client | str, make_env: None = None) -> None: ...
    @overload
    def __init__(
        self, client: Client | str, make_env: Callable[[], AbstractAsyncContextManager[Env]]
    ) -> None: ...
    @overload
    def __init__(self, client: Client | str, make_env: Callable[[], Env]) -> None: ...
    def __init__(self, client: Client | str, make_env: Callable[[], Any] | None = None) -> None:
        if isinstance(client, Client) and client.asynchronous:
            raise TypeError(
                "DaskExecutor needs a synchronous client, or the address of the scheduler"
            )
        self._given = client
        self._make_env = checked_factory(make_env)
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
        executor was closed in the meantime.
        """
        return Perform(partial(self._perform, function, item), ("apply", function, item))

    async def _perform(
        self,
        function: Callable[[Any], Effect[Any, Any, Any]],
        item: object,
        _env: object,
        scope: Scope,
    ) -> Any:
        if self._client is None:
            raise RuntimeError("a DaskExecutor runs items only inside `async with executor:`")
        call = write_call(function, item, scope)
        if self._client.status != "running":
            return Failed(_lost_connection())
        # The dashboard of Dask groups tasks by the part of the key before the dash.
        key = f"{getattr(function, '__name__', 'effect')}-{uuid4().hex}"
        future: Any = self._client.submit(answer_in, self._name, key, call, key=key, pure=False)
        reply = await self._reply(future, item)
        return Failed(reply) if isinstance(reply, ExecutorError) else read_reply(reply)

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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        abandoned = list(self._in_progress.values())
        for wait in self._in_progress:
            wait.cancel()
        await shielded(to_thread.run_sync(self._leave, client, abandoned))

    def _connect(self, backend: Literal["asyncio", "trio"]) -> _Client:
        workplace = Workplace(write_factory(self._make_env), backend)
        client = self._given if isinstance(self._given, Client) else _connected(self._given)
        if client.status != "running":
            raise _lost_connection()
        try:
            _register(client, WorkplaceRemover(client.id, self._name), self._name)
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


def _connected(address: str) -> _Client:
    try:
        return Client(address, set_as_default=False)
    except OSError as error:
        raise ExecutorLost(f"no Dask scheduler answers at {address}") from error


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
    waiter = new_waiter()

    def wake(_: object) -> None:
        # The event loop may have ended after the wait was cancelled.
        with suppress(RuntimeError):
            waiter.call_soon(waiter.wake)

    future.add_done_callback(wake)
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
