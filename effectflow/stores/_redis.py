"""Runs in a Redis server: fast, and as durable as the server is configured to be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import redis
import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
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
    Remains,
    StoreFacts,
    Taken,
)
from effectflow.effects.clock import Duration, in_seconds
from effectflow.stores._changes import Watcher
from effectflow.stores._due import Served
from effectflow.stores._redis_connection import (
    Subscriber,
    checked,
    durability_of,
    is_lost,
    warn_of_losses,
)
from effectflow.stores._redis_due import DueClaim
from effectflow.stores._redis_run import (
    FIELDS_PER_COMMAND,
    Guard,
    Keys,
    Row,
    Run,
    State,
    Write,
    digest_of,
    held_by,
    lease_in,
    message_of,
    parts,
    places,
    process_of,
    put,
    record_of,
)
from effectflow.stores._redis_runs import Change, Look, Runs
from effectflow.stores._redis_scripts import NOW, RENEW
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_first,
    check_free,
    check_kept,
    check_messages,
    check_receives,
    check_room,
    due_if_unseen,
    is_holder,
    size_in_mailbox,
)
from effectflow.stores._servers import ServerStore, Slots, check_nothing_lost, gone

A = TypeVar("A")

LAYOUT = 5
"""The version of the keys, fields and scripts. Earlier ones were never released."""


class RedisStore(ServerStore):
    """Keeps runs in Redis. Needs the extra `effectflow[redis]` (redis-py, hiredis).

    An append is one atomic request. If its answer was lost, it is sent again, and executed once. The
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
        renew_timeout: how long (seconds, or a `timedelta`) a renewal of leases may take.

    Raise ValueError for a URL that cannot be parsed. Opening raises StoreUnavailable, or
    UnsupportedVersion if a newer effectflow wrote the runs, or one from before the first release.
    """

    # The type checkers know the types of these clients only in part.
    _client: Any
    _renewing: Any
    _runs: Runs
    _slots: Slots
    _turns: WeakValueDictionary[str, asyncio.Lock]

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
        self._keys = Keys(prefix)
        self._timeout = in_seconds(timeout)
        self._renew_timeout = in_seconds(renew_timeout)
        self._durability = "process"
        # The runs that this store drives, so that an append needs not read what the last one wrote.
        self._driven: dict[str, Run] = {}
        self._buried: dict[tuple[str, str], float] = {}
        self._served: Served = {}

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
        patience = self._timeout + self._reconnect_timeout
        self._slots = Slots(self, self._pool_size, patience=patience)
        self._turns = WeakValueDictionary()
        self._driven.clear()

        self._client = self._new_asyncio_client()
        self._opened.push_async_callback(self._client.aclose)
        self._runs = Runs(self._client, self._keys)
        # It connects when it is first used, and has two attempts.
        self._renewing = self._new_client(
            redis.Redis, self._renew_timeout / 2, Retry(NoBackoff(), 1)
        )
        self._opened.callback(self._renewing.close)
        await self._check_layout()
        self._durability = await durability_of(self._client)
        await warn_of_losses(self._client, self, self._durability)

    async def _check_layout(self) -> None:
        """Raise UnsupportedVersion if another effectflow wrote the runs."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.get(self._keys("layout"))
        pipeline.exists(self._keys("runs"))
        layout, has_runs = await pipeline.execute()
        if layout is None and not has_runs:
            await self._client.set(self._keys("layout"), LAYOUT)
        elif int(layout or 1) != LAYOUT:
            raise UnsupportedVersion(repr(self), int(layout or 1), LAYOUT)

    # Each change reads a run, applies the rules, and writes unless the run has changed in between: then
    # it does so again. It also does after a lost answer, so it recognises what it has written.

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
        change, key = Change(), self._keys.run(run_id)

        async def create() -> Run | None:
            # A new run without an owner needs only one request, if there is no other.
            look = await self._runs.look(run_id, claims=True) if owner else Look(0.0, Row(), b"")
            while not look.row.state:
                fence, lease = look.fence, None
                if owner:
                    lease = Lease.of(run_id, owner, fence, seconds=seconds, now=look.now)
                new = Run.of(State(run_id, summary, len(bodies), change.request.decode()), lease)
                fields: list[Any] = ["updated", NOW]
                for number, body in enumerate(bodies, 1):
                    fields += number, NOW + b" " + body
                # What a deleted run has left.
                writes: list[Write] = [("UNLINK", key)] if look.row.held else []
                process = process_of(owner)
                writes += self._keys.writes(None, new, fields, process=process, now=look.now)
                writes.append(self._keys.announcement(run_id))
                guards = self._keys.guards(run_id, look.row)
                if now := await self._runs.apply(change, guards, writes):
                    return new.updated(now)
                look = await self._runs.look(run_id, claims=bool(owner))
            with suppress(CorruptCheckpoint):
                run = Run.read(run_id, look.row)
                # Its answer was lost.
                if run is not None and run.state.born == change.request.decode():
                    return run
            return None

        run = await self._save(run_id, change, create)
        if run is None:
            return None
        if owner:
            self._driven[run_id] = run
        return run.info

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        change, sent = Change(), list[Taken]()

        async def claim() -> Taken:
            while True:
                look = await self._runs.look(run_id, claims=True)
                run = Run.to_repair(run_id, look.row)
                if run is None:
                    raise RunNotFound(run_id)
                for taken in sent:
                    if look.row.held == held_by(taken.lease.fence, owner):
                        return taken
                check_free(run.lease, now=look.now, claimant=owner)
                fence = max(look.fence, run.fence + 1)
                lease = Lease.of(run_id, owner, fence, seconds=seconds, now=look.now)
                sent.append(Taken(lease, run.info))
                after = run.leased(lease)
                process = process_of(owner)
                writes = self._keys.writes(run, after, process=process, now=look.now)
                if await self._replace(change, run, writes):
                    self._driven[run_id] = after
                    return sent[-1]

        return await self._request(claim)

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        self._check_open(in_any_thread=True)
        uptime = Lease.of("", "", 0, seconds=seconds, now=0.0).expires_at_uptime
        keys = [self._keys("processes"), *(self._keys.run(lease.run_id) for lease in leases)]
        arguments: list[Any] = [seconds, "" if uptime is None else uptime]
        arguments += [held_by(lease.fence, lease.owner) for lease in leases]
        arguments += {process_of(lease.owner) for lease in leases} - {""}
        try:
            answer: list[Any] = self._renewing.eval(RENEW, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(repr(self), f"it did not renew leases: {error}") from error
        expires_at = float(answer[0])
        renewed: list[Lease] = [leases[number] for number in answer[1:]]
        return [
            replace(lease, expires_at=expires_at, expires_at_uptime=uptime) for lease in renewed
        ]

    async def release(self, lease: Lease) -> None:
        async def release() -> None:
            while (run := await self._held(lease)) is not None:
                writes = self._keys.writes(run, run.released())
                if await self._replace(Change(), run, writes):
                    return

        await self._request(release)
        self._driven.pop(lease.run_id, None)

    async def _held(self, lease: Lease) -> Run | None:
        """Return the run of a lease if this is its current one."""
        run = Run.to_repair(lease.run_id, (await self._runs.look(lease.run_id)).row)
        held = None if run is None else run.lease
        return run if held and is_holder(lease, held.owner, held.fence) else None

    async def append(self, lease: Lease, batch: Batch) -> None:
        run_id, summary, change = lease.run_id, batch.summary, Change()
        parent = summary.parent if summary is not None and notifies_parent(summary) else ""

        async def append() -> None:
            run = self._driven.get(run_id)
            if run is not None and not _may_be(run, lease, batch):
                run = None
            while True:
                if run is None:
                    look = await self._runs.look(run_id, f"append {lease.fence}")
                    if look.field == change.request:
                        return
                    run = Run.read(run_id, look.row)
                    if run is None:
                        raise gone(lease)
                check_current(lease, run.lease)
                check_nothing_lost(lease, run.state.length, after=batch.after)
                after = await self._appended(run, lease, batch)
                if await self._write_append(change, run, after, batch, parent):
                    self._driven[run_id] = after
                    return
                run = None

        try:
            await self._save(run_id, change, append, turn=parent)
        except BaseException:
            self._driven.pop(run_id, None)
            raise
        if batch.release:
            self._driven.pop(run_id, None)

    async def _appended(self, run: Run, lease: Lease, batch: Batch) -> Run:
        """Return the run after an append."""
        state, summary = run.state, batch.summary
        left, unread = state.messages, state.unread
        if batch.takes:
            check_messages(lease, batch.takes, set(left))
            takes = set(batch.takes)
            left = [number for number in left if number not in takes]
            taken = await self._messages(lease.run_id, batch.takes)
            unread -= sum(size_in_mailbox(len(message.body)) for message in taken)
        if summary is not None:
            if summary.status.has_ended:
                left, unread = [], 0
            newer = [one for one in left if batch.seen is not None and one > batch.seen]
            if newer:
                unseen = [
                    (one.number, one.topic) for one in await self._messages(lease.run_id, newer)
                ]
                now = await self._runs.now()
                summary = due_if_unseen(summary, batch.seen, left=unseen, now=now)
        length = state.length + len(batch.bodies)
        state = replace(
            state,
            summary=summary or state.summary,
            length=length,
            taken=tuple(batch.takes),
            unread=max(unread, 0),
        )
        after = run.become(state if left == run.state.messages else state.with_messages(left))
        return after.released() if batch.release else after

    async def _write_append(
        self, change: Change, run: Run, after: Run, batch: Batch, parent: str
    ) -> bool:
        """Write an append, with the notice to the parent if there is one."""
        run_id, key = run.state.run_id, self._keys.run(run.state.run_id)
        fields: list[Any] = [f"append {run.fence}", change.request]
        if batch.bodies:
            fields += "updated", NOW
        for number, body in enumerate(batch.bodies, run.state.length + 1):
            fields += number, NOW + b" " + body
        guards, writes = self._keys.guards(run_id, run.row), list[Write]()
        # First, because the parent must not miss the end.
        if parent and parent != run_id:
            writes += await self._notice(parent, run_id, guards)
        writes += self._keys.writes(run, after, fields)
        for numbers in parts(run.state.taken):
            writes.append(("HDEL", key, *(f"message {number}" for number in numbers)))
        if batch.summary is not None:
            writes.append(self._keys.announcement(run_id))
        return bool(await self._runs.apply(change, guards, writes))

    async def _notice(self, parent: str, child: str, guards: list[Guard]) -> list[Write]:
        """Return what notifies the parent of a run that it has ended; nothing if that is unknown.

        Add to the guards that the parent has not changed.
        """
        look = await self._runs.look(parent)
        with suppress(CorruptCheckpoint):
            run = Run.read(parent, look.row)
            if run is not None and not run.state.summary.status.has_ended:
                guards += self._keys.guards(parent, look.row)
                after, fields = put(run, NOTICE, child, b"", b"", look.now)
                return [
                    *self._keys.writes(run, after, fields),
                    self._keys.announcement(parent),
                ]
        return []

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        change, digest = Change(), digest_of(topic, key)

        async def send() -> bool:
            while True:
                look = await self._runs.look(run_id, b"received " + digest)
                run = Run.read(run_id, look.row)
                if run is None:
                    raise RunNotFound(run_id)
                earlier = await self._sent(run, look.field, digest)
                if earlier == change.request:
                    return True
                check_receives(run_id, run.state.summary)
                if earlier:
                    return False
                check_room(run_id, topic, body, unread=run.state.unread)
                after, fields = put(run, topic, key, bytes(body), change.request, look.now)
                writes = [
                    *self._keys.writes(run, after, fields),
                    self._keys.announcement(run_id),
                ]
                if await self._replace(change, run, writes):
                    return True

        return await self._save(run_id, change, send, turn=run_id)

    async def _sent(self, run: Run, number: bytes, digest: bytes) -> bytes:
        """Return the request that sent the message with a digest; empty if the run did not receive it.

        `number` is what the run has noted for the digest.
        """
        if not number.isdigit() or int(number) > run.state.newest:
            return b""
        key = self._keys.run(run.state.run_id)
        sent: bytes = await self._client.hget(key, f"sent {int(number)}") or b""
        return sent.removeprefix(digest) if sent.startswith(digest) else b""

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        async def read() -> list[Message]:
            run = Run.read(run_id, (await self._runs.look(run_id)).row)
            numbers = [] if run is None else [n for n in run.state.messages if n > after]
            return await self._messages(run_id, numbers)

        return await self._request(read)

    async def _messages(self, run_id: str, numbers: Sequence[int]) -> list[Message]:
        """Return those of these messages that were not taken."""
        found: list[Message] = []
        for part in parts(numbers):
            names = [f"message {number}" for number in part]
            stored = await self._client.hmget(self._keys.run(run_id), names)
            found += [
                message_of(run_id, number, message)
                for number, message in zip(part, stored, strict=True)
                if message is not None
            ]
        return found

    async def claim_due(self, due: DueRuns) -> Claimed:
        claim: list[DueClaim] = []

        async def perform() -> Claimed:
            if not claim:
                claim.append(DueClaim(self._runs, due, self._buried, self._served))
            return await claim[0].perform()

        claimed = await self._request(perform)
        for taken in claimed.runs:
            run_id = taken.lease.run_id
            self._driven[run_id] = claim[0].driven[run_id]
        return claimed

    async def save_setting(self, kind: str, name: str, value: bytes | None) -> None:
        async def change() -> None:
            key = self._keys(f"settings:{kind}")
            if value is None:
                await self._client.hdel(key, name)
            else:
                await self._client.hset(key, name, value)

        await self._request(change)

    async def settings(self, kind: str) -> Mapping[str, bytes]:
        async def read() -> dict[str, bytes]:
            found = await self._client.hgetall(self._keys(f"settings:{kind}"))
            return {name.decode(): value for name, value in found.items()}

        return await self._request(read)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[Changes]:
        watcher = Watcher()
        async with self._following(self._subscribe, watcher):
            yield watcher

    async def _subscribe(self) -> Subscriber:
        client, channel = self._new_asyncio_client(), self._keys("changes")
        subscriber = Subscriber(client, channel, timeout=self._timeout)
        await subscriber.begin()
        return subscriber

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        async def read() -> list[Record]:
            records: list[Record] = []
            born = ""
            while True:
                last = after + len(records)
                run, entries = await self._entries(run_id, last)
                if run is None:
                    return []
                if born and run.state.born != born:
                    # It was deleted and created again.
                    records.clear()
                    born = ""
                    continue
                born, left = run.state.born, max(run.state.length - last, 0)
                # In parts, because a damaged length may be any number. This raises at the first gap.
                numbered = enumerate(entries[:left], last + 1)
                records += [record_of(run_id, number, entry) for number, entry in numbered]
                if left <= len(entries):
                    return records

        return await self._request(read)

    async def _entries(self, run_id: str, after: int) -> tuple[Run | None, list[bytes | None]]:
        """Return a run and its next entries after a number."""
        # In one transaction, so that a run that is deleted meanwhile is not taken for a damaged one.
        pipeline, key = self._client.pipeline(transaction=True), self._keys.run(run_id)
        pipeline.hmget(key, Row._fields)
        pipeline.hmget(key, range(after + 1, after + FIELDS_PER_COMMAND + 1))
        row, entries = await pipeline.execute()
        return Run.read(run_id, Row(*(value or b"" for value in row))), entries

    async def salvage(self, run_id: str) -> Remains:
        async def salvage() -> Remains:
            fields: dict[bytes, bytes] = await self._client.hgetall(self._keys.run(run_id))
            length = float("inf")
            with suppress(CorruptCheckpoint):
                run = Run.read(
                    run_id, Row(*(fields.get(name.encode(), b"") for name in Row._fields))
                )
                length = 0 if run is None else run.state.length
            records: list[Record] = []
            unreadable: dict[str, bytes] = {}
            for number in sorted(int(field) for field in fields if field.isdigit()):
                if number <= length:
                    entry = fields[b"%d" % number]
                    try:
                        records.append(record_of(run_id, number, entry))
                    except CorruptCheckpoint:
                        unreadable[f"entry {number}"] = entry
            return Remains(records, unreadable)

        return await self._request(salvage)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        run_id = query.run_id

        async def find() -> list[RunInfo]:
            if run_id is None:
                return await self._runs.find(query)
            look = await self._runs.look(run_id)
            run = Run.read(run_id, look.row)
            return [run.info] if run is not None and query.matches(run.info, look.now) else []

        return await self._request(find)

    async def damaged_runs(self) -> list[str]:
        return await self._request(lambda: self._runs.damaged())

    async def facts(self) -> StoreFacts:
        return StoreFacts(LAYOUT)

    async def delete(self, run_id: str, *, lease: Lease | None = None) -> None:
        born: list[str] = []

        async def delete() -> None:
            while True:
                look = await self._runs.look(run_id)
                run = None
                with suppress(CorruptCheckpoint):
                    run = Run.read(run_id, look.row)
                is_other = bool(born) and run is not None and run.state.born != born[0]
                if not look.row.state or is_other:
                    # Even if the run is missing, since an earlier deletion may have been interrupted.
                    await self._sweep_deleted(run_id)
                    if not born:
                        raise RunNotFound(run_id)
                    return
                check_deletable(lease, lease_in(run_id, look.row)[1], now=look.now)
                if not born:
                    born.append("" if run is None else run.state.born)
                guards = self._keys.guards(run_id, look.row)
                if await self._runs.apply(Change(), guards, self._deletion(run_id, look.row, run)):
                    await self._sweep_deleted(run_id)
                    return

        await self._request(delete)
        self._driven.pop(run_id, None)

    def _deletion(self, run_id: str, row: Row, run: Run | None) -> list[Write]:
        """Return what deletes a run, None if it cannot be read. `_sweep_deleted` removes the rest."""
        key = self._keys.run(run_id)
        return [
            # If its memory is full, a server only executes scripts that begin with a removal.
            ("HDEL", key, "nothing"),
            ("HSET", key, "updated", row.updated),
            ("HSET", key, "held", row.held.partition(b" ")[0] + b" ", "state", b""),
            *(
                ("ZREM", self._keys(name), member)
                for name, (_, member) in ({} if run is None else places(run)).items()
            ),
            self._keys.announcement(run_id),
        ]

    async def _sweep_deleted(self, run_id: str) -> None:
        """Remove what a deleted run has left, unless there is a new one."""
        key = self._keys.run(run_id)
        writes: list[Write] = [("UNLINK", key), ("HDEL", self._keys("ids"), run_id)]
        await self._runs.apply(Change(), [(key, "state", b"")], writes)

    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        run_id, change = lease.run_id, Change()

        async def truncate() -> None:
            while True:
                look = await self._runs.look(run_id, str(after))
                run = Run.to_repair(run_id, look.row)
                check_current(lease, None if run is None else run.lease)
                assert run is not None
                check_kept(lease, run.state.length, after=after)
                state = replace(run.state, summary=summary, length=after)
                fields = ["updated", look.field.partition(b" ")[0] or look.row.updated]
                writes = self._keys.writes(run, run.become(state), fields)
                if await self._replace(change, run, writes):
                    return

        await self._save(run_id, change, truncate)
        self._driven.pop(run_id, None)
        await self._request(lambda: self._sweep_truncated(run_id))

    async def _sweep_truncated(self, run_id: str) -> None:
        """Remove the entries that a truncated run has left. Nothing returns them any more."""
        key = self._keys.run(run_id)
        while True:
            run = Run.read(run_id, (await self._runs.look(run_id)).row)
            if run is None:
                return
            numbers = [int(field) for field in await self._client.hkeys(key) if field.isdigit()]
            left = [number for number in numbers if number > run.state.length]
            removals: list[Write] = [("HDEL", key, *part) for part in parts(left)]
            # Twice, which makes it a transaction.
            removals += [("HSET", key, "held", run.row.held)] * 2
            if await self._replace(Change(), run, removals):
                return

    # Requests to the server.

    async def _replace(self, change: Change, run: Run, writes: Any) -> bool:
        """Write changes of a run, unless it has changed since it was read."""
        guards = self._keys.guards(run.state.run_id, run.row)
        return bool(await self._runs.apply(change, guards, writes))

    async def _save(
        self, run_id: str, change: Change, work: Callable[[], Awaitable[A]], *, turn: str = ""
    ) -> A:
        """As `_request`, but raise SaveFailed if the server cannot be reached."""
        self._check_open()
        try:
            return await self._request(work, turn=turn)
        except StoreUnavailable as error:
            raise SaveFailed(run_id, str(error), is_unknown=change.is_unknown) from error

    async def _request(self, work: Callable[[], Awaitable[A]], *, turn: str = "") -> A:
        """Return what `work` returns, in asyncio with a connection. Repeat it if that was lost.

        Only one `work` at a time has the `turn` of a run, since it changes a run that many change.
        """

        async def ask() -> A:
            async with self._turns.setdefault(turn, asyncio.Lock()) if turn else _NO_TURN:
                await self._slots.take()
                is_answered = False
                try:
                    answer = await work()
                    is_answered = True
                    return answer
                finally:
                    self._slots.release(is_answered=is_answered)

        return await self._ask(ask)


def _may_be(run: Run, lease: Lease, batch: Batch) -> bool:
    """Return whether a run that was read some time ago may be what an append expects."""
    is_current = (run.fence, run.state.length) == (lease.fence, batch.after)
    return is_current and (not batch.takes or set(batch.takes) <= set(run.state.messages))


_NO_TURN = nullcontext()
