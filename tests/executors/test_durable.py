"""Runs whose items run elsewhere survive the death of the coordinator, and of the scheduler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from effectflow.checkpoint import RunStatus, read_checkpoint
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.stores import SqliteStore
from tests.executors import durable_job
from tests.executors.conftest import Scheduler, until
from tests.executors.items import Folder


@pytest.fixture(params=["processes", pytest.param("dask", marks=pytest.mark.exhaustive)])
def where(request: pytest.FixtureRequest) -> str:
    """Where the items run, as the job's argument names it."""
    return request.param if request.param == "processes" else request.getfixturevalue("cluster")


class Job:
    """The job as a process of its own, in a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def launch(self, command: str, where: str) -> subprocess.Popen[str]:
        arguments = [sys.executable, str(Path(durable_job.__file__)), command, where]
        process = subprocess.Popen(
            arguments, cwd=self.folder.path, stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def checkpoint(self) -> Checkpoint:
        async def read() -> Checkpoint:
            async with SqliteStore(self.folder.path / "runs.db") as store:
                return await read_checkpoint(store, "job")

        return anyio.run(read)

    def completed(self) -> set[str]:
        """Return the items whose steps are durably completed."""
        steps = [done.step for done in self.checkpoint().completed_steps]
        return {step.partition("[")[2].partition("]")[0] for step in steps}


@pytest.fixture
def job(folder: Folder) -> Iterator[Job]:
    """The job, with all but four items waiting while the file `hold` exists."""
    job = Job(folder)
    folder.put("hold")
    yield job
    (folder.path / "hold").unlink(missing_ok=True)
    for process in job.processes:
        process.kill()
        process.communicate()


def half_way(job: Job, where: str) -> subprocess.Popen[str]:
    """Start the job, and wait until four items are durably done and two more have begun."""
    process = job.launch("start", where)
    until(lambda: len(job.folder.begun()) == durable_job.FREE + 2)
    until(lambda: len(job.completed()) == durable_job.FREE)
    return process


def check_resumed(job: Job, where: str) -> None:
    """Resume the job; assert that its result is right and that no completed item ran again."""
    done = job.completed()
    assert len(done) == durable_job.FREE
    (job.folder.path / "hold").unlink()
    out, _ = job.launch("resume", where).communicate(timeout=60)

    assert out == f"<Success: {durable_job.RESULT}>\n"
    begun = job.folder.begun()
    assert set(begun) == {str(item) for item in range(durable_job.ITEMS)}
    assert {begun[item] for item in done} == {1}
    assert max(begun.values()) <= 2


def test_a_resume_after_a_killed_coordinator_repeats_no_completed_item(
    job: Job, where: str
) -> None:
    process = half_way(job, where)
    process.kill()
    process.wait()

    check_resumed(job, where)


def test_another_executor_resumes_a_run_after_the_scheduler_is_lost(
    job: Job, scheduler: Scheduler
) -> None:
    process = half_way(job, scheduler.address)
    scheduler.process.kill()
    out, _ = process.communicate(timeout=60)

    assert out.startswith("<Failure: Dask cancelled the item")
    assert job.checkpoint().status is RunStatus.FAILED
    check_resumed(job, "processes")
