"""Runs in the memory of this process: for tests, and for work that need not outlive it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import CheckpointStore, Record, RunInfo, RunQuery, RunSummary

__all__ = ["MemoryStore"]


@dataclass(slots=True)
class _Run:
    """One run: its lease, the highest fence given out, its summary and its records."""

    fence: int = 0
    lease: Lease | None = None
    summary: RunSummary | None = None
    records: list[Record] = field(default_factory=list[Record])


class MemoryStore(CheckpointStore):
    """Keeps runs in memory. Entries go through the same bytes as in any other store."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    @property
    def durability(self) -> str:
        return "memory"

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        run = self._runs.setdefault(run_id, _Run())
        now = time.time()
        if run.lease is not None and run.lease.owner != owner and run.lease.is_held(now):
            raise RunBusy(run_id, run.lease.owner, run.lease.expires_at - now)
        run.fence += 1
        run.lease = Lease(run_id, owner, run.fence, now + seconds)
        return run.lease

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        run = self._held(lease)
        run.lease = replace(lease, expires_at=time.time() + seconds)
        return run.lease

    async def release(self, lease: Lease) -> None:
        run = self._runs.get(lease.run_id)
        if run is not None and run.lease is not None and run.lease.fence == lease.fence:
            run.lease = None

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        run = self._held(lease)
        if len(run.records) != after:
            raise LeaseLost(
                lease.run_id, f"its journal has {len(run.records)} entries, not {after}"
            )
        if summary is None and run.summary is None:
            raise ValueError("the first append of a run needs a summary")
        now = time.time()
        run.records += [
            Record(sequence, now, bytes(body)) for sequence, body in enumerate(bodies, after + 1)
        ]
        run.summary = summary or run.summary
        if release:
            run.lease = None

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        run = self._runs.get(run_id)
        return [] if run is None else run.records[after:]

    async def info(self, run_id: str) -> RunInfo | None:
        run = self._runs.get(run_id)
        return None if run is None else _info(run_id, run)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        now = time.time()
        infos = [_info(run_id, run) for run_id, run in self._runs.items()]
        found = [info for info in infos if info is not None and query.matches(info, now)]
        found.sort(key=lambda info: (-info.summary.created_at, info.run_id))
        return found[query.offset : query.offset + query.limit]

    async def delete(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None or not run.records:
            raise RunNotFound(run_id)
        now = time.time()
        if run.lease is not None and run.lease.is_held(now):
            raise RunBusy(run_id, run.lease.owner, run.lease.expires_at - now)
        # The fence outlives the run: a stale writer must not pass for the owner of a new one.
        self._runs[run_id] = _Run(fence=run.fence)

    def _held(self, lease: Lease) -> _Run:
        run = self._runs.get(lease.run_id)
        if run is None or run.lease is None or run.lease.fence != lease.fence:
            owner = run.lease.owner if run and run.lease else "nobody"
            raise LeaseLost(lease.run_id, f"it is held by {owner}")
        return run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


def _info(run_id: str, run: _Run) -> RunInfo | None:
    if run.summary is None or not run.records:
        return None
    return RunInfo(run_id, run.summary, run.records[-1].written_at, len(run.records), run.lease)
