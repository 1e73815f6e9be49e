"""The executors under test. Those on Dask share one cluster of real processes."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import anyio
import pytest
from dask.config import set as configure
from distributed import LocalCluster
from distributed.core import Status

from effectflow import Effect
from effectflow.executors import DaskExecutor, ProcessExecutor
from tests.executors.dask_process import FORKED, started
from tests.executors.items import Folder

AnyExecutor: TypeAlias = Any
"""An executor, to be entered with `async with`."""

MakeExecutor: TypeAlias = Callable[..., AnyExecutor]


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only, to start fewer processes. Tests for which trio matters name `both_backends`."""
    return "asyncio"


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until another process has done something."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


async def soon(condition: Callable[[], object]) -> None:
    """Wait until another process has done something, without blocking the event loop."""
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


async def interrupted(
    effect: Effect[Any, Any, Any], env: object, when: Callable[[], object]
) -> None:
    """Run an effect, cancel it once `when()` is true, and return when it has ended."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(effect.run, env)
        await soon(when)
        tasks.cancel_scope.cancel()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """The folder where items of all processes log what they do, and find what they wait for."""
    folder = Folder(tmp_path)
    yield folder
    folder.put("go")


_RUNNING = ExitStack()
"""The cluster, until a test follows that is not in this folder."""


@pytest.fixture(scope="module")
def dask_cluster() -> LocalCluster:
    """A Dask cluster of two worker processes that run one item at a time, the same for all modules."""
    return _started()


@cache
def _started() -> LocalCluster:
    folder = _RUNNING.enter_context(TemporaryDirectory(prefix="effectflow-dask-"))
    cluster = _RUNNING.enter_context(running_cluster(folder))
    _RUNNING.callback(_started.cache_clear)
    return cluster


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    # Its processes and threads work even if nothing is to do, as long as the tests of other folders run.
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        _RUNNING.close()


@contextmanager
def running_cluster(folder: str) -> Iterator[LocalCluster]:
    options: dict[str, Any] = {"dashboard_address": ":0", "memory_limit": "1GB"}
    options["local_directory"] = folder
    # Dask gives up a worker that was away at this time after it was killed, even if it is away again.
    patience = {"distributed.deploy.lost-worker-timeout": "1 hour"}
    with configure(FORKED | patience | {"distributed.scheduler.allowed-failures": 1}):
        cluster: Any = LocalCluster(n_workers=2, threads_per_worker=1, **options)
        with closed_at_the_end(cluster):
            yield cluster


@contextmanager
def closed_at_the_end(cluster: Any) -> Iterator[None]:
    """Close a cluster at the end, even if it has lost track of its workers."""
    try:
        with cluster:
            yield
    except KeyError as error:
        # What watches the workers ends with this if one dies that was never announced to it. Closing
        # the cluster, Dask raises it after it has closed all processes.
        if traceback.extract_tb(error.__traceback__)[-1].name != "_update_worker_status":
            raise
        cluster.status = Status.closed


@pytest.fixture
def cluster(dask_cluster: Any) -> str:
    """The address of the cluster, with both workers, even if the previous test killed one."""

    def is_whole() -> bool:
        # The nanny of a worker that stayed away for long is closed, even if the worker comes back.
        nannies = dask_cluster.workers.values()
        running = {nanny.worker_address for nanny in nannies if nanny.status is Status.running}
        return len(running) == 2 and running == set(dask_cluster.scheduler.workers)

    # Dask does not restart a worker that was killed while it started, and forgets one that dies while it
    # scales.
    for attempt in range(6):
        dask_cluster.scale(2)
        try:
            until(is_whole, seconds=10)
            break
        except AssertionError:
            if attempt == 5:
                raise
    return dask_cluster.scheduler_address


@pytest.fixture(params=["processes", "dask"])
def make_remote(request: pytest.FixtureRequest) -> MakeExecutor:
    """Make an executor whose items run in other processes, from a factory of environments."""
    if request.param == "processes":
        return lambda *environment: ProcessExecutor(*environment, limit=2)
    address = request.getfixturevalue("cluster")
    return lambda *environment: DaskExecutor(address, *environment)


@dataclass(frozen=True)
class Scheduler:
    """A Dask scheduler in a process of its own, which a test may kill."""

    address: str
    process: BaseProcess


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """The scheduler of a cluster of two workers."""
    where = tmp_path / "scheduler.json"

    def is_written() -> bool:
        # It is there before its text is.
        return where.exists() and where.stat().st_size > 0

    with configure(FORKED), ExitStack() as processes:

        def run(role: str, *options: str) -> BaseProcess:
            process = started(role, tmp_path, *options)
            processes.callback(process.join)
            processes.callback(process.kill)
            return process

        scheduler = run("scheduler", "--host", "127.0.0.1", "--port", "0")
        until(is_written)
        for _ in range(2):
            run("worker", "--no-nanny", "--nthreads", "1", "--local-directory", str(tmp_path))
        yield Scheduler(json.loads(where.read_text())["address"], scheduler)
