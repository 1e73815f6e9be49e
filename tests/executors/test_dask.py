"""A Dask cluster: killed workers, a lost scheduler, and closed executors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from dask.config import set as configure
from distributed import Client
from returns.result import Failure, Result, Success

from effectflow import Effect, par, par_all, par_traverse, pure
from effectflow.effects import ExecutorLost, WorkerLost, from_async
from effectflow.executors import DaskExecutor
from effectflow.executors.dask import answer_in
from effectflow.executors.remote_call import read_reply
from tests.apps import both_backends
from tests.executors.conftest import Scheduler, interrupted, soon, until
from tests.executors.items import Folder, asleep, begin, deadly, held

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


async def test_only_the_item_of_a_killed_worker_runs_again(cluster: str, folder: Folder) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:

        async def kill(_: object) -> None:
            await soon(lambda: len(folder.lines()) == 2)
            victim = folder.lines()[0].split()[0]
            os.kill(folder.pid_of(victim), signal.SIGKILL)
            await soon(lambda: len(folder.lines()) == 3)
            folder.put("go")

        items = par_traverse(range(6), lambda n: executor.apply(held, n))
        pids, _ = await par(items, from_async(kill)).run_or_raise(None)

    assert len(pids) == 6
    victim, *_ = folder.lines()[0].split()
    assert folder.begun() == {str(n): 1 for n in range(6)} | {victim: 2}


async def test_an_item_that_always_kills_its_worker_fails_with_worker_lost(
    cluster: str, folder: Folder
) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:
        lost = (await executor.apply(deadly, "bad").run(None)).failure()
        assert isinstance(await executor.apply(begin, "good").run(None), Success)

    assert isinstance(lost, WorkerLost)
    assert (lost.item, lost.attempts) == ("'bad'", 2)
    assert "tcp://" in lost.reason
    assert folder.begun() == {"bad": 2, "good": 1}


@both_backends
async def test_a_cancelled_item_frees_its_worker(cluster: str, folder: Folder) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:
        sleepers = par_traverse(range(2), lambda n: executor.apply(asleep, n))
        await interrupted(sleepers, None, lambda: len(folder.lines()) == 2)
        # They would have taken both workers for a minute.
        await soon(lambda: folder.begun()["0-ended"] == folder.begun()["1-ended"] == 1)
        assert isinstance(await executor.apply(begin, "next").timeout(30).run(None), Success)


def tasks_known_by(client: Any) -> list[int]:
    """Return how many tasks each worker knows."""
    return list(client.run(lambda dask_worker: len(dask_worker.state.tasks)).values())


async def test_an_item_cancelled_before_its_turn_does_not_begin(
    cluster: str, folder: Folder
) -> None:
    with Client(cluster, set_as_default=False) as client:
        async with DaskExecutor(client, lambda: folder) as executor:
            many = par_traverse(range(6), lambda n: executor.apply(held, n))
            await interrupted(many, None, lambda: len(folder.lines()) == 2)
            # Once the cancellation has reached the workers, they know only what they cannot stop.
            await soon(lambda: sum(tasks_known_by(client)) == 2)
            folder.put("go")
            await executor.apply(begin, "next").run_or_raise(None)

    assert sum(folder.begun().values()) == 3


async def test_closing_the_executor_leaves_a_given_client_open(cluster: str) -> None:
    with Client(cluster, set_as_default=False) as client:
        for _ in range(2):
            async with DaskExecutor(client) as executor:
                assert await executor.apply(pure, 1).run(None) == Success(1)
        assert client.submit(len, "abc").result() == 3


async def test_an_executor_can_be_entered_while_a_worker_dies(
    dask_cluster: Any, cluster: str, folder: Folder
) -> None:
    async with DaskExecutor(cluster, lambda: folder) as executor:
        pid = await executor.apply(begin, 1).run_or_raise(None)

    told = dask_cluster.scheduler.worker_plugins
    before = set(told)

    async def kill() -> None:
        # The scheduler notes what it is about to tell the workers.
        await soon(lambda: told.keys() - before)
        os.kill(pid, signal.SIGKILL)

    # The worker dies while the scheduler tells it of the new executor.
    os.kill(pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        async with DaskExecutor(cluster, lambda: folder) as executor:
            assert isinstance(await executor.apply(begin, 2).run(None), Success)


@pytest.fixture
def reached(request: pytest.FixtureRequest, cluster: str) -> Iterator[Any]:
    """The argument of an executor: the address of the cluster, or a client of it."""
    if request.param == "address":
        yield cluster
        return
    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize(
    ("anyio_backend", "reached"), [("asyncio", "address"), ("trio", "client")], indirect=["reached"]
)
async def test_closing_ends_the_items_in_progress(reached: Any, folder: Folder) -> None:
    results: list[Result[object, object]] = []

    async def run(effect: Effect[object, object, object]) -> None:
        results.append(await effect.run(None))

    async with (
        anyio.create_task_group() as tasks,
        DaskExecutor(reached, lambda: folder) as executor,
    ):
        tasks.start_soon(run, executor.apply(asleep, "sleeping"))
        tasks.start_soon(run, executor.apply(held, "computing"))
        await soon(lambda: len(folder.lines()) == 2)
        tasks.start_soon(run, executor.apply(begin, "queued"))
        await anyio.wait_all_tasks_blocked()

    lost = [result.failure() for result in results]
    assert [type(error) for error in lost] == [ExecutorLost] * 3
    assert "the DaskExecutor was closed" in str(lost[0])
    # The sleeping item has ended; the computing item goes on, and its result is dropped.
    assert folder.begun() == {"sleeping": 1, "computing": 1, "sleeping-ended": 1}


async def test_closing_the_client_ends_the_items_in_progress(cluster: str, folder: Folder) -> None:
    with Client(cluster, set_as_default=False) as client:
        async with DaskExecutor(client, lambda: folder) as executor:

            async def close(_: object) -> None:
                await soon(lambda: len(folder.lines()) == 2)
                await to_thread.run_sync(client.close)

            items = par_all([executor.apply(asleep, n) for n in range(3)]).result()
            failed, _ = await par(items, from_async(close)).run_or_raise(None)

    assert [type(error) for error in failed.failure()] == [ExecutorLost] * 3


async def test_a_worker_without_the_workplace_replies_that_the_executor_was_closed(
    cluster: str,
) -> None:
    """This can happen to a call that arrives while the executor is being closed."""
    with Client(cluster, set_as_default=False) as client:
        reply = client.submit(answer_in, "effectflow-gone", "key", b"", None, pure=False).result()

    outcome = read_reply(reply)
    assert isinstance(outcome.error, ExecutorLost)
    assert "the DaskExecutor was closed" in str(outcome.error)


def test_an_asynchronous_client_is_rejected(cluster: str) -> None:
    async def main() -> None:
        async with Client(cluster, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(TypeError, match="synchronous client"):
                DaskExecutor(client)

    asyncio.run(main())


async def test_entering_fails_if_no_scheduler_answers() -> None:
    nowhere = "tcp://127.0.0.1:1"
    with (
        configure({"distributed.comm.timeouts.connect": "0.3s"}),
        pytest.raises(ExecutorLost, match=f"no Dask scheduler answers at {nowhere}"),
    ):
        await DaskExecutor(nowhere).__aenter__()


async def test_entering_fails_if_the_client_is_closed(cluster: str) -> None:
    with Client(cluster, set_as_default=False) as client:
        pass
    with pytest.raises(ExecutorLost, match="connection to the Dask scheduler is lost"):
        await DaskExecutor(client).__aenter__()


SCRIPT = """
import os, sys
from functools import partial
from pathlib import Path
import anyio
from effectflow.executors import DaskExecutor
from tests.executors.items import Folder, asleep, opened

async def main():
    async with DaskExecutor(sys.argv[1], partial(opened, Folder(Path(sys.argv[2])))) as executor:
        await executor.apply(asleep, "item").run(None)

anyio.run(main)
"""


def test_workers_clean_up_after_a_killed_coordinator(cluster: str, folder: Folder) -> None:
    script = [sys.executable, "-c", SCRIPT, cluster, str(folder.path)]
    with subprocess.Popen(script, cwd=ROOT) as coordinator:
        try:
            until(lambda: folder.begun()["item"] == 1)
        finally:
            coordinator.kill()

    until(lambda: folder.begun()["left"] == folder.begun()["entered"] == 1)
    assert folder.begun()["item-ended"] == 1


async def test_a_lost_scheduler_ends_the_items_in_progress(
    scheduler: Scheduler, folder: Folder
) -> None:
    async with DaskExecutor(scheduler.address, lambda: folder) as executor:

        async def kill(_: object) -> None:
            await soon(folder.lines)
            scheduler.process.kill()

        items = par_all([executor.apply(asleep, n) for n in range(3)]).result()
        failed, _ = await par(items, from_async(kill)).run_or_raise(None)
        later = await executor.apply(begin, "later").run(None)

    assert [type(error) for error in failed.failure()] == [ExecutorLost] * 3
    assert isinstance(later, Failure)
    assert "connection to the Dask scheduler is lost" in str(later.failure())
