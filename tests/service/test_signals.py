"""Messages to runs: each is checked, kept and received once, in order, also after crashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    Signal,
    TimedOut,
    Workflow,
    do,
    par,
    pure,
    step,
    workflow,
)
from effectflow.checkpoint import (
    NotSerializable,
    RunConflict,
    RunEnded,
    RunNotFound,
    RunStatus,
    export_run,
    import_run,
)
from effectflow.checkpoint.entries import Signalled
from effectflow.service import Change
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, app_on, both_backends, note
from tests.runs.journals import cut, journal, resume
from tests.service.conftest import Service, both_stores
from tests.service.lives import (
    act,
    all_are,
    entries_of,
    info_of,
    killed_everywhere,
    received,
    result_of,
    suspended,
    working,
)
from tests.sweeps import EVERY

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)
count: Signal[int] = Signal("count", int)


@dataclass(frozen=True)
class Review:
    reviewer: str
    scores: list[int]


review = Signal("review", Review)
number = Signal("number", int | None)


@workflow
def approve(_: None) -> Do[App, Broken, list[str]]:
    yield from act("begin")
    first = yield from approval.wait()
    yield from act(f"after {first}")
    second = yield from approval.wait()
    yield from act(f"after {second}")
    return [first, second]


@workflow
def approve_twice_at_once(_: None) -> Do[App, Broken, list[str]]:
    first = approval.wait().within(App).tap(lambda who: act(f"first got {who}"))
    second = approval.wait().within(App).tap(lambda who: act(f"second got {who}"))
    both = yield from par(first, second)
    return sorted(both)


@workflow
def add(_: None) -> Do[App, Broken, int]:
    one = yield from count.wait()
    return one + (yield from count.wait())


@pytest.fixture
def memory() -> Service:
    return Service(MemoryStore())


@both_backends
async def test_a_killed_service_neither_loses_a_message_nor_receives_it_twice() -> None:
    async def live(service: Service) -> object:
        async with working(service, approve, grace=0) as worker:
            handle = await worker.client.submit(approve, None, run_id="r")
            await handle.send(approval, "ann", idempotency_key="1")
            await handle.send(approval, "bob", idempotency_key="2")
            return await result_of(handle)

    await killed_everywhere(live, more_than=10)


async def until_received(service: Service, run_id: str, number: int) -> None:
    """Wait until a run has received this number of messages, and waits for the next or has ended."""
    with anyio.fail_after(10):
        while len(await received(service, run_id)) < number:
            await anyio.sleep(0.003)
    await all_are(service, RunStatus.SUSPENDED, RunStatus.COMPLETED)


@EVERY
async def test_a_killed_service_receives_the_messages_that_came_meanwhile(
    every: int,
) -> None:
    async def live(service: Service) -> object:
        async with working(service, approve, grace=0) as worker:
            handle = await worker.client.submit(approve, None, run_id="r")
            for number, name in enumerate(["ann", "bob"]):
                await until_received(service, "r", number)
                await handle.send(approval, name, idempotency_key=name)
            return await result_of(handle)

    await killed_everywhere(live, more_than=15, every=every)


@both_backends
async def test_a_message_is_kept_until_it_is_awaited_and_other_signals_do_not_matter(
    service: Service,
) -> None:
    handle = await service.client.submit(approve, None, run_id="r")
    for number in range(3):
        await handle.send(count, number)
    await handle.send(approval, "ann")
    async with working(service, approve):
        info = await suspended(service, "r", waits_for="signal approval")
        assert info.summary.due_at is None
        await handle.send(count, 7)
        await handle.send(approval, "bob")
        assert await handle.result(timeout=10) == Success(["ann", "bob"])
    assert await service.store.mailbox("r") == []


@both_stores
async def test_a_key_is_received_once_also_after_it_was_consumed_and_after_the_run_has_ended(
    service: Service,
) -> None:
    handle = await service.client.submit(approve, None, run_id="r")
    async with working(service, approve):
        await handle.send(approval, "ann", idempotency_key="k")
        await handle.send(approval, "eve", idempotency_key="k")
        await suspended(service, "r")
        await handle.send(approval, "eve", idempotency_key="k")
        await anyio.sleep(0.1)
        assert await handle.status() is RunStatus.SUSPENDED
        # The key of another signal is another one.
        await handle.send(count, 1, idempotency_key="k")
        await handle.send(approval, "bob", idempotency_key="l")
        assert await handle.result(timeout=10) == Success(["ann", "bob"])
    await handle.send(approval, "eve", idempotency_key="k")
    for key in ("m", None):
        with pytest.raises(RunEnded, match="is completed, so it receives no messages"):
            await handle.send(approval, "eve", idempotency_key=key)
    assert await received(service, "r") == ["k", "l"]


async def test_a_message_that_is_inserted_again_is_not_received_again(memory: Service) -> None:
    """A store that has imported the run does not know the key; the journal does."""
    handle = await memory.client.submit(approve, None, run_id="r")
    await handle.send(approval, "ann", idempotency_key="k")
    [signed] = await memory.store.mailbox("r")
    async with working(memory, approve):
        await suspended(memory, "r")
    copy = Service(MemoryStore())
    await import_run(copy.store, await export_run(memory.store, "r"))

    assert await copy.store.send("r", signed.topic, key=signed.key, body=signed.body)
    async with working(copy, approve):
        with anyio.fail_after(10):
            while await copy.store.mailbox("r"):
                await anyio.sleep(0.003)
        assert await received(copy, "r") == ["k"]
        handle = copy.client.handle(approve, "r")
        await handle.send(approval, "bob")
        assert await handle.result(timeout=10) == Success(["ann", "bob"])
    assert copy.world.done == ["after bob"]


@both_stores
@both_backends
async def test_two_flows_that_wait_for_one_signal_get_one_message_each(service: Service) -> None:
    async with working(service, approve_twice_at_once) as worker:
        handle = await worker.client.submit(approve_twice_at_once, None, run_id="r")
        waiting = await suspended(service, "r", waits_for="signal approval")
        await handle.send(approval, "ann")
        await suspended(service, "r", after=waiting)
        assert len(service.world.done) == 1
        await handle.send(approval, "bob")
        assert await handle.result(timeout=10) == Success(["ann", "bob"])
    signalled = [e for e in await entries_of(service, "r") if isinstance(e, Signalled)]
    assert len({entry.path for entry in signalled}) == 2


@both_backends
async def test_many_senders_at_once_lose_nothing(service: Service) -> None:
    @workflow
    def collect(_: None) -> Do[App, Broken, list[int]]:
        found: list[int] = []
        for _number in range(40):
            found += [(yield from count.wait())]
        return found

    async with working(service, collect) as worker:
        handle = await worker.client.submit(collect, None, run_id="r")
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(handle.send, count, number)
        result = await handle.result(timeout=20)
    assert sorted(result.unwrap()) == list(range(40))


@pytest.mark.parametrize(
    ("signal", "value", "problem"),
    [
        *((approval, bad, "signal 'approval': ") for bad in (5, None, object(), ["a"], "\ud800")),
        (review, "fine", r"signal 'review': \$: 'fine' is not"),
        (review, Review("Ada", [1, "2"]), r"signal 'review': \$\.scores\[1\]: '2' is not"),  # type: ignore[list-item]
    ],
)
async def test_a_bad_value_is_rejected_to_the_sender_and_not_sent(
    memory: Service, signal: Signal[Any], value: Any, problem: str
) -> None:
    handle = await memory.client.submit(approve, None, run_id="r")
    with pytest.raises(NotSerializable, match=problem):
        await handle.send(signal, value)
    assert await memory.store.mailbox("r") == []


async def test_a_message_to_an_ended_or_unknown_run_is_an_error(service: Service) -> None:
    with pytest.raises(RunNotFound):
        await service.client.handle(approve, "unknown").send(approval, "ann")
    completed = await service.client.submit(add, None, run_id="completed")
    cancelled = await service.client.submit(add, None, run_id="cancelled")
    async with working(service, add):
        await completed.send(count, 1)
        await completed.send(count, 2)
        assert await completed.result(timeout=10) == Success(3)
        await cancelled.cancel()
        await cancelled.result(timeout=10)
    for handle in (completed, cancelled):
        with pytest.raises(RunEnded, match=handle.run_id):
            await handle.send(count, 3)
        with pytest.raises(RunEnded, match=handle.run_id):
            await handle.cancel()
        assert await service.store.mailbox(handle.run_id) == []


@both_stores
@both_backends
async def test_a_message_wakes_a_run_at_once_and_a_run_of_another_name_stays_asleep(
    service: Service, seldom_looks: None
) -> None:
    async with working(service, approve, add) as worker:
        other = await worker.client.submit(add, None, run_id="other")
        handle = await worker.client.submit(approve, None, run_id="r")
        await suspended(service, "r")
        asleep = await suspended(service, "other")
        with anyio.fail_after(30):
            await handle.send(approval, "ann")
            while "after ann" not in service.world.done:
                await anyio.sleep(0.002)
        assert (await info_of(service, "other")).length == asleep.length
        await other.cancel()


async def test_a_signal_can_be_awaited_inside_a_step(memory: Service) -> None:
    @step
    @do
    def ask_inside() -> Do[App, Broken, str]:
        yield from act("ask")
        who = yield from approval.wait()
        yield from act("thank")
        return who

    @workflow
    def asking(_: None) -> Do[App, Broken, str]:
        return (yield from ask_inside())

    async with working(memory, asking) as worker:
        handle = await worker.client.submit(asking, None, run_id="r")
        await suspended(memory, "r", waits_for="signal approval")
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("ann")
    assert memory.world.done == ["ask", "thank"]


@step(retry=RetryPolicy.constant(0).with_max_retries(3))
@do
def sign(state: str) -> Do[App, Broken, str]:
    signed = approval.wait().within(App).tap(lambda _: act("note"))
    who, _ = yield from par(signed, pure(None))
    yield from act("sign")
    return f"{state} {who}"


async def test_each_attempt_executes_the_steps_after_a_message_that_an_earlier_one_received() -> (
    None
):
    signing = Workflow.of_steps("signing", [sign])
    service = Service(MemoryStore())
    service.world.failing |= {"sign#1", "sign#2"}
    async with working(service, signing) as worker:
        handle = await worker.client.submit(signing, "letter", run_id="r")
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("letter ann")
    third = (await journal(service.store)).index("B3 sign")
    app = app_on(await cut(service.store, third + 1))
    assert await resume(signing, app) == Success("letter ann")
    assert app.world.done == ["note", "sign"]


# What a sender is told.


@workflow
def reviewed(_: None) -> Do[App, Broken, str]:
    received = yield from review.wait()
    return f"{received.reviewer}: {sum(received.scores)}"


@workflow
def collect(count: int) -> Do[App, Broken, list[int | None]]:
    found: list[int | None] = []
    for _ in range(count):
        found.append((yield from number.wait()))
    return found


@step
def decline() -> Effect[App, Broken, int]:
    return note("declined")


@workflow
def in_time(seconds: float) -> Do[App, Broken, str]:
    waited = yield from number.wait().timeout(seconds).result()
    if isinstance(waited, Success):
        return str(waited.unwrap())
    assert isinstance(waited.failure(), TimedOut)
    yield from decline()
    return "too late"


@both_stores
async def test_what_is_sent_before_it_is_awaited_is_kept_in_order(service: Service) -> None:
    handle = await service.client.submit(collect, 3)
    for value in (1, None, 3):
        await handle.send(number, value)
    async with service.worker(collect):
        assert await handle.result(timeout=30) == Success([1, None, 3])


@both_backends
async def test_changes_of_a_run_are_told_until_it_has_ended(service: Service) -> None:
    handle = await service.client.submit(reviewed, None)
    told: list[Change] = []

    async def listen() -> None:
        async for change in handle:
            told.append(change)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        with anyio.fail_after(30):
            while not told:
                await anyio.sleep(0.01)
            async with service.worker(reviewed, suspend_after=0):
                while told[-1].status is not RunStatus.SUSPENDED:
                    await anyio.sleep(0.01)
                await handle.send(review, Review("Ada", [1]))
                while told[-1].status is not RunStatus.COMPLETED:
                    await anyio.sleep(0.01)
    statuses = [str(change.status) for change in told]
    assert statuses[0] == "pending"
    assert [status for status in statuses if status != "running"] == [
        "pending",
        "suspended",
        "completed",
    ]
    assert await handle.result() == Success("Ada: 1")


async def test_a_signal_outside_a_durable_run_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="'review' can be waited for in a durable run only"):
        await review.wait().run(None)


async def test_in_virtual_time_messages_wake_a_run_and_deadlines_end_it(service: Service) -> None:
    clock = TestClock()
    async with service.worker(in_time, clock=clock) as worker:
        heard = await worker.client.submit(in_time, 3600.0)
        missed = await worker.client.submit(in_time, 3600.0)
        await suspended(service, heard.run_id)
        await suspended(service, missed.run_id)
        await heard.send(number, 7)
        assert await heard.result(timeout=10) == Success("7")
        assert await missed.status() is RunStatus.SUSPENDED
        await clock.advance(3600)
        assert await missed.result(timeout=10) == Success("too late")


async def test_a_handle_of_another_workflow_neither_sends_nor_cancels(service: Service) -> None:
    await service.client.submit(reviewed, None, run_id="r")
    mistaken = service.client.handle(collect, "r")
    with pytest.raises(RunConflict):
        await mistaken.send(number, 1)
    with pytest.raises(RunConflict):
        await mistaken.cancel()
    assert await service.store.mailbox("r") == []
