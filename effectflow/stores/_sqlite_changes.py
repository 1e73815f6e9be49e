"""Find out which runs other processes have changed.

SQLite tells only that another connection has committed something. No index has the runs in the order of
their changes, so the runs that are waited for are compared with how they were at the last look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.store import Changes
from effectflow.stores._changes import Watcher
from effectflow.stores._sql import SUMMARY_COLUMNS, Query, Reading, Row, Steps, key_of, marks

_RUNS_PER_READ = 500
"""A look is done in pieces, because a statement has a limited number of parameters."""

# Between two looks, a run may return to an earlier summary. The fencing token then shows that.
_STATE = f"{', '.join(SUMMARY_COLUMNS)}, updated_at, length, newest_message, fence"

_States: TypeAlias = dict[str, Row | None]
"""How runs are, by their ids. None for those that do not exist."""


class SqliteChanges(Changes):
    """The changes that a watcher notices, and a look at what others have changed."""

    def __init__(
        self, watcher: Watcher, read: Callable[[Reading[_States]], Awaitable[_States]]
    ) -> None:
        self._watcher = watcher
        self._read = read
        self._known: _States = {}

    async def wait(self, seconds: float) -> frozenset[str] | None:
        return await self._watcher.wait(seconds)

    async def among(self, run_ids: Collection[str]) -> Collection[str]:
        before, self._known = self._known, {}
        try:
            self._known = await self._read(lambda: _states(run_ids))
        except CheckpointError:
            # If the failure lasts, those who look at the runs report it.
            return run_ids
        # A run that is new here may have changed since those who wait for it have looked.
        return [
            run_id
            for run_id, state in self._known.items()
            if run_id not in before or before[run_id] != state
        ]


def _states(run_ids: Collection[str]) -> Steps[_States]:
    """Read how runs are, but for their leases, which are renewed all the time."""
    states: _States = dict.fromkeys(run_ids)
    ids = {key_of(run_id): run_id for run_id in run_ids}
    keys = [*ids]
    for first in range(0, len(keys), _RUNS_PER_READ):
        some = keys[first : first + _RUNS_PER_READ]
        text = f"SELECT key, {_STATE} FROM @runs WHERE key IN ({marks(some)})"
        [rows] = yield [Query(text, some)]
        states.update((ids[key], state) for key, *state in rows)
    return states
