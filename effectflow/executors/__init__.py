"""Run work in this event loop, in a pool of processes, or on a Dask cluster.

An executor that needs an optional package is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.effects.optional import needs
from effectflow.executors.local import LocalExecutor

if TYPE_CHECKING:
    from effectflow.executors.dask import DaskExecutor
    from effectflow.executors.processes import ProcessExecutor

__all__ = ["DaskExecutor", "LocalExecutor", "ProcessExecutor"]

_EXTRAS = {"DaskExecutor": "dask", "ProcessExecutor": "processes"}


def __getattr__(name: str) -> object:
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs(_EXTRAS[name]):
        return getattr(import_module(f"{__name__}.{_EXTRAS[name]}"), name)
