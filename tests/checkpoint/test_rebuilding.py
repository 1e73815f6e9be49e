"""A run that is rebuilt from its checkpoint continues after its completed steps, or is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import Checkpoints, Do, Workflow, do, par_traverse, pure, sleep, step, workflow
from effectflow.checkpoint import (
    Checkpoint,
    DefinitionChanged,
    OutcomeUnknown,
    import_run,
    read_checkpoint,
    rebuilt_run,
)
from effectflow.effects.paths import StepPath
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App

pytestmark = pytest.mark.anyio


@dataclass
class World:
    broken: set[int] = field(default_factory=set[int])
    ran: list[int] = field(default_factory=list[int])


world = World()


@step
async def note(number: int) -> int:
    world.ran.append(number)
    if number in world.broken:
        raise ValueError(number)
    return number + 1


@step(at_most_once=True)
async def pay(number: int) -> int:
    return await note(number)


@do
def twice(number: int) -> Do[App, Any, int]:
    return (yield from note(10 * (yield from note(number))))


@workflow
async def in_a_row(count: int) -> int:
    return sum([await note(number) for number in range(count)])


@workflow
async def side_by_side(count: int) -> list[int]:
    return await par_traverse(range(count), twice, limit=3, key=str)


@step
async def around(number: int) -> int:
    return await note(number) + await note(number + 10)


@workflow
async def nested(count: int) -> list[int]:
    return [await around(number) for number in range(count)]


def up_to(count: int) -> range:
    return range(count)


job = MapReduce(
    "job", items=up_to, map=note, reduce=lambda x: pure(sum(x)), key=str, limit=2, fan_in=2
)


@workflow
async def with_a_wait(count: int) -> int:
    await note(0)
    await sleep(0.001)
    return await note(1) + await note(2)


@workflow
async def paying(count: int) -> int:
    return await pay(count)


async def stopped(flow: Workflow[Any, Any, Any, Any], broken: set[int]) -> Checkpoint:
    """Return the checkpoint of a run that a broken step has stopped."""
    world.broken, store = broken, MemoryStore()
    with pytest.raises(ValueError, match=r"\d"):
        await flow.start(4, run_id="r").run(App(Checkpoints(store)))
    world.broken, world.ran = set(), []
    return await read_checkpoint(store, "r")


async def resumed(flow: Workflow[Any, Any, Any, Any], checkpoint: Checkpoint) -> Any:
    store = MemoryStore()
    assert await import_run(store, rebuilt_run(Checkpoint.from_json(checkpoint.to_json())))
    return await flow.resume("r").run(App(Checkpoints(store)))


@pytest.mark.parametrize(
    ("flow", "broken", "left"),
    [
        (in_a_row, {2}, [2, 3]),
        (side_by_side, {20}, None),
        (nested, {12}, [12, 3, 13]),
        (job, {3}, None),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
async def test_a_rebuilt_run_continues_as_the_run_itself(
    flow: Workflow[Any, Any, Any, Any], broken: set[int], left: list[int] | None
) -> None:
    checkpoint = await stopped(flow, broken)
    again = await resumed(flow, checkpoint)
    ran, world.ran = world.ran, []
    whole = await flow.start(4).run(App(Checkpoints(MemoryStore())))
    assert again == whole
    assert left is None or ran == left
    done = [one for one in checkpoint.completed_steps if StepPath(one.step).name == "note"]
    assert broken <= set(ran)
    assert len(done) + len(ran) == len(world.ran)


async def test_what_a_checkpoint_does_not_have_is_refused_before_anything_is_executed() -> None:
    checkpoint = await stopped(with_a_wait, {2})
    assert isinstance((await resumed(with_a_wait, checkpoint)).failure(), DefinitionChanged)
    assert world.ran == []


async def test_an_at_most_once_step_in_progress_is_not_repeated_silently() -> None:
    store = MemoryStore()
    await paying.start(1, run_id="r").run(App(Checkpoints(store)))
    before = await read_checkpoint(store, "r", at=2)
    world.ran = []
    assert before.metadata.unknown == ("pay",)
    assert isinstance(await resumed(paying, before), Failure)
    assert isinstance((await resumed(paying, before)).failure(), OutcomeUnknown)
    assert world.ran == []


async def test_an_ended_run_is_not_rebuilt() -> None:
    store = MemoryStore()
    assert isinstance(await in_a_row.start(1, run_id="r").run(App(Checkpoints(store))), Success)
    with pytest.raises(ValueError, match="'r' is completed: there is nothing to continue"):
        rebuilt_run(await read_checkpoint(store, "r"))
