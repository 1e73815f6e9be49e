"""What a bind costs, against a plain await, `returns` and `stateless`, in one process.

    python benchmarks/effects.py

A bind is one `and_then` of an effect that yields a value at once: taking the node off the stack,
calling the function, and making the next `pure`. The time goes, in about equal parts, into the user's
lambda with its `pure`, and into the interpreter's dispatch. In generator notation the lambda is
replaced by resuming two generators, the body's and that of `yield from`.

The last rows are what a poll costs in virtual time: one `sleep(60)` of a loop, against the clock that
trio has for tests.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import anyio
import trio
import trio.testing
from returns.context import RequiresContextFutureResult
from returns.future import FutureResult
from stateless.effect import Success, run as run_stateless, success

from effectflow import Do, Effect, do, pure, sleep
from effectflow.testing import TestClock

BINDS = 200_000
POLLS = 2_000
BINDS_OF_RETURNS = 300  # deeper ones end in RecursionError
ROUNDS = 7


def seconds_per(count: int, run: Callable[[], object]) -> float:
    """The least of some rounds, which is the one that was disturbed least."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) / count)
    return min(times)


async def trivial() -> int:
    return 1


async def plain_awaits() -> None:
    for _ in range(BINDS):
        await trivial()


def left_nested() -> Effect[object, str, int]:
    effect: Effect[object, str, int] = pure(0)
    for _ in range(BINDS):
        effect = effect.and_then(lambda n: pure(n + 1))
    return effect


def right_nested(n: int = 0) -> Effect[object, str, int]:
    return pure(n) if n == BINDS else pure(n + 1).and_then(right_nested)


@do
def generator_notation() -> Do[object, str, int]:
    total = 0
    one = pure(1)
    for _ in range(BINDS):
        total += yield from one
    return total


def of_stateless() -> Success[int]:
    total = 0
    for _ in range(BINDS):
        total += yield from success(1)
    return total


def of_returns() -> RequiresContextFutureResult[int, str, object]:
    def increment(n: int) -> RequiresContextFutureResult[int, str, object]:
        return RequiresContextFutureResult(lambda _: FutureResult.from_value(n + 1))

    effect = increment(0)
    for _ in range(BINDS_OF_RETURNS):
        effect = effect.bind(increment)
    return effect


@do
def polling() -> Do[object, str, None]:
    minute = sleep(60)
    for _ in range(POLLS):
        yield from minute


async def polling_on_trio() -> None:
    for _ in range(POLLS):
        await trio.sleep(60)


def poll_on_trio() -> None:
    trio.run(polling_on_trio, clock=trio.testing.MockClock(autojump_threshold=0))


def poll(backend: str) -> None:
    anyio.run(TestClock().run, polling(), None, backend=backend)


def main() -> None:
    left = left_nested()
    chain = of_returns()

    async def run_returns() -> None:
        await chain(None)

    await_cost = seconds_per(BINDS, lambda: asyncio.run(plain_awaits()))
    rows = {
        "plain await of a trivial coroutine (floor)": await_cost,
        "and_then, nested to the left": seconds_per(BINDS, lambda: left.run_sync(None)),
        "and_then, nested to the right": seconds_per(BINDS, lambda: right_nested().run_sync(None)),
        "yield from, in a @do body": seconds_per(
            BINDS, lambda: generator_notation().run_sync(None)
        ),
        "stateless: yield from": seconds_per(BINDS, lambda: run_stateless(of_stateless())),
        "returns: RequiresContextFutureResult.bind": seconds_per(
            BINDS_OF_RETURNS, lambda: asyncio.run(run_returns())
        ),
        "a poll on a TestClock, asyncio": seconds_per(POLLS, lambda: poll("asyncio")),
        "a poll on a TestClock, trio": seconds_per(POLLS, lambda: poll("trio")),
        "a poll on trio's MockClock": seconds_per(POLLS, poll_on_trio),
    }
    for name, seconds in rows.items():
        print(f"{seconds * 1e6:8.3f} us  {seconds / await_cost:6.1f} x  {name}")
    binds = list(rows.values())[1:4]
    print(f"mean bind: {statistics.mean(binds) / await_cost:.1f} plain awaits (to reach: 5.3)")


if __name__ == "__main__":
    main()
