"""What migrations of a machine are given: its states, and nothing that its actions save besides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from returns.result import Success

from effectflow import (
    Abort,
    Checkpoints,
    Do,
    Machine,
    Moved,
    Retry,
    RetryPolicy,
    StateMachine,
    Transition,
    do,
    par_traverse,
    pure,
    step,
)
from effectflow.checkpoint import read_checkpoint
from effectflow.effects import Effect
from effectflow.stores import MemoryStore
from effectflow.workflows import Outcome, transition_info
from tests.apps import App, Crash, World, note

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with MemoryStore() as store:
        yield App(Checkpoints(store), World(crashing={"ship"}))


@step
def quote(item: str) -> Effect[object, str, dict[str, str]]:
    """What it gives has the look of an attempt, and is none."""
    return pure({"outcome": "moved", "state": item})


@do
def price(state: str) -> Do[App, Any, Outcome[Any]]:
    yield from par_traverse(["a", "b"], quote, key=str)
    attempt = yield from transition_info()
    prefix = state.partition(" ")[0]
    return Moved(f"{prefix} priced") if attempt.retries else Retry("once more")


@do
def ship(state: str) -> Do[App, Any, Outcome[Any]]:
    quoted = yield from quote("c")
    assert quoted == {"outcome": "moved", "state": "c"}
    yield from note("ship")
    return Abort("lost it", f"{state.partition(' ')[0]} lost")


def machine(word: str, version: str, **options: Any) -> StateMachine[App, Any, str]:
    """A machine whose states have another first word in each version."""
    return StateMachine(
        "renamed",
        initial=f"{word} new",
        transitions=[
            Transition("price", f"{word} new", f"{word} priced", price),
            Transition("ship", f"{word} priced", f"{word} sent", ship, abort_to=f"{word} lost"),
        ],
        final={f"{word} sent", f"{word} lost"},
        retry=RetryPolicy.constant(0).with_max_retries(2),
        version=version,
        **options,
    )


STATES = {f"old {part}": f"now {part}" for part in ("new", "priced", "sent", "lost")}


def renamed(state: Any) -> Any:
    """Knows the states, and can do nothing with anything else."""
    return STATES[state]


EARLIER = machine("old", "1")
LATER = machine("now", "2", migrations={1: renamed})


def moves(machine: Machine[str]) -> list[tuple[str, str]]:
    return [(entry.source, entry.target) for entry in machine.history]


ALL_MOVES = [("now new", "now priced"), ("now priced", "now lost")]


async def test_a_run_goes_on_whose_actions_have_durable_steps_of_their_own(app: App) -> None:
    with pytest.raises(Crash):
        await EARLIER.start(run_id="r").run(app)
    paths = [
        done.step for done in (await read_checkpoint(app.checkpoints.store, "r")).completed_steps
    ]
    assert "ship/quote" in paths
    app.world.recover()

    assert (await LATER.plan("r").run(app)).unwrap().start == "ship"
    resumed = (await LATER.resume("r").run(app)).unwrap()

    assert (resumed.initial, resumed.current) == ("now new", "now lost")
    assert moves(resumed) == ALL_MOVES
    assert resumed.metadata.total_attempts == {"price": 2, "ship": 1}
    assert await LATER.resume("r").run(app) == Success(resumed)


async def test_a_complete_run_is_upgraded_as_a_whole(app: App) -> None:
    app.world.recover()
    await EARLIER.start(run_id="r").run(app)

    resumed = (await LATER.resume("r").run(app)).unwrap()

    assert (resumed.initial, resumed.current) == ("now new", "now lost")
    assert moves(resumed) == ALL_MOVES


async def test_a_run_that_began_with_a_machine_is_upgraded(app: App) -> None:
    by_hand = EARLIER.begin()
    for _ in range(2):
        by_hand = await EARLIER.step(by_hand).run_or_raise(app)
    with pytest.raises(Crash):
        await EARLIER.start(by_hand, run_id="r").run(app)
    app.world.recover()

    assert moves((await LATER.resume("r").run(app)).unwrap()) == ALL_MOVES
