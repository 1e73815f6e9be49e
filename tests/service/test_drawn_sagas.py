"""Sagas of any shape, killed several times: in the end the world is as the journal says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from returns.result import Failure

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    compensate,
    do,
    fail,
    par,
    par_all,
    race,
    saga,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import Completed, read_entries
from effectflow.effects import die, from_async, from_fn
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, FaultyStore, TestClock
from tests.apps import App, Broken, Crash, World, note
from tests.sweeps import examples

AnyEffect = Effect[Any, Any, Any]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep what is hidden by other failures, of which there are many, out of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Tree:
    """A program: an operator and its parts. A leaf has a number that no other leaf has."""

    operator: str
    parts: tuple[Tree, ...] = ()
    number: int = 0

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.parts)) if self.parts else str(self.number)
        return f"{self.operator}({inner})"


LEAVES = ("book", "book", "slow", "slow", "sleep", "wait", "fail", "die", "broken")
OPERATORS = (
    "in_turn",
    "in_turn",
    "par",
    "par_all",
    "race",
    "saga",
    "handled",
    "timeout",
    "holding",
)


def numbered(tree: Tree, numbers: Iterator[int]) -> Tree:
    parts = tuple(numbered(part, numbers) for part in tree.parts)
    return Tree(tree.operator, parts, next(numbers))


leaves = st.sampled_from(LEAVES).map(Tree)
trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda operator, parts: Tree(operator, tuple(parts)),
        st.sampled_from(OPERATORS),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=9,
).map(lambda tree: numbered(tree, iter(range(1, 1000))))


def seconds_of(number: int) -> int:
    """Return how long a leaf takes. The order of the numbers is not that of the times."""
    return 1 + 7 * number % 5


@step
def book(number: int) -> Effect[App, Broken, int]:
    return note(f"book {number}").map(lambda _: number)


@step
def slowly_book(number: int) -> Effect[App, Broken, int]:
    noted: AnyEffect = note(f"book {number}")
    waited: AnyEffect = sleep(seconds_of(number))
    return waited.and_then(lambda _: noted).map(lambda _: number)


@step
def cancel(number: int) -> Effect[App, Broken, int]:
    return note(f"cancel {number}").map(lambda _: number)


@step
def break_down() -> Effect[Any, Broken, None]:
    return fail(Broken("always"))


def program(tree: Tree) -> AnyEffect:
    """Return the effect of a tree."""
    parts = [program(part) for part in tree.parts]
    match tree.operator:
        case "book":
            return compensate(book(tree.number), cancel)
        case "slow":
            return compensate(slowly_book(tree.number), cancel)
        case "sleep":
            return sleep(seconds_of(tree.number))
        case "wait":
            return from_async(lambda _: anyio.sleep(0))
        case "fail":
            return fail(Broken(str(tree.number)))
        case "die":
            return from_fn(lambda _: None).and_then(lambda _: die(Crash(str(tree.number))))
        case "broken":
            return break_down()
        case "par":
            return par(*parts)
        case "par_all":
            return par_all(parts)
        case "race":
            return race(parts)
        case "saga":
            return saga(in_turn(*parts))
        case "handled":
            return in_turn(*parts).result().map(repr)
        case "timeout":
            return in_turn(*parts).timeout(5)
        case "holding":
            held: AnyEffect = cancel(-tree.number)
            return in_turn(*parts).on_exit(lambda _: held.fallback(None))
        case _:
            return in_turn(*parts)


@do
def in_turn(*effects: AnyEffect) -> Do[Any, Any, Any]:
    for effect in effects:
        yield from effect


async def life(tree: Tree, store: FaultyStore, world: World) -> bool:
    """Run one life of the process. Return whether the run succeeded."""

    @workflow
    def trip(_: None) -> Do[App, Broken | Crash, None]:
        yield from saga(in_turn(program(tree), break_down()))

    try:
        with anyio.fail_after(30):
            result = await TestClock().run(
                trip.start(None, run_id="r"), App(Checkpoints(store), world)
            )
    except TimeoutError:
        raise
    except Exception:
        return False
    return not isinstance(result, Failure)


def held(world: World) -> set[str]:
    """Return what is booked in the end."""
    found: set[str] = set()
    for action in world.done:
        verb, _, number = action.partition(" ")
        (found.add if verb == "book" else found.discard)(number)
    return found


async def check(tree: Tree, deaths: list[tuple[int, bool]]) -> None:
    appends = 0
    points: list[CrashPoint] = []
    for distance, is_durable in deaths:
        appends += distance
        points.append(CrashPoint(appends, is_durable))
    store, world = FaultyStore(MemoryStore(), points), World()
    has_succeeded: bool | None = None
    while has_succeeded is None:
        with store.life():
            has_succeeded = await life(tree, store, world)

    ended: dict[str, list[tuple[int, str]]] = {}
    for sequence, entry in enumerate(await read_entries(store, "r")):
        if isinstance(entry, Completed):
            flow, _, name = entry.step.rpartition("/")
            kind = "cancel" if name.startswith("cancel") else "book"
            ended.setdefault(kind if kind == "book" else flow, []).append(
                (sequence, str(entry.output))
            )
    booked = {number: sequence for sequence, number in ended.pop("book", [])}
    cancelled = {number for done in ended.values() for _, number in done} & booked.keys()
    assert held(world) == booked.keys() - cancelled, world.done
    if not has_succeeded:
        assert held(world) == set(), world.done
    for flow, done in ended.items():
        if flow.endswith("[undo]"):
            order = [booked[number] for _, number in done if number in booked]
            assert order == sorted(order, reverse=True), (flow, world.done)


# A race that an outer race cancels just after it has decided. Its loser ends after both decisions.
OVERTAKEN = Tree(
    "race",
    (
        Tree("sleep", (), 1),
        Tree("race", (Tree("slow", (), 2), Tree("book", (), 3)), 4),
    ),
    5,
)


@examples(30, 150)
def test_a_saga_that_is_killed_leaves_the_world_as_its_journal_says(examples: int) -> None:
    deaths = st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3)

    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees, deaths, st.sampled_from(["asyncio", "trio"]))
    @example(OVERTAKEN, [(5, False)], "asyncio")
    @example(OVERTAKEN, [(5, False)], "trio")
    def check_drawn(tree: Tree, deaths: list[tuple[int, bool]], backend: str) -> None:
        anyio.run(check, tree, deaths, backend=backend)

    check_drawn()
