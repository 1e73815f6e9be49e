"""The protocol of executors, which decide where work runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from effectflow.effects.effect import Effect
from effectflow.effects.errors import ExecutorError

__all__ = ["Executor"]

E = TypeVar("E")
A = TypeVar("A")
Item = TypeVar("Item")


class Executor(Protocol):
    """Runs effects in this event loop, in other processes, or on a cluster.

    The function and the item are sent. The effect is created and run by the worker, in the worker's
    environment. Its value, failure or defect comes back.
    """

    def apply(
        self, function: Callable[[Item], Effect[Any, E, A]], item: Item
    ) -> Effect[Any, E | ExecutorError, A]:
        """Return an effect that runs `function(item)` where the executor runs work.

        It ends as that effect ends. It fails with an ExecutorError if the outcome is unknown: WorkerLost
        for this item, ExecutorLost for everything that ran there.
        """
        ...
