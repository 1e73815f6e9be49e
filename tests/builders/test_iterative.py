"""Iterative workflows: durable rounds until the value converges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Effect, do, effect, fail, pure, random, step
from effectflow.checkpoint import CheckpointStore, DefinitionChanged, RunStatus, read_checkpoint
from effectflow.iterative import Iterative, IterativeResult
from effectflow.mapreduce import ItemFailed, MapReduce
from effectflow.service.structured_input import input_of
from effectflow.stores import MemoryStore
from effectflow.testing import crash_everywhere
from tests.apps import App, Broken, World, app_on, note

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Centers:
    """The centers of two clusters of numbers."""

    low: float
    high: float


@dataclass(frozen=True)
class Sums:
    """The sum and the count of the numbers closest to each center."""

    low: tuple[float, int] = (0.0, 0)
    high: tuple[float, int] = (0.0, 0)


@dataclass(frozen=True)
class Point:
    position: float
    centers: Centers


NUMBERS = [1.0, 2.0, 3.0, 10.0, 11.0, 15.0]


def points(centers: Centers) -> list[Point]:
    return [Point(number, centers) for number in NUMBERS]


@effect(errors=Broken)
async def assign(app: App, point: Point) -> Sums:
    app.world.note(f"assign {point.position}")
    is_low = abs(point.position - point.centers.low) < abs(point.position - point.centers.high)
    part = (point.position, 1)
    return Sums(low=part) if is_low else Sums(high=part)


def add(parts: list[Sums]) -> Effect[App, str, Sums]:
    def added(sums: list[tuple[float, int]]) -> tuple[float, int]:
        return sum(total for total, _ in sums), sum(count for _, count in sums)

    return pure(Sums(added([part.low for part in parts]), added([part.high for part in parts])))


assigning = MapReduce(
    "assigning",
    items=points,
    map=assign,
    reduce=add,
    key=lambda point: point.position,
    limit=2,
    fan_in=2,
)


@do
def better(centers: Centers) -> Do[App, Any, Centers]:
    """One round of k-means, as a map-reduce job."""
    sums = (yield from assigning.body(centers)).value
    return Centers(sums.low[0] / max(sums.low[1], 1), sums.high[0] / max(sums.high[1], 1))


clustering = Iterative(
    "clustering", better, converged=lambda before, after: before == after, max_rounds=10
)

FOUND = IterativeResult(Centers(2.0, 12.0), 3, True)


async def test_an_iterative_workflow_runs_until_the_value_converges(store: MemoryStore) -> None:
    assert await clustering.start(Centers(0.0, 5.0)).run(App(Checkpoints(store))) == Success(FOUND)


async def test_each_round_and_the_steps_within_it_are_durable(store: MemoryStore) -> None:
    await clustering.start(Centers(0.0, 5.0), run_id="r").run(App(Checkpoints(store)))

    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.kind == "iterative"
    steps = [done.step for done in checkpoint.completed_steps]
    assert [step for step in steps if "/" not in step] == ["round", "round#2", "round#3"]
    assert "round#3/map[15.0]/assign" in steps
    assert "round#3/reduce[3.0]/add" in steps


async def test_a_resume_continues_within_the_interrupted_round(store: MemoryStore) -> None:
    app = App(Checkpoints(store))
    is_broken = True

    def until_broken(centers: Centers) -> Effect[App, Any, Centers]:
        def look(found: Centers) -> Effect[App, Any, Centers]:
            return fail("no") if is_broken and centers.high == 12.0 else pure(found)

        return better(centers).and_then(look)

    job = Iterative(
        "c", until_broken, converged=lambda before, after: before == after, max_rounds=10
    )
    assert await job.start(Centers(0.0, 5.0), run_id="r").run(app) == Failure("no")
    app.world.done.clear()
    is_broken = False

    assert await job.resume("r").run(app) == Success(FOUND)
    assert app.world.done == []


async def test_a_resume_retries_only_the_failed_item_of_a_round(store: MemoryStore) -> None:
    one_by_one = MapReduce(
        "one by one",
        items=points,
        map=assign,
        reduce=add,
        key=lambda point: point.position,
        limit=1,
    )

    @do
    def one_round(centers: Centers) -> Do[App, Any, Centers]:
        sums = (yield from one_by_one.body(centers)).value
        return Centers(sums.low[0] / sums.low[1], sums.high[0] / sums.high[1])

    job = Iterative("c", one_round, converged=lambda before, after: before == after, max_rounds=9)
    app = App(Checkpoints(store), World(failing={"assign 10.0#3"}))
    error = (await job.start(Centers(0.0, 5.0), run_id="r").run(app)).failure()
    assert isinstance(error, ItemFailed)
    assert error.key == "10.0"
    app.world.recover()
    app.world.done.clear()

    assert await job.resume("r").run(app) == Success(FOUND)
    assert app.world.done == ["assign 10.0", "assign 11.0", "assign 15.0"]


async def test_random_numbers_between_the_steps_of_a_round_are_recorded(store: MemoryStore) -> None:
    is_broken = True
    drawn: list[float] = []

    @step
    def note(number: float) -> Effect[App, str, float]:
        return pure(number)

    @do
    def draw(before: float) -> Do[App, str, float]:
        number = yield from random()
        drawn.append(number)
        yield from note(number)
        yield from step(name="last")(lambda: fail("no") if is_broken else pure(None))()
        return before + number

    job = Iterative("drawing", draw, converged=lambda before, after: True, max_rounds=1)
    await job.start(0.0, run_id="r").run(App(Checkpoints(store)))
    is_broken = False

    result = (await job.resume("r").run(App(Checkpoints(store)))).unwrap()
    # Both lives draw the same number.
    assert drawn == [result.value, result.value]


async def test_a_convergence_test_that_raises_parks_the_run(store: MemoryStore) -> None:
    def converged(before: int, after: int) -> bool:
        raise ZeroDivisionError

    job = Iterative("c", lambda n: pure(n + 1), converged=converged, max_rounds=3)

    with pytest.raises(ZeroDivisionError):
        await job.start(1, run_id="r").run(App(Checkpoints(store)))
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED


async def test_a_crash_at_any_entry_changes_nothing() -> None:
    def environment(store: CheckpointStore) -> App:
        return App(Checkpoints(store))

    assert len(await crash_everywhere(clustering, Centers(2.0, 11.0), environment)) > 30


@given(st.integers(0, 1000), st.integers(1, 12))
@settings(max_examples=30)
def test_an_iterative_workflow_is_equivalent_to_a_loop(start: int, max_rounds: int) -> None:
    job = Iterative(
        "halving",
        lambda n: pure(n // 2),
        converged=lambda before, after: before == after,
        max_rounds=max_rounds,
    )
    value, rounds, is_converged = start, 0, False
    while rounds < max_rounds and not is_converged:
        value, before, rounds = value // 2, value, rounds + 1
        is_converged = value == before

    ended = job.start(start).run_sync(App(Checkpoints(MemoryStore())))
    assert ended == Success(IterativeResult(value, rounds, is_converged))


@pytest.mark.parametrize("max_rounds", [0, 1.5, True, "3"])
def test_max_rounds_must_be_a_positive_int(max_rounds: Any) -> None:
    with pytest.raises(ValueError, match="max_rounds"):
        Iterative("c", pure, converged=lambda before, after: True, max_rounds=max_rounds)


def test_all_problems_are_reported_at_once() -> None:
    mistaken: Any = Iterative
    with pytest.raises(ValueError, match="cannot be built") as caught:
        mistaken("x", 5, converged=3, max_rounds=1.5)

    assert str(caught.value).splitlines() == [
        "iterative workflow 'x' cannot be built:",
        "- `round` takes a function from a value to an effect, not 5",
        "- `converged` takes a function of two values, not 3",
        "- max_rounds must be an int >= 1, not 1.5",
    ]


def test_the_input_has_the_type_of_a_round() -> None:
    assert input_of(clustering, {"low": 0, "high": 5}, Checkpoints(MemoryStore())) == Centers(
        0.0, 5.0
    )


async def test_a_convergence_test_that_returns_an_effect_is_a_defect(store: MemoryStore) -> None:
    answer: Any = lambda before, after: pure(False)  # noqa: E731
    job = Iterative("halving", lambda x: pure(x / 2), converged=answer, max_rounds=4)

    with pytest.raises(TypeError, match=r"^`converged` of 'halving' returned an effect"):
        await job.start(1.0).run(App(Checkpoints(store)))


async def test_the_bound_of_rounds_is_part_of_the_definition(store: MemoryStore) -> None:
    def bounded(max_rounds: int) -> Iterative[App, Broken, int]:
        def work(number: int) -> Effect[App, Broken, int]:
            return note(f"round {number}").map(lambda _: number + 1)

        return Iterative("c", work, converged=lambda a, b: False, max_rounds=max_rounds)

    app = app_on(store, failing=["round 1"])
    await bounded(2).start(0, run_id="r").run(app)
    app.world.recover()
    checkpoint = await read_checkpoint(store, "r")
    assert checkpoint.definition.structure == ("max_rounds=2",)

    refused = (await bounded(3).resume("r").run(app)).failure()
    assert isinstance(refused, DefinitionChanged)
    assert "'max_rounds=3' was added; 'max_rounds=2' was removed" in str(refused)
    result = await bounded(3).resume("r", force=True).run_or_raise(app)
    assert (result.value, result.rounds) == (3, 3)
