"""A run is suspended when all its fibers wait, wherever they are, and goes on in another worker."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
    bracket,
    current_step,
    do,
    par,
    par_traverse,
    pure,
    race,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import Entry, RunEnded, RunStatus, find_run
from effectflow.checkpoint.entries import Interrupted, Suspended, Waiting
from effectflow.checkpoint.schema import LATEST
from effectflow.effects import from_async, from_fn, sleep_until
from effectflow.stores import SqliteStore
from tests.apps import App, Broken, both_backends, note
from tests.service.conftest import Service, both_stores
from tests.service.lives import (
    act,
    all_are,
    entries_of,
    info_of,
    killed_everywhere,
    result_of,
    suspended,
    working,
)
from tests.sweeps import EVERY

pytestmark = [pytest.mark.anyio, both_backends]

approval: Signal[str] = Signal("approval", str)
review: Signal[str] = Signal("review", str)

HOUR = 3600.0


async def lived(service: Service, workflow: Any, input: Any = None) -> Any:
    """Let a worker drive a run until it is suspended, and end the worker. Return the handle."""
    async with working(service, workflow) as worker:
        handle = await worker.client.submit(workflow, input, run_id="r")
        await suspended(service, "r")
    return handle


# Operators.


@workflow
def both(_: None) -> Do[App, Broken, tuple[str, str]]:
    yield from act("begin")
    one = approval.wait().within(App).tap(lambda who: act(f"approved by {who}"))
    other = review.wait().within(App).tap(lambda who: act(f"reviewed by {who}"))
    return (yield from par(one, other))


async def test_branches_of_par_wait_for_different_messages_in_different_workers(
    service: Service,
) -> None:
    handle = await lived(service, both)
    waiting = await info_of(service, "r")
    assert sorted(waiting.summary.details.waits_for.split(", ")) == [
        "signal approval",
        "signal review",
    ]
    await handle.send(review, "bob")
    async with working(service, both):
        await suspended(service, "r", waits_for="signal approval", after=waiting)
    await handle.send(approval, "ann")
    async with working(service, both):
        assert await handle.result(timeout=10) == Success(("ann", "bob"))
    assert service.world.done == ["begin", "reviewed by bob", "approved by ann"]


@workflow
def either(_: None) -> Do[App, Broken, str]:
    slow = sleep(HOUR).within(App).and_then(lambda _: act("slept"))
    answered = approval.wait().within(App).and_then(lambda who: act(f"approved by {who}"))
    return (yield from race(slow, answered))


@both_stores
async def test_a_message_wins_a_race_against_a_sleep(service: Service) -> None:
    handle = await lived(service, either)
    info = await info_of(service, "r")
    assert sorted(info.summary.details.waits_for.split(", ")) == ["a time", "signal approval"]
    assert info.summary.due_at == pytest.approx(info.updated_at + HOUR, abs=60)
    await handle.send(approval, "ann")
    async with working(service, either):
        assert await handle.result(timeout=10) == Success("approved by ann")
    assert service.world.done == ["approved by ann"]


def timed_wait(limit: float | timedelta) -> Effect[App, Any, str]:
    return approval.wait().timeout(limit)


def raced_wait(limit: float | timedelta) -> Effect[App, Any, str]:
    return race(approval.wait(), sleep(limit).map(lambda _: "time"))


@pytest.mark.parametrize("limit", [math.inf, timedelta.max, 1e300], ids=str)
@pytest.mark.parametrize("wait", [timed_wait, raced_wait])
async def test_a_run_with_a_deadline_that_no_datetime_can_tell_is_suspended(
    wait: Any, limit: float | timedelta, tmp_path: Path
) -> None:
    @workflow
    def patient(_: None) -> Do[App, Any, str]:
        return (yield from wait(limit))

    async with SqliteStore(tmp_path / "runs.db") as store:
        service = Service(store)
        handle = await lived(service, patient)
        assert (await info_of(service, "r")).summary.due_at in (None, LATEST)
        await handle.send(approval, "ann")
        async with working(service, patient):
            assert await handle.result(timeout=10) == Success("ann")


@step
def work(seconds: float) -> Effect[App, Broken, str]:
    return from_async(lambda _: anyio.sleep(seconds)).and_then(lambda _: act("work"))


@workflow
def wait_and_work(_: None) -> Do[App, Broken, tuple[str, str]]:
    return (yield from par(approval.wait(), work(0.3)))


@both_stores
async def test_a_run_with_one_busy_branch_is_not_suspended(service: Service) -> None:
    handle = await lived(service, wait_and_work)
    assert service.world.done == ["work"]
    entries = await entries_of(service, "r")
    assert not any(isinstance(entry, Interrupted) for entry in entries)
    await handle.send(approval, "ann")
    async with working(service, wait_and_work):
        assert await handle.result(timeout=10) == Success(("ann", "work"))


@workflow
def in_time(_: None) -> Do[App, Broken, str]:
    answer = yield from approval.wait().timeout(0.5).result()
    if isinstance(answer, Success):
        return answer.unwrap()
    assert isinstance(answer.failure(), TimedOut)
    return (yield from act("too late"))


async def test_a_deadline_is_kept_while_the_run_is_suspended(service: Service) -> None:
    handle = await lived(service, in_time)
    due_at = (await info_of(service, "r")).summary.due_at
    assert due_at is not None
    async with working(service, in_time):
        assert await handle.result(timeout=10) == Success("too late")
    entries = await entries_of(service, "r")
    assert entries[-1].at == pytest.approx(due_at, abs=5)


# Resources.


def resource(name: str) -> tuple[Effect[App, Broken, str], Any]:
    """Return an acquisition and a release that are not steps, since each process needs its own."""
    return (
        note(f"open {name}").map(lambda _: name),
        lambda name: note(f"close {name}"),
    )


@workflow
def with_resource(_: None) -> Do[App, Broken, str]:
    def use(name: str) -> Effect[App, Broken, str]:
        return act("before").and_then(lambda _: approval.wait()).tap(lambda who: act(f"for {who}"))

    acquire, release = resource("file")
    return (yield from bracket(acquire, release, use))


async def test_the_resource_around_a_wait_is_released_and_acquired_again(service: Service) -> None:
    handle = await lived(service, with_resource)
    assert service.world.done == ["open file", "before", "close file"]
    await handle.send(approval, "ann")
    async with working(service, with_resource):
        assert await handle.result(timeout=10) == Success("ann")
    assert service.world.done[3:] == ["open file", "for ann", "close file"]


@workflow
def with_durable_resource(_: None) -> Do[App, Broken, str]:
    return (yield from bracket(act("rent"), lambda _: act("return"), lambda _: approval.wait()))


async def test_a_resource_of_steps_is_kept_while_the_run_is_suspended(service: Service) -> None:
    handle = await lived(service, with_durable_resource)
    assert service.world.done == ["rent"]
    await handle.send(approval, "ann")
    async with working(service, with_durable_resource):
        assert await handle.result(timeout=10) == Success("ann")
    assert service.world.done == ["rent", "return"]


# Workflows that are called, and waits within steps.


@workflow
def inner(_: None) -> Do[App, Broken, str]:
    yield from act("inner begins")
    who = yield from approval.wait()
    return (yield from act(f"inner got {who}"))


@workflow
def calling(_: None) -> Do[App, Broken, str]:
    yield from act("outer begins")
    answer = yield from inner.call(None)
    return (yield from act(f"outer: {answer}"))


async def test_a_workflow_that_is_called_waits_and_its_run_is_suspended(service: Service) -> None:
    handle = await lived(service, calling)
    await handle.send(approval, "ann")
    async with working(service, calling):
        assert await handle.result(timeout=10) == Success("outer: inner got ann")
    assert service.world.done == [
        "outer begins",
        "inner begins",
        "inner got ann",
        "outer: inner got ann",
    ]


def stepping(called: Any, **options: Any) -> Any:
    """Return a workflow of one step, which calls this workflow and yields with its attempt."""

    @step(**options)
    @do
    def around() -> Do[App, Any, tuple[int, str]]:
        answer = yield from called.call(None)
        yield from note("after")
        info = current_step()
        return info.attempt, answer

    @workflow(name="stepping")
    def made(_: None) -> Do[App, Any, tuple[int, str]]:
        return (yield from around())

    return made


@workflow
def napping(_: None) -> Do[App, Broken, str]:
    yield from sleep(0.3)
    return "rested"


@workflow
def parenting(_: None) -> Do[App, Any, str]:
    child = yield from spawn(napping, None)
    return (yield from child.result())


LIMITED: list[Any] = [{"retry": RetryPolicy.constant(0.01).with_max_retries(1)}, {"timeout": 9}]


@pytest.mark.parametrize("options", LIMITED, ids=["retry", "timeout"])
async def test_a_wait_inside_a_step_suspends_the_run_and_the_step_continues(
    service: Service, options: dict[str, Any]
) -> None:
    outer = stepping(inner, **options)
    handle = await lived(service, outer)
    await handle.send(approval, "ann")
    async with working(service, outer):
        # The attempt continues after the suspension.
        assert await handle.result(timeout=10) == Success((1, "inner got ann"))
    assert service.world.done == ["inner begins", "inner got ann", "after"]
    assert await suspensions(service) == 1


async def test_a_wait_for_a_message_inside_an_at_most_once_step_does_not_suspend_the_run(
    service: Service,
) -> None:
    outer = stepping(inner, at_most_once=True)
    async with working(service, outer) as worker:
        handle = await worker.client.submit(outer, None, run_id="r")
        await until_recorded(service, Waiting)
        # Longer than a run must rest before it is suspended.
        await anyio.sleep(0.1)
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success((1, "inner got ann"))
    assert await suspensions(service) == 0


@pytest.mark.parametrize("waiting", [napping, parenting], ids=["sleep", "result"])
async def test_a_wait_inside_an_at_most_once_step_does_not_suspend_the_run(
    service: Service, waiting: Any
) -> None:
    outer = stepping(waiting, at_most_once=True)
    async with working(service, outer, napping) as worker:
        handle = await worker.client.submit(outer, None, run_id="r")
        assert await handle.result(timeout=10) == Success((1, "rested"))
    assert await suspensions(service) == 0


@workflow
def acquiring(_: None) -> Do[App, Broken, str]:
    permitted = inner.call(None)
    return (yield from bracket(permitted, lambda _: act("return"), lambda who: act(f"use: {who}")))


@workflow
def releasing(_: None) -> Do[App, Broken, str]:
    closing = inner.call(None)
    return (yield from bracket(act("open"), lambda _: closing, lambda _: act("use")))


async def until_recorded(service: Service, kind: type[Entry]) -> None:
    """Wait until the journal of the run has such an entry."""
    with anyio.fail_after(10):
        while await find_run(service.store, "r") is None or not any(
            isinstance(entry, kind) for entry in await entries_of(service, "r")
        ):
            await anyio.sleep(0.003)


@pytest.mark.parametrize("outer", [acquiring, releasing])
@pytest.mark.parametrize("by_worker", [True, False], ids=["suspended", "stopped"])
async def test_a_wait_in_an_acquisition_or_a_release_can_be_stopped(
    service: Service, outer: Any, *, by_worker: bool
) -> None:
    if by_worker:
        await lived(service, outer)
        assert (await info_of(service, "r")).summary.details.waits_for == "signal approval"
    else:
        async with anyio.create_task_group() as tasks:
            app = App(service.checkpoints(), service.world)
            tasks.start_soon(outer.start(None, run_id="r").run, app)
            await until_recorded(service, Waiting)
            tasks.cancel_scope.cancel()
        await all_are(service, RunStatus.INTERRUPTED)
    async with working(service, outer) as worker:
        handle = worker.client.handle(outer, "r")
        await handle.send(approval, "ann")
        ended = await handle.result(timeout=10)
    if outer is acquiring:
        assert ended == Success("use: inner got ann")
        assert service.world.done == ["inner begins", "inner got ann", ended.unwrap(), "return"]
    else:
        assert ended == Success("use")
        assert service.world.done == ["open", "use", "inner begins", "inner got ann"]


# Crashes.


@workflow
def beside(_: None) -> Do[App, Broken, tuple[str, str]]:
    approved = approval.wait().within(App).tap(lambda who: act(f"approved by {who}"))
    return (yield from par(approved, act("beside")))


@pytest.mark.parametrize(
    "waiting",
    [beside, either, with_durable_resource, calling, acquiring, releasing],
    ids=["par", "race", "bracket", "call", "acquisition", "release"],
)
@EVERY
async def test_a_suspended_run_continues_as_if_its_service_had_never_been_killed(
    waiting: Any, every: int
) -> None:
    async def live(service: Service) -> object:
        async with working(service, waiting, grace=0) as worker:
            handle = await worker.client.submit(waiting, None, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.COMPLETED)
            with suppress(RunEnded):
                await handle.send(approval, "ann", idempotency_key="1")
            return await result_of(handle)

    await killed_everywhere(live, more_than=7, every=every)


# Retries.


@step(retry=RetryPolicy.constant(0.4).with_max_retries(2))
def unreliable() -> Effect[App, Broken, int]:
    return note("try")


@workflow
def retrying_step(_: None) -> Do[App, Broken, int]:
    return (yield from unreliable())


@step
def attempt() -> Effect[App, Broken, int]:
    return note("try")


@workflow
def retrying_effect(_: None) -> Do[App, Any, int]:
    return (yield from attempt().retry(RetryPolicy.constant(0.4).with_max_retries(2)))


async def test_the_back_off_of_a_step_suspends_the_run(service: Service) -> None:
    service.world.failing |= {"try#1", "try#2"}
    handle = await lived(service, retrying_step)
    waiting = await info_of(service, "r")
    assert waiting.summary.details.waits_for == "a retry"
    async with working(service, retrying_step):
        assert await handle.result(timeout=10) == Success(3)
    assert service.world.done == ["try"] * 3
    assert await suspensions(service) == 2


async def test_the_back_off_of_an_effect_suspends_the_run(service: Service) -> None:
    service.world.failing |= {"try#1", "try#2"}
    handle = await lived(service, retrying_effect)
    assert (await info_of(service, "r")).summary.details.waits_for == "a time"
    async with working(service, retrying_effect):
        assert await handle.result(timeout=10) == Success(3)
    assert service.world.done == ["try"] * 3
    assert await suspensions(service) == 2


@step
def step_around_a_retry() -> Effect[App, Broken, int]:
    return unreliable().tap(lambda _: note("after"))


@workflow
def retrying_within_a_step(_: None) -> Do[App, Broken, int]:
    return (yield from step_around_a_retry())


@workflow
def retrying_within_a_release(_: None) -> Do[App, Broken, str]:
    return (yield from bracket(act("open"), lambda _: unreliable(), lambda _: act("use")))


async def test_a_back_off_within_a_step_suspends_the_run_and_the_step_continues(
    service: Service,
) -> None:
    service.world.failing |= {"try#1"}
    async with working(service, retrying_within_a_step) as worker:
        handle = await worker.client.submit(retrying_within_a_step, None, run_id="r")
        assert await handle.result(timeout=10) == Success(2)
    assert service.world.done == ["try", "try", "after"]
    assert await suspensions(service) == 1


async def test_the_back_off_of_a_release_step_suspends_the_run(service: Service) -> None:
    service.world.failing |= {"try#1"}
    async with working(service, retrying_within_a_release) as worker:
        handle = await worker.client.submit(retrying_within_a_release, None, run_id="r")
        assert isinstance(await handle.result(timeout=10), Success)
    assert service.world.done == ["open", "use", "try", "try"]
    assert await suspensions(service) == 1


@workflow
def sleeping_within_a_release(_: None) -> Do[App, Broken, int]:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return (yield from bracket(pure(1), lambda _: sleep_until(tomorrow), pure))


async def test_a_sleep_until_a_moment_in_a_release_suspends_the_run(service: Service) -> None:
    await lived(service, sleeping_within_a_release)
    assert (await info_of(service, "r")).summary.details.waits_for == "a time"


async def suspensions(service: Service) -> int:
    return sum(isinstance(entry, Suspended) for entry in await entries_of(service, "r"))


# Items that are read while others wait.


async def slow_items() -> AsyncIterator[str]:
    yield "ann"
    await anyio.sleep(0.3)
    yield "bob"


def read_slowly(limit: int | None, *, seconds: float) -> Any:
    """Return a workflow that waits so long for its first item."""

    @workflow(name="read")
    def read(_: None) -> Do[App, Broken, list[str]]:
        def wait(name: str) -> Effect[App, Broken, str]:
            waited = sleep(seconds) if name == "ann" else from_fn(lambda _: None)
            return waited.within(App).and_then(lambda _: act(name))

        return (yield from par_traverse(slow_items(), wait, limit=limit))

    return read


@pytest.mark.parametrize("limit", [None, 3])
async def test_a_run_that_waits_for_the_next_item_is_not_suspended(
    service: Service, limit: int | None
) -> None:
    read = read_slowly(limit, seconds=0.15)
    async with working(service, read) as worker:
        handle = await worker.client.submit(read, None, run_id="r")
        assert await handle.result(timeout=10) == Success(["ann", "bob"])
    assert await suspensions(service) == 0


async def test_with_a_limit_of_1_a_run_is_suspended_while_its_only_item_waits(
    service: Service,
) -> None:
    """Nothing is read meanwhile."""
    await lived(service, read_slowly(1, seconds=86400))
    assert (await info_of(service, "r")).summary.details.waits_for == "a time"
