"""What every builder makes can wait: machines, graphs, jobs, rounds and lists of steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import anyio
import pytest
from returns.result import Success

from effectflow import (
    Do,
    Effect,
    RetryPolicy,
    Signal,
    Workflow,
    bracket,
    current_step,
    do,
    par,
    pure,
    race,
    sleep,
    step,
    uuid,
    workflow,
)
from effectflow.checkpoint import RunStatus, find_run
from effectflow.checkpoint.entries import BeforeStep
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, Outcome, Retry, StateMachine, Transition
from effectflow.mapreduce import JobResult, MapReduce
from effectflow.testing import TestClock
from tests.apps import App, Broken, note
from tests.service.conftest import Service
from tests.service.lives import (
    act,
    all_are,
    ending_of,
    entries_of,
    info_of,
    killed_everywhere,
    result_of,
    suspended,
    working,
)
from tests.sweeps import EVERY

pytestmark = pytest.mark.anyio

approval: Signal[str] = Signal("approval", str)

START = datetime(2100, 1, 1, tzinfo=UTC)
"""Later than the clocks of the stores, by which messages make runs due."""


# A step before the wait, the wait, and a step after it.


@do
def approve(state: str) -> Do[App, Broken, str]:
    yield from act(f"ask for {state}")
    who = yield from approval.wait()
    yield from act(f"thank {who}")
    return f"{state}, {who}"


def finish(state: str) -> Effect[App, Broken, str]:
    return note("finish").map(lambda _: f"{state}, finished")


class Order(Enum):
    NEW = "new"
    APPROVED = "approved"


@do
def approve_order(_: Order) -> Do[App, Broken, Outcome[Order]]:
    yield from approve("order")
    return Moved(Order.APPROVED)


listed = Workflow.of_steps("listed", [approve, finish])
machine: StateMachine[App, Broken, Order] = StateMachine(
    "machine",
    initial=Order.NEW,
    transitions=[Transition("approve", Order.NEW, Order.APPROVED, approve_order)],
    final={Order.APPROVED},
)
graph = (
    StateGraph[App, Broken, str]("graph")
    .node("approve", approve)
    .node("finish", finish)
    .edge("approve", "finish")
    .entry("approve")
    .exit("finish")
    .build()
)


def join(words: list[str]) -> Effect[App, Broken, str]:
    return note("join").map(lambda _: "; ".join(words))


def items_of(state: str) -> list[str]:
    return [state]


job: MapReduce[App, Any, str, Any] = MapReduce(
    "job", items=items_of, map=approve, reduce=join, key=str, limit=2
)
rounds: Iterative[App, Broken, str] = Iterative(
    "rounds", approve, converged=lambda *_: True, max_rounds=3
)


BUILT: list[tuple[Any, Any]] = [
    (listed, "order"),
    (machine, None),
    (graph, "order"),
    (job, "order"),
    (rounds, "order"),
]
NAMES = [workflow.kind if workflow is not listed else "list" for workflow, _ in BUILT]


@step(retry=RetryPolicy.constant(0).with_max_retries(1))
@do
def refine(state: str) -> Do[App, Broken, str]:
    yield from note("refine")
    return state + (yield from approval.wait())


async def test_the_options_of_a_step_apply_to_each_round_which_may_wait(service: Service) -> None:
    service.world.failing.add("refine#1")
    refined = Iterative("refined", refine, converged=lambda *_: False, max_rounds=2)
    async with working(service, refined) as worker:
        handle = await worker.client.submit(refined, "", run_id="r")
        await suspended(service, "r", waits_for="signal approval")
    await handle.send(approval, "a")
    await handle.send(approval, "b")
    async with working(service, refined):
        assert (await handle.result(timeout=10)).unwrap().value == "ab"
    begun = [one for one in await entries_of(service, "r") if isinstance(one, BeforeStep)]
    assert [(one.step, one.attempt) for one in begun] == [
        ("round", 1),
        ("round", 2),
        ("round#2", 1),
    ]


@pytest.mark.parametrize(("built", "input"), BUILT, ids=NAMES)
async def test_what_a_builder_made_waits_for_a_message_and_continues_in_another_worker(
    service: Service, built: Any, input: Any
) -> None:
    async with working(service, built) as worker:
        handle = await worker.client.submit(built, input, run_id="r")
        info = await suspended(service, "r", waits_for="signal approval")
        assert info.summary.due_at is None
    await handle.send(approval, "ann")
    async with working(service, built):
        result = await handle.result(timeout=10)
    assert isinstance(result, Success)
    # Steps inside the one that waited were not executed again.
    assert service.world.done[:2] == ["ask for order", "thank ann"]
    assert (await ending_of(service))["r"]["mailbox"] == 0


@EVERY
@pytest.mark.parametrize(("built", "input"), BUILT, ids=NAMES)
async def test_a_waiting_run_of_a_builder_can_be_killed_at_any_write(
    built: Any, input: Any, every: int
) -> None:
    async def live(service: Service) -> object:
        # The records of a machine have times, which must be the same in each life.
        async with working(service, built, grace=0, clock=TestClock(START)) as worker:
            handle = await worker.client.submit(built, input, run_id="r")
            await all_are(service, RunStatus.SUSPENDED, RunStatus.COMPLETED)
            await handle.send(approval, "ann", idempotency_key="1")
            return await result_of(handle)

    await killed_everywhere(live, more_than=5, every=every)


@pytest.mark.parametrize("waits", ["sleep", "timeout", "race"])
async def test_the_time_of_a_wait_in_a_listed_step_is_kept(service: Service, waits: str) -> None:
    def rest(state: str) -> Effect[App, Any, str]:
        match waits:
            case "sleep":
                waited: Effect[Any, Any, str] = sleep(0.5).map(lambda _: "slept")
            case "timeout":
                waited = approval.wait().timeout(0.5).fallback("too late")
            case _:
                waited = race(approval.wait(), sleep(0.5).map(lambda _: "too late"))
        return act(f"before {state}").and_then(lambda _: waited)

    resting = Workflow.of_steps("resting", [rest])
    async with working(service, resting) as worker:
        handle = await worker.client.submit(resting, "order", run_id="r")
        info = await suspended(service, "r")
    due_at = info.summary.due_at
    assert due_at is not None
    async with working(service, resting):
        expected = "slept" if waits == "sleep" else "too late"
        assert await handle.result(timeout=10) == Success(expected)
    entries = await entries_of(service, "r")
    assert entries[-1].at == pytest.approx(due_at, abs=5)
    assert entries[-1].at >= due_at - 0.01
    assert service.world.done == ["before order"]


async def test_each_run_that_a_program_starts_receives_its_own_message(service: Service) -> None:
    app, results = App(service.checkpoints(), service.world), list[str]()

    async def start(run_id: str) -> None:
        results.append(await listed.start("order", run_id=run_id).run_or_raise(app))

    for run_id, who in ("a", "ann"), ("b", "ben"):
        async with anyio.create_task_group() as group:
            group.start_soon(start, run_id)
            while await find_run(service.store, run_id) is None:
                await anyio.sleep(0.003)
            await service.client.handle(listed, run_id).send(approval, who)
    assert results == ["order, ann, finished", "order, ben, finished"]


# Attempts.


@step(retry=RetryPolicy.constant(0.05).with_max_retries(1))
def approve_and_note(state: str) -> Effect[App, Broken, str]:
    return approval.wait().within(App).tap(lambda _: note("pay"))


retried = Workflow.of_steps("retried", [approve_and_note])


async def test_a_suspension_does_not_count_as_an_attempt_and_keeps_the_message(
    service: Service,
) -> None:
    service.world.failing.add("pay#1")
    async with working(service, retried) as worker:
        handle = await worker.client.submit(retried, "order", run_id="r")
        await suspended(service, "r", waits_for="signal approval")
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("ann")
    assert service.world.done == ["pay", "pay"]


async def test_the_next_attempt_in_the_same_process_keeps_the_message(service: Service) -> None:
    service.world.failing.add("pay#1")
    app, results = App(service.checkpoints(), service.world), list[str]()

    async def start() -> None:
        results.append(await retried.start("order", run_id="r").run_or_raise(app))

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        while await find_run(service.store, "r") is None:
            await anyio.sleep(0.003)
        await service.client.handle(retried, "r").send(approval, "ann")
    assert results == ["ann"]
    assert service.world.done == ["pay", "pay"]


@step(retry=RetryPolicy.constant(0).with_max_retries(1))
@do
def approve_twice(state: str) -> Do[App, Broken, str]:
    yield from approval.wait()
    number = yield from uuid()
    yield from act(f"order {number}")
    yield from note("confirm")
    return (yield from approval.wait())


async def test_an_attempt_that_has_a_message_from_the_one_before_draws_the_same_after_a_suspension(
    service: Service,
) -> None:
    ordered = Workflow.of_steps("ordered", [approve_twice])
    service.world.failing.add("confirm#1")
    handle = await service.client.submit(ordered, "order", run_id="r")
    await handle.send(approval, "ann")
    async with working(service, ordered):
        await suspended(service, "r", waits_for="signal approval")
    first, _, second, _ = service.world.done
    # The attempts of one process draw and act each, and the next process skips the last act.
    assert first != second
    await handle.send(approval, "ben")
    async with working(service, ordered):
        assert await handle.result(timeout=10) == Success("ben")
    assert service.world.done[4:] == ["confirm"]


async def test_values_drawn_before_the_first_wait_of_a_listed_step_are_kept(
    service: Service,
) -> None:
    def drawn(name: str) -> Do[App, Any, str]:
        number = yield from uuid()
        yield from act(f"{name} {number}")
        return str(number)

    @do
    def order(state: str) -> Do[App, Any, str]:
        first = yield from uuid()
        yield from act(f"{state} {first}")
        # One branch waits while the other draws, and draws again.
        numbers = yield from par(
            approval.wait().map(lambda _: "approved"),
            do(drawn)("before")
            .and_then(lambda _: sleep(0.05))
            .and_then(lambda _: do(drawn)("after")),
        )
        return " ".join([str(first), *numbers])

    first, _, last = (await approved_later(service, order, "order")).split()
    done = service.world.done
    assert (done[0], done[2]) == (f"order {first}", f"after {last}")


async def test_values_drawn_in_a_finalizer_before_the_first_wait_of_a_listed_step_are_kept(
    service: Service,
) -> None:
    @do
    def releasing(_: str) -> Do[App, Broken, str]:
        number = yield from uuid()
        return (yield from act(f"release {number}"))

    @do
    def order(state: str) -> Do[App, Any, str]:
        held: Effect[App, Broken, str] = bracket(act("acquire"), releasing, lambda _: act("use"))
        yield from held
        return state + (yield from approval.wait())

    assert await approved_later(service, order, "order by ") == "order by ann"


async def approved_later(
    service: Service, order: Callable[[str], Effect[App, Any, str]], state: str
) -> str:
    """Return the output of a step whose approval another worker receives, and that acts only before."""
    ordered = Workflow.of_steps("ordered", [order])
    async with working(service, ordered) as worker:
        handle = await worker.client.submit(ordered, state, run_id="r")
        await suspended(service, "r", waits_for="signal approval")
    before = list(service.world.done)
    await handle.send(approval, "ann")
    async with working(service, ordered):
        result = await handle.result(timeout=10)
    assert service.world.done == before
    return result.unwrap()


@do
def poll(_: Order) -> Do[App, Broken, Outcome[Order]]:
    count = yield from note("poll")
    return Moved(Order.APPROVED) if count == 3 else Retry("not yet")


polling: StateMachine[App, Broken, Order] = StateMachine(
    "polling",
    initial=Order.NEW,
    transitions=[Transition("poll", Order.NEW, Order.APPROVED, poll)],
    final={Order.APPROVED},
    retry=RetryPolicy.constant(0.3).with_max_retries(5),
)


async def test_a_machine_is_suspended_between_its_attempts(service: Service) -> None:
    async with working(service, polling) as worker:
        handle = await worker.client.submit(polling, None, run_id="r")
        await suspended(service, "r", waits_for="a time")
        assert isinstance(await handle.result(timeout=10), Success)
    assert service.world.done == ["poll"] * 3


def keyed(state: str) -> Effect[App, Broken, str]:
    key = current_step().idempotency_key
    return approval.wait().map(lambda _: key)


async def test_a_step_that_waits_keeps_its_identity(service: Service) -> None:
    identified = Workflow.of_steps("identified", [keyed])
    async with working(service, identified) as worker:
        handle = await worker.client.submit(identified, "order", run_id="r")
        await suspended(service, "r")
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("r:keyed")
    begun = [
        entry.step for entry in await entries_of(service, "r") if isinstance(entry, BeforeStep)
    ]
    assert begun == ["keyed"]


@step(at_most_once=True)
def approve_once() -> Effect[App, Broken, str]:
    return listed.body("order")


@workflow
def approved_once(_: None) -> Do[App, Broken, str]:
    return (yield from approve_once())


async def test_a_workflow_within_an_at_most_once_step_waits_without_a_suspension(
    service: Service,
) -> None:
    async with working(service, approved_once) as worker:
        handle = await worker.client.submit(approved_once, None, run_id="r")
        while "ask for order" not in service.world.done:
            await anyio.sleep(0.003)
        # Longer than a run must rest before it is suspended.
        await anyio.sleep(0.1)
        await handle.send(approval, "ann")
        assert await handle.result(timeout=10) == Success("order, ann, finished")
    begun = [entry for entry in await entries_of(service, "r") if isinstance(entry, BeforeStep)]
    assert [entry.attempt for entry in begun] == [1] * len(begun)


@workflow
def embedding(_: None) -> Do[App, Any, JobResult[Any, Any, Any]]:
    yield from act("begin")
    return (yield from job.body("order"))


async def test_a_job_within_a_body_waits(service: Service) -> None:
    async with working(service, embedding) as worker:
        handle = await worker.client.submit(embedding, None, run_id="r")
        await suspended(service, "r", waits_for="signal approval")
        await handle.send(approval, "ann")
        result = await handle.result(timeout=10)
        assert result.unwrap().value == "order, ann"
    assert (await info_of(service, "r")).summary.status is RunStatus.COMPLETED
    assert service.world.done == ["begin", "ask for order", "thank ann", "join"]


async def test_the_items_of_a_job_wait_side_by_side(service: Service) -> None:
    @do
    def wait(item: int) -> Do[App, Broken, str]:
        who = yield from approval.wait()
        yield from act(f"{item} done")
        return who

    def three(_: str) -> list[int]:
        return [1, 2, 3]

    waiting: MapReduce[App, Any, str, Any] = MapReduce(
        "waiting", items=three, map=wait, reduce=join, key=str, limit=3
    )
    async with working(service, waiting) as worker:
        handle = await worker.client.submit(waiting, "", run_id="r")
        info = await suspended(service, "r")
        for name in ("ann", "bob", "cid"):
            await handle.send(approval, name)
            if name != "cid":
                info = await suspended(service, "r", after=info)
        result = await handle.result(timeout=10)
    assert sorted(result.unwrap().value.split("; ")) == ["ann", "bob", "cid"]
    assert len(service.world.done) == 4


async def test_a_sleeping_item_sleeps_again_in_its_next_attempt(service: Service) -> None:
    service.world.failing |= {"look#1", "look#2"}
    slept: list[int] = []

    @do
    def look(item: int) -> Do[App, Broken, int]:
        yield from sleep(0.2)
        slept.append(item)
        return (yield from note("look"))

    def one(_: str) -> list[int]:
        return [1]

    looking: MapReduce[App, Any, str, Any] = MapReduce(
        "looking",
        items=one,
        map=look,
        reduce=lambda counts: pure(sum(counts)),
        key=str,
        limit=3,
        retry=RetryPolicy.constant(0.01).with_max_retries(5),
    )
    async with working(service, looking) as worker:
        began = anyio.current_time()
        handle = await worker.client.submit(looking, "", run_id="r")
        assert (await handle.result(timeout=10)).unwrap().value == 3
    assert anyio.current_time() - began >= 0.6
