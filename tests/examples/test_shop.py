"""The example of a service, as real processes: killed with orders in flight, and stopped in order."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from shop.partners import SqliteLedger

from tests.programs import Program
from tests.stores.servers import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Shop:
    """The processes of a shop, one after another, and what they leave behind.

    Attributes:
        store: the URL of the store.
        folder: for the socket, and the file of the bank and the warehouse.
    """

    store: str
    folder: Path

    @property
    def ledger(self) -> SqliteLedger:
        return SqliteLedger(self.folder / "ledger.db")

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to the present process."""
        # A socket in a folder needs no certificates, and reading those takes longer than the request.
        transport = httpx.HTTPTransport(uds=str(self.folder / "http"), verify=False)
        with httpx.Client(transport=transport, base_url="http://shop", timeout=10) as http:
            return http.request(method, f"/orders{path}", **options)

    @contextmanager
    def process(self, **seconds: float) -> Iterator[Program]:
        """Start a process whose partners take so long for some actions. End it with SIGKILL."""
        environment = {
            "SHOP_STORE": self.store,
            "SHOP_LEDGER": str(self.folder / "ledger.db"),
            "SHOP_SECONDS": json.dumps(seconds),
        }
        process = Program(
            ["-m", "uvicorn", "shop.service:api", "--uds", str(self.folder / "http")],
            cwd=EXAMPLES,
            env=os.environ | environment,
        )
        try:
            until(lambda: process.poll() is not None or self.listens())
            assert process.returncode is None
            yield process
        finally:
            process.kill()
            process.wait()

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.folder / "http")) == 0

    def place(self, key: str, item: str, *, price: int = 20_00, card: str = "visa") -> None:
        order = {"item": item, "price": price, "card": card}
        placed = self.send("POST", "", json=order, headers={"Idempotency-Key": key})
        assert placed.status_code == 202

    def show(self, key: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.send("GET", f"/order-{key}").json()
        return shown

    def approve(self, key: str) -> None:
        decision = {"approved": True, "by": "Ada"}
        decided = self.send("POST", f"/order-{key}/approval", json=decision)
        assert decided.status_code == 202

    def cancel(self, key: str) -> None:
        assert self.send("DELETE", f"/order-{key}").status_code == 202

    def requests(self, key: str, action: str) -> int:
        """Return how often the partners were asked for something, also if it was the same request."""
        return sum(
            asked.startswith(f"order-{key}:") and done == action
            for asked, done in self.ledger.requests()
        )

    def done(self, key: str) -> list[str]:
        """Return what was done for an order, in order. A request that is sent again does nothing."""
        requests = dict(self.ledger.requests())
        return [done for asked, done in requests.items() if asked.startswith(f"order-{key}:")]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.exhaustive)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "postgres":
        return Shop(request.getfixturevalue("postgres"), tmp_path)
    return Shop(f"sqlite:///{tmp_path / 'orders.db'}", tmp_path)


def place_all(shop: Shop) -> None:
    shop.place("plain", "cap")
    shop.place("regretted", "cap")
    shop.place("approved", "yacht", price=9000_00)
    shop.place("withdrawn", "yacht", price=9000_00)
    shop.place("declined", "cap", card="stolen")
    shop.place("sold-out", "unicorn")
    shop.place("heavy", "piano")


ENDS = {
    "plain": ("completed", ["reserve", "charge", "ship"]),
    "regretted": ("cancelled", ["reserve", "charge", "refund", "release"]),
    "approved": ("completed", ["reserve", "charge", "ship"]),
    "withdrawn": ("cancelled", ["reserve", "release"]),
    "declined": ("failed", ["reserve", "release"]),
    "sold-out": ("failed", []),
    "heavy": ("failed", ["reserve", "charge", "refund", "release"]),
}


IN_FLIGHT = {"plain": "ship", "approved": "ship", "regretted": "refund", "heavy": "refund"}
"""What the second kill cuts off."""


def statuses() -> dict[str, str]:
    return {key: status for key, (status, _) in ENDS.items()}


def until(condition: Callable[[], bool]) -> None:
    wait_for(condition, seconds=60)


def test_killed_with_orders_in_flight_every_order_ends_rightly(shop: Shop) -> None:
    with shop.process(charge=60):
        place_all(shop)
        for key in ("plain", "regretted", "heavy"):
            until(lambda key=key: shop.requests(key, "charge") == 1)
        shop.cancel("regretted")
    with shop.process(ship=60, refund=60):
        shop.approve("approved")
        shop.cancel("withdrawn")
        for key, action in IN_FLIGHT.items():
            until(lambda key=key, action=action: shop.requests(key, action) == 1)
    with shop.process():
        place_all(shop)  # once more
        until(lambda: {key: shop.show(key)["status"] for key in ENDS} == statuses())
        shown = {key: shop.show(key) for key in ENDS}

    assert {key: shop.done(key) for key in ENDS} == {key: done for key, (_, done) in ENDS.items()}
    assert shown["plain"]["shipped"]["payment"].startswith("visa/charge-")
    assert shown["declined"]["problem"] == "CardDeclined: stolen"
    # What a kill has cut off was asked for once more, and nothing else.
    assert shop.requests("plain", "reserve") == 1
    assert shop.requests("plain", "charge") == 2
    for key, action in IN_FLIGHT.items():
        assert shop.requests(key, action) == 2


def test_a_process_that_is_stopped_lets_a_step_end(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'orders.db'}", tmp_path)
    with shop.process(charge=1) as process:
        shop.place("plain", "cap")
        until(lambda: shop.requests("plain", "charge") == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
    with shop.process():
        until(lambda: shop.show("plain")["status"] == "completed")

    assert shop.requests("plain", "charge") == 1
