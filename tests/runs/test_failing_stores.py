"""A store that fails: how the run ends, and what its next life finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Never

import anyio
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    fail,
    par,
    pure,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    CheckpointPolicy,
    CheckpointStore,
    Completed,
    DefinitionChanged,
    Failed,
    Lease,
    LeaseLost,
    RunCancelled,
    RunInfo,
    RunQuery,
    RunStatus,
    SaveFailed,
    StoreUnavailable,
    Taken,
    find_run,
    read_entries,
    save_now,
    verify_run,
)
from effectflow.effects import from_async
from effectflow.service import Client
from effectflow.stores import MemoryStore
from effectflow.testing import CrashPoint, Fault, FaultyStore, SaveFails, TakenOver, Unavailable
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, both_backends
from tests.runs.journals import in_turn, made_of

pytestmark = pytest.mark.anyio


class NoRenewing(ForwardingStore):
    """It never renews a lease. `asked` is how often it should have."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked = 0

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> Never:
        self.asked += 1
        raise OSError("the socket is gone")

    async def wait_until_asked_twice(self) -> None:
        while self.asked < 2:
            await anyio.sleep(0.01)


async def test_a_lease_that_is_not_renewed_does_not_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoRenewing() as store:

        @step
        def wait() -> Effect[App, str, None]:
            return from_async(lambda _: store.wait_until_asked_twice())

        @workflow
        def waiting(_: None) -> Do[App, str, str]:
            yield from wait()
            return "done"

        app = App(Checkpoints(store, lease_seconds=0.3))
        assert await waiting.start(None, run_id="r").run(app) == Success("done")

    assert "the lease of run 'r' was not renewed: OSError('the socket is gone')" in caplog.text


class NoReleasing(ForwardingStore):
    """It makes a number of appends after the creation of a run, and releases nothing."""

    def __init__(self, appends: int) -> None:
        super().__init__(MemoryStore())
        self.appends = appends

    async def append(self, lease: Lease, batch: Batch) -> None:
        if self.appends == 0:
            raise OSError("the disk is full")
        self.appends -= 1
        await super().append(lease, batch)

    async def release(self, lease: Lease) -> Never:
        raise OSError("the socket is gone")


@step
def act(is_well: bool) -> Effect[App, str, str]:
    return pure("well") if is_well else fail("badly")


@workflow
def acting(is_well: bool) -> Do[App, str, str]:
    return (yield from act(is_well))


async def test_a_lease_that_is_not_released_does_not_hide_how_the_run_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoReleasing(appends=1) as store:
        ended = await acting.start(True, run_id="r").run(App(Checkpoints(store)))

        assert isinstance(ended.failure(), SaveFailed)
        assert "the disk is full" in str(ended.failure())
        assert "the lease of run 'r' was not released: OSError(" in caplog.text

    async with NoReleasing(appends=9) as store:
        assert await acting.start(False, run_id="r").run(App(Checkpoints(store))) == Failure(
            "badly"
        )
        info = await find_run(store, "r")
        assert info is not None
        assert info.summary.status is RunStatus.FAILED


class NoDeleting(ForwardingStore):
    """It keeps every run."""

    async def delete(self, run_id: str, **options: Any) -> Never:
        raise OSError("the socket is gone")


async def test_a_failed_deletion_does_not_change_how_the_run_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoDeleting(MemoryStore()) as store:
        app = App(Checkpoints(store, preserve=False))
        assert await acting.start(True, run_id="r").run(app) == Success("well")

    assert "run 'r' was not deleted: OSError('the socket is gone')" in caplog.text


@workflow(name="acting", version="2")
def acting_otherwise(is_well: bool) -> Do[App, str, str]:
    return (yield from act(is_well))


async def test_a_changed_workflow_is_rejected_also_by_a_store_that_releases_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NoReleasing(appends=9) as store:
        app = App(Checkpoints(store))
        await acting.start(False, run_id="r").run(app)
        changed = await acting_otherwise.resume("r").run(app)

    assert isinstance(changed.failure(), DefinitionChanged)
    assert "run 'r' was not released: OSError('the socket is gone')" in caplog.text


class NoFinding(ForwardingStore):
    """It raises an error that no store should raise when it is asked for runs."""

    async def find(self, query: RunQuery = RunQuery()) -> Never:
        raise OSError("the socket is gone")


class NoSending(ForwardingStore):
    """It delivers no messages to spawned runs."""

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        if "/" in run_id:
            raise OSError("the socket is gone")
        return await super().send(run_id, topic, key=key, body=body)


async def test_a_run_is_not_cancelled_before_its_spawned_runs_are_asked() -> None:
    @workflow
    def spawned(_: None) -> Do[App, Never, None]:
        yield from sleep(60)

    @workflow
    def spawning(_: None) -> Do[App, Never, None]:
        child = yield from spawn(spawned, None)
        yield from child.result()

    async with MemoryStore() as store:
        app, broken = App(Checkpoints(store)), App(Checkpoints(NoSending(store)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spawning.start(None, run_id="r").run, app)
            while await find_run(store, "r/spawned") is None:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        await Client(app.checkpoints).handle(spawning, "r").cancel()

        ended = await spawning.resume("r").run(broken)

        error = ended.failure()
        assert isinstance(error, StoreUnavailable)
        assert "OSError('the socket is gone') for run 'r/spawned'" in str(error)
        assert isinstance((await spawning.resume("r").run(app)).failure(), RunCancelled)
        info = await find_run(store, "r")
        assert info is not None
        assert info.summary.status is RunStatus.CANCELLED


async def test_an_error_of_a_search_names_the_store_and_no_run() -> None:
    client = Client(Checkpoints(NoFinding(MemoryStore())))

    with pytest.raises(StoreUnavailable) as caught:
        await client.find()

    assert str(caught.value).endswith(": it raised OSError('the socket is gone')")


# A save that failed may have taken effect, and another process may have driven the run since.


@step
def count(number: int) -> Effect[App, str, int]:
    return pure(number)


@workflow
def counting(last: int) -> Do[App, str, int]:
    for number in range(last):
        yield from count(number)
    return last


class CutOff(ForwardingStore):
    """The third append gets no answer, and the lease expires before the server is there again.

    Another process has taken the run up by then, and was told to stop: after this many appends.
    """

    def __init__(self, store: CheckpointStore, *, is_written: bool, appends: int) -> None:
        super().__init__(store)
        self.is_written = is_written
        self.of_the_other = appends
        self.appends = 0

    async def append(self, lease: Lease, batch: Batch) -> None:
        self.appends += 1
        if self.appends != 3:
            await super().append(lease, batch)
            return
        if self.is_written:
            await super().append(lease, batch)
        await self.store.release(lease)
        await stopped_after(self.of_the_other, self.store)
        raise StoreUnavailable("the server", "no answer")


async def stopped_after(appends: int, store: CheckpointStore) -> None:
    class Stopping(ForwardingStore):
        count = 0

        async def append(self, lease: Lease, batch: Batch) -> None:
            await super().append(lease, batch)
            self.count += 1
            if self.count == appends:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope:
        await counting.resume("r").run(App(Checkpoints(Stopping(store))))


@pytest.mark.parametrize("appends", [1, 2, 3])
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("on_save_error", ["fail", "warn"])
async def test_an_append_of_another_process_is_not_mistaken_for_the_own_one(
    on_save_error: Literal["fail", "warn"], is_written: bool, appends: int
) -> None:
    async with MemoryStore() as store:
        cut_off = CutOff(store, is_written=is_written, appends=appends)
        app = App(Checkpoints(cut_off, on_save_error=on_save_error))

        ended = await counting.start(4, run_id="r").run(app)

        error = ended.failure()
        if on_save_error == "warn":
            assert isinstance(error, LeaseLost)
            assert "another process has driven it" in str(error)
        assert (await verify_run(store, "r")).problem is None
        assert await counting.resume("r").run(App(Checkpoints(store))) == Success(4)
        completed = [one for one in await read_entries(store, "r") if isinstance(one, Completed)]
        assert [one.step for one in completed] == ["count", "count#2", "count#3", "count#4"]


class Mute(ForwardingStore):
    """Writes the last append of a run, and does not answer."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.has_ended = anyio.Event()
        self.claims = 0

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        self.claims += 1
        return await super().claim(run_id, owner=owner, seconds=seconds)

    async def append(self, lease: Lease, batch: Batch) -> None:
        await super().append(lease, batch)
        if batch.release:
            self.has_ended.set()
            await anyio.sleep_forever()


class MuteAndSlow(Mute):
    """Also takes its time to tell how a run is."""

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        found = await super().find(query)
        # A delayed save would begin meanwhile.
        await anyio.sleep(0.2)
        return found


@pytest.mark.parametrize("make", [Mute, MuteAndSlow])
async def test_a_run_whose_end_was_written_is_not_claimed_again_to_find_that_out(
    make: Callable[[], Mute],
) -> None:
    """A process that died with the new lease would leave it behind forever."""
    store = make()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counting.start(1, run_id="r").run, App(Checkpoints(store)))
        await store.has_ended.wait()
        tasks.cancel_scope.cancel()
    assert store.claims == 0
    info = await find_run(store, "r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)


@both_backends
@pytest.mark.parametrize("every_steps", [1, 2])
@pytest.mark.parametrize(
    "fault",
    [SaveFails(3), Unavailable("append", 3), TakenOver(3)],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("other", [sleep(60), from_async(lambda _: anyio.sleep(60))])
async def test_a_failed_save_ends_the_branches_that_wait(
    store: MemoryStore, other: Effect[App, Any, None], fault: Fault, every_steps: int
) -> None:
    made = made_of(lambda: par(other, in_turn(*(act(True) for _ in range(8)))))
    policy = CheckpointPolicy(every_steps=every_steps)
    faulty = FaultyStore(store, [fault])
    with anyio.fail_after(10), faulty.life():
        failed = await made.start(None, run_id="r").run(App(Checkpoints(faulty, policy=policy)))
        assert isinstance(failed.failure(), SaveFailed | StoreUnavailable | LeaseLost)


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_store_that_fails_before_a_recorded_failure_is_tried_again_fails_the_resume(
    store: MemoryStore, is_durable: bool
) -> None:
    @step
    def refused() -> Effect[App, str, None]:
        return fail("no")

    @workflow
    def refusing() -> Do[App, str, None]:
        yield from refused().on_exit(lambda _: save_now("it has failed"))

    # The process dies after the failure of the step, and before that of the run.
    dying = FaultyStore(store, [CrashPoint(3, is_durable=True)])
    with dying.life():
        await refusing.start(run_id="r").run(App(Checkpoints(dying)))
    assert any(isinstance(entry, Failed) for entry in await read_entries(store, "r"))
    failing = FaultyStore(store, [SaveFails(1, is_durable=is_durable)])
    with failing.life():
        failed = await refusing.resume("r").run(App(Checkpoints(failing)))
        assert isinstance(failed.failure(), SaveFailed)
    assert await refusing.resume("r").run(App(Checkpoints(store))) == Failure("no")
