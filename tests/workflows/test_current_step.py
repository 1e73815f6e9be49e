"""What the code of a step knows of it, and which options of a step are refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    current_step,
    effect,
    from_blocking,
    from_fn,
    pure,
    step,
    workflow,
)
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, note
from tests.workflows.journals import in_turn, made_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry": RetryPolicy.constant(1)}, "needs a bound"),
        ({"timeout": -1}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        step(**options)(lambda: pure(1))


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


async def test_between_steps_no_step_is_current(store: MemoryStore) -> None:
    made = made_of(
        lambda: in_turn(
            note("charge").checkpointed("charge"), from_fn(lambda _: current_step().step)
        )
    )

    with pytest.raises(LookupError):
        await made.start(None).run(app_on(store))
