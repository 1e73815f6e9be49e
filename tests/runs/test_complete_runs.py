"""A run that is complete: what its last entries tell, and how it is deleted once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, now, step, workflow
from effectflow.checkpoint import (
    Batch,
    CorruptCheckpoint,
    Lease,
    Record,
    RunBusy,
    RunConflict,
    RunInfo,
    RunNotFound,
    RunQuery,
    RunStatus,
    SaveFailed,
)
from effectflow.checkpoint.observers import CheckpointLoaded
from effectflow.stores import MemoryStore
from effectflow.testing import FaultyStore, RecordingObserver, Unavailable
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, app_on, both_backends, note

pytestmark = [pytest.mark.anyio, both_backends]


@step
def act(number: int) -> Effect[App, Any, int]:
    return note(f"act {number}")


@workflow
def acts(count: int) -> Do[App, Any, int]:
    for number in range(count):
        yield from act(number)
    return count


@workflow
def looks(count: int) -> Do[App, Any, int]:
    """An act, and then decisions only."""
    yield from act(0)
    for _ in range(count):
        yield from now()
    return count


class Counting(ForwardingStore):
    """Counts the records that are read."""

    records = 0

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        records = await super().read(run_id, after=after)
        self.records += len(records)
        return records


@pytest.mark.parametrize("format", ["json", "cbor"])
async def test_a_complete_run_is_not_read_from_its_beginning(format: Any) -> None:
    store = Counting(MemoryStore())
    app = app_on(store, format=format, key=b"0123456789abcdef")
    assert await acts.start(500, run_id="r").run(app) == Success(500)

    store.records = 0
    assert await acts.start(500, run_id="r").run(app) == Success(500)
    assert await acts.resume("r").run(app) == Success(500)
    assert store.records < 20
    assert len(app.world.done) == 500


@pytest.mark.parametrize(
    ("effect", "step"),
    [(acts.start(30, run_id="r"), "act#30"), (looks.start(200, run_id="r"), "act")],
)
async def test_observers_receive_the_same_events_for_a_complete_run(effect: Any, step: str) -> None:
    observer = RecordingObserver()
    store = Counting(MemoryStore())
    app = app_on(store, observers=[observer])
    output = await effect.run(app)
    length = len(observer.entries)

    for _ in range(2):
        assert await effect.run(app) == output
    loaded = [event for event in observer.events if isinstance(event, CheckpointLoaded)]
    assert loaded == [CheckpointLoaded("r", length, step)] * 2


async def test_a_complete_run_belongs_to_its_input_and_workflow() -> None:
    app = App()
    await acts.start(3, run_id="r").run(app)

    for other in (acts.start(4, run_id="r"), looks.start(3, run_id="r"), looks.resume("r")):
        assert isinstance((await other.run(app)).failure(), RunConflict)


class Tampered(ForwardingStore):
    """Returns other records than it has."""

    change: Callable[[list[Record]], list[Record]]

    async def read(self, run_id: str, *, after: int = 0) -> list[Record]:
        return self.change(await super().read(run_id))[after:]


async def test_a_damaged_end_of_a_complete_run_is_found() -> None:
    store = Tampered(MemoryStore())
    store.change = lambda records: records
    app = app_on(store)
    await acts.start(20, run_id="r").run(app)

    def cut_off(records: list[Record]) -> list[Record]:
        return [*records[:-1], replace(records[-1], body=records[-1].body[:-1])]

    store.change = cut_off
    for effect in (acts.start(20, run_id="r"), acts.resume("r")):
        error = (await effect.run(app)).failure()
        assert isinstance(error, CorruptCheckpoint)
        assert (error.sequence, error.intact) == (42, 41)


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
async def test_the_end_of_another_run_is_found(key: bytes | None) -> None:
    """Its seals fit each other, and the run that it ended has the same length and input."""
    store = Tampered(MemoryStore())
    store.change = lambda records: records
    app = app_on(store, key=key)
    for run_id in ("other", "r"):
        await acts.start(20, run_id=run_id).run(app)
    others = await store.read("other")

    store.change = lambda records: [*records[:20], *others[20:]]
    for effect in (acts.start(20, run_id="r"), acts.resume("r")):
        assert isinstance((await effect.run(app)).failure(), CorruptCheckpoint)


# Runs that are not preserved.


async def test_nothing_comes_between_the_end_of_a_run_and_its_deletion() -> None:
    appends = 0
    refused: list[RunBusy] = []

    class Visited(ForwardingStore):
        """Another start claims the run as soon as its end is saved."""

        async def append(self, lease: Lease, batch: Batch) -> None:
            nonlocal appends
            await super().append(lease, batch)
            appends += 1
            try:
                await super().claim("r", owner="another start", seconds=60)
            except RunBusy as busy:
                refused.append(busy)

    store = Visited(MemoryStore())
    app = app_on(store, preserve=False)
    assert await acts.start(2, run_id="r").run(app) == Success(2)
    assert len(refused) == appends
    assert await store.find() == []
    with pytest.raises(RunNotFound):
        await store.claim("r", owner="another start", seconds=60)


@pytest.mark.parametrize("again", [acts.start(2, run_id="r"), acts.resume("r")])
async def test_a_deletion_that_failed_is_tried_again(
    again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(MemoryStore(), [Unavailable("delete")])
    app = app_on(store, preserve=False)
    assert await acts.start(2, run_id="r").run(app) == Success(2)
    assert "run 'r' was not deleted" in caplog.text
    [info] = await store.find()
    assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)

    assert await again.run(app) == Success(2)
    assert app.world.done == ["act 0", "act 1"]
    assert await store.find() == []


async def test_a_run_whose_end_was_not_saved_is_not_deleted() -> None:
    class Failing(ForwardingStore):
        is_down = False

        async def append(self, lease: Lease, batch: Batch) -> None:
            self.is_down = any(b"finished" in body for body in batch.bodies)
            if self.is_down:
                raise SaveFailed(lease.run_id, "no space left")
            await super().append(lease, batch)

    store = MemoryStore()
    app = app_on(Failing(store), preserve=False)
    error = (await acts.start(2, run_id="r").run(app)).failure()
    assert isinstance(error, SaveFailed)

    app = replace(app, checkpoints=Checkpoints(store, preserve=False))
    assert await acts.resume("r").run(app) == Success(2)
    assert await store.find() == []


@pytest.mark.parametrize("again", [acts.start(2, run_id="r"), acts.resume("r")])
async def test_a_run_that_is_found_complete_once_it_is_claimed_is_deleted(again: Any) -> None:
    """Another process has completed it since the first look, and could not delete it."""
    memory = MemoryStore()
    failing = app_on(memory, failing={"act 1"})
    await acts.start(2, run_id="r").run(failing)
    failing.world.recover()
    store = Gate(memory)
    app = app_on(store, preserve=False)

    async def complete() -> None:
        assert await acts.resume("r").run(failing) == Success(2)
        assert store.opened is not None
        store.opened.set()

    assert await at_once(lambda: again.run(app), complete) == Success(2)
    assert app.world.done == []
    assert await memory.find() == []


class Gate(ForwardingStore):
    """Lets a request wait until `opened`: the creation of a run, the first look at it, or its answer."""

    def __init__(self, store: Any, where: str = "answer") -> None:
        super().__init__(store)
        self.where = where
        self.opened: anyio.Event | None = anyio.Event()

    async def _wait(self, where: str) -> None:
        if self.where == where and self.opened is not None:
            await self.opened.wait()

    async def create(self, run_id: str, bodies: Any, **options: Any) -> RunInfo | None:
        await self._wait("creation")
        return await super().create(run_id, bodies, **options)

    async def find(self, query: RunQuery = RunQuery()) -> list[RunInfo]:
        await self._wait("look")
        found = await super().find(query)
        await self._wait("answer")
        return found


async def at_once(first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]) -> Any:
    """Begin the first, then do the second, and return the outcome of the first."""
    outcome: list[Any] = []

    async def begin() -> None:
        outcome.append(await first())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        await anyio.wait_all_tasks_blocked()
        await second()
    return outcome[0]


@pytest.mark.parametrize("where", ["creation", "look", "answer"])
async def test_a_start_that_began_before_the_deletion_returns_the_output(where: str) -> None:
    """Another start in its process completes the run meanwhile, and deletes it."""
    memory = MemoryStore()
    store = Gate(memory, where)
    app = app_on(store, preserve=False)

    async def begin() -> None:
        """Let there be a run, unless the start is to create it. It has failed after its first step."""
        if where != "creation":
            failing = app_on(memory, preserve=False, failing={"act 1"})
            await acts.start(2, run_id="r").run(failing)

    async def complete() -> None:
        opened, store.opened = store.opened, None
        assert opened is not None
        assert await acts.start(2, run_id="r").run(app) == Success(2)
        assert await store.find() == []
        opened.set()

    executed = ["act 0", "act 1"] if where == "creation" else ["act 1"]
    await begin()
    assert await at_once(lambda: acts.start(2, run_id="r").run(app), complete) == Success(2)
    assert app.world.done == executed

    store.opened = anyio.Event()
    await begin()
    conflict = await at_once(lambda: acts.start(3, run_id="r").run(app), complete)
    assert isinstance(conflict.failure(), RunConflict)
    assert app.world.done == executed * 2

    # One that begins after the deletion executes it again.
    assert await acts.start(2, run_id="r").run(app) == Success(2)
    assert app.world.done == [*executed * 2, "act 0", "act 1"]


@pytest.mark.parametrize("what", ["start", "resume"])
async def test_a_run_that_another_process_completed_and_deleted_is_not_executed(what: str) -> None:
    memory = MemoryStore()
    failing = app_on(memory, preserve=False, failing={"act 1"})
    await acts.start(2, run_id="r").run(failing)
    failing.world.recover()
    store = Gate(memory)
    app = app_on(store, preserve=False)
    begun = acts.start(2, run_id="r") if what == "start" else acts.resume("r")

    async def complete() -> None:
        # Through another store, as another process does.
        assert await acts.resume("r").run(failing) == Success(2)
        assert store.opened is not None
        store.opened.set()

    error = (await at_once(lambda: begun.run(app), complete)).failure()
    if what == "start":
        assert isinstance(error, RunBusy)
        assert error.is_gone
        assert "was deleted before the start could claim it" in str(error)
    assert app.world.done == []
    assert await memory.find() == []


async def test_a_complete_run_that_is_busy_is_returned_and_left_to_its_holder() -> None:
    store = MemoryStore()
    app = app_on(store)
    await acts.start(2, run_id="r").run(app)
    taken = await store.claim("r", owner="another process", seconds=60)

    unwanted = replace(app, checkpoints=Checkpoints(store, preserve=False))
    assert await acts.start(2, run_id="r").run(unwanted) == Success(2)
    assert len(await store.find()) == 1
    await store.release(taken.lease)
    assert await acts.start(2, run_id="r").run(unwanted) == Success(2)
    assert await store.find() == []
