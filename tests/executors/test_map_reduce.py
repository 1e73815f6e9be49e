"""Jobs whose items run elsewhere: an item that kills its worker, and an executor that is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from returns.result import Success

from effectflow import Checkpoints, Effect, TimedOut, fail, pure
from effectflow.checkpoint import RunStatus, read_checkpoint
from effectflow.effects import Executor, ExecutorLost, WorkerLost
from effectflow.executors import LocalExecutor, ProcessExecutor
from effectflow.mapreduce import JobResult, MapReduce
from effectflow.stores import MemoryStore
from tests.apps import App, both_backends
from tests.executors.items import Folder, asleep, begin, begin_or_die

pytestmark = pytest.mark.anyio


def count(values: list[int]) -> Effect[object, str, int]:
    return pure(len(values))


def job_on(
    executor: Executor, on_item_failure: Literal["fail", "dead_letter"] = "dead_letter"
) -> MapReduce[App, Any, int, JobResult[Any, Any, Any]]:
    options: Any = {"map": begin_or_die, "reduce": count, "on_item_failure": on_item_failure}
    return MapReduce("job", items=range, key=str, limit=2, executor=executor, **options)


async def test_an_item_that_kills_its_workers_becomes_a_dead_letter(folder: Folder) -> None:
    app = App(Checkpoints(MemoryStore()))
    async with ProcessExecutor(lambda: folder, limit=2, attempts=2) as executor:
        result = (await job_on(executor).start(4, run_id="r").run(app)).unwrap()
        again = (await job_on(executor).resume("r").run(app)).unwrap()

    for found in (result, again):
        [letter] = found.dead_letters
        assert (letter.key, letter.attempts) == ("2", 1)
        assert isinstance(letter.error, WorkerLost)
        assert letter.error.reason == "killed by SIGKILL"
    assert folder.begun() == {"0": 1, "1": 1, "2": 2, "3": 1}


class Gone:
    """An executor whose cluster cannot be reached."""

    def apply(self, function: object, item: object) -> Effect[Any, Any, Any]:
        return fail(ExecutorLost("the cluster is out of reach"))


@pytest.mark.parametrize("on_item_failure", ["fail", "dead_letter"])
async def test_another_executor_resumes_a_job_after_the_executor_is_lost(
    folder: Folder, on_item_failure: Literal["fail", "dead_letter"]
) -> None:
    app = App(Checkpoints(store := MemoryStore()))
    with pytest.raises(ExecutorLost, match="out of reach"):
        await job_on(Gone(), on_item_failure).start(2, run_id="r").run(app)
    assert (await read_checkpoint(store, "r")).status is RunStatus.FAILED

    async with ProcessExecutor(lambda: folder, limit=1) as executor:
        result = await job_on(executor, on_item_failure).resume("r").run(app)

    assert result == Success(JobResult(2, 2))


@dataclass(frozen=True)
class Elsewhere(App):
    """An environment that chooses where items run."""

    executor: Executor = field(default_factory=LocalExecutor)


def executor_of(env: Elsewhere) -> Executor:
    return env.executor


@both_backends
async def test_the_environment_chooses_the_executor_of_each_life(folder: Folder) -> None:
    def begin_unless_two(item: int) -> Effect[Folder, str, int]:
        return fail("two") if item == 2 and not folder.has("go") else begin(item)

    options: Any = {
        "items": range,
        "map": begin_unless_two,
        "reduce": count,
        "key": str,
        "limit": 2,
    }
    job: Any = MapReduce(
        "job",
        on_item_failure="dead_letter",
        executor=executor_of,
        **options,
    )
    checkpoints = Checkpoints(MemoryStore())
    async with ProcessExecutor(lambda: folder, limit=1) as processes:
        env = Elsewhere(checkpoints, executor=processes)
        first = (await job.start(4, run_id="r").run(env)).unwrap()
    assert [letter.key for letter in first.dead_letters] == ["2"]
    assert folder.begun() == {"0": 1, "1": 1, "3": 1}

    folder.put("go")
    async with ProcessExecutor(lambda: folder, limit=1) as processes:
        env = Elsewhere(checkpoints, executor=processes)
        assert await job.retry_dead_letters("r").run(env) == Success(JobResult(4, 4))
    assert folder.begun() == {"0": 1, "1": 1, "2": 1, "3": 1}


async def test_an_item_that_takes_too_long_elsewhere_is_a_dead_letter(folder: Folder) -> None:
    def sleep_at_one(item: int) -> Effect[Folder, str, int]:
        return asleep(item) if item == 1 else begin(item)

    options: Any = {
        "items": range,
        "map": sleep_at_one,
        "reduce": count,
        "key": str,
        "limit": 1,
    }
    async with ProcessExecutor(lambda: folder, limit=1) as executor:
        await executor.apply(begin, "started").run(None)
        job = MapReduce(
            "job",
            on_item_failure="dead_letter",
            timeout=2,
            executor=executor,
            **options,
        )
        result = (await job.start(3).run(App(Checkpoints(MemoryStore())))).unwrap()

    [letter] = result.dead_letters
    assert (letter.key, letter.item, type(letter.error)) == ("1", 1, TimedOut)
    assert result.value == 2
