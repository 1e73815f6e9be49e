"""The runs of a MemoryStore that are due at some time, so that a claim does not look at all others."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from effectflow.checkpoint.store import DueRuns, RunInfo, RunStatus, RunSummary
from effectflow.stores._due import Usage, choose_due, in_order


class _Lane(NamedTuple):
    """The runs of a workflow with the same priority, pending or not."""

    workflow: str
    priority: int
    is_pending: bool


class _Place(NamedTuple):
    """Where a run is in its lane: `order` tells runs apart that are due at the same time."""

    due_at: float
    order: int
    run_id: str


class DueIndex:
    """Sorts the runs of each lane by the time at which they are due."""

    def __init__(self) -> None:
        self._lanes: dict[_Lane, list[_Place]] = {}
        self._places: dict[str, tuple[_Lane, _Place]] = {}
        self._orders = count()

    def put(self, run_id: str, summary: RunSummary) -> None:
        """Note when a run is due, by its new summary."""
        if summary.due_at is None or summary.is_nested:
            self.remove(run_id)
            return
        is_pending = summary.status is RunStatus.PENDING
        lane = _Lane(summary.workflow, summary.priority, is_pending)
        if (known := self._places.get(run_id)) is not None:
            if known[0] == lane and known[1].due_at == summary.due_at:
                return
            self.remove(run_id)
        place = _Place(summary.due_at, next(self._orders), run_id)
        insort(self._lanes.setdefault(lane, []), place)
        self._places[run_id] = lane, place

    def remove(self, run_id: str) -> None:
        """Forget a run."""
        if run_id not in self._places:
            return
        lane, place = self._places.pop(run_id)
        places = self._lanes[lane]
        del places[bisect_right(places, place) - 1]
        if not places:
            del self._lanes[lane]

    def choose(
        self, due: DueRuns, usage: Usage, info: Callable[[str], RunInfo]
    ) -> tuple[list[RunInfo], float | None]:
        """Return the runs to claim, and when the next of the others is due."""
        lanes = [lane for lane in self._lanes if lane.workflow in due.workflows]
        candidates = (
            self._ready(lane, due, info)
            for lane in lanes
            if usage.room(lane.workflow, due, is_pending=lane.is_pending)
        )
        later = [at for lane in lanes if (at := self._next_due_at(lane, due.now)) is not None]
        chosen = choose_due(heapq.merge(*candidates, key=in_order), due, usage)
        return chosen, min(later, default=None)

    def _ready(
        self, lane: _Lane, due: DueRuns, info: Callable[[str], RunInfo]
    ) -> Iterator[RunInfo]:
        for place in self._lanes[lane]:
            if place.due_at > due.now:
                return
            yield info(place.run_id)

    def _next_due_at(self, lane: _Lane, now: float) -> float | None:
        places = self._lanes[lane]
        later = bisect_right(places, now, key=lambda place: place.due_at)
        return places[later].due_at if later < len(places) else None
