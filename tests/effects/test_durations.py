"""A duration is a number of seconds, or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta

import pytest
from returns.result import Failure, Success

from effectflow import Effect, RetryPolicy, TimedOut, never, now, sleep, step
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def test_sleep_takes_a_timedelta() -> None:
    began = TestClock().now()

    woken = await TestClock().run(sleep(HOUR).and_then(lambda _: now()), None)

    assert woken == Success(began + HOUR)


async def test_a_timeout_takes_a_timedelta() -> None:
    @step(timeout=HOUR)
    def wait() -> Effect[object, TimedOut, None]:
        return never()

    for effect in (never().timeout(HOUR), wait()):
        match await TestClock().run(effect, None):
            case Failure(TimedOut() as error):
                assert error.seconds == 3600
            case other:
                pytest.fail(f"it ended with {other}")


def test_a_retry_policy_takes_timedeltas() -> None:
    policy = RetryPolicy.exponential(timedelta(seconds=1)).with_max_delay(timedelta(seconds=3))

    assert policy == RetryPolicy.exponential(1).with_max_delay(3)
    assert policy.with_max_elapsed(HOUR) == policy.with_max_elapsed(3600)
