"""An order, from placed to shipped, as a state machine that survives `kill -9`.

    python examples/order_processing.py 17 --item cap --amount 2

Kill it at any moment and run the same command again: it continues from its last state and ends with the
same history. The warehouse, the bank and the carrier are files in the folder of the run. Like good
services, they return the same answer to a repeated request, which they recognize by the idempotency key
of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Never, TypeAlias

import anyio

from effectflow import (
    Checkpoints,
    Do,
    RetryPolicy,
    SqliteStore,
    ask,
    current_step,
    do,
    from_blocking,
)
from effectflow.machines import Abort, Machine, Moved, Outcome, Retry, StateMachine, Transition


@dataclass(frozen=True)
class Placed:
    item: str
    amount: int


@dataclass(frozen=True)
class Reserved:
    item: str
    amount: int
    shelf: str


@dataclass(frozen=True)
class Paid:
    shelf: str
    receipt: str


@dataclass(frozen=True)
class Shipped:
    receipt: str
    parcel: str


@dataclass(frozen=True)
class Cancelled:
    reason: str


Order: TypeAlias = Placed | Reserved | Paid | Shipped | Cancelled


@dataclass(frozen=True)
class Service:
    """An external service, simulated with a file. It returns the same answer to a repeated key."""

    path: Path
    seconds: float

    def ask(self, key: str, answers: list[str]) -> str:
        """Return the answer to a request: for a new key the next of `answers`, or the last one."""
        given: dict[str, str] = json.loads(self.path.read_text()) if self.path.exists() else {}
        if key not in given:
            given[key] = answers[min(len(given), len(answers) - 1)]
            draft = self.path.with_suffix(".new")
            draft.write_text(json.dumps(given))
            os.replace(draft, self.path)
        time.sleep(self.seconds)
        return given[key]


@dataclass(frozen=True)
class Shop:
    """The environment of the actions."""

    checkpoints: Checkpoints
    folder: Path
    seconds: float = 0.0

    def service(self, name: str) -> Service:
        return Service(self.folder / f"{name}.json", self.seconds)


@do
def request(service: str, *answers: str) -> Do[Shop, Never, str]:
    """Return the answer of a service to this step of this run."""
    shop = yield from ask(Shop)
    step = current_step()
    key = step.idempotency_key

    def answer(_: object) -> str:
        return shop.service(service).ask(key, list(answers))

    return (yield from from_blocking(answer))


@do
def reserve(order: Placed) -> Do[Shop, Never, Outcome[Reserved | Cancelled]]:
    shelf = yield from request("warehouse", "nowhere" if order.item == "hat" else "shelf 7")
    if shelf == "nowhere":
        return Abort(f"no {order.item} left", Cancelled("out of stock"))
    return Moved(Reserved(order.item, order.amount, shelf))


@do
def charge(order: Reserved) -> Do[Shop, Never, Moved[Paid] | Retry]:
    answer = yield from request("bank", "busy", "busy", f"receipt for {order.amount}")
    return Retry(f"the bank is {answer}") if answer == "busy" else Moved(Paid(order.shelf, answer))


@do
def ship(order: Paid) -> Do[Shop, Never, Moved[Shipped]]:
    parcel = yield from request("carrier", f"parcel from {order.shelf}")
    return Moved(Shipped(order.receipt, parcel))


def is_too_many(order: Placed) -> bool:
    return order.amount > 100


# Each has a name, so that mypy infers its states from its own arguments.
refusing = Transition("refuse", Placed, Cancelled("too many"), guard=is_too_many)
reserving = Transition("reserve", Placed, Reserved, reserve, abort_to=Cancelled)
charging = Transition("charge", Reserved, Paid, charge)
shipping = Transition("ship", Paid, Shipped, ship)

orders: StateMachine[Shop, Never, Order] = StateMachine(
    "order",
    initial=Placed("cap", 1),
    transitions=[refusing, reserving, charging, shipping],
    final=[Shipped, Cancelled],
    retry=RetryPolicy.exponential(0.05).with_max_retries(4),
)


def report(machine: Machine[Order]) -> str:
    """Return the history of an order, without times."""
    lines = [str(machine.initial)]
    for entry in machine.history:
        reason = f", aborted: {entry.abort_reason}" if entry.abort_reason else ""
        lines.append(f"{entry.transition} (attempt {entry.attempt}{reason}) -> {entry.target}")
    return "\n".join(lines)


async def process(number: str, order: Placed, folder: Path, seconds: float) -> None:
    async with SqliteStore(folder / "orders.db") as store:
        shop = Shop(Checkpoints(store), folder, seconds)
        machine = await orders.start(order, run_id=f"order-{number}").run_or_raise(shop)
        print(report(machine))


def main() -> None:
    parser = argparse.ArgumentParser(description="Process an order, or continue a known one.")
    parser.add_argument("number")
    parser.add_argument("--item", default="cap")
    parser.add_argument("--amount", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--seconds", type=float, default=0.5, help="how slow the services are")
    given = parser.parse_args()
    anyio.run(process, given.number, Placed(given.item, given.amount), given.folder, given.seconds)


if __name__ == "__main__":
    main()
