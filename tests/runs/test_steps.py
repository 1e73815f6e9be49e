"""What the code of a step knows, what is recorded of its arguments, and which options are rejected."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    Workflow,
    current_step,
    effect,
    fail,
    from_blocking,
    pure,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import BeforeStep, StepInputChanged, read_entries
from effectflow.effects import from_fn
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, both_backends, note
from tests.runs.journals import in_turn, made_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry": RetryPolicy.constant(1)}, "needs a bound"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
    ],
)
def test_options_that_mean_nothing_are_rejected(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        step(**options)(lambda: pure(1))


@both_backends
async def test_current_step_is_known_anywhere_in_the_code_of_a_step(store: MemoryStore) -> None:
    def look() -> tuple[str, int]:
        info = current_step()
        return info.step, info.attempt

    @step
    @effect
    def plain(_: App) -> tuple[str, int]:
        return look()

    @step
    @effect
    async def awaited(_: App) -> tuple[str, int]:
        await anyio.sleep(0)
        return look()

    @step
    def in_a_thread() -> Effect[App, Any, tuple[str, int]]:
        return from_blocking(lambda _: look())

    @step
    def outer() -> Do[App, Any, list[tuple[str, int]]]:
        before = yield from from_fn(lambda _: look())
        inner = yield from plain()
        after = yield from from_fn(lambda _: look())
        return [before, inner, after]

    @workflow
    def made(_: None) -> Do[App, Any, list[Any]]:
        one = yield from plain()
        two = yield from awaited()
        three = yield from in_a_thread()
        return [one, two, three, *(yield from outer())]

    assert await made.start(None, run_id="r").run(app_on(store)) == Success(
        [
            ("plain", 1),
            ("awaited", 1),
            ("in_a_thread", 1),
            ("outer", 1),
            ("outer/plain", 1),
            ("outer", 1),
        ]
    )
    with pytest.raises(LookupError, match="inside the code of a step"):
        current_step()


async def test_there_is_no_current_step_between_steps(store: MemoryStore) -> None:
    made = made_of(
        lambda: in_turn(
            note("charge").checkpointed("charge"), from_fn(lambda _: current_step().step)
        )
    )

    with pytest.raises(LookupError):
        await made.start(None).run(app_on(store))


# A step records its arguments by the parameters that took them.


@step
def take(
    first: object, *items: object, flag: object = 0, **options: object
) -> Effect[App, Any, int]:
    return pure(len(items))


@step
def keep(first: object = 1, second: object = 2) -> Effect[App, Any, int]:
    return pure(1)


async def begun_with(store: MemoryStore, *calls: Effect[App, Any, int]) -> list[BeforeStep]:
    @workflow
    def calling(_: None) -> Do[App, Any, None]:
        for call in calls:
            yield from call

    assert await calling.start(None, run_id="r").run(app_on(store)) == Success(None)
    entries = await read_entries(store, "r")
    return [one for one in entries if isinstance(one, BeforeStep) and one.arguments]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (take(1), "(first=1)"),
        (take(1, 2), "(first=1, items=(2,))"),
        (take(1, 2, 3, 4), "(first=1, items=(2, 3, 4))"),
        (take(1, 2, 3, flag=4), "(first=1, flag=4, items=(2, 3))"),
        (take(1, 2, more=3), "(first=1, items=(2,), options={'more': 3})"),
        (keep(), "()"),
        (keep(1, 3), "(first=1, second=3)"),
        (keep(second=3), "(second=3)"),
    ],
)
async def test_arguments_are_shown_by_the_parameters_that_took_them(
    store: MemoryStore, call: Effect[App, Any, int], expected: str
) -> None:
    [begun] = await begun_with(store, call)
    assert begun.shown == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (take(1), take(first=1)),
        (keep(1, 3), keep(1, second=3)),
        (keep(1, 3), keep(second=3, first=1)),
    ],
)
async def test_an_argument_may_be_given_by_position_or_by_name(
    store: MemoryStore, one: Effect[App, Any, int], other: Effect[App, Any, int]
) -> None:
    first, second = await begun_with(store, one, other)
    assert first.arguments == second.arguments


async def test_no_two_steps_share_an_idempotency_key(store: MemoryStore) -> None:
    """Even if the ids of runs have the character that separates them from the step."""
    keys: list[str] = []

    def sending(name: str) -> Effect[App, Any, None]:
        return with_checkpointing(
            name,
            from_fn(lambda _: current_step()).map(lambda info: keys.append(info.idempotency_key)),
        )

    for run_id, name in [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c")]:
        await made_of(partial(sending, name)).start(None, run_id=run_id).run_or_raise(app_on(store))
    assert keys == ["a:b:c", "a%3Ab:c", "a%253Ab:c"]


@step
def longer(state: dict[str, str], by: str = "") -> Effect[App, Any, dict[str, str]]:
    return pure({"text": state["text"] + by + "x" * 100})


async def test_a_long_output_that_is_passed_on_is_recorded_once(store: MemoryStore) -> None:
    def passing(change: str) -> Workflow[App, Any, None, None]:
        @workflow(name="passing")
        def body(_: None) -> Do[App, Any, None]:
            state = yield from longer({"text": ""})
            state["text"] += change
            state = yield from longer(state)
            yield from longer(state, "y")
            yield from fail("not yet")

        return body

    assert await passing("").start(None, run_id="r").run(app_on(store)) == Failure("not yet")
    begun = [one for one in await read_entries(store, "r") if isinstance(one, BeforeStep)]
    assert [one.shown for one in begun] == [
        "(state={'text': ''})",
        "the output of the step before",
        "(by='y', state='...')",
    ]

    refused = (await passing("changed").resume("r").run(app_on(store))).failure()
    assert isinstance(refused, StepInputChanged)
    assert "completed with the output of the step before, and is now called with (state" in str(
        refused
    )
