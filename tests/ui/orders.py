"""Workflows for the tests of actions: one that asks for an approval, and steps that fail or hang."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    fail,
    pure,
    race,
    step,
    workflow,
)
from effectflow.effects import from_async
from effectflow.mapreduce import MapReduce
from effectflow.service import App, Signal


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints
    broken: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Order:
    item: str
    price: Decimal
    gift: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str


class Declined(Exception):
    pass


BROKEN: set[str] = set()
"""The steps that fail."""

approval = Signal("approval", Decision)


@step
def reserve(order: Order) -> Effect[object, Declined, str]:
    return fail(Declined("sold out")) if "reserve" in BROKEN else pure(f"{order.item} reserved")


@step(at_most_once=True)
def charge(order: Order) -> Effect[object, Declined, str]:
    async def act(_: object) -> str:
        if "killed" in BROKEN:
            os.kill(os.getpid(), 9)
        return f"{order.price} paid"

    return fail(Declined("no money")) if "charge" in BROKEN else from_async(act)


@workflow
def fulfil(order: Order) -> Do[Shop, Declined, str]:
    reserved = yield from reserve(order)
    decision = yield from approval.wait()
    if not decision.approved:
        return f"{reserved}, declined by {decision.by}"
    paid = yield from charge(order)
    return f"{reserved}, {paid}, approved by {decision.by}"


@workflow
def buy(order: Order) -> Do[Shop, Declined, str]:
    reserved = yield from reserve(order)
    paid = yield from charge(order)
    return f"{reserved}, {paid}"


@workflow
def hold(order: Order) -> Do[Shop, Declined, str]:
    return (yield from reserve(order))


def app_on(checkpoints: Checkpoints) -> App[Any]:
    return App([fulfil, buy, hold], environment=Shop, checkpoints=checkpoints)


@step
def pack(order: Order) -> Effect[object, Declined, str]:
    return pure(f"{order.item} packed")


def changed_app(checkpoints: Checkpoints) -> App[Any]:
    """Return an App in which another step comes first."""

    @workflow
    def buy(order: Order) -> Do[Shop, Declined, str]:
        packed = yield from pack(order)
        paid = yield from charge(order)
        return f"{packed}, {paid}"

    return App([buy], environment=Shop, checkpoints=checkpoints)


BROKEN_WORDS: set[str] = set()
"""The words that cannot be spelled."""


def words(_: None) -> list[str]:
    return ["a", "b", "c"]


def spell(word: str) -> Effect[object, Declined, str]:
    return fail(Declined(word)) if word in BROKEN_WORDS else pure(word.upper())


def join(parts: list[str]) -> Effect[object, Declined, str]:
    return pure("".join(parts))


spelling = MapReduce(
    "spelling",
    items=words,
    map=spell,
    reduce=join,
    key=str,
    limit=1,
    on_item_failure="dead_letter",
)


def job_app(checkpoints: Checkpoints) -> App[Any]:
    return App([spelling], environment=Shop, checkpoints=checkpoints)


@dataclass
class Jammed(Exception):
    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


number, name = Signal("number", int), Signal("name", str)


@step
def printed(what: int | str) -> Effect[object, Jammed | Declined, str]:
    return fail(Jammed(1, str(what)))


@workflow
def choosing() -> Do[Shop, Jammed | Declined, str]:
    what = yield from race(number.wait(), name.wait())
    return (yield from printed(what))


def choice_app(checkpoints: Checkpoints) -> App[Any]:
    return App([choosing], environment=Shop, checkpoints=checkpoints)
