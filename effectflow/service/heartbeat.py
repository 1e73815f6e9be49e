"""Let a store know that a worker lives, so that people see it also while it drives nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import count
from random import uniform
from typing import Any

import anyio

from effectflow.checkpoint.lease import begin_claim, end_claim
from effectflow.checkpoint.store import ServiceStore
from effectflow.effects.clock import Clock
from effectflow.effects.event_loop import strays_as_errors
from effectflow.observe.workers import KnownWorker, forget_worker, known_workers, save_worker
from effectflow.service.app import App
from effectflow.service.outage import Outage

_SECONDS_BETWEEN = (25.0, 35.0)
"""Between two heartbeats. Workers that began together spread over this time."""

_BEATS_BETWEEN_LOOKS = 100
"""How often to look for workers that were lost long ago."""

_SECONDS_KEPT = 86400.0
"""How long a lost worker stays known."""

_SECONDS_TO_END = 1.0
"""How long the end of a worker waits at most until the store has forgotten it."""


async def keep_heartbeat(
    store: ServiceStore,
    app: App[Any],
    limit: int,
    versions: Mapping[str, Collection[str]],
    clock: Clock,
) -> None:
    """Tell the store that this worker lives, until cancelled.

    `limit`, `versions` and `clock` are those of the worker. Its clock tells the times. But this sleeps in
    real time, because a test may advance that clock by years.
    """
    owner, outage, is_forgotten = begin_claim(), Outage("the heartbeat of a worker"), False
    workflows = {
        name: ", ".join(sorted(versions.get(one.name, [one.version])))
        for name, one in app.recorded.items()
    }
    began_at = clock.now().timestamp()
    try:
        for beat in count():
            try:
                with strays_as_errors():
                    now = clock.now().timestamp()
                    worker = KnownWorker(str(owner), limit, workflows, began_at, now)
                    await save_worker(store, worker)
                    if beat % _BEATS_BETWEEN_LOOKS == 0:
                        await _forget_lost(store, now)
                outage.end()
                seconds = uniform(*_SECONDS_BETWEEN)
            except Exception as error:
                # An error here must never end the worker.
                seconds = outage.begin(error)
            await anyio.sleep(seconds)
    finally:
        with anyio.move_on_after(_SECONDS_TO_END, shield=True), suppress(Exception):
            await forget_worker(store, str(owner))
            is_forgotten = True
        end_claim(owner, is_released=is_forgotten)


async def _forget_lost(store: ServiceStore, now: float) -> None:
    for one in await known_workers(store):
        if now - one.seen_at > _SECONDS_KEPT:
            await forget_worker(store, one.owner)
