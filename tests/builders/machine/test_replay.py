"""`machine_of` returns the machine with which a resume continues."""

from __future__ import annotations

from typing import Any

import pytest

from effectflow import Checkpoints, pure, step
from effectflow.checkpoint import CorruptCheckpoint, fold, read_checkpoint, read_entries
from effectflow.effects import Effect
from effectflow.machines import Machine, Moved, TransitionExhausted
from effectflow.stores import MemoryStore
from tests.builders.machine.orders import App, Order, World, only, orders
from tests.builders.machine.timeline import Timeline

pytestmark = pytest.mark.anyio


def app_on(store: MemoryStore, **world: Any) -> App:
    return App(World(**world), Checkpoints(store))


async def machine_of(store: MemoryStore) -> Machine[Order]:
    return orders.machine_of(await read_checkpoint(store, "r"))


async def test_machine_of_a_complete_run_is_its_output(store: MemoryStore) -> None:
    app = app_on(store, busy=2, has_truck=False)
    ended = await orders.start(run_id="r").run_or_raise(app, clock=Timeline())

    assert ended.history[-1].abort_reason == "no truck"
    assert await machine_of(store) == ended
    assert orders.from_json((await machine_of(store)).to_json()) == ended


async def test_machine_of_a_run_in_progress_is_the_machine_after_its_last_attempt(
    store: MemoryStore,
) -> None:
    app = app_on(store, busy=2)
    clock, by_hand = Timeline(tick=0), orders.begin(machine_id="r")
    await orders.start(run_id="r").run_or_raise(app, clock=clock)
    entries = await read_entries(store, "r")
    seen = [orders.machine_of(fold(entries[:n], "r")) for n in range(1, len(entries) + 1)]

    clock = Timeline(tick=0)
    expected = [by_hand]
    for _ in range(4):
        by_hand = await orders.step(by_hand).run_or_raise(app_on(store, busy=2), clock=clock)
        expected.append(by_hand)

    assert list(dict.fromkeys(map(str, seen))) == list(map(str, expected))
    assert seen[-1] == expected[-1]
    assert expected[1] in seen
    assert expected[1].metadata.pending is not None


async def test_machine_of_a_failed_run_can_be_drawn(store: MemoryStore) -> None:
    app = app_on(store, busy=9)
    failed = await orders.start(run_id="r").run(app, clock=Timeline())
    assert isinstance(failed.failure(), TransitionExhausted)

    machine = await machine_of(store)

    assert (machine.current, list(machine.history)) == (Order.NEW, [])
    assert machine.metadata.total_attempts == {"charge": 3}
    assert machine.metadata.pending is not None
    assert machine.metadata.pending.feedback == "busy 3"
    assert orders.to_mermaid(machine) != orders.to_mermaid()


async def test_machine_of_a_run_that_began_with_a_machine_keeps_its_history(
    store: MemoryStore,
) -> None:
    paid = await orders.step(orders.begin()).run_or_raise(app_on(store))
    ended = await orders.start(paid, run_id="r").run_or_raise(app_on(store))

    assert len(ended.history) == 2
    assert await machine_of(store) == ended


@step
def look(item: str) -> Effect[object, str, str]:
    return pure(item)


async def test_machine_of_ignores_steps_within_actions(store: MemoryStore) -> None:
    machine = only(lambda state: look(state).map(lambda _: Moved("end")))
    ended = await machine.start(run_id="r").run_or_raise(app_on(store))
    assert machine.machine_of(await read_checkpoint(store, "r")) == ended
    assert len(ended.history) == 1


async def test_the_checkpoint_of_another_workflow_is_rejected(store: MemoryStore) -> None:
    await orders.start(run_id="r").run_or_raise(app_on(store))
    checkpoint = await read_checkpoint(store, "r")
    with pytest.raises(ValueError, match="run 'r' is of workflow 'orders', not of 'other'"):
        only(machine="other").machine_of(checkpoint)
    with pytest.raises(CorruptCheckpoint, match="its input is unreadable"):
        only(machine="orders").machine_of(checkpoint)


async def test_machine_of_reads_an_upgraded_run_of_an_earlier_version(store: MemoryStore) -> None:
    await only(target="on", version="1").start(run_id="r").run_or_raise(app_on(store))
    names = {"start": "start", "on": "lit"}
    later = only(target="lit", version="2", migrations={1: lambda state: names[state]})

    entries = later.blueprint.upgraded(tuple(await read_entries(store, "r")))
    machine = later.machine_of(fold(entries, "r"))
    assert (machine.current, machine.history[0].target) == ("lit", "lit")
