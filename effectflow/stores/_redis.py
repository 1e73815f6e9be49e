"""Runs in a Redis server: fast, and as durable as the server is configured to be."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

import redis
import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    RunEnded,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.store import (
    Changes,
    Claimed,
    DueRuns,
    Message,
    Record,
    Remains,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    Taken,
    notifies_parent,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.stores import _redis_scripts as scripts
from effectflow.stores._changes import Watcher
from effectflow.stores._redis_connection import (
    Subscriber,
    checked,
    durability_of,
    is_lost,
    is_refused,
    warn_of_losses,
)
from effectflow.stores._redis_due import CLAIM_DUE, PLACE, Freed, request_of
from effectflow.stores._redis_scripts import (
    Row,
    held_of,
    info_of,
    message_of,
    number_of,
    record_of,
    text_of,
)
from effectflow.stores._rules import check_kept, lease_lost
from effectflow.stores._servers import Held, ServerStore, check_appended, take_over
from effectflow.stores._summaries import readable, select, summary_fields

A = TypeVar("A")

_FIELDS_PER_COMMAND = 500


class RedisStore(ServerStore):
    """Keeps runs in Redis. Needs the extra `effectflow[redis]` (redis-py, hiredis).

    An append is one atomic script. If its answer was lost, it is sent again, and executed once. The
    clock of the server decides. The store needs one server, which may have replicas. It does not support
    Redis Cluster.

    What survives depends on the server: with `appendonly yes` and `appendfsync always` everything does;
    with `everysec` a crash of the server may lose a second. Opening a store logs a warning if the
    server keeps nothing on disk, or removes keys when its memory is full.

    Parameters:
        url: such as `redis://host:6379/0` or `unix:///path/to/socket`. It is never logged.
        prefix: the prefix of all keys.
        pool_size: the maximum number of connections, besides the one that renews leases and one for each
            open `changes`. Further requests wait for a free one. `max_connections` in the URL means the
            same.
        timeout: how long (seconds, or a `timedelta`) to wait for an answer.
        reconnect_timeout: how long (seconds, or a `timedelta`) to try to reconnect to a lost server.
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of a lease may take.

    Raise ValueError for a URL that cannot be parsed. Opening raises StoreUnavailable, or
    UnsupportedVersion if a newer effectflow wrote the runs, or one from before the first release.
    """

    # The type checkers know the types of these clients only in part.
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
            is_lost=is_lost,
        )
        self._url = checked(url)
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
        """What the configuration of the server keeps. It is known once the store is open."""
        return self._durability

    def _new_client(self, kind: Any, timeout: float, retry: object) -> Any:
        return kind.from_url(
            self._url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            max_connections=self._pool_size,
            retry=retry,
        )

    def _new_asyncio_client(self) -> Any:
        # The store itself counts how often a request was sent.
        return self._new_client(redis.asyncio.Redis, self._timeout, AsyncRetry(NoBackoff(), 0))

    async def _connect(self) -> None:
        # The pool of the client raises if all of its connections are in use.
        self._free = asyncio.Semaphore(self._pool_size)
        self._answered_at = time.monotonic()

        self._client = self._new_asyncio_client()
        self._opened.push_async_callback(self._client.aclose)
        self._scripts = {}
        # It connects when it is first used, and has two attempts.
        self._renewing = self._new_client(
            redis.Redis, self._renew_timeout / 2, Retry(NoBackoff(), 1)
        )
        self._opened.callback(self._renewing.close)
        layout = int(await self._evaluate(scripts.FIND_LAYOUT, None, (scripts.LAYOUT,)))
        if layout != scripts.LAYOUT:
            raise UnsupportedVersion(repr(self), layout, scripts.LAYOUT)
        self._durability = await durability_of(self._client)
        await warn_of_losses(self._client, self, self._durability)

    async def _ask_claim(self, wanted: Lease, seconds: float, free: int) -> Held:
        run_id, uptime = wanted.run_id, text_of(wanted.expires_at_uptime)
        return held_of(
            run_id, await self._run(scripts.CLAIM, run_id, wanted.owner, seconds, uptime, free)
        )

    def _ask_renewal(self, renewed: Lease, seconds: float) -> float | str:
        renew = self._renewing.register_script(scripts.RENEW)
        uptime = text_of(renewed.expires_at_uptime)
        arguments = [renewed.owner, renewed.fence, seconds, uptime]
        answer, text = renew(self._keys(renewed.run_id), arguments)
        return float(text) if answer == b"renewed" else text.decode()

    async def release(self, lease: Lease) -> None:
        await self._run(scripts.RELEASE, lease.run_id, lease.owner, lease.fence)

    async def append(
        self,
        lease: Lease,
        bodies: Sequence[bytes],
        *,
        after: int,
        summary: RunSummary | None = None,
        release: bool = False,
        takes: Sequence[int] = (),
        seen: int | None = None,
    ) -> None:
        refusal = await self._save(
            scripts.APPEND,
            lease.run_id,
            lease.owner,
            lease.fence,
            after,
            int(release),
            lease.run_id,
            uuid4().bytes,
            *(("", "", "") if summary is None else self._written(summary)),
            int(summary is not None and notifies_parent(summary)),
            "" if seen is None else seen,
            " ".join(map(str, takes)),
            *bodies,
        )
        check_appended(lease, refusal and refusal.decode(), after=after, takes=takes)

    async def create(self, run_id: str, bodies: Sequence[bytes], *, summary: RunSummary) -> bool:
        arguments = (run_id, uuid4().bytes, *self._written(summary), *bodies)

        async def ask(free: int) -> bool | Held:
            answer = await self._save(scripts.CREATE, run_id, free, *arguments)
            return answer == b"created" if isinstance(answer, bytes) else held_of(run_id, answer)

        return await take_over(ask)

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        answer = await self._save(scripts.SEND, run_id, topic, key, body, uuid4().bytes)
        if answer in (b"sent", b"received"):
            return answer == b"sent"
        if answer == b"unknown":
            raise RunNotFound(run_id)
        raise RunEnded(run_id, RunStatus.stored(answer.decode(), run_id))

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        answer = await self._run(scripts.MAILBOX, run_id, after)
        pairs = zip(answer[::2], answer[1::2], strict=True)
        return [message_of(run_id, int(number), stored) for number, stored in pairs]

    async def claim_due(self, due: DueRuns) -> Claimed:
        runs: list[Taken] = []
        freed = Freed()
        while True:
            owners = due.owners[len(runs) :]
            request = request_of(due, owners, freed)
            rows, next_due_at, suspects, processes = await self._ask_due(request)
            for row, lease in rows:
                runs += await self._taken(Row(*row), lease)
            freed = Freed.among(suspects, processes)
            if not freed:
                return Claimed(tuple(runs), number_of(next_due_at))

    async def _ask_due(self, request: str) -> list[Any]:
        """Return the rows and leases of runs that were claimed, when the next one is due, the leases that
        may have expired, and the processes that hold leases."""
        arguments = (request, uuid4().hex, *Row._fields)
        while True:
            kind, *answer = await self._run(CLAIM_DUE, None, *arguments)
            if kind == b"claimed":
                return answer
            await self._place_all(answer[0])

    async def _place_all(self, server: bytes) -> None:
        """Rebuild the sorted sets of due and held runs after a restart of the server."""
        keys: list[bytes] = await self._request(lambda: self._client.hkeys(self._index))
        for start in range(0, len(keys), _FIELDS_PER_COMMAND):
            await self._run(PLACE, None, *keys[start : start + _FIELDS_PER_COMMAND])
        await self._request(lambda: self._client.set(f"{self._prefix}:server", server))

    async def _taken(self, row: Row, lease: Sequence[bytes]) -> list[Taken]:
        """Return a run that was claimed; release it, with a warning, if it cannot be read."""
        held = held_of(row.id.decode(), lease).lease
        found = [Taken(held, info) for info in readable([row], info_of)]
        if not found:
            await self.release(held)
        return found

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        watcher = Watcher()
        async with self._following(self._subscribe, watcher):
            yield watcher

    async def _subscribe(self) -> Subscriber:
        client, channel = self._new_asyncio_client(), f"{self._prefix}:changes"
        subscriber = Subscriber(client, channel, timeout=self._timeout)
        await subscriber.begin()
        return subscriber

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        length, entries = await self._entries(run_id, after, after + _FIELDS_PER_COMMAND)
        if length > after + _FIELDS_PER_COMMAND:
            length, entries = await self._entries(run_id, after, length)
        records: list[Record] = []
        for number, entry in enumerate(entries[: max(length - after, 0)], after + 1):
            if entry is None:
                reason = f"it is missing, and the run has {length} entries"
                raise CorruptCheckpoint(run_id, reason, sequence=number)
            record = record_of(number, entry)
            if record is None:
                raise CorruptCheckpoint(run_id, "its time is damaged", sequence=number)
            records.append(record)
        return records

    async def salvage(self, run_id: str) -> Remains:
        """Return everything that is left of a run."""
        length, _ = await self._entries(run_id, 0, 0)
        length, entries = await self._entries(run_id, 0, length)
        records: list[Record] = []
        unreadable: dict[str, bytes] = {}
        for number, entry in enumerate(entries[:length], 1):
            record = None if entry is None else record_of(number, entry)
            if record is not None:
                records.append(record)
            elif entry is not None:
                unreadable[f"entry {number}"] = entry
        return Remains(records, unreadable)

    async def info(self, run_id: str) -> RunInfo | None:
        row = Row(*await self._request(lambda: self._client.hmget(self._key(run_id), Row._fields)))
        return info_of(row) if int(row.length or 0) else None

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        seconds, microseconds = await self._request(lambda: self._client.time())
        infos = readable(await self._find_rows(query), info_of)
        return select(infos, query, now=seconds + microseconds / 1e6)

    async def damaged_runs(self) -> list[str]:
        """Return the ids of the runs that `find` skips because they cannot be read."""
        damaged: list[str] = []
        for row in await self._find_rows(RunQuery()):
            try:
                info_of(row)
            except CorruptCheckpoint as error:
                damaged.append(error.run_id)
        return sorted(damaged)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        born = await self._request(lambda: self._client.hget(self._key(run_id), "born"))
        requests = 0

        async def ask(*known: Any) -> bool | Held:
            """Return whether the run existed, or the lease that prevents the deletion."""

            async def evaluate() -> Any:
                nonlocal requests
                requests += 1
                return await self._evaluate(scripts.DELETE, run_id, (born or "", *known))

            state, *held = await self._request(evaluate)
            if held:
                return held_of(run_id, held)
            # An earlier request deleted it, and its answer was lost.
            return state == b"deleted" or requests > 1

        if lease is None:
            was_there = await take_over(ask)
        else:
            was_there = await ask(lease.fence, lease.owner)
            if isinstance(was_there, Held):
                raise lease_lost(run_id, was_there.lease.owner)
        # Even if the run is missing, since an earlier deletion may have been interrupted.
        await self._sweep(run_id)
        if not was_there:
            raise RunNotFound(run_id)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        arguments = (lease.run_id, lease.owner, lease.fence, after, *self._written(summary))
        answer, detail = await self._run(scripts.TRUNCATE, *arguments)
        if answer == b"held":
            raise lease_lost(lease.run_id, detail.decode())
        check_kept(lease, int(detail), after=after)
        await self._sweep(lease.run_id)

    async def _sweep(self, run_id: str) -> None:
        """Remove the rest of a deleted or truncated run. No query returns it any more."""
        there: list[bytes] = await self._request(lambda: self._client.hkeys(self._key(run_id)))
        left = [field for field in there if field not in scripts.LEASE_FIELDS]
        for start in range(0, len(left) + 1, _FIELDS_PER_COMMAND):
            await self._run(scripts.SWEEP, run_id, *left[start : start + _FIELDS_PER_COMMAND])

    # Requests to the server.

    async def _request(self, request: Callable[[], Awaitable[A]]) -> A:
        """Return the answer to a request on a shared connection, which is repeated if it was lost."""

        async def ask() -> A:
            await self._take_connection()
            try:
                answer = await request()
            finally:
                self._free.release()
            self._answered_at = time.monotonic()
            return answer

        return await self._ask(ask)

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
        # A run id may be any text, and people read keys.
        return f"{self._prefix}:run:{hashlib.sha256(run_id.encode()).hexdigest()}"

    def _keys(self, run_id: str | None) -> list[str]:
        key = self._index if run_id is None else self._key(run_id)
        return [key, self._index, f"{self._prefix}:fences", self._prefix]

    def _written(self, summary: RunSummary) -> tuple[str, str, str]:
        """Return a summary as scripts write it: the summary without `due_at`, which changes more often;
        `due_at`; and the key of the parent."""
        fields = summary_fields(summary)
        due_at = fields.pop("due_at")
        parent = self._key(summary.parent) if summary.parent else ""
        return json.dumps(fields), "" if due_at is None else repr(float(due_at)), parent

    async def _find_rows(self, query: RunQuery) -> list[Row]:
        """Return the fields of the runs that may match a query."""
        index: dict[bytes, bytes] = await self._request(lambda: self._client.hgetall(self._index))
        prefix = query.prefix.encode()
        keys = [key for key, run_id in index.items() if run_id.startswith(prefix)]
        wanted = {"workflow": query.workflow, "statuses": [*map(str, query.statuses)]}
        arguments = (json.dumps(wanted), len(Row._fields), *Row._fields)
        rows: list[Row] = []
        for start in range(0, len(keys), _FIELDS_PER_COMMAND):
            chunk = keys[start : start + _FIELDS_PER_COMMAND]
            rows += [Row(*row) for row in await self._run(scripts.FIND, None, *arguments, *chunk)]
        return rows

    async def _entries(self, run_id: str, after: int, last: int) -> tuple[int, list[bytes | None]]:
        """Return the length of a run and its entries from `after` to `last`, in one transaction."""

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=True)
            key = self._key(run_id)
            pipeline.hget(key, "length")
            for first in range(after + 1, last + 1, _FIELDS_PER_COMMAND):
                pipeline.hmget(key, range(first, min(first + _FIELDS_PER_COMMAND, last + 1)))
            return await pipeline.execute()

        length, *chunks = await self._request(ask)
        return int(length or 0), [entry for chunk in chunks for entry in chunk]

    async def _run(self, script: str, run_id: str | None, *arguments: Any) -> Any:
        return await self._request(lambda: self._evaluate(script, run_id, arguments))

    async def _save(self, script: str, run_id: str, *arguments: Any) -> Any:
        """Run a script that writes. Raise SaveFailed if the server cannot be reached."""
        is_unknown = False

        async def ask() -> Any:
            nonlocal is_unknown
            try:
                return await self._evaluate(script, run_id, arguments)
            except Exception as error:
                is_unknown = is_unknown or (is_lost(error) and not is_refused(error))
                raise

        self._check_open()
        try:
            return await self._request(ask)
        except StoreUnavailable as error:
            raise SaveFailed(run_id, str(error), is_unknown=is_unknown) from error

    async def _evaluate(self, script: str, run_id: str | None, arguments: Sequence[Any]) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(script)
        return await self._scripts[script](self._keys(run_id), arguments)
