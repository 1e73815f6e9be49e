"""Wrong arguments are refused where they are given, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    App,
    Checkpoints,
    Do,
    Workflow,
    emit,
    pure,
    spawn,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.stores import MemoryStore, SqliteStore

pytestmark = pytest.mark.allow_unused_effects


class Environment:
    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints


@workflow
def order(number: int) -> Do[Environment, Any, int]:
    return (yield from pure(number))


def run(effect: Any) -> object:
    return effect.run_sync(Environment(Checkpoints(MemoryStore())))


anything: Any = pure(1)
number: Any = 3
CASES: dict[str, tuple[Callable[[], object], str]] = {
    "a path in place of a store": (lambda: Checkpoints("runs.db"), r"open_store\('runs.db'\)"),  # type: ignore[arg-type]
    "a class in place of a store": (lambda: Checkpoints(SqliteStore), "takes a store"),  # type: ignore[arg-type]
    "a count in place of a policy": (lambda: pure(1).retry(number), r"with_max_retries\(3\)"),
    "a count in place of the policy of a step": (
        lambda: step(retry=number)(lambda: pure(1)),
        r"with_max_retries\(3\)",
    ),
    "a sink that is not a function": (lambda: emit(1).into_sink(number), "takes each event"),
    "a value in place of an effect": (
        lambda: with_checkpointing("charge", number),
        "expected an effect and got 3",
    ),
    "a version that is not text": (
        lambda: workflow(version=number)(lambda _: pure(1)),
        "version of a workflow is text, not 3",
    ),
    "a name that is not text": (
        lambda: Workflow.of_steps(number, [step(lambda _: pure(1))]),
        "name of a workflow is text, not 3",
    ),
    "a run id that is not text": (
        lambda: run(order.start(1, run_id=number)),
        "run id is text, not 3",
    ),
    "another run id that is not text": (lambda: run(order.resume(number)), "run id is text, not 3"),
    "a result of a run id that is not text": (lambda: run(order.result(number)), "run id is text"),
    "a context that is not a mapping": (
        lambda: run(order.start(1, context=number)),
        "dict of plain data by name, not 3",
    ),
    "an effect to spawn": (lambda: spawn(anything, 1), r"spawn takes a workflow .* not pure\(1\)"),
    "a workflow in place of a list": (
        lambda: App(
            order,  # type: ignore[call-overload]
            environment=Environment,
            checkpoints=Checkpoints(MemoryStore()),
        ),
        r"App\(\[order\], ...\)",
    ),
}


@pytest.mark.parametrize(
    "run_id", ["", " ", "\t", "r\n1", "r\x1b[31m", "r\x7f", "r\x85", "r\u2028"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda run_id: order.start(1, run_id=run_id),
        lambda run_id: order.call(1, run_id=run_id),
        lambda run_id: spawn(order, 1, run_id=run_id),
    ],
    ids=["start", "call", "spawn"],
)
def test_the_id_of_a_new_run_is_visible_text(make: Callable[[str], object], run_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be the id of a run: use text with at least one"):
        make(run_id)


@pytest.mark.parametrize("run_id", ["0", "a b", "order/17#2", "naïve 日本", "[red]"])
def test_other_text_can_be_a_run_id(run_id: str) -> None:
    assert run(order.start(1, run_id=run_id)) == Success(1)


@pytest.mark.parametrize(("make", "way_out"), CASES.values(), ids=CASES)
def test_a_wrong_argument_is_rejected_with_the_way_out(
    make: Callable[[], object], way_out: str
) -> None:
    with pytest.raises(TypeError, match=way_out):
        make()
