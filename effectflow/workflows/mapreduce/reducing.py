"""The reduce phase: the parts of each group become one, in a durable step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from returns.maybe import Nothing, Some

from effectflow.checkpoint.durable_step import StepDefinition, durable
from effectflow.effects import Effect, pure, suspend
from effectflow.workflows.mapreduce.part import Part
from effectflow.workflows.mapreduce.results import JobResult

__all__ = ["ReducePhase"]

AnyEffect = Effect[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class ReducePhase:
    """How parts become one.

    Attributes:
        step: the durable step that each group is.
        function: what the user reduces with.
    """

    step: StepDefinition
    function: Callable[[list[Any]], AnyEffect]

    def part_of(self, parts: list[Part]) -> AnyEffect:
        """The effect that makes one part of those of a group; of no parts, if there are no items."""
        if not parts:
            return pure(None)
        whole = Part.of_group(parts)
        present = [part for part in parts if part.value is not Nothing]
        if not present:
            return pure(whole)
        if len(present) == 1 and present[0].is_reduced:
            return pure(replace(whole, value=present[0].value))
        values = [part.value.unwrap() for part in present]
        step = durable(self._step_after(whole.retry), self._work(values), lambda: whole.arguments)
        return step.map(lambda value: replace(whole, value=Some(value)))

    def result_of(self, part: Part | None) -> AnyEffect:
        """The effect that makes the job's result of the last part; None if there were no items."""
        count, letters = (0, ()) if part is None else (part.count, part.dead_letters)
        if part is not None and part.value is not Nothing:
            return pure(JobResult(part.value.unwrap(), count, letters))
        step = durable(self.step, self._work([]))
        return step.map(lambda value: JobResult(value, count, letters))

    def _work(self, values: list[Any]) -> AnyEffect:
        return suspend(lambda: self.function(values))

    def _step_after(self, retry: int) -> StepDefinition:
        """The step of a group, which is another one once a dead letter has joined the group."""
        if retry == 0:
            return self.step
        return replace(self.step, name=f"{self.step.name} after retry {retry}")
