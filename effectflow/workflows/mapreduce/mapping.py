"""The map phase: each item a durable step, with its retries and its dead letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from returns.maybe import Nothing

from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.checkpoint.entries import Arguments
from effectflow.checkpoint.step import arguments_of
from effectflow.effects import (
    Effect,
    Executor,
    ExecutorLost,
    RetryExhausted,
    RetryPolicy,
    die,
    fail,
    pure,
    suspend,
)
from effectflow.effects.nodes import Suspend
from effectflow.effects.scope import Scope, observe
from effectflow.workflows.mapreduce.part import Part
from effectflow.workflows.mapreduce.results import DeadLetter, ItemFailed

__all__ = ["MapPhase", "last_failure"]

AnyEffect = Effect[Any, Any, Any]

_DEAD_LETTER = "dead_letter"


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
        parameter: what the item is called where it is recorded; None where it is not.
    """

    job: str
    step: StepDefinition
    function: Callable[[Any], AnyEffect]
    executor: Executor | None
    retry: RetryPolicy | None
    keeps_dead_letters: bool
    parameter: str | None

    def part_of(self, key: str, item: object, retries: int) -> AnyEffect:
        """The effect that maps an item to its part, once dead letters were retried that often."""
        step = durable(self.step, self._work(item), self._description_of(item))

        def attempt(retry: int, before: int) -> AnyEffect:
            def failed(raised: object) -> AnyEffect:
                error, attempts = last_failure(raised)
                letter = DeadLetter(key, error, before + attempts)
                is_retryable = self.step.is_retryable(raised)
                return Suspend(partial(go_on, retry, letter, is_retryable))

            return step.map(lambda value: Part.of_item(key, value, retry=retry)).or_else(failed)

        def go_on(
            retry: int, letter: DeadLetter[Any], is_retryable: bool, scope: Scope
        ) -> AnyEffect:
            if self.keeps_dead_letters:
                _set_aside(letter, scope)
                is_tried_again = retry < retries
            else:
                # The job may have kept dead letters before: its failures are settled.
                is_tried_again = _was_set_aside(scope)
            if is_tried_again:
                return attempt(retry + 1, letter.attempts)
            if self.keeps_dead_letters:
                return pure(Part.of_dead_letter(letter))
            error, attempts = letter.error, letter.attempts
            return fail(ItemFailed(self.job, key, error, attempts, is_retryable=is_retryable))

        return attempt(0, 0)

    def _description_of(self, item: object) -> Callable[[], Arguments] | None:
        """What a `@step` records of its item, so that a resume notices another one."""
        parameter = self.parameter
        if parameter is None:
            return None
        return lambda: arguments_of(self.step.name, {parameter: item})

    def _work(self, item: object) -> AnyEffect:
        """What is done for an item. The user's function is called when it runs, and not before."""
        executor, function = self.executor, self.function
        if executor is None:
            work = suspend(lambda: function(item))
        else:
            # The function and the item travel, and nothing of the run. That there is nowhere to run
            # is no failure of the item: it stops the job, which a resume takes up.
            work = suspend(lambda: executor.apply(function, item).recover(ExecutorLost, die))
        return work.map_err(_one_attempt) if self.retry is None else work.retry(self.retry)


def last_failure(raised: Any) -> tuple[Any, int]:
    """What an item failed with at last, and after how many attempts, whatever `retry` was then."""
    if isinstance(raised, RetryExhausted):
        exhausted = cast("RetryExhausted[Any]", raised)
        return exhausted.error, exhausted.attempts
    return raised, 1


def _one_attempt(error: object) -> object:
    """The error of an item without retries, as it is recorded: `last_failure` gives it back."""
    if isinstance(error, RetryExhausted):
        return RetryExhausted(cast("object", error), 1, 0.0)
    return error


def _set_aside(letter: DeadLetter[Any], scope: Scope) -> None:
    """Record that an item is a dead letter, which settles its failure: a resume does not try it again."""
    observe(scope, _DEAD_LETTER, lambda: {"attempts": letter.attempts})


def _was_set_aside(scope: Scope) -> bool:
    """Whether it is recorded that the item was a dead letter at this place."""
    recorder = scope.decisions
    if recorder is None:
        return False
    return recorder.recall(scope.next_path(_DEAD_LETTER)) is not Nothing
