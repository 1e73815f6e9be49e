"""Runs that tests write to stores."""

from __future__ import annotations

from collections.abc import Sequence

from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.store import CheckpointStore, find_run

SUMMARY = RunSummary("w", RunStatus.RUNNING, 0.0)


async def begun(
    store: CheckpointStore,
    bodies: Sequence[bytes] = (b"1",),
    run_id: str = "r",
    *,
    owner: str = "",
    seconds: float = 60,
) -> Lease:
    """Create a run with its first entries and a lease, by default of a new owner."""
    owner = owner or str(Owner.new())
    info = await store.create(run_id, bodies, summary=SUMMARY, owner=owner, seconds=seconds)
    assert info is not None
    assert info.lease is not None
    return info.lease


async def claimed(store: CheckpointStore, run_id: str = "r", *, seconds: float = 60) -> Lease:
    """Claim a run for a new owner."""
    return (await store.claim(run_id, owner=str(Owner.new()), seconds=seconds)).lease


async def info_of(store: CheckpointStore, run_id: str = "r") -> RunInfo:
    """Return one line about a run, which must exist."""
    info = await find_run(store, run_id)
    assert info is not None
    return info


async def bodies_of(store: CheckpointStore, run_id: str = "r") -> list[bytes]:
    """Return the bodies of the entries of a run."""
    return [record.body for record in await store.read(run_id)]
