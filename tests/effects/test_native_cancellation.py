"""Finalizers and brackets under asyncio's own cancellation, which no scope of anyio's can shield."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from anyio import to_thread

from effectflow import Effect, bracket, from_blocking, par, par_all, par_traverse, pure, race, sleep
from effectflow.effects import from_async, from_fn, par_reduce

pytestmark = pytest.mark.asyncio

AnyEffect = Effect[object, Any, Any]


def turns(log: list[str], text: str) -> AnyEffect:
    """Takes three turns of the loop, and writes down each."""

    async def perform(_: object) -> None:
        for turn in range(3):
            log.append(f"{text} {turn}")
            await asyncio.sleep(0)
        log.append(f"{text} done")

    return from_async(perform)


async def cancelled(effect: AnyEffect, log: list[str], *, when: Callable[[int], bool]) -> None:
    """Run it in a task that is cancelled whenever the log has a length that `when` likes."""
    task = asyncio.create_task(effect.run(None))
    seen = -1
    while not task.done():
        if len(log) != seen and when(len(log)):
            seen = len(log)
            task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_resource_is_released_once_wherever_the_cancellation_lands(at: int) -> None:
    log: list[str] = []
    effect = bracket(
        turns(log, "acquire"), lambda _: turns(log, "release"), lambda _: turns(log, "use")
    ).on_exit(turns(log, "outer"))
    await cancelled(effect, log, when=lambda length: length == at)

    assert log.count("acquire done") == log.count("release done") == log.count("outer done") == 1
    assert log[-1] == "outer done"


async def test_repeated_cancellations_do_not_interrupt_a_finalizer() -> None:
    log: list[str] = []
    effect = turns(log, "work").on_exit(turns(log, "inner")).on_exit(turns(log, "outer"))
    await cancelled(effect, log, when=lambda length: length >= 1)

    assert log[-8:] == [
        *(f"inner {turn}" for turn in range(3)),
        "inner done",
        *(f"outer {turn}" for turn in range(3)),
        "outer done",
    ]


async def test_children_are_cancelled_and_cleaned_up() -> None:
    log: list[str] = []
    child: AnyEffect = sleep(60).on_exit(turns(log, "child"))
    task = asyncio.create_task(par(child, child).run(None))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.count("child done") == 2


class Call:
    """A blocking call that lasts until `may_end` is set."""

    def __init__(self, log: list[str]) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = threading.Event()
        self._log = log
        self._loop = asyncio.get_running_loop()

    def __call__(self, _: object) -> None:
        self._loop.call_soon_threadsafe(self.has_begun.set)
        assert self.may_end.wait(60)
        self._log.append("call ended")


async def test_a_resource_is_not_released_while_a_blocking_call_uses_it() -> None:
    log: list[str] = []
    call = Call(log)
    releasing = from_fn(lambda _: log.append("released"))
    task = asyncio.create_task(
        bracket(pure(1), lambda _: releasing, lambda _: from_blocking(call)).run(None)
    )
    await call.has_begun.wait()
    for _ in range(10):
        task.cancel()
        await asyncio.sleep(0)
    assert (log, task.done()) == ([], False)
    call.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["call ended", "released"]


async def test_a_blocking_call_that_waits_for_its_turn_is_not_begun() -> None:
    log: list[str] = []
    to_thread.current_default_thread_limiter().total_tokens = 1
    first, second = Call(log), Call(log)
    running = asyncio.create_task(from_blocking(first).run(None))
    await first.has_begun.wait()
    waiting = asyncio.create_task(from_blocking(second).run(None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.may_end.set()
    await running
    # A turn that was given up is free again.
    second.may_end.set()
    await from_blocking(second).run(None)
    assert log == ["call ended"] * 2


async def test_a_timeout_of_asyncio_within_a_finalizer_works() -> None:
    async def impatient(_: object) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            log.append("gave up")
        return "done"

    log: list[str] = []
    await (
        pure(1).on_exit(from_async(impatient).and_then(lambda _: from_fn(lambda _: None))).run(None)
    )
    assert log == ["gave up"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "effect",
    [
        par(sleep(60), pure(2).and_then(pure)),
        race(sleep(60), sleep(60)),
        par_all([sleep(60), sleep(60)]),
        par_traverse([1, 2], lambda _: sleep(60)),
        par_traverse([1, 2, 3], lambda _: sleep(60), limit=2),
        par_reduce([1, 2], lambda _: sleep(60), lambda _: sleep(60), limit=2),
        par(par(sleep(60), sleep(60))),
    ],
    ids=repr,
)
async def test_children_that_are_cancelled_before_they_begin_cancel_their_operator(
    effect: AnyEffect, count: int
) -> None:
    # As asyncio.run does with all tasks at its end.
    others = asyncio.all_tasks()
    running = asyncio.create_task(effect.run(None))
    children: set[asyncio.Task[Any]] = set()
    while not children:
        await asyncio.sleep(0)
        children = asyncio.all_tasks() - others - {running}
    victims = list(children)[:count]
    while victims:
        victims.pop().cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([running])
    assert running.cancelled()
    # Now, while the warning about their coroutines is ignored.
    children.clear()
    gc.collect()


@pytest.mark.parametrize("operator", [par, race])
async def test_a_coroutine_that_waits_for_children_can_be_closed(
    operator: Callable[..., AnyEffect],
) -> None:
    others = asyncio.all_tasks()
    running = operator(sleep(0.01), sleep(0.01)).run(None)
    running.send(None)
    running.close()
    # The children end by themselves, because nothing can wait for them.
    await asyncio.wait(asyncio.all_tasks() - others)
