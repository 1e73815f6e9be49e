"""The bank and the warehouse, simulated with an SQLite file that keeps every request.

Like good services, they tell a request by its key. A request that is sent again gets the same answer,
and nothing is done twice.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
from anyio import to_thread

from shop.orders import CardDeclined, NotDeliverable, OutOfStock


class Ledger:
    """All requests, in the order in which they came.

    Parameters:
        path: the SQLite file.
        seconds: how long an answer takes. The request is done before.
    """

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self._path = path
        self._seconds = seconds
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS requests (action, order_id, key, answer)")

    def _open(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=30, isolation_level=None))

    async def request(self, action: str, order: str, key: str) -> str:
        """Do something for an order, unless it was done for this key. Return its number."""
        answer = await to_thread.run_sync(self._do, action, order, key)
        await anyio.sleep(self._seconds)
        return answer

    def _do(self, action: str, order: str, key: str) -> str:
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            same = "SELECT answer FROM requests WHERE key = ?"
            (number,) = database.execute("SELECT count(*) + 1 FROM requests").fetchone()
            (answer,) = database.execute(same, [key]).fetchone() or (f"{action}-{number}",)
            request = (action, order, key, answer)
            database.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", request)
            database.execute("COMMIT")
            return str(answer)

    def done(self) -> list[tuple[str, str]]:
        """Return what was done, and for which order. A request that was sent again counts once."""
        every = "SELECT action, order_id FROM requests GROUP BY key ORDER BY min(rowid)"
        with self._open() as database:
            return database.execute(every).fetchall()

    def requests(self) -> int:
        """Return how many requests there were, also those that were sent again."""
        with self._open() as database:
            (count,) = database.execute("SELECT count(*) FROM requests").fetchone()
            return int(count)


class LedgerBank:
    """It declines the card "stolen"."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def charge(self, order: str, card: str, price: int, *, key: str) -> str:
        if card == "stolen":
            raise CardDeclined(card)
        return await self._ledger.request("charge", order, key)

    async def refund(self, order: str, *, key: str) -> None:
        await self._ledger.request("refund", order, key)


class LedgerWarehouse:
    """It has everything except unicorns, and ships everything except pianos."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def reserve(self, order: str, item: str, *, key: str) -> None:
        if item == "unicorn":
            raise OutOfStock(item)
        await self._ledger.request("reserve", order, key)

    async def release(self, order: str, *, key: str) -> None:
        await self._ledger.request("release", order, key)

    async def ship(self, order: str, item: str, *, key: str) -> str:
        if item == "piano":
            raise NotDeliverable(item)
        return await self._ledger.request("ship", order, key)
