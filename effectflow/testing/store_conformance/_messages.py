"""Check messages to runs, and notices to parents."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import anyio

from effectflow.checkpoint.errors import LeaseLost, RunEnded, RunNotFound
from effectflow.checkpoint.store import (
    CANCEL,
    NOTICE,
    RunStatus,
    RunSummary,
    ServiceStore,
    find_run,
    wakes,
)
from effectflow.testing.store_conformance._check import (
    HOSTILE_RUN_IDS,
    SERVICE,
    appended,
    at_once,
    begun,
    bodies_of,
    claimed,
    created,
    fails,
    info_of,
    renew,
    summary_of,
)

GO = "signal:go"

SUSPENDED = summary_of(RunStatus.SUSPENDED)


async def topics_and_keys(store: ServiceStore, run_id: str = "r") -> list[tuple[str, str]]:
    return [(message.topic, message.key) for message in await store.mailbox(run_id)]


async def numbers(store: ServiceStore, run_id: str = "r") -> list[int]:
    return [message.number for message in await store.mailbox(run_id)]


async def is_due(store: ServiceStore, run_id: str = "r") -> bool:
    """Return whether a run is due now."""
    due_at = (await info_of(store, run_id)).summary.due_at
    return due_at is not None and due_at <= time.time()


# Sending messages.


@SERVICE.check_of_two
async def messages_keep_the_order_in_which_they_were_sent(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created(store)
    await created(store, "quiet")
    sent = [(GO, "1", b"a"), ("signal:stop", "1", b""), (CANCEL, "", b""), (GO, "0", b"\0\xff")]
    for topic, key, body in sent:
        assert await store.send("r", topic, key=key, body=body)

    messages = await other.mailbox("r")
    assert [(one.topic, one.key, one.body) for one in messages] == sent
    found = [one.number for one in messages]
    assert found[0] > 0
    assert found == sorted(set(found))
    assert all(abs(one.sent_at - time.time()) < 60 for one in messages)
    assert await other.mailbox("r", after=found[1]) == messages[2:]
    assert await other.mailbox("r", after=found[-1]) == []
    assert await other.mailbox("quiet") == []
    assert await other.mailbox("unknown") == []


@SERVICE.check
async def a_message_is_received_once(store: ServiceStore) -> None:
    """Even if it is sent again after it was taken."""
    await created(store)
    assert await store.send("r", GO, key="k", body=b"first")
    assert not await store.send("r", GO, key="k", body=b"second")
    assert await store.send("r", GO, key="K", body=b"other key")
    assert await store.send("r", "signal:stop", key="k", body=b"other topic")
    messages = await store.mailbox("r")
    assert [one.body for one in messages] == [b"first", b"other key", b"other topic"]

    await appended(store, await claimed(store), b"2", takes=[messages[0].number])
    assert not await store.send("r", GO, key="k", body=b"third")
    assert await store.mailbox("r") == messages[1:]
    await created(store, "another")
    assert await store.send("another", GO, key="k")


@SERVICE.check
async def notices_with_the_same_key_are_all_kept(store: ServiceStore) -> None:
    await created(store)
    for _ in range(3):
        assert await store.send("r", NOTICE, key="child")

    assert await topics_and_keys(store) == [(NOTICE, "child")] * 3
    assert len(set(await numbers(store))) == 3


@SERVICE.check_of_two
async def one_of_many_concurrent_senders_of_a_message_wins(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created(store)
    won: list[bytes] = []

    async def send(number: int) -> None:
        body, chosen = b"%d" % number, store if number % 2 else other
        if await chosen.send("r", GO, key="same", body=body):
            won.append(body)
        assert await chosen.send("r", GO, key=str(number), body=b"own")

    await at_once(send, range(30))

    messages = await store.mailbox("r")
    assert [one.body for one in messages if one.key == "same"] == won
    assert len(won) == 1
    assert {one.key for one in messages} == {"same", *map(str, range(30))}
    assert len({one.number for one in messages}) == 31


@SERVICE.check
async def sending_to_an_unknown_or_ended_run_fails(store: ServiceStore) -> None:
    with fails(RunNotFound):
        await store.send("unknown", GO, key="k")
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        summary = await created(store, status.value, summary=summary_of(status))
        for topic in (GO, NOTICE, CANCEL):
            with fails(RunEnded) as caught:
                await store.send(status.value, topic, key="k")
            assert caught.error.status == status
        assert await store.mailbox(status.value) == []
        assert (await info_of(store, status.value)).summary == summary


@SERVICE.check
async def a_message_that_wakes_a_run_makes_it_due(store: ServiceStore) -> None:
    """But never later than it was due before."""
    for status in RunStatus:
        if status.has_ended:
            continue
        for topic in (GO, NOTICE, CANCEL):
            for due_at in (None, 1.0, time.time() + 3600):
                run_id = f"{status} {topic} {due_at}"
                before = await created(store, run_id, summary=summary_of(status, due_at=due_at))
                assert await store.send(run_id, topic, key="k")
                summary = (await info_of(store, run_id)).summary
                if wakes(topic, status) and due_at != 1.0:
                    assert await is_due(store, run_id), run_id
                    assert replace(summary, due_at=due_at) == before, run_id
                else:
                    assert summary == before, run_id


@SERVICE.check
async def a_woken_run_stays_due_until_its_summary_changes(store: ServiceStore) -> None:
    """A repeated message wakes nothing."""
    await created(store, summary=SUSPENDED)
    await store.send("r", GO, key="k")
    woken = (await info_of(store)).summary
    lease = await claimed(store)
    await appended(store, lease, b"2", takes=await numbers(store))
    assert (await info_of(store)).summary == woken

    await appended(store, lease, after=2, summary=SUSPENDED)
    assert not await store.send("r", GO, key="k")
    assert (await info_of(store)).summary == SUSPENDED
    assert await store.mailbox("r") == []


@SERVICE.check
async def a_message_to_a_held_run_is_kept(store: ServiceStore) -> None:
    """It does not affect the lease."""
    lease = await begun(store)
    assert await store.send("r", GO, key="k")
    await appended(store, lease, b"2")
    assert len(renew(store, lease)) == 1
    assert await topics_and_keys(store) == [(GO, "k")]


@SERVICE.check
async def topics_and_keys_of_messages_may_be_any_text(store: ServiceStore) -> None:
    for name in HOSTILE_RUN_IDS:
        await created(store, name, summary=SUSPENDED)
        assert await store.send(name, f"signal:{name}", key=name, body=name.encode())
        assert not await store.send(name, f"signal:{name}", key=name)

    for name in HOSTILE_RUN_IDS:
        [message] = await store.mailbox(name)
        assert (message.topic, message.key) == (f"signal:{name}", name)
        assert message.body == name.encode()
        await store.delete(name)
        assert await store.mailbox(name) == []


@SERVICE.check
async def a_large_message_survives(store: ServiceStore) -> None:
    body = bytes(range(256)) * 4000
    await created(store)
    await store.send("r", GO, key="k", body=body)

    assert [one.body for one in await store.mailbox("r")] == [body]


# Taking messages.


@SERVICE.check
async def an_append_takes_messages(store: ServiceStore) -> None:
    lease = await begun(store)
    for key in "abcd":
        await store.send("r", GO, key=key)
    a, b, _, d = await numbers(store)
    await appended(store, lease, b"2", takes=[a, d])
    assert await topics_and_keys(store) == [(GO, "b"), (GO, "c")]
    await store.send("r", GO, key="e")
    assert (await numbers(store))[-1] > d
    await appended(store, lease, b"3", after=2, takes=[b], summary=summary_of(), release=True)

    assert await topics_and_keys(store) == [(GO, "c"), (GO, "e")]
    assert await bodies_of(store) == [b"1", b"2", b"3"]


@SERVICE.check
async def an_append_that_takes_a_missing_message_changes_nothing(store: ServiceStore) -> None:
    lease = await begun(store)
    await store.send("r", GO, key="a")
    await store.send("r", GO, key="b")
    first, second = await numbers(store)
    await appended(store, lease, b"2", takes=[first])
    before = await info_of(store)

    done = summary_of(RunStatus.COMPLETED)
    for takes in ([second, first], [second, second + 1000]):
        with fails(LeaseLost):
            await appended(store, lease, b"x", after=2, takes=takes, summary=done, release=True)
    assert await info_of(store) == before
    assert await numbers(store) == [second]
    await appended(store, lease, b"3", after=2, takes=[second])


@SERVICE.check
async def a_rejected_append_takes_no_message(store: ServiceStore) -> None:
    stale = await begun(store, seconds=0)
    await store.send("r", GO, key="a")
    takes = await numbers(store)
    lease = await claimed(store)

    with fails(LeaseLost):
        await appended(store, stale, b"x", takes=takes)
    with fails(LeaseLost):
        await appended(store, lease, b"x", after=0, takes=takes)
    assert await numbers(store) == takes
    await appended(store, lease, b"2", takes=takes)
    assert await numbers(store) == []


@SERVICE.check_of_two
async def one_of_many_concurrent_takers_of_a_message_wins(
    store: ServiceStore, other: ServiceStore
) -> None:
    lease = await begun(store, "r", b"0")
    await store.send("r", GO, key="a")
    takes = await numbers(store)
    won: list[bytes] = []

    async def take(number: int) -> None:
        body, chosen = b"%d" % number, store if number % 2 else other
        with suppress(LeaseLost):
            await appended(chosen, lease, body, takes=takes)
            won.append(body)

    await at_once(take, range(20))

    assert await bodies_of(store) == [b"0", *won]
    assert len(won) == 1
    assert await numbers(store) == []


@SERVICE.check
async def an_unseen_message_makes_the_run_due(store: ServiceStore) -> None:
    """Unless the append takes it, or does not say what it has seen."""
    later = replace(SUSPENDED, due_at=time.time() + 3600)
    lease = await begun(store)
    await appended(store, lease, summary=later, seen=0)
    assert (await info_of(store)).summary == later

    await store.send("r", GO, key="seen")
    [seen] = await numbers(store)
    await appended(store, lease, summary=later, seen=seen)
    assert (await info_of(store)).summary == later
    await appended(store, lease, summary=SUSPENDED, takes=[seen], seen=0)
    assert (await info_of(store)).summary == SUSPENDED

    await store.send("r", GO, key="unseen")
    await appended(store, lease, summary=later)
    assert (await info_of(store)).summary == later
    await appended(store, lease, summary=later, seen=seen, release=True)
    assert await is_due(store)
    assert replace((await info_of(store)).summary, due_at=None) == replace(later, due_at=None)


@SERVICE.check_of_two
async def a_message_sent_during_a_suspension_wakes_the_run(
    store: ServiceStore, other: ServiceStore
) -> None:
    """Whether it arrives before or after the append."""
    suspended = replace(SUSPENDED, due_at=time.time() + 3600)
    for number in range(30):
        run_id = f"r{number}"
        lease = await begun(store, run_id)

        async def send(run_id: str = run_id) -> None:
            await other.send(run_id, GO, key="k")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await appended(store, lease, summary=suspended, seen=0, release=True)
        assert await is_due(store, run_id)


@SERVICE.check
async def an_ended_run_has_no_messages(store: ServiceStore) -> None:
    """Not even one that its last writer did not see. And it is not due. A failed run keeps them."""
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED):
        run_id = status.value
        lease = await begun(store, run_id)
        for key in "abc":
            await store.send(run_id, GO, key=key)
        sent = await numbers(store, run_id)
        seen = 0 if status.has_ended else sent[-1]
        ended = summary_of(status)
        await appended(store, lease, b"2", summary=ended, takes=sent[:1], seen=seen, release=True)

        assert await numbers(store, run_id) == ([] if status.has_ended else sent[1:])
        assert (await info_of(store, run_id)).summary == ended


@SERVICE.check_of_two
async def a_message_sent_while_its_run_ends_is_rejected_or_removed(
    store: ServiceStore, other: ServiceStore
) -> None:
    done = summary_of(RunStatus.COMPLETED)
    for number in range(20):
        run_id = f"r{number}"
        lease = await begun(store, run_id)

        async def send(run_id: str = run_id) -> None:
            with suppress(RunEnded):
                await other.send(run_id, GO, key="k")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await appended(store, lease, summary=done, release=True)
        assert await store.mailbox(run_id) == []


@SERVICE.check
async def a_deleted_run_has_no_messages(store: ServiceStore) -> None:
    """A new run with the same id may receive the same messages again."""
    await created(store)
    await store.send("r", GO, key="taken")
    lease = await claimed(store)
    await appended(store, lease, summary=summary_of(), takes=await numbers(store))
    await store.send("r", GO, key="left")
    await store.delete("r", lease=lease)

    assert await store.mailbox("r") == []
    with fails(RunNotFound):
        await store.send("r", GO, key="left")
    await created(store)
    assert await store.mailbox("r") == []
    for key in ("taken", "left"):
        assert await store.send("r", GO, key=key)
    assert await topics_and_keys(store) == [(GO, "taken"), (GO, "left")]


@SERVICE.check
async def a_truncation_keeps_the_messages(store: ServiceStore) -> None:
    lease = await begun(store, "r", b"1", b"2")
    await store.send("r", GO, key="k")
    await store.truncate(lease, after=1, summary=summary_of(RunStatus.INTERRUPTED))

    assert await topics_and_keys(store) == [(GO, "k")]


@SERVICE.check_reopening
async def messages_survive_reopening(make: Callable[[], ServiceStore]) -> None:
    async with make() as first:
        await created(first, summary=SUSPENDED)
        await first.send("r", GO, key="taken")
        await appended(first, await claimed(first), takes=await numbers(first), release=True)
        await first.send("r", GO, key="left", body=b"body")
        before = await first.mailbox("r")
    async with make() as second:
        assert await second.mailbox("r") == before
        assert [one.body for one in before] == [b"body"]
        assert not await second.send("r", GO, key="taken")
        assert not await second.send("r", GO, key="left")
        assert await second.send("r", GO, key="new")
        assert (await numbers(second))[1] > before[0].number
        assert await is_due(second)


# Notices to parents.


async def become(store: ServiceStore, run_id: str, summary: RunSummary) -> None:
    """Append an entry with this summary to a run, and release it."""
    lease = await claimed(store, run_id)
    after = (await info_of(store, run_id)).length
    await appended(store, lease, b"x", after=after, summary=summary, release=True)


@SERVICE.check
async def the_end_of_a_spawned_run_notifies_its_parent(store: ServiceStore) -> None:
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED):
        parent, child = f"parent {status}", f"child {status}"
        await created(store, parent, summary=replace(SUSPENDED, due_at=time.time() + 3600))
        summary = await created(store, child, summary=summary_of(parent=parent))
        for before in (RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.INTERRUPTED):
            await become(store, child, replace(summary, status=before))
        assert await store.mailbox(parent) == []
        assert not await is_due(store, parent)
        await become(store, child, replace(summary, status=status))

        assert await topics_and_keys(store, parent) == [(NOTICE, child)]
        assert await is_due(store, parent)


@SERVICE.check
async def a_run_that_fails_and_then_ends_notifies_its_parent_twice(store: ServiceStore) -> None:
    """Even if its parent has taken the first notice."""
    await created(store, "parent", summary=SUSPENDED)
    summary = await created(store, "child", summary=summary_of(parent="parent"))
    await become(store, "child", replace(summary, status=RunStatus.FAILED))
    lease = await claimed(store, "parent")
    takes = await numbers(store, "parent")
    await appended(store, lease, summary=SUSPENDED, takes=takes, release=True)
    assert not await is_due(store, "parent")
    assert await store.mailbox("parent") == []
    await become(store, "child", replace(summary, status=RunStatus.COMPLETED))

    assert await topics_and_keys(store, "parent") == [(NOTICE, "child")]
    assert await is_due(store, "parent")


@SERVICE.check
async def a_run_can_end_if_its_parent_is_unknown_or_has_ended(store: ServiceStore) -> None:
    await created(store, "over", summary=summary_of(RunStatus.CANCELLED))
    for parent in ("unknown", "over"):
        child = f"child of {parent}"
        await created(store, child, summary=summary_of(parent=parent))
        done = summary_of(RunStatus.COMPLETED, parent=parent)
        await become(store, child, done)

        assert (await info_of(store, child)).summary == done
        assert await store.mailbox(parent) == []
    assert await find_run(store, "unknown") is None


@SERVICE.check_of_two
async def children_that_end_concurrently_all_notify_their_parent(
    store: ServiceStore, other: ServiceStore
) -> None:
    await created(store, "parent", summary=SUSPENDED)
    children = [f"c{number:02}" for number in range(24)]
    ended = summary_of(RunStatus.COMPLETED, parent="parent")

    async def run(child: str) -> None:
        chosen = store if int(child[1:]) % 2 else other
        lease = await begun(chosen, child, summary=replace(ended, status=RunStatus.RUNNING))
        await appended(chosen, lease, b"2", summary=ended, release=True)

    await at_once(run, children)

    assert sorted(await topics_and_keys(store, "parent")) == [(NOTICE, child) for child in children]
    assert len(set(await numbers(store, "parent"))) == len(children)
