"""Where work runs, as a service: what an executor promises."""

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
    """Runs effects somewhere: in this event loop, in other processes, on a cluster.

    The function and the item travel; the effect is made and run where the work is done, in the
    environment that is there, and its value, its typed failure or its defect comes back.
    """

    def apply(
        self, function: Callable[[Item], Effect[Any, E, A]], item: Item
    ) -> Effect[Any, E | ExecutorError, A]:
        """An effect of this process that runs `function(item)` where the executor runs things.

        It ends as that one ends. Fails with an ExecutorError when it cannot know how that one ended:
        WorkerLost concerns this item, ExecutorLost everything that runs there.
        """
        ...
