"""par, par_all, par_try_all: who runs, who is cancelled, and in which order things come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import anyio
import pytest
import sniffio
import trio
from returns.result import Failure, Success

from effectflow import (
    Effect,
    die,
    fail,
    from_async,
    from_fn,
    par,
    par_all,
    par_traverse,
    par_try_all,
    pure,
    race,
    sleep,
)
from effectflow.effects import Exit
from effectflow.testing import TestClock
from tests.effects.reference import kind_of

pytestmark = pytest.mark.anyio

AnyEffect = Effect[object, Any, Any]


def later(seconds: float, effect: AnyEffect) -> AnyEffect:
    return sleep(seconds).and_then(lambda _: effect)


def noting(log: list[str], name: str, effect: AnyEffect) -> AnyEffect:
    """Writes down how it ended, after a while: whoever does not wait for it is found out."""

    def note(ended: Exit[Any, Any]) -> Effect[object, Any, Any]:
        return sleep(0.01).and_then(
            lambda _: from_fn(lambda _: log.append(f"{name}: {kind_of(ended)}"))
        )

    return effect.on_exit(note)


async def run(effect: AnyEffect) -> Any:
    return await TestClock().run(effect, None)


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


async def test_a_defect_ends_par_all_and_is_raised_as_itself() -> None:
    log: list[str] = []
    bug = ValueError("bug")
    with pytest.raises(ValueError, match="bug") as caught:
        await run(par_all([noting(log, "slow", later(60, pure(1))), later(1, die(bug))]))

    assert caught.value is bug
    assert log == ["slow: interruption"]


class Enough(Exception):
    """Ends what would not end."""


async def test_an_endless_source_is_read_no_further_than_limit_ahead() -> None:
    read = done = 0

    def endless() -> Iterator[AnyEffect]:
        nonlocal read
        for number in count():
            read += 1
            assert read - done <= 3
            yield from_async(lambda _, number=number: child(number))

    async def endless_async() -> AsyncIterator[AnyEffect]:
        for effect in endless():
            yield effect

    async def child(number: int) -> None:
        nonlocal done
        await (anyio.sleep(0.0001) if number <= 20 else anyio.sleep_forever())
        done += 1
        if number == 20:
            raise Enough

    for source in (endless(), endless_async()):
        read = done = 0
        with pytest.raises(Enough):
            await par_all(source, limit=3).run(None)
        assert 20 < read <= 23


@pytest.mark.parametrize("operator", [par_all, par_try_all])
async def test_ten_thousand_effects_at_limit_100_start_100_tasks(operator: Any) -> None:
    tasks: set[object] = set()

    async def note(_: object) -> None:
        tasks.add(current_task())
        await anyio.sleep(0)

    assert (
        len((await operator([from_async(note)] * 10_000, limit=100).run(None)).unwrap()) == 10_000
    )
    assert len(tasks) == 100


async def test_a_limit_below_one_is_refused() -> None:
    for refused in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            par_all([], limit=refused)
        with pytest.raises(ValueError, match="limit"):
            par_try_all([], limit=refused)


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
    with anyio.move_on_after(0.05) as scope:
        await nested.run(None)

    assert scope.cancelled_caught
    assert count_tasks() == before


def current_task() -> object:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_task()
    return asyncio.current_task()


def count_tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
