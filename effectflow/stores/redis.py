"""Runs in a Redis server: quick, and as durable as the server is told to be."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import redis.asyncio as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import CheckpointStore, Record, RunInfo, RunQuery, RunSummary
from effectflow.effects.event_loop import shielded
from effectflow.stores import redis_scripts
from effectflow.stores.asyncio_bridge import AsyncioBridge
from effectflow.stores.holder import Holder, past_a_dead_holder
from effectflow.stores.patience import Patience
from effectflow.stores.redis_rows import Row, info_of, summary_json
from effectflow.stores.redis_server import (
    Client,
    checked_url,
    durability_of,
    evicting_policy_of,
    is_lost,
    is_refused,
)

__all__ = ["RedisStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_CHUNK = 500


class RedisStore(CheckpointStore):
    """Keeps runs in Redis. Needs the extra `effectflow[redis]` (redis-py, hiredis).

    An append is one atomic script; one that comes twice, because its answer was lost, is done once.
    Time is that of the server. It wants one server, with replicas if you like, and not a Redis Cluster.

    What survives is the server's business: with `appendonly yes` and `appendfsync always` everything
    does; with `everysec` a crash of the server may lose a second. Opening a store on a server that
    keeps nothing on disk, or that removes keys when its memory is full, logs a warning.

    Parameters:
        url: such as `redis://host:6379/0` or `unix:///path/to/socket`. It is never logged.
        prefix: what all its keys begin with.
        timeout: seconds to wait for an answer.
        patience: seconds that a lost server is looked for again.

    Raises ValueError for a URL that cannot be read. Opening fails with StoreUnavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "effectflow",
        timeout: float = 10.0,
        patience: float = 15.0,
    ) -> None:
        self._url = checked_url(url)
        self._prefix = prefix
        self._timeout = timeout
        self._patience = Patience(self, seconds=patience, is_lost=is_lost)
        self._bridge = AsyncioBridge()
        self._client: Client | None = None
        self._durability = "process"

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self._prefix!r})"

    @property
    def durability(self) -> str:
        """What the server is told to keep; known once the store is open."""
        return self._durability

    async def __aenter__(self) -> Self:
        await self._bridge.open()
        try:
            await self._bridge.call(self._open)
        except BaseException:
            await shielded(self._leave())
            raise
        return self

    async def _open(self) -> None:
        client: Client = cast(Any, driver.Redis).from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            # It is for us to know how often something was sent.
            retry=Retry(NoBackoff(), 0),
        )
        try:
            self._durability = await durability_of(client)
            evicting = await evicting_policy_of(client)
        except (RedisError, OSError) as error:
            await client.aclose()
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error
        except BaseException:
            await shielded(client.aclose())
            raise
        if self._durability == "memory":
            logger.warning(
                "the server of %r keeps nothing on disk, so its runs are lost when it ends; "
                "set `appendonly yes` in its configuration",
                self,
            )
        if evicting is not None:
            logger.warning(
                "the server of %r removes runs when its memory is full (maxmemory-policy %s); "
                "set `maxmemory-policy noeviction` in its configuration",
                self,
                evicting,
            )
        self._client = client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await shielded(self._leave())

    async def _leave(self) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                await self._bridge.call(client.aclose)
        finally:
            await self._bridge.close()

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        async def ask(dead: int) -> Lease | Holder:
            keys = [self._key(run_id)]
            answer = await self._run(redis_scripts.CLAIM, keys, owner, seconds, dead)
            holder, fence = answer[0].decode(), int(answer[1])
            expires_at, now = float(answer[2]), float(answer[3])
            if holder == owner:
                return Lease(run_id, owner, fence, expires_at)
            return Holder(holder, fence, expires_at - now)

        return await past_a_dead_holder(run_id, ask)

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        keys = [self._key(lease.run_id)]
        arguments = (lease.owner, lease.fence, seconds)
        expires_at = await self._run(redis_scripts.RENEW, keys, *arguments)
        if expires_at is None:
            raise LeaseLost(lease.run_id, "somebody else has claimed it")
        return Lease(lease.run_id, lease.owner, lease.fence, float(expires_at))

    async def release(self, lease: Lease) -> None:
        keys = [self._key(lease.run_id)]
        await self._run(redis_scripts.RELEASE, keys, lease.owner, lease.fence)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        keys = [self._key(lease.run_id), self._index]
        arguments = (
            lease.owner,
            lease.fence,
            after,
            int(release),
            lease.run_id,
            uuid4().bytes,
            "" if summary is None else summary_json(summary),
            *bodies,
        )
        is_unknown = False

        async def ask(client: Client) -> Any:
            nonlocal is_unknown
            try:
                return await _evaluate(client, redis_scripts.APPEND, keys, arguments)
            except Exception as error:
                is_unknown = is_unknown or (is_lost(error) and not is_refused(error))
                raise

        self._check_open()
        try:
            problem = await self._do(ask)
        except StoreUnavailable as error:
            raise SaveFailed(lease.run_id, str(error), is_unknown=is_unknown) from error
        if problem is None:
            return
        if problem.decode() == "no summary":
            raise ValueError("the first append of a run needs a summary")
        raise LeaseLost(lease.run_id, problem.decode())

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        ask = partial(_entries, key=self._key(run_id), after=after)
        length, entries = await self._do(partial(ask, last=after + _CHUNK))
        if length > after + _CHUNK:
            length, entries = await self._do(partial(ask, last=length))
        records: list[Record] = []
        for number, entry in enumerate(entries[: max(length - after, 0)], after + 1):
            if entry is None:
                raise CorruptCheckpoint(run_id, f"its entry {number} of {length} is missing")
            at, _, body = entry.partition(b" ")
            records.append(Record(number, float(at), body))
        return records

    async def info(self, run_id: str) -> RunInfo | None:
        rows = await self._rows([self._key(run_id)])
        return info_of(rows[0]) if rows else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        now = await self._now()
        infos: list[RunInfo] = []
        for row in await self._all_rows():
            try:
                info = info_of(row)
            except CorruptCheckpoint as error:
                logger.warning("run %r is passed over: %s", error.run_id, error)
                continue
            if query.matches(info, now):
                infos.append(info)
        infos.sort(key=lambda info: (-info.summary.created_at, info.run_id))
        return infos[query.offset : query.offset + query.limit]

    async def damaged_runs(self) -> list[str]:
        """The ids of the runs that `find` passes over, as they cannot be read."""
        damaged: list[str] = []
        for row in await self._all_rows():
            try:
                info_of(row)
            except CorruptCheckpoint as error:
                damaged.append(error.run_id)
        return sorted(damaged)

    async def delete(self, run_id: str) -> None:
        deletion = uuid4().bytes

        async def ask(dead: int) -> bool | Holder:
            keys = [self._key(run_id)]
            state, *held = await self._run(redis_scripts.DELETE, keys, deletion, dead)
            if state == b"held":
                return Holder(held[0].decode(), int(held[1]), float(held[2]))
            return state == b"deleted"

        was_there = await past_a_dead_holder(run_id, ask)
        # Also if it was not: then a deletion may have been cut off.
        await self._sweep(run_id)
        if not was_there:
            raise RunNotFound(run_id)

    async def _sweep(self, run_id: str) -> None:
        """Remove what is left of a deleted run, which nobody sees any more."""
        keys = [self._key(run_id), self._index]
        fields: list[bytes] = await self._do(lambda client: client.hkeys(keys[0]))
        left = [field for field in fields if field not in redis_scripts.LEFT]
        for start in range(0, len(left) + 1, _CHUNK):
            await self._run(redis_scripts.SWEEP, keys, *left[start : start + _CHUNK])

    # How it talks to the server.

    @property
    def _index(self) -> str:
        return f"{self._prefix}:runs"

    def _key(self, run_id: str) -> str:
        # Any text is a run id, and keys are looked at by people.
        return f"{self._prefix}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"

    async def _now(self) -> float:
        seconds, microseconds = await self._do(lambda client: client.time())
        return seconds + microseconds / 1e6

    async def _all_rows(self) -> list[Row]:
        keys: list[bytes] = await self._do(lambda client: client.hkeys(self._index))
        rows: list[Row] = []
        for start in range(0, len(keys), _CHUNK):
            rows += await self._rows(keys[start : start + _CHUNK])
        return rows

    async def _rows(self, keys: Sequence[str | bytes]) -> list[Row]:
        """What is kept of the runs with these keys, without those that are gone."""

        async def ask(client: Client) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, Row._fields)
            return await pipeline.execute()

        rows = [Row(*row) for row in await self._do(ask)]
        return [row for row in rows if int(row.length or 0)]

    async def _run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        return await self._do(lambda client: _evaluate(client, script, keys, arguments))

    def _check_open(self) -> Client:
        if self._client is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        return self._client

    async def _do(self, ask: Callable[[Client], Awaitable[A]]) -> A:
        client = self._check_open()
        try:
            return await self._bridge.call(lambda: self._patience.ask(lambda: ask(client)))
        except RedisError as error:
            raise StoreUnavailable(repr(self), f"it refused a command: {error}") from error


async def _evaluate(
    client: Client, script: str, keys: Sequence[str], arguments: Sequence[Any]
) -> Any:
    return await client.register_script(script)(keys=keys, args=arguments)


async def _entries(
    client: Client, *, key: str, after: int, last: int
) -> tuple[int, list[bytes | None]]:
    """How many entries a run has, and those after one and up to another, all at one moment."""
    pipeline = client.pipeline(transaction=True)
    pipeline.hget(key, "length")
    for first in range(after + 1, last + 1, _CHUNK):
        pipeline.hmget(key, range(first, min(first + _CHUNK, last + 1)))
    length, *chunks = await pipeline.execute()
    return int(length or 0), [entry for chunk in chunks for entry in chunk]
