"""Runs in a Redis server: quick, and as durable as the server is told to be."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast
from uuid import uuid4

import redis.asyncio as driver
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from effectflow.checkpoint.errors import (
    LeaseLost,
    RunBusy,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.store import Record, RunInfo, RunQuery, RunStatus, RunSummary
from effectflow.effects import RetryPolicy
from effectflow.stores import redis_scripts
from effectflow.stores.asyncio_bridge import AsyncioBridge

__all__ = ["RedisStore"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_Client: TypeAlias = Any
"""A `redis.asyncio.Redis`, whose own types are in part unknown to the checkers."""

_CHUNK = 500
_PATIENCE = RetryPolicy.exponential(0.05).with_max_delay(1).with_max_elapsed(15).with_full_jitter()
"""How long a lost connection is looked for again."""


class RedisStore:
    """Keeps runs in Redis. Needs the extra `effectflow[redis]` (redis-py).

    An append is one atomic script. A connection that is lost is looked for again for 15 seconds; an
    append that comes twice, because its answer was lost, is done once. Time is that of the server.

    What survives is the server's business: with `appendonly yes` and `appendfsync always` everything
    does; with `everysec` a crash of the server may lose a second. Opening a store on a server that
    keeps nothing on disk logs a warning.

    Parameters:
        url: such as `redis://host:6379/0` or `unix:///path/to/socket`. It is never logged.
        prefix: what all its keys begin with.
        timeout: seconds to wait for an answer.

    Opening fails with StoreUnavailable.
    """

    def __init__(self, url: str, *, prefix: str = "effectflow", timeout: float = 10.0) -> None:
        self._url = url
        self._prefix = prefix
        self._timeout = timeout
        self._bridge = AsyncioBridge()
        self._client: _Client | None = None
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
            await self._bridge.close()
            raise
        return self

    async def _open(self) -> None:
        client: _Client = cast(Any, driver.Redis).from_url(
            self._url, socket_timeout=self._timeout, socket_connect_timeout=self._timeout
        )
        try:
            self._durability = await _durability_of(client)
        except (RedisError, OSError) as error:
            await client.aclose()
            raise StoreUnavailable(repr(self), f"it cannot be opened: {error}") from error
        if self._durability == "memory":
            logger.warning(
                "the server of %r keeps nothing on disk, so its runs are lost when it ends; "
                "set `appendonly yes` in its configuration",
                self,
            )
        self._client = client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._bridge.call(client.aclose)
        await self._bridge.close()

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        dead = -1
        while True:
            answer = await self._run(
                redis_scripts.CLAIM, [self._lease(run_id)], owner, seconds, dead
            )
            holder, fence, expires_at, now = (
                _text(answer[0]),
                int(answer[1]),
                *map(float, answer[2:]),
            )
            if holder == owner:
                return Lease(run_id, owner, fence, expires_at)
            parsed = Owner.parse(holder)
            if fence == dead or parsed is None or not parsed.is_dead():
                raise RunBusy(run_id, holder, expires_at - now)
            dead = fence

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        keys = [self._lease(lease.run_id)]
        expires_at = await self._run(redis_scripts.RENEW, keys, lease.fence, seconds)
        if expires_at is None:
            raise LeaseLost(lease.run_id, "somebody else has claimed it")
        return Lease(lease.run_id, lease.owner, lease.fence, float(expires_at))

    async def release(self, lease: Lease) -> None:
        await self._run(redis_scripts.RELEASE, [self._lease(lease.run_id)], lease.fence)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
    ) -> None:
        try:
            problem = await self._run(
                redis_scripts.APPEND,
                self._keys(lease.run_id),
                lease.fence,
                after,
                int(release),
                lease.run_id,
                uuid4().bytes,
                "" if summary is None else _summary_json(summary),
                *bodies,
            )
        except StoreUnavailable as error:
            if self._client is None:
                raise
            raise SaveFailed(lease.run_id, str(error)) from error
        if problem is None:
            return
        if _text(problem) == "no summary":
            raise ValueError("the first append of a run needs a summary")
        raise LeaseLost(lease.run_id, _text(problem))

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        records: list[Record] = []
        key = self._keys(run_id)[1]
        while True:
            rows: list[bytes] = await self._do(partial(_range, key=key, start=after))
            for sequence, row in enumerate(rows, after + 1):
                at, _, body = row.partition(b" ")
                records.append(Record(sequence, float(at), body))
            if len(rows) < _CHUNK:
                return records
            after += len(rows)

    async def info(self, run_id: str) -> RunInfo | None:
        found = await self._infos([self._keys(run_id)[2].encode()])
        return found[0] if found else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        wanted = query.offset + query.limit
        found: list[RunInfo] = []
        # Runs made at one time come by id, which the index does not know: so all times are read.
        keys: list[bytes] = await self._do(
            lambda client: client.zrange(self._index, 0, -1, desc=True)
        )
        now = await self._now()
        infos: list[RunInfo] = []
        for start in range(0, len(keys), _CHUNK):
            infos += await self._infos(keys[start : start + _CHUNK])
        infos.sort(key=lambda info: (-info.summary.created_at, info.run_id))
        for info in infos:
            if len(found) == wanted:
                break
            if query.matches(info, now):
                found.append(info)
        return found[query.offset :]

    async def delete(self, run_id: str) -> None:
        dead = -1
        while True:
            state, *held = await self._run(redis_scripts.DELETE, self._keys(run_id), dead)
            if state == b"missing":
                raise RunNotFound(run_id)
            if state == b"deleted":
                return
            holder, fence, expires_in = _text(held[0]), int(held[1]), float(held[2])
            parsed = Owner.parse(holder)
            if fence == dead or parsed is None or not parsed.is_dead():
                raise RunBusy(run_id, holder, expires_in)
            dead = fence

    # How it talks to the server.

    @property
    def _index(self) -> str:
        return f"{self._prefix}:runs"

    def _lease(self, run_id: str) -> str:
        return f"{self._prefix}:lease:{_name(run_id)}"

    def _keys(self, run_id: str) -> list[str]:
        name = _name(run_id)
        entries, run = f"{self._prefix}:entries:{name}", f"{self._prefix}:run:{name}"
        return [self._lease(run_id), entries, run, self._index]

    async def _now(self) -> float:
        seconds, microseconds = await self._do(lambda client: client.time())
        return seconds + microseconds / 1e6

    async def _infos(self, keys: Sequence[bytes]) -> list[RunInfo]:
        """What is known of the runs with these keys, in their order; without those that are gone."""

        async def ask(client: _Client) -> list[Any]:
            pipeline = client.pipeline(transaction=True)
            for key in keys:
                name = key.rpartition(b":")[2].decode()
                pipeline.hgetall(key.decode())
                pipeline.llen(f"{self._prefix}:entries:{name}")
                pipeline.hgetall(f"{self._prefix}:lease:{name}")
            return await pipeline.execute()

        answers = await self._do(ask)
        triples = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return [_info(run, length, lease) for run, length, lease in triples if run and length]

    async def _run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        async def ask(client: _Client) -> Any:
            return await client.register_script(script)(keys=keys, args=list(arguments))

        return await self._do(ask)

    async def _do(self, ask: Callable[[_Client], Awaitable[A]]) -> A:
        client = self._client
        if client is None:
            raise StoreUnavailable(repr(self), "it is not open: use `async with store: ...`")
        return await self._bridge.call(lambda: self._patiently(client, ask))

    async def _patiently(self, client: _Client, ask: Callable[[_Client], Awaitable[A]]) -> A:
        began = time.monotonic()
        delays: Iterator[float] | None = None
        while True:
            try:
                return await ask(client)
            except (LostConnection, NoAnswer, OSError) as error:
                delays = delays or _PATIENCE.delays()
                delay = next(delays)
                elapsed = time.monotonic() - began
                if elapsed + delay > (_PATIENCE.max_elapsed or 0):
                    raise StoreUnavailable(repr(self), f"it cannot be reached: {error}") from error
                logger.warning("the connection to %r was lost; it is looked for again", self)
                await asyncio.sleep(delay)
            except RedisError as error:
                raise StoreUnavailable(repr(self), f"it refused a command: {error}") from error


async def _range(client: _Client, *, key: str, start: int) -> list[bytes]:
    return await client.lrange(key, start, start + _CHUNK - 1)


async def _durability_of(client: _Client) -> str:
    """What survives, as far as the server tells."""
    info = await client.info("persistence")
    if not info.get("aof_enabled"):
        return "memory"
    try:
        settings = await client.config_get("appendfsync")
    except RedisError:
        # Servers of others often keep their configuration to themselves.
        return "process"
    return "full" if settings.get("appendfsync") == "always" else "process"


def _name(run_id: str) -> str:
    """What a run's keys end with: any text is a run id, and keys are looked at by people."""
    return hashlib.sha256(run_id.encode()).hexdigest()


def _text(data: bytes) -> str:
    return data.decode()


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


def _info(run: dict[bytes, bytes], length: int, lease: dict[bytes, bytes]) -> RunInfo:
    run_id = _text(run[b"id"])
    summary = json.loads(run[b"summary"])
    held = None
    if lease.get(b"owner"):
        expires_at = float(lease[b"expires"])
        held = Lease(run_id, _text(lease[b"owner"]), int(lease[b"fence"]), expires_at)
    return RunInfo(
        run_id,
        RunSummary(
            summary["workflow"],
            summary["kind"],
            summary["version"],
            RunStatus(summary["status"]),
            summary["created_at"],
        ),
        float(run[b"updated"]),
        length,
        held,
    )
