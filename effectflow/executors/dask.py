"""Items run on a Dask cluster, for work that one machine is too small for."""

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
from effectflow.executors.call import read_reply, write_call
from effectflow.executors.dask_worker import CLOSED, Departure, Workplace, answer_in
from effectflow.executors.environment import factory_or_none, write_factory

__all__ = ["DaskExecutor"]

logger = logging.getLogger(__name__)

_PATIENCE = RetryPolicy.exponential(0.1).with_max_retries(6)
"""While the scheduler finds out that a worker is gone: 6.3 seconds in all."""

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")

_Client: TypeAlias = Any
"""A `distributed.Client`, whose own types are in part unknown to the checkers."""

_Future: TypeAlias = Any
"""A `distributed.Future`, of which the same is true."""


class DaskExecutor(Generic[Env]):
    """Runs items on the workers of a Dask cluster.

    It lives within `async with`, under asyncio or trio. effectflow has to be installed on the scheduler
    and on the workers, in the same version.

    Parameters:
        client: the address of the scheduler, or a `distributed.Client` that is not asynchronous, which
            stays open.
        make_env: makes the environment on a worker: once for each of its processes, before the first
            item. It may give an async context manager, which is left when the executor is closed. If
            not given, the environment is None.

    Entering fails (raises) with ExecutorLost if no scheduler answers.
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
                "DaskExecutor needs a client that is not asynchronous, or the scheduler's address"
            )
        self._given = client
        self._make_env = factory_or_none(make_env)
        self._name = f"effectflow-{uuid4().hex}"
        self._client: _Client = None
        self._under_way: dict[anyio.CancelScope, _Future] = {}

    def apply(
        self, function: Callable[[Item], Effect[Env, E, A]], item: Item
    ) -> Effect[object, E | ExecutorError, A]:
        """Runs `function(item)` on a worker, and ends as it ends there.

        Function and item travel pickled, by cloudpickle; so do the value, the error and the exception
        that come back. What cannot be pickled is a defect. A defect of the worker has its traceback as a
        note. Interruption cancels the item there and does not wait for it; an item that computes without
        a pause goes on to its end, and what it gives is dropped.

        Fails with WorkerLost when more workers died under it than the scheduler's setting
        `allowed-failures` says, and with ExecutorLost when the scheduler is out of reach, or the executor
        was closed meanwhile.
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
            raise RuntimeError("a DaskExecutor runs items only within `async with executor:`")
        call = write_call(function, item, scope)
        if self._client.status != "running":
            return Failed(_lost_connection())
        # Dask groups tasks by what stands before the dash, and shows the groups.
        key = f"{getattr(function, '__name__', 'effect')}-{uuid4().hex}"
        future: Any = self._client.submit(answer_in, self._name, key, call, key=key, pure=False)
        reply = await self._reply(future, item)
        return Failed(reply) if isinstance(reply, ExecutorError) else read_reply(reply)

    async def _reply(self, future: _Future, item: object) -> bytes | ExecutorError:
        """The reply, or why there is none. Closing the executor ends the wait for it."""
        reply: bytes | ExecutorError = ExecutorLost(CLOSED)
        until_closed = anyio.CancelScope()
        self._under_way[until_closed] = future
        try:
            with until_closed:
                await _end_of(future)
                reply = await to_thread.run_sync(_collect, future, item, abandon_on_cancel=True)
        finally:
            del self._under_way[until_closed]
            # Nobody wants it any more: if it is under way, this cancels it.
            future.release()
        return reply

    async def __aenter__(self) -> Self:
        if self._client is not None:
            raise RuntimeError("this DaskExecutor is entered already: enter it once, and share it")
        self._client = await to_thread.run_sync(self._connect, running_backend())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        unwanted = list(self._under_way.values())
        for wait in self._under_way:
            wait.cancel()
        await shielded(to_thread.run_sync(self._leave, client, unwanted))

    def _connect(self, backend: Literal["asyncio", "trio"]) -> _Client:
        workplace = Workplace(write_factory(self._make_env), backend)
        client = self._given if isinstance(self._given, Client) else _connected(self._given)
        if client.status != "running":
            raise _lost_connection()
        try:
            _register(client, Departure(client.id, self._name), self._name)
            _register(client, workplace, self._name)
        except BaseException:
            self._leave(client, [])
            raise
        return client

    def _leave(self, client: _Client, unwanted: list[_Future]) -> None:
        if client.status == "running":
            try:
                # First, so that no worker is given what it then has no environment for.
                client.cancel(unwanted)
                client.unregister_scheduler_plugin(self._name)
                client.unregister_worker_plugin(self._name)
            except OSError:
                # A worker that cannot be told is about to end, and its environment with it.
                pass
            except Exception:
                logger.exception("an environment was not left as it should be")
        if not isinstance(self._given, Client):
            client.close()


def _connected(address: str) -> _Client:
    try:
        return Client(address, set_as_default=False)
    except OSError as error:
        raise ExecutorLost(f"no Dask scheduler answers at {address}") from error


def _register(client: _Client, plugin: object, name: str) -> None:
    """Make a plugin known to the cluster.

    A worker that dies just then makes this fail, and a little later the scheduler knows that it is gone.
    """
    for attempt in count():
        try:
            client.register_plugin(plugin, name=name)
        except OSError as error:
            delay = _PATIENCE.delay_for_attempt(attempt)
            if delay is None:
                raise ExecutorLost(
                    f"a worker of the Dask cluster cannot be reached: {error}"
                ) from error
            time.sleep(delay)
        else:
            return


async def _end_of(future: Any) -> None:
    """Wait until Dask is done with it, one way or the other."""
    waiter = new_waiter()

    def wake(_: object) -> None:
        # When the wait was cancelled, its event loop may have ended.
        with suppress(RuntimeError):
            waiter.call_soon(waiter.wake)

    future.add_done_callback(wake)
    await waiter


def _collect(future: _Future, item: object) -> bytes | ExecutorError:
    """The reply, fetched from the worker that has it, or why there is none."""
    client = future.client
    if client.status in ("closing", "closed"):
        # It may never answer.
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
