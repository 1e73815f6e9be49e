"""par_traverse: order, limits, laziness, and what happens when one child goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Never

import anyio
import anyio.lowlevel
import pytest
from returns.result import Failure, Success

from effectflow import Do, Effect, die, do, fail, from_async, from_fn, par_traverse, pure

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", [1, 3, None])
async def test_values_come_in_the_order_of_the_items(limit: int | None) -> None:
    async def slow_first(n: int) -> int:
        await anyio.sleep(0.002 * (5 - n))
        return n * n

    effect = par_traverse(range(5), lambda n: from_async(lambda _: slow_first(n)), limit=limit)

    assert await effect.run(None) == Success([0, 1, 4, 9, 16])


async def test_no_more_than_limit_run_at_once() -> None:
    running, most = 0, 0

    async def work(_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1

    await par_traverse(range(50), lambda _: from_async(work), limit=4).run(None)

    assert most == 4


async def test_ten_thousand_items_at_limit_100_start_100_tasks() -> None:
    tasks: set[int] = set()

    async def work(_: object) -> None:
        tasks.add(anyio.get_current_task().id)
        await anyio.lowlevel.checkpoint()

    await par_traverse(range(10_000), lambda _: from_async(work), limit=100).run(None)

    assert len(tasks) == 100


async def test_items_are_read_no_further_ahead_than_limit() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for n in range(1000):
            read.append(n)
            yield n

    effect = par_traverse(items(), lambda n: fail(n) if n == 10 else pure(n), limit=3)

    assert await effect.run(None) == Failure(10)
    assert len(read) <= 10 + 1 + 3


@pytest.mark.parametrize("limit", [2, None])
async def test_async_items(limit: int | None) -> None:
    async def items() -> AsyncIterator[int]:
        for n in range(10):
            await anyio.lowlevel.checkpoint()
            yield n

    effect = par_traverse(items(), lambda n: pure(n + 1), limit=limit)

    assert await effect.run(None) == Success(list(range(1, 11)))


async def test_the_first_failure_cancels_the_rest_and_waits_for_their_finalizers() -> None:
    log: list[str] = []

    def child(n: int) -> Effect[object, str, int]:
        if n == 0:
            return from_async(lambda _: anyio.sleep(0.01)).and_then(lambda _: fail("first"))
        waiting = from_async(lambda _: anyio.sleep_forever()).map(lambda _: n)
        return waiting.on_exit(from_fn(lambda _: log.append(f"{n} cleaned up")))

    assert await par_traverse(range(3), child).run(None) == Failure("first")
    assert sorted(log) == ["1 cleaned up", "2 cleaned up"]


async def test_a_defect_of_a_child_is_raised_as_itself() -> None:
    bug = RuntimeError("bug")

    with pytest.raises(RuntimeError) as caught:
        await par_traverse([1, 2], lambda n: die(bug) if n == 2 else pure(n)).run(None)

    assert caught.value is bug


async def test_a_defect_of_the_items_is_raised_as_itself() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken source")

    @do
    def catching() -> Do[object, Never, str]:
        try:
            yield from par_traverse(items(), pure, limit=2)
        except RuntimeError as error:
            return f"caught {error}"
        return "not caught"

    assert await catching().run(None) == Success("caught broken source")


class Numbers:
    """Numbers from a generator that tells when it is closed; the generator itself is kept."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.kept: list[Iterator[int]] = []

    def __iter__(self) -> Iterator[int]:
        self.kept.append(self._read())
        return self.kept[-1]

    def _read(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            self.log.append("closed")


@pytest.mark.parametrize("is_shared", [True, False], ids=["a generator", "what makes one"])
async def test_a_generator_of_items_is_closed_after_a_failure(is_shared: bool) -> None:
    numbers = Numbers()
    items = iter(numbers) if is_shared else numbers

    effect = par_traverse(items, lambda n: fail("no") if n == 7 else pure(n), limit=2)

    assert await effect.run(None) == Failure("no")
    assert numbers.log == ["closed"]


async def test_a_generator_of_items_is_closed_after_a_defect_and_a_cancellation() -> None:
    numbers = Numbers()
    with pytest.raises(RuntimeError, match="bug"):
        await par_traverse(numbers, lambda _: die(RuntimeError("bug")), limit=2).run(None)
    assert numbers.log == ["closed"]

    with anyio.move_on_after(0.02) as waited:
        waiting = from_async(lambda _: anyio.sleep_forever())
        await par_traverse(numbers, lambda _: waiting, limit=2).run(None)
    assert waited.cancelled_caught
    assert numbers.log == ["closed", "closed"]


async def test_an_iterator_that_is_no_generator_is_left_as_it_is() -> None:
    items = iter(range(1000))

    await par_traverse(items, lambda n: fail("no") if n == 7 else pure(n), limit=1).run(None)

    assert next(items) == 8


async def test_interruption_reaches_every_child() -> None:
    cleaned: list[int] = []

    def child(n: int) -> Effect[object, str, None]:
        waiting = from_async(lambda _: anyio.sleep_forever())
        return waiting.on_exit(from_fn(lambda _: cleaned.append(n)))

    with anyio.move_on_after(0.02):
        await par_traverse(range(4), child).run(None)

    assert sorted(cleaned) == [0, 1, 2, 3]


async def test_nothing_to_do() -> None:
    assert await par_traverse([], pure, limit=5).run(None) == Success([])


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        par_traverse([1], pure, limit=0)
