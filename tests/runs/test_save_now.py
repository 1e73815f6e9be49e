"""Saves that code asks for, and those at the end of a phase, under policies that rarely save."""

from __future__ import annotations

from typing import Any

import pytest
from returns.result import Success

from effectflow import Do, Effect, par, pure, step, with_checkpointing, workflow
from effectflow.checkpoint import (
    CheckpointPolicy,
    CheckpointSaved,
    SaveFailed,
    read_entries,
    save_now,
)
from effectflow.iterative import Iterative
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from effectflow.testing import (
    Crashed,
    CrashPoint,
    FaultyStore,
    RecordingObserver,
    SaveFails,
    crash_everywhere,
)
from tests.apps import App, Broken, World, app_on, note

pytestmark = pytest.mark.anyio

NEVER = CheckpointPolicy(every_steps=None)
"""Saves nothing between the beginning of a run and its end."""


@step
def act(name: str) -> Effect[App, Broken, int]:
    return note(name)


def watched(store: MemoryStore, policy: CheckpointPolicy = NEVER) -> tuple[App, RecordingObserver]:
    observer = RecordingObserver()
    return app_on(store, policy=policy, observers=[observer]), observer


def saves(observer: RecordingObserver) -> list[tuple[str | None, str | None]]:
    """Return the node and the reason of each save."""
    saved = (event for event in observer.events if isinstance(event, CheckpointSaved))
    return [(event.node, event.reason) for event in saved]


@workflow
def printing(_: None) -> Do[App, Broken, str]:
    yield from act("print")
    yield from act("dry")
    yield from save_now("the ink is dry")
    yield from act("fold")
    yield from act("post")
    return "posted"


async def test_a_requested_save_makes_everything_durable(store: MemoryStore) -> None:
    app, observer = watched(store)

    assert await printing.start(None, run_id="r").run(app) == Success("posted")

    assert saves(observer) == [(None, None), ("act", "the ink is dry"), ("act", None)]
    steps = [event.step for event in observer.events if isinstance(event, CheckpointSaved)]
    assert steps == [None, "act#2", "act#4"]


async def died_at(append: int, run: Any, input: object, store: MemoryStore) -> World:
    """Run in a process that dies just before an append, and return its world."""
    app = app_on(FaultyStore(store, [CrashPoint(append, is_durable=False)]), policy=NEVER)
    with pytest.raises(Crashed):
        await run.start(input, run_id="r").run(app)
    return app.world


async def test_saved_steps_do_not_run_again_after_a_crash(store: MemoryStore) -> None:
    assert (await died_at(3, printing, None, store)).done == ["print", "dry", "fold", "post"]

    again = app_on(store)
    assert await printing.resume("r").run(again) == Success("posted")
    assert again.world.done == ["fold", "post"]


async def test_within_a_step_it_saves_what_the_step_has_recorded(store: MemoryStore) -> None:
    @step
    def outer() -> Effect[App, Broken, None]:
        return with_checkpointing("inner", pure(None)).and_then(lambda _: save_now("halfway"))

    @workflow
    def nested(_: None) -> Effect[App, Broken, None]:
        return outer()

    app, observer = watched(store)
    await nested.start(None, run_id="r").run_or_raise(app)

    # Started, BeforeStep and BeforeStep, Completed of the inner step.
    assert CheckpointSaved("r", 4, "outer/inner", "halfway") in observer.events


async def test_a_resume_saves_nothing_for_a_save_that_it_replays(store: MemoryStore) -> None:
    app, observer = watched(store)
    app.world.failing.add("post")
    await printing.start(None, run_id="r").run(app)
    app.world.recover()
    observer.events.clear()

    assert await printing.resume("r").run(app) == Success("posted")

    assert "the ink is dry" not in [reason for _, reason in saves(observer)]
    assert app.world.done == ["print", "dry", "fold", "post", "post"]


async def test_a_plan_passes_a_save(store: MemoryStore) -> None:
    app = app_on(store, failing=["post"])
    await printing.start(None, run_id="r").run(app)

    plan = await printing.plan("r").run_or_raise(app)
    assert (plan.start, plan.problem) == (("act#4",), None)


async def test_branches_may_save_at_the_same_time(store: MemoryStore) -> None:
    @workflow
    def both(_: None) -> Effect[App, Broken, tuple[None, None]]:
        return par(
            act("a").and_then(lambda _: save_now("a is done")),
            act("b").and_then(lambda _: save_now("b is done")),
        )

    app, observer = watched(store)
    await both.start(None, run_id="r").run_or_raise(app)

    reasons = [reason for _, reason in saves(observer) if reason is not None]
    assert reasons
    assert set(reasons) <= {"a is done", "b is done"}
    saved = [event.entries for event in observer.events if isinstance(event, CheckpointSaved)]
    assert saved[-1] == len(await read_entries(store, "r"))


async def test_a_save_that_fails_ends_the_run(store: MemoryStore) -> None:
    faulty = FaultyStore(store, [SaveFails(2)])
    result = await printing.start(None, run_id="r").run(app_on(faulty, policy=NEVER))

    assert isinstance(result.failure(), SaveFailed)


@pytest.mark.parametrize("reason", ["anything", ""])
async def test_a_save_does_nothing_outside_a_durable_run(reason: str) -> None:
    assert await save_now(reason).run(None) == Success(None)
    assert await printing.body(None).run(app_on(MemoryStore())) == Success("posted")


async def test_a_crash_around_a_save_that_was_asked_for_changes_nothing() -> None:
    await crash_everywhere(
        printing, None, lambda store: app_on(store, policy=CheckpointPolicy(every_steps=None))
    )


def counting(**options: Any) -> MapReduce[App, Any, list[str], Any]:
    return MapReduce(
        "counting",
        items=list[str],
        map=lambda item: note(item),
        reduce=lambda values: pure(sum(values)),
        key=str,
        limit=2,
        fan_in=2,
        **options,
    )


async def test_the_end_of_each_phase_of_a_job_is_saved(store: MemoryStore) -> None:
    app, observer = watched(store)

    await counting().start(["a", "b", "c"], run_id="r").run_or_raise(app)

    assert saves(observer) == [
        (None, None),
        ("mapped", "the map phase has ended"),
        ("reduce", "the reduce phase has ended"),
        ("reduce", None),
    ]


async def test_the_phases_of_a_job_in_each_round_are_saved(store: MemoryStore) -> None:
    job = counting()

    def once(items: list[str]) -> Effect[App, Any, list[str]]:
        return job.body(items).map(lambda _: items)

    rounds = Iterative("rounds", once, converged=lambda a, b: False, max_rounds=2)
    app, observer = watched(store)
    await rounds.start(["a", "b", "c"], run_id="r").run_or_raise(app)

    assert [reason for _, reason in saves(observer) if reason is not None] == [
        "the map phase has ended",
        "the reduce phase has ended",
    ] * 2


async def test_a_job_whose_steps_are_all_saved_has_no_saves_of_its_own(store: MemoryStore) -> None:
    app, observer = watched(store, CheckpointPolicy())
    await counting().start(["a", "b", "c"], run_id="r").run_or_raise(app)

    assert {reason for _, reason in saves(observer)} == {None}


async def test_a_job_that_is_killed_in_its_reduce_phase_maps_nothing_again(
    store: MemoryStore,
) -> None:
    assert (await died_at(3, counting(), ["a", "b", "c"], store)).done == ["a", "b", "c"]

    again = app_on(store)
    result = await counting().resume("r").run_or_raise(again)
    assert (result.value, again.world.done) == (3, [])
