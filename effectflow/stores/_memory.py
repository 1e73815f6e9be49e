"""Runs in the memory of this process, for tests and for work that need not outlive it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from effectflow.checkpoint.errors import RunNotFound
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import CheckpointStore, Record, RunInfo, RunQuery, RunSummary
from effectflow.stores._base import (
    check_current,
    check_deletable,
    check_free,
    check_kept,
    check_length,
    first_summary,
    select,
)


@dataclass(slots=True)
class _Run:
    """A run's records, as bodies and times: bytes and floats cost the garbage collector nothing."""

    summary: RunSummary
    bodies: list[bytes] = field(default_factory=list[bytes])
    times: list[float] = field(default_factory=list[float])


class MemoryStore(CheckpointStore):
    """Keeps runs in memory. Entries are encoded as for any other store.

    It can be used without entering it, and leaving it keeps the runs.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._leases: dict[str, Lease] = {}
        # One counter for all runs, so that a deleted run leaves nothing behind.
        self._fences = count(1)
        # A renewal may come from another thread.
        self._changing = threading.Lock()

    @property
    def durability(self) -> str:
        return "memory"

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        with self._changing:
            now = time.time()
            check_free(self._leases.get(run_id), now=now, claimant=owner)
            lease = Lease(run_id, owner, next(self._fences), now).renewed(seconds, now=now)
            self._leases[run_id] = lease
            return lease

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        with self._changing:
            check_current(lease, self._leases.get(lease.run_id))
            renewed = lease.renewed(seconds, now=time.time())
            self._leases[lease.run_id] = renewed
            return renewed

    async def release(self, lease: Lease) -> None:
        with self._changing:
            held = self._leases.get(lease.run_id)
            if held is not None and held.fence == lease.fence:
                del self._leases[lease.run_id]

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        with self._changing:
            check_current(lease, self._leases.get(lease.run_id))
            run = self._runs.get(lease.run_id)
            check_length(lease, 0 if run is None else len(run.bodies), after=after)
            if run is None:
                run = self._runs[lease.run_id] = _Run(first_summary(summary))
            run.bodies += map(bytes, bodies)
            run.times += [time.time()] * len(bodies)
            run.summary = summary or run.summary
            if release:
                del self._leases[lease.run_id]

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        run = self._runs.get(run_id)
        if run is None:
            return []
        new = zip(run.times[after:], run.bodies[after:], strict=True)
        return [Record(number, *record) for number, record in enumerate(new, after + 1)]

    async def info(self, run_id: str) -> RunInfo | None:
        run = self._runs.get(run_id)
        if run is None or not run.bodies:
            return None
        lease = self._leases.get(run_id)
        return RunInfo(run_id, run.summary, run.times[-1], len(run.bodies), lease)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        now = time.time()
        with self._changing:
            for run_id, lease in list(self._leases.items()):
                if run_id not in self._runs and lease.is_abandoned(now):
                    del self._leases[run_id]
        infos = [await self.info(run_id) for run_id in self._runs]
        return select((info for info in infos if info is not None), query, now=now)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        with self._changing:
            if run_id not in self._runs:
                raise RunNotFound(run_id)
            check_deletable(lease, self._leases.get(run_id), now=time.time())
            self._leases.pop(run_id, None)
            del self._runs[run_id]

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        with self._changing:
            check_current(lease, self._leases.get(lease.run_id))
            run = self._runs.get(lease.run_id)
            check_kept(lease, 0 if run is None else len(run.bodies), after=after)
            assert run is not None
            del run.bodies[after:], run.times[after:]
            run.summary = summary

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        pass
