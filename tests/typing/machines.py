"""What the checkers infer for state machines. Never run: checked by pyright and mypy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Never, TypeAlias, assert_type

from effectflow import CheckpointError, Checkpoints, Effect, HasCheckpoints, effect, pure
from effectflow.checkpoint import ResumePlan
from effectflow.machines import (
    Abort,
    Machine,
    Moved,
    NoTransition,
    Outcome,
    Retry,
    StateMachine,
    Transition,
    TransitionExhausted,
)


class Order(Enum):
    NEW = "new"
    PAID = "paid"
    SHIPPED = "shipped"
    LOST = "lost"


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Bare:
    name: str


class Declined(Exception): ...


def charge(order: Order) -> Effect[App, Declined, Moved[Order] | Retry]:
    return pure(Retry("busy") if order is Order.PAID else Moved(Order.PAID))


@effect
async def ship(app: App, order: Order) -> Outcome[Order]:
    return Abort("no truck", Order.LOST)


def is_new(order: Order) -> bool:
    return order is Order.NEW


charging = Transition("charge", Order.NEW, Order.PAID, charge)
shipping = Transition("ship", {Order.PAID}, {Order.SHIPPED}, ship, is_new, abort_to=Order.LOST)
losing = Transition("lose", {Order.NEW, Order.PAID}, Order.LOST, guard=is_new)
anything = Transition("anything", Order, Order.LOST)

assert_type(charging, Transition[App, Declined, Order])
assert_type(shipping, Transition[App, Never, Order])
assert_type(losing, Transition[object, Never, Order])
assert_type(anything, Transition[object, Never, Order])
checked = Transition(
    "check", Order.NEW, Order.PAID, guard={"it is new": lambda order: order is Order.NEW}
)
assert_type(checked, Transition[object, Never, Order])

orders: StateMachine[App, Declined, Order] = StateMachine(
    "orders",
    initial=Order.NEW,
    transitions=[charging, shipping, losing, anything],
    final={Order.SHIPPED, Order.LOST},
)
machine = orders.begin()

Errors: TypeAlias = Declined | NoTransition | TransitionExhausted

assert_type(machine, Machine[Order])
assert_type(machine.current, Order)
assert_type(machine.possible(), tuple[str, ...])
assert_type(machine.path(), tuple[Order, ...])
assert_type(machine.history[0].source, Order)
assert_type(orders.step(machine), Effect[App, Errors, Machine[Order]])
assert_type(orders.run_until_final(), Effect[App, Errors, Machine[Order]])
assert_type(orders.body(), Effect[App, Errors, Machine[Order]])
assert_type(orders.start(), Effect[App, Errors | CheckpointError, Machine[Order]])
assert_type(orders.start(Order.PAID), Effect[App, Errors | CheckpointError, Machine[Order]])
assert_type(orders.start(machine), Effect[App, Errors | CheckpointError, Machine[Order]])
assert_type(orders.resume("r"), Effect[App, Errors | CheckpointError, Machine[Order]])
assert_type(orders.result("r"), Effect[HasCheckpoints, Errors | CheckpointError, Machine[Order]])
assert_type(orders.plan("r"), Effect[App, CheckpointError, ResumePlan])
assert_type(orders.from_json("{}"), Machine[Order])
assert_type(orders.from_binary(b""), Machine[Order])


# States that are data classes, told apart by their class.


@dataclass(frozen=True)
class Draft:
    text: str


@dataclass(frozen=True)
class Review:
    text: str


@dataclass(frozen=True)
class Public:
    text: str


Article: TypeAlias = Draft | Review | Public


def submit(draft: Draft) -> Effect[object, Never, Moved[Review]]:
    return pure(Moved(Review(draft.text)))


def decide(review: Review) -> Effect[App, Declined, Outcome[Draft | Public]]:
    return pure(Moved(Public(review.text)))


submitting = Transition("submit", Draft, Review, submit)
deciding = Transition("decide", Review, Public, decide, abort_to=Draft)
giving_up = Transition("give up", Draft, Public(""))

assert_type(submitting, Transition[object, Never, Draft | Review])
assert_type(giving_up, Transition[object, Never, Draft | Public])

articles: StateMachine[App, Declined, Article] = StateMachine(
    "articles", initial=Draft(""), transitions=[submitting, deciding, giving_up], final=[Public]
)
assert_type(articles.begin().current, Draft | Review | Public)


# A set names several states, and a frozenset one: itself.

one = frozenset({"a", "b"})
assert_type(Transition("leave", {"a", "b"}, "z"), Transition[object, Never, str])
assert_type(Transition("leave", one, "z"), Transition[object, Never, frozenset[str] | str])
assert_type(Transition("leave", {one}, "z"), Transition[object, Never, frozenset[str] | str])


# As docs/machines.md spells it for mypy, where states are of classes and environments differ.

drafts_and_public: set[type[Draft | Public]] = {Draft, Public}
deciding_either = Transition("decide", Review, drafts_and_public, decide)

assert_type(deciding_either, Transition[App, Declined, Review | Draft | Public])

either: StateMachine[App, Declined, Article] = StateMachine(
    "either",
    initial=Draft(""),
    transitions=[submitting, deciding_either, giving_up],
    final=[Public],
)
assert_type(either.start(), Effect[App, Errors | CheckpointError, Machine[Article]])

mixed: StateMachine[App, Declined, Order] = StateMachine(
    "mixed",
    initial=Order.NEW,
    transitions=[
        Transition("charge", Order.NEW, Order.PAID, charge),
        Transition("lose", Order.PAID, Order.LOST),
    ],
    final={Order.LOST},
)


# A machine that needs no checkpoints is stepped in any environment, and cannot be started.


def greet(name: str) -> Effect[Bare, Never, Moved[str]]:
    return pure(Moved("done"))


greeting = StateMachine(
    "greeting",
    initial="new",
    transitions=[Transition("greet", "new", "done", greet)],
    final={"done"},
)
assert_type(greeting, StateMachine[Bare, Never, str])
greeting.start("new")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

# What must be rejected.
Transition("submit", Review, Review, submit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
Transition("charge", Order.NEW, Order.PAID, guard=lambda draft: draft.text)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType, reportUnknownMemberType]
orders.begin("new")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.start("new")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.step(articles.begin())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
