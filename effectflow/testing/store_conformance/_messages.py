"""Check messages to runs, notices to parents, and the changes that watchers receive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import anyio

from effectflow.checkpoint.errors import LeaseLost, MailboxFull, RunEnded, RunNotFound
from effectflow.checkpoint.run_info import RunStatus, RunSummary
from effectflow.checkpoint.store import CANCEL, NOTICE, PAUSE, Changes, find_run, wakes
from effectflow.testing.store_conformance import _check
from effectflow.testing.store_conformance._check import (
    CANCELLED,
    COMPLETED,
    FAILED,
    GO,
    HOSTILE_RUN_IDS,
    RUNNING,
    SUSPENDED,
    Service,
    at_once,
    fails,
    summary_of,
    winners,
)


async def _keys(s: Service, run_id: str = "r") -> list[str]:
    return [message.key for message in await s.store.mailbox(run_id)]


async def _numbers(s: Service, run_id: str = "r") -> list[int]:
    return [message.number for message in await s.store.mailbox(run_id)]


async def _is_due(s: Service, run_id: str = "r") -> bool:
    """Return whether a run is due now."""
    due_at = (await s.summary(run_id)).due_at
    return due_at is not None and due_at <= time.time()


# Sending messages.


async def messages_keep_the_order_in_which_they_were_sent(s: Service, other: Service) -> None:
    await s.create()
    await s.create("quiet")
    large = bytes(range(256)) * 4000
    sent = [(GO, "1", large), ("signal:stop", "1", b""), (CANCEL, "", b""), (GO, "0", b"\0\xff")]
    for topic, key, body in sent:
        assert await s.store.send("r", topic, key=key, body=body)

    messages = await other.store.mailbox("r")
    assert [(one.topic, one.key, one.body) for one in messages] == sent
    found = [one.number for one in messages]
    assert found[0] > 0
    assert found == sorted(set(found))
    assert all(abs(one.sent_at - time.time()) < 60 for one in messages)
    assert await other.store.mailbox("r", after=found[1]) == messages[2:]
    for run_id, after in {"r": found[-1], "quiet": 0, "unknown": 0}.items():
        assert await other.store.mailbox(run_id, after=after) == []


async def a_message_is_received_once(s: Service) -> None:
    """Even if it is sent again after it was taken. But each notice is kept."""
    lease = await s.begin()
    assert await s.store.send("r", GO, key="k", body=b"first")
    assert not await s.store.send("r", GO, key="k", body=b"second")
    assert await s.store.send("r", GO, key="K", body=b"other key")
    assert await s.store.send("r", "signal:stop", key="k", body=b"other topic")
    messages = await s.store.mailbox("r")
    assert [one.body for one in messages] == [b"first", b"other key", b"other topic"]

    await s.append(lease, b"2", takes=[messages[0].number])
    assert not await s.store.send("r", GO, key="k", body=b"third")
    assert await s.store.mailbox("r") == messages[1:]
    await s.create("other")
    assert await s.store.send("other", GO, key="k")
    for _ in range(3):
        assert await s.store.send("other", NOTICE, key="child")
    assert await _keys(s, "other") == ["k", "child", "child", "child"]


async def one_of_many_concurrent_senders_and_takers_of_a_message_wins(
    s: Service, other: Service
) -> None:
    lease = await s.begin("r", b"0")

    async def send(number: int) -> bytes | None:
        body, chosen = b"%d" % number, s if number % 2 else other
        is_first = await chosen.store.send("r", GO, key="same", body=body)
        assert await chosen.store.send("r", GO, key=str(number), body=b"own")
        return body if is_first else None

    [sent] = await winners(send, 30)
    messages = await s.store.mailbox("r")
    assert [one.body for one in messages if one.key == "same"] == [sent]
    assert {one.key for one in messages} == {"same", *map(str, range(30))}
    assert len({one.number for one in messages}) == 31

    async def take(number: int) -> bytes:
        body, chosen = b"%d" % number, s if number % 2 else other
        await chosen.append(lease, body, takes=[messages[0].number])
        return body

    [taken] = await winners(take, 20)
    assert await s.bodies() == [b"0", taken]
    assert await s.store.mailbox("r") == messages[1:]


async def a_message_that_wakes_a_run_makes_it_due(s: Service) -> None:
    """But never later than it was due before."""
    for status in (status for status in RunStatus if not status.has_ended):
        for topic in (GO, NOTICE, CANCEL):
            for due_at in (None, 1.0, time.time() + 3600):
                run_id = f"{status} {topic} {due_at}"
                before = await s.create(run_id, summary=replace(summary_of(status), due_at=due_at))
                assert await s.store.send(run_id, topic, key="k")
                summary = await s.summary(run_id)
                if wakes(topic, status) and due_at != 1.0:
                    assert await _is_due(s, run_id), run_id
                    summary = replace(summary, due_at=due_at)
                assert summary == before, run_id


async def topics_and_keys_of_messages_may_be_any_text(s: Service) -> None:
    for name in HOSTILE_RUN_IDS:
        await s.create(name, summary=SUSPENDED)
        assert await s.store.send(name, f"signal:{name}", key=name, body=name.encode())
        assert not await s.store.send(name, f"signal:{name}", key=name)

    for name in HOSTILE_RUN_IDS:
        [message] = await s.store.mailbox(name)
        found = message.topic, message.key, message.body
        assert found == (f"signal:{name}", name, name.encode())
        await s.store.delete(name)
        assert await s.store.mailbox(name) == []


# Taking messages.


async def an_append_takes_messages(s: Service) -> None:
    """They do not affect the lease, and a truncation keeps the others."""
    lease = await s.begin()
    for key in "abcd":
        await s.store.send("r", GO, key=key)
    a, b, _, d = await _numbers(s)
    await s.append(lease, b"2", takes=[a, d])
    assert await _keys(s) == ["b", "c"]
    assert len(s.renew(lease)) == 1
    await s.store.send("r", GO, key="e")
    assert (await _numbers(s))[-1] > d
    await s.append(lease, b"3", after=2, takes=[b], summary=RUNNING)
    await s.store.truncate(lease, after=2, summary=RUNNING)

    assert await _keys(s) == ["c", "e"]
    assert await s.bodies() == [b"1", b"2"]


async def a_rejected_append_changes_nothing(s: Service) -> None:
    """Neither messages nor records, whatever it is rejected for."""
    stale = await s.begin(seconds=0)
    for key in "abc":
        await s.store.send("r", GO, key=key)
    first, second, third = await _numbers(s)
    lease = await s.claim()
    await s.append(lease, b"2", takes=[first])
    before = await s.info()

    missing = [second, first], [second, third + 1000]
    for given, after, takes in (
        (stale, 2, [second]),
        (lease, 0, [second]),
        *((lease, 2, takes) for takes in missing),
    ):
        with fails(LeaseLost):
            await s.append(given, b"x", after=after, takes=takes, summary=COMPLETED, release=True)
        assert await s.info() == before
        assert await _numbers(s) == [second, third]
    await s.append(lease, b"3", after=2, takes=[second, third])


async def an_unseen_message_makes_the_run_due(s: Service) -> None:
    """Unless the append takes it, or does not say what it has seen. A repeated one changes nothing."""
    later = replace(SUSPENDED, due_at=time.time() + 3600)
    lease = await s.begin(summary=SUSPENDED)
    await s.store.send("r", GO, key="repeated")
    await s.append(lease, takes=await _numbers(s))
    assert await _is_due(s), "a woken run stays due until its summary changes"
    await s.append(lease, summary=later, seen=0)
    assert not await s.store.send("r", GO, key="repeated")
    assert (await s.summary(), await _numbers(s)) == (later, [])

    await s.store.send("r", GO, key="seen")
    [seen] = await _numbers(s)
    await s.append(lease, summary=later, seen=seen)
    assert await s.summary() == later
    await s.append(lease, summary=SUSPENDED, takes=[seen], seen=0)
    assert await s.summary() == SUSPENDED

    await s.store.send("r", GO, key="unseen")
    await s.append(lease, summary=later)
    assert await s.summary() == later
    await s.append(lease, summary=later, seen=seen, release=True)
    assert await _is_due(s)
    assert replace(await s.summary(), due_at=later.due_at) == later

    lease, paused = await s.claim(), summary_of(RunStatus.PAUSED)
    await s.append(lease, summary=paused, seen=0)
    assert await s.summary() == paused, "only a cancellation wakes a paused run"
    await s.store.send("r", CANCEL, key="unseen")
    await s.append(lease, summary=paused, seen=0, release=True)
    assert await _is_due(s)


async def a_message_sent_during_a_suspension_or_an_end_is_not_lost(
    s: Service, other: Service
) -> None:
    """Whether it arrives before or after the append: it wakes the run, or goes with it."""
    suspended = replace(SUSPENDED, due_at=time.time() + 3600)
    for number in range(60):
        run_id, summary = f"r{number}", COMPLETED if number % 3 == 0 else suspended
        lease = await s.begin(run_id)

        async def send(run_id: str = run_id, summary: RunSummary = summary) -> None:
            try:
                await other.store.send(run_id, GO, key="k")
            except RunEnded:
                assert summary is COMPLETED

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await s.append(lease, summary=summary, seen=0, release=True)
        assert await _is_due(s, run_id) is (summary is suspended)
        assert await _keys(s, run_id) == (["k"] if summary is suspended else [])


async def an_ended_run_has_no_messages(s: Service) -> None:
    """Not even one that its last writer did not see. It receives no more, and it is not due.

    A failed run keeps them.
    """
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED):
        run_id, ended = status.value, summary_of(status)
        lease = await s.begin(run_id)
        for key in "abc":
            await s.store.send(run_id, GO, key=key)
        sent = await _numbers(s, run_id)
        seen = 0 if status.has_ended else sent[-1]
        await s.append(lease, b"2", summary=ended, takes=sent[:1], seen=seen, release=True)

        for topic in (GO, NOTICE, CANCEL) if status.has_ended else ():
            with fails(RunEnded) as caught:
                await s.store.send(run_id, topic, key="new")
            assert caught.exception.status == status
        assert await _numbers(s, run_id) == ([] if status.has_ended else sent[1:])
        assert await s.summary(run_id) == ended


async def a_deleted_run_has_no_messages(s: Service) -> None:
    """A new run with the same id may receive the same messages again."""
    lease = await s.begin()
    await s.store.send("r", GO, key="taken")
    await s.append(lease, summary=RUNNING, takes=await _numbers(s))
    await s.store.send("r", GO, key="left")
    await s.store.delete("r", lease=lease)

    assert await s.store.mailbox("r") == []
    with fails(RunNotFound):
        await s.store.send("r", GO, key="left")
    await s.create()
    assert await s.store.mailbox("r") == []
    for key in ("taken", "left"):
        assert await s.store.send("r", GO, key=key)
    assert await _keys(s) == ["taken", "left"]


async def messages_survive_reopening(make: Callable[[], Service]) -> None:
    async with make() as s:
        lease = await s.begin(summary=SUSPENDED)
        await s.store.send("r", GO, key="taken")
        await s.append(lease, takes=await _numbers(s), release=True)
        await s.store.send("r", GO, key="left", body=b"body")
        before = await s.store.mailbox("r")
    async with make() as s:
        assert await s.store.mailbox("r") == before
        assert [one.body for one in before] == [b"body"]
        assert not await s.store.send("r", GO, key="taken")
        assert not await s.store.send("r", GO, key="left")
        assert await s.store.send("r", GO, key="new")
        assert (await _numbers(s))[1] > before[0].number
        assert await _is_due(s)


# Notices to parents.


async def the_end_of_a_spawned_run_notifies_its_parent(s: Service) -> None:
    """Also a failure, and again if it ends then. The parent may have taken the first notice."""
    parent = await s.begin("parent", summary=SUSPENDED)
    running = replace(RUNNING, parent="parent")
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        child = status.value
        lease = await s.begin(child, summary=running)
        for before in (RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.INTERRUPTED):
            await s.append(lease, summary=replace(running, status=before))
        assert await s.store.mailbox("parent") == []
        assert not await _is_due(s, "parent")
        for ended in (RunStatus.FAILED, status):
            await s.append(lease, summary=replace(running, status=ended))
            [notice] = await s.store.mailbox("parent")
            assert (notice.topic, notice.key) == (NOTICE, child)
            assert await _is_due(s, "parent")
            await s.append(parent, summary=SUSPENDED, takes=[notice.number])


async def a_run_can_end_if_its_parent_is_unknown_or_has_ended(s: Service) -> None:
    await s.create("over", summary=CANCELLED)
    for parent in ("unknown", "over"):
        child, done = f"child of {parent}", replace(COMPLETED, parent=parent)
        lease = await s.begin(child, summary=replace(RUNNING, parent=parent))
        await s.append(lease, b"2", summary=done, release=True)

        assert await s.summary(child) == done
        assert await s.store.mailbox(parent) == []
    assert await find_run(s.store, "unknown") is None


async def children_that_end_concurrently_all_notify_their_parent(
    s: Service, other: Service
) -> None:
    await s.create("parent", summary=SUSPENDED)
    children = [f"c{number:02}" for number in range(24)]

    async def run(child: str) -> None:
        chosen = s if int(child[1:]) % 2 else other
        lease = await chosen.begin(child, summary=replace(RUNNING, parent="parent"))
        failed = replace(FAILED, parent="parent")
        await chosen.append(lease, b"2", summary=failed, release=True)

    await at_once(run, children)

    assert sorted(await _keys(s, "parent")) == children
    assert len(set(await _numbers(s, "parent"))) == len(children)


async def a_mailbox_has_a_limit_for_signals(s: Service) -> None:
    await s.create_all(["r", "other"], RUNNING)
    body = bytes(4 * 1024 * 1024 - 1024)
    lease = await s.claim()
    for key in "abcd":
        assert await s.store.send("r", GO, key=key, body=body)
    with fails(MailboxFull):
        await s.store.send("r", GO, key="e")
    # It is full for signals only, and only this one.
    assert not await s.store.send("r", GO, key="a")
    assert await s.store.send("r", CANCEL, key="c")
    assert await s.store.send("r", PAUSE, key="p")
    assert await s.store.send("r", NOTICE, key="child")
    assert await s.store.send("other", GO, key="e", body=body)

    first, second, *_ = await _numbers(s)
    await s.append(lease, b"2", takes=[first, second])
    assert await s.store.send("r", GO, key="e", body=body)
    with fails(MailboxFull):
        await s.store.send("r", GO, key="f", body=body)
    with fails(MailboxFull):
        await s.store.send("other", GO, key="f", body=bytes(16 * 1024 * 1024))


# Changes that watchers receive.


async def _has_changed(changes: Changes, *run_ids: str) -> bool:
    """Return whether a change of each of these runs arrives in time."""
    missing, until = set(run_ids), time.monotonic() + _check.PATIENCE
    while missing and time.monotonic() < until:
        changed = await changes.wait(until - time.monotonic())
        missing -= {*(await changes.among(missing) if changed is None else changed)}
    return not missing


async def _is_quiet(changes: Changes) -> bool:
    """Return whether changes stop arriving."""
    for _ in range(100):
        if await changes.wait(0.2) == frozenset():
            return True
    return False


async def watchers_see_every_kind_of_change(s: Service, other: Service) -> None:
    """Through either store, whichever made the change."""
    async with s.store.changes() as changes, other.store.changes() as others:

        async def check_seen(kind: str) -> None:
            for watcher in (changes, others):
                assert await _has_changed(watcher, "r"), f"{kind} is not seen"

        for writer in (s, other):
            await writer.create("r")
            await check_seen("a creation")
            await writer.store.send("r", GO, key="k")
            await check_seen("a message")
            await writer.append(await writer.claim(), summary=SUSPENDED, release=True)
            await check_seen("a new summary")
            child = await writer.begin("child", summary=replace(RUNNING, parent="r"))
            await writer.append(child, summary=replace(COMPLETED, parent="r"), release=True)
            await check_seen("a notice to a parent")
            for run_id in ("child", "r"):
                await writer.store.delete(run_id)
            await check_seen("a deletion")


async def changes_accumulate_until_a_watcher_asks_for_them(s: Service, other: Service) -> None:
    run_ids = [f"r{number}" for number in range(20)]
    async with other.store.changes() as changes:
        for run_id in run_ids:
            await s.create(run_id)
        assert await _has_changed(changes, *run_ids)
        with anyio.move_on_after(0.05):
            await changes.wait(_check.PATIENCE)
        await s.store.send("r7", GO, key="k")
        assert await _has_changed(changes, "r7")


async def reads_are_not_reported_as_changes(s: Service) -> None:
    await s.create()
    async with s.store.changes() as changes:
        assert await _is_quiet(changes)
        await s.store.mailbox("r")
        await s.store.find()
        await s.store.read("r")
        assert await changes.wait(0) == frozenset()
        began = time.monotonic()
        assert await changes.wait(0.2) == frozenset()
        assert time.monotonic() - began > 0.15


async def a_waiting_watcher_wakes_at_once(s: Service, other: Service) -> None:
    async with other.store.changes() as changes:
        assert await _is_quiet(changes)
        waits, began = list[float](), time.monotonic()

        async def watch() -> None:
            assert await _has_changed(changes, "r")
            waits.append(time.monotonic() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.1)
            began = time.monotonic()
            await s.create()
        assert waits[0] < 2
