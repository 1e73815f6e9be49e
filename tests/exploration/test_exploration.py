"""Promises that hold for every program, on random ones. `python -m tests.exploration` explores more."""

from __future__ import annotations

from itertools import product

import anyio
import pytest

from effectflow.stores import MemoryStore
from tests.exploration.bodies import subject_of
from tests.exploration.check import AGAIN, completed, problems_of_life
from tests.exploration.found import FOUND
from tests.exploration.lives import RUN, End, LifePlan, Storage, live
from tests.exploration.processes import copy_of
from tests.exploration.programs import KINDS, Node, draw, is_valid
from tests.exploration.shrink import size, smaller_programs
from tests.exploration.story import story_of
from tests.exploration.trials import Case, Exploration, StoreKind, Trial
from tests.exploration.virtual_time import Backend
from tests.exploration.world import World
from tests.sweeps import BACKENDS, sample_or_all

both_backends = pytest.mark.parametrize("backend", BACKENDS)


@sample_or_all("programs", 6, 200)
def test_random_programs_keep_every_promise(programs: int) -> None:
    explore("memory", programs)


@sample_or_all("programs", 2, 40)
def test_random_programs_keep_every_promise_on_sqlite(programs: int) -> None:
    explore("sqlite", programs)


def explore(store: StoreKind, programs: int) -> None:
    """Explore each program on both backends, or a few on one of them in turn."""
    backends: list[Backend] = ["asyncio", "trio"]
    is_sample = programs <= 10
    for seed, backend in product(range(programs), backends):
        if is_sample and backends[seed % 2] != backend:
            continue
        exploration = Exploration(seed, KINDS, backend, store, 4 if is_sample else 12)
        exploration.run()
        if exploration.failed is not None:
            pytest.fail(f"seed {seed}\n{story_of(exploration.failed)}", pytrace=False)


@both_backends
@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_was_found_once_does_not_come_back(backend: Backend, case: Case) -> None:
    trial = Trial(case.on(backend))
    trial.run()
    if trial.problems:
        pytest.fail(story_of(trial), pytrace=False)


# The exploration itself.


@both_backends
def test_a_seed_always_does_the_same(backend: Backend) -> None:
    def stories() -> list[str]:
        # Random values and ids are not those of the seed.
        explorations = [Exploration(seed, KINDS - {"value"}, backend) for seed in range(3)]
        found: list[str] = []
        for exploration in explorations:
            for case in [exploration.undisturbed(), *exploration.cases(appends=2)]:
                trial = Trial(case)
                trial.run()
                found.append(story_of(trial))
        return found

    assert stories() == stories()


@both_backends
def test_an_engine_that_forgets_a_completed_step_is_noticed(backend: Backend) -> None:
    program = Node("seq", "s1", (Node("step", "s2"), Node("local", "l3")))
    world, store = World(program), MemoryStore()
    first = live(subject_of(program), world, LifePlan(), Storage(store), backend=backend)
    assert first.end == End("value", "s2 l3")
    known, done = completed(first.journals), world.done.copy()

    async def forget() -> MemoryStore:
        once = await copy_of(store, without_end_of=RUN)
        return await copy_of(once, without_end_of=RUN)

    again = live(
        subject_of(program), world, LifePlan(), Storage(anyio.run(forget)), backend=backend
    )
    assert [problem.promise for problem in problems_of_life(again, world, known, done)] == [AGAIN]


@pytest.mark.parametrize("seed", range(20))
def test_a_shrunk_program_is_valid_and_not_larger(seed: int) -> None:
    program = draw(seed)
    assert is_valid(program)
    smaller = list(smaller_programs(program))
    assert all(size(each) <= size(program) for each in smaller)
    assert any(map(is_valid, smaller))
