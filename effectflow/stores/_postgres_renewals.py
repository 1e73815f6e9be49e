"""Renew the leases of a PostgresStore, from any thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from effectflow.stores._postgres_connection import Queries, is_lost, set_timeout

A = TypeVar("A")

_LOCK_SECONDS = 0.5
"""How long a lease that another program has locked may delay the renewal of other leases."""


class Renewals:
    """Renews leases from any thread, on its own connection.

    Parameters:
        timeout: how many seconds a renewal may take, with a new connection if one is needed.
    """

    def __init__(self, parameters: dict[str, Any], queries: Queries, *, timeout: float) -> None:
        self._parameters: dict[str, Any] = {**parameters, "connect_timeout": math.ceil(timeout)}
        self._queries = queries
        self._timeout = timeout
        self._connection: _BoundedConnection | None = None
        self._using = threading.Lock()
        self._is_closed = False

    def rows(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        """Return the rows of a statement, which is repeated once after a lost connection."""
        deadline = time.monotonic() + self._timeout
        if not self._using.acquire(timeout=self._timeout):
            raise psycopg.OperationalError("another renewal takes too long")
        try:
            try:
                return self._attempt(statement, parameters, deadline)
            except psycopg.OperationalError as error:
                if not is_lost(error) or time.monotonic() >= deadline:
                    raise
                return self._attempt(statement, parameters, deadline)
        finally:
            self._using.release()
            if self._is_closed:
                self.close()

    def _attempt(self, statement: str, parameters: Sequence[Any], deadline: float) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = _BoundedConnection.connect(**self._parameters)
                self._connection.deadline = deadline
                self._connection.execute(set_timeout("statement", self._timeout))
                lock_timeout = min(_LOCK_SECONDS, self._timeout)
                self._connection.execute(set_timeout("lock", lock_timeout))
            self._connection.deadline = deadline
            text = self._queries.text(statement)
            return self._connection.execute(text, parameters, binary=True).fetchall()
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.OperationalError:
            # Even if the answer is only late, because the next statement must not receive it.
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection after the renewal in progress, if there is one."""
        self._is_closed = True
        if self._using.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._using.release()


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection on which no statement waits for the server beyond `deadline`."""

    deadline = math.inf

    def wait(self, gen: PQGen[A], *args: Any, **options: Any) -> A:
        return super().wait(self._until_deadline(gen), *args, **options)

    def _until_deadline(self, gen: PQGen[A]) -> PQGen[A]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if time.monotonic() > self.deadline:
                    raise psycopg.OperationalError("the server did not answer in time")
                wanted = gen.send(ready)
        except StopIteration as stop:
            return stop.value
