"""Runs in a Redis server: fast, and as durable as the server is configured to be."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import redis
import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import Record, Remains, RunInfo, RunQuery, RunSummary
from effectflow.effects.clock import Duration, in_seconds
from effectflow.stores._base import (
    SUMMARY_FIELDS,
    check_kept,
    lease_lost,
    readable,
    run_info,
    select,
    summary_fields,
)
from effectflow.stores._servers import Held, ServerStore, check_appended, take_over

logger = logging.getLogger(__name__)

A = TypeVar("A")

_FIELDS_PER_COMMAND = 500


class RedisStore(ServerStore):
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
        pool_size: the maximum number of connections, besides the one that renews leases. Further requests
            wait for a free one. `max_connections` in the URL means the same.
        timeout: how long (seconds, or a `timedelta`) to wait for an answer.
        reconnect_timeout: how long (seconds, or a `timedelta`) to try to reconnect to a lost server.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    Raise ValueError for a URL that cannot be parsed. Opening raises StoreUnavailable.
    """

    # The checkers know the types of these clients only in part.
    _client: Any
    _renewing: Any
    _scripts: dict[str, Any]
    _free: asyncio.Semaphore

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "effectflow",
        pool_size: int = 100,
        timeout: Duration = 10.0,
        reconnect_timeout: Duration = 15.0,
        renew_timeout: Duration = 5.0,
    ) -> None:
        super().__init__(
            reconnect_timeout=in_seconds(reconnect_timeout),
            driver_error=RedisError,
            is_lost=_is_lost,
        )
        self._url = _checked(url)
        self._pool_size: int = parse_url(url).get("max_connections", pool_size)
        self._prefix = prefix
        self._index = f"{prefix}:runs"
        self._timeout = in_seconds(timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._durability = "process"

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self._prefix!r})"

    @property
    def durability(self) -> str:
        """What the server is configured to keep. It is known once the store is open."""
        return self._durability

    async def _connect(self) -> None:
        def client(kind: Any, timeout: float, retry: object) -> Any:
            return kind.from_url(
                self._url,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                max_connections=self._pool_size,
                retry=retry,
            )

        # The pool of the client raises if all of its connections are in use.
        self._free = asyncio.Semaphore(self._pool_size)
        self._answered_at = time.monotonic()

        # The store itself counts how often a request was sent.
        self._client = client(redis.asyncio.Redis, self._timeout, AsyncRetry(NoBackoff(), 0))
        self._opened.push_async_callback(self._client.aclose)
        self._scripts = {}
        # It has two attempts, and connects when it is first used.
        self._renewing = client(redis.Redis, self._renew_timeout / 2, Retry(NoBackoff(), 1))
        self._opened.callback(self._renewing.close)
        self._durability = await _durability_of(self._client)
        if self._durability == "memory":
            logger.warning(
                "the server of %r keeps nothing on disk, so its runs are lost when it ends; "
                "set `appendonly yes` in its configuration",
                self,
            )
        memory = await self._client.info("memory")
        policy = str(memory.get("maxmemory_policy", ""))
        # The other policies remove nothing, or only keys that expire.
        if memory.get("maxmemory") and policy.startswith("allkeys"):
            logger.warning(
                "the server of %r removes runs when its memory is full (maxmemory-policy %s); "
                "set `maxmemory-policy noeviction` in its configuration",
                self,
                policy,
            )

    async def _ask_claim(self, wanted: Lease, seconds: float, free: int) -> Held:
        run_id, uptime = wanted.run_id, _text(wanted.expires_at_uptime)
        return _held(run_id, await self._run(_CLAIM, run_id, wanted.owner, seconds, uptime, free))

    def _ask_renewal(self, renewed: Lease, seconds: float) -> float | str:
        renew = self._renewing.register_script(_RENEW)
        uptime = _text(renewed.expires_at_uptime)
        arguments = [renewed.owner, renewed.fence, seconds, uptime]
        answer, text = renew(self._keys(renewed.run_id), arguments)
        return float(text) if answer == b"renewed" else text.decode()

    async def release(self, lease: Lease) -> None:
        await self._run(_RELEASE, lease.run_id, lease.owner, lease.fence)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        arguments = (
            lease.owner,
            lease.fence,
            after,
            int(release),
            lease.run_id,
            uuid4().bytes,
            "" if summary is None else json.dumps(summary_fields(summary)),
            *bodies,
        )
        is_unknown = False

        async def ask() -> Any:
            nonlocal is_unknown
            try:
                return await self._evaluate(_APPEND, lease.run_id, arguments)
            except Exception as error:
                is_unknown = is_unknown or (_is_lost(error) and not _is_refused(error))
                raise

        self._check_open()
        try:
            refusal = await self._ask(ask)
        except StoreUnavailable as error:
            raise SaveFailed(lease.run_id, str(error), is_unknown=is_unknown) from error
        check_appended(lease, after, refusal and refusal.decode())

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        length, entries = await self._entries(run_id, after, after + _FIELDS_PER_COMMAND)
        if length > after + _FIELDS_PER_COMMAND:
            length, entries = await self._entries(run_id, after, length)
        records: list[Record] = []
        for number, entry in enumerate(entries[: max(length - after, 0)], after + 1):
            if entry is None:
                reason = f"it is missing, and the run has {length} entries"
                raise CorruptCheckpoint(run_id, reason, sequence=number)
            record = _record(number, entry)
            if record is None:
                raise CorruptCheckpoint(run_id, "its time is damaged", sequence=number)
            records.append(record)
        return records

    async def salvage(self, run_id: str) -> Remains:
        """Return all that is left of a run."""
        length, _ = await self._entries(run_id, 0, 0)
        length, entries = await self._entries(run_id, 0, length)
        records: list[Record] = []
        unreadable: dict[str, bytes] = {}
        for number, entry in enumerate(entries[:length], 1):
            record = None if entry is None else _record(number, entry)
            if record is not None:
                records.append(record)
            elif entry is not None:
                unreadable[f"entry {number}"] = entry
        return Remains(records, unreadable)

    async def info(self, run_id: str) -> RunInfo | None:
        rows = await self._rows([self._key(run_id)])
        return _info(rows[0]) if rows else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        seconds, microseconds = await self._ask(lambda: self._client.time())
        infos = readable(await self._all_rows(), _info)
        return select(infos, query, now=seconds + microseconds / 1e6)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        damaged: list[str] = []
        for row in await self._all_rows():
            try:
                _info(row)
            except CorruptCheckpoint as error:
                damaged.append(error.run_id)
        return sorted(damaged)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        born = await self._ask(lambda: self._client.hget(self._key(run_id), "born"))
        requests = 0

        async def request(*arguments: Any) -> tuple[bool, list[Any]]:
            """Return whether the run was there, and its lease if that is in the way."""

            async def evaluate() -> Any:
                nonlocal requests
                requests += 1
                return await self._evaluate(_DELETE, run_id, (born or "", *arguments))

            state, *held = await self._ask(evaluate)
            # If the answer to an earlier request was lost, that has deleted it.
            return state == b"deleted" or requests > 1, held

        async def ask(free: int) -> bool | Held:
            was_there, held = await request(free)
            return _held(run_id, held) if held else was_there

        async def ask_as_holder(lease: Lease) -> bool:
            was_there, held = await request(lease.fence, lease.owner)
            if held:
                raise lease_lost(run_id, held[0].decode())
            return was_there

        was_there = await (take_over(ask) if lease is None else ask_as_holder(lease))
        # Even if the run is missing, since an earlier deletion may have been interrupted.
        await self._sweep(run_id)
        if not was_there:
            raise RunNotFound(run_id)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        fields = json.dumps(summary_fields(summary))
        arguments = (lease.run_id, lease.owner, lease.fence, after, fields)
        answer, detail = await self._run(_TRUNCATE, *arguments)
        if answer == b"held":
            raise lease_lost(lease.run_id, detail.decode())
        check_kept(lease, int(detail), after=after)
        await self._sweep(lease.run_id)

    async def _sweep(self, run_id: str) -> None:
        """Remove what is left of a deleted or truncated run. No query returns it any more."""
        there: list[bytes] = await self._ask(lambda: self._client.hkeys(self._key(run_id)))
        left = [field for field in there if field not in _LEASE]
        for start in range(0, len(left) + 1, _FIELDS_PER_COMMAND):
            await self._run(_SWEEP, run_id, *left[start : start + _FIELDS_PER_COMMAND])

    # How it talks to the server.

    async def _ask(self, request: Callable[[], Awaitable[A]]) -> A:
        async def ask() -> A:
            await self._take_connection()
            try:
                answer = await request()
            finally:
                self._free.release()
            self._answered_at = time.monotonic()
            return answer

        return await super()._ask(ask)

    async def _take_connection(self) -> None:
        """Wait for a free connection. Raise StoreUnavailable if the server answers none of the others."""
        patience = self._timeout + self._reconnect_timeout
        while self._free.locked():
            try:
                async with asyncio.timeout(patience):
                    await self._free.acquire()
                return
            except TimeoutError:
                if time.monotonic() > self._answered_at + patience:
                    reason = f"it has not answered for {patience:g} s"
                    raise StoreUnavailable(repr(self), reason) from None
        await self._free.acquire()

    def _key(self, run_id: str) -> str:
        # A run id may be any text, and people look at keys.
        return f"{self._prefix}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"

    def _keys(self, run_id: str) -> list[str]:
        return [self._key(run_id), self._index, f"{self._prefix}:fences"]

    async def _all_rows(self) -> list[_Row]:
        keys: list[bytes] = await self._ask(lambda: self._client.hkeys(self._index))
        rows: list[_Row] = []
        for start in range(0, len(keys), _FIELDS_PER_COMMAND):
            rows += await self._rows(keys[start : start + _FIELDS_PER_COMMAND])
        return rows

    async def _rows(self, keys: Sequence[str | bytes]) -> list[_Row]:
        """Return the fields of the runs with these keys, without deleted runs."""

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, _Row._fields)
            return await pipeline.execute()

        rows = [_Row(*row) for row in await self._ask(ask)]
        return [row for row in rows if int(row.length or 0)]

    async def _entries(self, run_id: str, after: int, last: int) -> tuple[int, list[bytes | None]]:
        """Return the length of a run and its entries from `after` to `last`, in one transaction."""

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=True)
            key = self._key(run_id)
            pipeline.hget(key, "length")
            for first in range(after + 1, last + 1, _FIELDS_PER_COMMAND):
                pipeline.hmget(key, range(first, min(first + _FIELDS_PER_COMMAND, last + 1)))
            return await pipeline.execute()

        length, *chunks = await self._ask(ask)
        return int(length or 0), [entry for chunk in chunks for entry in chunk]

    async def _run(self, script: str, run_id: str, *arguments: Any) -> Any:
        return await self._ask(lambda: self._evaluate(script, run_id, arguments))

    async def _evaluate(self, script: str, run_id: str, arguments: Sequence[Any]) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(script)
        return await self._scripts[script](self._keys(run_id), arguments)


def _record(number: int, entry: bytes) -> Record | None:
    """Return an entry as it is kept in the server; None if its time cannot be read."""
    at, _, body = entry.partition(b" ")
    try:
        return Record(number, float(at), body)
    except ValueError:
        return None


class _Row(NamedTuple):
    """The fields of a run, besides its entries, as the server returns them; None if one is missing."""

    id: bytes
    length: bytes
    summary: bytes
    updated: bytes
    owner: bytes | None
    fence: bytes | None
    expires: bytes | None
    uptime: bytes | None


def _info(row: _Row) -> RunInfo:
    """Return one line about a run. Raise CorruptCheckpoint if it cannot be read."""
    run_id = row.id.decode()
    try:
        summary = json.loads(row.summary)
        return run_info(
            run_id,
            *(summary[name] for name in SUMMARY_FIELDS),
            updated_at=float(row.updated),
            length=int(row.length),
            owner=(row.owner or b"").decode(),
            fence=int(row.fence or 0),
            expires_at=float(row.expires or 0),
            expires_at_uptime=_number(row.uptime),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(run_id, f"its summary is damaged: {error}") from error


def _held(run_id: str, answer: Sequence[bytes]) -> Held:
    """Return the lease and the time in the answer of a script."""
    owner, fence, expires, uptime, now = answer
    lease = Lease(run_id, owner.decode(), int(fence), float(expires), _number(uptime))
    return Held(lease, float(now))


def _text(number: float | None) -> str:
    return "" if number is None else str(number)


def _number(text: bytes | None) -> float | None:
    return float(text) if text else None


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


async def _durability_of(client: Any) -> str:
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


# The scripts. Each is one atomic operation on the server.
#
# A run is one hash. It contains the lease, the summary, and the entries by their numbers. Its
# `length` is the number of entries: fields with higher numbers do not count. `born` is the fence of the
# claim that began the run. The index has the keys of all runs. One counter issues the fences of all
# runs, so that a deleted run leaves nothing behind and a stale writer cannot write to a new one. Each
# script receives these keys as KEYS[1] to KEYS[3].
#
# A server that is killed while it writes to its append-only file may leave only the first writes of a
# script there. It ignores them when it starts, but most versions keep them in the file and execute
# them at the start after that, just before the transaction that was written next. Single commands
# that follow are lost unless a transaction follows too (valkey-io/valkey#4342). Therefore:
#
# - The first writes of a script do no harm, even if all of its writes follow once more: they set
#   fields and never increment them, and the write that makes the others count comes last. They use
#   HSET, which is written to the file even if it changes nothing, unlike ZADD.
# - A script that claims, renews, releases or appends first writes again all that counts. So the next
#   script for a run undoes what such writes may do later.
# - Each script has at least two writes, which makes it a transaction.
# - Only a run without entries expires, some time after its lease, because its owner may have died. The
#   first append ends that before the write that makes the others count.

_LEASE = frozenset({b"owner", b"fence", b"expires", b"uptime", b"length"})
"""The fields of a run that is claimed and has no entries."""

_RUN = """
    local time = redis.call('TIME')
    local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

    local run = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'expires', 'length',
                           'summary', 'updated', 'born', 'uptime')
    local owner, fence, expires, length = run[1] or '', run[2] or '0', run[3] or '0', run[4] or '0'
    local uptime = run[8] or ''

    local function held()
        return owner, fence, expires, uptime, string.format('%.6f', now)
    end

    local function keep()
        local append = 'append ' .. fence
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'expires', expires,
                   'uptime', uptime, 'length', length, 'summary', run[5] or '', 'updated', run[6] or '',
                   'born', run[7] or '', append, redis.call('HGET', KEYS[1], append) or '')
    end

    local function extend(seconds, until_uptime)
        expires, uptime = string.format('%.6f', now + tonumber(seconds)), until_uptime
        redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'expires', expires,
                   'uptime', uptime)
        if length == '0' then
            redis.call('EXPIREAT', KEYS[1], math.ceil(tonumber(expires)) + 3600)
        end
    end
"""

_CLAIM = (
    _RUN
    + """
    -- ARGV: owner, seconds, uptime at the end, fence of a lease that is free.
    if owner == '' or owner == ARGV[1] or fence == ARGV[4] then
        keep()
        local last = tonumber(redis.call('GET', KEYS[3]) or '0')
        owner, fence = ARGV[1], string.format('%.0f', math.max(last, tonumber(fence)) + 1)
        redis.call('SET', KEYS[3], fence)
        extend(ARGV[2], ARGV[3])
    end
    return {held()}
"""
)

_RENEW = (
    _RUN
    + """
    -- ARGV: owner, fence, seconds, uptime at the end.
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return {'refused', owner ~= '' and 'held ' .. owner or run[1] and 'released' or 'gone'}
    end
    keep()
    extend(ARGV[3], ARGV[4])
    return {'renewed', expires}
"""
)

_RELEASE = (
    _RUN
    + """
    -- ARGV: owner, fence.
    if owner == ARGV[1] and fence == ARGV[2] then
        keep()
        if length == '0' then
            redis.call('DEL', KEYS[1])
        else
            redis.call('HSET', KEYS[1], 'owner', '')
        end
    end
"""
)

_APPEND = (
    _RUN
    + """
    -- ARGV: owner, fence, after, release, run id, id of this append, summary or '', bodies.
    local append = 'append ' .. ARGV[2]
    if redis.call('HGET', KEYS[1], append) == ARGV[6] then
        -- Its answer was lost, and it was sent again.
        return false
    end
    if owner ~= '' and (owner ~= ARGV[1] or fence ~= ARGV[2]) then
        return 'held ' .. owner
    end
    if length ~= ARGV[3] then
        return length == '0' and 'gone' or 'length ' .. length
    end
    if owner == '' then
        return 'released'
    end
    if ARGV[7] == '' and length == '0' then
        return 'unsummarized'
    end
    keep()
    local at, last = string.format('%.6f', now), tonumber(length)
    for i = 8, #ARGV do
        last = last + 1
        redis.call('HSET', KEYS[1], last, at .. ' ' .. ARGV[i])
    end
    if ARGV[7] ~= '' then
        redis.call('HSET', KEYS[2], KEYS[1], ARGV[5])
    end
    local changes = {'id', ARGV[5], append, ARGV[6], 'length', last}
    local function set(field, value)
        changes[#changes + 1] = field
        changes[#changes + 1] = value
    end
    if #ARGV > 7 then set('updated', at) end
    if length == '0' then
        redis.call('PERSIST', KEYS[1])
        set('born', fence)
    end
    if ARGV[7] ~= '' then set('summary', ARGV[7]) end
    if ARGV[4] == '1' then set('owner', '') end
    redis.call('HSET', KEYS[1], unpack(changes))
    return false
"""
)

_TRUNCATE = (
    _RUN
    + """
    -- ARGV: owner, fence, after, summary.
    if owner ~= ARGV[1] or fence ~= ARGV[2] then
        return {'held', owner}
    end
    if tonumber(ARGV[3]) < 1 or tonumber(length) < tonumber(ARGV[3]) then
        return {'length', length}
    end
    keep()
    local newest = redis.call('HGET', KEYS[1], ARGV[3]) or ''
    local at = string.match(newest, '^[%d.]+') or string.format('%.6f', now)
    redis.call('HSET', KEYS[1], 'summary', ARGV[4], 'updated', at, 'length', ARGV[3])
    return {'length', ARGV[3]}
"""
)

_DELETE = (
    _RUN
    + """
    -- ARGV: `born` of the run, and fence of a lease that is free; or that of the caller, and its owner.
    -- There may be a new run by now.
    if length == '0' or run[7] ~= ARGV[1] then
        return {'missing'}
    end
    local is_known = fence == ARGV[2] and owner == (ARGV[3] or owner)
    if not is_known and (owner ~= '' or ARGV[3]) then
        return {'held', held()}
    end
    -- If its memory is full, a server only continues scripts that have removed something.
    redis.call('HDEL', KEYS[1], 'expires', 'uptime')
    redis.call('HSET', KEYS[1], 'owner', '', 'length', 0)
    return {'deleted'}
"""
)

_SWEEP = """
    -- ARGV: fields left by a deleted or truncated run. There may be a new run by now.
    local length = tonumber(redis.call('HGET', KEYS[1], 'length') or '0')
    for _, field in ipairs(ARGV) do
        if (tonumber(field) or 1) > length then
            redis.call('HDEL', KEYS[1], field)
        end
    end
    if length == 0 then
        redis.call('HDEL', KEYS[2], KEYS[1])
        if (redis.call('HGET', KEYS[1], 'owner') or '') == '' then
            redis.call('DEL', KEYS[1])
        end
    end
"""
