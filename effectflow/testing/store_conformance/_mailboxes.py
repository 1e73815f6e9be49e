"""Check the creation of runs, messages to runs, and notices to parents."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import anyio

from effectflow.checkpoint import (
    CheckpointStore,
    LeaseLost,
    Owner,
    RunBusy,
    RunEnded,
    RunNotFound,
    RunStatus,
    RunSummary,
)
from effectflow.checkpoint.store import CANCEL, NOTICE, wakes
from effectflow.testing.store_conformance._check import (
    MakeStore,
    at_once,
    begun,
    bodies_of,
    check,
    check_of_two,
    check_reopening,
    claimed,
    created,
    fails,
    found,
    info_of,
    renew,
    summary_of,
    written,
)
from effectflow.testing.store_conformance._runs import HOSTILE_RUN_IDS

GO = "signal:go"


async def topics_and_keys(store: CheckpointStore, run_id: str = "r") -> list[tuple[str, str]]:
    return [(message.topic, message.key) for message in await store.mailbox(run_id)]


async def numbers(store: CheckpointStore, run_id: str = "r") -> list[int]:
    return [message.number for message in await store.mailbox(run_id)]


async def is_due(store: CheckpointStore, run_id: str = "r") -> bool:
    """Return whether a run is due now."""
    due_at = (await info_of(store, run_id)).summary.due_at
    return due_at is not None and due_at <= time.time()


# Creating runs.


@check
async def a_created_run_is_not_held(store: CheckpointStore) -> None:
    summary = replace(summary_of(RunStatus.PENDING), due_at=1234.5678, priority=-3)
    assert await store.create("r", [b"1", b"2"], summary=summary)

    info = await info_of(store)
    assert (info.summary, info.length, info.lease) == (summary, 2, None)
    assert abs(info.updated_at - time.time()) < 60
    assert await bodies_of(store) == [b"1", b"2"]
    assert await found(store) == ["r"]
    lease = await claimed(store)
    await store.append(lease, [b"3"], after=2)
    assert await bodies_of(store) == [b"1", b"2", b"3"]


@check
async def an_existing_run_is_not_created_again(store: CheckpointStore) -> None:
    """Whether it is held, is free, or has ended."""
    other = summary_of(RunStatus.PENDING, workflow="other")
    lease = await begun(store)
    assert not await store.create("r", [b"x"], summary=other)
    await store.append(lease, [b"2"], after=1)
    await store.append(lease, [], after=2, summary=summary_of(), release=True)
    assert not await store.create("r", [b"x"], summary=other)

    assert await bodies_of(store) == [b"1", b"2"]
    assert (await info_of(store)).summary == summary_of()
    await created(store, "ended", RunStatus.COMPLETED)
    assert not await store.create("ended", [b"x"], summary=other)
    assert await bodies_of(store, "ended") == [b"1"]


@check
async def a_run_claimed_by_a_live_owner_cannot_be_created(store: CheckpointStore) -> None:
    lease = await claimed(store)
    with fails(RunBusy) as caught:
        await store.create("r", [b"x"], summary=summary_of(RunStatus.PENDING))
    assert caught.error.owner == lease.owner
    assert await store.info("r") is None
    await store.append(lease, [b"1"], after=0, summary=summary_of())
    assert await bodies_of(store) == [b"1"]


@check
async def creating_a_run_invalidates_an_expired_lease(store: CheckpointStore) -> None:
    stale = await claimed(store, seconds=0)
    await created(store)

    assert (await info_of(store)).lease is None
    with fails(LeaseLost):
        await store.append(stale, [b"x"], after=0, summary=summary_of())
    with fails(LeaseLost):
        await store.append(stale, [b"x"], after=1)
    assert (await claimed(store)).fence > stale.fence


@check_of_two
async def one_of_many_concurrent_creations_wins(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    won: list[bytes] = []

    async def create(number: int) -> None:
        body = b"%d" % number
        chosen = store if number % 2 else other
        if await chosen.create("r", [body], summary=summary_of(RunStatus.PENDING)):
            won.append(body)

    await at_once(create, range(30))

    assert len(won) == 1
    assert await bodies_of(store) == won


# Summaries.


@check_of_two
async def a_summary_is_returned_as_it_was_written(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    full = replace(
        summary_of(RunStatus.SUSPENDED, created_at=1.25),
        due_at=1767225600.123456,
        priority=-7,
        waits_for="signal 'ünïcödé-🎈'\nuntil noon",
        blocked="a step is \"missing\"; build '2'",
        parent="a/b: *?[x]%_",
        is_nested=True,
    )
    bare = summary_of(RunStatus.PENDING)
    assert await store.create("r", [b"1"], summary=full)
    await begun(store, "begun")
    lease = await claimed(store)
    for summary in (full, bare, full):
        await store.append(lease, [], after=1, summary=summary)
        assert (await info_of(other)).summary == summary
        await store.truncate(lease, after=1, summary=replace(summary, dead_letters=5))
        assert (await info_of(other)).summary == replace(summary, dead_letters=5)
    found = {info.run_id: info.summary for info in await other.find()}
    assert found == {"r": replace(full, dead_letters=5), "begun": summary_of()}


# Sending messages.


@check_of_two
async def messages_keep_the_order_in_which_they_were_sent(
    store: CheckpointStore, other: CheckpointStore
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


@check
async def a_message_is_received_once(store: CheckpointStore) -> None:
    """Even if it is sent again after it was taken."""
    await created(store)
    assert await store.send("r", GO, key="k", body=b"first")
    assert not await store.send("r", GO, key="k", body=b"second")
    assert await store.send("r", GO, key="K", body=b"other key")
    assert await store.send("r", "signal:stop", key="k", body=b"other topic")
    messages = await store.mailbox("r")
    assert [one.body for one in messages] == [b"first", b"other key", b"other topic"]

    lease = await claimed(store)
    await store.append(lease, [b"2"], after=1, takes=[messages[0].number])
    assert not await store.send("r", GO, key="k", body=b"third")
    assert await store.mailbox("r") == messages[1:]
    await created(store, "another")
    assert await store.send("another", GO, key="k")


@check
async def notices_with_the_same_key_are_all_kept(store: CheckpointStore) -> None:
    await created(store)
    for _ in range(3):
        assert await store.send("r", NOTICE, key="child")

    assert await topics_and_keys(store) == [(NOTICE, "child")] * 3
    assert len(set(await numbers(store))) == 3


@check_of_two
async def one_of_many_concurrent_senders_of_a_message_wins(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    await created(store)
    won: list[bytes] = []

    async def send(number: int) -> None:
        body = b"%d" % number
        if await (store if number % 2 else other).send("r", GO, key="same", body=body):
            won.append(body)
        assert await (store if number % 2 else other).send("r", GO, key=str(number), body=b"own")

    await at_once(send, range(30))

    messages = await store.mailbox("r")
    assert [one.body for one in messages if one.key == "same"] == won
    assert len(won) == 1
    assert {one.key for one in messages} == {"same", *map(str, range(30))}
    assert len({one.number for one in messages}) == 31


@check
async def sending_to_an_unknown_or_ended_run_fails(store: CheckpointStore) -> None:
    await claimed(store, "claimed")
    for run_id in ("unknown", "claimed"):
        with fails(RunNotFound):
            await store.send(run_id, GO, key="k")
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        summary = await created(store, status.value, status)
        for topic in (GO, NOTICE, CANCEL):
            with fails(RunEnded) as caught:
                await store.send(status.value, topic, key="k")
            assert caught.error.status == status
        assert await store.mailbox(status.value) == []
        assert (await info_of(store, status.value)).summary == summary


@check
async def a_message_that_wakes_a_run_makes_it_due(store: CheckpointStore) -> None:
    far = time.time() + 3600
    for status in RunStatus:
        if status.has_ended:
            continue
        for topic in (GO, NOTICE, CANCEL):
            for due_at in (None, far):
                run_id = f"{status} {topic} {due_at}"
                await created(store, run_id, status, due_at=due_at)
                assert await store.send(run_id, topic, key="k")
                if wakes(topic, status):
                    assert await is_due(store, run_id), run_id
                else:
                    assert (await info_of(store, run_id)).summary.due_at == due_at, run_id


@check
async def a_message_never_makes_a_run_due_later(store: CheckpointStore) -> None:
    await created(store, "r", RunStatus.SUSPENDED, due_at=1.0)
    await store.send("r", GO, key="k")

    assert (await info_of(store)).summary.due_at == 1.0


@check
async def a_woken_run_stays_due_until_its_summary_changes(
    store: CheckpointStore,
) -> None:
    await created(store, "r", RunStatus.SUSPENDED)
    await store.send("r", GO, key="k")
    woken = (await info_of(store)).summary
    lease = await claimed(store)
    await store.append(lease, [b"2"], after=1, takes=await numbers(store))

    assert (await info_of(store)).summary == woken


@check
async def a_repeated_message_wakes_nothing(store: CheckpointStore) -> None:
    summary = await created(store, "r", RunStatus.SUSPENDED)
    await store.send("r", GO, key="k")
    lease = await claimed(store)
    await store.append(lease, [], after=1, summary=summary, takes=await numbers(store))
    assert not await store.send("r", GO, key="k")

    assert (await info_of(store)).summary == summary
    assert await store.mailbox("r") == []


@check
async def a_message_to_a_held_run_is_kept(store: CheckpointStore) -> None:
    """It does not affect the lease."""
    lease = await begun(store)
    assert await store.send("r", GO, key="k")
    assert await topics_and_keys(store) == [(GO, "k")]
    await store.append(lease, [b"2"], after=1)
    renew(store, lease, seconds=60)
    assert await topics_and_keys(store) == [(GO, "k")]


@check
async def topics_and_keys_of_messages_may_be_any_text(store: CheckpointStore) -> None:
    for name in HOSTILE_RUN_IDS:
        await created(store, name, RunStatus.SUSPENDED)
        assert await store.send(name, f"signal:{name}", key=name, body=name.encode())
        assert not await store.send(name, f"signal:{name}", key=name)

    for name in HOSTILE_RUN_IDS:
        [message] = await store.mailbox(name)
        assert (message.topic, message.key) == (f"signal:{name}", name)
        assert message.body == name.encode()
        await store.delete(name)
        assert await store.mailbox(name) == []


@check
async def a_large_message_survives(store: CheckpointStore) -> None:
    body = bytes(range(256)) * 4000
    await created(store)
    await store.send("r", GO, key="k", body=body)

    assert [one.body for one in await store.mailbox("r")] == [body]


# Taking messages.


@check
async def an_append_takes_messages(store: CheckpointStore) -> None:
    lease = await begun(store)
    for key in "abcd":
        await store.send("r", GO, key=key)
    a, b, _, d = await numbers(store)
    await store.append(lease, [b"2"], after=1, takes=[a, d])
    assert await topics_and_keys(store) == [(GO, "b"), (GO, "c")]
    await store.send("r", GO, key="e")
    assert (await numbers(store))[-1] > d
    await store.append(lease, [b"3"], after=2, takes=[b], summary=summary_of(), release=True)

    assert await topics_and_keys(store) == [(GO, "c"), (GO, "e")]
    assert await bodies_of(store) == [b"1", b"2", b"3"]


@check
async def an_append_that_takes_a_missing_message_changes_nothing(
    store: CheckpointStore,
) -> None:
    lease = await begun(store)
    await store.send("r", GO, key="a")
    await store.send("r", GO, key="b")
    first, second = await numbers(store)
    await store.append(lease, [b"2"], after=1, takes=[first])

    done = summary_of(RunStatus.COMPLETED)
    for takes in ([second, first], [second, second + 1000]):
        with fails(LeaseLost):
            await store.append(lease, [b"x"], after=2, takes=takes, summary=done, release=True)
    info = await info_of(store)
    assert (info.summary, info.length) == (summary_of(), 2)
    assert info.lease is not None
    assert info.lease.owner == lease.owner
    assert await numbers(store) == [second]
    await store.append(lease, [b"3"], after=2, takes=[second])


@check
async def a_rejected_append_takes_no_message(store: CheckpointStore) -> None:
    stale = await begun(store, seconds=0)
    await store.send("r", GO, key="a")
    takes = await numbers(store)
    lease = await claimed(store)

    with fails(LeaseLost):
        await store.append(stale, [b"x"], after=1, takes=takes)
    with fails(LeaseLost):
        await store.append(lease, [b"x"], after=0, takes=takes)
    assert await numbers(store) == takes
    await store.append(lease, [b"2"], after=1, takes=takes)
    assert await numbers(store) == []


@check_of_two
async def one_of_many_concurrent_takers_of_a_message_wins(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    lease = await begun(store, "r", b"0")
    await store.send("r", GO, key="a")
    takes = await numbers(store)
    won: list[bytes] = []

    async def take(number: int) -> None:
        try:
            body = b"%d" % number
            await (store if number % 2 else other).append(lease, [body], after=1, takes=takes)
            won.append(body)
        except LeaseLost:
            pass

    await at_once(take, range(20))

    assert await bodies_of(store) == [b"0", *won]
    assert len(won) == 1
    assert await numbers(store) == []


@check
async def an_unseen_message_makes_the_run_due(store: CheckpointStore) -> None:
    later = replace(summary_of(RunStatus.SUSPENDED), due_at=time.time() + 3600)
    lease = await begun(store)
    await store.send("r", GO, key="seen")
    [seen] = await numbers(store)

    await store.append(lease, [], after=1, summary=later, seen=seen)
    assert (await info_of(store)).summary == later
    await store.send("r", GO, key="unseen")
    await store.append(lease, [], after=1, summary=later)
    assert (await info_of(store)).summary == later
    await store.append(lease, [], after=1, summary=later, seen=seen, release=True)
    assert await is_due(store)
    assert replace((await info_of(store)).summary, due_at=None) == replace(later, due_at=None)


@check
async def a_taken_message_does_not_make_the_run_due(store: CheckpointStore) -> None:
    suspended = summary_of(RunStatus.SUSPENDED)
    lease = await begun(store)
    await store.append(lease, [], after=1, summary=suspended, seen=0)
    assert (await info_of(store)).summary == suspended

    await store.send("r", GO, key="a")
    takes = await numbers(store)
    await store.append(lease, [], after=1, summary=suspended, takes=takes, seen=0)
    assert (await info_of(store)).summary == suspended


@check_of_two
async def a_message_sent_during_a_suspension_wakes_the_run(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    """Whether it arrives before or after the append."""
    suspended = replace(summary_of(RunStatus.SUSPENDED), due_at=time.time() + 3600)
    for number in range(30):
        run_id = f"r{number}"
        lease = await begun(store, run_id)

        async def send(run_id: str = run_id) -> None:
            await other.send(run_id, GO, key="k")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await store.append(lease, [], after=1, summary=suspended, seen=0, release=True)
        assert await is_due(store, run_id)


@check
async def an_ended_run_has_no_messages(store: CheckpointStore) -> None:
    """Not even one that its last writer did not see. And it is not due."""
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        run_id = status.value
        lease = await begun(store, run_id)
        for key in "abc":
            await store.send(run_id, GO, key=key)
        takes = (await numbers(store, run_id))[:1]
        ended = summary_of(status)
        await store.append(lease, [b"2"], after=1, summary=ended, takes=takes, seen=0, release=True)

        assert await store.mailbox(run_id) == []
        assert (await info_of(store, run_id)).summary == ended


@check_of_two
async def a_message_sent_while_its_run_ends_is_rejected_or_removed(
    store: CheckpointStore, other: CheckpointStore
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
            await store.append(lease, [], after=1, summary=done, release=True)
        assert await store.mailbox(run_id) == []


@check
async def a_failed_run_keeps_its_messages(store: CheckpointStore) -> None:
    lease = await begun(store)
    await store.send("r", GO, key="k")
    failed = summary_of(RunStatus.FAILED)
    await store.append(lease, [], after=1, summary=failed, release=True)

    assert await topics_and_keys(store) == [(GO, "k")]


@check
async def a_deleted_run_has_no_messages(store: CheckpointStore) -> None:
    """A new run with the same id may receive the same messages again."""
    await created(store)
    await store.send("r", GO, key="taken")
    lease = await claimed(store)
    await store.append(lease, [], after=1, summary=summary_of(), takes=await numbers(store))
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


@check
async def a_truncation_keeps_the_messages(store: CheckpointStore) -> None:
    lease = await begun(store, "r", b"1", b"2")
    await store.send("r", GO, key="k")
    await store.truncate(lease, after=1, summary=summary_of(RunStatus.INTERRUPTED))

    assert await topics_and_keys(store) == [(GO, "k")]


@check_reopening
async def messages_survive_reopening(make: MakeStore) -> None:
    async with make() as first:
        await created(first, "r", RunStatus.SUSPENDED)
        await first.send("r", GO, key="taken")
        lease = await claimed(first)
        await first.append(lease, [], after=1, takes=await numbers(first), release=True)
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


async def become(store: CheckpointStore, run_id: str, summary: RunSummary) -> None:
    """Append an entry with this summary to a run, and release it."""
    lease = await claimed(store, run_id)
    after = (await info_of(store, run_id)).length
    await store.append(lease, [b"x"], after=after, summary=summary, release=True)


async def is_due_or_has_messages(store: CheckpointStore, run_id: str) -> bool:
    return await is_due(store, run_id) or bool(await store.mailbox(run_id))


@check
async def the_end_of_a_spawned_run_notifies_its_parent(store: CheckpointStore) -> None:
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED):
        parent, child = f"parent {status}", f"child {status}"
        far = time.time() + 3600
        await created(store, parent, RunStatus.SUSPENDED, due_at=far)
        summary = await created(store, child, parent=parent)
        for before in (RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.INTERRUPTED):
            await become(store, child, replace(summary, status=before))
        assert await store.mailbox(parent) == []
        await become(store, child, replace(summary, status=status))

        assert await topics_and_keys(store, parent) == [(NOTICE, child)]
        assert await is_due(store, parent)


@check
async def a_run_that_fails_and_then_ends_notifies_its_parent_twice(store: CheckpointStore) -> None:
    """Even if its parent has taken the first notice."""
    await created(store, "parent", RunStatus.SUSPENDED)
    summary = await created(store, "child", parent="parent")
    await become(store, "child", replace(summary, status=RunStatus.FAILED))
    lease = await claimed(store, "parent")
    takes = await numbers(store, "parent")
    waiting = summary_of(RunStatus.SUSPENDED)
    await store.append(lease, [], after=1, summary=waiting, takes=takes, release=True)
    assert not await is_due_or_has_messages(store, "parent")
    await become(store, "child", replace(summary, status=RunStatus.COMPLETED))

    assert await topics_and_keys(store, "parent") == [(NOTICE, "child")]
    assert await is_due(store, "parent")


@check
async def a_run_can_end_if_its_parent_is_unknown_or_has_ended(store: CheckpointStore) -> None:
    await created(store, "over", RunStatus.CANCELLED)
    for parent in ("unknown", "over"):
        child = f"child of {parent}"
        summary = await created(store, child, parent=parent)
        done = replace(summary, status=RunStatus.COMPLETED)
        await become(store, child, done)

        assert (await info_of(store, child)).summary == done
        assert await store.mailbox(parent) == []
    assert await store.info("unknown") is None


@check
async def the_end_of_a_nested_run_does_not_notify_its_parent(store: CheckpointStore) -> None:
    await created(store, "parent", RunStatus.SUSPENDED)
    summary = await created(store, "nested", RunStatus.RUNNING, parent="parent", is_nested=True)
    await become(store, "nested", replace(summary, status=RunStatus.COMPLETED))

    assert not await is_due_or_has_messages(store, "parent")


@check
async def a_message_to_a_nested_run_notifies_the_runs_around_it(
    store: CheckpointStore,
) -> None:
    suspended = RunStatus.SUSPENDED
    await created(store, "other", suspended)
    await created(store, "outer", suspended, parent="other")
    await created(store, "middle", suspended, parent="outer", is_nested=True)
    await created(store, "inner", suspended, parent="middle", is_nested=True)
    assert await store.send("inner", GO, key="k")
    assert not await store.send("inner", GO, key="k")

    assert await topics_and_keys(store, "inner") == [(GO, "k")]
    assert await topics_and_keys(store, "middle") == [(NOTICE, "inner")]
    assert await topics_and_keys(store, "outer") == [(NOTICE, "middle")]
    assert await is_due(store, "outer")
    assert not await is_due_or_has_messages(store, "other")


@check
async def the_end_of_a_child_of_a_nested_run_notifies_the_runs_around_it(
    store: CheckpointStore,
) -> None:
    suspended = RunStatus.SUSPENDED
    await created(store, "outer", suspended)
    await created(store, "nested", suspended, parent="outer", is_nested=True)
    summary = await created(store, "child", parent="nested")
    await become(store, "child", replace(summary, status=RunStatus.COMPLETED))

    assert await topics_and_keys(store, "nested") == [(NOTICE, "child")]
    assert await topics_and_keys(store, "outer") == [(NOTICE, "nested")]
    assert await is_due(store, "outer")


@check_of_two
async def children_that_end_concurrently_all_notify_their_parent(
    store: CheckpointStore, other: CheckpointStore
) -> None:
    await created(store, "parent", RunStatus.SUSPENDED)
    children = [f"c{number:02}" for number in range(24)]
    summary = replace(summary_of(RunStatus.COMPLETED), parent="parent")

    async def run(child: str) -> None:
        chosen = store if int(child[1:]) % 2 else other
        await written(chosen, child, b"1", summary=summary)

    await at_once(run, children)

    assert sorted(await topics_and_keys(store, "parent")) == [(NOTICE, child) for child in children]
    assert len(set(await numbers(store, "parent"))) == len(children)


@check
async def a_dead_owner_does_not_prevent_the_creation_of_a_run(store: CheckpointStore) -> None:
    own = Owner.new()
    dead = str(Owner(2**80, own.host, "1", "1"))
    await store.claim("r", owner=dead, seconds=3600)
    await created(store)

    await written(store, "other", b"1")
    assert (await info_of(store)).lease is None
