"""The contract of a store over any database in which the transactions of `_sql` can be performed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunSummary
from effectflow.checkpoint.store import (
    Batch,
    Claimed,
    DueRuns,
    Message,
    Record,
    ServiceStore,
    Taken,
)
from effectflow.stores import _sql as sql
from effectflow.stores._base import ReentrantStore
from effectflow.stores._rules import check_first
from effectflow.stores._sql import Attempt, Reading
from effectflow.stores._sql_due import ClaimMemory, claim_due, next_due
from effectflow.stores._sql_find import damaged_runs, find

A = TypeVar("A")


class SqlStore(ReentrantStore, ServiceStore):
    """A store in an SQL database. It performs the transactions, and need not know what they are for."""

    _memory: ClaimMemory

    @abstractmethod
    async def _read(self, reading: Reading[A]) -> A:
        """Return what a reading returns. Raise StoreUnavailable if that fails."""

    @abstractmethod
    async def _change(self, attempt: Attempt[A]) -> A:
        """Perform a transaction, and return its result. Raise StoreUnavailable if that fails."""

    @abstractmethod
    async def _save(self, run_id: str, attempt: Attempt[A]) -> A:
        """Do the same for a run. Raise SaveFailed if that fails."""

    @abstractmethod
    async def _announce(self, *run_ids: str) -> None:
        """Announce that these runs changed."""

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        check_first(run_id, bodies)
        info = await self._save(run_id, sql.create(run_id, bodies, summary, owner, seconds))
        if info is not None:
            await self._announce(run_id)
        return info

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        return await self._change(sql.claim(run_id, owner, seconds))

    async def release(self, lease: Lease) -> None:
        await self._change(lambda: sql.release(lease))

    async def append(self, lease: Lease, batch: Batch) -> None:
        told = await self._save(lease.run_id, sql.append(lease, batch))
        await self._announce(*told)

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return await self._read(lambda: sql.read(run_id, after))

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        return await self._read(lambda: find(query))

    async def damaged_runs(self) -> list[str]:
        return await self._read(damaged_runs)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        await self._change(sql.delete(run_id, lease))
        await self._announce(run_id)

    async def delete_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        deleted = await self._change(sql.delete_unchanged(runs)) if runs else []
        await self._announce(*deleted)
        return deleted

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await self._change(lambda: sql.truncate(lease, after, summary))

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        is_new = await self._save(run_id, sql.send(run_id, topic, key, bytes(body)))
        await self._announce(run_id)
        return is_new

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        return await self._read(lambda: sql.mailbox(run_id, after))

    async def claim_due(self, due: DueRuns) -> Claimed:
        if not self._memory.has_claimed:
            # Idle workers ask all the time, and must neither lock nor write.
            choice = await self._read(lambda: next_due(due, self._memory))
            if not choice.rows:
                return Claimed((), choice.next_due_at)
        claimed = await self._change(lambda: claim_due(due, self._memory))
        self._memory.has_claimed = bool(claimed.runs)
        return claimed

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        await self._change(lambda: sql.save_setting(kind, name, value))

    async def settings(self, kind: str) -> Mapping[str, bytes]:
        return await self._read(lambda: sql.settings(kind))
