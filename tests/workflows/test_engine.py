"""The loop that machines, graphs, iterative workflows and lists of steps share."""

from __future__ import annotations

import sys
from typing import Any

from returns.result import Failure, Success

from effectflow.checkpoint.step import StepDefinition, durable
from effectflow.effects import Effect, fail, pure
from effectflow.workflows.engine import Done, Next, Stuck, advance, advance_once

COUNT = StepDefinition("count")


def to(limit: int, *, effect: Effect[Any, Any, Any] | None = None) -> Any:
    """Picks steps that count to a limit, from which the workflow is stuck at negative numbers."""

    def pick(number: int) -> Next[int] | Done | Stuck:
        if number < 0:
            return Stuck("negative")
        if number >= limit:
            return Done(f"{number}!")
        step = pure(number + 1) if effect is None else effect
        return Next(durable(COUNT, step), lambda output: output)

    return pick


def test_steps_run_until_the_workflow_is_done() -> None:
    assert advance(to(3), 0, ("count",)).run_sync(None) == Success("3!")
    assert advance(to(3), 5, ("count",)).run_sync(None) == Success("5!")


def test_a_stuck_workflow_fails_with_its_error() -> None:
    assert advance(to(3), -1, ("count",)).run_sync(None) == Failure("negative")
    assert advance(to(3, effect=pure(-1)), 0, ("count",)).run_sync(None) == Failure("negative")


def test_a_failed_step_ends_the_workflow() -> None:
    assert advance(to(3, effect=fail("no")), 0, ("count",)).run_sync(None) == Failure("no")


def test_advance_once_yields_the_state_after_one_step() -> None:
    assert advance_once(to(3), 0, ("count",)).run_sync(None) == Success(1)
    assert advance_once(to(3), 3, ("count",)).run_sync(None) == Success("3!")
    assert advance_once(to(3), -1, ("count",)).run_sync(None) == Failure("negative")


def test_an_effect_of_the_engine_can_be_run_again() -> None:
    counting = advance(to(3), 0, ("count",))

    assert counting.run_sync(None) == counting.run_sync(None) == Success("3!")


def test_many_steps_need_no_recursion() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        assert advance(to(20_000), 0, ("count",)).run_sync(None) == Success("20000!")
    finally:
        sys.setrecursionlimit(limit)
