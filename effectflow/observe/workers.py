"""The workers that a store knows: those that drive runs, idle ones, and lost ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import orjson

from effectflow.checkpoint.errors import process_of
from effectflow.checkpoint.lease import Owner
from effectflow.checkpoint.run_info import RunInfo
from effectflow.checkpoint.schema import frozen, schema_of
from effectflow.checkpoint.store import CheckpointStore, ServiceStore, is_service

SECONDS_UNTIL_LOST = 90.0
"""A worker is lost after this time without a heartbeat."""

_WORKER = "worker"


@frozen
class KnownWorker:
    """A worker, as its newest heartbeat tells. Times are in seconds since the epoch, by its clock.

    Attributes:
        owner: its process, and which worker of that it is, in the form of `str(Owner)`.
        limit: the most runs that it drives.
        workflows: the versions of its workflows, or those to which it is pinned, by name and former name.
        began_at: when it began.
        seen_at: when it sent the heartbeat.
    """

    owner: str
    limit: int
    workflows: dict[str, str]
    began_at: float
    seen_at: float

    @property
    def process(self) -> str:
        """Its process, such as "process 4711 on host"."""
        return process_of(self.owner)

    def is_lost(self, now: float) -> bool:
        """Return whether it seems to have died, at `now` in seconds since the epoch."""
        owner = Owner.parse(self.owner)
        is_dead = owner is not None and owner.is_dead()
        return is_dead or now - self.seen_at > SECONDS_UNTIL_LOST


async def known_workers(store: CheckpointStore) -> list[KnownWorker]:
    """Return the workers that a store knows, those that were seen last first.

    A worker that has ended is not known any more, and a lost one not after a day.
    """
    found: list[KnownWorker] = []
    if is_service(store):
        for value in (await store.settings(_WORKER)).values():
            # Not what another version of effectflow keeps in another form.
            with suppress(KeyError, TypeError, ValueError):
                found.append(schema_of(KnownWorker).read(orjson.loads(value)))
    return sorted(found, key=lambda one: (-one.seen_at, one.owner))


async def save_worker(store: ServiceStore, worker: KnownWorker) -> None:
    """Keep the newest heartbeat of a worker."""
    body = orjson.dumps(schema_of(KnownWorker).write(worker))
    await store.save_setting(_WORKER, worker.owner, body)


async def forget_worker(store: ServiceStore, owner: str) -> None:
    """Remove a worker."""
    await store.save_setting(_WORKER, owner, None)


async def absence(store: CheckpointStore, info: RunInfo, now: float) -> str:
    """Return that a run is due and no worker may take it, as a part of a sentence; or "".

    Parameters:
        store: the store of the run.
        info: the run.
        now: the time, in seconds since the epoch.
    """
    due_at = info.summary.due_at
    if due_at is None or due_at > now or info.is_held(now) or not is_service(store):
        return ""
    return absence_of(info.summary.workflow, await known_workers(store), now)


def absence_of(workflow: str, workers: Sequence[KnownWorker], now: float) -> str:
    """Return that none of these workers, those seen last first, lives and has a workflow; or ""."""
    having = [one for one in workers if workflow in one.workflows]
    if any(not one.is_lost(now) for one in having):
        return ""
    if not having:
        return f"no worker with workflow {workflow!r} is known"
    at = datetime.fromtimestamp(having[0].seen_at, UTC)
    return f"no worker with workflow {workflow!r} was seen since {at:%Y-%m-%d %H:%M:%S} UTC"
