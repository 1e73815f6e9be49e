"""Runs in a Redis server: fast, and as durable as the server is configured to be."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from uuid import uuid4

import redis
import redis.asyncio
from anyio import to_thread
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    CheckpointStore,
    Record,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
)
from effectflow.stores import _redis_scripts as scripts
from effectflow.stores._leases import Holder, take_over_from_dead
from effectflow.stores._lifecycle import ReentrantStore
from effectflow.stores._servers import AsyncioBridge, Reconnect

logger = logging.getLogger(__name__)

A = TypeVar("A")

Client: TypeAlias = Any
"""A `redis.asyncio.Redis`. The checkers know its types only in part."""

_FIELDS_PER_COMMAND = 500


class RedisStore(ReentrantStore, CheckpointStore):
    """Keeps runs in Redis. Needs the extra `effectflow[redis]` (redis-py, hiredis).

    An append is one atomic script. A script that arrives twice, because its answer was lost, is
    executed once. Time is the server's. The store needs one server, which may have replicas; it does
    not support Redis Cluster.

    What survives depends on the server: with `appendonly yes` and `appendfsync always` everything does;
    with `everysec` a crash of the server may lose a second. Opening a store logs a warning if the
    server keeps nothing on disk, or removes keys when its memory is full.

    Parameters:
        url: such as `redis://host:6379/0` or `unix:///path/to/socket`. It is never logged.
        prefix: the prefix of all keys.
        timeout: how many seconds to wait for an answer.
        reconnect_timeout: how many seconds to try to reconnect to a lost server.
        renew_timeout: how many seconds a renewal of a lease may take.

    Raise ValueError for a URL that cannot be parsed. Opening raises StoreUnavailable.
    """

    _client: Client
    _renewing: Any

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "effectflow",
        timeout: float = 10.0,
        reconnect_timeout: float = 15.0,
        renew_timeout: float = 5.0,
    ) -> None:
        super().__init__()
        self._url = _checked(url)
        self._prefix = prefix
        self._timeout = timeout
        self._renew_timeout = renew_timeout
        self._reconnect = Reconnect(self, seconds=reconnect_timeout, is_lost=_is_lost)
        self._bridge = AsyncioBridge()
        self._opened = AsyncExitStack()
        self._durability = "process"

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self._prefix!r})"

    @property
    def durability(self) -> str:
        """What the server is configured to keep. It is known once the store is open."""
        return self._durability

    # Opening and closing.

    async def _open(self) -> None:
        await self._bridge.open()
        await self._bridge.call(self._connect)

    async def _connect(self) -> None:
        self._client = cast(Any, redis.asyncio.Redis).from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            # The store itself counts how often a request was sent.
            retry=AsyncRetry(NoBackoff(), 0),
        )
        self._opened.push_async_callback(self._client.aclose)
        # It has two attempts, and connects when it is first used.
        attempt = self._renew_timeout / 2
        self._renewing = cast(Any, redis.Redis).from_url(
            self._url,
            socket_timeout=attempt,
            socket_connect_timeout=attempt,
            retry=Retry(NoBackoff(), 1),
        )
        self._opened.push_async_callback(to_thread.run_sync, self._renewing.close)
        try:
            self._durability = await _durability_of(self._client)
            evicting = await _evicting_policy_of(self._client)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error
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

    async def _close(self) -> None:
        try:
            await self._bridge.call(self._opened.aclose)
        finally:
            await self._bridge.close()

    # The contract of a store.

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        async def ask(dead: int) -> Lease | Holder:
            keys = [self._key(run_id)]
            answer = await self._run(scripts.CLAIM, keys, owner, seconds, dead)
            holder, fence = answer[0].decode(), int(answer[1])
            expires_at, now = float(answer[2]), float(answer[3])
            if holder == owner:
                return Lease(run_id, owner, fence, expires_at)
            return Holder(holder, fence, expires_at - now)

        return await take_over_from_dead(run_id, ask)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self._check_open(in_any_thread=True)
        try:
            renew = self._renewing.register_script(scripts.RENEW)
            expires_at = renew([self._key(lease.run_id)], [lease.owner, lease.fence, seconds])
        except (RedisError, OSError) as error:
            raise StoreUnavailable(repr(self), f"it did not renew a lease: {error}") from error
        if expires_at is None:
            raise LeaseLost(lease.run_id, "another owner has claimed it, or it was released")
        return Lease(lease.run_id, lease.owner, lease.fence, float(expires_at))

    async def release(self, lease: Lease) -> None:
        keys = [self._key(lease.run_id)]
        await self._run(scripts.RELEASE, keys, lease.owner, lease.fence)

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
            "" if summary is None else _summary_json(summary),
            *bodies,
        )
        is_unknown = False

        async def ask(client: Client) -> Any:
            nonlocal is_unknown
            try:
                return await _evaluate(client, scripts.APPEND, keys, arguments)
            except Exception as error:
                is_unknown = is_unknown or (_is_lost(error) and not _is_refused(error))
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
        length, entries = await self._do(partial(ask, last=after + _FIELDS_PER_COMMAND))
        if length > after + _FIELDS_PER_COMMAND:
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
        return _info(rows[0]) if rows else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        now = await self._now()
        infos: list[RunInfo] = []
        for row in await self._all_rows():
            try:
                info = _info(row)
            except CorruptCheckpoint as error:
                logger.warning("skipping run %r: %s", error.run_id, error)
                continue
            if query.matches(info, now):
                infos.append(info)
        infos.sort(key=lambda info: (-info.summary.created_at, info.run_id))
        return infos[query.offset : query.offset + query.limit]

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        damaged: list[str] = []
        for row in await self._all_rows():
            try:
                _info(row)
            except CorruptCheckpoint as error:
                damaged.append(error.run_id)
        return sorted(damaged)

    async def delete(self, run_id: str) -> None:
        deletion = uuid4().bytes

        async def ask(dead: int) -> bool | Holder:
            keys = [self._key(run_id)]
            state, *held = await self._run(scripts.DELETE, keys, deletion, dead)
            if state == b"held":
                return Holder(held[0].decode(), int(held[1]), float(held[2]))
            return state == b"deleted"

        was_there = await take_over_from_dead(run_id, ask)
        # Even if the run is missing, since an earlier deletion may have been interrupted.
        await self._sweep(run_id)
        if not was_there:
            raise RunNotFound(run_id)

    async def _sweep(self, run_id: str) -> None:
        """Remove what is left of a deleted run. No query returns it any more."""
        keys = [self._key(run_id), self._index]
        fields: list[bytes] = await self._do(lambda client: client.hkeys(keys[0]))
        left = [field for field in fields if field not in scripts.LEFT]
        for start in range(0, len(left) + 1, _FIELDS_PER_COMMAND):
            await self._run(scripts.SWEEP, keys, *left[start : start + _FIELDS_PER_COMMAND])

    # How it talks to the server.

    @property
    def _index(self) -> str:
        return f"{self._prefix}:runs"

    def _key(self, run_id: str) -> str:
        # A run id may be any text, and people look at keys.
        return f"{self._prefix}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"

    async def _now(self) -> float:
        seconds, microseconds = await self._do(lambda client: client.time())
        return seconds + microseconds / 1e6

    async def _all_rows(self) -> list[_Row]:
        keys: list[bytes] = await self._do(lambda client: client.hkeys(self._index))
        rows: list[_Row] = []
        for start in range(0, len(keys), _FIELDS_PER_COMMAND):
            rows += await self._rows(keys[start : start + _FIELDS_PER_COMMAND])
        return rows

    async def _rows(self, keys: Sequence[str | bytes]) -> list[_Row]:
        """Return the fields of the runs with these keys, without deleted runs."""

        async def ask(client: Client) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, _Row._fields)
            return await pipeline.execute()

        rows = [_Row(*row) for row in await self._do(ask)]
        return [row for row in rows if int(row.length or 0)]

    async def _run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        return await self._do(lambda client: _evaluate(client, script, keys, arguments))

    async def _do(self, ask: Callable[[Client], Awaitable[A]]) -> A:
        self._check_open()
        try:
            return await self._bridge.call(lambda: self._reconnect.ask(lambda: ask(self._client)))
        except RedisError as error:
            raise StoreUnavailable(repr(self), f"it refused a command: {error}") from error


async def _evaluate(
    client: Client, script: str, keys: Sequence[str], arguments: Sequence[Any]
) -> Any:
    return await client.register_script(script)(keys=keys, args=arguments)


async def _entries(
    client: Client, *, key: str, after: int, last: int
) -> tuple[int, list[bytes | None]]:
    """Return the length of a run and its entries from `after` to `last`, in one transaction."""
    pipeline = client.pipeline(transaction=True)
    pipeline.hget(key, "length")
    for first in range(after + 1, last + 1, _FIELDS_PER_COMMAND):
        pipeline.hmget(key, range(first, min(first + _FIELDS_PER_COMMAND, last + 1)))
    length, *chunks = await pipeline.execute()
    return int(length or 0), [entry for chunk in chunks for entry in chunk]


class _Row(NamedTuple):
    """The fields of a run, besides its entries, as the server returns them; None if one is missing."""

    id: bytes
    length: bytes
    summary: bytes
    updated: bytes
    owner: bytes | None
    fence: bytes | None
    expires: bytes | None


def _summary_json(summary: RunSummary) -> str:
    return json.dumps(
        {
            "workflow": summary.workflow,
            "kind": summary.kind,
            "version": summary.version,
            "status": str(summary.status),
            "created_at": summary.created_at,
        }
    )


def _info(row: _Row) -> RunInfo:
    """Return one line about a run. Raise CorruptCheckpoint if it cannot be read."""
    run_id = row.id.decode()
    held = None
    if row.owner:
        held = Lease(run_id, row.owner.decode(), int(row.fence or 0), float(row.expires or 0))
    try:
        stored = json.loads(row.summary)
        summary = RunSummary(
            stored["workflow"],
            stored["kind"],
            stored["version"],
            RunStatus.stored(stored["status"], run_id),
            stored["created_at"],
        )
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(run_id, f"its summary is damaged: {error}") from error
    return RunInfo(run_id, summary, float(row.updated), int(row.length), held)


def _checked(url: str) -> str:
    """Return the URL if it can be used. The error never shows it, since it may have a password."""
    try:
        options = parse_url(url)
    except ValueError:
        pass
    else:
        if "decode_responses" in options:
            raise ValueError(
                "the URL of the Redis server contains decode_responses, which the store does not "
                "support: remove it"
            )
        return url
    raise ValueError(
        "the URL of the Redis server cannot be parsed. Write redis://USER:PASSWORD@HOST:PORT/NUMBER or "
        "unix:///path/to/socket, with %XX for special characters in the password, such as %2F for /"
    )


async def _durability_of(client: Client) -> str:
    """Return what survives, as far as the server tells."""
    info = await client.info("persistence")
    if not info.get("aof_enabled"):
        return "memory"
    try:
        settings = {
            **await client.config_get("appendfsync"),
            **await client.config_get("no-appendfsync-on-rewrite"),
        }
    except RedisError:
        # Hosted servers often do not show their configuration.
        return "process"
    always = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
    return "full" if settings == always else "process"


async def _evicting_policy_of(client: Client) -> str | None:
    """Return the policy by which the server removes keys when its memory is full, or None if it may not
    remove those of runs."""
    info = await client.info("memory")
    policy = str(info.get("maxmemory_policy", ""))
    # The other policies remove nothing, or only keys that expire.
    return policy if info.get("maxmemory") and policy.startswith("allkeys") else None


def _is_lost(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, LostConnection | NoAnswer | OSError) or _is_busy(error)


def _is_refused(error: Exception) -> bool:
    """Return whether a lost request was certainly not executed."""
    # The connection could not be made, so nothing was sent.
    unsent = ConnectionRefusedError | FileNotFoundError | socket.gaierror
    is_unsent = isinstance(error.__context__, unsent)
    return is_unsent or isinstance(error, BusyLoadingError) or _is_busy(error)


def _is_busy(error: Exception) -> bool:
    """Return whether the server waits for another script to end."""
    return isinstance(error, ResponseError) and str(error).startswith("BUSY")
