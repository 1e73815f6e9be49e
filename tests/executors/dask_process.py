"""The processes of a Dask cluster, forked from one that has imported Dask: that takes long."""

from __future__ import annotations

from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from distributed.utils import get_mp_context

FORKED: dict[str, Any] = {"distributed.worker.multiprocessing-method": "forkserver"}
"""The configuration with which Dask forks its workers, too."""


def run(role: str, options: list[str]) -> None:
    """Do what the command `dask scheduler` or `dask worker` does."""
    import_module(f"distributed.cli.dask_{role}").main(options)


def started(role: str, folder: Path, *options: str) -> BaseProcess:
    """Start a scheduler or a worker, which finds its scheduler by a file in the folder."""
    common = ["--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
    process = get_mp_context().Process(target=run, args=(role, [*common, *options]))
    process.start()
    return process
