"""A paused run begins nothing more until someone lets it continue; requests reach any run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Client,
    Do,
    Effect,
    Signal,
    Worker,
    bracket,
    par,
    race,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CancelRequested,
    ChangeRejected,
    Checkpoints,
    Interrupted,
    Paused,
    Resumed,
    RunCancelled,
    RunEnded,
    RunNotFound,
    RunPaused,
    RunStatus,
    export_run,
    import_run,
)
from effectflow.effects import from_async
from effectflow.service import App as Application
from effectflow.service.sending import request_cancel
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, World, both_backends, note
from tests.service.conftest import Service
from tests.service.lives import act, entries_of, info_of, left_suspended, suspended, until, working

pytestmark = pytest.mark.anyio

go = Signal("go", bool)


class Gate:
    """What a step of a test waits for."""

    def __init__(self) -> None:
        self.began, self.opened = anyio.Event(), anyio.Event()


gates: dict[str, Gate] = {}


@step
def slow(name: str) -> Effect[App, Any, str]:
    """Wait for the gate of this name."""

    async def wait(_: object) -> str:
        gates[name].began.set()
        await gates[name].opened.wait()
        return name

    return note(name).and_then(lambda _: from_async(wait))


@workflow
def working_on() -> Do[App, Any, str]:
    yield from par(slow("one"), act("other"))
    return (yield from act("last"))


@workflow
def asking() -> Do[App, Any, bool]:
    yield from act("ask")
    return (yield from go.wait())


@workflow
def renting() -> Do[App, Any, str]:
    rented = bracket(act("rent"), lambda _: act("return"), lambda _: slow("one"))
    return (yield from rented)


@pytest.fixture(autouse=True)
def new_gates() -> None:
    gates.clear()
    gates["one"] = Gate()


@both_backends
async def test_a_run_that_a_worker_drives_ends_its_steps_and_begins_no_more(
    service: Service,
) -> None:
    async with working(service, working_on) as worker:
        handle = await Client(service.checkpoints(), by="ann").submit(working_on, run_id="r")
        await gates["one"].began.wait()
        await handle.pause()
        # The request arrives while the step is in progress.
        await anyio.sleep(0.1)
        assert await handle.status() is RunStatus.RUNNING
        gates["one"].opened.set()
        await until(service, "r", RunStatus.PAUSED)
        await worker.idle()
        assert sorted(service.world.done) == ["one", "other"]
        assert await handle.status() is RunStatus.PAUSED

        await handle.unpause()
        assert await handle.result(timeout=10) == Success("last")
    assert sorted(service.world.done) == ["last", "one", "other"]
    entries = await entries_of(service, "r")
    assert [one.by for one in entries if isinstance(one, Paused)] == ["ann"]
    assert "ann" in [one.by for one in entries if isinstance(one, Resumed)]
    assert not any(isinstance(one, Interrupted) and one.in_progress for one in entries)


async def test_a_run_that_is_driven_without_a_worker_ends_with_run_paused(
    service: Service,
) -> None:
    app, ended = App(service.checkpoints(), service.world), list[Any]()

    async def drive() -> None:
        ended.append(await working_on.start(run_id="r").run(app))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drive)
        await gates["one"].began.wait()
        await Client(service.checkpoints(), by="ann").handle(working_on, "r").pause()
        await anyio.sleep(1.5)
        gates["one"].opened.set()
    [paused] = ended
    assert isinstance(paused.failure(), RunPaused)
    assert paused.failure().by == "ann"
    assert (await info_of(service, "r")).summary.status is RunStatus.PAUSED
    assert await working_on.resume("r").run(app) == Success("last")
    assert sorted(service.world.done) == ["last", "one", "other"]


@both_backends
async def test_cancel_reaches_a_run_that_is_driven_without_a_worker(service: Service) -> None:
    app, ended = App(service.checkpoints(), service.world), list[Any]()

    async def drive() -> None:
        ended.append(await renting.start(run_id="r").run(app))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drive)
            await gates["one"].began.wait()
            await Client(service.checkpoints(), by="ann").handle(renting, "r").cancel()
    [cancelled] = ended
    assert isinstance(cancelled.failure(), RunCancelled)
    assert service.world.done == ["rent", "one", "return"]
    [request] = [one for one in await entries_of(service, "r") if isinstance(one, CancelRequested)]
    assert request.by == "ann"


async def test_messages_reach_a_paused_run_when_it_continues(service: Service) -> None:
    async with working(service, asking) as worker:
        handle = await worker.client.submit(asking, run_id="r")
        await suspended(service, "r")
        await handle.pause()
        await handle.send(go, True)
        await worker.idle()
        assert await handle.status() is RunStatus.PAUSED
        await handle.unpause()
        assert await handle.result(timeout=10) == Success(True)


async def test_a_paused_run_can_be_cancelled(service: Service) -> None:
    async with working(service, asking) as worker:
        handle = await worker.client.submit(asking, run_id="r")
        await suspended(service, "r")
        await handle.pause()
        await handle.cancel()
        result = await handle.result(timeout=10)
    assert isinstance(result, Failure)
    assert isinstance(result.failure(), RunCancelled)


async def test_a_run_that_is_paused_after_a_request_to_cancel_it_ends(service: Service) -> None:
    handle = await left_suspended(service, asking)
    await handle.cancel()
    await handle.pause()
    assert await handle.status() is RunStatus.PAUSED
    async with working(service, asking):
        assert isinstance((await handle.result(timeout=10)).failure(), RunCancelled)


async def test_a_request_that_a_failed_run_has_not_carried_out_does_not_pause_its_next_life(
    service: Service,
) -> None:
    @step
    def declined() -> Effect[App, Any, int]:
        return slow("one").and_then(lambda _: note("declined"))

    @workflow
    def paying() -> Do[App, Any, int]:
        return (yield from declined())

    service.world.failing.add("declined")
    async with working(service, paying) as worker:
        handle = await worker.client.submit(paying, run_id="r")
        await gates["one"].began.wait()
        await handle.pause()
        gates["one"].opened.set()
        await until(service, "r", RunStatus.FAILED)
        service.world.recover()
        await handle.retry()
        assert await handle.result(timeout=10) == Success(2)


async def test_a_pending_run_keeps_its_delay_while_it_is_paused(service: Service) -> None:
    clock = TestClock()
    async with working(service, asking, clock=clock) as worker:
        handle = await worker.client.submit(asking, run_id="r", delay=timedelta(hours=1))
        await handle.pause()
        await clock.advance(7200)
        await worker.idle()
        assert await handle.status() is RunStatus.PAUSED
        assert service.world.done == []
        await handle.unpause()
        await suspended(service, "r")


async def test_a_pause_that_comes_before_the_delay_is_over_does_not_shorten_it(
    service: Service,
) -> None:
    clock = TestClock()
    async with working(service, asking, clock=clock) as worker:
        handle = await worker.client.submit(asking, run_id="r", delay=timedelta(hours=1))
        await handle.pause()
        await handle.unpause()
        await worker.idle()
        assert service.world.done == []
        await clock.advance(3601)
        await suspended(service, "r")


async def test_only_a_run_that_may_continue_is_paused(service: Service) -> None:
    @workflow
    def broken() -> Do[App, Broken, str]:
        return (yield from act("break"))

    world = World(failing={"break"})
    app = App(service.checkpoints(), world)
    await broken.start(run_id="r").run(app)
    handle = service.client.handle(broken, "r")
    with pytest.raises(ChangeRejected, match="it is failed already"):
        await handle.pause()
    with pytest.raises(ChangeRejected, match="it is failed, not paused"):
        await handle.unpause()
    world.recover()
    await broken.resume("r").run(app)
    with pytest.raises(RunEnded):
        await handle.pause()
    with pytest.raises(RunNotFound):
        await service.client.handle(broken, "no").pause()


async def test_a_result_that_is_awaited_in_vain_says_what_is_paused(service: Service) -> None:
    @workflow
    def write(_: None) -> Do[App, Broken, int]:
        return (yield from note("a"))

    handle = await service.client.submit(write, run_id="r", queue="q")
    await service.client.pause(queue="q")
    with pytest.raises(TimeoutError, match=r"queue 'q' is paused by .*client.unpause\(queue='q'\)"):
        await handle.result(timeout=0)
    await handle.pause()
    with pytest.raises(TimeoutError, match=r"It is paused: after `handle.unpause\(\)`"):
        await handle.result(timeout=0)
    await service.client.unpause(queue="q")
    await handle.unpause()
    with pytest.raises(
        TimeoutError, match="It is due, but no worker with workflow 'write' is known"
    ):
        await handle.result(timeout=0)


async def test_a_run_is_paused_once(service: Service) -> None:
    handle = await service.client.submit(asking, run_id="r")
    await handle.pause()
    before = await entries_of(service, "r")
    with pytest.raises(ChangeRejected, match="paused already"):
        await handle.pause()
    with pytest.raises(ChangeRejected, match="Unpause it"):
        await handle.retry()
    assert await entries_of(service, "r") == before


async def test_a_retry_of_an_imported_run_says_that_no_worker_continues_it(
    service: Service,
) -> None:
    await service.client.submit(asking, run_id="r")
    copy = MemoryStore()
    await import_run(copy, await export_run(service.store, "r"))
    with pytest.raises(ChangeRejected, match="no worker continues it before someone resumes it"):
        await Client(Checkpoints(copy)).handle(asking, "r").retry()


async def test_a_run_that_lasts_long_listens_only_while_it_lasts(service: Service) -> None:
    app = App(Checkpoints(service.store), service.world)

    @workflow
    def long() -> Do[App, Any, None]:
        yield from sleep(2)
        yield from act("end")

    assert await long.start(run_id="r").run(app) == Success(None)
    with pytest.raises(RunEnded):
        await service.client.handle(long, "r").cancel()


async def test_every_step_in_progress_ends_before_a_run_is_paused(service: Service) -> None:
    gates["two"] = Gate()

    @workflow
    def both() -> Do[App, Any, str]:
        yield from par(slow("one"), slow("two"))
        return (yield from act("last"))

    app, ended = App(service.checkpoints(), service.world), list[Any]()

    async def drive() -> None:
        ended.append(await both.start(run_id="r").run(app))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drive)
        await gates["two"].began.wait()
        await service.client.handle(both, "r").pause()
        await anyio.sleep(1.5)
        gates["one"].opened.set()
        await anyio.wait_all_tasks_blocked()
        assert ended == []
        gates["two"].opened.set()
    assert isinstance(ended[0].failure(), RunPaused)
    assert await both.resume("r").run(app) == Success("last")
    assert sorted(service.world.done) == ["last", "one", "two"]


@both_backends
async def test_a_run_that_waits_for_a_time_hears_everything_after_a_pause(
    service: Service,
) -> None:
    @workflow
    def racing() -> Do[App, Any, Any]:
        return (yield from race([go.wait(), sleep(3600)]))

    async with working(service, racing) as worker:
        for run_id, moment in (("before", 0), ("after", 1)):
            handle = await worker.client.submit(racing, run_id=run_id)
            await suspended(service, run_id)
            await handle.pause()
            if moment == 0:
                await handle.send(go, True)
            await handle.unpause()
            if moment == 1:
                await handle.send(go, True)
            assert await handle.result(timeout=10) == Success(True)


async def test_a_request_without_the_keys_wakes_no_paused_or_failed_run(service: Service) -> None:
    key = b"0123456789abcdef"

    @workflow
    def broken() -> Do[App, Broken, str]:
        return (yield from act("break"))

    world = World(failing={"break"})
    app = App(service.checkpoints(key=key), world)
    signed = Application([asking, broken], environment=lambda _: app, checkpoints=app.checkpoints)
    async with Worker(signed, suspend_after=0.0) as worker:
        paused = await worker.client.submit(asking, run_id="paused")
        await suspended(service, "paused")
        await paused.pause()
        failed = await worker.client.submit(broken, run_id="failed")
        await until(service, "failed", RunStatus.FAILED)
        for handle in (paused, failed):
            await request_cancel(service.checkpoints(), handle.run_id, by="a stranger")
        await worker.idle()
        assert await paused.status() is RunStatus.PAUSED
        assert await failed.status() is RunStatus.FAILED
        assert world.done == ["ask", "break"]
        for handle in (paused, failed):
            await handle.cancel()
            await until(service, handle.run_id, RunStatus.CANCELLED)


async def test_a_paused_run_whose_step_is_settled_stays_paused(service: Service) -> None:
    app = App(service.checkpoints(), service.world)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(working_on.start(run_id="r").run, app)
        await gates["one"].began.wait()
        tasks.cancel_scope.cancel()
    handle = service.client.handle(working_on, "r")
    await handle.pause()
    assert await working_on.complete_step("r", "par[0]/slow", "by hand").run(app) == Success(None)
    assert await handle.status() is RunStatus.PAUSED
    async with working(service, working_on):
        await handle.unpause()
        assert await handle.result(timeout=10) == Success("last")
