"""Word statistics of a folder of text files: a map-reduce job that continues after `kill -9`.

    python examples/word_statistics.py [FOLDER] [--executor local|processes|dask] [--store URL]

Without a folder it reads the sources of Python's standard library. Each file is a durable step, and so
is each group of files whose statistics are combined. Kill it at any moment and start it again: counted
files are not read again, and the report equals that of an uninterrupted run.

A file that is not text goes to the dead letters, which the report names. `--retry` tries only these
again.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, TypeAlias

import anyio
from returns.result import Failure

from effectflow import Checkpoints, Effect, effect, executors, pure
from effectflow.effects import Executor
from effectflow.mapreduce import JobResult, MapReduce
from effectflow.service import StoppedBySignal, run_until_signal
from effectflow.stores import open_store

EXECUTORS = ("local", "processes", "dask")

Unreadable: TypeAlias = OSError | UnicodeDecodeError


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Statistics:
    """The number of some files, and how often each word occurs in them."""

    files: int
    counts: dict[str, int]


Job: TypeAlias = MapReduce[Env, Never, str, JobResult[Statistics, str, Unreadable]]


def text_files(folder: str) -> list[str]:
    """Return the files in a folder, in the same order in each life of the run."""
    return sorted(str(path) for path in Path(folder).glob("*.*") if path.is_file())


@effect(errors=(OSError, UnicodeDecodeError))
def count_words(_: object, path: str) -> Statistics:
    """Count the words of one file. It needs only its argument, so it may run anywhere."""
    words = re.findall(r"[^\W\d_]+", Path(path).read_text(encoding="utf-8").lower())
    return Statistics(1, dict(Counter(words)))


def add_up(parts: list[Statistics]) -> Effect[Env, Never, Statistics]:
    """Combine the statistics of several files."""
    counts = Counter[str]()
    for part in parts:
        counts.update(part.counts)
    return pure(Statistics(sum(part.files for part in parts), dict(counts)))


def word_statistics(executor: Executor) -> Job:
    return MapReduce(
        "word statistics",
        items=text_files,
        map=count_words,
        reduce=add_up,
        key=lambda path: Path(path).name,
        limit=8,
        on_item_failure="dead_letter",
        executor=executor,
    )


@asynccontextmanager
async def executor_named(name: str) -> AsyncGenerator[Executor]:
    """Open the executor with this name. Only this function knows which executors exist."""
    match name:
        case "processes":
            async with executors.ProcessExecutor() as processes:
                yield processes
        case "dask":
            with local_cluster() as address:
                async with executors.DaskExecutor(address) as dask:
                    yield dask
        case _:
            yield executors.LocalExecutor()


@contextmanager
def local_cluster() -> Generator[str]:
    """Start a Dask cluster on this machine and yield its address. A real cluster already runs."""
    from distributed import LocalCluster

    start: Any = LocalCluster  # partly untyped
    # Its processes inherit this. Ctrl-C is for the process that drives the run, which then ends them.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = start(n_workers=2, threads_per_worker=1, dashboard_address=None)
    signal.signal(signal.SIGINT, handler)
    with cluster:
        yield cluster.scheduler_address


def report(result: JobResult[Statistics, str, Unreadable]) -> str:
    counts = result.value.counts
    # Equally frequent words in alphabetical order, because the order of dicts varies.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:20]
    return "\n".join(
        [
            f"{result.value.files} files, {sum(counts.values())} words, {len(counts)} of them different",
            *(f"{counts[word]:>8}  {word}" for word in frequent),
            *(
                f"not counted: {letter.key} ({type(letter.error).__name__})"
                for letter in result.dead_letters
            ),
        ]
    )


async def run(options: argparse.Namespace) -> int:
    async with open_store(options.store) as store, executor_named(options.executor) as executor:
        job = word_statistics(executor)
        env = Env(Checkpoints(store))
        if options.retry:
            work = job.retry_dead_letters(options.run_id)
        else:
            work = job.start(str(options.folder.resolve()), run_id=options.run_id)
        ended = await run_until_signal(lambda: work.run(env))
    if isinstance(ended, Failure):
        print(ended.failure(), file=sys.stderr)
        return 1
    print(report(ended.unwrap()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Word statistics of a folder of text files.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.__file__).parent)
    parser.add_argument("--executor", choices=EXECUTORS, default="local")
    parser.add_argument("--store", default="sqlite:///words.db")
    parser.add_argument("--run-id", default="words")
    parser.add_argument("--retry", action="store_true", help="retry the dead letters of the run")
    try:
        return anyio.run(run, parser.parse_args())
    except StoppedBySignal as stop:
        print(f"{stop}; start it again to continue", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
