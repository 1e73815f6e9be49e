"""The demonstration: a census of Python source files as a durable workflow.

This is all the code that durability takes. Each file is one step, so a resumed run measures only the
files that the killed run had not measured yet. A pool of processes measures on every core.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from effectflow import Checkpoints, Do, Effect, ask, attempt, par_traverse, step, workflow
from effectflow.cli.census_analysis import (
    FileMetrics,
    NoSourceFiles,
    Report,
    aggregate,
    discover,
    measure,
    to_json,
    to_text,
)
from effectflow.effects import Executor, ExecutorError, from_fn
from effectflow.executors import ProcessExecutor

__all__ = ["CensusEnvironment", "CensusJob", "census", "environment"]


@dataclass(frozen=True)
class CensusJob:
    """The folder to measure, the path of the reports, and how many files to measure at once."""

    folder: str
    report: str
    limit: int


@dataclass(frozen=True)
class CensusEnvironment:
    """What the workflow needs: checkpoints, and where files are measured."""

    checkpoints: Checkpoints
    executor: Executor


@asynccontextmanager
async def environment(checkpoints: Checkpoints) -> AsyncGenerator[CensusEnvironment]:
    """Open the environment of the workflows in this module. The commands look for this name."""
    async with ProcessExecutor() as executor:
        yield CensusEnvironment(checkpoints, executor)


@step
def discover_files(folder: str) -> Effect[object, NoSourceFiles, list[str]]:
    return attempt(lambda _: discover(Path(folder)), NoSourceFiles)


def measured(folder_and_name: tuple[str, str]) -> Effect[object, Never, FileMetrics]:
    folder, name = folder_and_name
    return from_fn(lambda _: measure(Path(folder), name))


@step
def measure_file(folder: str, name: str) -> Effect[CensusEnvironment, ExecutorError, FileMetrics]:
    return ask(CensusEnvironment).and_then(lambda env: env.executor.apply(measured, (folder, name)))


@step
def write_reports(job: CensusJob, report: Report) -> Effect[object, OSError, list[str]]:
    def write(_: object) -> list[str]:
        text, data = Path(f"{job.report}.txt"), Path(f"{job.report}.json")
        text.write_text(to_text(report, Path(job.folder).name), encoding="utf-8")
        data.write_bytes(to_json(report))
        return [str(text), str(data)]

    return attempt(write, OSError)


@workflow
def census(
    job: CensusJob,
) -> Do[CensusEnvironment, NoSourceFiles | ExecutorError | OSError, list[str]]:
    """Find the source files, measure each, and write the reports. Return the paths of the reports."""
    names = yield from discover_files(job.folder)
    metrics = yield from par_traverse(
        names, lambda name: measure_file(job.folder, name), limit=job.limit, key=str
    )
    return (yield from write_reports(job, aggregate(metrics)))
