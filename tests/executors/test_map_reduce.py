"""Jobs whose items run elsewhere: an item that kills its worker, and an executor that is lost."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from returns.result import Success

from effectflow import Checkpoints, Effect, JobResult, MapReduce, fail, pure
from effectflow.checkpoint import RunStatus, read_checkpoint
from effectflow.effects import Executor, ExecutorLost, WorkerLost
from effectflow.executors import ProcessExecutor
from effectflow.stores import MemoryStore
from tests.apps import App
from tests.executors.items import Folder, begin, deadly

pytestmark = pytest.mark.anyio


def begin_or_die(item: int) -> Effect[Folder, str, int]:
    return deadly(item) if item == 2 else begin(item)


def count(values: list[int]) -> Effect[object, str, int]:
    return pure(len(values))


def job_on(
    executor: Executor, on_item_failure: Literal["fail", "dead_letter"] = "dead_letter"
) -> MapReduce[App, Any, int, JobResult[Any, Any]]:
    options: Any = {"map": begin_or_die, "reduce": count, "on_item_failure": on_item_failure}
    return MapReduce("job", items=range, key=str, max_parallel=2, executor=executor, **options)


async def test_an_item_that_kills_its_workers_becomes_a_dead_letter(folder: Folder) -> None:
    app = App(Checkpoints(MemoryStore()))
    async with ProcessExecutor(lambda: folder, workers=2, attempts=2) as executor:
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

    async with ProcessExecutor(lambda: folder, workers=1) as executor:
        result = await job_on(executor, on_item_failure).resume("r").run(app)

    assert result == Success(JobResult(2, 2))
