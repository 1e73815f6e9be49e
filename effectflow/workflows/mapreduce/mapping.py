"""The map phase: each item a durable step, with its retries and its dead letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.effects import Effect, Executor, ExecutorLost, RetryPolicy, die, pure, suspend
from effectflow.effects.nodes import Suspend
from effectflow.effects.scope import Scope, observe
from effectflow.workflows.mapreduce.part import Part
from effectflow.workflows.mapreduce.results import DeadLetter, ItemFailed

__all__ = ["MapPhase"]

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class MapPhase:
    """How an item becomes a part of the result.

    Attributes:
        job: the job's name.
        step: the durable step that each item is.
        function: what the user maps.
        executor: where that runs; in this event loop if None.
        retry: when an item that failed is tried again within its step; never if None.
        keeps_dead_letters: whether an item that failed for good is set aside, or stops the job.
    """

    job: str
    step: StepDefinition
    function: Callable[[Any], AnyEffect]
    executor: Executor | None
    retry: RetryPolicy | None
    keeps_dead_letters: bool

    def part_of(self, key: str, item: object, retries: int) -> AnyEffect:
        """The effect that maps an item to its part, once dead letters were retried that often."""
        step = durable(self.step, self._work(item))
        if self.keeps_dead_letters:
            return self._or_dead_letter(step, key, retries)
        return step.map(lambda value: Part.of_item(key, value)).map_err(
            lambda raised: ItemFailed(self.job, key, *self._unwrapped(raised))
        )

    def _work(self, item: object) -> AnyEffect:
        """What is done for an item. The user's function is called when it runs, and not before."""
        executor, function = self.executor, self.function
        if executor is None:
            work = suspend(lambda: function(item))
        else:
            # The function and the item travel, and nothing of the run. That there is nowhere to run
            # is no failure of the item: it stops the job, which a resume takes up.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        return work if self.retry is None else work.retry(self.retry)

    def _or_dead_letter(self, step: AnyEffect, key: str, retries: int) -> AnyEffect:
        """The part of an item that is tried again by each retry of the dead letters."""

        def attempt(retry: int, before: int) -> AnyEffect:
            def failed(raised: object) -> AnyEffect:
                error, attempts = self._unwrapped(raised)
                letter = DeadLetter(key, error, before + attempts)
                return _set_aside(letter).and_then(lambda _: next_attempt(retry, letter))

            return step.map(lambda value: Part.of_item(key, value, retry=retry)).or_else(failed)

        def next_attempt(retry: int, letter: DeadLetter[Any]) -> AnyEffect:
            if retry < retries:
                return attempt(retry + 1, letter.attempts)
            return pure(Part.of_dead_letter(letter))

        return attempt(0, 0)

    def _unwrapped(self, raised: Any) -> tuple[Any, int]:
        """What an item failed with, and after how many attempts."""
        return (raised, 1) if self.retry is None else (raised.error, raised.attempts)


def _set_aside(letter: DeadLetter[Any]) -> AnyEffect:
    """Record that an item is a dead letter, which settles its failure: a resume does not try it again."""

    def record(scope: Scope) -> AnyEffect:
        observe(scope, "dead_letter", lambda: {"attempts": letter.attempts})
        return pure(None)

    return Suspend(record)
