"""What a pool of processes gains for work that computes, and what it costs for each item.

    python benchmarks/executors.py

The gain is that of pure Python work on two workers, against the same items one after another in this
process. Two cores that are free give nearly two; what other programs take of them is lost, so of each
the best of several rounds counts.

The cost is that of trivial items. The floor is `concurrent.futures.ProcessPoolExecutor`, which sends no
environment, cannot stop an item, and fails all that is under way when one process dies.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor

import anyio

from effectflow import effect, par_traverse, pure
from effectflow.executors import LocalExecutor, ProcessExecutor

WORKERS = 2
HEAVY = [400_000] * 16
TRIVIAL = range(2_000)
ROUNDS = 7


@effect
def sum_of_squares(_: object, count: int) -> int:
    return sum(number * number for number in range(count))


def itself(number: int) -> int:
    return number


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def here() -> float:
    """Seconds for the heavy items in this process."""
    local = LocalExecutor()
    items = par_traverse(HEAVY, lambda n: local.apply(sum_of_squares, n), limit=1)
    return await seconds(lambda: items.run(None))


async def there(executor: ProcessExecutor[None]) -> float:
    """Seconds for the heavy items in the pool."""
    items = par_traverse(HEAVY, lambda n: executor.apply(sum_of_squares, n), limit=WORKERS)
    return await seconds(lambda: items.run(None))


async def cost(executor: ProcessExecutor[None]) -> float:
    """Seconds for each trivial item."""
    items = par_traverse(TRIVIAL, lambda n: executor.apply(pure, n), limit=2 * WORKERS)
    return await seconds(lambda: items.run(None)) / len(TRIVIAL)


def floor(pool: ProcessPoolExecutor) -> float:
    """Seconds for each trivial item with the standard library's pool."""
    began = time.perf_counter()
    list(pool.map(itself, TRIVIAL))
    return (time.perf_counter() - began) / len(TRIVIAL)


async def main() -> None:
    with ProcessPoolExecutor(WORKERS) as pool:
        # Before anything else: its processes are forked.
        floors = [floor(pool) for _ in range(ROUNDS)]
    began = time.perf_counter()
    async with ProcessExecutor(limit=WORKERS) as executor:
        await par_traverse(range(WORKERS), lambda n: executor.apply(pure, n)).run(None)
        print(f"until the first items are done: {time.perf_counter() - began:.2f} s")
        alone: list[float] = []
        together: list[float] = []
        for _ in range(ROUNDS):
            # One after the other in each round: a machine changes its mind from one second to the next.
            alone.append(await here())
            together.append(await there(executor))
        costs = [await cost(executor) for _ in range(ROUNDS)]
    print(
        f"work that computes: {min(alone):.2f} s in this process, {min(together):.2f} s on {WORKERS} "
        f"workers: {min(alone) / min(together):.2f} x (to reach: 1.7)"
    )
    print(
        f"a trivial item: {min(costs) * 1e6:.0f} us, {min(costs) / min(floors):.1f} x that of "
        f"ProcessPoolExecutor ({min(floors) * 1e6:.0f} us)"
    )


if __name__ == "__main__":
    anyio.run(main)
