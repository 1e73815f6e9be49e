"""The virtual clock: who waits is woken in time, and who no longer waits is forgotten."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from returns.result import Success

from effectflow import Effect, from_fn, par_all, pure, sleep
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio


async def test_timers_that_were_not_needed_take_no_memory() -> None:
    clock = TestClock()

    async def run_in_time(times: int) -> None:
        for _ in range(times):
            await pure(1).timeout(3600).run(None, clock=clock)

    await run_in_time(500)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await run_in_time(5_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000


async def test_timers_that_were_not_needed_change_nothing_for_the_others() -> None:
    clock = TestClock()
    woken: list[float] = []

    def waiting(seconds: float) -> Effect[object, object, object]:
        noted = sleep(seconds).and_then(lambda _: from_fn(lambda _: woken.append(seconds)))
        # Some end long before their time is up.
        return noted.timeout(10_000 - seconds) if seconds < 10 else noted

    for _ in range(300):
        await pure(1).timeout(3600).run(None, clock=clock)
    seconds = [float(17 * n % 1000) for n in range(1000)]
    assert await clock.run(par_all(map(waiting, seconds)), None) == Success([None] * 1000)
    assert woken == sorted(seconds)
    assert clock.monotonic() == 999
