"""Blocking calls: in threads, at most `limit` at once, and never left behind."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread
from returns.result import Success

from effectflow import from_blocking, par, par_all
from effectflow.effects import from_fn

pytestmark = pytest.mark.anyio

REQUEST = ContextVar("REQUEST", default="none")


async def test_the_event_loop_continues_while_a_blocking_call_waits_for_it() -> None:
    went_on = threading.Event()
    waiting = from_blocking(lambda _: (went_on.wait(60), threading.current_thread()))
    (is_set, thread), _ = (await par(waiting, from_fn(lambda _: went_on.set())).run(None)).unwrap()

    assert is_set, "the loop goes on meanwhile"
    assert thread is not threading.current_thread()


async def test_no_more_than_40_blocking_calls_run_at_once() -> None:
    lock, all_run = threading.Lock(), threading.Barrier(40)
    running, most = 0, 0

    def call(_: object) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_run.wait(60)
        with lock:
            running -= 1

    await par_all([from_blocking(call)] * 80).run(None)

    assert most == 40


async def test_a_blocking_call_gives_its_value_raises_its_defect_and_sees_the_context() -> None:
    bug = ValueError("bug")

    def broken(_: object) -> None:
        raise bug

    token = REQUEST.set("r1")
    try:
        assert await from_blocking(lambda env: f"{env} {REQUEST.get()}").run("e") == Success("e r1")
    finally:
        REQUEST.reset(token)
    with pytest.raises(ValueError, match="bug") as caught:
        await from_blocking(broken).run(None)
    assert caught.value is bug


async def test_interruption_waits_for_a_blocking_call_and_not_for_its_turn() -> None:
    log: list[str] = []
    may_end = threading.Event()
    limiter = to_thread.current_default_thread_limiter()

    def call(_: object) -> None:
        may_end.wait(60)
        log.append("ended")

    async def interrupt(calls: anyio.CancelScope) -> None:
        while not limiter.statistics().tasks_waiting:
            await anyio.lowlevel.checkpoint()
        calls.cancel()
        await anyio.wait_all_tasks_blocked()
        log.append("interrupted")
        may_end.set()

    tokens, limiter.total_tokens = limiter.total_tokens, 1
    try:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as calls:
            tasks.start_soon(interrupt, calls.cancel_scope)
            calls.start_soon(from_blocking(call).run, None)
            calls.start_soon(from_blocking(call).run, None)
    finally:
        limiter.total_tokens = tokens

    assert log == ["interrupted", "ended"]
