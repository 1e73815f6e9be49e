"""A durable job whose items run on an executor, for tests to start, kill and resume.

    python durable_job.py start|resume processes|ADDRESS

It works in the current folder, on `runs.db`. Each item logs itself in `begun`. All but the first four
items wait while the file `hold` exists.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from effectflow import (
    Checkpoints,
    Do,
    Effect,
    ask,
    effect,
    executors,
    par_traverse,
    with_checkpointing,
    workflow,
)
from effectflow.effects import Executor, ExecutorError
from effectflow.stores import SqliteStore

ITEMS = 10
FREE = 4
RESULT = sum(item * item for item in range(ITEMS))


@dataclass(frozen=True)
class Folder:
    """The environment of the workers."""

    path: str


@dataclass(frozen=True)
class App:
    """The environment of the coordinator."""

    checkpoints: Checkpoints
    executor: Executor


@effect
def square(folder: Folder, item: int) -> int:
    line = f"{item} {os.getpid()}\n"
    with open(f"{folder.path}/begun", "a+") as begun:
        begun.write(line)
        begun.seek(0)
        is_held = begun.readlines().index(line) >= FREE
    while is_held and os.path.exists(f"{folder.path}/hold"):
        time.sleep(0.005)
    return item * item


@workflow
def sum_of_squares(items: Sequence[int]) -> Do[App, ExecutorError, int]:
    app = yield from ask(App)

    def durably(item: int) -> Effect[Any, ExecutorError, int]:
        return with_checkpointing("square", app.executor.apply(square, item))

    squares = yield from par_traverse(items, durably, limit=3, key=str)
    return sum(squares)


async def main(command: str, where: str) -> None:
    folder = str(Path.cwd())

    def environment() -> Folder:
        return Folder(folder)

    # Dask is imported only if it is used.
    executor: Any
    if where == "processes":
        executor = executors.ProcessExecutor(environment, limit=2, grace=0.5)
    else:
        executor = executors.DaskExecutor(where, environment)
    async with SqliteStore("runs.db") as store, executor:
        app = App(Checkpoints(store), executor)
        if command == "start":
            result = await sum_of_squares.start(list(range(ITEMS)), run_id="job").run(app)
        else:
            result = await sum_of_squares.resume("job").run(app)
        sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
