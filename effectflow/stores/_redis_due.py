"""Find and claim the runs of a RedisStore that are due.

Runs with a due time are in sorted sets, one for each workflow and priority, pending or not. Those with a
lease are in others, sorted by when to look whether it still holds. So a claim reads only the runs that
are due and free, however many wait or are held.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import Claimed, DueRuns, RunInfo, Taken
from effectflow.stores._due import Lane, Usage, choose_due, in_order, is_due
from effectflow.stores._redis_run import (
    LOOK_SECONDS,
    Guard,
    Run,
    Write,
    held_by,
    places,
    process_of,
    set_of,
    texts,
)
from effectflow.stores._redis_runs import Change, Runs
from effectflow.stores._redis_scripts import FORGET_LANE

logger = logging.getLogger(__name__)

_MOST_LOOKS = 100
"""How many of the held runs of a workflow without a limit one search looks at."""

_SECONDS_OF_PROCESSES = 3600.0
"""How long after its last lease a process is remembered."""


class DueClaim:
    """One request to claim due runs. It may be performed again if its answer was lost.

    Attributes:
        driven: the runs that it may have claimed, as they are then.

    Parameters:
        buried: the processes whose end was noticed for a workflow, with the end of their last lease. One
            for each store.
    """

    def __init__(self, runs: Runs, due: DueRuns, buried: dict[tuple[str, str], float]) -> None:
        self._runs = runs
        self._due = due
        self._buried = buried
        self._change = Change()
        self._sent = Claimed()
        self.driven: dict[str, Run] = {}
        # The runs that are due, and the values of the counters of their workflows, as they were read.
        self._found: dict[str, Run] = {}
        self._claims: dict[str, bytes] = {}

    async def perform(self) -> Claimed:
        """Claim runs. Call it in asyncio. It raises what the driver raises."""
        await self._runs.complete_sets()
        while True:
            if taken := await self._already_taken():
                return Claimed(taken, self._sent.next_due_at)
            self._found.clear()
            now, lanes, limited = await self._look()
            usage = Usage(await self._held(now), self._starts(limited), now)
            is_complete, next_due_at = await self._search(lanes, usage)
            if not is_complete:
                continue
            infos = sorted((run.info for run in self._found.values()), key=in_order)
            chosen = choose_due(infos, self._due, usage)
            if not chosen:
                return Claimed((), next_due_at)
            if await self._claim(chosen, usage, next_due_at):
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

    async def _look(self) -> tuple[float, list[Lane], list[str]]:
        """Return the time, the lanes, and the workflows with limits. Notice dead processes."""
        keys, workflows = self._runs.keys, [*self._due.workflows]
        limited = [workflow for workflow in workflows if workflow in self._due.limits]
        pipeline = self._runs.client.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(keys("processes"), 0, -1, withscores=True)
        pipeline.hmget(keys("claims"), limited or [""])
        for workflow in workflows:
            pipeline.smembers(keys(f"lanes:{workflow}"))
        (seconds, microseconds), processes, claims, *names = await pipeline.execute()
        self._claims = {name: claim or b"" for name, claim in zip(limited, claims, strict=False)}
        lanes: list[Lane] = []
        for workflow, members in zip(workflows, names, strict=True):
            for member in texts(members):
                kind, _, priority = member.partition(":")
                # Only another program can have written anything else.
                with suppress(ValueError):
                    lanes.append(Lane(workflow, kind, int(priority)))
        for process, last in processes:
            await self._bury(process.decode(errors="replace"), last)
        return seconds + microseconds / 1e6, lanes, limited

    async def _bury(self, process: str, last: float) -> None:
        """Let this and other searches look at the runs of a process that has ended."""
        owner = Owner.parse(f"{process}, )")
        if owner is None or not owner.is_dead():
            return
        for workflow in self._due.workflows:
            if self._buried.get((process, workflow)) == last:
                continue
            key = self._runs.keys(f"held:{workflow}")
            members = await self._runs.client.zrange(key, 0, -1)
            async for run_id, run in self._runs.readable(texts(members), _ignore):
                if run is not None and run.lease and process_of(run.lease.owner) == process:
                    await self._runs.client.zadd(key, {run_id: 0.0}, xx=True)
            self._buried[process, workflow] = last

    async def _held(self, now: float) -> dict[str, int]:
        """Return how many runs of each workflow are held. Note the others that have a lease, if due.

        Those that are held have the time to look at them again as their score, and the others the
        negative of that.
        """
        pipeline = self._runs.client.pipeline(transaction=False)
        for workflow in self._due.workflows:
            key, limit = self._runs.keys(f"held:{workflow}"), self._due.limits.get(workflow)
            most = None if limit is not None and limit.limit is not None else _MOST_LOOKS
            pipeline.zcount(key, f"({now!r}", "+inf")
            pipeline.zrangebyscore(key, repr(-now), repr(now), start=most and 0, num=most)
        answers: list[Any] = await pipeline.execute()
        counts, members = answers[::2], answers[1::2]
        return {
            workflow: count + await self._still_held(workflow, texts(run_ids), now)
            for workflow, count, run_ids in zip(self._due.workflows, counts, members, strict=True)
        }

    async def _still_held(self, workflow: str, run_ids: list[str], now: float) -> int:
        """Look at runs of a workflow that have a lease, and return how many of them are held."""
        held, looks = 0, dict[str, float]()

        def skip(error: CorruptCheckpoint) -> None:
            looks[error.run_id] = -(now + LOOK_SECONDS)
            _warn(error)

        async for run_id, run in self._runs.readable(run_ids, skip):
            if run is None or f"held:{workflow}" not in places(run):
                await self._move(run_id, run, f"held:{workflow}")
            elif run.lease is not None and run.lease.is_held(now):
                held += 1
                looks[run_id] = now + min(run.lease.expires_in(now), LOOK_SECONDS)
            elif is_due(run.state.summary, self._due):
                self._found[run_id] = run
            else:
                looks[run_id] = -(now + LOOK_SECONDS)
        if looks:
            await self._runs.client.zadd(self._runs.keys(f"held:{workflow}"), looks, xx=True)
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

    def _starts(self, limited: list[str]) -> dict[str, list[float]]:
        """Return when runs of each workflow with a limit were started last."""
        starts: dict[str, list[float]] = {}
        for workflow in limited:
            # What is damaged here delays nothing.
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                starts[workflow] = [*map(float, json.loads(self._claims[workflow])["starts"])]
        return starts

    async def _search(self, lanes: list[Lane], usage: Usage) -> tuple[bool, float | None]:
        """Find the runs in lanes that may be claimed, and when the next of the others is due.

        Return False with that if it may have missed some.
        """
        pipeline, now = self._runs.client.pipeline(transaction=False), repr(self._due.now)
        for lane in lanes:
            key, room = self._runs.keys(set_of(lane)), lane.room(usage, self._due)
            pipeline.zrangebyscore(key, "-inf", now, start=0, num=room)
            pipeline.zrangebyscore(key, f"({now}", "+inf", start=0, num=1, withscores=True)
            pipeline.exists(key)
        answers: list[Any] = await pipeline.execute() if lanes else []
        is_complete = True
        for lane, ready, is_there in zip(lanes, answers[::3], answers[2::3], strict=True):
            if not is_there:
                await self._forget(lane)
            is_complete &= await self._find(lane, texts(ready))
        return is_complete, min((at for one in answers[1::3] for _, at in one), default=None)

    async def _find(self, lane: Lane, run_ids: list[str]) -> bool:
        """Note the due runs of a lane. Remove others; return False if there were any."""
        name, damaged, is_complete = set_of(lane), list[str](), True

        def skip(error: CorruptCheckpoint) -> None:
            damaged.append(error.run_id)
            _warn(error)

        async for run_id, run in self._runs.readable(run_ids, skip):
            if run is not None and name in places(run):
                self._found[run_id] = run
            else:
                is_complete = False
                await self._move(run_id, run, name)
        if damaged:
            await self._runs.client.zrem(self._runs.keys(name), *damaged)
        return is_complete and not damaged

    async def _forget(self, lane: Lane) -> None:
        """Forget an empty lane."""
        keys = self._runs.keys
        sets = keys(set_of(lane)), keys(f"lanes:{lane.workflow}")
        member = f"{lane.status}:{lane.priority}"
        await self._runs.client.eval(FORGET_LANE, len(sets), *sets, member)

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
        for workflow in {info.summary.workflow for info in chosen} & due.limits.keys():
            guards.append((runs.keys("claims"), workflow, self._claims[workflow]))
            claim: dict[str, Any] = {"starts": starts.get(workflow, ())}
            # Never the same, so that it shows that there was a claim.
            claim["by"] = self._change.request.decode() + str(last)
            writes.append(("HSET", runs.keys("claims"), workflow, json.dumps(claim)))
        oldest = repr(now - _SECONDS_OF_PROCESSES)
        writes.append(("ZREMRANGEBYSCORE", runs.keys("processes"), "-inf", oldest))
        self._sent = Claimed(tuple(taken), next_due_at)
        return bool(await runs.apply(self._change, guards, writes))


def _ignore(_: CorruptCheckpoint) -> None:
    pass


def _warn(error: CorruptCheckpoint) -> None:
    logger.warning("skipping run %r: %s", error.run_id, error)
