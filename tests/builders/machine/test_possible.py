"""What may happen next to a machine, why nothing may, and what its history tells."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from effectflow import Checkpoints, Do, workflow
from effectflow.checkpoint import CorruptCheckpoint, read_checkpoint
from effectflow.machines import InvalidMachine, NoTransition, StateMachine, Transition
from effectflow.testing import crash_everywhere
from tests.apps import both_backends
from tests.builders.machine.orders import App, Order, World, orders
from tests.builders.machine.timeline import Timeline

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Parcel:
    address: str = ""
    grams: int = 0
    is_paid: bool = False


def has_address(parcel: Parcel) -> bool:
    return bool(parcel.address)


def is_paid(parcel: Parcel) -> bool:
    return parcel.is_paid


parcels: StateMachine[object, Any, Parcel | str] = StateMachine(
    "parcels",
    initial=Parcel(),
    transitions=[
        Transition(
            "ship",
            Parcel,
            "shipped",
            guard={
                "it has an address": has_address,
                "it is paid": is_paid,
                "it weighs less than 20 kg": lambda parcel: parcel.grams < 20_000,
            },
        ),
        Transition("store", Parcel, "stored", guard=lambda parcel: parcel.grams < 5_000),
    ],
    final={"shipped", "stored"},
)


async def test_all_violations_of_a_transition_are_told_at_once() -> None:
    error = (await parcels.step(parcels.begin(Parcel(grams=30_000))).run(None)).failure()

    assert isinstance(error, NoTransition)
    assert error.refused == ("ship", "store")
    assert error.violations == {
        "ship": ("it has an address", "it is paid", "it weighs less than 20 kg")
    }
    assert str(error).endswith(
        "the guards of 'store' returned False; 'ship' is refused, because these checks returned "
        "False: it has an address, it is paid, it weighs less than 20 kg"
    )


async def test_only_the_checks_that_returned_false_are_violations() -> None:
    heavy = Parcel("Main Street", 30_000, is_paid=True)
    error = (await parcels.step(parcels.begin(heavy)).run(None)).failure()
    assert isinstance(error, NoTransition)
    assert error.violations == {"ship": ("it weighs less than 20 kg",)}


async def test_a_transition_is_taken_if_all_checks_hold_and_passed_over_otherwise() -> None:
    complete = parcels.begin(Parcel("Main Street", 9, is_paid=True))
    assert (await parcels.step(complete).run_or_raise(None)).current == "shipped"

    unpaid = parcels.begin(Parcel("Main Street", 9))
    assert (await parcels.step(unpaid).run_or_raise(None)).current == "stored"


@both_backends
async def test_the_violations_of_a_run_are_recorded_with_its_error() -> None:
    app = App()
    heavy = Parcel("Main Street", 30_000)
    await parcels.start(heavy, run_id="r").run(app)

    error = (await parcels.result("r").run(app)).failure()
    assert isinstance(error, NoTransition)
    assert error.violations == {"ship": ("it is paid", "it weighs less than 20 kg")}


async def test_a_check_that_raises_names_itself() -> None:
    def broken(_: object) -> bool:
        raise ZeroDivisionError

    machine: StateMachine[object, Any, str] = StateMachine(
        "m",
        initial="a",
        transitions=[Transition("go", "a", "b", guard={"it works": broken})],
        final={"b"},
    )
    with pytest.raises(ZeroDivisionError) as raised:
        await machine.run_until_final().run(None)
    assert raised.value.__notes__ == ["in the check 'it works' of transition 'go'"]


def test_checks_that_are_not_functions_are_rejected() -> None:
    async def later(_: str) -> bool:
        return True

    mistaken: Any = {"it is true": True, "it is later": later}
    with pytest.raises(InvalidMachine) as raised:
        StateMachine(
            "m",
            initial="a",
            transitions=[
                Transition("go", "a", "b", guard=mistaken),
                Transition("leave", "a", "b", guard={}),
            ],
            final={"b"},
        )
    assert raised.value.problems == (
        "the check 'it is true' of transition 'go' takes a function from a state to a bool, not True",
        (
            "the check 'it is later' of transition 'go' takes a function from a state to a bool, not an "
            "async function"
        ),
        "transition 'leave' has a guard without checks",
    )


def test_a_diagram_shows_the_checks() -> None:
    assert (
        '|"ship if it has an address and it is paid and it weighs less than 20 kg"|'
        in parcels.to_mermaid()
    )


def test_the_possible_transitions_are_those_that_the_guards_allow() -> None:
    assert parcels.begin().possible() == ("store",)
    assert parcels.begin(Parcel("Main Street", 9, is_paid=True)).possible() == ("ship", "store")
    assert parcels.begin(Parcel(grams=30_000)).possible() == ()
    assert parcels.begin("shipped").possible() == ()


@both_backends
async def test_the_first_possible_transition_is_the_one_that_a_step_attempts() -> None:
    machine = orders.begin()
    while possible := machine.possible():
        machine = await orders.step(machine).run_or_raise(App())
        assert machine.history[-1].transition == possible[0]
    assert orders.is_final(machine)


async def test_a_machine_that_is_read_back_knows_its_transitions() -> None:
    machine = parcels.begin(Parcel(grams=1))
    assert parcels.from_json(machine.to_json()).possible() == ("store",)
    assert parcels.from_binary(machine.to_binary()).possible() == ("store",)

    app = App(World(is_declined=True))
    await orders.start(run_id="r").run(app)
    checkpoint = await read_checkpoint(app.checkpoints.store, "r")
    assert orders.machine_of(checkpoint).possible() == ("charge",)

    with pytest.raises(LookupError, match="pickled"):
        pickle.loads(pickle.dumps(machine)).possible()


@both_backends
async def test_the_path_and_the_durations_of_a_history() -> None:
    assert (orders.begin().path(), orders.begin().durations()) == ((Order.NEW,), ())

    machine = await orders.run_until_final().run_or_raise(App(World(busy=1)), clock=Timeline())

    assert machine.path() == (Order.NEW, Order.PAID, Order.SHIPPED)
    created, times = machine.metadata.created_at, [entry.at for entry in machine.history]
    assert created is not None
    # The delay of the retry is a second.
    assert machine.durations() == (times[0] - created, times[1] - times[0])
    assert machine.durations()[0] >= timedelta(seconds=1)
    assert sum(machine.durations(), timedelta()) == times[-1] - created


async def test_a_pending_retry_is_not_part_of_the_path() -> None:
    waiting = await orders.step(orders.begin()).run_or_raise(App(World(busy=1)), clock=Timeline())
    assert (waiting.path(), waiting.durations()) == ((Order.NEW,), ())


@both_backends
async def test_a_machine_keeps_its_id_and_the_time_at_which_it_was_created() -> None:
    at = datetime(2025, 12, 31, 23, tzinfo=timezone(timedelta(hours=1)))
    begun = orders.begin(machine_id="order-17", at=at)
    data = json.loads(begun.to_json())
    assert data["id"] == "order-17"
    assert data["metadata"]["created_at"] == "2025-12-31T22:00:00+00:00"
    assert data["metadata"]["updated_at"] == "2025-12-31T22:00:00+00:00"

    ended = await orders.run_until_final(begun).run_or_raise(App(World(busy=1)), clock=Timeline())
    for machine in (begun, ended):
        assert orders.from_json(machine.to_json()) == machine
        assert orders.from_binary(machine.to_binary()) == machine
        assert (machine.id, machine.metadata.created_at) == ("order-17", at)

    app = App()
    run = await orders.start(begun, run_id="r").run_or_raise(app)
    assert (run.id, run.metadata.created_at) == ("order-17", at)
    assert await orders.start(begun, run_id="r").run_or_raise(app) == run


@both_backends
async def test_the_first_attempt_gives_a_machine_an_id_and_a_time() -> None:
    begun, clock = orders.begin(), Timeline()
    assert (begun.id, begun.metadata.created_at) == ("", None)

    busy = await orders.step(begun).run_or_raise(App(World(busy=1)), clock=clock)
    assert UUID(busy.id)
    assert busy.metadata.created_at is not None
    saved = json.loads(busy.to_json())
    assert saved["id"] == busy.id
    assert datetime.fromisoformat(saved["metadata"]["updated_at"]) == busy.metadata.updated_at

    ended = await orders.run_until_final(orders.from_json(busy.to_json())).run_or_raise(App())
    assert (ended.id, ended.metadata.created_at) == (busy.id, busy.metadata.created_at)


@workflow
def two_orders(count: int) -> Do[App, Any, list[str]]:
    first = yield from orders.body()
    second = yield from orders.body()
    return [first.id, second.id]


async def test_a_machine_has_the_id_of_its_run() -> None:
    app = App()
    assert (await orders.start(run_id="order-17").run_or_raise(app)).id == "order-17"
    # Two machines within one run are told apart.
    both = await two_orders.start(2, run_id="both").run_or_raise(app)
    assert both == ["both:charge", "both:charge#2"]
    await crash_everywhere(two_orders, 2, lambda store: App(checkpoints=Checkpoints(store)))


def test_a_time_without_a_zone_is_rejected() -> None:
    with pytest.raises(ValueError, match="time zone"):
        orders.begin(at=datetime(2026, 1, 1))


def test_an_id_that_is_not_text_is_rejected() -> None:
    with pytest.raises(CorruptCheckpoint):
        orders.from_json(json.dumps(json.loads(orders.begin(machine_id="a").to_json()) | {"id": 7}))
