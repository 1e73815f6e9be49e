"""Delete old runs by the rules of an App, while a worker is open."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from effectflow.effects.clock import Clock
from effectflow.effects.event_loop import strays_as_errors
from effectflow.runs.retention import Retention, prune_runs
from effectflow.service.client import Client
from effectflow.service.outage import Outage

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 60.0

_RESTING = ""
"""What stands for this task among the names of schedules, which are not empty."""


async def keep_retention(
    rules: Sequence[Retention], client: Client, clock: Clock, resting: set[str]
) -> None:
    """Delete the runs that the rules do not keep, until cancelled. `resting` has "" in between.

    Each worker does this. A run that another one deletes is skipped.
    """
    outage = Outage("the deletion of old runs")
    while True:
        began = clock.monotonic()
        try:
            with strays_as_errors():
                for rule in rules:
                    query = rule.query(clock.now().timestamp())
                    if count := await prune_runs(client.checkpoints, query, rule.keep):
                        logger.info("%d runs are deleted by %r", count, rule)
            outage.end()
        except Exception as error:
            # An error here must never end the worker.
            await anyio.sleep(outage.begin(error))
            continue
        ahead = began + _SECONDS_BETWEEN_LOOKS - clock.monotonic()
        if ahead > 0:
            resting.add(_RESTING)
            await clock.sleep(ahead)
            resting.discard(_RESTING)
