"""Count the flows of a run that have work to do. The others only wait.

A run can be suspended once all of its flows rest. A flow rests while it waits for a time, a message or
another run, and the journal records for what. A flow with branches does not count; only its branches do.
So the number of busy flows is 1 at first. A nested run shares the count of its outer run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Rest:
    """What one flow waits for. `until` is in seconds since the epoch. `look` ends the rest."""

    until: float
    what: str
    look: Callable[[], object] | None


class Activity:
    """The flows of a run that are busy, and what the others wait for.

    Attributes:
        busy: the number of flows that do not rest.
        changes: grows whenever a flow begins or ends a rest.
        on_rest: called when the last busy flow begins to rest, if not None.
    """

    __slots__ = ("_deadlines", "_rests", "busy", "changes", "on_rest")

    def __init__(self) -> None:
        self.busy = 1
        self.changes = 0
        self.on_rest: Callable[[], object] | None = None
        self._rests: dict[_Rest, None] = {}
        self._deadlines: dict[object, float] = {}

    @contextmanager
    def rest(
        self,
        what: str,
        until: float = math.inf,
        look: Callable[[], object] | None = None,
        *,
        is_pinned: bool = False,
    ) -> Generator[None]:
        """Count a flow as resting while the block runs.

        Parameters:
            what: what it waits for, in words.
            until: when it continues by itself, in seconds since the epoch.
            look: ends the wait, so that the flow checks whether it still has to wait.
            is_pinned: whether it counts as busy all the same; see `DurableFlow`.
        """
        rest = _Rest(until, what, look)
        self._rests[rest] = None
        self.changes += 1
        if not is_pinned:
            self.end_branch()
        try:
            yield
        finally:
            if not is_pinned:
                self.busy += 1
            self.changes += 1
            del self._rests[rest]

    def end_branch(self) -> None:
        """Decrement the number of busy flows."""
        self.busy -= 1
        if self.busy == 0 and self.on_rest is not None:
            self.on_rest()

    def look_again(self) -> None:
        """Let each flow check whether it still has to wait."""
        for rest in list(self._rests):
            if rest.look is not None:
                rest.look()

    def begin_deadline(self, operator: object, until: float) -> None:
        """Note that an operator cancels its branches at this time, in seconds since the epoch."""
        self._deadlines[operator] = until

    def end_deadline(self, operator: object) -> None:
        """Note that an operator has ended."""
        self._deadlines.pop(operator, None)

    @property
    def next_at(self) -> float:
        """When the first flow continues by itself, in seconds since the epoch; infinite if none does."""
        until = (rest.until for rest in self._rests)
        return min((*until, *self._deadlines.values()), default=math.inf)

    @property
    def waits_for(self) -> str:
        """What the flows wait for, in words."""
        kinds = dict.fromkeys(rest.what for rest in self._rests)
        shown = list(kinds)[:3]
        more = len(kinds) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
