"""`patched`: new code in new runs, and old code where a run has gone on with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from returns.result import Success

from effectflow import App as Service, Checkpoints, Do, do, par, patched
from effectflow.checkpoint import DefinitionChanged, read_entries
from effectflow.effects import never
from effectflow.stores import MemoryStore
from effectflow.testing import check_runs
from tests.apps import App, World, app_on, cut_off
from tests.runs.journals import AnyEffect, AnyWorkflow, act, cut, made_of, resume, start
from tests.runs.test_drawn_programs import check_cuts, ending
from tests.runs.trees import Tree, TreeApp, TreeWorld, trees, workflow_of
from tests.sweeps import examples as examples_of

pytestmark = pytest.mark.anyio


@do
def before() -> Do[App, Exception, list[str]]:
    return [(yield from act("reserve")), (yield from act("charge")), (yield from act("ship"))]


@do
def after() -> Do[App, Exception, list[str]]:
    found = [(yield from act("reserve"))]
    is_checked = yield from patched("check")
    if is_checked:
        found.append((yield from act("check")))
    found += [(yield from act("charge")), (yield from act("ship"))]
    if is_checked:
        found.append((yield from act("log")))
    return found


@do
def after_removal() -> Do[App, Exception, list[str]]:
    found: list[str] = []
    for name in NEW:
        found.append((yield from act(name)))
    return found


OLD = ["reserve", "charge", "ship"]
NEW = ["reserve", "check", "charge", "ship", "log"]


async def resumed_after(made: AnyWorkflow, store: MemoryStore, count: int) -> list[str]:
    """Resume a run that has crashed after so many entries. Return what it yields."""
    return (await resume(made, app_on(await cut(store, count)))).unwrap()


async def test_a_run_takes_the_new_code_unless_it_has_gone_on_with_the_old() -> None:
    store = MemoryStore()
    await start(made_of(before), app_on(store))

    found = [await resumed_after(made_of(after), store, count) for count in range(1, 8)]

    # It has begun to charge with the fourth entry.
    assert found == [NEW, NEW, NEW, OLD, OLD, OLD, OLD]


async def test_all_later_lives_of_a_run_take_the_same_code() -> None:
    old = MemoryStore()
    await start(made_of(before), app_on(old))
    for kept, expected in ((1, NEW), (3, NEW), (4, OLD), (6, OLD)):
        store = await cut(old, kept)
        await resume(made_of(after), app_on(store))
        for later in range(kept, len(await read_entries(store, "r")) + 1):
            assert await resumed_after(made_of(after), store, later) == expected, (kept, later)


async def test_an_answer_that_led_to_nothing_does_not_bind_the_old_code() -> None:
    """Old and new workers side by side: the new one is stopped right after it has asked."""

    @do
    def hesitating() -> Do[App, Exception, list[str]]:
        yield from act("reserve")
        assert (yield from patched("check"))
        return (yield from never())

    store = MemoryStore()
    await cut_off(made_of(hesitating).start(None, run_id="r"), app_on(store))
    await resume(made_of(before), app_on(store, failing={"ship"}))

    assert await resume(made_of(after), app_on(store)) == Success(OLD)


async def test_a_check_says_when_the_old_code_can_be_removed() -> None:
    old = MemoryStore()
    await start(made_of(before), app_on(old))
    fitting = {3: True, 4: False}
    for kept, is_fitting in fitting.items():
        store = await cut(old, kept)
        await resume(made_of(after), app_on(store))
        store = await cut(store, len(await read_entries(store, "r")) - 1)

        checked = await check_runs(
            Service(
                [made_of(after_removal)],
                environment=lambda checkpoints: App(checkpoints, World()),
                checkpoints=Checkpoints(store),
            )
        )
        removed = await resume(made_of(after_removal), app_on(store))

        assert checked.all_fit is is_fitting
        if is_fitting:
            assert removed == Success(NEW)
        else:
            assert isinstance(removed.failure(), DefinitionChanged)


async def test_each_round_of_a_loop_has_its_own_answer() -> None:
    def rounds(*, is_new: bool) -> AnyEffect:
        @do
        def body() -> Do[App, Exception, list[bool]]:
            answers: list[bool] = []
            for number in range(3):
                if is_new:
                    answers.append((yield from patched("look")))
                yield from act(f"round {number}")
            return answers

        return body()

    store = MemoryStore()
    await start(made_of(lambda: rounds(is_new=False)), app_on(store))
    made = made_of(lambda: rounds(is_new=True))

    assert await resumed_after(made, store, 4) == [False, False, True]
    assert (await start(made, app_on(MemoryStore()))).unwrap() == [True, True, True]


async def test_branches_answer_by_the_order_of_the_run() -> None:
    def both(*, is_new: bool) -> AnyEffect:
        @do
        def branch(name: str) -> Do[App, Exception, bool | None]:
            yield from act(f"{name}1")
            answer = (yield from patched("p")) if is_new else None
            yield from act(f"{name}2")
            return answer

        return par(branch("a"), branch("b"))

    store = MemoryStore()
    await start(made_of(lambda: both(is_new=False)), app_on(store))
    made = made_of(lambda: both(is_new=True))
    for kept in range(1, len(await read_entries(store, "r"))):
        left = await cut(store, kept)
        answers = (await resume(made, app_on(left))).unwrap()
        for later in range(kept, len(await read_entries(left, "r")), 3):
            assert await resumed_after(made, left, later) == answers


async def test_it_is_true_outside_runs_and_has_the_name_of_a_step() -> None:
    assert await patched("x").run(None) == Success(True)
    with pytest.raises(ValueError, match="'a/b' cannot name a change"):
        patched("a/b")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keep finalizers that fail, which the programs are full of, out of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def with_patches(tree: Tree, numbers: Iterator[int]) -> Tree:
    """Return a tree with a new step before each part, in new code only."""
    parts = tuple(with_patches(part, numbers) for part in tree.parts)
    return Tree("patched", (replace(tree, parts=parts),), f"new {next(numbers)}")


async def check_patches(tree: Tree) -> None:
    store, world = MemoryStore(), TreeWorld()
    expected = await ending(
        workflow_of(tree).start(None, run_id="r"), TreeApp(Checkpoints(store), world)
    )
    after = with_patches(tree, count())
    await check_cuts(after, workflow_of(after), store, expected, [world], 1, 2)


@pytest.mark.usefixtures("quiet")
@examples_of(4, 300)
def test_patched_code_continues_each_run_of_the_code_before(examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees(6))
    def check(tree: Tree) -> None:
        anyio.run(check_patches, tree)

    check()
