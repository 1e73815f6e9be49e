"""par_reduce: groups in the order of the items, laziness, bounds, and what happens when a part fails."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from effectflow import Effect, fail, pure
from effectflow.effects import die, from_async, from_fn, par_reduce
from effectflow.effects.reduce import Group, ReductionTree, reduction_of
from tests.apps import cut_off

anyio_only = pytest.mark.anyio


def joined(values: list[list[int]]) -> Effect[object, str, list[int]]:
    return pure([number for value in values for number in value])


def alone(number: int) -> Effect[object, str, list[int]]:
    return pure([number])


@anyio_only
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9, 10, 27, 100])
async def test_the_value_is_that_of_all_items_in_their_order(count: int) -> None:
    effect = par_reduce(range(count), alone, joined, limit=4, fan_in=3)

    assert await effect.run(None) == Success(list(range(count)))


@anyio_only
async def test_groups_depend_on_the_order_of_the_items_and_not_on_who_ends_first() -> None:
    chance = Random(7)

    async def sometime(number: int) -> str:
        for _ in range(chance.randrange(20)):
            await anyio.lowlevel.checkpoint()
        return str(number)

    def bracketed(values: list[str]) -> Effect[object, str, str]:
        return pure(f"({' '.join(values)})")

    for limit in (1, 3, 11):
        effect = par_reduce(
            range(11),
            lambda number: from_async(lambda _: sometime(number)),
            bracketed,
            limit=limit,
            fan_in=3,
        )
        assert await effect.run(None) == Success("(((0 1 2) (3 4 5) (6 7 8)) (9 10))")


@anyio_only
async def test_a_group_is_reduced_as_soon_as_it_is_complete() -> None:
    log: list[str] = []

    def noted(number: int) -> Effect[object, str, int]:
        return from_fn(lambda _: log.append(f"item {number}")).map(lambda _: number)

    def total(values: list[int]) -> Effect[object, str, int]:
        return from_fn(lambda _: log.append(f"group of {len(values)}")).map(lambda _: sum(values))

    await par_reduce(range(5), noted, total, limit=1, fan_in=2).run(None)

    assert log == [
        *("item 0", "item 1", "group of 2", "item 2", "item 3", "group of 2", "group of 2"),
        *("item 4", "group of 1", "group of 2"),
    ]


@anyio_only
async def test_items_and_groups_together_keep_to_the_limit() -> None:
    running, most = 0, 0

    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1
        return 1

    effect = par_reduce(
        range(60),
        lambda _: from_async(lambda _: work()),
        lambda values: from_async(lambda _: work()).map(lambda _: sum(values)),
        limit=4,
        fan_in=2,
    )

    assert await effect.run(None) == Success(60)
    assert most == 4


@anyio_only
async def test_no_more_values_are_held_than_wait_for_their_neighbours() -> None:
    """The first item is slow; of all that overtakes it, only groups without it are held."""
    held, most = 0, 0
    overtaken = anyio.Event()

    class Value:
        def __init__(self) -> None:
            nonlocal held, most
            held += 1
            most = max(most, held)

        def __del__(self) -> None:
            nonlocal held
            held -= 1

    async def mapped(number: int) -> Value:
        if number == 0:
            await overtaken.wait()
        if number == 9_999:
            overtaken.set()
        return Value()

    effect = par_reduce(
        range(10_000),
        lambda number: from_async(lambda _: mapped(number)),
        lambda values: from_fn(lambda _: Value()),
        limit=10,
        fan_in=10,
    )
    assert (await effect.run(None)).map(type) == Success(Value)

    # In each of four rounds: the nine others of the first item's group, and one group under way.
    assert most <= 4 * 2 * 10


@anyio_only
async def test_the_first_failure_of_a_group_cancels_the_rest_and_waits_for_it() -> None:
    log: list[str] = []

    def mapped(number: int) -> Effect[object, str, int]:
        if number < 2:
            return pure(number)
        waiting = from_async(lambda _: anyio.sleep_forever()).map(lambda _: number)
        return waiting.on_exit(from_fn(lambda _: log.append(f"{number} cleaned up")))

    def reduced(values: list[int]) -> Effect[object, str, int]:
        return from_async(lambda _: anyio.sleep(0.01)).and_then(lambda _: fail(f"of {values}"))

    effect = par_reduce(range(4), mapped, reduced, limit=4, fan_in=2)

    assert await effect.run(None) == Failure("of [0, 1]")
    assert sorted(log) == ["2 cleaned up", "3 cleaned up"]


@anyio_only
@pytest.mark.parametrize("where", ["item", "group", "source", "last group"])
async def test_a_defect_is_raised_as_itself(where: str) -> None:
    bug = RuntimeError("bug")

    def items() -> Iterator[int]:
        yield from range(5)
        if where == "source":
            raise bug

    def mapped(number: int) -> Effect[object, str, int]:
        return die(bug) if where == "item" and number == 3 else pure(number)

    def reduced(values: list[int]) -> Effect[object, str, int]:
        if where == "group" or (where == "last group" and len(values) == 1):
            raise bug
        return pure(sum(values))

    with pytest.raises(RuntimeError) as caught:
        await par_reduce(items(), mapped, reduced, limit=2, fan_in=2).run(None)

    assert caught.value is bug


@anyio_only
async def test_interruption_reaches_items_and_groups() -> None:
    cleaned: list[str] = []

    def waiting(name: str) -> Effect[object, str, int]:
        forever = from_async(lambda _: anyio.sleep_forever()).map(lambda _: 0)
        return forever.on_exit(from_fn(lambda _: cleaned.append(name)))

    effect = par_reduce(
        range(3),
        lambda number: waiting("item") if number == 2 else pure(number),
        lambda values: waiting("group"),
        limit=3,
        fan_in=2,
    )
    await cut_off(effect, None)

    assert sorted(cleaned) == ["group", "item"]


@anyio_only
async def test_who_asks_is_told_how_many_items_there_were_before_the_last_groups() -> None:
    log: list[object] = []

    def total(values: list[int]) -> Effect[object, str, int]:
        log.append(values)
        return pure(sum(values))

    effect = reduction_of(
        "the test",
        range(5),
        pure,
        total,
        limit=1,
        fan_in=4,
        key=None,
        on_mapped=lambda count: from_fn(lambda _: log.append(f"{count} items")),
    )

    assert await effect.run(None) == Success(10)
    assert log == [[0, 1, 2, 3], "5 items", [4], [6, 4]]


@anyio_only
async def test_the_failure_of_that_effect_is_the_failure_of_the_whole() -> None:
    effect = reduction_of(
        "the test",
        [1],
        pure,
        lambda values: pure(sum(values)),
        limit=1,
        fan_in=2,
        key=None,
        on_mapped=lambda _: fail("told"),
    )

    assert await effect.run(None) == Failure("told")


@anyio_only
async def test_two_items_with_one_key_are_rejected() -> None:
    effect = par_reduce(["a", "b", "a"], pure, lambda values: pure(""), limit=2, key=str)

    with pytest.raises(ValueError, match="two items of one par_reduce have the key 'a'"):
        await effect.run(None)


@pytest.mark.parametrize(("limit", "fan_in"), [(0, 2), (1, 1)])
def test_an_invalid_limit_or_fan_in_is_rejected(limit: int, fan_in: int) -> None:
    with pytest.raises(ValueError, match="must be an int >= "):
        par_reduce([1], pure, lambda values: pure(sum(values)), limit=limit, fan_in=fan_in)


@given(st.integers(2, 5), st.permutations(range(40)), st.integers(0, 40))
def test_the_tree_is_the_same_in_whichever_order_values_come(
    fan_in: int, order: list[int], count: int
) -> None:
    def grown(numbers: list[int]) -> tuple[object, set[tuple[int, int]]]:
        tree = ReductionTree[object](fan_in)
        groups: set[tuple[int, int]] = set()

        def climb(group: Group[object] | None) -> None:
            while group is not None:
                groups.add((group.round, group.number))
                assert len(group.values) <= fan_in
                group = tree.add(group.round, group.number, tuple(group.values))

        for number in numbers:
            climb(tree.add(0, number, number))
        while (group := tree.take_incomplete()) is not None:
            climb(group)
        return (tree.root if numbers else None), groups

    numbers = list(range(count))

    assert grown([number for number in order if number < count]) == grown(numbers)
    assert list(flat(grown(numbers)[0])) == numbers


def flat(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    for part in value if isinstance(value, tuple) else ():
        yield from flat(part)
