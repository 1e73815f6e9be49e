"""Find and claim the runs of a RedisStore that are due.

Runs with a due time are in sorted sets, one for each `Lane`, pending or not. Those with a lease are in
others, one for each queue, sorted by when to look whether it still holds. So a claim reads only the runs
that are due and free, however many wait or are held.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import RunInfo
from effectflow.checkpoint.store import Claimed, DueRuns, Taken
from effectflow.stores._due import (
    Lane,
    Served,
    Usage,
    choose_due,
    in_order,
    is_due,
    turn_lanes,
)
from effectflow.stores._redis_run import (
    LOOK_SECONDS,
    Guard,
    Run,
    Write,
    held_by,
    lane_of,
    lane_text,
    places,
    process_of,
    set_of,
    texts,
    turns_of,
)
from effectflow.stores._redis_runs import Change, Runs
from effectflow.stores._redis_scripts import FORGET

logger = logging.getLogger(__name__)

_MOST_LOOKS = 100
"""How many of the held runs of a queue without a limit one search looks at."""

_MOST_BLOCKED = 1000
"""How many due runs of a lane a search reads, if some of them may have keys without room."""

_SECONDS_OF_PROCESSES = 3600.0
"""How long after its last lease a process is remembered."""


class DueClaim:
    """One request to claim due runs. It may be performed again if its answer was lost.

    Attributes:
        driven: the runs that it may have claimed, as they are then.

    Parameters:
        buried: the processes whose end was noticed for a queue, with the end of their last lease. One for
            each store.
        served: the keys that were served last. One for each store.
    """

    def __init__(
        self, runs: Runs, due: DueRuns, buried: dict[tuple[str, str], float], served: Served
    ) -> None:
        self._runs = runs
        self._due = due
        self._buried = buried
        self._served = served
        self._change = Change()
        self._sent = Claimed()
        self.driven: dict[str, Run] = {}
        # The runs that are due, and the values of the counters of their queues, as they were read.
        self._found: dict[str, Run] = {}
        self._claims: dict[str, bytes] = {}
        # How many more turns to look at than there is room for, because some of them are over.
        self._spare = 0
        # All queues of the workflows, and those with limits.
        self._queues: list[str] = []

    async def perform(self) -> Claimed:
        """Claim runs. Call it in asyncio. It raises what the driver raises."""
        await self._runs.complete_sets()
        while True:
            if taken := await self._already_taken():
                return Claimed(taken, self._sent.next_due_at)
            self._found.clear()
            now, lanes = await self._look()
            usage = Usage(await self._held(now), self._starts(), now)
            is_complete, next_due_at = await self._search(lanes, usage)
            if not is_complete:
                self._spare = 2 * self._spare + len(self._due.owners)
                continue
            served = dict(self._served)
            candidates: defaultdict[Lane, list[RunInfo]] = defaultdict(list)
            for info in sorted((run.info for run in self._found.values()), key=in_order):
                candidates[lane_of(info.summary)].append(info)
            chosen = choose_due(candidates.items(), self._due, usage, served)
            if not chosen:
                return Claimed((), next_due_at)
            if await self._claim(chosen, usage, next_due_at):
                self._served.update(served)
                # Otherwise each later search would find these turns, and have to search again.
                await self._forget(
                    [lane for lane in map(lane_of, (one.summary for one in chosen)) if lane.turn]
                )
                return self._sent

    async def _already_taken(self) -> tuple[Taken, ...]:
        """Return the runs that an earlier request has claimed, although its answer was lost."""
        wanted = self._sent.runs
        rows = await self._runs.rows([one.lease.run_id for one in wanted]) if wanted else []
        return tuple(
            one
            for one, row in zip(wanted, rows, strict=True)
            if row.held == held_by(one.lease.fence, one.lease.owner)
        )

    async def _look(self) -> tuple[float, list[Lane]]:
        """Return the time, and the lanes without a turn. Notice dead processes."""
        keys, workflows, limited = self._runs.keys, [*self._due.workflows], [*self._due.queues]
        pipeline = self._runs.client.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(keys("processes"), 0, -1, withscores=True)
        pipeline.hmget(keys("claims"), limited or [""])
        for workflow in workflows:
            pipeline.smembers(keys(f"lanes:{workflow}"))
            pipeline.smembers(keys(f"queues:{workflow}"))
        (seconds, microseconds), processes, claims, *names = await pipeline.execute()
        self._claims = {name: claim or b"" for name, claim in zip(limited, claims, strict=False)}
        self._queues = [
            *{*limited, *workflows, *(name for one in names[1::2] for name in texts(one))}
        ]
        lanes: list[Lane] = []
        for workflow, members in zip(workflows, names[::2], strict=True):
            for member in texts(members):
                # Only another program can have written anything else.
                with suppress(ValueError):
                    kind, priority, queue = member.split(":", 2)
                    lanes.append(Lane(workflow, kind, int(priority), queue))
        for process, last in processes:
            await self._bury(process.decode(errors="replace"), last)
        return seconds + microseconds / 1e6, lanes

    async def _bury(self, process: str, last: float) -> None:
        """Let this and other searches look at the runs of a process that has ended."""
        owner = Owner.parse(f"{process}, )")
        if owner is None or not owner.is_dead():
            return
        for queue in self._queues:
            if self._buried.get((process, queue)) == last:
                continue
            key = self._runs.keys(f"held:{queue}")
            members = await self._runs.client.zrange(key, 0, -1)
            async for run_id, run in self._runs.readable(texts(members), _ignore):
                if run is not None and run.lease and process_of(run.lease.owner) == process:
                    await self._runs.client.zadd(key, {run_id: 0.0}, xx=True)
            self._buried[process, queue] = last

    async def _held(self, now: float) -> dict[str, dict[str, int]]:
        """Return how many runs of each queue are held. Note the others that have a lease, if due.

        Those that are held have the time to look at them again as their score, and the others the
        negative of that. Runs are counted by their keys in queues that limit those.
        """
        pipeline = self._runs.client.pipeline(transaction=False)
        for queue in self._queues:
            key, limits = self._runs.keys(f"held:{queue}"), self._due.queues.get(queue)
            counts = limits is not None and limits.limit is not None
            by_key = limits is not None and limits.per_key is not None
            most = None if counts or by_key else _MOST_LOOKS
            pipeline.zcount(key, "+inf" if by_key else f"({now!r}", "+inf")
            last = "+inf" if by_key else repr(now)
            pipeline.zrangebyscore(key, repr(-now), last, start=most and 0, num=most)
        answers: list[Any] = await pipeline.execute()
        held: dict[str, dict[str, int]] = {}
        for queue, count, run_ids in zip(self._queues, answers[::2], answers[1::2], strict=True):
            held[queue] = await self._still_held(queue, texts(run_ids), now)
            held[queue][""] = held[queue].get("", 0) + count
        return held

    async def _still_held(self, queue: str, run_ids: list[str], now: float) -> dict[str, int]:
        """Look at runs of a queue that have a lease, and return how many of each key are held."""
        held, looks = dict[str, int](), dict[str, float]()

        def skip(error: CorruptCheckpoint) -> None:
            looks[error.run_id] = -(now + LOOK_SECONDS)
            _warn(error)

        async for run_id, run in self._runs.readable(run_ids, skip):
            if run is None or f"held:{queue}" not in places(run):
                await self._move(run_id, run, f"held:{queue}")
            elif run.lease is not None and run.lease.is_held(now):
                key = run.state.summary.key
                held[key] = held.get(key, 0) + 1
                looks[run_id] = now + min(run.lease.expires_in(now), LOOK_SECONDS)
            elif not is_due(run.state.summary, self._due):
                looks[run_id] = -(now + LOOK_SECONDS)
            elif run.state.summary.workflow in self._due.workflows:
                self._found[run_id] = run
        if looks:
            await self._runs.client.zadd(self._runs.keys(f"held:{queue}"), looks, xx=True)
        return held

    async def _move(self, run_id: str, run: Run | None, name: str) -> None:
        """Remove a run from a set in which a killed server or damage has left it, unless it has changed.

        Add it to those that it belongs to.
        """
        keys, removal = self._runs.keys, ("ZREM", self._runs.keys(name), run_id)
        if run is None:
            await self._runs.apply(Change(), [(keys.run(run_id), "state", b"")], [removal])
        else:
            writes = [*keys.writes(None, run), removal]
            await self._runs.apply(Change(), keys.guards(run_id, run.row), writes)

    def _starts(self) -> dict[str, list[float]]:
        """Return when runs of each queue with limits were started last."""
        starts: dict[str, list[float]] = {}
        for queue, claim in self._claims.items():
            # What is damaged here delays nothing.
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                starts[queue] = [*map(float, json.loads(claim)["starts"])]
        return starts

    async def _search(self, lanes: list[Lane], usage: Usage) -> tuple[bool, float | None]:
        """Find the runs in lanes that may be claimed, and when the next of the others is due.

        Return False with that if it may have missed some.
        """
        pipeline, now = self._runs.client.pipeline(transaction=False), repr(self._due.now)
        wanted, next_due_at = await self._lanes_to_read(lanes, usage)
        for lane, most in wanted:
            key = self._runs.keys(set_of(lane))
            pipeline.zrangebyscore(key, "-inf", now, start=0, num=most)
            pipeline.exists(key)
        answers: list[Any] = await pipeline.execute() if wanted else []
        empty = [
            lane for (lane, _), is_there in zip(wanted, answers[1::2], strict=True) if not is_there
        ]
        await self._forget(empty)
        ready = [
            (lane, run_id)
            for (lane, _), run_ids in zip(wanted, answers[::2], strict=True)
            for run_id in texts(run_ids)
        ]
        is_complete = await self._find(ready, usage)
        # Others follow the turns that are over.
        return is_complete and not any(lane.turn for lane in empty), next_due_at

    async def _lanes_to_read(
        self, lanes: list[Lane], usage: Usage
    ) -> tuple[list[tuple[Lane, int]], float | None]:
        """Return the lanes to read, how many runs of each at most, and when the next run is due."""
        due, keys = self._due, self._runs.keys
        pipeline, now = self._runs.client.pipeline(transaction=False), repr(due.now)
        for lane in lanes:
            last = b"(" + self._served.get(lane.place(due), "").encode()
            full = usage.full_keys(lane.queue_name, due)
            most = lane.room(usage, due) + len(full) + self._spare
            pipeline.zrangebyscore(
                keys(set_of(lane)), f"({now}", "+inf", start=0, num=1, withscores=True
            )
            pipeline.zrangebylex(keys(turns_of(lane)), last, "+", start=0, num=most)
            pipeline.zrangebylex(keys(turns_of(lane)), "-", b"[" + last[1:], start=0, num=most)
        answers: list[Any] = await pipeline.execute() if lanes else []
        wanted: list[tuple[Lane, int]] = []
        for lane, after, before in zip(lanes, answers[1::3], answers[2::3], strict=True):
            if room := lane.room(usage, due):
                full = usage.full_keys(lane.queue_name, due)
                turns = [turn for turn in texts([*after, *before]) if turn not in full]
                wanted.append((lane, _MOST_BLOCKED if full else room))
                wanted += turn_lanes(lane, turns[: room + self._spare], usage, due)
        return wanted, min((at for one in answers[::3] for _, at in one), default=None)

    async def _find(self, ready: Sequence[tuple[Lane, str]], usage: Usage) -> bool:
        """Note the due runs of lanes. Remove others; return False if there were any."""
        full = {lane: usage.full_keys(lane.queue_name, self._due) for lane, _ in ready}
        run_ids = [*dict.fromkeys(run_id for _, run_id in ready)]
        runs = {run_id: run async for run_id, run in self._runs.readable(run_ids, _warn)}
        is_complete = True
        for lane, run_id in ready:
            name, run = set_of(lane), runs.get(run_id)
            if run is not None and name in places(run):
                if run.state.summary.key not in full[lane]:
                    self._found[run_id] = run
                continue
            is_complete = False
            if run_id in runs:
                await self._move(run_id, run, name)
            else:
                # It is damaged.
                await self._runs.client.zrem(self._runs.keys(name), run_id)
        return is_complete

    async def _forget(self, lanes: list[Lane]) -> None:
        """Forget empty lanes."""
        keys, pipeline = self._runs.keys, self._runs.client.pipeline(transaction=False)
        for lane in lanes:
            sets = [keys(set_of(lane)), keys(turns_of(lane))]
            if lane.turn:
                pipeline.eval(FORGET, 2, *sets, "ZREM", lane.turn)
            else:
                sets.append(keys(f"lanes:{lane.workflow}"))
                pipeline.eval(FORGET, 3, *sets, "SREM", lane_text(lane))
        if lanes:
            await pipeline.execute()

    async def _claim(self, chosen: list[RunInfo], usage: Usage, next_due_at: float | None) -> bool:
        """Claim these runs, unless they or the counters of their limits have changed."""
        runs, due, now = self._runs, self._due, usage.now
        last: int = await runs.client.incrby(runs.keys("fences"), len(chosen))
        guards, writes, taken = list[Guard](), list[Write](), list[Taken]()
        for number, (info, owner) in enumerate(zip(chosen, due.owners, strict=False)):
            before = self._found[info.run_id]
            fence = max(last - number, before.fence + 1)
            lease = Lease.of(info.run_id, owner, fence, seconds=due.seconds, now=now)
            after = before.leased(lease)
            guards += runs.keys.guards(info.run_id, before.row)
            writes += runs.keys.writes(before, after, process=process_of(owner), now=now)
            taken.append(Taken(lease, info))
            self.driven[info.run_id] = after
        starts = usage.after(chosen, due).starts
        for queue in {info.summary.queue_name for info in chosen} & due.queues.keys():
            guards.append((runs.keys("claims"), queue, self._claims[queue]))
            claim: dict[str, Any] = {"starts": starts.get(queue, ())}
            # Never the same, so that it shows that there was a claim.
            claim["by"] = self._change.request.decode() + str(last)
            writes.append(("HSET", runs.keys("claims"), queue, json.dumps(claim)))
        oldest = repr(now - _SECONDS_OF_PROCESSES)
        writes.append(("ZREMRANGEBYSCORE", runs.keys("processes"), "-inf", oldest))
        self._sent = Claimed(tuple(taken), next_due_at)
        return bool(await runs.apply(self._change, guards, writes))


def _ignore(_: CorruptCheckpoint) -> None:
    pass


def _warn(error: CorruptCheckpoint) -> None:
    logger.warning("skipping run %r: %s", error.run_id, error)
