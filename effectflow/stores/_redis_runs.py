"""The runs on a Redis server: read them, and change them unless they have changed since."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from redis.exceptions import NoScriptError, ResponseError

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.run_info import RunInfo, RunQuery
from effectflow.stores._redis_connection import is_lost, is_refused
from effectflow.stores._redis_run import (
    FIELDS_PER_COMMAND,
    Guard,
    Keys,
    Row,
    Run,
    Write,
    lane_of,
    parts,
    place_of,
    places,
    process_of,
    sets_with,
    texts,
)
from effectflow.stores._redis_scripts import APPLY

logger = logging.getLogger(__name__)

_UNREADABLE = Row(b"not a hash")


class Change:
    """One change of runs, which may be sent several times.

    Attributes:
        request: identifies it.
        is_unknown: whether it was sent, and its answer was lost.
    """

    def __init__(self) -> None:
        self.request: bytes = uuid4().hex.encode()
        self.is_unknown = False


class Look(NamedTuple):
    """What is read of a run: the time of the server, its row, one more field, and a fencing token."""

    now: float
    row: Row
    field: bytes
    fence: int = 0


class Runs:
    """The runs of a store.

    Its methods run in asyncio, and raise what the driver raises.

    Parameters:
        client: a client of redis-py for asyncio.
    """

    # The type checkers know the types of this client only in part.
    def __init__(self, client: Any, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._apply = client.register_script(APPLY)

    async def now(self) -> float:
        """Return the time of the server, in seconds since the epoch."""
        seconds, microseconds = await self.client.time()
        return seconds + microseconds / 1e6

    async def look(self, run_id: str, field: str | bytes = "id", *, claims: bool = False) -> Look:
        """Look at a run and one more field of it. With `claims`, draw a fencing token."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.time()
        pipeline.hmget(self.keys.run(run_id), *Row._fields, field)
        if claims:
            pipeline.incr(self.keys("fences"))
        (seconds, microseconds), found, *fences = await pipeline.execute()
        *values, more = [value or b"" for value in found]
        return Look(seconds + microseconds / 1e6, Row(*values), more, *fences)

    async def rows(self, run_ids: Sequence[str]) -> list[Row]:
        """Return the rows of runs. What is not a hash becomes a row that cannot be read."""
        pipeline = self.client.pipeline(transaction=False)
        for run_id in run_ids:
            pipeline.hmget(self.keys.run(run_id), *Row._fields)
        rows: list[Row] = []
        for found in await pipeline.execute(raise_on_error=False):
            if isinstance(found, ResponseError):
                rows.append(_UNREADABLE)
            else:
                rows.append(Row(*(value or b"" for value in found)))
        return rows

    async def readable(
        self, run_ids: Sequence[str], skipped: Callable[[CorruptCheckpoint], object]
    ) -> AsyncIterator[tuple[str, Run | None]]:
        """Yield each run, None if it does not exist. Call `skipped` for those that cannot be read."""
        for part in parts(run_ids):
            for run_id, row in zip(part, await self.rows(part), strict=True):
                try:
                    yield run_id, Run.read(run_id, row)
                except CorruptCheckpoint as error:
                    skipped(error)

    async def apply(
        self, change: Change, guards: Sequence[Guard], writes: Iterable[Write]
    ) -> float:
        """Execute writes, all or none. Return the time of that, or 0.0 unless all guards hold."""
        arguments: list[Any] = [part for _, *field in guards for part in field]
        for write in writes:
            arguments += len(write), *write
        keys = [key for key, *_ in guards]
        try:
            try:
                now = await self._apply(keys, arguments)
            except NoScriptError:
                # The scripts were flushed again after this one was loaded.
                now = await self.client.eval(APPLY, len(keys), *keys, *arguments)
            return float(now or 0.0)
        except Exception as error:
            change.is_unknown |= is_lost(error) and not is_refused(error)
            raise

    # Find runs.

    async def find(self, query: RunQuery) -> list[RunInfo]:
        """Return the runs that a query asks for. Warn of those that cannot be read."""
        await self.complete_sets()
        now, found = await self.now(), list[RunInfo]()

        def skip(error: CorruptCheckpoint) -> None:
            logger.warning("skipping run %r: %s", error.run_id, error)

        async for members in self._members(query):
            wanted = {
                run_id: member
                for member in members
                if (run_id := member.partition(":")[2]).startswith(query.prefix)
            }
            async for run_id, run in self.readable([*wanted], skip):
                if run is None or not query.matches(run.info, now):
                    continue
                # Otherwise it is in this set only because the server was killed, or changed just now.
                if place_of(run.state.summary.created_at, run_id) == wanted[run_id]:
                    found.append(run.info)
            if query.limit is not None and len(found) >= query.limit:
                break
        return found[: query.limit]

    async def _members(self, query: RunQuery) -> AsyncIterator[list[str]]:
        """Yield the members of the sets that have the runs of a query, in order, in parts."""
        names = sets_with(query)
        most = FIELDS_PER_COMMAND
        if query.limit is not None:
            most = min(most, max(query.limit, 1))
        after = b"-" if query.after is None else f"({place_of(*query.after)}".encode()
        while True:
            pipeline = self.client.pipeline(transaction=False)
            for name in names:
                pipeline.zrangebylex(self.keys(name), after, "+", start=0, num=most)
            found = {member for part in await pipeline.execute() for member in part}
            if not found:
                return
            # The others may follow members that were not read.
            members = sorted(found)[:most]
            yield texts(members)
            after, most = b"(" + members[-1], FIELDS_PER_COMMAND

    async def ids(self) -> AsyncIterator[list[str]]:
        """Yield the ids of all runs, in parts."""
        cursor: int | None = None
        while cursor != 0:
            cursor, part = await self.client.hscan(
                self.keys("ids"), cursor or 0, count=FIELDS_PER_COMMAND
            )
            yield texts(part)

    async def damaged(self) -> list[str]:
        """Return the ids of the runs that cannot be read."""
        damaged: set[str] = set()
        async for run_ids in self.ids():
            async for _ in self.readable(run_ids, lambda error: damaged.add(error.run_id)):
                pass
        return sorted(damaged)

    async def complete_sets(self) -> None:
        """Add all runs to the sets that they belong to, after the server has started again.

        It may have been killed while it wrote, and then sets may lack some.
        """
        pipeline = self.client.pipeline(transaction=False)
        pipeline.info("server")
        pipeline.get(self.keys("server"))
        info, known = await pipeline.execute()
        server: bytes = info["run_id"].encode()
        if server == known:
            return
        async for run_ids in self.ids():
            sets: defaultdict[str, dict[str, float]] = defaultdict(dict)
            lanes = set[Write]()
            async for _, run in self.readable(run_ids, lambda _: None):
                if run is None:
                    continue
                for name, (score, member) in places(run).items():
                    sets[name][member] = score
                summary = run.state.summary
                lanes.update(self.keys.lane_writes(lane_of(summary)))
                if summary.queue:
                    lanes.add(("SADD", self.keys(f"queues:{summary.workflow}"), summary.queue))
                if run.lease is not None and (process := process_of(run.lease.owner)):
                    sets["processes"][process] = run.lease.expires_at
            pipeline = self.client.pipeline(transaction=False)
            for name, members in sets.items():
                pipeline.zadd(self.keys(name), members)
            # After their runs, because a search forgets empty lanes.
            merged: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
            for command, key, *members in lanes:
                merged[command, key] += members
            for (command, key), members in merged.items():
                pipeline.execute_command(command, key, *members)
            await pipeline.execute()
        await self.client.set(self.keys("server"), server)
