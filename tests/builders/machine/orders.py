"""A machine for orders, which are charged, perhaps after retries, and then shipped or lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from effectflow import Checkpoints, Do, Effect, RetryPolicy, ask, do, fail
from effectflow.effects import from_fn
from effectflow.machines import (
    Abort,
    Moved,
    Outcome,
    Retry,
    StateMachine,
    Transition,
    transition_info,
)
from effectflow.stores import MemoryStore


class Order(Enum):
    NEW = "new"
    PAID = "paid"
    SHIPPED = "shipped"
    LOST = "lost"
    CANCELLED = "cancelled"


class Declined(Exception):
    """A typed failure of the tests."""


@dataclass
class World:
    """The outside world: how often the bank is busy, what else goes wrong, and what was done."""

    busy: int = 0
    is_declined: bool = False
    has_truck: bool = True
    done: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class App:
    world: World = field(default_factory=World)
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(MemoryStore()))


@do
def charge(order: Order) -> Do[App, Declined, Outcome[Order]]:
    attempt = yield from transition_info()
    app = yield from ask(App)
    app.world.done.append(f"charge ({attempt.feedback})")
    if app.world.is_declined:
        yield from fail(Declined("no funds"))
    if attempt.retries < app.world.busy:
        return Retry(f"busy {attempt.retries + 1}")
    return Moved(Order.PAID)


def ship(order: Order) -> Effect[App, Declined, Outcome[Order]]:
    def act(app: App) -> Outcome[Order]:
        app.world.done.append("ship")
        return Moved(Order.SHIPPED) if app.world.has_truck else Abort("no truck", Order.LOST)

    return from_fn(act)


def is_never(order: Order) -> bool:
    return False


orders = StateMachine(
    "orders",
    initial=Order.NEW,
    transitions=[
        Transition("cancel", {Order.NEW, Order.PAID}, Order.CANCELLED, guard=is_never),
        Transition("charge", Order.NEW, Order.PAID, charge),
        Transition("ship", Order.PAID, Order.SHIPPED, ship, abort_to=Order.LOST),
    ],
    final={Order.SHIPPED, Order.LOST, Order.CANCELLED},
    retry=RetryPolicy.exponential(1.0).with_max_retries(3),
)


def only(
    action: Any = None,
    *,
    name: str = "go",
    source: Any = "start",
    target: Any = "end",
    machine: str = "single",
    initial: Any = None,
    final: Any = None,
    guard: Any = None,
    abort_to: Any = None,
    at_most_once: bool = False,
    **options: Any,
) -> StateMachine[Any, Any, Any]:
    """Return a machine with a single transition."""
    more: dict[str, Any] = {} if abort_to is None else {"abort_to": abort_to}
    if at_most_once:
        more["at_most_once"] = True
    go = Transition(name, source, target, action, guard, **more)
    first = source if initial is None else initial
    ends = {target} if final is None else final
    return StateMachine(machine, initial=first, transitions=[go], final=ends, **options)
