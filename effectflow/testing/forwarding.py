"""A store that forwards every call to another one, to be subclassed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from types import TracebackType
from typing import Any, Self

from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunSummary
from effectflow.checkpoint.store import (
    Batch,
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    Message,
    Record,
    Remains,
    ServiceStore,
    StoreFacts,
    Taken,
    Transaction,
    TransactionStore,
    service_of,
    transactions_of,
)

__all__ = ["ForwardingStore"]


class ForwardingStore:
    """Forwards every call to another store. Override the methods that should differ.

    It satisfies `ServiceStore` and `TransactionStore` if the other store does.

    Parameters:
        store: the other store. Entering and leaving are forwarded too, so if that store is already
            open, this one need not be entered.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        missing = () if isinstance(store, ServiceStore) else _SERVICE
        missing += () if isinstance(store, TransactionStore) else _TRANSACTIONS
        if missing:
            self.__class__ = _without(type(self), missing)

    @property
    def durability(self) -> str:
        return self.store.durability

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        return await self.store.create(
            run_id, bodies, summary=summary, owner=owner, seconds=seconds
        )

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        return await self.store.claim(run_id, owner=owner, seconds=seconds)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return self.store.renew(leases, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self.store.release(lease)

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self.store.append(lease, batch)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self.store.read(run_id, after=after)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        return await self.store.find(query)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await self.store.delete(run_id, lease=lease)

    async def delete_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        return await self.store.delete_unchanged(runs)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await self.store.truncate(lease, after=after, summary=summary)

    async def salvage(self, run_id: str) -> Remains:
        return await self.store.salvage(run_id)

    async def damaged_runs(self) -> list[str]:
        return await self.store.damaged_runs()

    async def facts(self) -> StoreFacts:
        return await self.store.facts()

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        return await self._service.send(run_id, topic, key=key, body=body)

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        return await self._service.mailbox(run_id, after=after)

    async def claim_due(self, due: DueRuns) -> Claimed:
        return await self._service.claim_due(due)

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        await self._service.save_setting(kind, name, value)

    async def settings(self, kind: str) -> Mapping[str, bytes]:
        return await self._service.settings(kind)

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        return self._service.changes()

    @property
    def has_async_connections(self) -> bool:
        return self._transactions.has_async_connections

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transactions.transaction()

    async def create_within(
        self, connection: Any, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary
    ) -> bool:
        return await self._transactions.create_within(connection, run_id, bodies, summary=summary)

    @property
    def _transactions(self) -> TransactionStore:
        return transactions_of(self.store, "a wrapper of it")

    @property
    def _service(self) -> ServiceStore:
        return service_of(self.store, "a wrapper of it")

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.store.__aexit__(exc_type, exc, traceback)


_SERVICE = ("send", "mailbox", "claim_due", "changes", "save_setting", "settings")
_TRANSACTIONS = ("has_async_connections", "transaction", "create_within")


@cache
def _without(kind: type[Any], missing: tuple[str, ...]) -> type[Any]:
    """Return the class of those wrappers of this kind whose store lacks these methods."""
    # With None, a class says that it does not have a method of a protocol.
    return type(kind.__name__, (kind,), {**dict.fromkeys(missing), "__module__": kind.__module__})
