"""The outcome of a step that someone gives by hand: it is unknown, or the step cannot succeed."""

from __future__ import annotations

import os
from typing import Any

import pytest
from returns.result import Failure, Success

from effectflow import (
    App as Service,
    Client,
    Do,
    Effect,
    Worker,
    compensate,
    par,
    pure,
    saga,
    step,
    workflow,
)
from effectflow.checkpoint import (
    ChangeRejected,
    CheckpointError,
    Completed,
    Encryption,
    Failed,
    Interrupted,
    NotSerializable,
    OutcomeUnknown,
    Resumed,
    RunBusy,
    RunConflict,
    RunEnded,
    RunNotFound,
    RunStatus,
    find_run,
    read_entries,
)
from effectflow.effects import never
from effectflow.graphs import StateGraph
from effectflow.stores import MemoryStore
from tests.apps import App, Broken, app_on, cut_off, note
from tests.runs.journals import act

pytestmark = pytest.mark.anyio


@step(at_most_once=True)
def charge(amount: int) -> Effect[App, Broken, str]:
    return note("charge").and_then(lambda _: never()).map(lambda _: f"paid {amount}")


@step
def ship(paid: str) -> Effect[App, Broken, str]:
    return note("ship").map(lambda _: f"shipped, {paid}")


@workflow
def checkout(amount: int) -> Do[App, Broken, str]:
    paid = yield from charge(amount)
    return (yield from ship(paid))


async def left_unknown(store: MemoryStore, **options: Any) -> App:
    """Return an app in which the process of run `r` has died while its card was charged."""
    app = app_on(store, **options)
    await cut_off(checkout.start(7, run_id="r"), app)
    resumed = await checkout.resume("r").run(app)
    assert isinstance(resumed.failure(), OutcomeUnknown)
    return app


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"format": "cbor", "key": b"0123456789abcdef"},
        {"encryption": Encryption("k1", {"k1": os.urandom(32)})},
    ],
    ids=["plain", "signed", "encrypted"],
)
async def test_an_unknown_outcome_that_someone_gives_is_used(
    store: MemoryStore, options: dict[str, Any]
) -> None:
    app = await left_unknown(store, **options)
    given = checkout.complete_step("r", "charge", "paid in cash", by="ann")
    assert await given.run(app) == Success(None)
    assert app.world.done == ["charge"]
    assert await checkout.resume("r").run(app) == Success("shipped, paid in cash")
    assert app.world.done == ["charge", "ship"]


async def test_the_journal_says_who_gave_an_outcome(store: MemoryStore) -> None:
    app = await left_unknown(store)
    await checkout.complete_step("r", "charge", "paid", by="ann@shop").run(app)
    *_, resumed, completed, last = await read_entries(store, "r")
    assert isinstance(resumed, Resumed)
    assert resumed.by == "ann@shop"
    assert isinstance(completed, Completed)
    assert (completed.step, completed.output) == ("charge", "paid")
    assert isinstance(last, Interrupted)
    assert last.reason == "step 'charge' completed by ann@shop"
    info = await find_run(store, "r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.INTERRUPTED, None)


async def test_a_worker_continues_a_run_whose_step_was_settled() -> None:
    async with MemoryStore() as store:
        app = await left_unknown(store)
        await checkout.complete_step("r", "charge", "paid").run(app)
        service = Service([checkout], environment=lambda _: app, checkpoints=app.checkpoints)
        async with Worker(service) as worker:
            result = await worker.client.handle(checkout, "r").result(timeout=10)
    assert result == Success("shipped, paid")


async def test_a_step_that_someone_fails_is_handled_like_any_failure(store: MemoryStore) -> None:
    @workflow
    def careful(amount: int) -> Do[App, Broken, str]:
        paid = yield from charge(amount).recover(Broken, lambda _: pure("unpaid"))
        return (yield from ship(paid))

    app = app_on(store)
    await cut_off(careful.start(7, run_id="r"), app)
    assert await careful.fail_step("r", "charge", Broken("declined")).run(app) == Success(None)
    entries = await read_entries(store, "r")
    assert [one.retryable for one in entries if isinstance(one, Failed)] == [False]
    assert await careful.resume("r").run(app) == Success("shipped, unpaid")
    assert app.world.done == ["charge", "ship"]


async def test_a_step_that_was_failed_by_hand_is_not_attempted_again(store: MemoryStore) -> None:
    app = await left_unknown(store)
    await checkout.fail_step("r", "charge", Broken("declined")).run(app)
    for _ in range(2):
        failed = (await checkout.resume("r").run(app)).failure()
        assert isinstance(failed, Broken)
        assert failed.args == ("declined",)
    assert app.world.done == ["charge"]


@step(retryable=False)
def declined() -> Effect[App, Broken, str]:
    return note("declined").map(str)


async def test_a_failure_that_no_resume_tries_again_can_be_settled(store: MemoryStore) -> None:
    @workflow
    def paying() -> Do[App, Broken, str]:
        first = yield from act("first")
        paid = yield from declined()
        return f"{first}, {paid}"

    app = app_on(store, failing=["declined"])
    assert isinstance((await paying.start(run_id="r").run(app)).failure(), Broken)
    assert isinstance((await paying.resume("r").run(app)).failure(), Broken)
    await paying.complete_step("r", "declined", "paid by hand").run(app)
    assert await paying.resume("r").run(app) == Success("first, paid by hand")
    assert app.world.done == ["first", "declined"]


async def test_a_step_within_the_body_of_another_workflow_can_be_settled(
    store: MemoryStore,
) -> None:
    @workflow
    def order(amount: int) -> Do[App, Broken, str]:
        yield from act("check")
        return (yield from checkout.call(amount))

    app = app_on(store)
    await cut_off(order.start(7, run_id="r"), app)
    await order.complete_step("r", "checkout/charge", "paid").run(app)
    assert await order.resume("r").run(app) == Success("shipped, paid")
    assert app.world.done == ["check", "charge", "ship"]


async def test_each_of_several_open_steps_is_settled_by_itself(store: MemoryStore) -> None:
    @workflow
    def both() -> Do[App, Broken, tuple[str, str]]:
        return (yield from par(charge(1), charge(2)))

    app = app_on(store)
    await cut_off(both.start(run_id="r"), app)
    await both.complete_step("r", "par[1]/charge", "two").run(app)
    unknown = (await both.resume("r").run(app)).failure()
    assert isinstance(unknown, OutcomeUnknown)
    await both.complete_step("r", "par[0]/charge", "one").run(app)
    assert await both.resume("r").run(app) == Success(("one", "two"))
    assert app.world.done.count("charge") == 2


async def test_an_undo_whose_work_was_done_by_hand_is_settled(store: MemoryStore) -> None:
    @workflow
    def booking() -> Do[App, Broken, str]:
        reserved = compensate(act("reserve"), lambda _: act("cancel"))
        return (yield from saga(reserved.and_then(lambda _: act("pay"))))

    app = app_on(store, failing=["pay", "cancel"])
    failed = (await booking.start(run_id="r").run(app)).failure()
    assert isinstance(failed, CheckpointError)
    [undo] = [one.step for one in await read_entries(store, "r") if isinstance(one, Failed)][-1:]
    assert await booking.complete_step("r", undo, "cancelled by phone").run(app) == Success(None)
    assert isinstance((await booking.resume("r").run(app)).failure(), Broken)
    assert app.world.done.count("cancel") == 1


async def test_a_node_of_a_graph_is_settled(store: MemoryStore) -> None:
    def work(state: int) -> Effect[App, Broken, int]:
        return note("work").map(lambda count: state + count)

    graph = StateGraph("graph").node("work", work).entry("work").exit("work").build()
    app = app_on(store, failing=["work"])
    assert isinstance(await graph.start(1, run_id="r").run(app), Failure)
    await graph.complete_step("r", "work", 5).run(app)
    assert await graph.resume("r").run(app) == Success(5)


WRONG = [
    ("charge", 7, NotSerializable, "str"),
    ("refund", "x", ChangeRejected, "no step 'refund' has begun"),
    ("ship", "x", ChangeRejected, "no step 'ship' has begun"),
    ("", "x", ChangeRejected, "no step '' has begun"),
]


@pytest.mark.parametrize(("path", "value", "kind", "said"), WRONG)
async def test_a_wrong_outcome_changes_nothing(
    store: MemoryStore, path: str, value: object, kind: type[CheckpointError], said: str
) -> None:
    app = await left_unknown(store)
    before = await read_entries(store, "r"), await find_run(store, "r")
    rejected = (await checkout.complete_step("r", path, value).run(app)).failure()
    assert type(rejected) is kind
    assert said in str(rejected)
    after = await read_entries(store, "r"), await find_run(store, "r")
    assert after == before


async def test_an_error_that_a_step_does_not_declare_is_rejected(store: MemoryStore) -> None:
    app = await left_unknown(store)
    rejected = (await checkout.fail_step("r", "charge", KeyError("x")).run(app)).failure()
    assert isinstance(rejected, NotSerializable)


async def test_a_step_that_has_ended_is_not_settled(store: MemoryStore) -> None:
    app = app_on(store, failing=["ship"])

    @workflow
    def shipping() -> Do[App, Broken, str]:
        yield from act("pack")
        return (yield from ship("paid"))

    await shipping.start(run_id="r").run(app)
    rejected = (await shipping.complete_step("r", "pack", "x").run(app)).failure()
    assert isinstance(rejected, ChangeRejected)
    assert "'pack' has ended" in str(rejected)
    assert "'ship'" in str(rejected)


async def test_only_a_run_that_can_be_changed_is_settled(store: MemoryStore) -> None:
    app = await left_unknown(store)
    missing = (await checkout.complete_step("no", "charge", "x").run(app)).failure()
    assert isinstance(missing, RunNotFound)

    @workflow
    def another() -> Do[App, Broken, str]:
        return (yield from act("other"))

    foreign = (await another.complete_step("r", "charge", "x").run(app)).failure()
    assert isinstance(foreign, RunConflict)
    taken = await store.claim("r", owner="pid 1 on elsewhere (now, c)", seconds=60)
    busy = (await checkout.complete_step("r", "charge", "x").run(app)).failure()
    assert isinstance(busy, RunBusy)
    await store.release(taken.lease)
    await another.start(run_id="done").run(app)
    ended = (await another.complete_step("done", "other", "x").run(app)).failure()
    assert isinstance(ended, RunEnded)


async def test_retry_lets_a_worker_try_a_failed_run_again() -> None:
    @workflow
    def flaky() -> Do[App, Broken, str]:
        yield from act("first")
        return (yield from act("second"))

    async with MemoryStore() as store:
        app = app_on(store, failing=["second"])
        service = Service([flaky], environment=lambda _: app, checkpoints=app.checkpoints)
        async with Worker(service) as worker:
            client = Client(app.checkpoints, by="ann")
            handle = await client.submit(flaky, run_id="r")
            assert isinstance(await handle.result(timeout=10), Failure)
            app.world.recover()
            await handle.retry()
            await worker.idle()
            assert await handle.result(timeout=10) == Success("second")
        assert app.world.done == ["first", "second", "second"]
        by = [one.by for one in await read_entries(store, "r") if isinstance(one, Resumed)]
        assert "ann" in by


async def test_there_is_nothing_to_retry_of_a_run_that_waits(store: MemoryStore) -> None:
    client = Client(app_on(store).checkpoints)
    handle = await client.submit(checkout, 7, run_id="r")
    with pytest.raises(ChangeRejected, match="it is pending"):
        await handle.retry()
