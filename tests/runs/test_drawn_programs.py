"""Promises of every program, tested on programs that Hypothesis draws, after each entry of their runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from returns.result import Failure

from effectflow import Checkpoints
from effectflow.checkpoint import (
    BeforeStep,
    CheckpointError,
    Completed,
    Entry,
    Failed,
    Finished,
    ResumePlan,
    read_entries,
)
from effectflow.checkpoint.failures import RecordedDefect
from effectflow.effects import Clock
from effectflow.effects.paths import flow_of
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.runs.journals import AnyWorkflow, cut, journal
from tests.runs.trees import Tree, TreeApp, TreeWorld, trees, workflow_of
from tests.sweeps import examples


class StoppedClock(TestClock):
    """Wakes every sleeper, and always tells the same time: later lives have as much time as the first.

    Attributes:
        sleepers: how many tasks sleep.
    """

    sleepers = 0

    async def sleep(self, seconds: float) -> None:
        self.sleepers += 1
        try:
            await super().sleep(seconds)
        finally:
            self.sleepers -= 1

    def now(self) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


BACKENDS = st.sampled_from(["asyncio", "trio"])
SLEEP_AND_TWO_STEPS = Tree("seq", (Tree("sleep"), Tree("seq", (Tree("ok"), Tree("ok")))))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep finalizers that fail, which the programs are full of, out of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@examples(12, 100)
def test_a_resume_after_each_entry_ends_the_same_and_repeats_nothing(examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees(10), BACKENDS)
    def check(tree: Tree, backend: str) -> None:
        anyio.run(check_resumes, tree, backend=backend)

    check()


@examples(6, 30)
def test_a_resume_of_a_resumed_run_ends_the_same_and_repeats_nothing(examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees(6), BACKENDS)
    def check(tree: Tree, backend: str) -> None:
        anyio.run(partial(check_resumes, tree, lives=3), backend=backend)

    check()


@examples(12, 100)
def test_a_plan_names_the_steps_that_a_resume_begins_first(examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(trees(10), BACKENDS)
    @example(Tree("bracket", (Tree("ok"), SLEEP_AND_TWO_STEPS)), "asyncio")
    @example(Tree("on_exit", (Tree("plain fail"), SLEEP_AND_TWO_STEPS)), "trio")
    def check(tree: Tree, backend: str) -> None:
        anyio.run(check_plans, tree, backend=backend)

    check()


async def ending(
    effect: Any, app: TreeApp, clock: Clock | None = None, *, deadline: float | None = None
) -> str:
    """Return the end of an effect as text, whether it is a result or a defect.

    `deadline` ends finalizers that hang: a stop waits for their steps.
    """
    try:
        with anyio.fail_after(60):
            if clock is None:
                result = await StoppedClock().run(effect, app)
            else:
                result = await effect.run(app, clock=clock, finalizer_deadline=deadline)
        halted = isinstance(result, Failure) and isinstance(result.failure(), CheckpointError)
        return f"CheckpointError: {result}" if halted else repr(result)
    except RecordedDefect as defect:
        name, _, message = re.sub(r"^tests\.apps\.", "", str(defect)).partition(": ")
        return f"{name}({message!r})"
    except TimeoutError:
        raise
    except Exception as defect:
        return repr(defect)


async def check_resumes(tree: Tree, *, lives: int = 2) -> None:
    made, store, world = workflow_of(tree), MemoryStore(), TreeWorld()
    app = TreeApp(Checkpoints(store), world)
    expected = await ending(made.start(None, run_id="r"), app)
    await check_cuts(tree, made, store, expected, [world], 1, lives - 1)


async def check_cuts(
    tree: Tree,
    made: AnyWorkflow,
    store: MemoryStore,
    expected: str,
    worlds: list[TreeWorld],
    first: int,
    lives: int,
) -> None:
    """Resume after each entry from `first` on, and from the runs that result, this many lives deep."""
    entries = await read_entries(store, "r")
    for count in range(first, len(entries) + 1):
        shorter, world = await cut(store, count), TreeWorld()
        result = await ending(made.resume("r"), TreeApp(Checkpoints(shorter), world))
        shown = "\n".join(await journal(shorter))
        assert result == expected, f"{result}, not {expected}, after {count} entries of\n{shown}"
        check_nothing_repeated(entries[:count], world, [*worlds, world], shown)
        if not has_cancelling_release(tree):
            check_releases_ended(await read_entries(shorter, "r"), [*worlds, world], shown)
        last = entries[count - 1]
        if lives > 1 and not isinstance(last, Finished):
            known = [*worlds, world]
            await check_cuts(tree, made, shorter, expected, known, count + 2, lives - 1)


def check_nothing_repeated(
    before: list[Entry], world: TreeWorld, worlds: list[TreeWorld], shown: str
) -> None:
    """Raise if a step ran again that had ended for good, or used a resource that had been released."""
    again = set(world.begun)
    assert not again & {entry.step for entry in before if isinstance(entry, Completed)}, shown
    uses = {path: used for each in worlds for path, used in each.uses.items()}
    releases = {path: released for each in worlds for path, released in each.releases.items()}
    begun = [entry.step for entry in before if isinstance(entry, BeforeStep)]
    released = {releases[path] for path in begun if path in releases}
    for path in world.begun:
        if path in releases:
            released.add(releases[path])
        assert released.isdisjoint(uses[path]), f"{path} used what had been released:\n{shown}"


def check_releases_ended(entries: list[Entry], worlds: list[TreeWorld], shown: str) -> None:
    """Raise if a step of a release has begun and not ended."""
    releases = {path for each in worlds for path in each.releases}
    open_steps: set[str] = set()
    for entry in entries:
        if isinstance(entry, BeforeStep):
            open_steps.add(entry.step)
        elif isinstance(entry, Completed | Failed):
            open_steps.discard(entry.step)
    assert open_steps.isdisjoint(releases), shown


def has_cancelling_release(tree: Tree) -> bool:
    """Return whether an operator in a release may cancel a step of it."""
    is_held = tree.kind in ("bracket", "loan")
    cancels = is_held and bool(re.search("race|timeout|limited|par|traverse", repr(tree.parts[1])))
    return cancels or any(map(has_cancelling_release, tree.parts))


async def check_plans(tree: Tree) -> None:
    made, store = workflow_of(tree), MemoryStore()
    expected = await ending(made.start(None, run_id="r"), TreeApp(Checkpoints(store)))
    # A plan does not read items asynchronously, so it does not know what an async source begins.
    can_end_without_steps = bool(re.search("race|plain|async", repr(tree)))
    for count in range(1, len(await read_entries(store, "r"))):
        shorter = await cut(store, count)
        before = await read_entries(shorter, "r")
        plan = await planned(made, shorter, expected)
        assert await read_entries(shorter, "r") == before
        if plan is None or plan.reason:
            continue
        shown = f"{plan} after\n" + "\n".join(await journal(shorter))
        assert plan.problem is None, shown
        begun, later = await first_begun(made, shorter, len(plan.waiting))
        other = begun - set(plan.start)
        if not is_held_up(begun, before):
            other |= set(plan.start) - later
        assert all("[" in path for path in other), f"{begun}: {shown}"
        # Where a branch of an operator ends without a new step, which cancels the others, it depends on
        # the scheduling which of them begin a step before.
        assert not other or can_end_without_steps, f"{begun}: {shown}"


def is_held_up(begun: set[str], before: list[Entry]) -> bool:
    """Return whether a branch replays a step with steps inside, which nothing cancels meanwhile.

    So what follows the operator does not begin before that step, which does not end here.
    """
    inside = {flow_of(entry.step) for entry in before if isinstance(entry, BeforeStep)}
    return any("[" in path and any(flow.startswith(path) for flow in inside) for path in begun)


async def planned(made: AnyWorkflow, store: MemoryStore, expected: str) -> ResumePlan | None:
    """Return the plan, or None if the body ends in a defect before it comes to a step."""
    try:
        return (
            await made.plan("r").run(TreeApp(Checkpoints(store)), clock=StoppedClock())
        ).unwrap()
    except Exception as defect:
        if repr(defect) == expected:
            return None
        raise


async def first_begun(
    made: AnyWorkflow, store: MemoryStore, waiting: int
) -> tuple[set[str], set[str]]:
    """Resume a run in which no step ends, and return the steps that have begun by then.

    A sleep in a finalizer is not recorded. A plan passes it to find the step that the finalizer begins
    next, and a resume sleeps again. So the second set has the steps that have begun after such sleeps,
    too. It is the first set if no more tasks sleep than the plan found waiting.
    """
    clock, ended = StoppedClock(), anyio.Event()
    thaw = anyio.Event()
    app = TreeApp(Checkpoints(store), TreeWorld(thaw=thaw))

    async def run() -> None:
        # The steps end in defects once they have thawed.
        with suppress(Exception):
            await made.resume("r").run(app, clock=clock)
        ended.set()

    begun = later = set[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(3):
            await clock.advance(0)
        begun = later = set(app.world.begun)
        if clock.sleepers > waiting:
            # All sleeps together, but no deadline.
            await clock.advance(9)
            later = set(app.world.begun)
        thaw.set()
        while not ended.is_set():
            await clock.advance(1000)
    return begun, later
