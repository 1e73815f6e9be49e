"""Retries. A policy is a value that can be inspected without waiting.

Full and decorrelated jitter come from Marc Brooker's "Exponential Backoff And Jitter".
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from effectflow.effects.arguments import BaseEffect, check_count, check_type, holds
from effectflow.effects.clock import Duration, in_seconds
from effectflow.effects.errors import RetryExhausted
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure, refuse_failure

if TYPE_CHECKING:
    # Imported when a delay is drawn, because many programs never retry.
    from random import Random

E = TypeVar("E")
AnEffect = TypeVar("AnEffect", bound=BaseEffect)

_LONGEST = 365 * 24 * 3600.0
"""The seconds that no delay exceeds."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of retries and their delays. Immutable; each method returns a new policy.

    Create one with `constant`, `linear`, `exponential` or `fibonacci`. It needs a bound before it is
    used: `with_max_retries`, `with_max_elapsed`, or explicitly `without_bound`. Delays are seconds, or a
    `timedelta`.

    Example:
        >>> policy = RetryPolicy.exponential(0.1).with_max_retries(4).with_max_delay(0.5)
        >>> [policy.delay_for_attempt(i) for i in range(5)]
        [0.1, 0.2, 0.4, 0.5, None]
    """

    shape: Literal["constant", "linear", "exponential", "fibonacci"]
    base: float
    max_retries: int | None = None
    max_delay: float = _LONGEST
    max_elapsed: float | None = None
    is_unbounded: bool = False
    jitter: Literal["none", "proportional", "full", "decorrelated"] = "none"
    proportion: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        times = {"the delay": self.base, "max_delay": self.max_delay}
        for what, seconds in (times | {"max_elapsed": self.max_elapsed or 0.0}).items():
            if not seconds >= 0 or math.isinf(seconds):
                raise ValueError(f"{what} must be 0 seconds or more, not {seconds}")
        if self.max_retries is not None:
            check_count("max_retries", self.max_retries, least=0)
        if not 0 <= self.proportion <= 1:
            raise ValueError(f"a jitter must be from 0 to 1, not {self.proportion}")

    def __repr__(self) -> str:
        calls = [f"{self.shape}({self.base})"]
        if self.max_retries is not None:
            calls.append(f"with_max_retries({self.max_retries})")
        if self.max_delay != _LONGEST:
            calls.append(f"with_max_delay({self.max_delay})")
        if self.max_elapsed is not None:
            calls.append(f"with_max_elapsed({self.max_elapsed})")
        if self.is_unbounded:
            calls.append("without_bound()")
        if self.jitter == "proportional":
            calls.append(f"with_jitter({self.proportion})")
        elif self.jitter != "none":
            calls.append(f"with_{self.jitter}_jitter()")
        if self.seed is not None:
            calls.append(f"with_seed({self.seed})")
        return ".".join(("RetryPolicy", *calls))

    @staticmethod
    def constant(delay: Duration) -> RetryPolicy:
        """Return a policy with the same delay each time."""
        return RetryPolicy("constant", in_seconds(delay))

    @staticmethod
    def linear(delay: Duration) -> RetryPolicy:
        """Return a policy with `delay`, then twice, three times, four times as much."""
        return RetryPolicy("linear", in_seconds(delay))

    @staticmethod
    def exponential(delay: Duration) -> RetryPolicy:
        """Return a policy with `delay`, then two, four, eight times as much."""
        return RetryPolicy("exponential", in_seconds(delay))

    @staticmethod
    def fibonacci(delay: Duration) -> RetryPolicy:
        """Return a policy with `delay`, then one, two, three, five times as much."""
        return RetryPolicy("fibonacci", in_seconds(delay))

    def with_max_retries(self, retries: int) -> RetryPolicy:
        """Limit the number of retries, which is one less than the number of attempts."""
        return replace(self, max_retries=retries)

    def with_max_delay(self, delay: Duration) -> RetryPolicy:
        """Limit each delay to this, including jitter."""
        return replace(self, max_delay=min(in_seconds(delay), _LONGEST))

    def with_max_elapsed(self, elapsed: Duration) -> RetryPolicy:
        """Begin no attempt later than this after the first one."""
        return replace(self, max_elapsed=in_seconds(elapsed))

    def without_bound(self) -> RetryPolicy:
        """Retry forever."""
        return replace(self, is_unbounded=True)

    def with_jitter(self, proportion: float = 0.25) -> RetryPolicy:
        """Make each delay shorter or longer by at most this proportion of it."""
        return replace(self, jitter="proportional", proportion=proportion)

    def with_full_jitter(self) -> RetryPolicy:
        """Draw each delay between 0 and its value."""
        return replace(self, jitter="full")

    def with_decorrelated_jitter(self) -> RetryPolicy:
        """Draw each delay between the base and three times the previous delay.

        It replaces the shape: only the base and the maximum delay count.
        """
        return replace(self, jitter="decorrelated")

    def with_seed(self, seed: int) -> RetryPolicy:
        """Draw the same jitter each time, for tests. Without a seed, each use draws another one."""
        return replace(self, seed=seed)

    @property
    def is_bounded(self) -> bool:
        """Whether it has a bound, or is unbounded explicitly."""
        limited = self.max_retries is not None or self.max_elapsed is not None
        return limited or self.is_unbounded

    def delay_for_attempt(self, attempt: int) -> float | None:
        """Return the delay in seconds after an attempt, counted from 0; None once retries are exhausted.

        Pure. With a seed, the delay includes the jitter. Without one, it is the delay before jitter.
        """
        if attempt < 0:
            raise ValueError(f"attempts are counted from 0, not {attempt}")
        if self.max_retries is not None and attempt >= self.max_retries:
            return None
        if self.seed is None or self.jitter == "none":
            return self._plain_delay(attempt)
        return next(islice(self.delays(), attempt, None))

    def delays(self) -> Iterator[float]:
        """Yield the delays with their jitter, until retries are exhausted."""
        from random import Random

        chance = Random(self.seed)
        attempts = count() if self.max_retries is None else range(self.max_retries)
        delay = self.base
        for attempt in attempts:
            delay = self._jittered(self._plain_delay(attempt), delay, chance)
            yield delay

    def next_delay(self, attempt: int, elapsed: float) -> float | None:
        """Return the delay in seconds after an attempt, or None if it was the last one.

        For callers that count the attempts, because these may continue in another process.

        Parameters:
            attempt: the number of the attempt that ended, from 0.
            elapsed: seconds since the first attempt began.
        """
        if self.jitter == "decorrelated":
            delay = next(islice(self.delays(), attempt, None), None)
        else:
            delay = self.delay_for_attempt(attempt)
            if delay is not None and self.seed is None:
                from random import Random

                delay = self._jittered(delay, self.base, Random())
        return self.in_time(delay, elapsed)

    def in_time(self, delay: float | None, elapsed: float) -> float | None:
        """Return a delay, or None if the attempt after it would begin too late."""
        if delay is None or self.max_elapsed is None:
            return delay
        return delay if elapsed + delay <= self.max_elapsed else None

    def _plain_delay(self, attempt: int) -> float:
        match self.shape:
            case "constant":
                factor = 1.0
            case "linear":
                factor = min(attempt, 10**9) + 1.0
            case "exponential":
                factor = math.ldexp(1.0, min(attempt, 1000))
            case "fibonacci":
                factor = _fibonacci(min(attempt, 1000))
        return min(self.base * factor, self.max_delay)

    def _jittered(self, delay: float, previous: float, chance: Random) -> float:
        match self.jitter:
            case "none":
                return delay
            case "proportional":
                delay *= 1 + self.proportion * chance.uniform(-1, 1)
            case "full":
                delay = chance.uniform(0, delay)
            case "decorrelated":
                delay = chance.uniform(self.base, max(self.base, previous * 3))
        return min(delay, self.max_delay)


@dataclass(frozen=True, slots=True)
class FailedAttempt(Generic[E]):
    """A failed attempt, as `on_retry` receives it.

    Attributes:
        error: the error of the attempt.
        attempt: its number, from 1.
        delay: seconds until the next attempt; None if there is none.
        elapsed: seconds since the first attempt began.
    """

    error: E
    attempt: int
    delay: float | None
    elapsed: float


_DRAWN = tuple[float, float | None, float]
"""What is recorded before an attempt: the elapsed seconds, the delay, and the time at which it ends."""


async def retried(
    source: AnEffect,
    run: Callable[[AnEffect], Awaitable[object]],
    scope: Scope,
    policy: RetryPolicy,
    retryable: Callable[[Any], bool] | None,
    on_retry: Callable[[FailedAttempt[Any]], AnEffect | None] | None,
) -> object:
    """Run an effect again while it fails; see `Effect.retry`. Return its value or a `TypedFailure`.

    `run` runs an effect in this scope.
    """
    clock = scope.clock
    began = clock.monotonic()
    delays = policy.delays()
    drawn: float | None = None
    elapsed = 0.0
    attempt = 1

    def draw() -> tuple[float, float | None, float]:
        # Everything is recorded: a resumed run measures other times, and draws other delays.
        delay = policy.in_time(drawn, elapsed)
        return elapsed, delay, clock.now().timestamp() + (delay or 0.0)

    while True:
        outcome = await run(source)
        if type(outcome) is not TypedFailure:
            return outcome
        is_refused = retryable is not None and not holds(retryable, outcome.error, "retry")
        if is_refused and on_retry is None:
            return outcome
        drawn = None if is_refused else next(delays, None)
        elapsed = clock.monotonic() - began
        elapsed, delay, until = scope.fiber.value("retry", _DRAWN, draw)
        if on_retry is not None:
            hooked = on_retry(FailedAttempt(outcome.error, attempt, delay, elapsed))
            if hooked is not None:
                refuse_failure("on_retry", await run(hooked))
        if is_refused:
            return outcome
        if delay is None:
            exhausted = RetryExhausted(outcome.error, attempt, elapsed)
            return TypedFailure(exhausted, outcome.trail)
        # The clock of another machine may have been ahead. Never wait longer because of that.
        await scope.fiber.sleep_until(scope, until, delay)
        # Attempts that a resume replays without waiting took time, too.
        began = min(began, clock.monotonic() - elapsed - delay)
        attempt += 1


def check_bounded(policy: RetryPolicy) -> None:
    """Raise ValueError for a policy without a bound, unless it says `without_bound`."""
    check_type(
        policy,
        RetryPolicy,
        "expected a retry policy, such as RetryPolicy.exponential(0.1).with_max_retries(3)",
    )
    if not policy.is_bounded:
        raise ValueError(
            "a retry policy needs a bound: with_max_retries(n), with_max_elapsed(seconds), or "
            "without_bound() to retry forever"
        )


def _fibonacci(n: int) -> float:
    before, current = 0.0, 1.0
    for _ in range(n):
        before, current = current, before + current
    return current
