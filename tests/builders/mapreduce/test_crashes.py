"""A job that crashes at any entry of its journal ends like an uninterrupted one."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings, strategies as st

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    step,
    workflow,
)
from effectflow.checkpoint import CheckpointPolicy, CheckpointStore
from effectflow.testing import crash_everywhere
from tests.builders.mapreduce.world import App, World, app_around, spelling

pytestmark = pytest.mark.anyio


def with_broken_items(*items: int, **options: Any) -> Any:
    """Makes the environment of each life, in which the same items fail."""

    def make(store: CheckpointStore) -> App:
        world = World()
        world.break_items(*items)
        return app_around(store, world, **options)

    return make


async def test_a_crash_changes_nothing_about_dead_letters_after_retries() -> None:
    policy = RetryPolicy.constant(0).with_max_retries(2)
    job = spelling(on_item_failure="dead_letter", retry=policy)

    assert await crash_everywhere(job, 7, with_broken_items(0, 6))


async def test_a_crash_changes_nothing_about_a_job_that_fails() -> None:
    assert await crash_everywhere(spelling(limit=1), 7, with_broken_items(5))


async def test_a_crash_changes_nothing_about_a_nested_job() -> None:
    inner = spelling(on_item_failure="dead_letter", limit=2)

    @step
    def spelled_by(count: int) -> Effect[App, str, list[object]]:
        return inner.body(count).map(lambda ended: [ended.value, len(ended.dead_letters)])

    @workflow
    def outer(count: int) -> Do[App, str, list[object]]:
        first = yield from spelled_by(count)
        second = yield from spelled_by(count - 1)
        return [first, second]

    points = await crash_everywhere(outer, 9, with_broken_items(1, 3))

    assert len(points) > 40


@given(
    count=st.integers(0, 12),
    fan_in=st.integers(2, 4),
    limit=st.integers(1, 4),
    every_steps=st.integers(1, 4),
    broken=st.sets(st.integers(0, 11), max_size=3),
)
@example(count=9, fan_in=2, limit=3, every_steps=5, broken={2, 7})
@settings(max_examples=8)
def test_a_crash_changes_nothing_about_any_job(
    count: int, fan_in: int, limit: int, every_steps: int, broken: set[int]
) -> None:
    job = spelling(on_item_failure="dead_letter", fan_in=fan_in, limit=limit)
    policy = CheckpointPolicy(every_steps=every_steps)

    points = anyio.run(crash_everywhere, job, count, with_broken_items(*broken, policy=policy))

    assert points
