"""The shop without a network and without waiting: books in memory, and a clock that the tests advance.

cd examples && pytest shop
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import pytest
from httpx import ASGITransport, AsyncClient

from effectflow import App, Checkpoints
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from shop.orders import Shop, fulfil
from shop.partners import LedgerBank, LedgerWarehouse
from shop.service import create_api

pytestmark = pytest.mark.anyio

CAP = {"item": "cap", "price": 20_00, "card": "visa"}
YACHT = {"item": "yacht", "price": 9000_00, "card": "visa"}


@dataclass
class MemoryLedger:
    """The actions, in order. Those in `unreachable` fail because their service is down."""

    done: list[str] = field(default_factory=list[str])
    unreachable: set[str] = field(default_factory=set[str])

    async def request(self, action: str, about: str, *, key: str) -> str:
        if action in self.unreachable:
            raise ConnectionError(action)
        self.done.append(action)
        return f"{about}/{action}"


@asynccontextmanager
async def shop(ledger: MemoryLedger, clock: TestClock) -> AsyncGenerator[AsyncClient]:
    """Open the service with its worker, and yield an HTTP client for it."""

    def environment(checkpoints: Checkpoints) -> Shop:
        return Shop(checkpoints, LedgerBank(ledger), LedgerWarehouse(ledger))

    app = App([fulfil], environment=environment, checkpoints=Checkpoints(MemoryStore()))
    api = create_api(app, clock=clock)
    async with (
        api.router.lifespan_context(api),
        AsyncClient(transport=ASGITransport(api), base_url="http://shop") as http,
    ):
        yield http


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


async def place(http: AsyncClient, order: dict[str, Any], key: str = "1") -> str:
    placed = await http.post("/orders", json=order, headers={"Idempotency-Key": key})
    assert placed.status_code == 202
    return placed.headers["Location"]


async def until(http: AsyncClient, order: str, **wanted: str) -> dict[str, Any]:
    """Wait until the order matches."""
    with anyio.fail_after(60):
        while True:
            shown: dict[str, Any] = (await http.get(order)).json()
            if shown | wanted == shown:
                return shown
            await anyio.sleep(0.001)


async def test_an_order_is_shipped(ledger: MemoryLedger, test_clock: TestClock) -> None:
    async with shop(ledger, test_clock) as http:
        order = await place(http, CAP)
        shown = await until(http, order, status="completed", progress="shipped")

    assert shown["shipped"] == {"payment": "visa/charge", "parcel": "cap/reserve/ship"}
    assert ledger.done == ["reserve", "charge", "ship"]


async def test_a_request_that_is_sent_twice_places_one_order(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    async with shop(ledger, test_clock) as http:
        assert await place(http, CAP, key="17") == await place(http, CAP, key="17")
        await until(http, "/orders/order-17", status="completed")
        await place(http, CAP, key="17")
        other = await http.post("/orders", json=YACHT, headers={"Idempotency-Key": "17"})
        invalid = await http.post("/orders", json=CAP, headers={"Idempotency-Key": "1 7"})

    assert (other.status_code, invalid.status_code) == (409, 422)
    assert ledger.done == ["reserve", "charge", "ship"]


async def test_an_expensive_order_waits_for_a_person(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    async with shop(ledger, test_clock) as http:
        order = await place(http, YACHT)
        await until(http, order, status="suspended", progress="waiting for approval")
        assert ledger.done == ["reserve"]

        decision = {"approved": True, "by": "Ada"}
        assert (await http.post(f"{order}/approval", json=decision)).status_code == 202
        await until(http, order, status="completed")


async def test_an_order_that_is_refused_is_undone(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    async with shop(ledger, test_clock) as http:
        order = await place(http, YACHT)
        await http.post(f"{order}/approval", json={"approved": False, "by": "Ada"})
        await until(http, order, status="failed", problem="NotApproved: Ada has refused it")

    assert ledger.done == ["reserve", "release"]


async def test_an_order_is_refused_without_a_decision_within_three_days(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    async with shop(ledger, test_clock) as http:
        order = await place(http, YACHT)
        await until(http, order, status="suspended")
        await test_clock.advance(timedelta(days=3))
        await until(http, order, status="failed", problem="NotApproved: no decision in time")

    assert ledger.done == ["reserve", "release"]


@pytest.mark.parametrize(
    ("changed", "problem", "done"),
    [
        ({"item": "unicorn"}, "OutOfStock", []),
        ({"card": "stolen"}, "CardDeclined", ["reserve", "release"]),
        ({"item": "piano"}, "NotDeliverable", ["reserve", "charge", "refund", "release"]),
    ],
    ids=["out of stock", "declined", "not deliverable"],
)
async def test_a_failed_order_is_undone(
    ledger: MemoryLedger,
    test_clock: TestClock,
    changed: dict[str, str],
    problem: str,
    done: list[str],
) -> None:
    async with shop(ledger, test_clock) as http:
        shown = await until(http, await place(http, CAP | changed), status="failed")

    assert shown["problem"].startswith(f"{problem}: ")
    assert ledger.done == done


async def test_an_unexpected_error_is_not_shown_to_customers(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    ledger.unreachable.add("charge")
    async with shop(ledger, test_clock) as http:
        shown = await until(http, await place(http, CAP), status="failed")

    assert shown["problem"] == "an internal error"
    assert ledger.done == ["reserve", "release"]


async def test_a_cancelled_order_is_undone(ledger: MemoryLedger, test_clock: TestClock) -> None:
    async with shop(ledger, test_clock) as http:
        order = await place(http, YACHT)
        await until(http, order, status="suspended")
        assert (await http.delete(order)).status_code == 202
        await until(http, order, status="cancelled")

    assert ledger.done == ["reserve", "release"]


async def test_orders_that_are_unknown_or_have_ended_receive_nothing(
    ledger: MemoryLedger, test_clock: TestClock
) -> None:
    async with shop(ledger, test_clock) as http:
        shipped = await place(http, CAP, key="shipped")
        failed = await place(http, CAP | {"item": "unicorn"}, key="failed")
        await until(http, shipped, status="completed")
        await until(http, failed, status="failed")

        decision = {"approved": True, "by": "Ada"}
        for order, code in [(shipped, 409), (failed, 409), ("/orders/unknown", 404)]:
            decided = await http.post(f"{order}/approval", json=decision)
            cancelled = await http.delete(order)
            assert (decided.status_code, cancelled.status_code) == (code, code)
        assert (await http.get("/orders/unknown")).status_code == 404
        assert (await http.post(f"{shipped}/approval", json={})).status_code == 422
