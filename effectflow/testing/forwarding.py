"""A store that forwards every call to another one, to be subclassed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from effectflow.checkpoint import (
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    FallsBack,
    KeepsHistory,
    Lease,
    ListsDamagedRuns,
    Message,
    Record,
    Remains,
    RunInfo,
    RunQuery,
    RunSummary,
    Salvages,
)

__all__ = ["ForwardingStore"]


class ForwardingStore:
    """Forwards every call to another store. Override the methods that should differ.

    Parameters:
        store: the other store. Entering and leaving are forwarded too, so if that store is already
            open, this one need not be entered.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store

    @property
    def durability(self) -> str:
        return self.store.durability

    def keep_history(self, run_id: str, copies: int) -> None:
        if isinstance(self.store, KeepsHistory):
            self.store.keep_history(run_id, copies)

    async def damaged_runs(self) -> list[str]:
        return await self.store.damaged_runs() if isinstance(self.store, ListsDamagedRuns) else []

    async def damage(self, run_id: str) -> str | None:
        return await self.store.damage(run_id) if isinstance(self.store, FallsBack) else None

    async def salvage(self, run_id: str) -> Remains:
        if isinstance(self.store, Salvages):
            return await self.store.salvage(run_id)
        return Remains(await self.store.read(run_id))

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        return await self.store.claim(run_id, owner=owner, seconds=seconds)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        return self.store.renew(lease, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self.store.release(lease)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        await self.store.append(
            lease, bodies, after=after, summary=summary, release=release, takes=takes, seen=seen
        )

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self.store.read(run_id, after=after)

    async def info(self, run_id: str) -> RunInfo | None:
        return await self.store.info(run_id)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        return await self.store.find(query)

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        return await self.store.create(run_id, bodies, summary=summary)

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        return await self.store.send(run_id, topic, key=key, body=body)

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        return await self.store.mailbox(run_id, after=after)

    async def claim_due(self, due: DueRuns) -> Claimed:
        return await self.store.claim_due(due)

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        return self.store.changes()

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await self.store.delete(run_id, lease=lease)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await self.store.truncate(lease, after=after, summary=summary)

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
