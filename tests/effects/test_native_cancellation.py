"""Finalizers and brackets under asyncio's own cancellation, which no scope of anyio's can shield."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from effectflow import Effect, bracket, from_async, from_fn, par, pure, sleep

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


async def test_many_cancellations_cut_off_no_finalizer() -> None:
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
