"""Policies are values; retrying does what they say, in virtual time."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from effectflow import (
    Effect,
    RetryExhausted,
    RetryPolicy,
    TimedOut,
    fail,
    now,
    par,
    pure,
    sleep,
    step,
)
from effectflow.effects import FailedAttempt, TracedError, die, from_async, from_fn, never
from effectflow.testing import TestClock

AnyEffect = Effect[object, Any, Any]
anyio_test = pytest.mark.anyio

CONSTRUCTORS = [
    RetryPolicy.constant,
    RetryPolicy.linear,
    RetryPolicy.exponential,
    RetryPolicy.fibonacci,
]


def failing_times(count: int) -> AnyEffect:
    """Return an effect that fails `count` times, with "no 1", "no 2" and so on, and then succeeds."""
    runs = 0

    def attempt(_: object) -> AnyEffect:
        nonlocal runs
        runs += 1
        return fail(f"no {runs}") if runs <= count else pure(f"yes after {runs}")

    return from_fn(attempt).and_then(lambda effect: effect)


# Policies.


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy.constant(2.0), [2.0, 2.0, 2.0, 2.0, 2.0]),
        (RetryPolicy.linear(2.0), [2.0, 4.0, 6.0, 8.0, 10.0]),
        (RetryPolicy.exponential(2.0), [2.0, 4.0, 8.0, 16.0, 32.0]),
        (RetryPolicy.fibonacci(2.0), [2.0, 2.0, 4.0, 6.0, 10.0]),
        (RetryPolicy.exponential(2.0).with_max_delay(5.0), [2.0, 4.0, 5.0, 5.0, 5.0]),
    ],
)
def test_the_shapes_of_delays(policy: RetryPolicy, delays: list[float]) -> None:
    bounded = policy.with_max_retries(5)

    assert [bounded.delay_for_attempt(i) for i in range(7)] == [*delays, None, None]
    assert list(bounded.delays()) == delays


policies = st.builds(
    lambda make, base, most, retries: make(base).with_max_delay(most).with_max_retries(retries),
    st.sampled_from(CONSTRUCTORS),
    st.floats(0, 100),
    st.floats(0, 200),
    st.integers(0, 30),
)


@given(policies, st.integers(), st.floats(0, 1))
def test_jitter_keeps_to_its_bounds_and_to_its_seed(
    policy: RetryPolicy, seed: int, proportion: float
) -> None:
    plain = list(policy.delays())

    for delay, at_most in zip(policy.with_full_jitter().delays(), plain, strict=True):
        assert 0 <= delay <= at_most
    for delay, middle in zip(policy.with_jitter(proportion).delays(), plain, strict=True):
        assert (1 - proportion) * middle <= delay * (1 + 1e-9)
        assert delay <= min((1 + proportion) * middle * (1 + 1e-9), policy.max_delay)
    before = policy.base
    for delay in policy.with_decorrelated_jitter().delays():
        assert (
            min(policy.base, policy.max_delay)
            <= delay
            <= min(max(before, policy.base) * 3, policy.max_delay) * (1 + 1e-9) + policy.base
        )
        before = delay

    for jittered in (
        policy.with_jitter(proportion),
        policy.with_full_jitter(),
        policy.with_decorrelated_jitter(),
    ):
        seeded = jittered.with_seed(seed)
        assert list(seeded.delays()) == list(seeded.delays())
        by_number = [seeded.delay_for_attempt(i) for i in range(len(plain) + 1)]
        assert by_number == [*seeded.delays(), None]


@given(policies, st.integers())
def test_who_counts_the_attempts_is_told_the_same_delays(policy: RetryPolicy, seed: int) -> None:
    jittered = (
        policy,
        policy.with_jitter(),
        policy.with_full_jitter(),
        policy.with_decorrelated_jitter(),
    )
    for seeded in (one.with_seed(seed) for one in jittered):
        delays = list(seeded.delays())
        told = [seeded.next_delay(attempt, 0.0) for attempt in range(len(delays) + 1)]
        assert told == [*delays, None]
    for drawn in jittered:
        assert [drawn.next_delay(attempt, 0.0) is None for attempt in (0, 29, 30)] == [
            attempt >= len(list(policy.delays())) for attempt in (0, 29, 30)
        ]


def test_who_counts_the_attempts_is_told_when_time_is_up() -> None:
    policy = RetryPolicy.constant(2.0).with_max_elapsed(10.0)

    assert policy.next_delay(0, 8.0) == 2.0
    assert policy.next_delay(0, 8.5) is None


@given(st.sampled_from(CONSTRUCTORS), st.floats(0, 1e308), st.integers(0, 10**12))
def test_delays_are_capped_and_never_overflow(make: Any, base: float, attempt: int) -> None:
    delay = make(base).without_bound().delay_for_attempt(attempt)

    assert delay is not None
    assert 0 <= delay <= 365 * 24 * 3600


@pytest.mark.parametrize("make", CONSTRUCTORS)
def test_an_invalid_policy_is_rejected(make: Any) -> None:
    for delay in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="delay"):
            make(delay)
    with pytest.raises(ValueError, match="max_retries"):
        make(1.0).with_max_retries(-1)
    with pytest.raises(ValueError, match="jitter"):
        make(1.0).with_jitter(1.5)
    with pytest.raises(ValueError, match="from 0"):
        make(1.0).with_max_retries(1).delay_for_attempt(-1)


def test_a_policy_needs_a_bound() -> None:
    with pytest.raises(ValueError, match="without_bound"):
        pure(1).retry(RetryPolicy.constant(1.0))

    for bounded in (
        RetryPolicy.constant(1.0).with_max_retries(1),
        RetryPolicy.constant(1.0).with_max_elapsed(1.0),
        RetryPolicy.constant(1.0).without_bound(),
    ):
        assert pure(1).retry(bounded).run_sync(None) == Success(1)


# Retrying.


@anyio_test
async def test_success_gives_the_plain_value() -> None:
    clock = TestClock()
    policy = RetryPolicy.exponential(1.0).with_max_retries(5)

    assert await clock.run(failing_times(3).retry(policy), None) == Success("yes after 4")
    assert clock.monotonic() == 1 + 2 + 4


@anyio_test
async def test_exhaustion_carries_the_last_error_attempts_and_time() -> None:
    policy = RetryPolicy.linear(10.0).with_max_retries(2)
    exhausted = (await TestClock().run(failing_times(9).retry(policy), None)).failure()

    assert isinstance(exhausted, RetryExhausted)
    assert (exhausted.error, exhausted.attempts, exhausted.elapsed) == ("no 3", 3, 30.0)
    assert "3 times" in str(exhausted)


@anyio_test
async def test_no_attempt_begins_after_the_total_time() -> None:
    policy = RetryPolicy.constant(10.0).with_max_elapsed(35.0)
    exhausted = (await TestClock().run(failing_times(99).retry(policy), None)).failure()

    assert (exhausted.attempts, exhausted.elapsed) == (4, 30.0)


@anyio_test
async def test_when_selects_the_failures_to_retry() -> None:
    policy = RetryPolicy.constant(1.0).with_max_retries(9)
    retried = failing_times(5).retry(policy, retryable=lambda error: error != "no 3")

    assert await TestClock().run(retried, None) == Failure("no 3")


@anyio_test
async def test_hooks_see_each_failure_and_the_last_one_too() -> None:
    seen: list[FailedAttempt[Any]] = []
    effects: list[str] = []

    def hook(failed: FailedAttempt[Any]) -> Effect[object, Any, object] | None:
        seen.append(failed)
        return from_fn(lambda _: effects.append("run")) if failed.attempt == 2 else None

    policy = RetryPolicy.constant(5.0).with_max_retries(2)
    await TestClock().run(failing_times(9).retry(policy, on_retry=hook), None)

    assert seen == [
        FailedAttempt("no 1", 1, 5.0, 0.0),
        FailedAttempt("no 2", 2, 5.0, 5.0),
        FailedAttempt("no 3", 3, None, 10.0),
    ]
    assert effects == ["run"]


@anyio_test
async def test_a_hook_sees_the_failure_that_is_not_worth_another_attempt() -> None:
    seen: list[FailedAttempt[Any]] = []
    policy = RetryPolicy.constant(5.0).with_max_retries(9)
    retried = failing_times(9).retry(
        policy, retryable=lambda error: error != "no 2", on_retry=lambda failed: seen.append(failed)
    )

    assert await TestClock().run(retried, None) == Failure("no 2")
    assert seen == [FailedAttempt("no 1", 1, 5.0, 0.0), FailedAttempt("no 2", 2, None, 5.0)]


@anyio_test
async def test_a_hook_that_fails_is_a_defect() -> None:
    lost = OSError("disk full")

    def hook(_: object) -> AnyEffect:
        return fail(lost)

    policy = RetryPolicy.constant(0.0).with_max_retries(2)
    with pytest.raises(TypeError, match="on_retry failed with OSError") as caught:
        await failing_times(1).retry(policy, on_retry=hook).run(None)

    assert caught.value.__cause__ is lost


@anyio_test
async def test_defects_are_not_retried() -> None:
    runs: list[int] = []
    buggy = from_fn(lambda _: runs.append(1)).and_then(lambda _: die(ValueError("bug")))
    with pytest.raises(ValueError, match="bug"):
        await buggy.retry(RetryPolicy.constant(0).with_max_retries(5)).run(None)

    assert runs == [1]


@anyio_test
async def test_interruption_during_a_delay_is_immediate() -> None:
    policy = RetryPolicy.constant(3600.0).with_max_retries(5)
    with anyio.move_on_after(0.01) as scope, anyio.fail_after(30):
        await fail("no").retry(policy).run(None)

    assert scope.cancelled_caught


@anyio_test
async def test_a_trail_survives_retrying() -> None:
    policy = RetryPolicy.constant(0.0).with_max_retries(1)
    traced = (
        await fail("no").context("inner").retry(policy).context("outer").traced().run(None)
    ).failure()

    assert isinstance(traced, TracedError)
    assert traced.trail == ("inner", "outer")
    assert traced.error.error == "no"


# Timeouts.


@anyio_test
async def test_a_timeout_cancels_cleans_up_and_says_how_long() -> None:
    log: list[str] = []
    slow = sleep(60).on_exit(from_fn(lambda _: log.append("cleaned up"))).timeout(5)
    clock = TestClock()
    timed_out = (await clock.run(slow, None)).failure()

    assert timed_out.seconds == 5
    assert (clock.monotonic(), log) == (5.0, ["cleaned up"])


@anyio_test
async def test_an_effect_that_ends_in_time_does_not_time_out() -> None:
    assert await TestClock().run(sleep(4).map(lambda _: "done").timeout(5), None) == Success("done")
    assert await TestClock().run(fail("no").timeout(5), None) == Failure("no")
    assert await pure("at once").timeout(0).run(None) == Success("at once")


@anyio_test
async def test_the_inner_of_nested_timeouts_may_be_the_longer_one() -> None:
    for inner, outer, expected in ((2, 9, 2), (9, 2, 2)):
        nested = sleep(60).timeout(inner).timeout(outer)
        assert (await TestClock().run(nested, None)).failure().seconds == expected


@anyio_test
async def test_a_timeout_in_real_time() -> None:
    with anyio.fail_after(30):
        slow: AnyEffect = from_async(lambda _: anyio.sleep_forever())
        assert (await slow.timeout(0.01).run(None)).failure().seconds == 0.01


def test_a_timeout_that_is_not_a_duration_is_rejected() -> None:
    for seconds in (-1.0, math.nan):
        with pytest.raises(ValueError, match="timeout"):
            pure(1).timeout(seconds)


# A duration is a number of seconds, or a `timedelta`.


HOUR = timedelta(hours=1)


@anyio_test
async def test_sleep_takes_a_timedelta() -> None:
    began = TestClock().now()

    woken = await TestClock().run(sleep(HOUR).and_then(lambda _: now()), None)

    assert woken == Success(began + HOUR)


@anyio_test
@pytest.mark.parametrize("duration", [0, -1, -0.5, timedelta(seconds=-1)])
async def test_a_sleep_until_the_past_gives_other_tasks_a_turn_on_every_clock(
    duration: float | timedelta,
) -> None:
    for clock in (None, TestClock()):
        turns: list[str] = []
        other = from_fn(lambda _, turns=turns: turns.append("other"))
        slept = sleep(duration).map(lambda _, turns=turns: turns.append("slept"))

        assert await par(slept, other).run(None, clock=clock) == Success((None, None))
        assert sorted(turns) == ["other", "slept"]
        assert clock is None or clock.monotonic() == 0


def test_a_sleep_that_is_not_a_duration_is_rejected() -> None:
    with pytest.raises(ValueError, match="sleep"):
        sleep(math.nan)


@anyio_test
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
