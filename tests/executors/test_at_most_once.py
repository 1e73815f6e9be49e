"""At-most-once steps whose work runs elsewhere: an item that may have begun is never begun again."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import product
from typing import Any

import anyio
import pytest
from _pytest.mark import ParameterSet
from anyio import to_thread
from distributed import Client
from returns.result import Failure, Success

from effectflow import Do, Effect, RetryPolicy, fail, pure, step, with_checkpointing, workflow
from effectflow.checkpoint import (
    Interrupted,
    OutcomeUnknown,
    RunStatus,
    find_run,
    read_checkpoint,
)
from effectflow.effects import ExecutorLost, WorkerLost, par_try_all
from effectflow.executors import DaskExecutor, ProcessExecutor
from effectflow.executors.dask import WorkplaceKeeper
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, app_on, both_backends
from tests.executors.conftest import AnyExecutor, MakeExecutor, Scheduler, soon
from tests.executors.items import Folder, begin, deadly, held

pytestmark = pytest.mark.anyio

AGAIN = RetryPolicy.constant(0.01).with_max_retries(2)


@pytest.fixture
async def executor(make_remote: MakeExecutor, folder: Folder) -> AsyncIterator[AnyExecutor]:
    async with make_remote(lambda: folder) as executor:
        yield executor


def durably(work: Any, **options: Any) -> Any:
    """Return a workflow of one at-most-once step."""
    made = step(name="charge", at_most_once=True, **options)(lambda: work)

    @workflow
    def charging(_: None) -> Do[App, Any, Any]:
        return (yield from made())

    return charging


def job_on(executor: AnyExecutor, **options: Any) -> Any:
    def charge(item: str) -> Effect[Folder, Any, int]:
        return deadly(item)

    return MapReduce[Any, Any, Any, Any](
        "job",
        items=lambda _: ["bad"],
        map=step(at_most_once=True)(charge),
        reduce=lambda values: pure(sum(values)),
        key=str,
        limit=1,
        executor=executor,
        **options,
    )


def with_inner_step(executor: AnyExecutor) -> Effect[Any, Any, Any]:
    return with_checkpointing("inner", executor.apply(deadly, "bad"))


KINDS: dict[str, Any] = {
    "step": lambda executor: durably(executor.apply(deadly, "bad")),
    "step that retries": lambda executor: durably(executor.apply(deadly, "bad"), retry=AGAIN),
    "step with a handler around": lambda executor: handled(executor),
    "step inside": lambda executor: durably(with_inner_step(executor)),
    "job": lambda executor: job_on(executor),
    "job with dead letters": lambda executor: job_on(executor, on_item_failure="dead_letter"),
    "job that retries": lambda executor: job_on(executor, retry=AGAIN),
}


def handled(executor: AnyExecutor) -> Any:
    @step(at_most_once=True)
    def charge() -> Effect[Any, Any, int]:
        return executor.apply(deadly, "bad")

    @step
    def refund() -> Effect[Any, Any, int]:
        return executor.apply(begin, "refund")

    @workflow
    def charging(_: None) -> Do[App, Any, Any]:
        try:
            return (yield from charge())
        except WorkerLost:
            return (yield from refund())

    return charging


def on_dask_a_sample() -> Iterator[ParameterSet]:
    """Yield each place and kind of work. A worker of Dask takes long to start again."""
    for place, kind in product(["processes", "dask"], KINDS):
        is_sampled = place == "processes" or kind in {"step", "job with dead letters"}
        yield pytest.param(place, kind, marks=() if is_sampled else pytest.mark.exhaustive)


@pytest.mark.parametrize(("make_remote", "kind"), [*on_dask_a_sample()], indirect=["make_remote"])
async def test_the_item_of_a_dead_worker_is_not_given_to_another(
    executor: AnyExecutor, folder: Folder, kind: str
) -> None:
    app = App()
    running = KINDS[kind](executor)
    for life in (running.start(None, run_id="r"), running.resume("r"), running.resume("r")):
        result = await life.run(app)
        assert isinstance(result, Failure)
        assert isinstance(result.failure(), OutcomeUnknown)
        assert folder.begun() == {"bad": 1}


async def test_the_end_of_the_step_says_why_its_outcome_is_unknown(
    executor: AnyExecutor,
) -> None:
    app = app_on(store := MemoryStore())
    result = await durably(executor.apply(deadly, "bad")).start(None, run_id="r").run(app)

    lost = result.failure().__cause__
    assert isinstance(lost, WorkerLost)
    assert lost.attempts == 1
    state = (await read_checkpoint(store, "r")).state
    assert isinstance(state, Interrupted)
    assert (state.step, state.in_progress, state.reason) == ("charge", True, "WorkerLost")


async def test_force_gives_the_item_to_a_worker_once_more(
    executor: AnyExecutor, folder: Folder
) -> None:
    app = App()
    running = durably(executor.apply(deadly, "bad"))
    await running.start(None, run_id="r").run(app)
    await running.resume("r", force=True).run(app)
    assert folder.begun() == {"bad": 2}


async def test_a_failure_that_came_back_is_retried(executor: AnyExecutor, folder: Folder) -> None:
    def declined(item: str) -> Effect[Folder, str, int]:
        return begin(item).and_then(lambda _: fail("declined"))

    running = durably(executor.apply(declined, "bad"), retry=AGAIN)
    assert await running.start(None, run_id="r").run(App()) == Failure("declined")
    assert folder.begun() == {"bad": 3}


async def test_a_step_outside_runs_is_not_repeated_either(
    executor: AnyExecutor, folder: Folder
) -> None:
    charge = step(at_most_once=True, retry=AGAIN)(lambda: executor.apply(deadly, "bad"))
    result: Any = await charge().run(None)
    assert isinstance(result.failure(), WorkerLost)
    assert folder.begun() == {"bad": 1}


@both_backends
async def test_a_lost_executor_leaves_the_outcome_unknown(folder: Folder) -> None:
    app = App()
    executor = ProcessExecutor(lambda: folder, limit=1, grace=0.2)
    running = durably(executor.apply(held, "item"))
    results: list[Any] = []

    async def run() -> None:
        results.append(await running.start(None, run_id="r").run(app))

    async with anyio.create_task_group() as tasks, executor:
        tasks.start_soon(run)
        await soon(folder.lines)
    assert isinstance(results[0].failure(), OutcomeUnknown)
    assert isinstance(results[0].failure().__cause__, ExecutorLost)
    info = await find_run(app.checkpoints.store, "r")
    assert info is not None
    assert (info.summary.status, info.lease) == (RunStatus.BLOCKED, None)
    assert info.summary.details.blocked == str(results[0].failure())

    async with executor:
        again = await running.resume("r").run(app)
    assert isinstance(again.failure(), OutcomeUnknown)
    assert folder.begun() == {"item": 1}


async def test_an_item_that_dask_moves_to_another_worker_is_not_begun_there(
    scheduler: Scheduler, folder: Folder
) -> None:
    """A worker that is retired does not count as dead: Dask moves its tasks."""

    def retire() -> None:
        pid = folder.pid_of("item")
        with Client(scheduler.address, set_as_default=False) as client:
            pids: Any = client.run(os.getpid)
            victim = next(address for address, one in pids.items() if one == pid)
            client.retire_workers([victim])

    async with DaskExecutor(scheduler.address, lambda: folder) as executor:
        running = durably(executor.apply(held, "item"))
        results: list[Any] = []

        async def run() -> None:
            with anyio.fail_after(60):
                results.append(await running.start(None, run_id="r").run(App()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await soon(folder.lines)
            await to_thread.run_sync(retire)
    assert isinstance(results[0].failure(), OutcomeUnknown)
    assert folder.begun() == {"item": 1}


async def test_an_item_that_waits_at_a_dead_worker_is_begun_by_another(
    cluster: str, folder: Folder
) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:

        @step(at_most_once=True)
        def charge(number: int) -> Effect[Any, Any, int]:
            return executor.apply(held, number)

        @workflow
        def charging(_: None) -> Do[App, Any, int]:
            ended = yield from par_try_all([charge(n) for n in range(4)])
            return len(ended)

        async def kill() -> None:
            await soon(lambda: len(folder.lines()) == 2)
            os.kill(folder.pid_of(folder.lines()[0].split()[0]), signal.SIGKILL)
            folder.put("go")

        results: list[Any] = []

        async def run() -> None:
            results.append(await charging.start(None, run_id="r").run(App()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            tasks.start_soon(run)
    assert isinstance(results[0].failure(), OutcomeUnknown)
    assert max(folder.begun().values()) == 1


async def test_the_scheduler_forgets_items_that_have_ended(
    dask_cluster: Any, cluster: str, folder: Folder
) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:
        charge = step(at_most_once=True)(lambda: executor.apply(begin, "item"))
        for _ in range(5):
            assert isinstance(await charge().run(None), Success)
        plugins = dask_cluster.scheduler.plugins.values()
        [keeper] = [one for one in plugins if isinstance(one, WorkplaceKeeper)]
        await soon(lambda: not keeper.begun)
    assert folder.begun() == {"item": 5}
