"""The virtual clock: who waits is woken in time, and who no longer waits is forgotten."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from returns.result import Success

from effectflow import Do, Effect, do, par, par_all, pure, sleep
from effectflow.effects import from_async, from_fn
from effectflow.testing import TestClock
from tests.apps import both_backends
from tests.memory import memory_held, memory_traced

pytestmark = [pytest.mark.anyio, both_backends]


async def test_timers_that_were_not_needed_take_no_memory() -> None:
    clock = TestClock()

    async def run_in_time(times: int) -> None:
        for _ in range(times):
            await pure(1).timeout(3600).run(None, clock=clock)

    with memory_traced():
        await run_in_time(500)
        before = memory_held()
        await run_in_time(2_000)
        assert memory_held() - before < 2_000 * 8


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


async def test_a_limit_of_zero_seconds_expires_without_advancing_the_clock() -> None:
    clock = TestClock()
    with anyio.fail_after(30):
        with clock.move_on_after(0) as limit:
            await anyio.sleep_forever()
    assert limit.cancelled_caught


@do
def polling(times: int) -> Do[object, object, None]:
    for _ in range(times):
        yield from sleep(60)


async def test_a_poll_takes_few_turns_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    checkpoint = anyio.lowlevel.checkpoint

    async def counted() -> None:
        nonlocal turns
        turns += 1
        await checkpoint()

    monkeypatch.setattr(anyio.lowlevel, "checkpoint", counted)
    clock = TestClock()
    await clock.run(polling(1000), None)
    assert clock.monotonic() == 60_000
    assert turns < 6 * 1000


async def end_of_a_relay(runners: int) -> float:
    """Return the time at which the last of some tasks ended. The first starts after a second."""
    clock = TestClock()
    passed = [anyio.Event() for _ in range(runners)]
    times: list[float] = []

    async def run(number: int) -> None:
        if number == 0:
            await clock.sleep(1)
        else:
            await passed[number - 1].wait()
        passed[number].set()
        times.append(clock.monotonic())

    tasks = [from_async(lambda _, number=number: run(number)) for number in range(runners)]
    await clock.run(par_all([sleep(1.5), *reversed(tasks)]), None)
    return times[-1]


async def test_it_waits_for_tasks_that_wake_one_another() -> None:
    assert {await end_of_a_relay(20) for _ in range(50)} == {1}


async def test_a_task_that_never_waits_does_not_stop_the_clock() -> None:
    clock = TestClock()

    async def until_later(_: object) -> None:
        while clock.monotonic() < 100:
            await anyio.lowlevel.checkpoint()

    assert await clock.run(par(from_async(until_later), sleep(100)), None) == Success((None, None))
