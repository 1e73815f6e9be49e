"""A cancelled run completes its finalizers and is then `cancelled`, also if it waits or works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    Signal,
    Workflow,
    bracket,
    current_step,
    par,
    race,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    DefinitionChanged,
    Lease,
    Message,
    RunCancelled,
    RunEnded,
    RunStatus,
    ServiceStore,
)
from effectflow.checkpoint.entries import CancelRequested, Finished
from effectflow.effects import from_async
from effectflow.stores import MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, World, both_backends, note
from tests.runs.journals import cut
from tests.service.conftest import Service
from tests.service.lives import (
    act,
    all_are,
    ending_of,
    entries_of,
    killed_everywhere,
    left_suspended,
    result_of,
    suspended,
    until,
    working,
)
from tests.sweeps import EVERY

pytestmark = [pytest.mark.anyio, both_backends]

approval: Signal[str] = Signal("approval", str)


@step
def slow(action: str, seconds: float) -> Effect[App, Broken, int]:
    return note(f"{action} begins").and_then(
        lambda _: from_async(lambda _: anyio.sleep(seconds)).and_then(
            lambda _: note(f"{action} ends")
        )
    )


def rented(use: Effect[App, Any, Any]) -> Effect[App, Any, Any]:
    return bracket(act("rent"), lambda _: act("return"), lambda _: use)


@workflow
def waiting(_: None) -> Do[App, Broken, str]:
    yield from act("begin")
    return (yield from rented(approval.wait()))


@workflow
def working_long(_: None) -> Do[App, Broken, int]:
    return (yield from rented(slow("work", 30)))


@workflow
def returning_long(_: None) -> Do[App, Broken, Any]:
    yield from bracket(act("rent"), lambda _: slow("return", 0.2), lambda _: note("use"))
    return (yield from act("after"))


@workflow
def quick(action: str) -> Do[App, Broken, int]:
    return (yield from note(action))


async def assert_cancelled(handle: Any) -> None:
    result = await handle.result(timeout=10)
    assert isinstance(result.failure(), RunCancelled), result
    assert await handle.status() is RunStatus.CANCELLED


async def until_done(service: Service, action: str) -> None:
    with anyio.fail_after(10):
        while action not in service.world.done:
            await anyio.sleep(0.003)


async def test_a_run_cancelled_while_suspended_releases_its_resource(service: Service) -> None:
    async with working(service, waiting) as worker:
        handle = await worker.client.submit(waiting, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        await assert_cancelled(handle)
    assert service.world.done == ["begin", "rent", "return"]
    assert (await ending_of(service))["r"]["mailbox"] == 0


async def test_a_run_is_cancelled_by_another_worker_than_the_one_that_suspended_it(
    service: Service,
) -> None:
    handle = await left_suspended(service, waiting)
    await handle.cancel()
    assert await handle.status() is RunStatus.SUSPENDED
    async with working(service, waiting):
        await assert_cancelled(handle)
    assert service.world.done == ["begin", "rent", "return"]


@workflow(name="waiting")
def waiting_with_a_new_step(_: None) -> Do[App, Broken, str]:
    yield from slow("new", 0)
    yield from act("begin")
    return (yield from rented(approval.wait()))


@workflow(name="waiting")
def waiting_without_a_room(_: None) -> Do[App, Broken, str]:
    yield from act("begin")
    return "over"


@pytest.mark.parametrize("changed", [waiting_with_a_new_step, waiting_without_a_room])
async def test_changed_code_does_not_end_a_cancelled_run_without_its_finalizers(
    service: Service, changed: Workflow[App, Any, None, str]
) -> None:
    handle = await left_suspended(service, waiting)
    await handle.cancel()
    entries = await entries_of(service, "r")
    for _ in range(2):
        result = await changed.resume("r").run(App(service.checkpoints(), service.world))
        assert isinstance(result.failure(), DefinitionChanged), result
        assert await entries_of(service, "r") == entries
        assert await handle.status() is RunStatus.SUSPENDED
    async with working(service, waiting):
        await assert_cancelled(handle)
    assert service.world.done == ["begin", "rent", "return"]


@pytest.mark.parametrize("changed", [waiting_with_a_new_step, waiting_without_a_room])
async def test_changed_code_does_not_end_a_run_whose_cancellation_has_begun(
    service: Service, changed: Workflow[App, Any, None, str]
) -> None:
    handle = await left_suspended(service, waiting)
    await handle.cancel()
    async with working(service, waiting):
        await assert_cancelled(handle)
    entries = await entries_of(service, "r")
    cancelled = next(at for at, entry in enumerate(entries) if isinstance(entry, CancelRequested))
    app = App(Checkpoints(await cut(service.store, cancelled + 1)), World())
    assert isinstance((await changed.resume("r").run(app)).failure(), DefinitionChanged)
    assert isinstance((await waiting.resume("r").run(app)).failure(), RunCancelled)
    assert app.world.done == ["return"]


async def test_a_step_in_progress_is_cancelled(service: Service) -> None:
    async with working(service, working_long) as worker:
        handle = await worker.client.submit(working_long, None, run_id="r")
        await until_done(service, "work begins")
        await handle.cancel()
        await assert_cancelled(handle)
    assert service.world.done == ["rent", "work begins", "return"]


async def test_a_finalizer_in_progress_ends_and_nothing_follows(service: Service) -> None:
    async with working(service, returning_long) as worker:
        handle = await worker.client.submit(returning_long, None, run_id="r")
        await until_done(service, "return begins")
        await handle.cancel()
        await assert_cancelled(handle)
    assert service.world.done == ["rent", "use", "return begins", "return ends"]


async def test_several_requests_cancel_a_run_once(service: Service) -> None:
    async with working(service, waiting) as worker:
        handle = await worker.client.submit(waiting, None, run_id="r")
        await suspended(service, "r")
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(handle.cancel)
        await assert_cancelled(handle)
        with pytest.raises(RunEnded, match="'r' is cancelled"):
            await handle.cancel()
    entries = await entries_of(service, "r")
    assert sum(isinstance(entry, CancelRequested) for entry in entries) == 1
    assert service.world.done.count("return") == 1


async def test_a_second_cancellation_during_the_finalizers_changes_nothing(
    service: Service,
) -> None:
    @workflow
    def renting(_: None) -> Do[App, Broken, Any]:
        return (
            yield from bracket(
                act("rent"), lambda _: slow("return", 0.2), lambda _: approval.wait()
            )
        )

    async with working(service, renting) as worker:
        handle = await worker.client.submit(renting, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        await until_done(service, "return begins")
        await handle.cancel()
        await assert_cancelled(handle)
    assert service.world.done == ["rent", "return begins", "return ends"]


async def test_a_pending_run_is_cancelled_without_beginning(service: Service) -> None:
    now = await service.client.submit(waiting, None)
    later = await service.client.submit(waiting, None, delay=3600)
    for handle in (now, now, later):
        await handle.cancel()
    async with working(service, waiting):
        await assert_cancelled(now)
        await assert_cancelled(later)
    assert service.world.done == []


async def test_a_failed_run_is_cancelled_without_being_retried(service: Service) -> None:
    service.world.failing.add("fail")
    async with working(service, quick) as worker:
        handle = await worker.client.submit(quick, "fail", run_id="r")
        await handle.result(timeout=10)
        service.world.recover()
        await handle.cancel()
        await until(service, "r", RunStatus.CANCELLED)
        await assert_cancelled(handle)
    # A submission of the same id does not revive it.
    again = await service.client.submit(quick, "fail", run_id="r")
    assert await again.status() is RunStatus.CANCELLED


async def test_an_ended_run_cannot_be_cancelled(service: Service) -> None:
    async with working(service, quick) as worker:
        handle = await worker.client.submit(quick, "a", run_id="r")
        await handle.result(timeout=10)
        with pytest.raises(RunEnded, match="'r' is completed"):
            await handle.cancel()
    assert await handle.result() == Success(1)


# Of a cancellation and the end, the first wins.


class AtTheEnd(ForwardingStore):
    """A store in which something happens just before a status of a run is saved for the first time."""

    def __init__(
        self,
        store: ServiceStore,
        happen: Callable[[], Awaitable[object]],
        status: RunStatus = RunStatus.COMPLETED,
    ) -> None:
        super().__init__(store)
        self.happen, self.status = happen, status
        self.has_happened = False

    async def append(self, lease: Lease, batch: Batch) -> None:
        is_wanted = batch.summary is not None and batch.summary.status is self.status
        if is_wanted and not self.has_happened:
            self.has_happened = True
            await self.happen()
        await super().append(lease, batch)


async def test_a_cancellation_that_comes_after_the_end_was_decided_changes_nothing() -> None:
    store = MemoryStore()
    canceller = Service(store).client.handle(quick, "r")
    service = Service(AtTheEnd(store, canceller.cancel))
    async with working(service, quick) as worker:
        handle = await worker.client.submit(quick, "a", run_id="r")
        assert await handle.result(timeout=10) == Success(1)
    assert await store.mailbox("r") == []


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.PAUSED])
async def test_a_cancellation_that_comes_just_before_a_run_fails_or_is_paused_ends_it(
    status: RunStatus,
) -> None:
    store = MemoryStore()
    canceller = Service(store).client.handle(working_long, "r")
    world = World(failing={"rent"} if status is RunStatus.FAILED else set())
    service = Service(AtTheEnd(store, canceller.cancel, status), world)
    async with working(service, working_long) as worker:
        handle = await worker.client.submit(working_long, None, run_id="r", delay=0.1)
        if status is RunStatus.PAUSED:
            await handle.pause()
        await until(service, "r", RunStatus.CANCELLED)


async def test_what_completes_after_the_cancellation_was_recorded_is_cancelled(
    service: Service,
) -> None:
    """The body catches nothing: a value that comes after the decision is discarded."""
    async with working(service, returning_long) as worker:
        handle = await worker.client.submit(returning_long, None, run_id="r")
        await until_done(service, "return begins")
        await handle.cancel()
        await assert_cancelled(handle)
    kinds = [type(entry) for entry in await entries_of(service, "r")]
    assert kinds.index(CancelRequested) < kinds.index(Finished)


class SlowToRead(ForwardingStore):
    """Its reads of a mailbox take longer than a wait lasts, and no cancellation cuts them off."""

    async def mailbox(self, run_id: str, *, after: int = 0) -> list[Message]:
        messages = await super().mailbox(run_id, after=after)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
        return messages


async def test_a_wait_that_has_timed_out_may_be_the_first_to_read_the_request() -> None:
    """Its own cancellation does not stop the run."""
    service = Service(SlowToRead(MemoryStore()))
    has_begun = anyio.Event()

    async def ask(_: App) -> None:
        if current_step().attempt == 1:
            has_begun.set()
            await anyio.sleep_forever()
        await service.client.handle(impatient, "r").cancel()

    @step
    def asked() -> Effect[App, Broken, None]:
        return from_async(ask)

    @workflow
    def impatient(_: None) -> Do[App, Any, str]:
        yield from asked()
        return (yield from rented(approval.wait().timeout(0.05)))

    app = App(service.client.checkpoints, service.world)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(impatient.start(None, run_id="r").run, app)
        await has_begun.wait()
        tasks.cancel_scope.cancel()

    ended = await impatient.resume("r").run(app)

    assert isinstance(ended.failure(), RunCancelled), ended
    assert service.world.done == ["rent", "return"]


# In every flow.


@workflow
def in_branches(_: None) -> Do[App, Broken, Any]:
    one = bracket(act("rent 1"), lambda _: act("return 1"), lambda _: approval.wait())
    two = bracket(act("rent 2"), lambda _: act("return 2"), lambda _: sleep(3600))
    three = bracket(act("rent 3"), lambda _: act("return 3"), lambda _: sleep(7200))
    return (yield from par(one, race(two, three)))


@workflow
def called(_: None) -> Do[App, Broken, Any]:
    yield from act("called begins")
    return (yield from rented(approval.wait()))


@workflow
def around(_: None) -> Do[App, Broken, Any]:
    return (yield from bracket(act("open"), lambda _: act("close"), lambda _: called.call(None)))


async def test_every_branch_of_a_cancelled_run_releases_its_resource(service: Service) -> None:
    async with working(service, in_branches) as worker:
        handle = await worker.client.submit(in_branches, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        await assert_cancelled(handle)
    assert sorted(service.world.done[3:]) == ["return 1", "return 2", "return 3"]


async def test_a_workflow_that_is_called_is_cancelled_with_its_run(service: Service) -> None:
    async with working(service, around) as worker:
        handle = await worker.client.submit(around, None, run_id="r")
        await suspended(service, "r")
        await handle.cancel()
        await assert_cancelled(handle)
    assert service.world.done == ["open", "called begins", "rent", "return", "close"]


@EVERY
@pytest.mark.parametrize("cancelled", [waiting, in_branches, around], ids=["wait", "par", "called"])
async def test_a_cancelled_run_is_killed_at_any_write(cancelled: Any, every: int) -> None:
    async def live(service: Service) -> object:
        async with working(service, cancelled, grace=0) as worker:
            handle = await worker.client.submit(cancelled, None, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.CANCELLED)
            with suppress(RunEnded):
                await handle.cancel()
            return await result_of(handle)

    await killed_everywhere(live, more_than=10, every=every)


async def test_a_cancellation_while_the_worker_stops_is_kept_for_the_next(
    service: Service,
) -> None:
    async with working(service, working_long, grace=0.3) as worker:
        handle = await worker.client.submit(working_long, None, run_id="r")
        await until_done(service, "work begins")
    await handle.cancel()
    assert await handle.status() is RunStatus.INTERRUPTED
    async with working(service, working_long):
        await assert_cancelled(handle)
    assert service.world.done == ["rent", "work begins", "return"]


# When the service dies.

permission: Signal[str] = Signal("permission", str)


def held(use: Effect[App, Broken, str]) -> Effect[App, Broken, str]:
    return bracket(act("acquire"), lambda _: act("release"), lambda _: use)


@workflow
def holding(_: None) -> Do[App, Broken, str]:
    return (yield from held(permission.wait()))


@workflow
def around_called(_: None) -> Do[App, Broken, str]:
    return (yield from holding.call(None))


@workflow
def around_twice_called(_: None) -> Do[App, Broken, str]:
    return (yield from held(around_called.call(None)))


@workflow
def around_spawned(_: None) -> Do[App, Any, str]:
    child = yield from spawn(holding, None)
    return (yield from held(child.result()))


JOURNEYS = [holding, around_called, around_twice_called, around_spawned]


@EVERY
@pytest.mark.parametrize("made", JOURNEYS, ids=lambda made: made.name)
async def test_a_killed_service_completes_the_finalizers_of_cancelled_runs(
    made: Workflow[App, Any, None, str], every: int
) -> None:
    async def live(service: Service) -> object:
        async with working(service, *JOURNEYS) as worker:
            handle = await worker.client.submit(made, None, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.CANCELLED)
            if not (await handle.status()).has_ended:
                await handle.cancel()
            result = await result_of(handle)
            await all_are(service, RunStatus.CANCELLED)
            return result

    await killed_everywhere(live, more_than=10, every=every)


@workflow
def failing_with_a_room(_: None) -> Do[App, Broken, Any]:
    return (yield from rented(act("break")))


async def test_a_failed_run_whose_failure_stands_is_cancelled(service: Service) -> None:
    service.world.failing.add("break")
    async with working(service, failing_with_a_room) as worker:
        handle = await worker.client.submit(failing_with_a_room, None, run_id="r")
        await until(service, "r", RunStatus.FAILED)
        done = [*service.world.done]
        await handle.cancel()
        await until(service, "r", RunStatus.CANCELLED)
    assert service.world.done == done
