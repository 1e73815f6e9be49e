"""A job as its author declares it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from effectflow.checkpoint.step import StepDefinition
from effectflow.effects import Executor, ExecutorLost, die, suspend
from effectflow.effects.nodes import AnyEffect


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its author declares it.

    Attributes:
        name: the job's name.
        items: returns the items for an input, or an effect that yields them.
        key: returns the key of an item.
        map_step, map: the durable step of each item, with its retries, and the user's function.
        parameter: the name under which that step records its item; empty if it does not.
        executor: returns the executor that runs `map`, for an environment; None for this event loop.
        timeout: the seconds that each attempt may take; None for no limit.
        max_per_second: the number of attempts that begin per second; None for no limit.
        keeps_dead_letters: whether a failed item is set aside; otherwise it stops the job.
        max_failures: the number or share of items that may fail; None for no limit.
        reduce_step, reduce: the durable step of each group, and the user's function.
        max_parallel: the number of items and groups that run at once.
        fan_in: the number of values in a group.
    """

    name: str
    items: Callable[[Any], Any]
    key: Callable[[Any], object]
    map_step: StepDefinition
    map: Callable[[Any], AnyEffect]
    parameter: str
    executor: Callable[[Any], Executor] | None
    timeout: float | None
    max_per_second: float | None
    keeps_dead_letters: bool
    max_failures: float | None
    reduce_step: StepDefinition
    reduce: Callable[[list[Any]], AnyEffect]
    max_parallel: int
    fan_in: int

    def key_of(self, item: object) -> str:
        """Return the key of an item, as text that every encoding supports; file names may not be."""
        key = str(self.key(item))
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()

    def work(self, env: Any, item: object) -> AnyEffect:
        """Return the work of one attempt. Only running it calls the user's function."""
        function = self.map
        if self.executor is None:
            work = suspend(lambda: function(item))
        else:
            executor = self.executor(env)
            # Only the function and the item are sent. Losing the executor is not a failure of the item:
            # it stops the job, and a resume continues.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        return work if self.timeout is None else work.timeout(self.timeout)
