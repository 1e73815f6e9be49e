"""The runs that a run has spawned, and how they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from effectflow.checkpoint.entries import ChildStarted, Entry
from effectflow.checkpoint.store import CheckpointStore, find_run
from effectflow.observe.statuses import shown_status


@dataclass(frozen=True, slots=True)
class SpawnedRun:
    """A run that another one has spawned. Its status is None if the store does not have it."""

    run_id: str
    workflow: str
    status: str | None


def spawned_by(entries: Iterable[Entry]) -> list[ChildStarted]:
    """Return the beginnings of the runs that a run has spawned, each once."""
    # A resume starts a child again with a second entry.
    started = {one.run_id: one for one in entries if isinstance(one, ChildStarted)}
    return list(started.values())


async def read_spawned(
    store: CheckpointStore, spawned: Sequence[ChildStarted], now: float
) -> list[SpawnedRun]:
    """Return these runs with their statuses."""
    found: list[SpawnedRun] = []
    for one in spawned:
        info = await find_run(store, one.run_id)
        status = None if info is None else shown_status(info, now)
        found.append(SpawnedRun(one.run_id, one.workflow, status))
    return found
