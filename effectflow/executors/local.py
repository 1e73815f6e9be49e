"""Run items in the caller's event loop."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from effectflow.effects import Effect
from effectflow.effects.nodes import Suspend

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
        return Suspend(lambda _: function(item), ("apply", function, item))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
