"""The example shop with runs in many states that a worker has driven."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from shop.orders import Order, Shop, fulfil
from shop.partners import LedgerBank, LedgerWarehouse

from effectflow import Checkpoints, Effect, Queue, SqliteStore, effect, pure
from effectflow.graphs import StateGraph
from effectflow.mapreduce import MapReduce
from effectflow.service import App, Client, Schedule, Worker

CAP = Order(item="cap", price=20_00, card="visa")
APPROVAL, COMPLETE, FAILED = "order-1004", "order-1001", "order-1002"
PAUSED, STOPPED, JOB, CLAIM = "order-1013", "order-1014", "stock", "claim-7"
"""Some of the runs, by what is special about them: the last two are a job and a graph."""


class Miscounted(Exception):
    """The shelf and the books differ."""


@dataclass(frozen=True)
class Claim:
    """What a customer claims, and how often it was looked at."""

    text: str
    looked_at: int = 0


class Ledger:
    """Keeps nothing. The answers to some requests take long."""

    async def request(self, action: str, about: str, *, key: str) -> str:
        await anyio.sleep(60 if about == "van" else 0.01)
        return f"{about}/{action}-{key[:4]}"


def shelves(_: str) -> list[str]:
    return [f"shelf {number:02}" for number in range(1, 25)]


@effect(errors=Miscounted)
async def counted(_: Shop, shelf: str) -> int:
    await anyio.sleep(0.002)
    if shelf.endswith("7"):
        raise Miscounted(f"{shelf}: 11 in the books, 10 found")
    return len(shelf)


def total(counts: list[int]) -> Effect[Shop, Miscounted, int]:
    return pure(sum(counts))


stocktaking = MapReduce(
    "stocktaking",
    items=shelves,
    map=counted,
    reduce=total,
    key=str,
    limit=4,
    on_item_failure="dead_letter",
)


def looked(claim: Claim) -> Effect[Shop, Miscounted, Claim]:
    return pure(replace(claim, looked_at=claim.looked_at + 1))


def same(claim: Claim) -> Effect[Shop, Miscounted, Claim]:
    return pure(claim)


def is_unclear(claim: Claim) -> bool:
    return claim.looked_at < 3


claims = (
    StateGraph[Shop, Miscounted, Claim]("claims")
    .node("inspect", looked)
    .node("ask", same)
    .node("refund", same)
    .edge("inspect", "ask", when=is_unclear)
    .edge("inspect", "refund")
    .edge("ask", "inspect")
    .entry("inspect")
    .exit("refund")
    .build()
)


def open_shop(checkpoints: Checkpoints) -> Shop:
    ledger = Ledger()
    return Shop(checkpoints, LedgerBank(ledger), LedgerWarehouse(ledger))


def shop_app(path: Path) -> App[Shop]:
    """Return the App of a shop with its runs in this file."""
    return App[Shop](
        [fulfil, stocktaking, claims],
        environment=open_shop,
        checkpoints=Checkpoints(SqliteStore(path)),
        schedules=[
            Schedule(stocktaking, "30 2 * * 1-5", timezone="Europe/Berlin", input="all"),
        ],
        queues=[Queue("fulfil", limit=20, per_key=2), Queue("slow", limit=0)],
    )


async def fill(app: App[Any]) -> None:
    """Have runs that are complete, have failed, wait, are paused or stopped, or have dead letters."""
    goods = ("cap", "piano", "hat", "yacht", "scarf", "unicorn", "gloves", "cap", "boots", "hat")
    async with Worker(app, suspend_after=0.05) as worker:
        client = worker.client
        for number, item in enumerate(goods, 1001):
            price = 9000_00 if item == "yacht" else 1000 + 7 * number
            order = Order(item=item, price=price, card="stolen" if item == "scarf" else "visa")
            await client.submit(
                fulfil, order, run_id=f"order-{number}", key=f"customer-{number % 4}"
            )
        await client.submit(stocktaking, "all", run_id=JOB)
        await client.submit(claims, Claim("too small"), run_id=CLAIM)
        await worker.idle()
    async with Client(app, by="ann") as client:
        for number in range(1011, 1014):
            order_id = f"order-{number}"
            await client.submit(
                fulfil, CAP, run_id=order_id, queue="slow", key=f"customer-{number}"
            )
        await client.handle(fulfil, PAUSED).pause()
        with anyio.move_on_after(0.1):
            van = Order(item="van", price=300_00, card="visa")
            await fulfil.start(van, run_id=STOPPED).run(open_shop(app.checkpoints))
        await client.pause(queue="reports")
