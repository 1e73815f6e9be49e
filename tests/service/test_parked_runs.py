"""Runs that end their process, or do not fit it: parked, left for others, or kept as they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    Signal,
    Workflow,
    bracket,
    effect,
    from_blocking,
    par,
    pure,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointError,
    CorruptCheckpoint,
    NotSerializable,
    Record,
    RunInfo,
    RunNotFound,
    RunQuery,
    RunStatus,
)
from effectflow.checkpoint.entries import Finished, Resumed
from effectflow.effects import from_async
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, TestClock, after
from effectflow.testing.faulty_store import CrashPoint
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, World, both_backends, note
from tests.service.conftest import Service
from tests.service.lives import act, entries_of, info_of, suspended, until, working

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)


@workflow
def deadly(_: None) -> Do[App, Broken, str]:
    yield from act("safe")
    return (yield from act("deadly"))


async def die(
    store: MemoryStore,
    world: World,
    point: CrashPoint,
    *,
    times: int,
    made: Workflow[App, Broken, None, Any] = deadly,
) -> None:
    """Let as many processes die with the run, each at the same point."""
    for _ in range(times):
        faulty = FaultyStore(store, [point])
        service = Service(faulty, world)
        with faulty.life():
            async with working(service, made, max_crashes=3, grace=0):
                await anyio.sleep(60)
        assert faulty.met


async def test_a_run_that_ends_its_process_again_and_again_is_parked_with_the_reason() -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    handle = await service.client.submit(deadly, None, run_id="r")
    # The first of them gets further: it completes the safe step, and dies in the next one.
    await die(store, world, CrashPoint(after("act#2"), is_durable=False), times=3)
    assert world.done.count("deadly") == 3
    async with working(service, deadly, max_crashes=3):
        info = await until(service, "r", RunStatus.FAILED)
        assert info.summary.due_at is None
        error = (await handle.result(timeout=10)).failure()
        assert "3 processes in a row ended while they drove run 'r'" in str(error)
        assert "none of them got further than step 'act#2'" in str(error)
        done = list(world.done)
        await anyio.sleep(0.1)
    assert world.done == done
    assert world.done.count("safe") == 1


async def test_a_parked_run_continues_when_someone_resumes_it() -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    await service.client.submit(deadly, None, run_id="r")
    await die(store, world, CrashPoint(after("act#2"), is_durable=False), times=3)
    async with working(service, deadly, max_crashes=3):
        await until(service, "r", RunStatus.FAILED)
    result = await deadly.resume("r").run(App(service.checkpoints(), world))
    assert result == Success("deadly")


async def test_progress_resets_the_count_of_crashes() -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    handle = await service.client.submit(deadly, None, run_id="r")
    await die(store, world, CrashPoint(after("act"), is_durable=False), times=2)
    await die(store, world, CrashPoint(after("act"), is_durable=True), times=1)
    await die(store, world, CrashPoint(after("act#2"), is_durable=False), times=1)
    async with working(service, deadly, max_crashes=3):
        assert await handle.result(timeout=10) == Success("deadly")
    resumed = [entry for entry in await entries_of(service, "r") if isinstance(entry, Resumed)]
    assert len(resumed) == 5


@step
def take_time(name: str) -> Effect[App, Broken, str]:
    """Take longer than any process lives in which something crashes."""

    async def act_slowly(app: App) -> str:
        await anyio.sleep(0.03)
        app.world.note(name)
        return name

    return from_async(act_slowly)


@workflow
def healthy(name: str) -> Do[App, Broken, str]:
    return (yield from take_time(name))


async def test_a_run_that_kills_its_process_leaves_those_beside_it_healthy() -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    names = ["a", "b", "c"]
    await service.client.submit(deadly, None, run_id="deadly")
    handles = [await service.client.submit(healthy, name) for name in names]
    deaths = 0
    while True:
        faulty = FaultyStore(store, [CrashPoint(after("act#2"), is_durable=False)])
        with faulty.life():
            async with working(Service(faulty, world), deadly, healthy, max_crashes=4, grace=0):
                with anyio.fail_after(10):
                    for handle in handles:
                        assert (await handle.result()).unwrap() in names
                    await until(service, "deadly", RunStatus.FAILED)
        if not faulty.met:
            break
        deaths += 1
    # Two side by side, and the rest alone.
    assert deaths == 4


async def test_a_run_that_fails_for_its_crashes_is_logged_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    await service.client.submit(deadly, None, run_id="r")
    await die(store, world, CrashPoint(after("act#2"), is_durable=False), times=3)
    caplog.clear()
    async with working(service, deadly, max_crashes=3):
        await until(service, "r", RunStatus.FAILED)
    [warning] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warning.startswith("run 'r' has failed: 3 processes in a row ended")


async def test_a_start_that_ends_with_a_checkpoint_error_leaves_a_blocked_run(
    service: Service,
) -> None:
    @workflow
    def mistyped(_: None) -> Do[App, Broken, int]:
        return (yield from act("begin"))  # type: ignore[return-value]  # that is the point

    app = App(service.checkpoints(), service.world)
    refused = (await mistyped.start(None, run_id="r").run(app)).failure()
    assert isinstance(refused, NotSerializable)
    info = await info_of(service, "r")
    assert info.summary.status is RunStatus.BLOCKED
    assert info.summary.details.blocked == str(refused)
    assert await service.store.find(RunQuery(statuses=frozenset({RunStatus.BLOCKED}))) == [info]


async def test_a_run_whose_value_cannot_be_saved_fails_and_its_step_is_not_repeated(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effectflow.runs.claim._SECONDS_BLOCKED", 0.01)

    @step
    def unsavable() -> Effect[App, Broken, Any]:
        return note("charge").map(lambda _: object())

    @workflow
    def made(_: None) -> Do[App, Broken, Any]:
        return (yield from unsavable())

    async with working(service, made) as worker:
        handle = await worker.client.submit(made, None, run_id="r")
        assert isinstance((await handle.result(timeout=10)).failure(), NotSerializable)
        await anyio.sleep(0.1)
        await worker.idle()
        assert await handle.status() is RunStatus.FAILED
    assert service.world.done == ["charge"]


async def test_a_run_that_is_driven_alone_lets_others_in_once_it_gets_further() -> None:
    store, world = MemoryStore(), World()
    service = Service(store, world)
    after_act = CrashPoint(after("act"), is_durable=False)

    @workflow
    def long(_: None) -> Do[App, Broken, None]:
        yield from act("begin")
        yield from sleep(30)

    suspect = await service.client.submit(long, None, run_id="r")
    await die(store, world, after_act, times=2, made=long)
    async with working(service, long, healthy, max_crashes=3, suspend_after=60):
        other = await service.client.submit(healthy, "a")
        assert await other.result(timeout=10) == Success("a")
        # It still waits in memory, beside others.
        assert await suspect.status() is RunStatus.RUNNING


async def test_a_run_that_is_driven_alone_lets_others_in_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("effectflow.runs.driven_runs._SECONDS_ALONE", 0.05)
    store, world = MemoryStore(), World()
    service = Service(store, world)
    patience = 0.01

    @step
    @effect
    async def wait_for_another(_: App) -> str:
        other = await service.client.submit(healthy, "a", run_id="other")
        return (await other.result(timeout=patience)).unwrap()

    @workflow
    def asking(_: None) -> Do[App, Broken, str]:
        yield from act("begin")
        return (yield from wait_for_another())

    handle = await service.client.submit(asking, None, run_id="r")
    await die(store, world, CrashPoint(after("act"), is_durable=False), times=1, made=asking)
    point = CrashPoint(after("wait_for_another"), is_durable=False)
    await die(store, world, point, times=2, made=asking)
    patience = 10
    async with working(service, asking, healthy, max_crashes=5):
        assert await handle.result(timeout=10) == Success("a")
    assert "run 'r' did not get further in 0.05 s alone" in caplog.text


# Programs that differ.


def version_of(*actions: str) -> Workflow[App, Broken, None, str]:
    @workflow(name="changing")
    def changing(_: None) -> Do[App, Broken, str]:
        for action in actions:
            yield from act(action)
        return (yield from approval.wait())

    return changing


@workflow(name="changing")
def with_another_step(_: None) -> Do[App, Broken, str]:
    yield from note_other()
    return (yield from approval.wait())


def note_other() -> Any:
    return note("other").checkpointed("other")


async def test_a_run_that_does_not_fit_is_left_for_another_build_and_shown_as_blocked(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = version_of("begin"), with_another_step
    async with working(service, old) as worker:
        handle = await worker.client.submit(old, None, run_id="r")
        before_that = await suspended(service, "r")
    await handle.send(approval, "ann")
    async with working(service, new):
        info = await blocked(service)
        assert "has changed since run 'r' was started" in info.summary.details.blocked
        assert await handle.status() is RunStatus.BLOCKED
        with pytest.raises(TimeoutError, match="blocked: workflow 'changing' has changed"):
            await handle.result(timeout=0)
        assert "run 'r' is blocked: workflow 'changing' has changed" in caplog.text
        assert "run 'r', whose result is awaited, is blocked: workflow" in caplog.text
        await anyio.sleep(0.1)
        # It is not tried again and again.
        assert (await info_of(service, "r")).length == before_that.length
    clock = TestClock()
    async with working(service, old, clock=clock):
        assert await handle.result(timeout=10) == Success("ann")
    assert (await info_of(service, "r")).summary.details.blocked == ""
    assert service.world.done == ["begin"]


async def blocked(service: Service) -> RunInfo:
    with anyio.fail_after(10):
        while True:
            info = await info_of(service, "r")
            if info.summary.details.blocked and info.lease is None:
                return info
            await anyio.sleep(0.003)


async def test_lives_that_the_run_does_not_fit_do_not_count_as_crashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectflow.runs.claim._SECONDS_BLOCKED", 0.01)
    store, world = MemoryStore(), World()
    service = Service(store, world)
    old, tried = version_of("begin"), 0

    @workflow(name="changing")
    def new(_: None) -> Do[App, Broken, str]:
        nonlocal tried
        tried += 1
        yield from note_other()
        return (yield from approval.wait())

    async with working(service, old) as worker:
        handle = await worker.client.submit(old, None, run_id="r")
        await suspended(service, "r")
    await handle.send(approval, "ann")
    await die(store, world, CrashPoint(1, is_durable=False), times=1, made=old)
    async with working(service, new, max_crashes=3):
        with anyio.fail_after(10):
            while tried < 5:
                await anyio.sleep(0.003)
        await blocked(service)
    await die(store, world, CrashPoint(1, is_durable=False), times=1, made=old)
    async with working(service, old, max_crashes=3):
        assert await handle.result(timeout=10) == Success("ann")
    assert world.done == ["begin"]


async def test_a_failed_run_stays_failed_until_it_is_resumed(service: Service) -> None:
    service.world.failing.add("fail")

    @workflow
    def failing(_: None) -> Do[App, Broken, int]:
        return (yield from note("fail"))

    async with working(service, failing) as worker:
        handle = await worker.client.submit(failing, None, run_id="r")
        assert isinstance((await handle.result(timeout=10)).failure(), Broken)
        service.world.recover()
        # A message is kept for a retry, and does not begin one.
        await handle.send(approval, "ann")
        await worker.client.submit(failing, None, run_id="r")
        await anyio.sleep(0.1)
        assert await handle.status() is RunStatus.FAILED
    async with working(service, failing):
        await anyio.sleep(0.1)
    finished = [entry for entry in await entries_of(service, "r") if isinstance(entry, Finished)]
    assert len(finished) == 1
    assert service.world.done == ["fail"]


async def test_a_run_whose_body_fails_with_a_checkpoint_error_has_failed_and_is_not_blocked(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def read_other(run_id: str) -> Effect[App, Broken | CheckpointError, str]:
        return deadly.result(run_id)

    @workflow
    def asking(run_id: str) -> Do[App, Broken | CheckpointError, str]:
        return (yield from read_other(run_id))

    async with working(service, asking) as worker:
        handle = await worker.client.submit(asking, "unknown", run_id="r")
        assert isinstance((await handle.result(timeout=10)).failure(), RunNotFound)
        info = await info_of(service, "r")
    assert (info.summary.status, info.summary.details.blocked) == (RunStatus.FAILED, "")
    assert info.summary.due_at is None
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("run 'r' has failed: RunNotFound")


class Unreadable(ForwardingStore):
    """A store that cannot read the run `r`."""

    def __init__(self, store: MemoryStore, error: BaseException) -> None:
        super().__init__(store)
        self.error, self.reads = error, 0

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        if run_id == "r":
            self.reads += 1
            raise self.error
        return await super().read(run_id, after=after)


@pytest.mark.parametrize(
    "error",
    [
        CorruptCheckpoint("r", "its entry 3 has no beginning"),
        PermissionError(13, "Permission denied"),
        MemoryError(),
        KeyError("a step"),
        AssertionError(),
        SystemExit(3),
    ],
    ids=repr,
)
async def test_a_run_that_cannot_be_read_is_one_blocked_run(error: BaseException) -> None:
    store = Unreadable(MemoryStore(), error)
    service = Service(store)
    await service.client.submit(deadly, None, run_id="r")
    async with working(service, deadly) as worker:
        others = [await worker.client.submit(deadly, None) for _ in range(3)]
        for other in others:
            assert await other.result(timeout=10) == Success("deadly")
        info = await blocked(service)
        await worker.idle()
    assert info.summary.status is RunStatus.BLOCKED
    assert type(error).__name__ in info.summary.details.blocked or str(error) == (
        info.summary.details.blocked
    )
    assert store.reads == 1


@both_backends
async def test_a_run_whose_code_between_steps_fails_in_a_replay_is_blocked_and_does_not_grow(
    service: Service,
) -> None:
    lives = 0

    async def gone(_: object) -> None:
        nonlocal lives
        lives += 1
        if lives > 1:
            raise KeyError("gone")

    @workflow
    def made(_: None) -> Do[App, Broken, str]:
        yield from from_async(gone)
        yield from act("begin")
        return (yield from approval.wait())

    async with working(service, made) as worker:
        handle = await worker.client.submit(made, None, run_id="r")
        before = await suspended(service, "r")
        await handle.send(approval, "ann")
        info = await blocked(service)
        await worker.idle()
        assert await handle.status() is RunStatus.BLOCKED
    assert "KeyError" in info.summary.details.blocked
    assert (lives, info.length) == (2, before.length)


# Migrations that raise, and code that exits.


def migrating(migration: Any, version: str = "2") -> Workflow[App, Broken, str, str]:
    migrations = {1: migration} if version == "2" else {}

    @workflow(name="migrating", version=version, migrations=migrations)
    def made(name: str) -> Do[App, Broken, str]:
        yield from act("begin")
        yield from approval.wait()
        return (yield from act(name))

    return made


@both_backends
@pytest.mark.parametrize("raised", [KeyError("no\nname"), SystemExit(3)], ids=repr)
async def test_a_run_whose_migration_raises_is_blocked_and_tried_again_later(
    service: Service, raised: BaseException
) -> None:
    tried: list[Any] = []

    def migrate(state: Any) -> Any:
        tried.append(state)
        raise raised

    old, broken = migrating(None, "1"), migrating(migrate)
    async with working(service, old) as worker:
        handle = await worker.client.submit(old, "ann", run_id="r")
        before_that = await suspended(service, "r")
    await handle.send(approval, "ann")
    async with working(service, broken, deadly) as worker:
        info = await blocked(service)
        assert info.summary.status is RunStatus.BLOCKED
        assert info.summary.details.blocked.startswith(f"it raised {type(raised).__name__}: ")
        assert info.summary.due_at == pytest.approx(time.time() + 60, abs=20)
        assert "\n" not in info.summary.details.blocked
        # The worker drives other runs, and this one is not tried again and again.
        other = await worker.client.submit(deadly, None)
        assert await other.result(timeout=10) == Success("deadly")
        assert tried == ["ann"]
        assert (await info_of(service, "r")).length == before_that.length
    mended = migrating(str.upper)
    async with working(service, mended, clock=TestClock()):
        handle = service.client.handle(mended, "r")
        assert await handle.result(timeout=10) == Success("ANN")
    assert service.world.done == ["begin", "safe", "deadly", "ANN"]


class Abort(BaseException):
    """An exception that is neither an error nor a cancellation."""


def exiting(raised: BaseException) -> dict[str, Callable[[], Any]]:
    """Return effects, each of which raises an exception in another place."""

    def leave(_: object = None) -> Any:
        raise raised

    async def leave_later(_: object) -> None:
        await anyio.sleep(0)
        leave()

    async def leave_a_group(_: object) -> None:
        async with anyio.create_task_group():
            leave()

    @step
    def leaving() -> Effect[App, Broken, Any]:
        return from_async(leave_later)

    @workflow
    def called(_: None) -> Do[App, Broken, Any]:
        return (yield from leaving())

    def release(_: object) -> Effect[App, Broken, int]:
        return note("released").checkpointed("release")

    return {
        "body": leave,
        "step": leaving,
        "group": step(lambda: from_async(leave_a_group)),
        "thread": step(lambda: from_blocking(leave)),
        "par": lambda: par(leaving(), sleep(60)),
        "timeout": lambda: leaving().timeout(60),
        "called workflow": lambda: called.call(None),
        "use": lambda: bracket(pure(1), release, lambda _: leaving()),
        "after a wait": lambda: sleep(0.01).within(App).and_then(lambda _: leaving()),
    }


@both_backends
@pytest.mark.parametrize("raised", [SystemExit(3), Abort("now")], ids=repr)
@pytest.mark.parametrize("place", exiting(Abort()))
async def test_a_run_that_exits_fails_and_its_worker_continues(
    service: Service, place: str, raised: BaseException
) -> None:
    is_fine = False

    @workflow(name="leaving")
    def made(_: None) -> Do[App, Any, str]:
        yield from act("begin")
        if not is_fine:
            yield from exiting(raised)[place]()
        return (yield from act("end"))

    async with working(service, made, deadly) as worker:
        handle = await worker.client.submit(made, None, run_id="r")
        with pytest.raises(RuntimeError, match="which does not end its worker") as defect:
            await handle.result(timeout=10)
        assert repr(raised) in str(defect.value)
        assert (await info_of(service, "r")).summary.status is RunStatus.FAILED
        other = await worker.client.submit(deadly, None)
        assert await other.result(timeout=10) == Success("deadly")
    released = ["released"] if place == "use" else []
    assert service.world.done == ["begin", *released, "safe", "deadly"]
    # Whoever has corrected the code resumes the run.
    is_fine = True
    again = made.resume("r", force=True)
    assert await again.run(App(service.checkpoints(), service.world)) == Success("end")
