"""Races: the first to end decides; the others are gone before anybody hears of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Effect,
    EmptyRace,
    die,
    fail,
    first_success,
    from_async,
    from_fn,
    pure,
    race,
    sleep,
)
from effectflow.testing import TestClock

pytestmark = pytest.mark.anyio

AnyEffect = Effect[object, Any, Any]


def later(seconds: float, effect: AnyEffect) -> AnyEffect:
    return sleep(seconds).and_then(lambda _: effect)


def noting(log: list[str], text: str) -> Effect[object, Any, Any]:
    return sleep(0.01).and_then(lambda _: from_fn(lambda _: log.append(text)))


async def run(effect: AnyEffect) -> Any:
    return await TestClock().run(effect, None)


async def test_the_first_to_end_wins_whether_it_succeeds_or_fails() -> None:
    assert await run(race([later(2, pure("b")), later(1, pure("a"))])) == Success("a")
    assert await run(race([later(2, pure("b")), later(1, fail("no"))])) == Failure("no")


async def test_losers_are_cancelled_and_cleaned_up_before_the_race_is_over() -> None:
    log: list[str] = []
    loser = later(60, pure("never")).on_exit(noting(log, "cleaned up"))

    assert await run(race([loser, later(1, pure("won")), loser])) == Success("won")
    assert log == ["cleaned up", "cleaned up"]


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
        later(60, pure("never")).on_exit(noting(log, "cleaned up")),
    ]
    assert await run(first_success(runners)) == Success("won")
    assert log == ["cleaned up"]


async def test_first_success_of_failures_has_all_of_them_in_order() -> None:
    runners = [later(2, fail("a")), later(1, fail("b"))]
    assert await run(first_success(runners)) == Failure(["a", "b"])
    assert await run(first_success([])) == Failure([])


async def test_a_defect_ends_first_success() -> None:
    with pytest.raises(ValueError, match="bug"):
        await run(first_success([later(60, pure(1)), die(ValueError("bug"))]))


async def test_interruption_reaches_every_runner() -> None:
    log: list[str] = []
    waiting: AnyEffect = from_async(lambda _: anyio.sleep_forever())
    racing = race([waiting.on_exit(noting(log, "a")), waiting.on_exit(noting(log, "b"))])
    with anyio.move_on_after(0.01) as scope:
        await racing.run(None)

    assert scope.cancelled_caught
    assert sorted(log) == ["a", "b"]
