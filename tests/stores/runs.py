"""Runs that tests write to stores."""

from __future__ import annotations

from collections.abc import Sequence

from effectflow.checkpoint import CheckpointStore, Lease, Owner, RunStatus, RunSummary

SUMMARY = RunSummary("w", "standard", "1", RunStatus.RUNNING, 0.0)


async def claimed(store: CheckpointStore, run_id: str = "r", *, seconds: float = 60) -> Lease:
    """Claim a run for a new owner."""
    return await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)


async def begun(
    store: CheckpointStore,
    bodies: Sequence[bytes],
    run_id: str = "r",
    *,
    seconds: float = 60,
    release: bool = False,
) -> Lease:
    """Claim a run and append its first entries."""
    lease = await claimed(store, run_id, seconds=seconds)
    await store.append(lease, bodies, after=0, summary=SUMMARY, release=release)
    return lease


async def bodies_of(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    """Return the bodies of the entries of a run."""
    return [record.body for record in await store.read(run_id)]
