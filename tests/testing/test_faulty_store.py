"""FaultyStore: each fault, and how it ends a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio
import pytest
from returns.result import Success

from effectflow import Checkpoints, Do, Effect, step, workflow
from effectflow.checkpoint import (
    Batch,
    DueRuns,
    Lease,
    LeaseLost,
    RunBusy,
    RunStatus,
    RunSummary,
    SaveFailed,
    ServiceStore,
    StoreUnavailable,
    find_run,
)
from effectflow.checkpoint.store import service_of
from effectflow.effects import from_async, from_fn, traverse
from effectflow.stores import MemoryStore
from effectflow.testing import (
    Busy,
    Call,
    Crashed,
    CrashPoint,
    Fault,
    FaultyStore,
    SaveFails,
    Slow,
    TakenOver,
    TestClock,
    Unavailable,
    store_conformance,
)
from effectflow.testing.forwarding import ForwardingStore

pytestmark = pytest.mark.anyio

SUMMARY = RunSummary("w", RunStatus.RUNNING, 0.0)


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    said: list[str] = field(default_factory=list[str])


@step
def say(word: str) -> Effect[App, str, str]:
    def perform(app: App) -> str:
        app.said.append(word)
        return word

    return from_fn(perform)


@workflow
def tale(words: list[str]) -> Do[App, str, list[str]]:
    return (yield from traverse(words, say))


@pytest.fixture
def disk() -> MemoryStore:
    return MemoryStore()


async def begun(store: FaultyStore) -> Lease:
    """Create a run with a lease: the first append."""
    info = await store.create("r", [b"1"], summary=SUMMARY, owner="me", seconds=60)
    assert info is not None
    assert info.lease is not None
    return info.lease


async def append(store: FaultyStore, lease: Lease, body: bytes, *, after: int) -> None:
    await store.append(lease, Batch([body], after))


async def length(disk: MemoryStore) -> int:
    return len(await disk.read("r"))


# By default, a store that only keeps journals passes them below, wrapped.
@pytest.mark.exhaustive
@pytest.mark.parametrize("check", store_conformance.CHECKS, ids=str)
async def test_without_faults_it_passes_the_conformance_suite(
    check: store_conformance.Check,
) -> None:
    await check(lambda: FaultyStore(MemoryStore()))


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_failed_save_may_or_may_not_take_effect(
    disk: MemoryStore, is_durable: bool
) -> None:
    store = FaultyStore(disk, [SaveFails(append=2, is_durable=is_durable)])
    lease = await begun(store)

    with pytest.raises(SaveFailed, match=r"SaveFails\(append=2"):
        await append(store, lease, b"2", after=1)
    assert await length(disk) == 1 + is_durable
    await append(store, lease, b"next", after=1 + is_durable)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_creations_and_messages_fail_too(disk: MemoryStore, is_durable: bool) -> None:
    faults = [
        SaveFails(2, is_durable, operation="create"),
        SaveFails(1, is_durable, operation="send"),
    ]
    store = FaultyStore(disk, faults)
    await store.create("r", [b"1"], summary=SUMMARY)
    with pytest.raises(SaveFailed, match="'other'"):
        await store.create("other", [b"1"], summary=SUMMARY)
    with pytest.raises(SaveFailed, match="'r'"):
        await store.send("r", "signal:go", key="k")

    assert (await find_run(disk, "other") is not None) is is_durable
    assert len(await disk.mailbox("r")) == is_durable
    assert not store.unmet


async def test_a_run_that_is_taken_over_can_be_resumed(disk: MemoryStore) -> None:
    app = App(Checkpoints(FaultyStore(disk, [TakenOver(append=3)])))

    error = (await tale.start(["once", "upon"], run_id="r").run(app)).failure()
    assert isinstance(error, LeaseLost)
    assert await length(disk) == 2
    assert await tale.resume("r").run(App(Checkpoints(disk))) == Success(["once", "upon"])


async def test_a_run_is_taken_over_after_its_creation(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [TakenOver(append=1)])
    lease = await begun(store)

    with pytest.raises(LeaseLost, match="the new owner"):
        await append(store, lease, b"2", after=1)
    assert await length(disk) == 1
    await store.claim("r", owner="another", seconds=60)


async def test_a_wrapper_has_the_parts_of_the_contract_that_the_store_has(
    disk: MemoryStore,
) -> None:
    class Journals(ForwardingStore):
        """Keeps journals only."""

        send = mailbox = claim_due = changes = None  # type: ignore[assignment]

    for store in (Journals(disk), FaultyStore(Journals(disk)), FaultyStore(FaultyStore(disk))):
        is_service = isinstance(store.store, FaultyStore)
        assert isinstance(store, ServiceStore) is is_service
    journals = FaultyStore(Journals(disk), [SaveFails(append=1)])
    assert isinstance(journals, FaultyStore)
    with pytest.raises(SaveFailed):
        await begun(journals)
    with pytest.raises(StoreUnavailable, match="keeps journals only, and a worker needs"):
        service_of(journals, "a worker")
    for check in store_conformance.JOURNAL_CHECKS:
        await check(lambda: FaultyStore(Journals(MemoryStore())))


async def test_a_claim_is_rejected(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [Busy(claim=2)])
    for run_id in ("a", "b"):
        await store.create(run_id, [b"1"], summary=SUMMARY)
    await store.claim("a", owner="me", seconds=60)

    with pytest.raises(RunBusy, match="'b'"):
        await store.claim("b", owner="me", seconds=60)
    await store.claim("b", owner="me", seconds=60)


async def test_any_operation_may_be_unavailable(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [Unavailable("append", call=2), Unavailable("read", call=2)])
    lease = await begun(store)

    with pytest.raises(StoreUnavailable, match="MemoryStore"):
        await append(store, lease, b"2", after=1)
    assert len(await store.read("r")) == 1
    with pytest.raises(StoreUnavailable):
        await store.read("r")


async def test_slow_calls_wait_by_the_clock(disk: MemoryStore) -> None:
    clock = TestClock()
    faults = [Slow("append", seconds=10), Slow("append", seconds=5, call=1)]
    app = App(Checkpoints(FaultyStore(disk, faults, clock=clock)))

    assert await clock.run(tale.start(["once"]), app) == Success(["once"])
    # Started, the step's beginning, and its end with that of the run.
    assert clock.monotonic() == pytest.approx(3 * 10 + 5)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_after_a_crash_every_call_raises(disk: MemoryStore, is_durable: bool) -> None:
    store = FaultyStore(disk, [CrashPoint(append=2, is_durable=is_durable)])
    with store.life():
        lease = await begun(store)
        with pytest.raises(Crashed):
            await append(store, lease, b"2", after=1)
        with pytest.raises(Crashed):
            await store.read("r")
        await store.release(lease)
        pytest.fail("it is dead")

    assert len(await store.read("r")) == 1 + is_durable
    # Another owner finds the run free at once.
    await store.claim("r", owner="another", seconds=0)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_the_process_may_die_at_a_creation_or_a_message(
    disk: MemoryStore, is_durable: bool
) -> None:
    points = [CrashPoint(1, is_durable, "create"), CrashPoint(1, is_durable, "send")]
    store = FaultyStore(disk, points)
    for point in points:
        with store.life():
            await store.create("r", [b"1"], summary=SUMMARY)
            await store.send("r", "signal:go", key="k")
            pytest.fail(f"it is alive {point}")

    assert not store.unmet
    assert len(await disk.mailbox("r")) == is_durable
    assert [str(point) for point in points] == [
        f"{'after' if is_durable else 'before'} create 1",
        f"{'after' if is_durable else 'before'} send 1",
    ]


async def test_a_crash_releases_the_runs_that_were_claimed_because_they_were_due(
    disk: MemoryStore,
) -> None:
    store = FaultyStore(disk, [CrashPoint(append=1, is_durable=False)])
    await disk.create("r", [b"1"], summary=replace(SUMMARY, due_at=1.0))
    due = DueRuns(frozenset({"w"}), ["me"], 60, 2.0)
    with store.life():
        [taken] = (await store.claim_due(due)).runs
        await append(store, taken.lease, b"2", after=1)
        pytest.fail("it is alive")

    assert [one.info.run_id for one in (await disk.claim_due(due)).runs] == ["r"]


async def test_the_next_life_continues_a_crashed_run(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [CrashPoint(append=3, is_durable=True)])
    app = App(Checkpoints(store))
    with store.life():
        await tale.start(["once", "upon"], run_id="r").run(app)
        pytest.fail("it is dead")

    assert await tale.start(["once", "upon"], run_id="r").run(app) == Success(["once", "upon"])
    assert app.said == ["once", "upon"]


async def until_the_crash(app: App) -> None:
    store = app.checkpoints.store
    assert isinstance(store, FaultyStore)
    while store.unmet:
        await anyio.sleep(0.01)


@workflow
def slow_tale(word: str) -> Do[App, str, str]:
    yield from say(word)
    yield from from_async(until_the_crash)
    return (yield from say(word))


def test_a_crash_in_a_late_save_ends_the_life_and_not_the_event_loop(anyio_backend: str) -> None:
    # No step asks for the third append: it has the end of the first step, a while after that.
    store = FaultyStore(MemoryStore(), [CrashPoint(append=3, is_durable=False)])
    app = App(Checkpoints(store))

    async def two_lives() -> None:
        with store.life():
            await slow_tale.start("once", run_id="r").run(app)
            pytest.fail("it is dead")
        assert await slow_tale.start("once", run_id="r").run(app) == Success("once")

    anyio.run(two_lives, backend=anyio_backend)


async def test_other_exceptions_of_a_life_are_raised(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [CrashPoint(append=2, is_durable=True)])
    with pytest.raises(ZeroDivisionError), store.life():
        raise ZeroDivisionError


async def test_a_fault_that_is_disarmed_never_occurs(disk: MemoryStore) -> None:
    store = FaultyStore(disk, [CrashPoint(append=1, is_durable=True), CrashPoint(3, False)])
    with store.life():
        await tale.start(["once"], run_id="r").run(App(Checkpoints(store)))
    store.disarm()

    assert store.unmet == ()
    assert await tale.start(["once"], run_id="r").run(App(Checkpoints(store))) == Success(["once"])


async def test_met_and_unmet_faults_are_recorded(disk: MemoryStore) -> None:
    faults: list[Fault] = [SaveFails(append=1), Busy(claim=7), Slow("renew", 0), Slow("find", 0)]
    store = FaultyStore(disk, faults)
    with pytest.raises(SaveFailed):
        await begun(store)
    await find_run(store, "r")
    await store.create("r", [b"1"], summary=SUMMARY)
    lease = (await store.claim("r", owner="me", seconds=60)).lease
    await store.find()

    assert store.met == [SaveFails(append=1), Slow("find", 0)]
    assert store.unmet == (Busy(claim=7), Slow("renew", 0))
    assert store.calls == [
        Call("append", "r"),
        Call("find", "r"),
        Call("create", "r"),
        Call("claim", "r"),
        Call("find", None),
    ]
    assert store.renew([lease, lease], seconds=60) != []
    assert store.calls[-1] == Call("renew", None)
