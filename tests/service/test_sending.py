"""Values that are sent to runs: checked, kept, received once and in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Do, Effect, Signal, TimedOut, step, workflow
from effectflow.checkpoint import NotSerializable, RunConflict, RunEnded, RunNotFound, RunStatus
from effectflow.service import Change
from effectflow.testing import TestClock
from tests.apps import App, Broken, note
from tests.service.conftest import Service, both_stores
from tests.service.lives import suspended

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Review:
    reviewer: str
    scores: list[int]


review = Signal("review", Review)
number = Signal("number", int | None)


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


async def test_a_run_receives_what_is_sent_while_it_is_suspended(service: Service) -> None:
    async with service.worker(reviewed, suspend_after=0) as worker:
        handle = await worker.client.submit(reviewed, None)
        with anyio.fail_after(5):
            while await handle.status() is not RunStatus.SUSPENDED:
                await anyio.sleep(0.01)
        await handle.send(review, Review("Ada", [4, 5]))
        assert await handle.result(timeout=5) == Success("Ada: 9")


@both_stores
async def test_what_is_sent_before_it_is_awaited_is_kept_in_order(service: Service) -> None:
    handle = await service.client.submit(collect, 3)
    for value in (1, None, 3):
        await handle.send(number, value)
    async with service.worker(collect):
        assert await handle.result(timeout=5) == Success([1, None, 3])


@both_stores
async def test_a_value_with_a_key_is_received_once_however_often_it_is_sent(
    service: Service,
) -> None:
    handle = await service.client.submit(collect, 2)
    for value, key in ((1, "a"), (1, "a"), (2, "b"), (1, "a")):
        await handle.send(number, value, idempotency_key=key)
    async with service.worker(collect):
        assert await handle.result(timeout=5) == Success([1, 2])
    # The sender does not know whether its last attempt arrived, and repeats it.
    await handle.send(number, 2, idempotency_key="b")
    for key in ("c", None):
        with pytest.raises(RunEnded, match="is completed, so it receives no messages"):
            await handle.send(number, 3, idempotency_key=key)


async def test_a_value_that_is_not_as_the_signal_declares_is_rejected_to_its_sender(
    service: Service,
) -> None:
    handle = await service.client.submit(reviewed, None)
    bad: list[tuple[Any, str]] = [
        (Review("Ada", [1, "2"]), r"signal 'review': \$\.scores\[1\]: '2' is not"),  # type: ignore[list-item]
        ("fine", r"signal 'review': \$: 'fine' is not"),
    ]
    for value, message in bad:
        with pytest.raises(NotSerializable, match=message):
            await handle.send(review, value)
    assert await service.store.mailbox(handle.run_id) == []


async def test_sending_to_an_unknown_or_ended_run_is_an_error(service: Service) -> None:
    handle = await service.client.submit(collect, 0)
    async with service.worker(collect):
        await handle.result()
    with pytest.raises(RunEnded):
        await handle.send(number, 1)
    with pytest.raises(RunEnded):
        await handle.cancel()
    with pytest.raises(RunNotFound):
        await service.client.handle(collect, "unknown").send(number, 1)


async def test_a_wait_may_have_a_deadline(service: Service) -> None:
    async with service.worker(in_time) as worker:
        late = await worker.client.submit(in_time, 0.05)
        assert await late.result(timeout=5) == Success("too late")
        early = await worker.client.submit(in_time, 60.0)
        await early.send(number, 7)
        assert await early.result(timeout=5) == Success("7")
    assert service.world.done == ["declined"]


async def test_a_run_is_cancelled_before_it_began_and_while_it_waits(service: Service) -> None:
    never_begun = await service.client.submit(collect, 1)
    await never_begun.cancel()
    await never_begun.cancel()
    async with service.worker(collect) as worker:
        assert "cancelled" in str(await never_begun.result(timeout=5))
        waiting = await worker.client.submit(collect, 1)
        with anyio.fail_after(5):
            while await waiting.status() is not RunStatus.SUSPENDED:
                await anyio.sleep(0.01)
        await waiting.cancel()
        assert "cancelled" in str(await waiting.result(timeout=5))
        assert await waiting.status() is RunStatus.CANCELLED


async def test_changes_of_a_run_are_told_until_it_has_ended(service: Service) -> None:
    handle = await service.client.submit(reviewed, None)
    told: list[Change] = []

    async def listen() -> None:
        async for change in handle:
            told.append(change)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        with anyio.fail_after(5):
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


async def test_a_signal_outside_a_durable_run_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="'review' can be waited for in a durable run only"):
        await review.wait().run(None)


def test_a_signal_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        Signal("", int)
    assert repr(review) == "Signal('review', Review)"


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
