"""The workflows whose runs are stored in `tests/format/stored`. Do not change them: their runs go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Never, TypeAlias

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    Workflow,
    ask,
    compensate,
    current_step,
    do,
    effect,
    fail,
    par_traverse,
    publish,
    pure,
    race,
    saga,
    sleep,
    spawn,
    step,
    uuid,
    workflow,
)
from effectflow.effects import never
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, Outcome, Retry, StateMachine, Transition
from effectflow.mapreduce import MapReduce

AnyWorkflow: TypeAlias = Workflow[Any, Any, Any, Any]


class Declined(Exception):
    """A typed failure. Its argument is the action that failed."""


@dataclass(frozen=True)
class Shop:
    """The environment: where runs are kept, and which actions fail."""

    checkpoints: Checkpoints
    failing: frozenset[str] = frozenset()
    done: list[str] = field(default_factory=list[str])


@effect(errors=Declined)
def perform(shop: Shop, action: str) -> str:
    shop.done.append(action)
    if action in shop.failing:
        raise Declined(action)
    return action


@step
def act(action: str) -> Effect[Shop, Declined, str]:
    return perform(action)


approval: Signal[bool] = Signal("approval", bool)


# A run that waits for a person, with what it undoes if it fails or is cancelled.


@do
def ask_and_ship(item: str) -> Do[Shop, Declined, str]:
    yield from compensate(act(f"reserve {item}"), release)
    approved = yield from approval.wait()
    yield from act("ship" if approved else "refuse")
    return f"{item} was {'shipped' if approved else 'refused'}"


def release(reserved: str) -> Effect[Shop, Declined, str]:
    return act(f"undo {reserved}")


@workflow
def request(item: str) -> Effect[Shop, Declined, str]:
    return saga(ask_and_ship(item))


# A run of code with one of everything.


@dataclass(frozen=True)
class Order:
    item: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Receipt:
    prices: tuple[int, ...]
    first: str
    is_approved: bool
    pages: int


@step(retry=RetryPolicy.constant(0.001).with_max_retries(2))
def charge(order: Order) -> Effect[Shop, Declined, str]:
    """Succeed with the second attempt."""
    return fail(Declined(order.item)) if current_step().attempt == 1 else pure("charged")


@step
def price(part: str) -> Effect[object, Declined, int]:
    return pure(len(part))


@step(at_most_once=True)
def send_mail(item: str) -> Effect[Shop, Declined, str]:
    return perform(f"mail {item}")


@step
def tidy() -> Effect[object, Never, str]:
    return pure("tidy")


@step
def print_pages(item: str) -> Effect[object, Declined, list[str]]:
    """Yield so much that the entry is compressed."""
    return pure([f"page {number} about {item}" for number in range(400)])


@workflow
def invoice(amount: int) -> Effect[Shop, Declined, int]:
    return act("write an invoice").map(lambda _: amount)


@do
def refused(item: str) -> Do[Shop, Declined, str]:
    """Fail in a step, and go on."""
    try:
        yield from act(f"refuse {item}")
    except Declined:
        return (yield from act("think again"))
    return "accepted"


@workflow
def order(order: Order) -> Do[Shop, Any, Receipt]:
    yield from publish("progress", {"done": 0})
    yield from uuid()
    yield from charge(order)
    prices = yield from par_traverse(order.parts, price, key=str, limit=1)
    waiting: Effect[Shop, Declined, str] = act("begin").and_then(lambda _: never())
    winner = act("first").and_then(lambda done: sleep(0.05).map(lambda _: done))
    first = yield from race([winner, waiting.on_exit(tidy())])
    yield from refused(order.item).context("order.refused")
    yield from send_mail(order.item)
    total = yield from invoice.call(sum(prices))
    child = yield from spawn(invoice, total, run_id=f"{order.item} of its own")
    yield from child.result()
    is_approved = yield from approval.wait().timeout(86400)
    pages = yield from print_pages(order.item)
    yield from publish("progress", {"done": 100})
    return Receipt(tuple(prices), first, is_approved, len(pages))


@workflow
def parent(amount: int) -> Do[Shop, Any, str]:
    child = yield from spawn(invoice, amount, run_id="spawned")
    paid = yield from child.result()
    return f"{paid} was paid"


# What the builders build. In their first lives, they fail at "ship", "publish", "count" or "finish".


class Parcel(Enum):
    NEW = "new"
    PACKED = "packed"
    SHIPPED = "shipped"


@do
def pack(_: Parcel) -> Do[Shop, Declined, Outcome[Parcel]]:
    shop = yield from ask(Shop)
    yield from perform("pack")
    return Retry("no box") if shop.done == ["pack"] else Moved(Parcel.PACKED)


@do
def ship(_: Parcel) -> Do[Shop, Declined, Outcome[Parcel]]:
    yield from perform("ship")
    return Moved(Parcel.SHIPPED)


parcel: StateMachine[Shop, Declined, Parcel] = StateMachine(
    "parcel",
    initial=Parcel.NEW,
    transitions=[
        Transition("pack", Parcel.NEW, Parcel.PACKED, pack),
        Transition("ship", Parcel.PACKED, Parcel.SHIPPED, ship),
    ],
    final={Parcel.SHIPPED},
    retry=RetryPolicy.constant(0.001).with_max_retries(3),
)


def write(text: str) -> Effect[Shop, Declined, str]:
    return pure(f"{text}!")


def read_aloud(text: str) -> Effect[Shop, Declined, str]:
    return pure(text.upper())


def merge(text: str, found: Mapping[str, str]) -> str:
    return " ".join([text, *sorted(found.values())])


def print_it(text: str) -> Effect[Shop, Declined, str]:
    return perform("publish").map(lambda _: text)


def is_long(text: str) -> bool:
    return len(text) > 12


review = (
    StateGraph[Shop, Declined, str]("review")
    .node("write", write)
    .parallel("read", {"aloud": read_aloud, "again": write}, merge)
    .node("publish", print_it)
    .edge("write", "read")
    .edge("read", "publish", when=is_long)
    .edge("read", "write")
    .entry("write")
    .exit("publish")
    .build()
)


def words_of(text: str) -> list[str]:
    return text.split()


@step
def count(word: str) -> Effect[Shop, Declined, int]:
    return perform(f"count {word}").map(lambda _: len(word))


def total_of(counts: list[int]) -> Effect[Shop, Declined, int]:
    return perform("count").map(lambda _: sum(counts))


words: MapReduce[Shop, Any, str, Any] = MapReduce(
    "words",
    items=words_of,
    map=count,
    reduce=total_of,
    key=str,
    limit=1,
    on_item_failure="dead_letter",
)


def double(number: int) -> Effect[Shop, Declined, int]:
    return perform(f"double {number}").map(lambda _: number * 2)


def is_large(_: int, after: int) -> bool:
    return after > 10


doubled: Iterative[Shop, Declined, int] = Iterative(
    "doubled", double, converged=is_large, max_rounds=9
)


def prepare(text: str) -> Effect[Shop, Declined, str]:
    return pure(f"{text}, prepared")


def finish(text: str) -> Effect[Shop, Declined, str]:
    return perform("finish").map(lambda _: f"{text}, finished")


listed = Workflow.of_steps("listed", [prepare, finish])


@workflow
def counting(last: int) -> Do[Shop, Declined, int]:
    """Write enough entries that a FileStore keeps the older ones in files of their own."""
    for number in range(last):
        yield from publish("number", number)
    yield from act("finish")
    return last


STARTED: Mapping[str, tuple[AnyWorkflow, Any]] = {
    "machine": (parcel, None),
    "graph": (review, "text"),
    "job": (words, "one two three"),
    "rounds": (doubled, 3),
    "steps": (listed, "text"),
    "long": (counting, 101),
}
"""By the ids of their runs: workflows that failed, and their inputs."""

FAILING = frozenset({"ship", "publish", "count", "count two", "double 6", "finish", "refuse book"})
"""What failed when the runs were stored."""

SERVED: tuple[AnyWorkflow, ...] = (request, order, invoice, parent)
"""Those that a worker drives."""
