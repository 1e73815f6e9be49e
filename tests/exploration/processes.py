"""Stores as one process sees them. It may die at an append or at a time: then no call gets through."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from effectflow.checkpoint import (
    Batch,
    Changes,
    CheckpointError,
    CheckpointStore,
    Claimed,
    DueRuns,
    Entry,
    Lease,
    Message,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    Taken,
    read_entries,
)
from effectflow.checkpoint.store import service_of
from effectflow.stores import MemoryStore
from effectflow.testing import Crashed
from effectflow.testing.forwarding import ForwardingStore
from tests.exploration.virtual_time import EPOCH, VirtualTime

A = TypeVar("A")

_ASYNC = """
    claim release append read find create send mailbox claim_due delete truncate
    damaged_runs facts salvage
"""
"""The methods of stores that are async functions."""


class PatientStore(ForwardingStore):
    """Lets no virtual time pass during a call, for stores that use threads."""

    def __init__(self, store: CheckpointStore, time: VirtualTime) -> None:
        super().__init__(store)
        self._time = time
        for name in _ASYNC.split():
            setattr(self, name, self._patient(getattr(self, name)))

    def _patient(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def wait(*args: Any, **options: Any) -> Any:
            with self._time.held():
                return await call(*args, **options)

        return wait

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        async with AsyncExitStack() as stack:
            with self._time.held():
                changes = await stack.enter_async_context(
                    service_of(self.store, "an exploration").changes()
                )
            yield changes

    async def __aenter__(self) -> Self:
        with self._time.held():
            return await super().__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._time.held():
            await super().__aexit__(exc_type, exc, traceback)


class ProcessStore(ForwardingStore):
    """The store of a process that dies.

    Parameters:
        store: what outlives the process.
        dies_after: the number of the append with which it dies; None for none.
        is_durable: whether that append takes effect.
        latency: returns the seconds that the next append takes.
        sent_at: returns when a message with a key was sent, in seconds since `EPOCH`; None if unknown.
        on_death: called when it dies.

    Attributes:
        appends: how many appends it has made.
        is_dead: whether it has died.
        taken: the keys of the messages that its appends have taken, in order.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        dies_after: int | None,
        is_durable: bool,
        latency: Callable[[], float],
        sent_at: Callable[[str], float | None],
        on_death: Callable[[], object],
    ) -> None:
        super().__init__(store)
        self.appends, self.is_dead = 0, False
        self.taken: list[str] = []
        self._dies_after, self._is_durable = dies_after, is_durable
        self._latency, self._sent_at, self._on_death = latency, sent_at, on_death
        self._leases: dict[str, Lease] = {}
        self._keys: dict[int, str] = {}

    def die(self) -> None:
        """Let no call get through from now on. The leases of a dead process are free."""
        if self.is_dead:
            return
        self.is_dead = True
        with suppress(CheckpointError):
            self.store.renew([*self._leases.values()], seconds=0)
        self._on_death()

    def _check(self) -> None:
        if self.is_dead:
            raise Crashed

    async def append(self, lease: Lease, batch: Batch) -> None:
        async def write() -> None:
            await ForwardingStore.append(self, lease, batch)
            self.taken += [self._keys[number] for number in batch.takes]

        await self._written(write)

    async def _written(self, write: Callable[[], Awaitable[A]]) -> A | None:
        """Write, and die if this is the append with which the process dies."""
        self._check()
        self.appends += 1
        dies = self.appends == self._dies_after
        if seconds := self._latency():
            await anyio.sleep(seconds)
        self._check()
        written = None
        if not dies or self._is_durable:
            written = await write()
        if dies:
            self.die()
        self._check()
        return written

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        self._check()
        messages = [self._dated(it) for it in await super().mailbox(run_id, after=after)]
        self._keys.update({message.number: message.key for message in messages})
        return messages

    def _dated(self, message: Message) -> Message:
        """Return a message with the virtual time at which it was sent."""
        time = self._sent_at(message.key)
        return message if time is None else replace(message, sent_at=EPOCH.timestamp() + time)

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        self._check()
        taken = await super().claim(run_id, owner=owner, seconds=seconds)
        self._leases[run_id] = taken.lease
        return taken

    async def claim_due(self, due: DueRuns) -> Claimed:
        self._check()
        claimed = await super().claim_due(due)
        self._leases.update({one.lease.run_id: one.lease for one in claimed.runs})
        return claimed

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._check()
        return super().renew(leases, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        self._check()
        await super().release(lease)

    async def read(self, run_id: str, *, after: int = 0) -> Any:
        self._check()
        return await super().read(run_id, after=after)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        self._check()
        return await super().find(query)

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        async def write() -> RunInfo | None:
            created = await ForwardingStore.create(
                self, run_id, bodies, summary=summary, owner=owner, seconds=seconds
            )
            if created is not None and created.lease is not None:
                self._leases[run_id] = created.lease
            return created

        if owner:
            return await self._written(write)
        self._check()
        return await write()

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        self._check()
        return await super().send(run_id, topic, key=key, body=body)


@dataclass(frozen=True, slots=True)
class Journals:
    """What a store has of all runs.

    Attributes:
        entries: the entries of each run.
        statuses: the status of each run.
    """

    entries: dict[str, list[Entry]]
    statuses: dict[str, RunStatus]

    def has_ended(self, run_id: str) -> bool:
        """Return whether a run has ended, perhaps only until somebody resumes it."""
        status = self.statuses.get(run_id)
        return status is not None and (status.has_ended or status is RunStatus.FAILED)


async def read_journals(store: CheckpointStore) -> Journals:
    infos = await store.find(RunQuery(limit=None))
    entries = {info.run_id: await read_entries(store, info.run_id) for info in infos}
    return Journals(entries, {info.run_id: info.summary.status for info in infos})


async def copy_of(store: CheckpointStore, *, without_end_of: str | None = None) -> MemoryStore:
    """Return a copy of all runs. Of one run, leave out the last entry, as if the process had died then.

    Messages that no run has received are not copied.
    """
    copy = MemoryStore()
    for info in await store.find(RunQuery(limit=None)):
        bodies = [record.body for record in await store.read(info.run_id)]
        summary = info.summary
        if info.run_id == without_end_of:
            bodies, summary = bodies[:-1], replace(summary, status=RunStatus.RUNNING)
        await copy.create(info.run_id, bodies, summary=summary)
    return copy
