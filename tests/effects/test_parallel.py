"""Parallel operators and races: who runs, who is cancelled, and in which order things come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Never

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    EmptyRace,
    ask,
    do,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
    sleep,
)
from effectflow.effects import (
    Exit,
    die,
    first_success,
    from_async,
    from_fn,
    par_reduce,
    par_try_all,
)
from effectflow.testing import TestClock
from tests.apps import cut_off
from tests.effects.reference import kind_of

pytestmark = pytest.mark.anyio

AnyEffect = Effect[object, Any, Any]


def later(seconds: float, effect: AnyEffect) -> AnyEffect:
    return sleep(seconds).and_then(lambda _: effect)


def noting(log: list[str], name: str, effect: AnyEffect) -> AnyEffect:
    """Write down how it ended, after a while, to find a caller that does not wait for it."""

    def note(ended: Exit[Any, Any]) -> Effect[object, Any, Any]:
        return sleep(0.01).and_then(
            lambda _: from_fn(lambda _: log.append(f"{name}: {kind_of(ended)}"))
        )

    return effect.on_exit(note)


async def run(effect: AnyEffect) -> Any:
    return await TestClock().run(effect, None)


forever: AnyEffect = from_async(lambda _: anyio.sleep_forever())

Child = Callable[[int], AnyEffect]
Over = Callable[[Any, Child, int | None], AnyEffect]
"""Runs the children of items in parallel, at most `limit` at once."""


def listed(items: Any, child: Child) -> Any:
    """Return the effects of the children, to be read as the items are."""
    if isinstance(items, Iterable):
        return (child(item) for item in items)
    return (child(item) async for item in items)


def total(values: list[Any]) -> AnyEffect:
    return pure(len(values))


OPERATORS: dict[str, Over] = {
    "par_traverse": lambda items, child, limit: par_traverse(items, child, limit=limit),
    "par_all": lambda items, child, limit: par_all(listed(items, child), limit=limit),
    "par_try_all": lambda items, child, limit: par_try_all(listed(items, child), limit=limit),
    "par_reduce": lambda items, child, limit: par_reduce(
        items, child, total, limit=50 if limit is None else limit
    ),
}
each_operator = pytest.mark.parametrize("over", OPERATORS.values(), ids=OPERATORS)


# What all operators over many effects promise.


@each_operator
@pytest.mark.parametrize("limit", [1, 4])
async def test_no_more_than_limit_run_at_once(over: Over, limit: int) -> None:
    running, most = 0, 0

    async def work(_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1

    await over(range(25), lambda _: from_async(work), limit).run(None)
    assert most == limit


@each_operator
async def test_ten_thousand_effects_at_limit_100_start_100_tasks(over: Over) -> None:
    tasks: set[object] = set()

    async def note(_: object) -> None:
        tasks.add(current_task())
        await anyio.lowlevel.checkpoint()

    assert isinstance(await over(range(10_000), lambda _: from_async(note), 100).run(None), Success)
    assert len(tasks) == 100


def endless(read: list[int]) -> Iterator[int]:
    """Yield numbers without an end, and note when they are read, and that it is closed."""
    try:
        while True:
            read.append(len(read))
            yield read[-1]
    finally:
        read.append(-1)


async def endless_async(read: list[int]) -> AsyncIterator[int]:
    numbers = endless(read)
    try:
        for number in numbers:
            await anyio.lowlevel.checkpoint()
            yield number
    finally:
        read.append(-1)


@each_operator
@pytest.mark.parametrize("source", [endless, endless_async])
async def test_a_source_is_read_at_most_limit_items_ahead_and_then_closed(
    over: Over, source: Callable[[list[int]], Any]
) -> None:
    read: list[int] = []
    bug = RuntimeError("bug")

    with pytest.raises(RuntimeError) as caught:
        await over(source(read), lambda n: die(bug) if n == 10 else pure(n), 3).run(None)
    assert caught.value is bug
    assert read[-1] == -1
    assert len([number for number in read if number >= 0]) <= 10 + 1 + 3


async def broken_later() -> AsyncIterator[int]:
    yield 1
    raise RuntimeError("broken source")


def broken() -> Iterator[int]:
    yield 1
    raise RuntimeError("broken source")


@each_operator
@pytest.mark.parametrize("source", [broken, broken_later])
@pytest.mark.parametrize("limit", [2, None])
async def test_a_defect_of_the_source_is_raised_as_itself(
    over: Over, source: Any, limit: int | None
) -> None:
    @do
    def catching() -> Do[object, Never, str]:
        try:
            yield from over(source(), pure, limit)
        except RuntimeError as error:
            return f"caught {error}"
        return "not caught"

    assert await catching().run(None) == Success("caught broken source")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        (name, end)
        for name in OPERATORS
        for end in ("failure", "defect", "interruption")
        # That one runs every effect to its end.
        if (name, end) != ("par_all", "failure")
    ],
)
async def test_what_ends_an_operator_cancels_the_rest_and_waits_for_it(name: str, end: str) -> None:
    over = OPERATORS[name]
    log: list[str] = []
    ends: dict[str, AnyEffect] = {"failure": fail("no"), "defect": die(ValueError("bug"))}

    def child(number: int) -> AnyEffect:
        if number == 1 and end in ends:
            return later(0.01, ends[end])
        return noting(log, str(number), forever)

    effect = over(range(4), child, None)
    if end == "interruption":
        await cut_off(effect, None)
    elif end == "defect":
        with pytest.raises(ValueError, match="bug"):
            await effect.run(None)
    else:
        assert await effect.run(None) == Failure("no")
    reached = {"0", "2", "3"} | ({"1"} if end == "interruption" else set())
    assert sorted(log) == [f"{number}: interruption" for number in sorted(reached)]


@each_operator
async def test_a_limit_below_one_is_rejected(over: Over) -> None:
    for refused in (0, -1):
        with pytest.raises(ValueError, match=r"limit|or more"):
            over([], pure, refused)


# Trio starts tasks in random order, so each test of an order is repeated there.


class AsyncRange:
    """The numbers below `count`, as an async iterator that nothing has to close."""

    def __init__(self, count: int) -> None:
        self._numbers = iter(range(count))

    def __aiter__(self) -> AsyncRange:
        return self

    async def __anext__(self) -> int:
        for number in self._numbers:
            return number
        raise StopAsyncIteration


BAD_ENDS: dict[str, AnyEffect] = {"failure": fail("no"), "defect": die(ValueError("bug"))}


@each_operator
@pytest.mark.parametrize("limit", [None, 1, 2])
@pytest.mark.parametrize("numbers", [range, AsyncRange])
@pytest.mark.parametrize("end", BAD_ENDS)
async def test_a_child_that_comes_after_the_decision_does_not_begin(
    over: Over, limit: int | None, numbers: Any, end: str
) -> None:
    runs_all = over is OPERATORS["par_all"] and end == "failure"
    for _ in range(20):
        begun: list[int] = []

        def child(number: int, begun: list[int] = begun) -> AnyEffect:
            return from_fn(lambda _: begun.append(number)).and_then(lambda _: BAD_ENDS[end])

        with suppress(ValueError):
            result = await over(numbers(3), child, limit).run(None)
            assert result == Failure(["no"] * 3 if runs_all else "no")
        assert begun == ([0, 1, 2] if runs_all else [0])


async def later_numbers() -> AsyncGenerator[int]:
    yield 1


@pytest.mark.parametrize("end", BAD_ENDS)
async def test_par_and_races_start_nothing_once_they_are_decided(end: str) -> None:
    log: list[str] = []
    # Its operators start tasks, because it is not known beforehand that it never waits.
    charge: AnyEffect = from_fn(lambda _: log.append("charged")).and_then(pure)
    decided = [
        par(BAD_ENDS[end], charge),
        par(pure(1), BAD_ENDS[end], charge),
        race([BAD_ENDS[end], charge]),
        race([pure(1), charge, par(charge, charge)]),
        first_success([pure(1), charge]),
        race(race(charge, charge), BAD_ENDS[end]),
        race(par(charge, charge), pure(1)),
        race(par_traverse([1], lambda _: charge, key=str), pure(1)),
        race(par_traverse(later_numbers(), lambda _: charge, limit=1), pure(1)),
        par(par_all([charge]), BAD_ENDS[end]),
        par(par_reduce([1], lambda _: charge, pure, limit=1), BAD_ENDS[end]),
    ]
    for effect in decided[:5] * 20 + decided[5:]:
        with suppress(ValueError):
            await effect.run(None)
    assert log == []


async def test_the_first_in_order_of_those_that_end_at_once_wins() -> None:
    for _ in range(20):
        assert await race([pure(number) for number in range(9)]).run(None) == Success(0)
        assert await race([fail("no"), pure(1)]).run(None) == Failure("no")
        assert await first_success([fail("no"), pure(1), pure(2)]).run(None) == Success(1)


NESTED: dict[str, Callable[[AnyEffect], AnyEffect]] = {
    "par": lambda first: par(first, pure(2)),
    "par_all": lambda first: par_all([first, pure(2)]),
    "par_try_all": lambda first: par_try_all((first, pure(2)), limit=1),
    "race": lambda first: race(first, pure(2)),
    "first_success": lambda first: first_success([first, pure(2)]),
    "within operators": lambda first: race(par(par_all([first]), ask()), pure(2)),
    "mapped": lambda first: par(first.map(str).context("first"), pure(2)).result(),
    "in an environment": lambda first: par(first.provide(1)).traced(),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("end", ["success", *BAD_ENDS])
async def test_operators_of_effects_that_end_at_once_win_in_order_too(
    nested: Callable[[AnyEffect], AnyEffect], end: str
) -> None:
    log: list[str] = []
    charge: AnyEffect = from_fn(lambda _: log.append("charged"))
    noted: AnyEffect = from_fn(lambda _: log.append("first"))
    racers: list[AnyEffect] = [nested(noted if end == "success" else BAD_ENDS[end]), charge]

    for _ in range(20):
        with suppress(ValueError):
            await race(racers).run(None)

    assert log == (["first"] * 20 if end == "success" else [])


async def test_operators_of_effects_that_end_at_once_run_them_in_order() -> None:
    log: list[int] = []

    def noted(number: int) -> AnyEffect:
        return from_fn(lambda _: log.append(number)).map(lambda _: number)

    numbers = par(par(noted(1), noted(2)), par_all([noted(3), noted(4)]), noted(5))

    assert await numbers.run(None) == Success(((1, 2), [3, 4], 5))
    assert log == [1, 2, 3, 4, 5]


async def test_effects_that_end_at_once_have_their_own_context_variables() -> None:
    variable = ContextVar("variable", default="outer")

    def change(_: object) -> str:
        before = variable.get()
        variable.set("changed")
        return before

    assert await par(from_fn(change), from_fn(change)).run(None) == Success(("outer", "outer"))
    assert await race(from_fn(change), pure(2)).run(None) == Success("outer")
    assert variable.get() == "outer"


async def test_effects_that_end_at_once_do_not_begin_after_a_cancellation() -> None:
    log: list[str] = []
    charge: AnyEffect = from_fn(lambda _: log.append("charged"))

    for operator in (par(charge, charge), par_all([charge]), race(charge, charge)):
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await operator.run(None)

    assert log == []


async def test_many_effects_that_end_at_once_let_other_tasks_run() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        assert await par_all([pure(1)] * 5000).map(len).run(None) == Success(5000)
        tasks.cancel_scope.cancel()

    assert turns >= 10


@pytest.mark.parametrize(
    ("gather", "expected"), [(par_all, [1]), (par_try_all, [1]), (first_success, 1)]
)
async def test_an_operator_does_not_change_with_the_list_of_its_effects(
    gather: Any, expected: object
) -> None:
    effects: list[AnyEffect] = [pure(1)]
    gathered = gather(effects)
    effects[:] = [fail("another"), forever]

    assert await gathered.run(None) == Success(expected)


async def test_no_group_is_reduced_after_a_failure() -> None:
    """Items end in the same turn of the event loop in which another one has failed."""
    log: list[str] = []
    start, wake = anyio.Event(), anyio.Event()

    def child(number: int) -> AnyEffect:
        if number > 0:
            return from_async(lambda _: wake.wait()).map(lambda _: number)
        waiting = from_async(lambda _: start.wait())
        return waiting.map(lambda _: wake.set()).and_then(lambda _: fail("no"))

    def reduce(values: list[Any]) -> AnyEffect:
        return from_fn(lambda _: log.append(f"reduced {values}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(par_reduce(range(4), child, reduce, limit=4, fan_in=2).run, None)
        await anyio.wait_all_tasks_blocked()
        start.set()

    assert log == []


# par, par_all and par_try_all.


async def test_par_yields_a_tuple_in_order() -> None:
    assert await run(par(later(3, pure(1)), later(1, pure("b")), pure(None))) == Success(
        (1, "b", None)
    )
    assert await run(par()) == Success(())


@pytest.mark.parametrize("operator", [lambda *e: par(*e), lambda *e: par_try_all(e)])
async def test_the_first_failure_cancels_the_rest_and_waits_for_their_finalizers(
    operator: Any,
) -> None:
    log: list[str] = []
    effects = [
        noting(log, "slow", later(60, pure("never"))),
        noting(log, "quick", later(1, pure("done"))),
        noting(log, "failing", later(2, fail("first"))),
        noting(log, "also failing", later(3, fail("second"))),
    ]

    assert await run(operator(*effects)) == Failure("first")
    assert log[:2] == ["quick: success", "failing: failure"]
    assert sorted(log[2:]) == ["also failing: interruption", "slow: interruption"]


async def test_par_all_runs_everything_and_has_every_error_in_order() -> None:
    log: list[str] = []
    effects = [
        noting(log, "a", later(3, fail("a"))),
        noting(log, "b", later(2, pure("b"))),
        noting(log, "c", later(1, fail("c"))),
    ]

    assert await run(par_all(effects)) == Failure(["a", "c"])
    assert log == ["c: failure", "b: success", "a: failure"]
    assert await run(par_all(effects, limit=1)) == Failure(["a", "c"])
    assert await run(par_all([later(2, pure(1)), pure(2)])) == Success([1, 2])
    assert await run(par_all([])) == Success([])


async def test_local_environments_stay_in_their_branch() -> None:
    env: Effect[int, Any, int] = from_fn(lambda env: env)

    together = par(env.local(lambda n: n + 1), env, env.local(lambda n: n * 10))
    assert await together.zip(env).run(5) == Success(((6, 5, 50), 5))


async def test_one_effect_may_run_many_times_at_once() -> None:
    counter = 0

    async def increment(_: object) -> int:
        nonlocal counter
        counter += 1
        mine = counter
        await anyio.sleep(0)
        return mine

    effect = from_async(increment).map(lambda n: n * 2)
    assert sorted((await par_all([effect] * 50).run(None)).unwrap()) == list(range(2, 101, 2))


async def test_a_cancelled_run_leaves_no_task_behind() -> None:
    before = count_tasks()
    sleeping: AnyEffect = sleep(60).on_exit(sleep(0.001))
    nested = par(
        par_all([sleeping] * 5),
        race([sleeping, par_traverse(range(5), lambda _: sleeping, limit=2)]),
        sleeping.timeout(50),
    )
    await cut_off(nested, None)

    assert count_tasks() == before


def current_task() -> object:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_task()
    return asyncio.current_task()


def count_tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


# par_traverse.


async def five_later() -> AsyncIterator[int]:
    for number in range(5):
        await anyio.lowlevel.checkpoint()
        yield number


@pytest.mark.parametrize("limit", [1, 3, None])
@pytest.mark.parametrize("source", [lambda: range(5), lambda: iter(range(5)), five_later])
async def test_values_come_in_the_order_of_the_items(source: Any, limit: int | None) -> None:
    async def slow_first(n: int) -> int:
        await anyio.sleep(0.002 * (5 - n))
        return n * n

    effect = par_traverse(source(), lambda n: from_async(lambda _: slow_first(n)), limit=limit)

    assert await effect.run(None) == Success([0, 1, 4, 9, 16])


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


async def test_an_iterator_that_is_not_a_generator_is_left_as_it_is() -> None:
    items = iter(range(1000))

    await par_traverse(items, lambda n: fail("no") if n == 7 else pure(n), limit=1).run(None)

    assert next(items) == 8


async def test_nothing_to_do() -> None:
    assert await par_traverse([], pure, limit=5).run(None) == Success([])


# Races: the first to end decides; the others are gone before anybody hears of it.


async def test_the_first_to_end_wins_whether_it_succeeds_or_fails() -> None:
    assert await run(race([later(2, pure("b")), later(1, pure("a"))])) == Success("a")
    assert await run(race([later(2, pure("b")), later(1, fail("no"))])) == Failure("no")


async def test_losers_are_cancelled_and_cleaned_up_before_the_race_is_over() -> None:
    log: list[str] = []
    loser = noting(log, "loser", later(60, pure("never")))

    assert await run(race([loser, later(1, pure("won")), loser])) == Success("won")
    assert log == ["loser: interruption"] * 2


async def test_a_race_of_none_is_an_error() -> None:
    result = await run(race([]))
    assert isinstance(result.failure(), EmptyRace)


async def test_a_defect_decides_a_race() -> None:
    with pytest.raises(ValueError, match="bug"):
        await run(race([later(60, pure(1)), later(1, die(ValueError("bug")))]))


async def test_first_success_passes_failures_by() -> None:
    log: list[str] = []
    runners = [
        later(1, fail("quick")),
        later(2, pure("won")),
        noting(log, "loser", later(60, pure("never"))),
    ]
    assert await run(first_success(runners)) == Success("won")
    assert log == ["loser: interruption"]


async def test_first_success_of_failures_has_all_of_them_in_order() -> None:
    runners = [later(2, fail("a")), later(1, fail("b"))]
    assert await run(first_success(runners)) == Failure(["a", "b"])
    assert await run(first_success([])) == Failure([])


async def test_a_defect_ends_first_success() -> None:
    with pytest.raises(ValueError, match="bug"):
        await run(first_success([later(60, pure(1)), die(ValueError("bug"))]))


@pytest.mark.parametrize("operator", [race, first_success])
async def test_interruption_reaches_every_runner(operator: Any) -> None:
    log: list[str] = []
    await cut_off(operator([noting(log, "a", forever), noting(log, "b", forever)]), None)

    assert sorted(log) == ["a: interruption", "b: interruption"]
