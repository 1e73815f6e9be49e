"""The runs that were read last, so that the next look at one reads only what was added since."""

from __future__ import annotations

from collections import OrderedDict

import anyio

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.observe.recorded_run import RecordedRun, read_recorded

MOST_BYTES = 32 * 1024 * 1024
"""The bytes of entries that are kept, of all runs together, decompressed."""

_SECONDS_KEPT = 60.0
"""After this time, all of a run is read and checked again, so that damage shows."""


class RecentRuns:
    """Reads runs, and keeps those that were read last.

    Parameters:
        checkpoints: where the runs are.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._kept: OrderedDict[str, tuple[float, RecordedRun]] = OrderedDict()

    async def read(self, run_id: str) -> RecordedRun:
        """Read a run as it is now. Raises as `read_recorded`."""
        read_at, known = self._kept.pop(run_id, (0.0, None))
        now = anyio.current_time()
        if known is not None and now - read_at > _SECONDS_KEPT:
            known = None
        run = await read_recorded(self._checkpoints, run_id, known)
        self._kept[run_id] = (now if known is None else read_at, run)
        while self._kept and sum(one.size for _, one in self._kept.values()) > MOST_BYTES:
            self._kept.popitem(last=False)
        return run
