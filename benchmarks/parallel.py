"""What an item of `par_traverse` costs, against tasks written by hand and against anyio.

    python benchmarks/parallel.py

Ten thousand trivial items, at most one hundred at once. By hand, one hundred worker tasks draw from
one iterator, as `par_traverse` does. The usual ways, a task for each item held back by a semaphore or
by a CapacityLimiter, pay for ten thousand tasks.

The time of `par_traverse` goes into making an effect for each item, the coroutine that interprets it,
and the list of values in order. An item that really waits costs the same besides its waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio

from effectflow import par_traverse, pure

ITEMS = 10_000
LIMIT = 100
ROUNDS = 15


async def trivial(item: int) -> int:
    return item


async def by_hand() -> list[int]:
    numbered = enumerate(range(ITEMS))
    values: dict[int, int] = {}

    async def work() -> None:
        for position, item in numbered:
            values[position] = await trivial(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LIMIT):
            tasks.create_task(work())
    return [values[position] for position in range(ITEMS)]


async def task_for_each_with_semaphore() -> list[int]:
    semaphore = asyncio.Semaphore(LIMIT)

    async def work(item: int) -> int:
        async with semaphore:
            return await trivial(item)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work(item)) for item in range(ITEMS)]
    return [task.result() for task in running]


async def task_for_each_with_limiter() -> list[int]:
    limiter = anyio.CapacityLimiter(LIMIT)
    values: dict[int, int] = {}

    async def work(item: int) -> None:
        async with limiter:
            values[item] = await trivial(item)

    async with anyio.create_task_group() as tasks:
        for item in range(ITEMS):
            tasks.start_soon(work, item)
    return [values[item] for item in range(ITEMS)]


traversal = par_traverse(range(ITEMS), pure, limit=LIMIT)


async def traversed() -> list[int]:
    return (await traversal.run(None)).unwrap()


WAYS: dict[str, Callable[[], Awaitable[list[int]]]] = {
    "100 worker tasks by hand (floor)": by_hand,
    "par_traverse, limit=100": traversed,
    "asyncio.TaskGroup with a semaphore": task_for_each_with_semaphore,
    "anyio with a CapacityLimiter": task_for_each_with_limiter,
}


async def main() -> None:
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        # One after another in each round: a machine changes its mind from one second to the next.
        for name, way in WAYS.items():
            began = time.perf_counter()
            assert await way() == list(range(ITEMS))
            best[name] = min(best[name], time.perf_counter() - began)
    floor = best["100 worker tasks by hand (floor)"]
    for name, seconds in best.items():
        print(f"{seconds / ITEMS * 1e6:7.2f} us an item  {seconds / floor:6.1f} x  {name}")
    print(f"par_traverse: {best['par_traverse, limit=100'] / floor:.1f} x by hand (to reach: 3)")


if __name__ == "__main__":
    asyncio.run(main())
