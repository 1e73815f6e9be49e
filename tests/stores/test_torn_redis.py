"""A Redis server that was killed during a write, at its second start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pytest
from _pytest.mark import ParameterSet
from anyio import to_thread

from effectflow.checkpoint.lease import Lease
from effectflow.checkpoint.run_info import RunQuery, RunStatus, RunSummary
from effectflow.checkpoint.store import Batch, DueRuns
from effectflow.stores import RedisStore
from tests.stores.runs import SUMMARY, begun
from tests.stores.servers import RedisServer

DONE = RunSummary("w", RunStatus.COMPLETED, 0.0)
SUSPENDED = replace(DONE, status=RunStatus.SUSPENDED)
GO = "signal:go"

Write: TypeAlias = Callable[[RedisStore, Lease], Awaitable[object]]
View: TypeAlias = dict[
    str, tuple[RunStatus, float | None, list[bytes], tuple[str, int] | None, list[tuple[str, str]]]
]
"""The runs that are found: status, due time, journal, lease, and the topics and keys of messages."""


async def append_one(store: RedisStore, lease: Lease) -> None:
    await store.append(lease, Batch([b"torn"], after=2))


async def append_the_last(store: RedisStore, lease: Lease) -> None:
    await store.append(lease, Batch([b"torn 1", b"torn 2"], after=2, summary=DONE, release=True))


async def begin_a_run(store: RedisStore, lease: Lease) -> None:
    await begun(store, [b"torn"], "new", owner=lease.owner, seconds=600)


async def renew(store: RedisStore, lease: Lease) -> None:
    await to_thread.run_sync(partial(store.renew, [lease], seconds=700))


async def release(store: RedisStore, lease: Lease) -> None:
    await store.release(lease)


async def delete(store: RedisStore, lease: Lease) -> None:
    await store.delete("old")


async def truncate(store: RedisStore, lease: Lease) -> None:
    await store.truncate(lease, after=1, summary=DONE)


async def take_over(store: RedisStore, lease: Lease) -> None:
    await store.claim(lease.run_id, owner=lease.owner, seconds=600)


async def send(store: RedisStore, lease: Lease) -> None:
    await store.send("old", GO, key="torn", body=b"body")


async def take(store: RedisStore, lease: Lease) -> None:
    takes = [message.number for message in await store.mailbox("r")]
    await store.append(lease, Batch([b"torn"], after=2, takes=takes[:1]))


async def suspend(store: RedisStore, lease: Lease) -> None:
    """It has not seen the messages of the run, so the run is due at once."""
    await store.append(lease, Batch([b"torn"], after=2, summary=SUSPENDED, seen=0, release=True))


async def end_of_a_child(store: RedisStore, lease: Lease) -> None:
    """A notice to `old` comes with it."""
    done = replace(DONE, parent="old")
    await store.append(lease, Batch([b"torn"], after=2, summary=done, release=True))


async def create(store: RedisStore, lease: Lease) -> None:
    await store.create("new", [b"torn"], summary=replace(SUSPENDED, due_at=1.0))


async def claim_due(store: RedisStore, lease: Lease) -> None:
    await store.claim_due(DueRuns(frozenset(["w"]), [lease.owner], 600, 2.0))


async def go_on(store: RedisStore, lease: Lease) -> None:
    """A worker claims each run and continues it from its current length."""
    for run_id in ("r", "old", "new"):
        # A deletion or a creation may have been executed or not.
        await store.create(run_id, [b"new"], summary=SUMMARY)
        mine = (await store.claim(run_id, owner=lease.owner, seconds=600)).lease
        length = len(await store.read(run_id))
        takes = [message.number for message in await store.mailbox(run_id)]
        await store.append(mine, Batch([b"next"], after=length, summary=SUMMARY, takes=takes))


async def go_on_as_before(store: RedisStore, lease: Lease) -> None:
    """The owner of one run does not notice; another run is claimed twice."""
    # A truncation that was executed leaves one.
    await store.append(lease, Batch([b"mine"], after=min(2, len(await store.read("r")))))
    await store.create("old", [b"new"], summary=SUMMARY)
    for _ in range(2):
        await store.claim("old", owner=lease.owner, seconds=600)


async def write_elsewhere(store: RedisStore, lease: Lease) -> None:
    await begun(store, [b"elsewhere"], "other", seconds=600)


async def view(store: RedisStore) -> View:
    assert await store.damaged_runs() == []
    seen: View = {}
    found = await store.find(RunQuery(limit=None))
    for status in RunStatus:
        # Each set has what it should have.
        named = {one.run_id for one in await store.find(RunQuery(statuses=frozenset([status])))}
        assert named == {one.run_id for one in found if one.summary.status is status}
    for info in found:
        bodies = [record.body for record in await store.read(info.run_id)]
        holder = info.lease and (info.lease.owner, info.lease.fence)
        messages = [(one.topic, one.key) for one in await store.mailbox(info.run_id)]
        summary = info.summary
        seen[info.run_id] = summary.status, summary.due_at, bodies, holder, messages
    return seen


def is_written(run_id: str, by: Write) -> bool:
    """Return whether this writes to the run, in any state."""
    if by is go_on:
        return True
    return (run_id == "r" and by is not write_elsewhere) or (
        run_id == "old" and by is go_on_as_before
    )


def ends_of_commands(data: bytes, start: int) -> Iterator[int]:
    """Yield the ends of the commands of an append-only file, from an offset on."""
    while start < len(data):
        line = data.index(b"\r\n", start)
        count, start = int(data[start + 1 : line]), line + 2
        for _ in range(count):
            line = data.index(b"\r\n", start)
            start = line + 2 + int(data[start + 1 : line]) + 2
        yield start


WRITES = [
    *(append_one, append_the_last, begin_a_run, renew, release, delete, take_over, truncate),
    *(send, take, suspend, end_of_a_child, create, claim_due),
]
FOLLOWING = [go_on, go_on_as_before, renew, release, write_elsewhere]


def cases() -> Iterator[ParameterSet]:
    """Yield a write, the one that follows, and how many of the places to tear it.

    Per change, each write meets one other, and is torn at each ninth place.
    """
    for number, write in enumerate(WRITES):
        yield pytest.param(write, FOLLOWING[number % len(FOLLOWING)], 9)
    for write, then in product(WRITES, FOLLOWING):
        yield pytest.param(write, then, 1, marks=pytest.mark.exhaustive)


@pytest.mark.asyncio
@pytest.mark.parametrize(("write", "then", "every"), [*cases()])
async def test_a_torn_write_is_executed_completely_or_not_at_all(
    write: Write, then: Write, every: int, tmp_path: Path
) -> None:
    file = tmp_path / "appendonly.aof"
    with RedisServer(tmp_path) as server:
        async with RedisStore(server.url) as store:
            lease = await begun(store, [b"0", b"1"], seconds=600)
            await store.create("old", [b"a", b"b", b"c"], summary=replace(SUSPENDED, due_at=1.0))
            for key in ("first", "second"):
                await store.send("r", GO, key=key)
            # The first claim after the start of a server sorts all runs.
            await store.claim_due(DueRuns(frozenset(["none"]), [lease.owner], 600, 0.0))
            before, length = await view(store), file.stat().st_size
            await write(store, lease)
            done = await view(store)
            server.kill()
            written = file.read_bytes()
            ends = list(ends_of_commands(written, length))
            assert ends[-1] == len(written)

            # Within the next command, too, because there a server does not truncate the file.
            for end in [length, *(end + torn for end in ends[:-1] for torn in (0, 5))][::every]:
                file.write_bytes(written[:end])
                server.start()
                await then(store, lease)
                live = await view(store)
                server.kill()
                server.start()

                restarted = await view(store)
                if then is write_elsewhere:
                    assert restarted.pop("other") == live.pop("other")
                for run_id in {*restarted, *live}:
                    # As after its last write; if there was none, the torn write may have been executed.
                    may_be = [live] if is_written(run_id, then) else [live, before, done]
                    assert restarted.get(run_id) in [one.get(run_id) for one in may_be]
                # All runs can be continued.
                await go_on(store, lease)
                server.kill()
            server.start()
