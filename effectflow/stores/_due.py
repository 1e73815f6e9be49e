"""Which runs are due, and which of those may be claimed: the rules of all stores, as pure functions.

A lane has the runs of one workflow with the same status, priority, queue and turn, sorted by their due
times. The due runs of a lane come first, so a search of an index of lanes reads only them, however many
other runs wait for a time or a message.

Runs of a queue that wait for their `RunSummary.turn` have a lane for each key. A claim looks at the lanes
of as many keys as it has room for, from the key after the last one that it has served. So it costs the
same however many keys and runs there are, and a key with many runs does not delay the others.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple, Protocol, TypeAlias

from effectflow.checkpoint.lease import Lease, deaths_seen_once
from effectflow.checkpoint.run_info import RunInfo, RunStatus, RunSummary
from effectflow.checkpoint.store import DueRuns


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of the limits of queues is in use.

    Attributes:
        held: how many runs are held by live owners, by queue and key, of the queues with a limit.
        starts: when runs of each queue with a limit were started last, in seconds since the epoch.
        now: the time by the clock of the store, in seconds since the epoch.
    """

    held: Mapping[str, Mapping[str, int]]
    starts: Mapping[str, Sequence[float]]
    now: float

    @staticmethod
    def of(
        leases: Iterable[tuple[str, str, Lease]],
        starts: Mapping[str, Sequence[float]],
        due: DueRuns,
        now: float,
    ) -> Usage:
        """Return the usage, given the queues, keys and leases of runs, read only if necessary."""
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        if counts_held(due):
            is_dead = deaths_seen_once()
            for queue, key, lease in leases:
                if queue in due.queues and lease.is_held(now, is_dead):
                    held[queue][key] += 1
        return Usage(held, starts, now)

    def room(self, queue: str, due: DueRuns, *, is_pending: bool, key: str = "") -> int:
        """Return how many runs of a queue and a key, pending or not, may be claimed."""
        most, limits = len(due.owners), due.queues.get(queue)
        if limits is None:
            return most
        held = self.held.get(queue, {})
        if limits.limit is not None:
            most = min(most, limits.limit - sum(held.values()))
        if limits.per_key is not None and key:
            most = min(most, limits.per_key - held.get(key, 0))
        if limits.per_second is not None and is_pending:
            count, window = limits.window
            times = self.starts.get(queue, ())
            most = min(most, count - len(_counting(times, window, self.now)))
        return max(most, 0)

    def full_keys(self, queue: str, due: DueRuns) -> list[str]:
        """Return the keys of a queue of which no more runs may be claimed."""
        limits = due.queues.get(queue)
        if limits is None or limits.per_key is None:
            return []
        held = self.held.get(queue, {})
        return [key for key, count in held.items() if key and count >= limits.per_key]

    def after(self, claimed: Iterable[RunInfo], due: DueRuns) -> Usage:
        """Return the usage after these runs were claimed."""
        held, starts = dict(self.held), dict(self.starts)
        for info in claimed:
            summary = info.summary
            queue = summary.queue_name
            limits = due.queues.get(queue)
            if limits is None:
                continue
            keys = held.get(queue, {})
            held[queue] = {**keys, summary.key: keys.get(summary.key, 0) + 1}
            if limits.per_second is not None and summary.status is RunStatus.PENDING:
                _, window = limits.window
                counting = _counting(starts.get(queue, ()), window, self.now)
                starts[queue] = [*counting, self.now]
        return Usage(held, starts, self.now)


def _counting(times: Iterable[float], window: float, now: float) -> list[float]:
    """Return the times within this number of seconds before now."""
    # Those in the future are from before the clock was set back.
    return [at for at in times if now - window < at <= now]


def counts_held(due: DueRuns) -> bool:
    """Return whether a limit depends on the runs that are held."""
    limits = due.queues.values()
    return any(one.limit is not None or one.per_key is not None for one in limits)


class Lane(NamedTuple):
    """The runs of a workflow with the same status, priority, queue and turn.

    Attributes:
        queue: as in `RunSummary`.
        turn: the key of runs that wait for their turn; empty for all others.
    """

    workflow: str
    status: str
    priority: int
    queue: str = ""
    turn: str = ""

    @staticmethod
    def of(summary: RunSummary) -> Lane:
        """Return the lane of a run that is due some time."""
        return Lane(
            *(summary.workflow, summary.status, summary.priority, summary.queue, summary.turn)
        )

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        return self.queue or self.workflow

    @property
    def is_pending(self) -> bool:
        """Whether its runs have not begun."""
        return self.status == RunStatus.PENDING

    def place(self, due: DueRuns) -> Place:
        """Return what its runs share their turns with: the same queue and priority."""
        queue = due.queues.get(self.queue_name)
        return self.queue_name, self.priority + (0 if queue is None else queue.priority)

    def room(self, usage: Usage, due: DueRuns) -> int:
        """Return how many of its runs may be claimed."""
        return usage.room(self.queue_name, due, is_pending=self.is_pending, key=self.turn)


Place: TypeAlias = tuple[str, int]
"""A queue, and a priority in it."""

Served: TypeAlias = MutableMapping[Place, str]
"""The key that was served last in each place. A store keeps it from one claim to the next."""


class DueIndex(Protocol):
    """The runs with a due time that are not nested, in lanes."""

    def lanes(self, workflow: str) -> Iterator[Lane]:
        """Yield the lanes of a workflow without a turn, also those that are empty but have turns."""
        ...

    def turns(self, lane: Lane, after: str) -> Iterator[str]:
        """Yield the turns of a lane that follow this one, in order."""
        ...

    def ready(self, lane: Lane, now: float) -> Generator[RunInfo]:
        """Yield the runs of a lane that are due at `now`, held or not, in order."""
        ...

    def next_due_at(self, lane: Lane, now: float) -> float | None:
        """Return when the next run of a lane without a turn is due after `now`; None if there is none."""
        ...


class Choice(NamedTuple):
    """The runs to claim, and when the next of the others is due."""

    runs: list[RunInfo]
    next_due_at: float | None


def choose(index: DueIndex, due: DueRuns, usage: Usage, served: Served) -> Choice:
    """Choose the runs to claim. Read no more free runs of a lane than there is room for."""
    lanes = [lane for workflow in due.workflows for lane in index.lanes(workflow)]
    candidates: list[tuple[Lane, list[RunInfo]]] = []
    for lane in lanes:
        if not (room := lane.room(usage, due)):
            continue
        full = usage.full_keys(lane.queue_name, due)
        last = served.get(lane.place(due), "")

        def free(one: Lane, most: int, full: Sequence[str] = full) -> list[RunInfo]:
            with closing(index.ready(one, due.now)) as ready:
                unheld = (info for info in ready if not info.is_held(usage.now))
                return [*islice((info for info in unheld if info.summary.key not in full), most)]

        turns = (
            turn for turn in _turns_after(index, lane, last) if free(lane._replace(turn=turn), 1)
        )
        candidates.append((lane, free(lane, room)))
        for one, most in turn_lanes(lane, [*islice(turns, room)], usage, due):
            candidates.append((one, free(one, most)))
    chosen = choose_due(candidates, due, usage, served)
    later = (index.next_due_at(lane, due.now) for lane in lanes)
    return Choice(chosen, min((at for at in later if at is not None), default=None))


def _turns_after(index: DueIndex, lane: Lane, last: str) -> Iterator[str]:
    """Yield all turns of a lane, beginning behind the one that was served last."""
    yield from index.turns(lane, last)
    yield from takewhile(lambda turn: turn <= last, index.turns(lane, ""))


def turn_lanes(
    lane: Lane, turns: Sequence[str], usage: Usage, due: DueRuns
) -> Iterator[tuple[Lane, int]]:
    """Yield the lane of each of these turns, with how many of its runs to read at most."""
    is_enough = len(turns) >= lane.room(usage, due)
    for turn in turns:
        one = lane._replace(turn=turn)
        yield one, 1 if is_enough else one.room(usage, due)


def choose_due(
    candidates: Iterable[tuple[Lane, Sequence[RunInfo]]],
    due: DueRuns,
    usage: Usage,
    served: Served,
) -> list[RunInfo]:
    """Return the runs to claim, in order, of the first due runs of each lane. Note the keys served.

    Runs with a higher priority come first, then those that have been due for longer. If keys take turns
    in a queue, its runs are in another order, as if each had been due for as long as those after it.
    """
    chosen: list[RunInfo] = []
    for one in _in_order(candidates, due, served):
        if len(chosen) == len(due.owners):
            break
        info, summary = one.info, one.info.summary
        is_pending = summary.status is RunStatus.PENDING
        if not info.is_held(usage.now) and usage.room(
            summary.queue_name, due, is_pending=is_pending, key=summary.key
        ):
            chosen.append(info)
            usage = usage.after([info], due)
            if one.is_turn:
                served[one.place] = summary.turn
    return chosen


class _Candidate(NamedTuple):
    """A run that may be claimed, and whether that is a turn in its place."""

    info: RunInfo
    place: Place
    is_turn: bool


def _in_order(
    candidates: Iterable[tuple[Lane, Sequence[RunInfo]]], due: DueRuns, served: Served
) -> list[_Candidate]:
    places: defaultdict[Place, list[tuple[Lane, Sequence[RunInfo]]]] = defaultdict(list)
    for lane, infos in candidates:
        places[lane.place(due)].append((lane, infos))
    ordered: list[tuple[tuple[int, float], _Candidate]] = []
    for place, lanes in places.items():
        due_since = math.inf
        for one in reversed(_in_turn(place, lanes, served)):
            due_since = min(due_since, _due_at(one.info))
            ordered.append(((-place[1], due_since), one))
    # Each place was added from its end, and sorting keeps the order of what is equal.
    ordered.reverse()
    ordered.sort(key=lambda one: one[0])
    return [one for _, one in ordered]


def _in_turn(
    place: Place, lanes: Sequence[tuple[Lane, Sequence[RunInfo]]], served: Served
) -> list[_Candidate]:
    """Return the runs of a place: those that continue, then one of each key after another.

    Those that neither continue nor have a turn are in turn together, as if they had a key.
    """
    have_turns = any(lane.turn for lane, _ in lanes)
    last = served.get(place, "")
    ranked: list[tuple[tuple[int, bool, str, float], _Candidate]] = []
    for lane, infos in lanes:
        is_turn = have_turns and lane.is_pending
        for number, info in enumerate(infos):
            is_later = is_turn and lane.turn <= last
            rank = number if is_turn else 0, is_later, lane.turn, _due_at(info)
            ranked.append((rank, _Candidate(info, place, is_turn)))
    ranked.sort(key=lambda one: one[0])
    return [one for _, one in ranked]


def starts_from_json(text: str | bytes) -> list[float]:
    """Return when runs of a queue were started last, as a store keeps it. Damage delays no run."""
    try:
        return [float(at) for at in json.loads(text)]
    except (TypeError, ValueError):
        return []


def _due_at(info: RunInfo) -> float:
    assert info.summary.due_at is not None
    return info.summary.due_at


def in_order(info: RunInfo) -> tuple[int, float]:
    """Return the sort key of a due run: a higher priority first, then what has been due for longer."""
    return -info.summary.priority, _due_at(info)


def is_due(summary: RunSummary, due: DueRuns) -> bool:
    """Return whether the run is due."""
    return summary.due_at is not None and summary.due_at <= due.now
