"""Runs in the memory of this process, for tests and for work that need not outlive it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Self

import anyio.lowlevel

from effectflow.checkpoint.errors import RunNotFound
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunSummary, notifies_parent
from effectflow.checkpoint.store import (
    NOTICE,
    Batch,
    Changes,
    Claimed,
    DueRuns,
    Message,
    Record,
    ServiceStore,
    Taken,
)
from effectflow.stores._changes import Announcements
from effectflow.stores._due import DueIndex, Lane, Served, Usage, choose
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_first,
    check_free,
    check_kept,
    check_length,
    check_messages,
    check_receives,
    check_room,
    due_if_unseen,
    is_current,
    size_in_mailbox,
    woken,
)
from effectflow.stores._summaries import select


@dataclass(slots=True)
class _Run:
    """A run's records, as bodies and times: bytes and floats cost the garbage collector nothing."""

    summary: RunSummary
    bodies: list[bytes]
    times: list[float]
    mailbox: dict[int, Message]
    received: set[tuple[str, str]]
    unread: int = 0


class MemoryStore(ServiceStore):
    """Keeps runs in memory. Entries are encoded as for any other store.

    You can use it without `async with`. Leaving an `async with` block keeps the runs.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._leases: dict[str, Lease] = {}
        # One counter for all runs, so that a deleted run leaves nothing behind.
        self._fences = count(1)
        self._messages = count(1)
        self._starts: Mapping[str, Sequence[float]] = {}
        self._served: Served = {}
        self._settings: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._due = _DueIndex(lambda run_id: self._info(run_id, self._runs[run_id]))
        self._announcements = Announcements()
        # A renewal may come from another thread.
        self._changing = threading.Lock()

    @property
    def durability(self) -> str:
        return "memory"

    async def create(
        self,
        run_id: str,
        bodies: Sequence[bytes],
        *,
        summary: RunSummary,
        owner: str = "",
        seconds: float = 0.0,
    ) -> RunInfo | None:
        check_first(run_id, bodies)
        # Nothing else here waits, and a run whose steps do not wait either would block the event loop.
        await anyio.lowlevel.checkpoint()
        with self._changing:
            if run_id in self._runs:
                return None
            now = time.time()
            times = [now] * len(bodies)
            run = self._runs[run_id] = _Run(summary, [*map(bytes, bodies)], times, {}, set())
            self._due.put(run_id, summary)
            if owner:
                self._lend(run_id, owner, seconds, now)
            info = self._info(run_id, run)
        self._announcements.announce(run_id)
        return info

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        await anyio.lowlevel.checkpoint()
        with self._changing:
            run, now = self._known(run_id), time.time()
            before = self._info(run_id, run)
            check_free(before.lease, now=now, claimant=owner)
            return Taken(self._lend(run_id, owner, seconds, now), before)

    def _lend(self, run_id: str, owner: str, seconds: float, now: float) -> Lease:
        lease = Lease.of(run_id, owner, next(self._fences), seconds=seconds, now=now)
        self._leases[run_id] = lease
        return lease

    def _known(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        with self._changing:
            now, renewed = time.time(), list[Lease]()
            for lease in leases:
                if is_current(lease, self._leases.get(lease.run_id)):
                    held = self._leases[lease.run_id] = lease.renewed(seconds, now=now)
                    renewed.append(held)
            return renewed

    async def release(self, lease: Lease) -> None:
        with self._changing:
            if is_current(lease, self._leases.get(lease.run_id)):
                del self._leases[lease.run_id]

    async def append(self, lease: Lease, batch: Batch) -> None:
        run_id, summary = lease.run_id, batch.summary
        with self._changing:
            held = self._leases.get(run_id)
            if held is not lease:
                check_current(lease, held)
            run = self._runs[run_id]
            check_length(lease, len(run.bodies), after=batch.after)
            if batch.takes:
                check_messages(lease, batch.takes, run.mailbox)
                for number in batch.takes:
                    run.unread -= size_in_mailbox(len(run.mailbox.pop(number).body))
            now = time.time()
            run.bodies += batch.bodies
            run.times += [now] * len(batch.bodies)
            if batch.release:
                del self._leases[run_id]
            if summary is None:
                return
            if summary.status.has_ended:
                run.mailbox.clear()
                run.received.clear()
                run.unread = 0
            left = ((one.number, one.topic) for one in run.mailbox.values())
            summary = due_if_unseen(summary, batch.seen, left=left, now=now)
            self._summarize(run_id, run, summary)
            if notifies_parent(summary):
                self._notify(summary.parent, run_id, now)
        self._announcements.announce(run_id)

    def _summarize(self, run_id: str, run: _Run, summary: RunSummary) -> None:
        run.summary = summary
        self._due.put(run_id, summary)

    def _put(self, run_id: str, run: _Run, topic: str, key: str, body: bytes, now: float) -> bool:
        """Put a message into the mailbox of a run, unless the run has received it before."""
        if topic != NOTICE:
            if (topic, key) in run.received:
                return False
            run.received.add((topic, key))
        number = next(self._messages)
        run.mailbox[number] = Message(number, topic, key, now, body)
        run.unread += size_in_mailbox(len(body))
        self._summarize(run_id, run, woken(topic, run.summary, now=now))
        return True

    def _notify(self, parent: str, child: str, now: float) -> None:
        """Tell the parent of a run that the run has ended."""
        run = self._runs.get(parent)
        if run is not None and not run.summary.status.has_ended:
            self._put(parent, run, NOTICE, child, b"", now)
            self._announcements.announce(parent)

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        with self._changing:
            run = self._known(run_id)
            check_receives(run_id, run.summary)
            if (topic, key) not in run.received:
                check_room(run_id, topic, body, unread=run.unread)
            is_new = self._put(run_id, run, topic, key, bytes(body), time.time())
        self._announcements.announce(run_id)
        return is_new

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        with self._changing:
            run = self._runs.get(run_id)
            messages = [] if run is None else list(run.mailbox.values())
        return [message for message in messages if message.number > after]

    async def claim_due(self, due: DueRuns) -> Claimed:
        with self._changing:
            now = time.time()
            usage = Usage.of(self._held(), self._starts, due, now)
            chosen, next_due_at = choose(self._due, due, usage, self._served)
            self._starts = usage.after(chosen, due).starts
            runs = tuple(
                Taken(self._lend(info.run_id, owner, due.seconds, now), info)
                for info, owner in zip(chosen, due.owners, strict=False)
            )
        return Claimed(runs, next_due_at)

    def _held(self) -> Iterator[tuple[str, str, Lease]]:
        """Yield the queue, the key and the lease of each run that was not released."""
        for run_id, lease in self._leases.items():
            summary = self._runs[run_id].summary
            yield summary.queue_name, summary.key, lease

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        if value is None:
            self._settings[kind].pop(name, None)
        else:
            self._settings[kind][name] = value

    async def settings(self, kind: str) -> Mapping[str, bytes]:
        return dict(self._settings[kind])

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        return self._announcements.watch()

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        run = self._runs.get(run_id)
        if run is None:
            return []
        new = zip(run.times[after:], run.bodies[after:], strict=True)
        return [Record(number, *record) for number, record in enumerate(new, after + 1)]

    def _info(self, run_id: str, run: _Run) -> RunInfo:
        lease = self._leases.get(run_id)
        return RunInfo(run_id, run.summary, run.times[-1], len(run.bodies), lease)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        with self._changing:
            if query.run_id is None:
                runs = self._runs.items()
            else:
                run = self._runs.get(query.run_id)
                runs = [] if run is None else [(query.run_id, run)]
            infos = [
                self._info(run_id, run) for run_id, run in runs if run_id.startswith(query.prefix)
            ]
        return select(infos, query, now=time.time())

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        with self._changing:
            self._known(run_id)
            check_deletable(lease, self._leases.get(run_id), now=time.time())
            self._leases.pop(run_id, None)
            del self._runs[run_id]
            self._due.remove(run_id)
        self._announcements.announce(run_id)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        with self._changing:
            check_current(lease, self._leases.get(lease.run_id))
            run = self._runs[lease.run_id]
            check_kept(lease, len(run.bodies), after=after)
            del run.bodies[after:], run.times[after:]
            self._summarize(lease.run_id, run, summary)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        pass


class _Place(NamedTuple):
    """The place of a run in its lane. `order` sorts runs that are due at the same time."""

    due_at: float
    order: int
    run_id: str
    lane: Lane


class _DueIndex(DueIndex):
    """A `DueIndex` in memory. `info` returns one line about a run."""

    def __init__(self, info: Callable[[str], RunInfo]) -> None:
        self._info = info
        self._lanes: dict[Lane, list[_Place]] = {}
        # The turns of each lane without one, sorted.
        self._turns: dict[Lane, list[str]] = {}
        self._places: dict[str, _Place] = {}
        self._orders = count()

    def put(self, run_id: str, summary: RunSummary) -> None:
        """Note when a run is due, by its new summary."""
        if summary.due_at is None:
            self.remove(run_id)
            return
        lane = Lane.of(summary)
        if (known := self._places.get(run_id)) is not None:
            if known.lane == lane and known.due_at == summary.due_at:
                return
            self.remove(run_id)
        place = self._places[run_id] = _Place(summary.due_at, next(self._orders), run_id, lane)
        if lane not in self._lanes:
            turns = self._turns.setdefault(lane._replace(turn=""), [])
            if lane.turn:
                insort(turns, lane.turn)
        insort(self._lanes.setdefault(lane, []), place)

    def remove(self, run_id: str) -> None:
        """Forget a run."""
        place = self._places.pop(run_id, None)
        if place is None:
            return
        places = self._lanes[place.lane]
        del places[bisect_right(places, place) - 1]
        if places:
            return
        lane = place.lane
        del self._lanes[lane]
        turns = self._turns[plain := lane._replace(turn="")]
        if lane.turn:
            del turns[bisect_left(turns, lane.turn)]
        if not turns and plain not in self._lanes:
            del self._turns[plain]

    def lanes(self, workflow: str) -> Iterator[Lane]:
        return (lane for lane in self._turns if lane.workflow == workflow)

    def turns(self, lane: Lane, after: str) -> Iterator[str]:
        turns = self._turns[lane]
        return (turns[at] for at in range(bisect_right(turns, after), len(turns)))

    def ready(self, lane: Lane, now: float) -> Generator[RunInfo]:
        for place in self._lanes.get(lane, ()):
            if place.due_at > now:
                return
            yield self._info(place.run_id)

    def next_due_at(self, lane: Lane, now: float) -> float | None:
        places = self._lanes.get(lane, [])
        later = bisect_right(places, now, key=lambda place: place.due_at)
        return places[later].due_at if later < len(places) else None
