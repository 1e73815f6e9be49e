"""A machine that is saved and read back is equal, and continues as if it had never been saved."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any

import anyio
import cbor2
import orjson
import pytest
from hypothesis import given, strategies as st

from effectflow import Effect, RetryPolicy
from effectflow.checkpoint import (
    Checkpoint,
    CorruptCheckpoint,
    DefinitionChanged,
    NotSerializable,
    UnsupportedVersion,
)
from effectflow.effects import from_fn
from effectflow.machines import (
    Abort,
    History,
    HistoryEntry,
    Machine,
    Moved,
    Outcome,
    Retry,
    StateMachine,
    Transition,
)
from tests.builders.machine.orders import App, Order, World, only, orders
from tests.builders.machine.timeline import Timeline

# A machine that follows a script of outcomes, from any state to any other.


class Light(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Parked:
    place: str
    hours: float


State = Light | Parked | str

Script = list[Outcome[Any]]


def act(state: State) -> Effect[Iterator[Outcome[Any]], str, Outcome[Any]]:
    return from_fn(lambda script: next(script))


def is_red(state: State) -> bool:
    return state is Light.RED


def scripted(retry: RetryPolicy) -> StateMachine[Iterator[Outcome[Any]], str, State]:
    """A machine whose actions take their outcomes from a script."""
    anywhere: Any = {*Light, Parked, "halt", "end"}
    return StateMachine(
        "scripted",
        initial=Light.RED,
        transitions=[
            Transition("start", Light, anywhere, act, is_red, abort_to=anywhere),
            Transition("go", Light, anywhere, act, abort_to=anywhere),
            Transition("leave", Parked, anywhere, act, abort_to=anywhere),
            Transition("wake", "halt", anywhere, act, abort_to=anywhere),
        ],
        final={"end"},
        retry=retry,
    )


machines = scripted(RetryPolicy.exponential(0.5).with_max_delay(60).without_bound())

states = st.sampled_from([*Light, "halt", "end"]) | st.builds(
    Parked, st.sampled_from(["here", "there"]), st.floats()
)
words = st.lists(st.sampled_from(["the", "road", "is", "closed", "ü", "\n"])).map(" ".join)
scripts = st.lists(
    st.builds(Moved, states) | st.builds(Retry, words) | st.builds(Abort, words, states), max_size=8
)


async def lived(
    machine: Machine[State], script: Iterable[Outcome[Any]], clock: Timeline
) -> list[Any]:
    """The machine, and the machine after each outcome of the script."""
    outcomes, life = list(script), [machine]
    for outcome in outcomes:
        machine = (await machines.step(machine).run(iter([outcome]), clock=clock)).unwrap()
        life.append(machine)
    return life


SAVED: list[Callable[[Machine[State]], Machine[State]]] = [
    lambda machine: machines.from_json(machine.to_json()),
    lambda machine: machines.from_binary(machine.to_binary()),
]


@given(scripts, st.sampled_from(SAVED))
def test_a_machine_saved_after_any_step_continues_like_the_original(
    script: Script, restored: Callable[[Machine[State]], Machine[State]]
) -> None:
    async def check() -> None:
        clock = Timeline()
        times, whole = [clock.at], [machines.begin(machine_id="m")]
        for outcome in script:
            whole += (await lived(whole[-1], [outcome], clock))[1:]
            times.append(clock.at)
        for cut, at in enumerate(times):
            again = restored(whole[cut])
            rest = await lived(again, script[cut:], Timeline(at))
            # By their text, as a state with a nan is not equal to itself.
            assert [repr(machine) for machine in rest] == [repr(machine) for machine in whole[cut:]]

    anyio.run(check)


@given(scripts, st.floats(0, 1e6))
def test_time_that_passes_while_a_machine_is_saved_changes_only_times(
    script: Script, seconds: float
) -> None:
    def timeless(machine: Machine[State]) -> str:
        entries = [replace_time(entry) for entry in machine.history]
        metadata = machine.metadata
        return repr((machine.current, entries, metadata.total_attempts, metadata.current_attempt))

    def replace_time(entry: HistoryEntry[State]) -> tuple[object, ...]:
        return (entry.transition, entry.source, entry.target, entry.attempt, entry.abort_reason)

    async def check() -> None:
        whole = await lived(machines.begin(machine_id="m"), script, clock := Timeline())
        for cut in range(len(script)):
            later = Timeline(clock.at + timedelta(seconds=seconds))
            rest = await lived(SAVED[1](whole[cut]), script[cut:], later)
            assert timeless(rest[-1]) == timeless(whole[-1])

    anyio.run(check)


@given(scripts)
def test_the_binary_form_takes_less_than_half_of_the_json(script: Script) -> None:
    async def check() -> None:
        for machine in await lived(machines.begin(), script, Timeline()):
            assert len(machine.to_binary()) < len(machine.to_json().encode()) / 2

    anyio.run(check)


@pytest.mark.parametrize("states", [("a", "b"), ("new", "done"), (0, 1), tuple(Light), (False, 2)])
@pytest.mark.parametrize("name", ["m", "orders", "the life of an order from here to there"])
def test_the_binary_form_of_a_new_machine_is_small(name: str, states: tuple[Any, Any]) -> None:
    first, last = states
    machine = StateMachine(
        name, initial=first, transitions=[Transition("go", first, last)], final={last}
    )

    for at in (machine.begin(), machine.run_until_final().run_sync(App()).unwrap()):
        assert len(at.to_binary()) < len(at.to_json()) * 0.4
        assert machine.from_binary(at.to_binary()) == at


@pytest.mark.anyio
async def test_the_binary_form_of_earlier_versions_is_still_read() -> None:
    """They were compressed without a dictionary."""
    begun = (
        "eNp1jTtuwzAQRJG75ACyJIpSlyZtUqYUVtxdio5JCuTKn87wSWwgRU6oOgoQlelm5j1gvu2RUnYxPI2nmD75EE8cE67btPX+"
        "z4Cdd8GJg0OfBYQe9Exh9jd6//XN2+uHN3NKFOQ/bkeXJabLdfQkgCDwtTeJVhd7kGU/T7jlIFHWIxAhP0m+24kCumAXRmcp"
        "y/mlKrjoNFZVWyvqYEBDqm46LEpkpNaYgdXAtdLAmhtWJemq0aotAQpNaH4AY0NhUg=="
    )
    stepped = (
        "eNqFkL9OwzAQxtU3YWBDoEtCk5QJJBhYgAGJMTr7zo5LY0f2lZYR3qQSQjxhZ0LVwkAR0i3fd59+9+fDPnFMLvhRuwjx0cz"
        "CwoRIg9fvdLNNYNY578ThrEmCwis+ZD/vXvn2K69vrh46PY+Rvezr093F9aVtXZIQn1/epxLRp4EWvNEtRstkYuh+M5WEPSCF"
        "sjzIIS+PIRvqHuBsUycAOQAcbYRFEe56Gc1QhShNZEzBr9uOBQkF36Z6sISp+ZuWfdOm857+Cf+M9hJk+NN2gbTa3jiyPXty3"
        "q4NOctJlucVG4SiRqyhLCrOCspAaaVpwoxcqnFZMYFR40nNGdRjUyqguiiL/JTqSleffTubZg=="
    )
    paid = (await orders.step(orders.begin()).run(App(), clock=Timeline())).unwrap()

    assert orders.from_binary(base64.b64decode(begun)) == orders.begin()
    assert orders.from_binary(base64.b64decode(stepped)) == replace(paid, id="")


def test_the_binary_form_is_zlib_with_the_dictionary_of_the_format(order: Machine[Order]) -> None:
    # Bit 5 of the second byte says that there is one; four bytes name it (RFC 1950).
    data = order.to_binary()
    assert data[1] & 0x20
    assert data[2:6].hex() == "0d1a7bd3"
    with pytest.raises(CorruptCheckpoint, match="compressed"):
        Checkpoint.from_binary(data)


@pytest.mark.exhaustive
def test_a_history_is_saved_up_to_a_million_items() -> None:
    """The limit in docs/machines.md: seven items per transition between states without fields."""
    begun = machines.begin()
    entry = HistoryEntry("turn", "end", "end", Timeline().now(), 1)

    def saved(count: int) -> bytes:
        return replace(begun, history=History([entry] * count)).to_binary()

    assert saved(142_800)
    with pytest.raises(NotSerializable, match="more than 1,000,000 in total"):
        saved(142_900)


def test_a_delay_that_passed_while_the_machine_was_saved_is_not_repeated() -> None:
    async def check() -> list[list[float]]:
        [_, pending] = await lived(machines.begin(), [Retry("busy")], Timeline())
        slept: list[list[float]] = []
        for later in (0.0, 0.2, 3600.0):
            clock = Timeline(pending.metadata.updated_at + timedelta(seconds=later))
            await lived(machines.from_json(pending.to_json()), [Moved("halt")], clock)
            slept.append(clock.slept)
        # A clock that is behind does not prolong the delay.
        behind = Timeline(pending.metadata.updated_at - timedelta(days=1))
        await lived(pending, [Moved("halt")], behind)
        return [*slept, behind.slept]

    first, second, third, behind = anyio.run(check)
    assert (first, second, third, behind) == ([0.499], [0.299], [0.0], [0.5])


async def saved_order() -> Machine[Order]:
    """An order after two attempts."""
    clock, app = Timeline(), App(World(busy=1))
    machine = orders.begin(machine_id="order-17")
    for _ in range(2):
        machine = (await orders.step(machine).run(app, clock=clock)).unwrap()
    return machine


@pytest.fixture
def order() -> Machine[Order]:
    return anyio.run(saved_order)


def test_the_json_is_readable(order: Machine[Order]) -> None:
    data = json.loads(order.to_json())

    assert data["version"] == 1
    assert (data["workflow"], data["workflow_version"]) == ("orders", "1")
    assert data["initial_state"] == {"$enum": ["Order", "NEW"]}
    assert data["current_state"] == {"$enum": ["Order", "PAID"]}
    [entry] = data["history"]
    assert (entry["transition"], entry["attempt"], entry["abort_reason"]) == ("charge", 2, None)
    assert entry["at"].startswith("2026-01-01T00:00:01")
    assert data["metadata"]["total_attempts"] == {"charge": 2}
    assert len(data["digest"]) == 64


def test_saving_is_pure_and_deterministic(order: Machine[Order]) -> None:
    assert order.to_json() == order.to_json()
    assert orders.from_json(order.to_json()).to_binary() == order.to_binary()


def test_a_machine_with_a_long_history_can_be_pickled() -> None:
    machine = only(
        lambda n: from_fn(lambda _: Moved(n + 1)),
        source=int,
        target=int,
        initial=0,
        final={5_000},
        guard=lambda n: n < 5_000,
    )
    ended = machine.run_until_final().run_sync(None).unwrap()
    assert pickle.loads(pickle.dumps(ended)) == ended
    assert machine.from_binary(ended.to_binary()) == ended


def test_a_newer_format_is_rejected(order: Machine[Order]) -> None:
    data = json.loads(order.to_json()) | {"version": 2, "new": "part"}

    with pytest.raises(UnsupportedVersion) as caught:
        orders.from_json(json.dumps(data))
    assert (caught.value.found, caught.value.supported) == (2, 1)
    with pytest.raises(UnsupportedVersion):
        orders.from_binary(zlib.compress(cbor2.dumps(data)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "3",
        '{"version": 1}',
        '{"version": true}',
        '{"version": "2"}',
        "{",
        "é\ud800",
    ],
)
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="the saved machine cannot be read"):
        orders.from_json(text)


@given(st.data())
def test_damaged_data_is_never_used(data: st.DataObject) -> None:
    machine = anyio.run(saved_order)
    whole = data.draw(st.sampled_from([machine.to_json().encode(), machine.to_binary()]))
    kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    damaged = {
        "cut": whole[:place],
        "flip": whole[:place] + byte + whole[place + 1 :],
        "insert": whole[:place] + byte + whole[place:],
    }[kind]
    is_json = whole.startswith(b"{")

    try:
        found = (
            orders.from_json(damaged.decode("utf-8", "surrogateescape"))
            if is_json
            else orders.from_binary(damaged)
        )
    except (CorruptCheckpoint, UnsupportedVersion):
        return
    # Inserted whitespace, or a byte replaced by itself, changes nothing.
    assert found == machine


def sealed(order: Machine[Order], **changes: Any) -> str:
    """The JSON of a machine with changed parts and a valid digest."""
    data = {**json.loads(order.to_json()), **changes}
    del data["digest"]
    return json.dumps(data | {"digest": hashlib.sha256(orjson.dumps(data)).hexdigest()})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workflow": "others"}, "it is a machine of 'others', not of 'orders'"),
        ({"current_state": "PAID"}, "PAID is not a state of 'orders'"),
        ({"current_state": {"$enum": ["Order", "GONE"]}}, "it is not a valid enum"),
        ({"current_state": {"$enum": ["Light", "RED"]}}, "'Light' is not declared"),
        ({"history": {}}, "its history is {}"),
        (
            {"history": [{"transition": "charge"}]},
            "it must have exactly the parts transition, from, to",
        ),
        ({"metadata": None}, "its metadata is None"),
        ({"more": 1}, "it must have exactly the parts version, workflow"),
        ({"version": 1.0}, "it is not a saved machine"),
    ],
)
def test_data_with_a_valid_digest_is_still_checked(
    order: Machine[Order], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        orders.from_json(sealed(order, **changes))

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("attempt", "2"),
        ("attempt", True),
        ("at", "noon"),
        ("at", "2026-01-01"),
        ("abort_reason", 3),
    ],
)
def test_every_part_of_the_history_is_checked(
    order: Machine[Order], part: str, value: object
) -> None:
    [entry] = json.loads(order.to_json())["history"]

    with pytest.raises(CorruptCheckpoint):
        orders.from_json(sealed(order, history=[entry | {part: value}]))


def renewed(version: str, **options: Any) -> StateMachine[App, Any, Any]:
    """The machine of orders in another version, with renamed states."""
    stage = Enum("Stage", {"OPEN": "open", "SETTLED": "settled", "SENT": "sent"})
    transitions: list[Transition[Any, Any, Any]] = [
        Transition("charge", stage.OPEN, stage.SETTLED),
        Transition("send", stage.SETTLED, stage.SENT),
    ]
    return StateMachine(
        "orders",
        initial=stage.OPEN,
        transitions=transitions,
        final={stage.SENT},
        version=version,
        **options,
    )


def charging(name: str = "charge", **options: Any) -> StateMachine[Any, Any, Any]:
    """The machine of orders with its first transition only."""
    return only(name=name, machine="orders", source=Order.NEW, target=Order.PAID, **options)


def test_a_machine_of_another_version_is_read_only_by_force(order: Machine[Order]) -> None:
    later = charging(version="2")
    with pytest.raises(DefinitionChanged) as caught:
        later.from_json(order.to_json())
    assert "'orders' has changed since the saved machine was started" in str(caught.value)
    assert "its version was '1' and is '2'. Read it with the code" in str(caught.value)
    assert later.from_json(order.to_json(), force=True).current is Order.PAID
    assert later.from_binary(order.to_binary(), force=True).history == order.history


def test_a_pending_retry_of_a_transition_that_is_not_taken_is_dropped() -> None:
    renamed, clock = charging("pay"), Timeline()
    pending = orders.step(orders.begin()).run_sync(App(World(busy=1)), clock=clock).unwrap()

    read = renamed.from_json(pending.to_json())
    paid = renamed.step(read).run_sync(None, clock=clock).unwrap()

    assert clock.slept == []
    assert [(entry.transition, entry.attempt) for entry in paid.history] == [("pay", 1)]
    assert paid.metadata.total_attempts == {"charge": 1, "pay": 1}


def test_migrations_upgrade_a_saved_machine(order: Machine[Order]) -> None:
    names = {"NEW": "OPEN", "PAID": "SETTLED"}

    def rename(state: Any) -> Any:
        return {"$enum": ["Stage", names[state["$enum"][1]]]}

    later = renewed("2", migrations={1: rename})

    for read in (later.from_json(order.to_json()), later.from_binary(order.to_binary())):
        assert [(entry.source.name, entry.target.name) for entry in read.history] == [
            ("OPEN", "SETTLED")
        ]
        assert read.metadata == order.metadata
        ended = later.run_until_final(read).run_sync(App()).unwrap()
        assert ended.current.name == "SENT"
        assert later.from_json(ended.to_json()) == ended


def test_an_exception_in_a_migration_is_a_defect(order: Machine[Order]) -> None:
    later = renewed("2", migrations={1: lambda state: state["no such part"]})

    with pytest.raises(KeyError) as caught:
        later.from_json(order.to_json())
    assert any("in a migration of the saved machine" in note for note in caught.value.__notes__)


def test_a_state_that_cannot_be_restored_is_not_saved() -> None:
    # A function is hashable, so it can be a state, but it cannot be saved.
    with pytest.raises(NotSerializable, match=r"\$.initial_state\[1\]"):
        only(source=("x", len), target=1).begin().to_json()
