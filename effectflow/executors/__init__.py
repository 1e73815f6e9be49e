"""Run work in this event loop, in a pool of processes, or on a Dask cluster.

An executor that needs an optional package is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Self, TypeVar

from effectflow.effects import Effect
from effectflow.effects.imports import needs
from effectflow.effects.nodes import Suspend

if TYPE_CHECKING:
    from effectflow.executors.dask import DaskExecutor
    from effectflow.executors.processes import ProcessExecutor

__all__ = ["DaskExecutor", "LocalExecutor", "ProcessExecutor"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")


class LocalExecutor:
    """Runs every item in the event loop and the environment of its caller.

    Use it for work that waits more than it computes, and in tests in place of another executor.

    Example:
        >>> from effectflow import pure
        >>> LocalExecutor().apply(lambda n: pure(n + 1), 41).run_sync(None)
        <Success: 42>
    """

    def apply(self, function: Callable[[Item], Effect[Env, E, A]], item: Item) -> Effect[Env, E, A]:
        """Return an effect that calls `function(item)` and runs the result, each time that it is run."""
        return Suspend(lambda _env, _scope: function(item), ("apply", function, item))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


_EXTRAS = {"DaskExecutor": "dask", "ProcessExecutor": "processes"}


if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        if name not in _EXTRAS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs(_EXTRAS[name]):
            return getattr(import_module(f"{__name__}.{_EXTRAS[name]}"), name)
