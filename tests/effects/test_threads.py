"""Worker threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextvars import ContextVar

import anyio
import pytest
from anyio import CapacityLimiter

from effectflow.effects.threads import in_thread
from tests.apps import both_backends

pytestmark = pytest.mark.anyio

name: ContextVar[str] = ContextVar("name", default="")


@both_backends
async def test_a_function_sees_the_context_of_its_caller() -> None:
    name.set("caller")
    assert await in_thread(name.get, CapacityLimiter(1)) == "caller"


@both_backends
@pytest.mark.parametrize("error", [ValueError("a"), SystemExit(3), KeyboardInterrupt()])
async def test_the_exception_of_a_function_is_raised(error: BaseException) -> None:
    def f() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await in_thread(f, CapacityLimiter(1))
    assert caught.value is error


@both_backends
async def test_a_function_that_raises_stop_iteration_does_not_hang() -> None:
    with anyio.fail_after(10), pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(iter(()).__next__, CapacityLimiter(1))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_calls_one_after_another_use_one_daemon_thread() -> None:
    limiter = CapacityLimiter(1)
    threads = {await in_thread(threading.current_thread, limiter) for _ in range(50)}
    assert len(threads) == 1
    assert all(thread.daemon for thread in threads)


@both_backends
async def test_the_wait_for_the_limiter_can_be_cancelled_and_a_call_cannot() -> None:
    limiter, may_end = CapacityLimiter(1), threading.Event()
    ended: list[str] = []

    async def call() -> None:
        ended.append(await in_thread(lambda: str(may_end.wait(10)), limiter))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        threading.Timer(0.1, may_end.set).start()
    assert ended == ["True"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_continues_without_a_caller_that_asyncio_cancelled() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def f() -> None:
        may_end.wait(10)
        has_ended.set()

    task = asyncio.create_task(in_thread(f, CapacityLimiter(1)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    assert has_ended.wait(10)
    # Its thread can be used again.
    assert await in_thread(lambda: 1, CapacityLimiter(1)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    async def call() -> int:
        return await in_thread(os.getpid, CapacityLimiter(1))

    assert asyncio.run(call()) == os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if asyncio.run(call()) == os.getpid() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
