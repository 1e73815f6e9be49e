"""How an order is processed: reserve, ask a person if it is expensive, charge, ship; or undo it all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias

from pydantic import BaseModel, PositiveInt

from effectflow import (
    Checkpoints,
    Do,
    Signal,
    compensate,
    current_step,
    do,
    effect,
    publish,
    saga,
    step,
    workflow,
)

NEEDS_APPROVAL = 500_00
"""Orders above this price, in cents, wait for a person."""

TIME_TO_DECIDE = timedelta(days=3)


class Order(BaseModel, frozen=True):
    """What a customer sends. The price is in cents."""

    item: str
    price: PositiveInt
    card: str


class Shipped(BaseModel, frozen=True):
    payment: str
    parcel: str


class Decision(BaseModel, frozen=True):
    """A person's decision about an expensive order."""

    approved: bool
    by: str


class OutOfStock(Exception):
    """The warehouse does not have the item."""


class CardDeclined(Exception):
    """The bank declines the card."""


class NotApproved(Exception):
    """A person refused the order, or nobody decided in time."""


class NotDeliverable(Exception):
    """The carrier does not take the parcel."""


Refusal: TypeAlias = OutOfStock | CardDeclined | NotApproved | NotDeliverable


class Bank(Protocol):
    """A payment provider. It executes requests with the same key only once."""

    async def charge(self, card: str, price: int, *, key: str) -> str: ...
    async def refund(self, payment: str, *, key: str) -> None: ...


class Warehouse(Protocol):
    """Recognizes repeated requests by their keys, like the bank."""

    async def reserve(self, item: str, *, key: str) -> str: ...
    async def release(self, reservation: str, *, key: str) -> None: ...
    async def ship(self, reservation: str, *, key: str) -> str: ...


@dataclass(frozen=True)
class Shop:
    """The environment of the workflow. The service and its tests create different ones."""

    checkpoints: Checkpoints
    bank: Bank
    warehouse: Warehouse


# If a crash interrupts a step, it is executed again with the same idempotency key.


@step
@effect(errors=OutOfStock)
async def reserve(shop: Shop, item: str) -> str:
    return await shop.warehouse.reserve(item, key=current_step().idempotency_key)


@step
@effect
async def release(shop: Shop, reservation: str) -> None:
    await shop.warehouse.release(reservation, key=current_step().idempotency_key)


@step
@effect(errors=CardDeclined)
async def charge(shop: Shop, card: str, price: int) -> str:
    return await shop.bank.charge(card, price, key=current_step().idempotency_key)


@step
@effect
async def refund(shop: Shop, payment: str) -> None:
    await shop.bank.refund(payment, key=current_step().idempotency_key)


@step
@effect(errors=NotDeliverable)
async def ship(shop: Shop, reservation: str) -> str:
    return await shop.warehouse.ship(reservation, key=current_step().idempotency_key)


approval = Signal("approval", Decision)


@do
def approved() -> Do[object, NotApproved, None]:
    """Wait for a person. Until then the run is suspended: no process holds it in memory."""
    late = NotApproved("no decision in time")
    decision = yield from approval.wait().timeout(TIME_TO_DECIDE).map_err(lambda _: late)
    if not decision.approved:
        raise NotApproved(f"{decision.by} has refused it")


@do
def fulfilled(order: Order) -> Do[Shop, Refusal, Shipped]:
    yield from publish("progress", "reserving")
    reservation = yield from compensate(reserve(order.item), release)
    if order.price > NEEDS_APPROVAL:
        yield from publish("progress", "waiting for approval")
        yield from approved()
    yield from publish("progress", "charging")
    payment = yield from compensate(charge(order.card, order.price), refund)
    yield from publish("progress", "shipping")
    parcel = yield from ship(reservation)
    yield from publish("progress", "shipped")
    return Shipped(payment=payment, parcel=parcel)


@workflow
def fulfil(order: Order) -> Do[Shop, Refusal, Shipped]:
    """Process an order. If it fails or is cancelled, undo its steps, last first."""
    return (yield from saga(fulfilled(order)))
