"""Migrations of a machine upgrade its states, and nothing else that its actions save."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, RetryPolicy, do, par_traverse, pure, step
from effectflow.checkpoint import read_checkpoint
from effectflow.effects import Effect
from effectflow.machines import (
    Abort,
    Machine,
    Moved,
    Outcome,
    Retry,
    StateMachine,
    Transition,
    transition_info,
)
from effectflow.stores import MemoryStore
from tests.apps import App, Crash, World, note

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with MemoryStore() as store:
        yield App(Checkpoints(store), World(crashing={"ship"}))


@step
def quote(item: str) -> Effect[object, str, dict[str, str]]:
    """Its output looks like the record of an attempt."""
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
    """A machine whose states begin with another word in each version."""
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
    """Fails for anything else than a state."""
    return STATES[state]


EARLIER = machine("old", "1")
LATER = machine("now", "2", migrations={1: renamed})


def moves(machine: Machine[str]) -> list[tuple[str, str]]:
    return [(entry.source, entry.target) for entry in machine.history]


ALL_MOVES = [("now new", "now priced"), ("now priced", "now lost")]


async def test_a_run_with_steps_within_actions_is_upgraded(app: App) -> None:
    with pytest.raises(Crash):
        await EARLIER.start(run_id="r").run(app)
    paths = [
        done.step for done in (await read_checkpoint(app.checkpoints.store, "r")).completed_steps
    ]
    assert "ship/quote" in paths
    app.world.recover()

    assert (await LATER.plan("r").run(app)).unwrap().start == ("ship",)
    resumed = (await LATER.resume("r").run(app)).unwrap()

    assert (resumed.initial, resumed.current) == ("now new", "now lost")
    assert moves(resumed) == ALL_MOVES
    assert resumed.metadata.total_attempts == {"price": 2, "ship": 1}
    assert await LATER.resume("r").run(app) == Success(resumed)


async def test_a_complete_run_is_upgraded(app: App) -> None:
    app.world.recover()
    await EARLIER.start(run_id="r").run(app)

    resumed = (await LATER.resume("r").run(app)).unwrap()

    assert (resumed.initial, resumed.current) == ("now new", "now lost")
    assert moves(resumed) == ALL_MOVES


async def test_a_run_that_began_with_a_machine_is_upgraded(app: App) -> None:
    stepped = EARLIER.begin()
    for _ in range(2):
        stepped = await EARLIER.step(stepped).run_or_raise(app)
    with pytest.raises(Crash):
        await EARLIER.start(stepped, run_id="r").run(app)
    app.world.recover()

    assert moves((await LATER.resume("r").run(app)).unwrap()) == ALL_MOVES
