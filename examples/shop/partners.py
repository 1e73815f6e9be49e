"""The bank and the warehouse, simulated: they only record the requests.

Like good services, they recognize a request by its key. A repeated request gets the same answer, and
nothing is done twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from shop.orders import CardDeclined, NotDeliverable, OutOfStock


class Ledger(Protocol):
    """The books of the bank and the warehouse."""

    async def request(self, action: str, about: str, *, key: str) -> str:
        """Do something unless this key was used before. Return its number."""
        ...


class SqliteLedger:
    """Keeps all requests in a file, in order, so that a double charge would show.

    Parameters:
        path: the file.
        seconds: how long the answers to some actions take. The action itself happens first.
    """

    def __init__(self, path: Path, seconds: Mapping[str, float] | None = None) -> None:
        self._path = path
        self._seconds = seconds or {}
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS requests (key, action, about, answer)")

    async def request(self, action: str, about: str, *, key: str) -> str:
        answer = await to_thread.run_sync(self._do, action, about, key)
        await anyio.sleep(self._seconds.get(action, 0.0))
        return answer

    def _do(self, action: str, about: str, key: str) -> str:
        same = "SELECT answer FROM requests WHERE key = ?"
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            (number,) = database.execute("SELECT count(*) + 1 FROM requests").fetchone()
            (answer,) = database.execute(same, [key]).fetchone() or (f"{about}/{action}-{number}",)
            row = (key, action, about, answer)
            database.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", row)
            database.execute("COMMIT")
        return str(answer)

    def requests(self) -> list[tuple[str, str]]:
        """Return the key and the action of every request."""
        with self._open() as database:
            return database.execute("SELECT key, action FROM requests ORDER BY rowid").fetchall()

    def _open(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=30, isolation_level=None))


class LedgerBank:
    """A bank that charges every card except stolen ones."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def charge(self, card: str, price: int, *, key: str) -> str:
        if card == "stolen":
            raise CardDeclined(card)
        return await self._ledger.request("charge", card, key=key)

    async def refund(self, payment: str, *, key: str) -> None:
        await self._ledger.request("refund", payment, key=key)


class LedgerWarehouse:
    """A warehouse with everything except unicorns, which ships everything except pianos."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def reserve(self, item: str, *, key: str) -> str:
        if item == "unicorn":
            raise OutOfStock(item)
        return await self._ledger.request("reserve", item, key=key)

    async def release(self, reservation: str, *, key: str) -> None:
        await self._ledger.request("release", reservation, key=key)

    async def ship(self, reservation: str, *, key: str) -> str:
        if reservation.startswith("piano/"):
            raise NotDeliverable("piano")
        return await self._ledger.request("ship", reservation, key=key)
